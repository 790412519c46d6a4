// TopK's payloads, wherever tensors and payloads lie: what is above the cut or at it, and where it is written. How a value is sent
// is `put_kept`'s to say.

// What a value adds to the number of elements above the cut, and of those at it.
fn found(bits: u32, cut: u32) -> vec2<u32> {
    let magnitude = bits & MAGNITUDE;
    return vec2<u32>(u32(magnitude > cut), u32(magnitude == cut));
}

// What some values add to these numbers, and the range of magnitudes that are kept of them: the complement of the smallest other
// than 0, and the largest.
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

// The same of all 64 lanes' values.
fn kept_of(lane: Lane, own: Kept) -> Kept {
    let sum = sum_of(lane, 64u, own.sum);
    let lowest = largest_of(lane, 64u, own.lowest);
    return Kept(sum, lowest, largest_of(lane, 64u, own.highest));
}

// The sums of some blocks become those of all before each. All 256 lanes of a workgroup call it.
fn scan_blocks(first: u32, count: u32, lane: Lane) {
    let place = place(lane);
    let share = (count + 255u) / 256u;
    let start = first + min(place * share, count);
    let end = first + min((place + 1u) * share, count);
    var sum = vec2<u32>(0u, 0u);
    for (var block = start; block < end; block++) {
        sum += blocks[block];
    }
    sum = sum_before(lane, sum);
    for (var block = start; block < end; block++) {
        let own = blocks[block];
        blocks[block] = sum;
        sum += own;
    }
}

// Writes what is above the cut and the first of what is at it, of the tile of the values from `first` on, before
// which so many are known. All lanes call it.
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

// A kept value in full.
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
            put(low.x, low.y, position & ((1u << params.low_bits) - 1u));
        }
        high = field(high_after(index).x, high_after(index).y, position >> params.low_bits, 1u);
    }
    put(high.x, high.y, 1u);
}

fn high_after(index: u32) -> vec2<u32> {
    return field(params.high_word, params.high_bit, index, 1u);
}

// Writes bits of the payload, of which those outside the window are passed over.
fn put(word: u32, bit: u32, bits: u32) {
    let lower = word - params.window;
    if (lower < params.window_len) {
        atomicOr(&payload[lower], bits << bit);
    }
    if (bit > 0u && (bits >> (32u - bit)) != 0u && lower + 1u < params.window_len) {
        atomicOr(&payload[lower + 1u], bits >> (32u - bit));
    }
}

// Word and bit of the `index`-th field of `width` bits after a start.
fn field(word: u32, bit: u32, index: u32, width: u32) -> vec2<u32> {
    let offset = mul_wide(index, width);
    let within = (offset.x & 31u) + bit;
    return vec2<u32>(word + (offset.y << 27u) + (offset.x >> 5u) + (within >> 5u), within & 31u);
}
