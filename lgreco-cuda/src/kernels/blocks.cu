// How blocks of a launch divide work, and how the last of them learns what all have found.

// Whether `own` parts complete `all`: then this block sees what all others have written, read past its own cache, and `done`
// begins anew. All threads of the block must come.
__device__ static inline bool is_last(u32* done, u32 own, u32 all) {
    __shared__ u32 before;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        before = atomicAdd(done, own);
        if (before + own == all) {
            atomicExch(done, 0u);
        }
    }
    __syncthreads();
    __threadfence();
    return before + own == all;
}

// What another block has written in this launch.
template <class T>
__device__ inline T fresh(const T& word) {
    return *static_cast<const volatile T*>(&word);
}

// Where a block's share of so many begins, which follows its predecessor's.
__device__ inline u32 share(u32 all, u32 block) {
    return u32(u64(all) * block / gridDim.x);
}
