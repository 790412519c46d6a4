// For kernels with a `Params`, a `Layer` of `blocks` from `first_block` on, and RESULT_WORDS.

// What the records of each layer's blocks add up to, one block per layer.
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
