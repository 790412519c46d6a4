// The counters of a layer's search for its cut, the k-th largest magnitude, and the search for a rank in counts.

const NOWHERE = 0xffffffffu;

// Words of a layer's tables. Each bin has the count of its values, the largest value, and the complement of the
// smallest. First the tables count the sample by its upper 12 bits. Then the tables are cleared, and count the 4096
// parts of the interval's bin that contains the k-th largest. If the sample has missed the cut, the tables are cleared
// again, and count the values by 11, 10 and 10 bits.
const BIN_COUNTS = 0u;
const BIN_LARGEST = 4096u;
const BIN_LEAST = 8192u;
// Index of the first counter, after the tables.
const COUNTERS = 12288u;

// Indices of a layer's words, after COUNTERS. BINNED has the counts of the interval's bins. OF_SHARES has sums of
// counts. The bins of each kind of counts (SAMPLE to SETTLED) are divided into 64 equal shares, and each share has one
// sum.
const BINNED = 0u;
const OF_SHARES = 4096u;
const SAMPLE = 0u;
const COARSE = 1u;
const FINE = 2u;
const SETTLED = 3u; // and the next two levels
// A bit for each exponent of the layer's magnitudes, in few bits.
const OCTAVES = 4480u;
// Number of values above the interval, number of gathered values, complement of the smallest nonzero magnitude, and
// largest magnitude.
const ABOVE = 4488u;
const USED = 4489u;
const LOWEST = 4490u;
const HIGHEST = 4491u;
// Like LOWEST and HIGHEST, but only over the sampled values.
const LOWEST_SAMPLED = 4492u;
const HIGHEST_SAMPLED = 4493u;
// The interval; the bin that contains the k-th largest, or NOWHERE; and the rank of the k-th largest in that bin.
const INTERVAL = 4494u;
const BIN = 4498u;
const BIN_RANK = 4499u;
// Two words for each level after a missed cut. The first word has the upper bits of the cut that are known before the
// level. The second word has k's rank among the values with these bits.
const SETTLED_CUT = 4500u;

// A bin, and a rank in this bin, counted from the largest value. The bin is NOWHERE if there are fewer values than the
// sought rank, or if that rank is 0.
struct Picked {
    bin: u32,
    rank: u32,
}

var<workgroup> picked: array<Picked, 1>;
var<workgroup> own_shares: array<atomic<u32>, 64>;

fn counted(word: u32) -> u32 {
    return counter(COUNTERS + word);
}

// Raises a counter to at least x. If the counter is already large enough, as for most lanes, the function skips the
// atomic.
fn raise_counter(at: u32, x: u32) {
    if (counter(at) < x) {
        max_with_counter(at, x);
    }
}

// The last step of Murmur hashing: all bits depend on all bits.
fn mixed(x: u32) -> u32 {
    var bits = (x ^ (x >> 16u)) * 0x85ebca6bu;
    bits = (bits ^ (bits >> 13u)) * 0xc2b2ae35u;
    return bits ^ (bits >> 16u);
}

fn clear_shares(lane: u32) {
    atomicStore(&own_shares[lane], 0u);
}

fn give_shares(level: u32, lane: u32) {
    let own = atomicLoad(&own_shares[lane]);
    if (own != 0u) {
        add_counter(COUNTERS + OF_SHARES + 64u * level + lane, own);
    }
}

// Adds a magnitude to a bin of the tables, `times` times.
fn add_to_table(bin: u32, magnitude: u32, times: u32) {
    let at = bin;
    add_counter(at + BIN_COUNTS, times);
    raise_counter(at + BIN_LARGEST, magnitude);
    raise_counter(at + BIN_LEAST, ~magnitude);
    atomicAdd(&own_shares[bin / 64u], times);
}

// Finds the bin with the `rank`-th largest value. The counts begin at word `counts`, in 64 shares of `bins` bins each,
// a power of two. All 64 lanes must call this function.
fn pick(level: u32, counts: u32, bins: u32, rank: u32, lane: Lane) -> Picked {
    let number = number_of(lane);
    let share = pick_lane(number, counted(OF_SHARES + 64u * level + number), rank, lane);
    let bin = select(share.bin, 0u, share.bin == NOWHERE) * bins + number;
    var own = 0u;
    if (number < bins) {
        own = counter(counts + bin);
    }
    return pick_lane(bin, own, share.rank, lane);
}

// The lane's bin among 64. The lanes with the smallest places get the bins with the largest values.
fn number_of(lane: Lane) -> u32 {
    return 63u - place(lane);
}

// Finds the bin with the `rank`-th largest value, if each lane has a bin and its count. All 64 lanes must call this
// function.
fn pick_lane(bin: u32, count: u32, rank: u32, lane: Lane) -> Picked {
    let before = sum_before(lane, vec2<u32>(count, 0u)).x;
    if (lane.index == 0u) {
        picked[0] = Picked(NOWHERE, 0u);
    }
    workgroupBarrier();
    if (before < rank && before + count >= rank) {
        picked[0] = Picked(bin, rank - before);
    }
    workgroupBarrier();
    return picked[0];
}
