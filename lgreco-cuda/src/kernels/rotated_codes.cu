// EDEN's codes: a chunk of values to scales and codes, and back.

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

// Encodes a chunk, whose signs are drawn. `values.at(i)` is value i of the tensor. `to.nothing(first, len, sound)` hears of a block
// of which no code is made: all its values are 0 or, where it is not `sound`, some are not finite. `to.take(first, i, x)` takes
// value i, as it is decoded, of a block that begins at value `first`: of all blocks where To::DECODES, else of those whose
// decoded values may leave f32. All threads must come; a barrier must come before the next chunk.
template <class Values, class To>
__device__ inline void encode_chunk(Room& room, const Grid& grid, u64* eights, bool least_squares, u32 chunk, u32 here,
                                    float* scales, u8* packed, const Values& values, const To& to) {
    u8* codes = reinterpret_cast<u8*>(eights);
    u32 bits = grid.bits;
    u32 mask = (1u << (bits - 1)) - 1;
    u32 number = chunk;
    for (u32 at = 0, len; at < here; at += len, number++) {
        len = block_len(here - at);
        u32 first = chunk * CHUNK + at;
        load(room, values, first, len);
        find_norm(room, len);
        const Norm& norm = room.norm;
        if (norm.norm == 0.0 || !is_finite(norm)) {
            for (u32 i = threadIdx.x; i < len; i += BLOCK) {
                codes[at + i] = 0;
            }
            if (threadIdx.x == 0) {
                scales[number] = 0.0f;
            }
            to.nothing(first, len, is_finite(norm));
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
                    codes[j + 256 * k] = u8(numbers[k - done] | sign << (bits - 1));
                }
            }
        });
        __syncthreads();
        Sums sums = sums_of(room, len, [&](u32 i) { return grid.levels[codes[at + i] & mask]; });
        if (threadIdx.x == 0) {
            room.scale = sums.scale(norm, least_squares, len);
            scales[number] = room.scale;
        }
        // Decoded values may be larger than those that were encoded.
        if (To::DECODES || !is_moderate(norm)) {
            __syncthreads();
            decode_again(room, grid, at, len, [&](u32 j, float x) { to.take(first, chunk * CHUNK + j, x); });
            __syncthreads();
        }
    }
    __syncthreads();
    pack(eights, here, bits, packed);
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

// Decodes a block that begins at value `at` of its chunk. `to(j, values)` takes arrays of 16 values or, of short blocks, of 1:
// `values[k]` is value j + 256 k of the chunk. All threads must come; a barrier must come before and after.
template <class To>
__device__ inline void decode_block(Room& room, const Grid& grid, const Packed& packed, float scale, u32 at, u32 len,
                                    const To& to) {
    float root = inverse_root(len);
    auto from = [&](u32 j, u32, auto& values) {
#pragma unroll
        for (u32 k = 0; k < COUNT_OF(values); k++) {
            values[k] = grid.decoded(packed.code(j + 16 * k, grid.bits));
        }
    };
    transform(room, at, len, from, [&](u32 j, u32, auto& z) {
#pragma unroll
        for (u32 k = 0; k < COUNT_OF(z); k++) {
            z[k] = signed_by(room, j + 256 * k, z[k] * root * scale);
        }
        to(j, z);
    });
}
