// EDEN's grids: the levels of all widths, then the thresholds halfway between neighbours, as bits of f32.

@group(0) @binding(2) var<storage, read> grids: array<u32>;

const THRESHOLDS = 256u;

// Index of the first level for this number of bits.
fn first_level(bits: u32) -> u32 {
    return (1u << (bits - 1u)) - 1u;
}

// Returns the level nearest to a magnitude, as an index among the levels of all widths. A magnitude on a threshold gets
// the upper level.
fn nearest(bits: u32, magnitude: u32) -> u32 {
    var at = first_level(bits);
    for (var step = (1u << (bits - 1u)) >> 1u; step > 0u; step >>= 1u) {
        at += select(0u, step, magnitude >= grids[THRESHOLDS + at + step - 1u]);
    }
    return at;
}
