// Division of work between the blocks of a launch, and detection of the last block.

// Reports that this block has finished `own` parts of the work. Returns whether all `all` parts are now finished. If
// so, `done` is 0 again, and this block can read what the other blocks wrote, by `fresh`. All threads of the block must
// call it.
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

// Reads a word that another block has written in this launch. Bypasses this multiprocessor's cache.
template <class T>
__device__ inline T fresh(const T& word) {
    return *static_cast<const volatile T*>(&word);
}

// Index of the first item in a block's share of `all` items. The shares of consecutive blocks follow each other without
// gaps.
__device__ inline u32 share(u32 all, u32 block) {
    return u32(u64(all) * block / gridDim.x);
}
