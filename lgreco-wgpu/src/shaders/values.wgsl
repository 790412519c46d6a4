// A tensor's values, as the trainer keeps them. `params.offset` is the first one's place in the binding.

@group(0) @binding(1) var<storage, read> values: array<u32>;

// The bits of value i as an f32.
fn value(i: u32) -> u32 {
    let at = params.offset + i;
    if (params.dtype == 0u) {
        return values[at];
    }
    let half = (values[at >> 1u] >> (16u * (at & 1u))) & 0xffffu;
    if (params.dtype == 2u) {
        return half << 16u;
    }
    return widen_f16(half);
}
