// EDEN's payloads: encoding and decoding of chunks of values. A body has the seed, then a scale per block, then all
// codes.

// Number of chunks of a tensor.
__device__ inline u32 chunks_of(u32 count) {
    return count / CHUNK + (count % CHUNK != 0 ? 1 : 0);
}

// Number of values of a chunk.
__device__ inline u32 chunk_len(u32 count, u32 chunk) {
    return min(count - chunk * CHUNK, u32(CHUNK));
}

// Byte offset of a chunk's codes in a body. A code has `bits` bits.
__device__ inline u64 codes_at(u32 count, u32 bits, u32 chunk) {
    return 8 + 4 * u64(blocks_of(count)) + u64(chunk) * (CHUNK / 8) * bits;
}

// Bytes of a body.
__device__ inline u64 body_len(u32 count, u32 bits) {
    return codes_at(count, bits, 0) + (u64(count) * bits + 7) / 8;
}

// Packs eight codes, which are in one byte each, without gaps.
__device__ inline u64 squeeze(u64 spread, u32 bits) {
    u64 packed = 0;
#pragma unroll
    for (u32 k = 0; k < PER_CODER; k++) {
        packed |= (spread >> (8 * k) & 0xff) << (k * bits);
    }
    return packed;
}

// Packs and writes the codes of a chunk. `here` is their number.
__device__ inline void pack(const u64* eights, u32 here, u32 bits, u8* to) {
    for (u32 group = threadIdx.x; group * PER_CODER < here; group += BLOCK) {
        u32 coded = min(here - group * PER_CODER, u32(PER_CODER));
        u64 packed = squeeze(eights[group], bits);
        // There are no codes after the last value.
        packed &= ~0ull >> (64 - coded * bits);
        store_codes(to + group * bits, packed, bits, coded);
    }
}

// Where and how a tensor of `count` values is encoded.
struct Target {
    u32 count;
    u32 seed_low;
    u32 seed_high;
    bool least_squares;
    u8* body;  // its address is a multiple of 4
};

// Encodes a chunk. `values` has these members:
//   at(i): value i of the tensor
//   nothing(first, len, sound): called for a block without codes. Its values are all 0 or, if not `sound`, some are not
//     finite
//   DECODES: whether `take` is called for all blocks, or only for those whose decoded values may leave the range of f32
//   take(first, i, x): receives value i of the tensor as decoded. `first` is the index of its block's first value
// All threads must call it.
template <class Values>
__device__ inline void encode_chunk(Room& room, const Grid& grid, u64* eights, u32 chunk, const Target& target,
                                    const Values& values) {
    u8* codes = reinterpret_cast<u8*>(eights);
    u32* body = reinterpret_cast<u32*>(target.body);
    float* scales = reinterpret_cast<float*>(body + 2);
    u32 bits = grid.bits;
    u32 mask = (1u << (bits - 1)) - 1;
    u32 here = chunk_len(target.count, chunk);
    if (chunk == 0 && threadIdx.x == 0) {
        body[0] = target.seed_low;
        body[1] = target.seed_high;
    }
    draw_signs(room, chunk, target.seed_low, target.seed_high);
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
            values.nothing(first, len, is_finite(norm));
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
            room.scale = sums.scale(norm, target.least_squares, len);
            scales[number] = room.scale;
        }
        // Decoded values may be larger than the original ones. If they might leave the range of f32, the block is
        // decoded.
        if (Values::DECODES || !is_moderate(norm)) {
            __syncthreads();
            auto point = [&](u32 j, u32) { return grid.decoded(codes[j]); };
            decode_block(room, room.scale, at, len, point, [&](u32 j, const auto& decoded) {
#pragma unroll
                for (u32 k = 0; k < COUNT_OF(decoded); k++) {
                    room.values[place(j - at) + place(256 * k)] = decoded[k];
                }
            });
            // No barrier is needed: each thread reads only values that it wrote itself, and only this thread overwrites
            // them when the next block is loaded.
#pragma unroll 2
            for (u32 i = threadIdx.x; i < len; i += BLOCK) {
                values.take(first, first + i, room.values[place(i)]);
            }
        }
    }
    __syncthreads();
    pack(eights, here, bits, target.body + codes_at(target.count, bits, chunk));
}

// The packed codes of a chunk, in shared memory.
struct Packed {
    u32 words[CHUNK / 4 + 1];

    // Loads `bytes` bytes from an address that is a multiple of 4.
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

// A chunk of a received body. The tensor has `count` values.
struct Sent {
    const u32* body;
    const u32* scales;
    const u8* codes;
    u32 chunk;
    u32 here;
    u32 bits;

    __device__ Sent(const u8* from, u32 count, u32 bits, u32 chunk)
        : body(reinterpret_cast<const u32*>(from)),
          scales(body + 2 + chunk),
          codes(from + codes_at(count, bits, chunk)),
          chunk(chunk),
          here(chunk_len(count, chunk)),
          bits(bits) {}

    // Bytes of the chunk's codes.
    __device__ u32 bytes() const {
        return (here * bits + 7) / 8;
    }

    // Whether an encoder can have written the scales and the padding bits after the last code.
    __device__ bool is_written() const {
        u32 used = here * bits % 8;
        bool good = used == 0 || codes[bytes() - 1] >> used == 0;
        u32 number = 0;
        for (u32 left = here; left > 0; left -= block_len(left)) {
            // Larger bits are infinite, NaN or negative.
            good = good && scales[number++] < INFINITE;
        }
        return good;
    }

    // Decodes block `number` of the chunk, which begins at value `at` of the chunk. `to` is called as in
    // `decode_block`. All threads must call it.
    template <class To>
    __device__ void decode(Room& room, Packed& packed, const Grid& grid, u32 number, u32 at, u32 len, const To& to) const {
        __syncthreads();  // the block before may still be read
        draw_signs(room, chunk, body[0], body[1]);
        packed.load(codes, bytes());
        __syncthreads();
        auto point = [&](u32 j, u32) { return grid.decoded(packed.code(j, bits)); };
        decode_block(room, __uint_as_float(scales[number]), at, len, point, to);
    }
};
