// Device code that the exchanges of all methods share: the state of the step, faults, the ranks' status, and means in
// the gradient's type.

// The state of an exchange, which changes from step to step, and constants for all layers.
struct Program {
    u64 elements;  // number of elements of all layers
    u64 apart;     // bytes from one rank's message to the next
    u64 sums;      // index of the status records in the first sum; with shards, index of those behind this rank's part
    u64 factors;   // index of the status records in the second sum, which has PowerSGD's Q; 0 if there is none
    u64 fault;     // first fault of this step so far: the complement of kind, layer and index; 0 for none
    u64 told;      // first fault of the last step, in the same format
    u32 step;
    u32 half;  // which half of the residuals and of the remembered Q is current
    u32 spans;      // number of spans under QSGD that this rank sends
    u32 own_spans;  // number of these spans that this rank averages; they come first
    u32 world;
    u32 rank;  // this rank's number
    u32 fingerprint;
    u32 judged;       // first rank at fault according to this step's sums, or the number of ranks
    u32 faulty_rank;  // first rank at fault in the last step, or the number of ranks
    u32 faults;       // number of failed steps so far
    float found_inf;  // 1 if the last step failed, else 0
    float gain;  // part of the error that becomes the residual
    float keep;  // 1 - gain
    u32 fill;    // bits of the f32 that overwrites all means if a step fails
    u32 largest;  // bits of a magnitude that is not finite, else 0
    u32 broken;  // complement of the first rank with a payload that no encoder can have written; 0 for none
    u32 done;    // number of blocks that have finished the current launch
    u32 sharded;  // whether each rank averages its own shard of each layer
    u32 rotated;  // number of spans under EDEN that this rank sends
    u32 own_rotated;  // number of these spans that this rank averages; they come first
};

// Size of the status record at the head of a message, in words and bytes: fault, step, fingerprint and a zero. The
// header of a payload has the same size.
#define MESSAGE_WORDS 4
#define HEADER 16
// Kinds of faults. Causes have lower numbers than their effects.
#define NOT_FINITE 0u
#define SUM_LEFT_F32 1u
#define FACTOR_LEFT_F32 2u
#define REST_LEFT_F32 3u
#define MEAN_LEFT_ITS_TYPE 4u
#define BROKEN_PAYLOAD 5u  // its index is the rank
#define KIND_SHIFT 61

// Records a fault. The first one by kind, layer and index is kept.
__device__ inline void note(u64* fault, u32 kind, u32 layer, u64 index) {
    atomicMax(fault, ~(u64(kind) << KIND_SHIFT | u64(layer) << 32 | index));
}

// Reports that no encoder can have written a rank's payload of a layer.
__device__ inline void blame(Program* program, u32 rank, u32 layer) {
    atomicMax(&program->broken, ~rank);
    note(&program->fault, BROKEN_PAYLOAD, layer, rank);
}

__device__ inline void put(void* values, u32 dtype, u64 i, u32 bits) {
    if (dtype == 0) {
        static_cast<u32*>(values)[i] = bits;
    } else {
        static_cast<u16*>(values)[i] = u16(bits);
    }
}

// Number of owners, the ranks that each get a message of their own. Without shards, all ranks get the same message.
__device__ inline u32 owners(const Program& program) {
    return program.sharded ? program.world : 1;
}

// Address of a rank's message among the messages that this rank holds. Messages are in the order of the ranks. With
// shards, this rank's own message comes last instead.
__device__ inline const u8* message_of(const Program& program, const u8* messages, u32 rank) {
    u32 later = rank == program.rank ? program.world - 1 : rank - 1;
    return messages + (program.sharded && rank >= program.rank ? later : rank) * program.apart;
}

// Writes this rank's status record for the other ranks. Called by one thread.
__device__ inline void tell(Program* program, u32* message) {
    // Atomic, because other blocks of the launch may have recorded a fault.
    message[0] = atomicMax(&program->fault, 0ull) != 0;
    message[1] = program->step;
    message[2] = program->fingerprint;
    message[3] = 0;
}

// The first rank at fault according to the sums or, if there is none, according to the messages' status records. A rank
// is at fault if its record reports a failure, another step or another fingerprint. Returns the number of ranks if no
// rank is at fault. Payloads are checked only in this case.
__device__ inline u32 first_failed(const Program& program, const u8* messages) {
    if (program.judged < program.world) {
        return program.judged;
    }
    for (u32 rank = 0; rank < program.world; rank++) {
        const u32* words = reinterpret_cast<const u32*>(message_of(program, messages, rank));
        if (words[0] != 0 || words[1] != program.step || words[2] != program.fingerprint) {
            return rank;
        }
    }
    return program.world;
}

// The first rank that has failed or, if there is none, the first rank with an invalid payload. Returns the number of
// ranks if there is none either.
__device__ inline u32 first_faulty(const Program& program, const u8* messages) {
    u32 failed = first_failed(program, messages);
    return failed == program.world && program.broken != 0 ? ~program.broken : failed;
}

// Rounds a mean to its type. `bits` are the bits of the mean in f32.
__device__ inline u32 narrowed(u32 dtype, u32 bits) {
    return dtype == 0 ? bits : dtype == 1 ? narrow_f16(bits) : narrow_bf16(bits);
}

// The exponent bits of a type. They are all set only in infinities and NaN.
__device__ inline u32 infinite_of(u32 dtype) {
    return dtype == 0 ? INFINITE : dtype == 1 ? 0x7c00u : 0x7f80u;
}

// Writes a mean in its type. Returns whether the result is finite.
__device__ inline bool write_mean(void* means, u32 dtype, u64 i, u32 bits) {
    u32 narrow = narrowed(dtype, bits);
    u32 infinite = infinite_of(dtype);
    put(means, dtype, i, narrow);
    return (narrow & infinite) != infinite;
}

// Overwrites the means of all layers after a failure.
__device__ inline void fill(const Program& program, u32 dtype, void* means) {
    for (u64 i = u64(blockIdx.x) * BLOCK + threadIdx.x; i < program.elements; i += u64(gridDim.x) * BLOCK) {
        write_mean(means, dtype, i, program.fill);
    }
}

// Writes a mean. Records a fault if it leaves the range of its type. `start` is the index of the first mean in the
// layer.
__device__ inline void give(u32 dtype, Program* program, u32 layer, u64 start, void* means, u64 i, float mean) {
    if (!write_mean(means, dtype, i, __float_as_uint(mean))) {
        note(&program->fault, MEAN_LEFT_ITS_TYPE, layer, start + i);
    }
}

// The factor by which values are multiplied before they are summed. It is a power of two that keeps the sum of finite
// values finite.
__device__ inline float share_of(u32 ranks) {
    u32 up = 1;
    while (up < ranks) {
        up *= 2;
    }
    return 1.0f / float(up);
}

// Makes means from sums of values that were multiplied by `share`.
struct World {
    u32 ranks;
    float divisor;
    float inverse;  // 1 / divisor if that is a power of two, so that products equal quotients; else 0

    __device__ explicit World(u32 ranks, float share = 1.0f)
        : ranks(ranks), divisor(float(ranks) * share), inverse((ranks & (ranks - 1)) == 0 ? 1.0f / divisor : 0.0f) {}

    __device__ float mean(float sum) const {
        return inverse != 0.0f ? sum * inverse : sum / divisor;
    }
};

// Writes the means of `here` sums (at most eight) to the indices from `first` on. `first` is a multiple of 8. Records a
// fault for the first mean that leaves the range of its type. `start` is the index of the first mean in the layer.
// `together` says that all lanes of the warp call this function, each with the eight sums that follow the previous
// lane's.
__device__ inline void give_eight(u32 dtype, Program* program, u32 layer, u64 start, const World& world, void* means,
                                  u64 first, u32 here, bool together, const float (&sums)[8]) {
    u32 infinite = infinite_of(dtype);
    u8* to = static_cast<u8*>(means) + first * (dtype == 0 ? 4 : 2);
    bool whole = here == 8 && reinterpret_cast<u64>(to) % 16 == 0;
    u32 bits[8];
    bool good = true;
#pragma unroll
    for (u32 k = 0; k < 8; k++) {
        bits[k] = __float_as_uint(world.mean(sums[k]));
    }
    if (dtype == 1) {
#pragma unroll
        for (u32 k = 0; k < 8; k++) {
            bits[k] = narrow_f16(bits[k]);
        }
    } else {
#pragma unroll
        for (u32 k = 0; k < 8; k++) {
            bits[k] = narrowed(dtype, bits[k]);
        }
    }
#pragma unroll
    for (u32 k = 0; k < 8; k++) {
        good = good && (k >= here || (bits[k] & infinite) != infinite);
    }
    if (!good) {
        u32 lost = 0;
#pragma unroll
        for (u32 k = 8; k-- > 0;) {
            lost = k < here && (bits[k] & infinite) == infinite ? k : lost;
        }
        note(&program->fault, MEAN_LEFT_ITS_TYPE, layer, start + first + lost);
    }
    if (dtype == 0 && whole) {
        // Two neighbouring lanes have four quads of means. The even lane writes the first and the third quad, so that
        // each store fills whole sectors.
        bool is_odd = together && threadIdx.x % 2 != 0;
        uint4* quads = reinterpret_cast<uint4*>(to) - is_odd;
        if (together) {
#pragma unroll
            for (u32 k = 0; k < 4; k++) {
                u32 of_pair = __shfl_xor_sync(FULL, is_odd ? bits[k] : bits[4 + k], 1);
                bits[k] = is_odd ? of_pair : bits[k];
                bits[4 + k] = is_odd ? bits[4 + k] : of_pair;
            }
        }
        quads[0] = uint4{bits[0], bits[1], bits[2], bits[3]};
        quads[together ? 2 : 1] = uint4{bits[4], bits[5], bits[6], bits[7]};
    } else if (whole) {
        *reinterpret_cast<uint4*>(to) = uint4{bits[0] | bits[1] << 16, bits[2] | bits[3] << 16, bits[4] | bits[5] << 16,
                                              bits[6] | bits[7] << 16};
    } else {
#pragma unroll
        for (u32 k = 0; k < 8; k++) {
            if (k < here) {
                put(means, dtype, first + k, bits[k]);
            }
        }
    }
}

// Ends the step. `faulty` is the first rank at fault, as far as this rank knows. The next residuals and the new Q
// become current only if no rank is at fault. Called by one thread.
__device__ inline void end_step(Program* program, u32 faulty) {
    u64 fault = atomicExch(&program->fault, 0ull);
    bool failed = faulty < program->world || fault != 0;
    program->faulty_rank = faulty;
    program->told = fault;
    program->found_inf = failed ? 1.0f : 0.0f;
    program->faults += failed;
    program->half ^= !failed;
    program->step++;
    program->judged = program->world;
    program->largest = 0;
    program->broken = 0;
}
