// What is counted of a layer to find where its k largest end, and the rank looked for in counts.

const NOWHERE = 0xffffffffu;

// Words of a layer's tables: by bin how many values there are, the largest and the complement of the smallest. First bins are a
// sample's, by the upper 12 bits. Then they are cleared, and are parts of the bin of the interval that has the k-th largest. Of a cut
// that is lost they are cleared once more, and how many have each 11, 10 and 10 bits.
const BIN_COUNTS = 0u;
const BIN_LARGEST = 4096u;
const BIN_LEAST = 8192u;
// Where the counters begin, behind the tables.
const COUNTERS = 12288u;

// Words among a layer's counters: how many values are in bins of the interval; of each level of counts, the sums of 64 shares.
const BINNED = 0u;
const OF_SHARES = 4096u;
const SAMPLE = 0u;
const COARSE = 1u;
const FINE = 2u;
const SETTLED = 3u; // and two more
// Whether the layer has magnitudes of an exponent, in few bits: a bit for each.
const OCTAVES = 4480u;
// How many are above the interval, how many are gathered, the complement of the smallest magnitude other than 0, the largest.
const ABOVE = 4488u;
const USED = 4489u;
const LOWEST = 4490u;
const HIGHEST = 4491u;
// The last two of the sample.
const LOWEST_SAMPLED = 4492u;
const HIGHEST_SAMPLED = 4493u;
// The interval; the bin with the k-th largest, or NOWHERE; the rank there.
const INTERVAL = 4494u;
const BIN = 4498u;
const BIN_RANK = 4499u;
// Of a cut that is lost, two words for each level: its upper bits that are known before the level, and k's rank among those that have them.
const SETTLED_CUT = 4500u;

// A bin and a rank in it, from the largest on; NOWHERE if there are not as many, or the rank is 0.
struct Picked {
    bin: u32,
    rank: u32,
}

var<workgroup> picked: array<Picked, 1>;
var<workgroup> own_shares: array<atomic<u32>, 64>;

fn counted(word: u32) -> u32 {
    return counter(COUNTERS + word);
}

// Makes a counter at least x, without an atomic where it is already: many come after the first that has raised it.
fn raise_counter(at: u32, x: u32) {
    if (counter(at) < x) {
        max_with_counter(at, x);
    }
}

// Murmur's last step: all bits depend on all.
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

// Adds a magnitude to a bin of the tables, some times.
fn add_to_table(bin: u32, magnitude: u32, times: u32) {
    let at = bin;
    add_counter(at + BIN_COUNTS, times);
    raise_counter(at + BIN_LARGEST, magnitude);
    raise_counter(at + BIN_LEAST, ~magnitude);
    atomicAdd(&own_shares[bin / 64u], times);
}

// The bin that a rank lies in, of 64 shares of so many bins each, a power of two, whose counts begin at a word. All 64 lanes call it.
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

// Of 64 bins the lane's: the largest come first.
fn number_of(lane: Lane) -> u32 {
    return 63u - place(lane);
}

// The bin that a rank lies in, of one that each lane has, and of which it knows how many are there. All 64 lanes call it.
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
