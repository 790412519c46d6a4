// TopK's payloads of all ranks and layers: positions, then values added in their places.

// Whose payload is read.
var<private> sender: u32;

fn in_image(word: u32) -> u32 {
    return words[sender * moment.image + word];
}

// So many bits from a bit of a word on, and what is behind them in these words.
fn bits_from(word: u32, bit: u32, len: u32) -> u32 {
    let bits = in_image(word) >> bit;
    if (bit + len <= 32u) {
        return bits;
    }
    return bits | (in_image(word + 1u) << (32u - bit));
}

// The lower bits of the position of value `index`.
fn low_bits_of(index: u32) -> u32 {
    if (params.low_bits == 0u) {
        return 0u;
    }
    let at = field(params.low_word, params.low_bit, index, params.low_bits);
    return bits_from(at.x, at.y, params.low_bits) & ((1u << params.low_bits) - 1u);
}

// The word of ones that are positions, without what comes behind the last bit.
fn ones(word: u32) -> u32 {
    if (word * 32u >= params.high_len) {
        return 0u;
    }
    let left = params.high_len - word * 32u;
    let bits = bits_from(params.high_word + word, params.high_bit, min(left, 32u));
    return select(bits, bits & ((1u << left) - 1u), left < 32u);
}

fn fault_of_sender() {
    atomicMax(&faults[HEAD + FAULTS * moment.layers + sender], ~params.number);
    atomicMax(&faults[OF_PEERS], 1u);
}

// Whether the one before a one of a word is its neighbour.
fn follows_a_one(word: u32, bits: u32, bit: u32) -> bool {
    if (bit > 0u) {
        return ((bits >> (bit - 1u)) & 1u) != 0u;
    }
    return word > 0u && ones(word - 1u) >> 31u != 0u;
}

// A workgroup reads a block of 2048 bits of a rank's.
@compute @workgroup_size(64)
fn read_positions(@builtin(workgroup_id) group: vec3<u32>, lane: Lane) {
    begin(layer_of[group.x]);
    sender = group.y;
    let block = group.x - params.first_block;
    let word = block * 64u + place(lane);
    let bits = ones(word);
    var rest = bits;
    var index = in_image(params.starts + block) + sum_before(lane, vec2<u32>(countOneBits(rest), 0u)).x;
    while (rest != 0u) {
        let bit = countTrailingZeros(rest);
        var position = word * 32u + bit;
        rest &= rest - 1u;
        if (params.placement == 2u) {
            let steps = position - index;
            position = (steps << params.low_bits) | low_bits_of(index);
            if (steps > (params.count - 1u) >> params.low_bits) {
                position = params.count;
            }
            // Neighbours have the same upper bits.
            if (index > 0u && follows_a_one(word, bits, bit) && low_bits_of(index - 1u) >= low_bits_of(index)) {
                fault_of_sender();
            }
        }
        if (position >= params.count) {
            fault_of_sender();
        }
        positions[sender * moment.kept + params.positions + index] = position;
        index += 1u;
    }
}

fn kept_value(index: u32) -> u32 {
    if (params.bits != 0u) {
        let at = field(params.codes, 0u, index, params.bits);
        let code = bits_from(at.x, at.y, params.bits);
        let sign = 1u << (params.bits - 1u);
        return in_image(params.values_word + (code & (sign - 1u))) | select(0u, SIGN, (code & sign) != 0u);
    }
    if (params.sent == 0u) {
        return in_image(params.values_word + index);
    }
    let half = (in_image(params.values_word + (index >> 1u)) >> (16u * (index & 1u))) & 0xffffu;
    return select(half << 16u, widen_f16(half), params.sent == 1u);
}

// Where a rank's kept value lies in its layer.
fn position_of(index: u32) -> u32 {
    if (params.placement == 0u) {
        return index;
    }
    return positions[sender * moment.kept + params.positions + index];
}

// The first of a rank's kept values that lies at a position or behind it; their number for none.
fn first_from(position: u32) -> u32 {
    var low = 0u;
    var high = params.keep;
    while (low < high) {
        let middle = low + (high - low) / 2u;
        if (position_of(middle) < position) {
            low = middle + 1u;
        } else {
            high = middle;
        }
    }
    return low;
}

// Of 64 ranks at a time.
var<workgroup> firsts: array<u32, 64>;

// The totals of 2048 values, to which the ranks add one after the other; this rank's own is taken off what it has offered.
@compute @workgroup_size(64)
fn add_kept(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let first = begin_if(TOP_K, group.x);
    let end = min(first + PER_GROUP, params.count);
    for (var i = lane; i < PER_GROUP; i += 64u) {
        tile[i] = 0u;
    }
    for (var ranks = 0u; ranks < moment.world; ranks += 64u) {
        sender = ranks + lane;
        if (sender < moment.world && first < end) {
            firsts[lane] = first_from(first);
        }
        workgroupBarrier();
        for (var rank = ranks; rank < min(ranks + 64u, moment.world); rank++) {
            sender = rank;
            if (first < end) {
                add_from(firsts[rank - ranks], first, end, lane);
            }
            workgroupBarrier();
        }
    }
    for (var i = first + lane; i < end; i += 64u) {
        totals[params.start + i] = tile[i - first];
    }
}

// Adds what the sender has kept of the values from `first` to `end`, from its value `begins` on.
fn add_from(begins: u32, first: u32, end: u32, lane: u32) {
    for (var index = begins + lane; index < params.keep; index += 64u) {
        let position = position_of(index);
        if (position >= end) {
            break;
        }
        let bits = kept_value(index);
        if (!is_finite(bits)) {
            fault_of_sender();
        }
        // What is out of order has been found.
        if (position >= first) {
            tile[position - first] = sum(tile[position - first], bits);
            if (sender == moment.rank) {
                take_off(position, bits);
            }
        }
    }
}
