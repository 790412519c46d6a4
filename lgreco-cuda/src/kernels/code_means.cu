// Means of all ranks' QSGD codes. A table has the `part` of each code of a layer: the position of the code's level
// between the grid's ends, from 0 to 1. A code's value is computed from its part and the scales that a rank has sent
// for the bucket.

// Largest number of codes of a layer.
#define CODES 256

// Fills the table with the part of each code. If codes have a sign, negative codes have negative parts, but the part of
// level 0 is always +0. All threads of the block must call it.
__device__ inline void make_parts(const Layer& layer, float* parts) {
    u32 code = threadIdx.x;
    if (code < 1u << layer.bits) {
        u32 levels = (1u << layer.log_levels) - 1;
        u32 level = code & levels;
        float part = float(level) * (1.0f / float(levels));
        parts[code] = layer.sign_magnitude && level != 0 && code > level ? -part : part;
    }
}

// Reads eight codes of one rank after another, with the scales of their bucket.
struct Eight {
    const u32* codes;  // the word in which the first code begins
    const float* sent;  // scales of the bucket
    u64 apart;   // bytes from one rank's message to the next
    u32 shift;   // bits before the first code in its word
    bool second;  // whether the codes extend to the next word
    bool third;  // whether they extend to the word after that
    u32 bits;
    const Layer& layer;

    // `first` is the index of the first code, a multiple of 8. Only `here` of the eight codes exist.
    __device__ Eight(const Layer& layer, const u8* scales, const u8* all, u64 apart, u32 first, u32 here)
        : apart(apart), bits(layer.bits), layer(layer) {
        u32 bucket = first >> (31 - __clz(layer.bucket));
        u32 byte = first / PER_CODER * bits;
        sent = reinterpret_cast<const float*>(scales) + (layer.min_max ? 2 * bucket : bucket);
        codes = reinterpret_cast<const u32*>(all + (byte & ~3u));
        shift = byte % 4 * 8;
        u32 bytes = byte % 4 + (here * bits + 7) / 8;
        second = bytes > 4;
        third = bytes > 8;
    }

    // Adds the values of the codes of the next RANKS ranks. A rank's codes are read from WORDS words; two words suffice
    // for codes of up to 4 bits. The loads for all of these ranks are in flight together.
    template <u32 RANKS, u32 WORDS, bool SIGNED>
    __device__ void add(const float* parts, float (&sums)[PER_CODER]) {
        u32 words[RANKS][WORDS];
        float low[RANKS];
        float high[RANKS];
#pragma unroll
        for (u32 r = 0; r < RANKS; r++) {
            words[r][0] = codes[0];
            words[r][1] = second ? codes[1] : 0;
            if (WORDS > 2) {
                words[r][WORDS - 1] = third ? codes[2] : 0;
            }
            high[r] = sent[!SIGNED && layer.min_max ? 1 : 0];
            low[r] = SIGNED ? 0.0f : layer.min_max ? sent[0] : -high[r];
            codes = reinterpret_cast<const u32*>(reinterpret_cast<const u8*>(codes) + apart);
            sent = reinterpret_cast<const float*>(reinterpret_cast<const u8*>(sent) + apart);
        }
        // `parts` has 4 bytes per entry, so a code times 4 is a byte offset.
        u32 mask = (4u << bits) - 4;
#pragma unroll
        for (u32 r = 0; r < RANKS; r++) {
            u64 two = u64(words[r][1]) << 32 | words[r][0];
            // The remainder keeps the shift below 64 bits, which saves instructions.
            u32 halves[2] = {u32(two >> shift), u32(two >> (shift + 4 * bits) % 64)};
            if (WORDS > 2) {
                u64 rest = (u64(words[r][WORDS - 1]) << 32 | words[r][1]) >> shift;
                halves[1] = u32((rest << 32 | halves[0]) >> 4 * bits);
            }
#pragma unroll
            for (u32 k = 0; k < PER_CODER; k++) {
                u32 half = halves[k / 4];
                u32 fours = k % 4 < 2 ? half << 2 >> (k % 4 * bits) : half >> (k % 4 * bits - 2);
                float part = *reinterpret_cast<const float*>(reinterpret_cast<const u8*>(parts) + (fours & mask));
                sums[k] += SIGNED ? part * high[r] : low[r] * (1.0f - part) + high[r] * part;
            }
        }
    }

    // Moves forward by this number of messages, or back if it is negative.
    __device__ void skip(long long messages) {
        codes = reinterpret_cast<const u32*>(reinterpret_cast<const u8*>(codes) + messages * (long long)apart);
        sent = reinterpret_cast<const float*>(reinterpret_cast<const u8*>(sent) + messages * (long long)apart);
    }

    // Adds the values of the next `ranks` ranks, in order.
    __device__ void add_all(u32 ranks, bool has_sign, const float* parts, float (&sums)[PER_CODER]) {
        if (!has_sign) {
#pragma unroll 1
            for (; ranks > 0; ranks--) {
                add<1, 3, false>(parts, sums);
            }
        } else if (bits <= 4) {
#pragma unroll 1
            for (; ranks >= 4; ranks -= 4) {
                add<4, 2, true>(parts, sums);
            }
        }
#pragma unroll 1
        while (ranks > 0) {
            if (ranks >= 2) {
                add<2, 3, true>(parts, sums);
                ranks -= 2;
            } else {
                add<1, 3, true>(parts, sums);
                ranks--;
            }
        }
    }
};

// Writes the means of a span.
__device__ inline void average_codes(const Layer& layer, const float* parts, u32 dtype, Program* program,
                                     const World& world, const u8* payloads, u32 span, void* means) {
    u64 apart = program->apart;
    // With shards, this rank's message comes after those of the other ranks.
    u32 before = program->sharded ? program->rank : world.ranks;
    const u8* codes = payloads + u64(layer.buckets) * (layer.min_max ? 8 : 4);
#pragma unroll 1
    for (u32 in_span = threadIdx.x * PER_CODER; in_span < SPAN; in_span += BLOCK * PER_CODER) {
        u32 first = span * SPAN + in_span;
        if (first >= layer.count) {
            break;
        }
        u32 here = min(layer.count - first, u32(PER_CODER));
        float eight[PER_CODER];
#pragma unroll
        for (u32 k = 0; k < PER_CODER; k++) {
            eight[k] = -0.0f;  // the identity of addition, which preserves the sign of zero
        }
        Eight ranks(layer, payloads, codes, apart, first, here);
#pragma unroll 1
        for (u32 part = 0; part < (before == world.ranks ? 1 : 3); part++) {
            if (part > 0) {
                ranks.skip(part == 1 ? world.ranks - 1 - before : (long long)before - world.ranks);
            }
            u32 together = part == 0 ? before : part == 1 ? 1 : world.ranks - 1 - before;
            ranks.add_all(together, layer.sign_magnitude, parts, eight);
        }
        give_eight(dtype, program, layer.number, layer.start, world, means, first, here, layer.count / SPAN > span, eight);
    }
}
