// Error feedback: what is compressed, and what is remembered. The numbers are those of lgreco_core::feedback, bit for bit.

struct Params {
    u32 dtype;
    u32 count;
    float gain;
    float keep; // 1 - gain
};

// offered = memory + gradient.
extern "C" __global__ void offer(Params p, const void* values, const float* memory, float* offered) {
    u64 stride = u64(gridDim.x) * BLOCK;
    for (u64 i = u64(blockIdx.x) * BLOCK + threadIdx.x; i < p.count; i += stride) {
        offered[i] = memory[i] + value(values, p.dtype, i);
    }
}

// offered = keep * memory + gain * (offered - decoded).
extern "C" __global__ void remember(Params p, const float* decoded, const float* memory, float* offered) {
    u64 stride = u64(gridDim.x) * BLOCK;
    for (u64 i = u64(blockIdx.x) * BLOCK + threadIdx.x; i < p.count; i += stride) {
        offered[i] = p.keep * memory[i] + p.gain * (offered[i] - decoded[i]);
    }
}
