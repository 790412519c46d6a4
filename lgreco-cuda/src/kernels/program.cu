// What exchanges on the device have in common, whatever the method: what changes from step to step, what goes wrong, what
// ranks say of it, and means in the gradient's type.

// What changes from step to step, and what all layers have in common.
struct Program {
    u64 elements;  // of all layers
    u64 apart;     // bytes from one rank's message to the next
    u64 sums;      // values that are summed first, before the ranks' slips; by shards, up to those behind this rank's own
    u64 factors;   // those that are summed after these, likewise
    u64 fault;     // of this step so far: the complement of kind, layer and index; 0 for none
    u64 told;      // the last step's
    u32 step;
    u32 half;  // which residuals count, and which remembered factors
    u32 spans;      // under QSGD, of what this rank sends,
    u32 own_spans;  // and of what it averages, which come first
    u32 world;
    u32 rank;  // this one's number
    u32 fingerprint;
    u32 judged;       // the first rank at fault in this step by what was summed, or their number
    u32 faulty_rank;  // of the last step: the first at fault, or their number
    u32 faults;       // steps that failed so far
    float found_inf;  // whether the last step did
    float gain;
    float keep;  // 1 - gain
    u32 fill;    // bits of what means become where a step fails
    u32 largest;
    u32 broken;  // complement of the first rank one of whose payloads no encoder wrote; 0 for none
    u32 done;    // blocks that have been through the launch
    u32 sharded;  // whether each rank averages its own shard of each layer
    u32 rotated;  // spans under EDEN, as above: of what this rank sends,
    u32 own_rotated;  // and of what it averages
};

// Bytes before the payloads: fault, step, fingerprint, none.
#define MESSAGE_WORDS 4
#define HEADER 16
// What is wrong with a value, causes before what they cause.
#define NOT_FINITE 0u
#define SUM_LEFT_F32 1u
#define FACTOR_LEFT_F32 2u
#define REST_LEFT_F32 3u
#define MEAN_LEFT_ITS_TYPE 4u
#define BROKEN_PAYLOAD 5u  // of which the index is the rank
#define KIND_SHIFT 61

// The first fault by kind, layer and index is what stays.
__device__ inline void note(u64* fault, u32 kind, u32 layer, u64 index) {
    atomicMax(fault, ~(u64(kind) << KIND_SHIFT | u64(layer) << 32 | index));
}

// No encoder wrote a rank's payload of a layer.
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

// Owners that a rank sends shares of its values to, each apart: all ranks by shards, else everybody at once.
__device__ inline u32 owners(const Program& program) {
    return program.sharded ? program.world : 1;
}

// A rank's message among those that this one has: in the order of the ranks, but by shards its own behind those of the others.
__device__ inline const u8* message_of(const Program& program, const u8* messages, u32 rank) {
    u32 later = rank == program.rank ? program.world - 1 : rank - 1;
    return messages + (program.sharded && rank >= program.rank ? later : rank) * program.apart;
}

// What the other ranks are told of this one, by one thread.
__device__ inline void tell(Program* program, u32* message) {
    // Other blocks of the launch may have noted it.
    message[0] = atomicMax(&program->fault, 0ull) != 0;
    message[1] = program->step;
    message[2] = program->fingerprint;
    message[3] = 0;
}

// The first rank at fault by what was summed, or else one that has failed, or is at another step, or compresses otherwise; their
// number for none. What is wrong with payloads is not looked for then.
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

// The same, or else the first with a broken payload.
__device__ inline u32 first_faulty(const Program& program, const u8* messages) {
    u32 failed = first_failed(program, messages);
    return failed == program.world && program.broken != 0 ? ~program.broken : failed;
}

// A mean's bits in its type.
__device__ inline u32 narrowed(u32 dtype, u32 bits) {
    return dtype == 0 ? bits : dtype == 1 ? narrow_f16(bits) : narrow_bf16(bits);
}

// Bits that all are set in what is not finite.
__device__ inline u32 infinite_of(u32 dtype) {
    return dtype == 0 ? INFINITE : dtype == 1 ? 0x7c00u : 0x7f80u;
}

// Returns whether what is written is finite.
__device__ inline bool write_mean(void* means, u32 dtype, u64 i, u32 bits) {
    u32 narrow = narrowed(dtype, bits);
    u32 infinite = infinite_of(dtype);
    put(means, dtype, i, narrow);
    return (narrow & infinite) != infinite;
}

// Writes what means of all layers become where a step fails.
__device__ inline void fill(const Program& program, u32 dtype, void* means) {
    for (u64 i = u64(blockIdx.x) * BLOCK + threadIdx.x; i < program.elements; i += u64(gridDim.x) * BLOCK) {
        write_mean(means, dtype, i, program.fill);
    }
}

// Writes a mean; `note`s one that leaves its type, by its place in the layer, of which the first is `start`.
__device__ inline void give(u32 dtype, Program* program, u32 layer, u64 start, void* means, u64 i, float mean) {
    if (!write_mean(means, dtype, i, __float_as_uint(mean))) {
        note(&program->fault, MEAN_LEFT_ITS_TYPE, layer, start + i);
    }
}

// What values are multiplied by before they are summed: the power of two with which a sum of finite values is finite.
__device__ inline float share_of(u32 ranks) {
    u32 up = 1;
    while (up < ranks) {
        up *= 2;
    }
    return 1.0f / float(up);
}

// What sums of values times `share` are divided by.
struct World {
    u32 ranks;
    float divisor;
    float inverse;  // of a power of two: products with it are rounded as quotients are; else 0

    __device__ explicit World(u32 ranks, float share = 1.0f)
        : ranks(ranks), divisor(float(ranks) * share), inverse((ranks & (ranks - 1)) == 0 ? 1.0f / divisor : 0.0f) {}

    __device__ float mean(float sum) const {
        return inverse != 0.0f ? sum * inverse : sum / divisor;
    }
};

// Writes the means of eight sums from `first`, a multiple of 8, on, as far as they are `here`; `note`s the first that leaves its
// type, by its place in the layer. Where all lanes of the warp come with eight that follow the last lane's, they are `together`.
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
        // Of two lanes' four quads the even one writes the first and the third, so that each store fills whole sectors.
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

// What the step comes to, by one thread, where this rank has heard of the first that is at fault: what is to be remembered
// counts only if none is.
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
