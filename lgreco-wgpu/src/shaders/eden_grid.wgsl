// EDEN's grids: levels of all widths, then what lies halfway between each two, as bits of f32.

@group(0) @binding(2) var<storage, read> grids: array<u32>;

const THRESHOLDS = 256u;

// Where the levels of so many bits begin.
fn first_level(bits: u32) -> u32 {
    return (1u << (bits - 1u)) - 1u;
}

// The level nearest to a magnitude; on a threshold it is the upper one. By its place among all.
fn nearest(bits: u32, magnitude: u32) -> u32 {
    var at = first_level(bits);
    for (var step = (1u << (bits - 1u)) >> 1u; step > 0u; step >>= 1u) {
        at += select(0u, step, magnitude >= grids[THRESHOLDS + at + step - 1u]);
    }
    return at;
}
