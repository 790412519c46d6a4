// The mean of a model's latest gradients, from which a plan is made, and the norms of this mean.

struct Params {
    float old;  // weight of the mean so far
    float own;  // weight of the new gradient
};

// A layer of the window.
struct Observed {
    u64 gradient;  // address; `close` does not read it
    u64 mean;
    u32 dtype;
    u32 count;
    u32 first_block;  // number of its first block among the blocks of all layers
    u32 blocks;
};

__device__ inline float* mean_of(const Observed& layer) {
    float* mean = reinterpret_cast<float*>(layer.mean);
    // The compiler does not know that this address, loaded from memory, is in global memory.
    __builtin_assume(__isGlobal(mean));
    return mean;
}

// Adds another gradient to each mean. The result has the same bits as on the host.
extern "C" __global__ void blend(Params p, const Observed* layers, const u32* layer_of) {
    Observed layer = layers[layer_of[blockIdx.x]];
    const void* gradient = reinterpret_cast<const void*>(layer.gradient);
    __builtin_assume(__isGlobal(gradient));
    float* mean = mean_of(layer);
    u64 stride = u64(layer.blocks) * BLOCK * 4;
    for (u64 i = (u64(blockIdx.x - layer.first_block) * BLOCK + threadIdx.x) * 4; i < layer.count; i += stride) {
        float own[4];
        float old[4];
        u32 here = load4(gradient, layer.dtype, i, layer.count, own);
        load4(mean, 0, i, layer.count, old);
        u32 bits[4];
#pragma unroll
        for (u32 k = 0; k < 4; k++) {
            bits[k] = __float_as_uint(old[k] * p.old + own[k] * p.own);
        }
        store4(mean, 0, i, here, bits);
    }
}

// Rounds each mean to the type of its layer's gradient, and writes each block's sum of squares.
extern "C" __global__ void close(Params, const Observed* layers, const u32* layer_of, double* partials) {
    Observed layer = layers[layer_of[blockIdx.x]];
    float* mean = mean_of(layer);
    u64 stride = u64(layer.blocks) * BLOCK * 4;
    double sum = 0.0;
    for (u64 i = (u64(blockIdx.x - layer.first_block) * BLOCK + threadIdx.x) * 4; i < layer.count; i += stride) {
        float own[4];
        u32 here = load4(mean, 0, i, layer.count, own);
        u32 bits[4];
#pragma unroll
        for (u32 k = 0; k < 4; k++) {
            u32 wide = __float_as_uint(own[k]);
            if (layer.dtype != 0) {
                wide = __float_as_uint(widen(layer.dtype == 1 ? narrow_f16(wide) : narrow_bf16(wide), layer.dtype));
            }
            bits[k] = wide;
            double value = k < here ? double(__uint_as_float(wide)) : 0.0;
            sum += value * value;
        }
        if (layer.dtype != 0) {
            store4(mean, 0, i, here, bits);
        }
    }
    sum = block_sum(sum);
    if (threadIdx.x == 0) {
        partials[blockIdx.x] = sum;
    }
}

// Computes the squared norm of each layer's mean. Launched with one block per layer.
extern "C" __global__ void add_squares(Params, const Observed* layers, const double* partials, double* norms) {
    Observed layer = layers[blockIdx.x];
    double sum = 0.0;
    for (u32 i = threadIdx.x; i < layer.blocks; i += BLOCK) {
        sum += partials[u64(layer.first_block) + i];
    }
    sum = block_sum(sum);
    if (threadIdx.x == 0) {
        norms[blockIdx.x] = sum;
    }
}
