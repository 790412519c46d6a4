// Common base of all modules: types, constants, and sums and maxima over blocks and warps.

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;

#define BLOCK 256
#define WARPS (BLOCK / 32)
#define FULL 0xffffffffu

#define SIGN 0x80000000u
#define MAGNITUDE 0x7fffffffu
#define INFINITE 0x7f800000u

// Adds `value` over a block of BLOCK threads, in a fixed order. Only thread 0 returns the sum. All threads of the block
// must call it.
__device__ static inline double block_sum(double value) {
    __shared__ double sums[WARPS];
    for (u32 reach = 16; reach > 0; reach >>= 1) {
        value += __shfl_down_sync(FULL, value, reach);
    }
    __syncthreads();
    if (threadIdx.x % 32 == 0) {
        sums[threadIdx.x / 32] = value;
    }
    __syncthreads();
    if (threadIdx.x == 0) {
        for (u32 warp = 1; warp < WARPS; warp++) {
            value += sums[warp];
        }
    }
    return value;
}

// The maximum over a warp, in every lane.
__device__ inline u32 warp_max(u32 value) {
#if __CUDA_ARCH__ >= 800
    return __reduce_max_sync(FULL, value);
#else
    for (u32 reach = 16; reach > 0; reach >>= 1) {
        value = max(value, __shfl_xor_sync(FULL, value, reach));
    }
    return value;
#endif
}

// The sum over a warp, in every lane. The order of the additions is fixed.
template <class T>
__device__ inline T warp_sum(T value) {
#pragma unroll
    for (u32 reach = 16; reach > 0; reach >>= 1) {
        value += __shfl_xor_sync(FULL, value, reach);
    }
    return value;
}

// Inclusive prefix sum over a warp: the sum over the lanes up to and including this one.
template <class T>
__device__ inline T warp_scan(T sum) {
#pragma unroll
    for (u32 reach = 1; reach < 32; reach <<= 1) {
        T other = __shfl_up_sync(FULL, sum, reach);
        sum += threadIdx.x % 32 >= reach ? other : T(0);
    }
    return sum;
}
