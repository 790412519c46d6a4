// EDEN: rotated values to codes and back. A thread block takes a chunk of 4096 values: one block, or the shorter ones at the end.

struct Params {
    u32 dtype;
    u32 count;
    u32 bits;
    u32 least_squares;
    u32 widths;
    u32 seed_low;
    u32 seed_high;
};

// A tensor's values, and what is at fault with them.
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

// The payload's body: seed, scales and codes. result[0] becomes infinity where a value is not finite, and result[1] at least the
// complement of the first value of a block that would not decode to finite values.
extern "C" __launch_bounds__(BLOCK, 4) __global__ void encode_rotated(Params p, const void* values, u32* body,
                                                                      u32* result) {
    __shared__ Room room;
    __shared__ Grids grids;
    __shared__ u64 eights[CHUNK / 8];
    fill(grids);
    Grid grid(grids, p.bits);
    if (blockIdx.x == 0 && threadIdx.x == 0) {
        body[0] = p.seed_low;
        body[1] = p.seed_high;
    }
    float* scales = reinterpret_cast<float*>(body + 2);
    u8* packed = reinterpret_cast<u8*>(body + 2 + blocks_of(p.count));
    Own own{values, p.dtype, result};
    for (u32 chunk = blockIdx.x; chunk < chunks_of(p.count); chunk += gridDim.x) {
        u32 here = chunk_len(p.count, chunk);
        draw_signs(room, chunk, p.seed_low, p.seed_high);
        u8* to = packed + u64(chunk) * (CHUNK / 8) * p.bits;
        encode_chunk(room, grid, eights, p.least_squares != 0, chunk, here, scales, to, own, own);
    }
}

// The values that a payload's body stands for. result[0] becomes 1 where no encoder has written it or a value is not finite.
extern "C" __launch_bounds__(BLOCK, 4) __global__ void decode_rotated(Params p, const u32* body, float* output,
                                                                      u32* result) {
    __shared__ Room room;
    __shared__ Grids grids;
    __shared__ Packed packed;
    fill(grids);
    Grid grid(grids, p.bits);
    const u32* scales = body + 2;
    const u8* codes = reinterpret_cast<const u8*>(scales + blocks_of(p.count));
    bool good = true;
    for (u32 chunk = blockIdx.x; chunk < chunks_of(p.count); chunk += gridDim.x) {
        u32 here = chunk_len(p.count, chunk);
        u32 bytes = (here * p.bits + 7) / 8;
        float* to = output + u64(chunk) * CHUNK;
        const u8* own = codes + u64(chunk) * (CHUNK / 8) * p.bits;
        __syncthreads();  // the chunk before may still be read
        draw_signs(room, chunk, body[0], body[1]);
        packed.load(own, bytes);
        u32 used = here * p.bits % 8;
        good = good && (used == 0 || own[bytes - 1] >> used == 0);
        u32 number = chunk;
        for (u32 at = 0, len; at < here; at += len, number++) {
            len = block_len(here - at);
            float scale = __uint_as_float(scales[number]);
            __syncthreads();  // all is there, and the block before is done
            if (scales[number] >= INFINITE || scale == 0.0f) {
                // Infinite, NaN or negative.
                good = good && scales[number] == 0;
                for (u32 i = threadIdx.x; i < len; i += BLOCK) {
                    to[at + i] = 0.0f;
                }
                continue;
            }
            decode_block(room, grid, packed, scale, at, len, [&](u32 j, const auto& values) {
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
