// EDEN: encoding of a tensor's values as a payload's body, and decoding.

struct Params {
    u32 dtype;
    u32 count;
    u32 bits;
    u32 least_squares;
    u32 widths;  // for rows, bit b - 1: whether width b is measured
    u32 seed_low;
    u32 seed_high;
};

// The values of a tensor. Faults are reported in `result`.
struct Own {
    const void* values;
    u32 dtype;
    u32* result;

    static constexpr bool DECODES = false;

    __device__ float at(u32 i) const {
        return value(values, dtype, i);
    }

    __device__ void nothing(u32, u32, bool sound) const {
        if (!sound && threadIdx.x == 0) {
            atomicMax(&result[0], INFINITE);
        }
    }

    __device__ void take(u32 first, u32, float x) const {
        if (!is_finite(x)) {
            atomicMax(&result[1], ~first);
        }
    }
};

// Encodes a tensor. Sets result[0] to infinity if a value is not finite. For a block that would not decode to finite
// values, result[1] becomes the maximum of itself and ~i. Here i is the index of the block's first value. So result[1]
// tells the first such block, and 0 means none.
extern "C" __launch_bounds__(BLOCK, 4) __global__ void encode_rotated(Params p, const void* values, u8* body,
                                                                      u32* result) {
    __shared__ Room room;
    __shared__ Grids grids;
    __shared__ u64 eights[CHUNK / 8];
    fill(grids);
    Grid grid(grids, p.bits);
    Own own{values, p.dtype, result};
    Target target{p.count, p.seed_low, p.seed_high, p.least_squares != 0, body};
    for (u32 chunk = blockIdx.x; chunk < chunks_of(p.count); chunk += gridDim.x) {
        encode_chunk(room, grid, eights, chunk, target, own);
    }
}

// Decodes a body. Sets result[0] to 1 if no encoder can have written the body, or if a decoded value is not finite.
extern "C" __launch_bounds__(BLOCK, 4) __global__ void decode_rotated(Params p, const u8* body, float* output,
                                                                      u32* result) {
    __shared__ Room room;
    __shared__ Grids grids;
    __shared__ Packed packed;
    fill(grids);
    Grid grid(grids, p.bits);
    bool good = true;
    for (u32 chunk = blockIdx.x; chunk < chunks_of(p.count); chunk += gridDim.x) {
        Sent sent(body, p.count, p.bits, chunk);
        good = good && sent.is_written();
        float* to = output + u64(chunk) * CHUNK;
        u32 number = 0;
        for (u32 at = 0, len; at < sent.here; at += len, number++) {
            len = block_len(sent.here - at);
            sent.decode(room, packed, grid, number, at, len, [&](u32 j, const auto& values) {
#pragma unroll
                for (u32 k = 0; k < COUNT_OF(values); k++) {
                    good = good && is_finite(values[k]);
                    to[j + 256 * k] = values[k];
                }
            });
        }
    }
    if (!good) {
        atomicMax(&result[0], 1u);
    }
}
