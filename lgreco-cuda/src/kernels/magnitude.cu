// The largest magnitude of a tensor, and the first magnitude that reaches a limit.

struct Params {
    u32 dtype;
    u32 count;
    u32 least;
    u32 header_0;
    u32 header_1;
    u32 header_2;
    u32 header_3;
};

// Raises result[0] to at least the bits of the largest magnitude.
extern "C" __global__ void largest(Params p, const void* values, u32* result) {
    u32 found = 0;
    u64 stride = u64(gridDim.x) * BLOCK * 4;
    for (u64 i = (u64(blockIdx.x) * BLOCK + threadIdx.x) * 4; i < p.count; i += stride) {
        float four[4];
        u32 here = load4(values, p.dtype, i, p.count, four);
        for (u32 k = 0; k < 4; k++) {
            found = max(found, k < here ? __float_as_uint(four[k]) & MAGNITUDE : 0);
        }
    }
    found = warp_max(found);
    if (threadIdx.x % 32 == 0) {
        atomicMax(result, found);
    }
}

// Finds the first magnitude that reaches `least`. Raises result[0] to at least the complement of its position.
extern "C" __global__ void position(Params p, const void* values, u32* result) {
    u64 stride = u64(gridDim.x) * BLOCK;
    for (u64 i = u64(blockIdx.x) * BLOCK + threadIdx.x; i < p.count; i += stride) {
        if ((__float_as_uint(value(values, p.dtype, i)) & MAGNITUDE) >= p.least) {
            atomicMax(result, ~u32(i));
            return;
        }
    }
}

// Writes a payload's header. If the largest magnitude, status[0], reaches `least`, also finds the first value that is
// not finite. If all values are finite, it instead finds the first magnitude that reaches both `least` and status[1].
// Raises `fault` to the complement of its position (upper half) and its bits (lower half).
extern "C" __global__ void end_payload(Params p, const void* values, const u32* status, u64* fault, u32* payload) {
    if (blockIdx.x == 0 && threadIdx.x == 0) {
        payload[0] = p.header_0;
        payload[1] = p.header_1;
        payload[2] = p.header_2;
        payload[3] = p.header_3;
    }
    u32 largest = status[0];
    if (largest < p.least) {
        return;
    }
    u32 least = largest >= INFINITE ? INFINITE : max(status[1], p.least);
    u64 stride = u64(gridDim.x) * BLOCK;
    for (u64 i = u64(blockIdx.x) * BLOCK + threadIdx.x; i < p.count; i += stride) {
        u32 bits = __float_as_uint(value(values, p.dtype, i));
        if ((bits & MAGNITUDE) >= least) {
            atomicMax(fault, u64(~u32(i)) << 32 | bits);
            return;
        }
    }
}
