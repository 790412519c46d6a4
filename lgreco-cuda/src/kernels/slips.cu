// What launches over sums are told, what is sent of a value, and the slips by which ranks tell each other how they fare.

struct Params {
    u32 dtype;
    u32 reduce_dtype;  // of what is summed: f32 or bf16
    u32 dense;        // uncompressed layers; by shards their parts, of which this rank's own come first
    u32 dense_spans;  // their values, SPAN at a time
    u32 matrices;
    u32 columns;  // of all factors
    u32 products;
    u32 backs;
    u32 grams;
    u32 solves;
    u32 tiles;
    u32 second;      // whether columns are orthonormalised for the second time
    u32 ends;        // whether the step ends with what is summed
    u32 not_finite;  // codes of failures
    u32 overflow;
    u32 peer;
    u32 seed_low;
    u32 seed_high;
};

// An uncompressed layer, or a rank's shard of one.
struct Dense {
    u64 first;       // its first value
    u64 start;       // and that one's place in the layer
    u64 sum;         // its place in the sums
    u64 first_span;  // the number of its first span among those of all
    u32 count;
    u32 layer;
};

#define SPAN 4096
// In a sum, numbers below are codes of failures, others tell what ranks must agree on: lgreco_train::exchange::Slip.
#define FINGERPRINTS 4096u
#define END (1u << 24)

// The number of a rank that fares well.
__device__ inline float well(const Program& program) {
    return float(FINGERPRINTS + u32((u64(program.fingerprint) + program.step) % (END - FINGERPRINTS)));
}

// Places of a sum that a rank's slip takes: an f32, or three digits of base 256 in bf16.
__device__ inline u32 slip_len(const Params& p) {
    return p.reduce_dtype == 0 ? 1 : 3;
}

// What such a place holds of a rank's number or code.
__device__ inline float digit_of(const Params& p, float code, u32 place) {
    return p.reduce_dtype == 0 ? code : float(u32(code) >> (8 * place) & 0xffu);
}

// The bits of a value that is summed, and what they are for those who read them.
__device__ inline u32 sent_of(const Params& p, float value) {
    u32 bits = __float_as_uint(value);
    return p.reduce_dtype == 0 ? bits : narrow_bf16(bits);
}

__device__ inline float read_of(const Params& p, u32 sent) {
    return __uint_as_float(p.reduce_dtype == 0 ? sent : sent << 16);
}

// Writes a value that is summed; returns what it is for those who read it.
__device__ inline float send(const Params& p, void* values, u64 i, float value) {
    u32 sent = sent_of(p, value);
    put(values, p.reduce_dtype, i, sent);
    return read_of(p, sent);
}

// The first rank whose slip, of those from place `slips` of a sum on, does not say that it fares well and does the same; their
// number for none. All threads must come.
__device__ static inline u32 first_at_fault(const Params& p, const Program& program, const void* sums, u64 slips) {
    __shared__ u32 first;
    __syncthreads();
    if (threadIdx.x == 0) {
        first = program.world;
    }
    __syncthreads();
    u32 len = slip_len(p);
#pragma unroll 1
    for (u32 at = threadIdx.x; at < len * program.world; at += BLOCK) {
        if (!(value(sums, p.reduce_dtype, slips + at) == digit_of(p, well(program), at % len))) {
            atomicMin(&first, at / len);
        }
    }
    __syncthreads();
    return first;
}

// Of the first sum.
__device__ inline bool sums_fare_well(const Params& p, const Program& program, const void* sums) {
    return first_at_fault(p, program, sums, program.sums) == program.world;
}

// Of both sums, as far as there are: the first at fault.
__device__ inline u32 judge(const Params& p, const Program& program, const void* sums, const void* factors) {
    u32 faulty = first_at_fault(p, program, sums, program.sums);
    if (faulty == program.world && program.factors > 0) {
        faulty = first_at_fault(p, program, factors, program.factors);
    }
    return faulty;
}

// Writes this rank's slip behind a sum's values, and zeros in the places of the others'.
__device__ inline void tell(const Params& p, const Program& program, float code, void* sums, u64 slips) {
    u32 len = slip_len(p);
#pragma unroll 1
    for (u32 at = threadIdx.x; at < len * program.world; at += BLOCK) {
        send(p, sums, slips + at, at / len == program.rank ? digit_of(p, code, at % len) : 0.0f);
    }
}
