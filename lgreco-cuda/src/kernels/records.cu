// Sums of blocks' records. A module that includes this file defines `Params`, RESULT_WORDS, and a `Layer` with
// `first_block` and `blocks`.

// Adds up the records of each layer's blocks. A record has 8 doubles. Launched with one block per layer.
extern "C" __global__ void add_records(Params, const Layer* layers, const double* partials, double* totals) {
    Layer layer = layers[blockIdx.x];
    for (u32 w = 0; w < 8; w++) {
        double sum = 0.0;
        for (u32 i = threadIdx.x; i < layer.blocks; i += BLOCK) {
            sum += partials[(u64(layer.first_block) + i) * 8 + w];
        }
        sum = block_sum(sum);
        if (threadIdx.x == 0) {
            totals[u64(blockIdx.x) * RESULT_WORDS + w] = sum;
        }
    }
}
