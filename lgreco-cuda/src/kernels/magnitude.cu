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

// Sets result[0] to the maximum of itself and the bits of the largest magnitude.
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

// Finds the position i of the first magnitude that reaches `least`. Sets result[0] to the maximum of itself and ~i, so
// 0 means that there is none.
extern "C" __global__ void position(Params p, const void* values, u32* result) {
    u64 stride = u64(gridDim.x) * BLOCK;
    for (u64 i = u64(blockIdx.x) * BLOCK + threadIdx.x; i < p.count; i += stride) {
        if ((__float_as_uint(value(values, p.dtype, i)) & MAGNITUDE) >= p.least) {
            atomicMax(result, ~u32(i));
            return;
        }
    }
}

// Writes a payload's header. If the largest magnitude, status[0], reaches `least`, also reports the first faulty value.
// Values that are not finite are faulty. If there are none, values whose magnitudes reach both `least` and status[1]
// are faulty. For a faulty value at position i, `fault` becomes the maximum of itself and a number. The upper half of
// the number is ~i, the lower half has the value's bits.
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
