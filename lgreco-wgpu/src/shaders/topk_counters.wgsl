// What is counted of a layer to find where its k largest end, and the rank looked for in counts.

const NOWHERE = 0xffffffffu;

// Words among the counters of a layer: of the sample, by the upper 12 bits, how many values there are, the largest and the complement of
// the smallest; how many values are in bins of the interval; how many are of each magnitude of a bin or, where the cut is lost, have
// each 11, 10 and 10 bits. Of all of them, the sums of 64 shares.
const SAMPLED = 0u;
const LARGEST_SAMPLED = 4096u;
const LEAST_SAMPLED = 8192u;
const BINNED = 12288u;
const PICKED = 16384u;
const OF_SHARES = 24576u;
// Per exponent the largest magnitude of the layer, in few bits.
const OCTAVES = 24896u;
// How many are above the interval, how many are gathered, the complement of the smallest magnitude other than 0, the largest.
const ABOVE = 25152u;
const USED = 25153u;
const LOWEST = 25154u;
const HIGHEST = 25155u;
// The interval; the bin with the k-th largest, or NOWHERE; and the rank there. At last the cut, and how many at it are kept; of one that
// is lost what is known of it before each level.
const INTERVAL = 25156u;
const BIN = 25160u;
const BIN_RANK = 25161u;
const CUT = 25162u;
const TIES = 25163u;
const SETTLED = 25164u;

// A bin and a rank in it, from the largest on; NOWHERE if there are not as many, or the rank is 0.
struct Picked {
    bin: u32,
    rank: u32,
}

// Whether the workgroup's values are of a layer that this is about. Where lanes wait for each other none may leave.
var<private> takes_part: bool;

var<workgroup> picked: array<Picked, 1>;
var<workgroup> own_shares: array<atomic<u32>, 64>;

fn counted(word: u32) -> u32 {
    return counter(params.counters + word);
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
        add_counter(params.counters + OF_SHARES + 64u * level + lane, own);
    }
}

// The bin that a rank lies in, of 64 shares of so many bins, a power of two. All 64 lanes call it.
fn pick(level: u32, counts: u32, bins: u32, rank: u32, lane: Lane) -> Picked {
    // The largest come first.
    let number = 63u - place(lane);
    let of_share = counted(OF_SHARES + 64u * level + number);
    let before = sum_before(lane, vec2<u32>(of_share, 0u)).x;
    if (lane.index == 0u) {
        picked[0] = Picked(NOWHERE, 0u);
    }
    workgroupBarrier();
    if (before < rank && before + of_share >= rank) {
        picked[0] = Picked(number, rank - before);
    }
    workgroupBarrier();
    let share = picked[0];
    let each = max(bins / 64u, 1u);
    let first = counts + select(share.bin, 0u, share.bin == NOWHERE) * bins + number * each;
    var own = 0u;
    for (var i = 0u; i < each && number < bins; i++) {
        own += counted(first + i);
    }
    var earlier = sum_before(lane, vec2<u32>(own, 0u)).x;
    workgroupBarrier();
    if (share.bin != NOWHERE && earlier < share.rank && earlier + own >= share.rank) {
        for (var i = each; i > 0u; i--) {
            let count = counted(first + i - 1u);
            if (earlier + count >= share.rank) {
                picked[0] = Picked(first + i - 1u - counts, share.rank - earlier);
                break;
            }
            earlier += count;
        }
    }
    workgroupBarrier();
    return picked[0];
}
