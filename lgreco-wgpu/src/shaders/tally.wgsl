// Histograms of a workgroup's values in its own memory, which are added to the device's memory once.
//
// The table has 768 places. Bins with the same number modulo 768 share one place. The first bin that is counted takes
// the place. Values of the other bins are added to the device's memory immediately. Adjacent bins, which contain nearly
// all values of a tensor, have different places. The sums do not depend on which bin is first.

const PLACES = 768u; // twelve binades of level 1
const COUNT_BITS = 15u;

// Per place: the bin's number plus 1 in the upper bits, and the number of values in this bin in the lower bits. A free
// place has 0. A workgroup sees at most 2^14 values.
var<workgroup> tallies: array<atomic<u32>, 768>;
// Per place: the sum of numbers below 2^17, then the two words of the sum of numbers below 2^48.
var<workgroup> tallied: array<atomic<u32>, 2304>;

// Clears the places. All 256 lanes of the workgroup must call this function.
fn clear_tallies(lane: u32) {
    for (var i = lane; i < PLACES; i += 256u) {
        atomicStore(&tallies[i], 0u);
    }
    for (var i = lane; i < 3u * PLACES; i += 256u) {
        atomicStore(&tallied[i], 0u);
    }
    workgroupBarrier();
}

// Counts a value in the bin's place, and returns the place. Returns PLACES if another bin has taken the place.
fn tally(bin: u32) -> u32 {
    let place = bin % PLACES;
    let name = (bin + 1u) << COUNT_BITS;
    var there = atomicLoad(&tallies[place]);
    // The loop repeats the weak compare-exchange, which may fail spuriously.
    while (there == 0u) {
        let claimed = atomicCompareExchangeWeak(&tallies[place], 0u, name);
        there = select(claimed.old_value, name, claimed.exchanged);
    }
    if ((there >> COUNT_BITS) != bin + 1u) {
        return PLACES;
    }
    atomicAdd(&tallies[place], 1u);
    return place;
}

fn tally_key(place: u32, key: u32) {
    atomicAdd(&tallied[place], key);
}

fn tally_error(place: u32, x: vec2<u32>) {
    let before = atomicAdd(&tallied[PLACES + place], x.x);
    let upper = x.y + u32(before + x.x < before);
    if (upper != 0u) {
        atomicAdd(&tallied[2u * PLACES + place], upper);
    }
}

// The content of a place.
struct Tally {
    bin: u32,
    count: u32, // 0 if the place is empty
    keys: u32,
    errors: vec2<u32>,
}

fn tally_at(place: u32) -> Tally {
    let there = atomicLoad(&tallies[place]);
    let errors = vec2<u32>(atomicLoad(&tallied[PLACES + place]), atomicLoad(&tallied[2u * PLACES + place]));
    return Tally((there >> COUNT_BITS) - 1u, there & ((1u << COUNT_BITS) - 1u), atomicLoad(&tallied[place]), errors);
}
