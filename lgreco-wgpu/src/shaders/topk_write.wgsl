// Writes TopK's payloads: all values above the cut, and the first values equal to the cut. `put_kept` writes a value as
// it is sent, and `put_position` the bits of its position.

// Statistics of some values: the number above the cut, the number equal to the cut, and the range of the kept
// magnitudes. `lowest` is the complement of the smallest nonzero magnitude.
struct Kept {
    sum: vec2<u32>,
    lowest: u32,
    highest: u32,
}

fn add_found(kept: ptr<function, Kept>, bits: u32, cut: u32) {
    let magnitude = bits & MAGNITUDE;
    (*kept).sum += found(bits, cut);
    if (magnitude >= max(cut, 1u)) {
        (*kept).lowest = max((*kept).lowest, ~magnitude);
        (*kept).highest = max((*kept).highest, magnitude);
    }
}

// The statistics of all 64 lanes' values.
fn kept_of(lane: Lane, own: Kept) -> Kept {
    let sum = sum_of(lane, 64u, own.sum);
    let lowest = largest_of(lane, 64u, own.lowest);
    return Kept(sum, lowest, largest_of(lane, 64u, own.highest));
}

// Number of blocks whose counts are added to the same partial sum.
const TOGETHER = 256u;

// Stores the number of a block's values above the cut, and the number equal to the cut. The block is number `own` of
// its layer. Only one lane calls the function.
fn count_block_as(block: u32, own: u32, kept: vec2<u32>) {
    let at = params.block_counts + 2u * block;
    atomicStore(&blocks[at], kept.x);
    atomicStore(&blocks[at + 1u], kept.y);
    let together = params.block_sums + 2u * (own / TOGETHER);
    atomicAdd(&blocks[together], kept.x);
    atomicAdd(&blocks[together + 1u], kept.y);
}

fn two_counts(at: u32) -> vec2<u32> {
    return vec2<u32>(atomicLoad(&blocks[at]), atomicLoad(&blocks[at + 1u]));
}

// The sums of the counts of all earlier blocks of the layer. All 64 lanes must call this function.
fn known_before(block: u32, own: u32, lane: Lane) -> vec2<u32> {
    var sum = vec2<u32>(0u, 0u);
    for (var together = lane.index; together < own / TOGETHER; together += 64u) {
        sum += two_counts(params.block_sums + 2u * together);
    }
    for (var back = lane.index; back < own % TOGETHER; back += 64u) {
        sum += two_counts(params.block_counts + 2u * (block - 1u - back));
    }
    return sum_of(lane, 64u, sum);
}

// The word of a payload in which a kept value begins.
fn word_of(index: u32) -> u32 {
    if (params.bits != 0u) {
        return field(params.codes, 0u, index, params.bits).x;
    }
    return params.values_word + (index >> u32(params.sent != 0u));
}

fn is_in_window(word: u32) -> bool {
    return word - params.window < params.window_len;
}

// Skips a block if none of its values is written to the window. The block's first value has index `first`. `known` has
// the numbers of values before the block that are above the cut, and equal to it.
fn skip_unless_written(block: u32, first: u32, cut: u32, ties: u32, known: vec2<u32>) {
    let after = known + two_counts(params.block_counts + 2u * block);
    let start = known.x + min(known.y, ties);
    let end = after.x + min(after.y, ties);
    if (start >= end) {
        params.count = first;
        return;
    }
    let last_word = word_of(end - 1u);
    // A block has at most as many words as a window, but its last code may end one word later.
    let is_written = is_in_window(word_of(start)) || is_in_window(last_word) || is_in_window(last_word + 1u);
    if (!is_written && params.window_len != 0u) {
        params.count = first;
    }
}

// Writes the kept values of the tile. The tile's first value has index `first`. All values above the cut are kept, and
// the layer's first `ties` values equal to the cut. `known` has the numbers of values before the tile that are above
// the cut, and equal to it. All lanes must call this function.
fn write_tile(first: u32, cut: u32, ties: u32, known: vec2<u32>, lane: Lane) {
    let start = place(lane) * ROW;
    let end = min(start + ROW, params.count - first);
    var sum = vec2<u32>(0u, 0u);
    for (var i = start; i < end; i++) {
        sum += found(tile[in_tile(i)], cut);
    }
    var before = known + sum_before(lane, sum);
    for (var i = start; i < end; i++) {
        let bits = tile[in_tile(i)];
        let own = found(bits, cut);
        if (own.x != 0u || (own.y != 0u && before.y < ties)) {
            write_one(before.x + min(before.y, ties), params.first + first + i, bits);
        }
        before += own;
    }
}

// Writes a kept value in full.
fn put_in_full(index: u32, bits: u32) {
    if (params.sent == 0u) {
        put(params.values_word + index, 0u, bits);
        return;
    }
    var sent = narrow_bf16(bits);
    if (params.sent == 1u) {
        sent = narrow_f16(bits);
    }
    put(params.values_word + (index >> 1u), 16u * (index & 1u), sent);
}

fn write_one(index: u32, position: u32, bits: u32) {
    put_kept(index, bits);
    if (params.placement == 0u) {
        return;
    }
    var high = field(params.high_word, params.high_bit, position, 1u);
    if (params.placement == 2u) {
        if (params.low_bits > 0u) {
            let low = field(params.low_word, params.low_bit, index, params.low_bits);
            put_position(low.x, low.y, position & ((1u << params.low_bits) - 1u));
        }
        high = field(high_after(index).x, high_after(index).y, position >> params.low_bits, 1u);
    }
    put_position(high.x, high.y, 1u);
}

fn high_after(index: u32) -> vec2<u32> {
    return field(params.high_word, params.high_bit, index, 1u);
}

// Writes bits of the payload; skips bits outside the window.
fn put(word: u32, bit: u32, bits: u32) {
    if (is_in_window(word)) {
        atomicOr(&payload[word - params.window], bits << bit);
    }
    if (bit > 0u && (bits >> (32u - bit)) != 0u && is_in_window(word + 1u)) {
        atomicOr(&payload[word + 1u - params.window], bits >> (32u - bit));
    }
}

// Word and bit at which field number `index` begins. Fields of `width` bits follow one another, and the first begins at
// `word` and `bit`.
fn field(word: u32, bit: u32, index: u32, width: u32) -> vec2<u32> {
    let offset = mul_wide(index, width);
    let within = (offset.x & 31u) + bit;
    return vec2<u32>(word + (offset.y << 27u) + (offset.x >> 5u) + (within >> 5u), within & 31u);
}
