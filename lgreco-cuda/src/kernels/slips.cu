// Exchanges by sums: the parameters of launches, conversion to the type of the sums, and the ranks' status records.

struct Params {
    u32 dtype;
    u32 reduce_dtype;  // type of the sums: f32 or bf16
    u32 dense;        // number of uncompressed layers or, with shards, of their parts; this rank's own parts come first
    u32 dense_spans;  // number of their spans, of SPAN values each
    u32 matrices;
    u32 columns;  // number of columns of all factors
    u32 products;  // number of pieces of `project`
    u32 backs;  // number of pieces of `back_project`
    u32 grams;  // number of pieces of `gram`
    u32 solves;  // number of pieces of `solve`
    u32 tiles;  // number of pieces of `take_off`
    u32 second;      // whether `gram` and `solve` orthonormalise columns for the second time
    u32 ends;        // whether the step ends with the sums, because no messages follow
    u32 not_finite;  // error codes for status records
    u32 overflow;
    u32 peer;
    u32 seed_low;
    u32 seed_high;
};

// An uncompressed layer, or a rank's shard of one.
struct Dense {
    u64 first;       // index of its first value among all layers' values
    u64 start;       // index of its first value in the layer
    u64 sum;         // index of its first value in the buffer of the sum
    u64 first_span;  // number of its first span among the spans of all entries
    u32 count;
    u32 layer;
};

#define SPAN 4096
// In a status record, numbers below FINGERPRINTS are error codes. Larger numbers are computed from the fingerprint and
// the step, on which all ranks must agree. lgreco_train::exchange::Slip has the same format.
#define FINGERPRINTS 4096u
#define END (1u << 24)

// The status number of a rank without a fault.
__device__ inline float well(const Program& program) {
    return float(FINGERPRINTS + u32((u64(program.fingerprint) + program.step) % (END - FINGERPRINTS)));
}

// Number of values that a rank's status record takes in a sum: one f32, or three bf16 that are digits of base 256.
__device__ inline u32 slip_len(const Params& p) {
    return p.reduce_dtype == 0 ? 1 : 3;
}

// Value number `place` of a status record. `code` is a status number.
__device__ inline float digit_of(const Params& p, float code, u32 place) {
    return p.reduce_dtype == 0 ? code : float(u32(code) >> (8 * place) & 0xffu);
}

// Converts a value to the type of the sums, and returns its bits.
__device__ inline u32 sent_of(const Params& p, float value) {
    u32 bits = __float_as_uint(value);
    return p.reduce_dtype == 0 ? bits : narrow_bf16(bits);
}

// Converts the bits from `sent_of` back to f32.
__device__ inline float read_of(const Params& p, u32 sent) {
    return __uint_as_float(p.reduce_dtype == 0 ? sent : sent << 16);
}

// Rounds a value to the type of the sums, and writes it to a sum. Returns the rounded value.
__device__ inline float send(const Params& p, void* values, u64 i, float value) {
    u32 sent = sent_of(p, value);
    put(values, p.reduce_dtype, i, sent);
    return read_of(p, sent);
}

// The first rank whose status record differs from the record of a rank without a fault at this step. Returns the number
// of ranks if there is none. The records begin at index `slips` of the sum. All threads of the block must call it.
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

// Whether the first sum's status records show no rank at fault.
__device__ inline bool sums_fare_well(const Params& p, const Program& program, const void* sums) {
    return first_at_fault(p, program, sums, program.sums) == program.world;
}

// The first rank at fault according to the status records of the first sum. If there is none, and a second sum exists,
// the first rank at fault according to that sum's records.
__device__ inline u32 judge(const Params& p, const Program& program, const void* sums, const void* factors) {
    u32 faulty = first_at_fault(p, program, sums, program.sums);
    if (faulty == program.world && program.factors > 0) {
        faulty = first_at_fault(p, program, factors, program.factors);
    }
    return faulty;
}

// Writes this rank's status record behind the values of a sum, and zeros in the places of the other ranks' records.
__device__ inline void tell(const Params& p, const Program& program, float code, void* sums, u64 slips) {
    u32 len = slip_len(p);
#pragma unroll 1
    for (u32 at = threadIdx.x; at < len * program.world; at += BLOCK) {
        send(p, sums, slips + at, at / len == program.rank ? digit_of(p, code, at % len) : 0.0f);
    }
}
