// What the kernels of an exchange share: what changes from step to step, faults, and means in the gradient's type.

// What changes from step to step, and what all layers have in common.
struct Program {
    u64 elements;  // of all layers
    u64 apart;     // bytes from one rank's message to the next
    u64 sums;      // f32 that are summed first, before the ranks' slips
    u64 factors;   // f32 that are summed after these, likewise
    u64 fault;     // of this step so far: the complement of kind, layer and index; 0 for none
    u64 told;      // the last step's
    u32 step;
    u32 half;  // which residuals count, and which remembered factors
    u32 spans;
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
};

// What is wrong with a value, causes before what they cause.
#define NOT_FINITE 0u
#define SUM_LEFT_F32 1u
#define FACTOR_LEFT_F32 2u
#define REST_LEFT_F32 3u
#define MEAN_LEFT_ITS_TYPE 4u
#define KIND_SHIFT 61

// The first fault by kind, layer and index is what stays.
__device__ inline void note(u64* fault, u32 kind, u32 layer, u64 index) {
    atomicMax(fault, ~(u64(kind) << KIND_SHIFT | u64(layer) << 32 | index));
}

__device__ inline bool is_finite(float value) {
    return (__float_as_uint(value) & MAGNITUDE) < INFINITE;
}

__device__ inline void put(void* values, u32 dtype, u64 i, u32 bits) {
    if (dtype == 0) {
        static_cast<u32*>(values)[i] = bits;
    } else {
        static_cast<u16*>(values)[i] = u16(bits);
    }
}

// Returns whether what is written is finite.
__device__ inline bool write_mean(void* means, u32 dtype, u64 i, u32 bits) {
    u32 narrow = dtype == 0 ? bits : dtype == 1 ? narrow_f16(bits) : narrow_bf16(bits);
    u32 infinite = dtype == 0 ? INFINITE : dtype == 1 ? 0x7c00u : 0x7f80u;
    put(means, dtype, i, narrow);
    return (narrow & infinite) != infinite;
}

// Writes a mean, or what stands for it; `note`s one that leaves its type.
__device__ inline void give(u32 dtype, Program* program, bool good, u32 layer, void* means, u64 i, float mean) {
    u32 bits = good ? __float_as_uint(mean) : program->fill;
    if (!write_mean(means, dtype, i, bits) && good) {
        note(&program->fault, MEAN_LEFT_ITS_TYPE, layer, i);
    }
}

// What the step comes to: what is to be remembered counts only if no rank has failed.
__device__ inline void end_step(Program* program, u32 faulty) {
    bool failed = faulty < program->world || program->fault != 0;
    program->faulty_rank = faulty;
    program->told = program->fault;
    program->found_inf = failed ? 1.0f : 0.0f;
    program->faults += failed;
    program->half ^= !failed;
    program->step++;
    program->fault = 0;
    program->judged = program->world;
    program->largest = 0;
}
