// A tensor's values, in the element type that the trainer uses. `params.offset` is the first value's place in the
// binding; for 16-bit values it is even.

@group(0) @binding(1) var<storage, read> values: array<u32>;

// The bits of value i as an f32.
fn value(i: u32) -> u32 {
    let at = params.offset + i;
    if (params.dtype == 0u) {
        return values[at];
    }
    return widened((values[at >> 1u] >> (16u * (at & 1u))) & 0xffffu);
}

// The bits of a 16-bit value as an f32.
fn widened(half: u32) -> u32 {
    if (params.dtype == 2u) {
        return half << 16u;
    }
    return widen_f16(half);
}
