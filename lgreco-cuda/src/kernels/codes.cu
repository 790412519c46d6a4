// Encoding of values as QSGD's codes, and decoding.

#define FRACTION 0x007fffffu
#define HALF 0x00400000u
#define ONE 0x3f800000u

// The value times the grid's power of two or, if codes have a sign bit, its magnitude times this power.
__device__ inline float scaled(const Params& p, const Grid& grid, float value) {
    return (p.sign_magnitude ? fabsf(value) : value) * grid.power;
}

// Position of a scaled value on its grid, from 1 (lower end) to 2 (upper end).
__device__ inline float part_of(const Grid& grid, float scaled) {
    return (scaled - grid.scaled_low) * grid.inverse + 1.0f;
}

// Position of a scaled value on its grid, from 0 (lower end) to 2^23 (upper end).
__device__ inline u32 position_on(const Grid& grid, float scaled) {
    return __float_as_uint(part_of(grid, scaled)) - ONE;
}

// position * s in units of 2^-23 levels. The highest level is s = 2^log_levels - 1.
__device__ inline u32 in_levels(u32 position, u32 log_levels) {
    return (position << log_levels) - position;
}

// Writes a bucket's scales in the format of payloads.
__device__ inline void send(const Params& p, const Grid& grid, u64 bucket, float* sent) {
    if (p.min_max) {
        sent[2 * bucket] = grid.low;
        sent[2 * bucket + 1] = grid.high;
    } else {
        sent[bucket] = grid.high;
    }
}

// The value of a code in a bucket with the ends `low` and `high`. `inverse` is 1 / s.
__device__ inline float decoded(const Params& p, u32 code, float low, float high, float inverse) {
    u32 level = code & ((1u << p.log_levels) - 1);
    float part = float(level) * inverse;
    if (p.sign_magnitude) {
        float value = part * high;
        return level != 0 && code > level ? -value : value;
    }
    return low * (1.0f - part) + high * part;
}

// 1 / s, the distance between levels as a part of the grid.
__device__ inline float step_of(const Params& p) {
    return 1.0f / float((1u << p.log_levels) - 1);
}

// Ignores the values and codes that it is given. For callers of `encode_tile` that do not need them.
struct Nowhere {
    __device__ void take(const Params&, u64, const float (&)[4], const Grid&, u32) const {}
};

// Encodes four values of a bucket, from position i on. The codes are in the low bits of the result.
__device__ inline u32 encode_quad(const Params& p, const Grid& grid, const float (&quad)[4], u64 i) {
    Words draws = {{HALF << 9, HALF << 9, HALF << 9, HALF << 9}};
    if (!p.nearest) {
        draws = philox(u32(i / 4), p.step, p.layer, p.rank, p.seed_low, p.seed_high);
    }
    u32 packed = 0;
#pragma unroll
    for (u32 k = 0; k < 4; k++) {
        u32 at = in_levels(position_on(grid, scaled(p, grid, quad[k])), p.log_levels);
        u32 code = (at + (draws.word[k] >> 9)) >> FRACTION_BITS;
        if (p.sign_magnitude) {
            code |= (__float_as_uint(quad[k]) >> 31) << p.log_levels;
        }
        packed |= (code & 0xffu) << (k * p.bits);
    }
    // There are no codes beyond the layer's end.
    u32 bits = there(p, i) * p.bits;
    return bits < 32 ? packed & ((1u << bits) - 1) : packed;
}

// Encodes a warp's tile, eight values to `bits` bytes. `to.take` receives each lane's four values of a strip and their
// codes. Two neighbouring lanes write eight codes at a time. The even lane writes the codes of the first of two strips,
// the odd lane the codes of the second strip. All lanes must call it.
template <class Values, class To>
__device__ inline void encode_tile(const Params& p, const Values& values, u64 tile, u8* codes, const To& to) {
    u32 is_odd = threadIdx.x % 2;
#pragma unroll Values::PAIRS
    for (u32 j = 0; j < STRIPS; j += 2) {
        u64 first = tile * TILE + j * STRIP + threadIdx.x % 32 * 4;
        u32 quads[2];
#pragma unroll
        for (u32 strip = 0; strip < 2; strip++) {
            u64 i = first + strip * STRIP;
            float four[4];
            values.load(i, j + strip, four);
            const Grid& grid = values.grid(p, i);
            quads[strip] = encode_quad(p, grid, four, i);
            to.take(p, i, four, grid, quads[strip]);
        }
        u32 other = __shfl_xor_sync(FULL, is_odd ? quads[0] : quads[1], 1);
        u64 own = is_odd ? first - 4 + STRIP : first;
        u32 low = is_odd ? other : quads[0];
        u64 high = is_odd ? quads[1] : other;
        if (own < p.count) {
            u32 here = p.count - own < PER_CODER ? u32(p.count - own) : PER_CODER;
            store_codes(codes + own / PER_CODER * p.bits, low | high << (4 * p.bits), p.bits, here);
        }
    }
}

// The ends of a bucket's grid, from the payload's scales.
struct Ends {
    float low;
    float high;

    __device__ Ends(const Params& p, const float* sent, u64 bucket)
        : low(p.min_max ? sent[2 * bucket] : -sent[bucket]), high(p.min_max ? sent[2 * bucket + 1] : sent[bucket]) {}
};

// Decodes four codes from index `first` on, a multiple of 4. `sent` has the scales of all buckets. Returns the number
// of values that exist.
__device__ inline u32 decode_quad(const Params& p, const float* sent, const u8* codes, u64 first, float (&values)[4]) {
    u32 here = there(p, first);
    if (here == 0) {
        return 0;
    }
    u64 eight = first / PER_CODER * PER_CODER;
    u32 coded = p.count - eight < PER_CODER ? u32(p.count - eight) : PER_CODER;
    u64 packed = load_codes(codes + eight / PER_CODER * p.bits, p.bits, coded);
    u32 quad = u32(packed >> (first % PER_CODER * p.bits));
    float inverse = step_of(p);
    u32 bucket = u32(first) / p.bucket;
    u32 left = p.bucket - u32(first) % p.bucket;
    Ends ends(p, sent, bucket);
    u32 mask = (1u << p.bits) - 1;
#pragma unroll
    for (u32 k = 0; k < 4; k++) {
        if (k >= here) {
            break;
        }
        if (left == 0) {
            bucket++;
            left = p.bucket;
            ends = Ends(p, sent, bucket);
        }
        left--;
        values[k] = decoded(p, quad >> (k * p.bits) & mask, ends.low, ends.high, inverse);
    }
    return here;
}
