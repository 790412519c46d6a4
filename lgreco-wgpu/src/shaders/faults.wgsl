// What is found wrong with a bucket's layers.

// Of each layer complements of the first positions at fault: what is offered, the mean, and the mean in the layer's type are not
// finite, nor is what is left, nor what is sent in its type, nor a factor of this rank, whatever its position; and whether TopK's cut is
// lost. Behind the layers', of each rank: the complement of the first layer whose payload no encoder wrote. In front of all, of each
// of these kinds, whether there is anything of it.
const FAULTS = 7u;
const CUT_IS_LOST = 6u;
const OF_PEERS = 7u;
const HEAD = 8u;

@group(0) @binding(10) var<storage, read_write> faults: array<atomic<u32>>;

fn fault(kind: u32, position: u32) {
    atomicMax(&faults[HEAD + FAULTS * params.number + kind], ~position);
    atomicMax(&faults[kind], 1u);
}

fn is_finite(bits: u32) -> bool {
    return (bits & MAGNITUDE) < INFINITY;
}
