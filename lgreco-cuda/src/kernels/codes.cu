// QSGD's codes: values to codes and back.

#define PER_CODER 8
#define FRACTION 0x007fffffu
#define HALF 0x00400000u
#define ONE 0x3f800000u

// The value on the grid's scale, or its magnitude.
__device__ inline float scaled(const Params& p, const Grid& grid, float value) {
    return (p.sign_magnitude ? fabsf(value) : value) * grid.power;
}

// Where a scaled value lies between the ends of its grid: from 1 to 2.
__device__ inline float part_of(const Grid& grid, float scaled) {
    return (scaled - grid.scaled_low) * grid.inverse + 1.0f;
}

// The same from 0 to 2^23.
__device__ inline u32 position_on(const Grid& grid, float scaled) {
    return __float_as_uint(part_of(grid, scaled)) - ONE;
}

// position * s, in units of 2^-23 levels.
__device__ inline u32 in_levels(u32 position, u32 log_levels) {
    return (position << log_levels) - position;
}

// What is sent of a bucket.
__device__ inline void send(const Params& p, const Grid& grid, u64 bucket, float* sent) {
    if (p.min_max) {
        sent[2 * bucket] = grid.low;
        sent[2 * bucket + 1] = grid.high;
    } else {
        sent[bucket] = grid.high;
    }
}

// The value a code stands for in a bucket whose ends are `low` and `high`; `inverse` is 1 / s.
__device__ inline float decoded(const Params& p, u32 code, float low, float high, float inverse) {
    u32 level = code & ((1u << p.log_levels) - 1);
    float part = float(level) * inverse;
    if (p.sign_magnitude) {
        float value = part * high;
        return level != 0 && code > level ? -value : value;
    }
    return low * (1.0f - part) + high * part;
}

// 1 / s.
__device__ inline float step_of(const Params& p) {
    return 1.0f / float((1u << p.log_levels) - 1);
}

// What is left of eight codes when the last `8 - here` are not there: so many bytes of `packed`. Words are written where they
// fit.
__device__ inline void store_codes(u8* target, u64 packed, u32 bits, u32 here) {
    if (here == PER_CODER && bits % 4 == 0 && reinterpret_cast<u64>(target) % 4 == 0) {
        u32* words = reinterpret_cast<u32*>(target);
        words[0] = u32(packed);
        if (bits == 8) {
            words[1] = u32(packed >> 32);
        }
        return;
    }
    u32 bytes = (here * bits + 7) / 8;
#pragma unroll
    for (u32 byte = 0; byte < 8; byte++) {
        if (byte < bytes) {
            target[byte] = u8(packed >> (8 * byte));
        }
    }
}

// The same the other way.
__device__ inline u64 load_codes(const u8* source, u32 bits, u32 here) {
    if (here == PER_CODER && bits % 4 == 0 && reinterpret_cast<u64>(source) % 4 == 0) {
        const u32* words = reinterpret_cast<const u32*>(source);
        u64 packed = words[0];
        return bits == 8 ? packed | u64(words[1]) << 32 : packed;
    }
    u32 bytes = (here * bits + 7) / 8;
    u64 packed = 0;
#pragma unroll
    for (u32 byte = 0; byte < 8; byte++) {
        packed |= byte < bytes ? u64(source[byte]) << (8 * byte) : 0;
    }
    return packed;
}

// Where nobody asks what codes stand for.
struct Nowhere {
    __device__ void take(u64, float, const Grid&, u32) const {}
};

// Codes 8 values from `first`, a multiple of 8, on, or what is left of them; they are `bits` bytes. `to` takes each value
// and its code.
template <class Values, class To>
__device__ inline void encode_eight(const Params& p, const Values& values, const Grid* grids, u64 first, u8* codes,
                                    const To& to) {
    if (first >= p.count) {
        return;
    }
    u32 bucket = values.bucket(p, first);
    u32 left = values.left(p, first);
    Grid grid = grids[bucket];
    u64 packed = 0;
    u32 coded = 0;
    for (u32 half = 0; half < PER_CODER && first + half < p.count; half += 4) {
        float four[4];
        u32 here = values.load(p, first + half, four);
        Words draws = {{HALF << 9, HALF << 9, HALF << 9, HALF << 9}};
        if (!p.nearest) {
            draws = philox(u32((first + half) / 4), p.step, p.layer, p.rank, p.seed_low, p.seed_high);
        }
#pragma unroll
        for (u32 k = 0; k < 4; k++) {
            if (k >= here) {
                break;
            }
            if (left == 0) {
                bucket++;
                left = p.bucket;
                grid = grids[bucket];
            }
            left--;
            u32 at = in_levels(position_on(grid, scaled(p, grid, four[k])), p.log_levels);
            u32 code = (at + (draws.word[k] >> 9)) >> FRACTION_BITS;
            if (p.sign_magnitude) {
                code |= (__float_as_uint(four[k]) >> 31) << p.log_levels;
            }
            to.take(first + half + k, four[k], grid, code);
            packed |= u64(code & 0xffu) << (coded * p.bits);
            coded++;
        }
    }
    store_codes(codes + first / PER_CODER * p.bits, packed, p.bits, coded);
}

// Codes of a quad of a bucket from position i on, in the low bits.
__device__ inline u32 encode_quad(const Params& p, const Grid& grid, const float (&quad)[4], u64 i) {
    Words draws = philox(u32(i / 4), p.step, p.layer, p.rank, p.seed_low, p.seed_high);
    u32 packed = 0;
#pragma unroll
    for (u32 k = 0; k < 4; k++) {
        u32 at = in_levels(position_on(grid, scaled(p, grid, quad[k])), p.log_levels);
        u32 code = (at + (draws.word[k] >> 9)) >> FRACTION_BITS;
        code |= (__float_as_uint(quad[k]) >> 31) << p.log_levels;
        packed |= (code & 0xffu) << (k * p.bits);
    }
    return packed;
}

// The ends of a bucket's grid, of what was sent.
struct Ends {
    float low;
    float high;

    __device__ Ends(const Params& p, const float* sent, u64 bucket)
        : low(p.min_max ? sent[2 * bucket] : -sent[bucket]), high(p.min_max ? sent[2 * bucket + 1] : sent[bucket]) {}
};

// What eight codes from `first`, a multiple of 8, on stand for; `sent` is what was sent of the buckets. Returns how many
// values there are.
__device__ inline u32 decode_eight(const Params& p, const float* sent, const u8* codes, u64 first,
                                   float (&values)[PER_CODER]) {
    if (first >= p.count) {
        return 0;
    }
    u32 here = p.count - first < PER_CODER ? u32(p.count - first) : PER_CODER;
    u64 packed = load_codes(codes + first / PER_CODER * p.bits, p.bits, here);
    u32 halves[2] = {u32(packed), u32(packed >> (4 * p.bits))};
    float inverse = step_of(p);
    u32 bucket = u32(first) / p.bucket;
    u32 left = p.bucket - u32(first) % p.bucket;
    Ends ends(p, sent, bucket);
    u32 mask = (1u << p.bits) - 1;
    if (left >= PER_CODER) {
#pragma unroll
        for (u32 k = 0; k < PER_CODER; k++) {
            values[k] = decoded(p, halves[k / 4] >> (k % 4 * p.bits) & mask, ends.low, ends.high, inverse);
        }
        return here;
    }
#pragma unroll
    for (u32 k = 0; k < PER_CODER; k++) {
        if (k >= here) {
            break;
        }
        if (left == 0) {
            bucket++;
            left = p.bucket;
            ends = Ends(p, sent, bucket);
        }
        left--;
        values[k] = decoded(p, halves[k / 4] >> (k % 4 * p.bits) & mask, ends.low, ends.high, inverse);
    }
    return here;
}
