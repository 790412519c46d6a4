// The mean of a model's last gradients, of which a plan is made, and its norms.

struct Params {
    float old;  // weights of the mean so far and of what is added
    float own;
};

// A layer of the window.
struct Observed {
    u64 gradient;  // address; not looked at where the mean is closed
    u64 mean;
    u32 dtype;
    u32 count;
    u32 first_block;  // among all layers'
    u32 blocks;
};

__device__ inline float* mean_of(const Observed& layer) {
    float* mean = reinterpret_cast<float*>(layer.mean);
    // An address that comes from memory could be of any kind.
    __builtin_assume(__isGlobal(mean));
    return mean;
}

// Means after another gradient. Bit for bit the host's.
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

// Rounds means to what gradients of their layer's type can be, and adds up each block's squares.
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

// The squared norm of each layer's mean, one block per layer.
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
