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

// Chunks of a tensor.
__device__ inline u32 chunks_of(u32 count) {
    return count / CHUNK + (count % CHUNK != 0 ? 1 : 0);
}

// Values of a chunk.
__device__ inline u32 chunk_len(u32 count, u32 chunk) {
    return min(count - chunk * CHUNK, u32(CHUNK));
}

// Eight codes, one per byte, moved together.
__device__ inline u64 squeeze(u64 spread, u32 bits) {
    u64 packed = 0;
#pragma unroll
    for (u32 k = 0; k < PER_CODER; k++) {
        packed |= (spread >> (8 * k) & 0xff) << (k * bits);
    }
    return packed;
}

// Writes the codes of a chunk.
__device__ inline void pack(const u64* eights, u32 here, u32 bits, u8* to) {
    for (u32 group = threadIdx.x; group * PER_CODER < here; group += BLOCK) {
        u32 coded = min(here - group * PER_CODER, u32(PER_CODER));
        u64 packed = squeeze(eights[group], bits);
        // Behind the last value there are no codes.
        packed &= ~0ull >> (64 - coded * bits);
        store_codes(to + group * bits, packed, bits, coded);
    }
}

// The payload's body: seed, scales and codes. result[0] becomes infinity where a value is not finite, and result[1] at least the
// complement of the first value of a block that would not decode to finite values.
extern "C" __launch_bounds__(BLOCK, 4) __global__ void encode_rotated(Params p, const void* values, u32* body,
                                                                      u32* result) {
    __shared__ Room room;
    __shared__ Grids grids;
    __shared__ u64 eights[CHUNK / 8];
    u8* codes = reinterpret_cast<u8*>(eights);
    fill(grids);
    Grid grid(grids, p.bits);
    if (blockIdx.x == 0 && threadIdx.x == 0) {
        body[0] = p.seed_low;
        body[1] = p.seed_high;
    }
    float* scales = reinterpret_cast<float*>(body + 2);
    u8* packed = reinterpret_cast<u8*>(body + 2 + blocks_of(p.count));
    for (u32 chunk = blockIdx.x; chunk < chunks_of(p.count); chunk += gridDim.x) {
        u32 here = chunk_len(p.count, chunk);
        draw_signs(room, chunk, p.seed_low, p.seed_high);
        u32 number = chunk;
        for (u32 at = 0, len; at < here; at += len, number++) {
            len = block_len(here - at);
            u32 first = chunk * CHUNK + at;
            load(room, values, p.dtype, first, len);
            find_norm(room, len);
            const Norm& norm = room.norm;
            if (norm.norm == 0.0 || !is_finite(norm)) {
                for (u32 i = threadIdx.x; i < len; i += BLOCK) {
                    codes[at + i] = 0;
                }
                if (threadIdx.x == 0) {
                    scales[number] = 0.0f;
                    if (!is_finite(norm)) {
                        atomicMax(&result[0], INFINITE);
                    }
                }
                continue;
            }
            rotate(room, at, len, [&](u32 j, u32 place_of_first, const auto& z) {
                constexpr u32 TOGETHER = COUNT_OF(z) < 8 ? COUNT_OF(z) : 8;
#pragma unroll
                for (u32 done = 0; done < COUNT_OF(z); done += TOGETHER) {
                    u32 numbers[TOGETHER];
                    grid.nearest(z + done, numbers);
#pragma unroll
                    for (u32 k = done; k < done + TOGETHER; k++) {
                        room.values[place_of_first + place(256 * k)] = z[k];
                        u32 sign = __float_as_uint(z[k]) >> 31;
                        codes[j + 256 * k] = u8(numbers[k - done] | sign << (p.bits - 1));
                    }
                }
            });
            __syncthreads();
            u32 mask = (1u << (p.bits - 1)) - 1;
            Sums sums = sums_of(room, len, [&](u32 i) { return grid.levels[codes[at + i] & mask]; });
            if (threadIdx.x == 0) {
                room.scale = sums.scale(norm, p.least_squares != 0, len);
                scales[number] = room.scale;
            }
            if (!is_moderate(norm)) {
                // Decoded values may be larger than those that were encoded.
                __syncthreads();
                bool fits = true;
                decode_again(room, grid, at, len, [&](u32, float x) { fits = fits && is_finite(x); });
                if (!fits) {
                    atomicMax(&result[1], ~first);
                }
                __syncthreads();
            }
        }
        __syncthreads();
        pack(eights, here, p.bits, packed + u64(chunk) * (CHUNK / 8) * p.bits);
    }
}

// Codes of a chunk, as they are packed.
struct Packed {
    u32 words[CHUNK / 4 + 1];

    // `bytes` of them, from a multiple of 4 on.
    __device__ void load(const u8* from, u32 bytes) {
        const u32* all = reinterpret_cast<const u32*>(from);
        for (u32 word = threadIdx.x; word < bytes / 4; word += BLOCK) {
            words[word] = all[word];
        }
        if (threadIdx.x == 0) {
            u32 last = 0;
            for (u32 byte = 0; byte < bytes % 4; byte++) {
                last |= u32(from[bytes / 4 * 4 + byte]) << (8 * byte);
            }
            words[bytes / 4] = last;
        }
    }

    __device__ u32 code(u32 i, u32 bits) const {
        u32 word = i * bits / 32;
        u64 two = u64(words[word + 1]) << 32 | words[word];
        return u32(two >> (i * bits % 32)) & ((1u << bits) - 1);
    }
};

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
            float root = inverse_root(len);
            auto from = [&](u32 j, u32, auto& values) {
#pragma unroll
                for (u32 k = 0; k < COUNT_OF(values); k++) {
                    values[k] = grid.decoded(packed.code(j + 16 * k, p.bits));
                }
            };
            transform(room, at, len, from, [&](u32 j, u32, const auto& z) {
#pragma unroll
                for (u32 k = 0; k < COUNT_OF(z); k++) {
                    float x = signed_by(room, j + 256 * k, z[k] * root * scale);
                    good = good && is_finite(x);
                    to[j + 256 * k] = x;
                }
            });
        }
    }
    if (!good) {
        atomicMax(&result[0], 1u);
    }
}
