// A workgroup's 2048 values. Neighbouring lanes read neighbouring values from device memory. After loading, each lane
// processes 32 consecutive values.
//
// There are i / 32 words of padding before value i. So lanes that process their rows in lockstep access different
// banks.

const PER_GROUP = 2048u;
const ROW = 32u;

var<workgroup> tile: array<u32, 2112>;

fn in_tile(i: u32) -> u32 {
    return i + (i >> 5u);
}

// Fills the tile with the bits of the values that begin at index `first`, a multiple of 2048. All lanes must call this
// function.
fn load_tile(first: u32, lane: u32) {
    if (params.dtype == 0u) {
        for (var i = lane; i < PER_GROUP; i += 64u) {
            if (first + i < params.count) {
                tile[in_tile(i)] = value(first + i);
            }
        }
    } else {
        // A word has two 16-bit values.
        for (var i = 2u * lane; i < PER_GROUP; i += 128u) {
            if (first + i < params.count) {
                let word = values[(params.offset + first + i) >> 1u];
                tile[in_tile(i)] = widened(word & 0xffffu);
                tile[in_tile(i + 1u)] = widened(word >> 16u);
            }
        }
    }
    workgroupBarrier();
}
