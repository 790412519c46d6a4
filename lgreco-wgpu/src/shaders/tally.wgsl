// Histograms of what a workgroup sees, in its own memory, from where they go to the device's once.
//
// A bin has one place, which it shares with every 768th: the first that comes has it, and what falls into the others goes to
// the device's memory at once. Bins next to each other, in which nearly all values of a tensor are, have places of their
// own; and whoever comes first changes no sum.

const PLACES = 768u; // twelve binades of level 1
const COUNT_BITS = 15u;

// One more than the bin, then how many values have fallen into it; 0: no bin's. A workgroup sees no more than 2^14 values.
var<workgroup> tallies: array<atomic<u32>, 768>;
// Per place: sum of numbers below 2^17, then the two words of the sum of numbers below 2^48.
var<workgroup> tallied: array<atomic<u32>, 2304>;

// All lanes of a workgroup of 256 call it.
fn clear_tallies(lane: u32) {
    for (var i = lane; i < PLACES; i += 256u) {
        atomicStore(&tallies[i], 0u);
    }
    for (var i = lane; i < 3u * PLACES; i += 256u) {
        atomicStore(&tallied[i], 0u);
    }
    workgroupBarrier();
}

// Counts a value in the bin's place, which it returns; PLACES if another bin has it.
fn tally(bin: u32) -> u32 {
    let place = bin % PLACES;
    let name = (bin + 1u) << COUNT_BITS;
    var there = atomicLoad(&tallies[place]);
    // It may fail without a reason.
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

// What a place holds.
struct Tally {
    bin: u32,
    count: u32, // 0: nothing
    keys: u32,
    errors: vec2<u32>,
}

fn tally_at(place: u32) -> Tally {
    let there = atomicLoad(&tallies[place]);
    let errors = vec2<u32>(atomicLoad(&tallied[PLACES + place]), atomicLoad(&tallied[2u * PLACES + place]));
    return Tally((there >> COUNT_BITS) - 1u, there & ((1u << COUNT_BITS) - 1u), atomicLoad(&tallied[place]), errors);
}
