// What of a bucket travels by sums, all on the device: uncompressed values and PowerSGD's P in a first sum, Q in a second. Both
// are f32 or bf16. What rounding to bf16 keeps from being sent of a rank's own values and of its own Q stays with it; P is
// orthonormal after it is summed, in f32 and in memory of its own.
//
// As in exchange.cu residuals lie twice, and so do the remembered Q: a step reads one half and writes the other. The
// half that is written holds a matrix with its residual from the first call to the second, so that it is read four times
// in all: gradient, residual, for Q and for what the worker has left.

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

// Writes a value that is summed; returns what it is for those who read it.
__device__ inline float send(const Params& p, void* values, u64 i, float value) {
    u32 bits = __float_as_uint(value);
    u32 sent = p.reduce_dtype == 0 ? bits : narrow_bf16(bits);
    put(values, p.reduce_dtype, i, sent);
    return p.reduce_dtype == 0 ? value : widen(sent, 2);
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

// The code of what has gone wrong on this rank, or the number of one that fares well.
__device__ inline float own_code(const Params& p, const Program& program) {
    if (program.fault == 0) {
        return well(program);
    }
    return float(~program.fault >> KIND_SHIFT == NOT_FINITE ? p.not_finite : p.overflow);
}

__device__ inline const float* before_of(const Program& program, const float* residuals) {
    return residuals + program.half * program.elements;
}

__device__ inline float* after_of(const Program& program, float* residuals) {
    return residuals + (1 - program.half) * program.elements;
}

// A gradient's value with what is remembered of it; notes what is not finite.
__device__ inline float offered(float own, float before, u64* fault, u32 layer, u64 i) {
    float both = before + own;
    if (!is_finite(both)) {
        note(fault, is_finite(own) ? SUM_LEFT_F32 : NOT_FINITE, layer, i);
    }
    return both;
}

// What is to be remembered of a value; notes what is not finite.
__device__ inline float stays(Program* program, float before, float left, u32 layer, u64 i) {
    float rest = program->keep == 0.0f ? left : program->keep * before + program->gain * left;
    if (!is_finite(rest)) {
        note(&program->fault, REST_LEFT_F32, layer, i);
    }
    return rest;
}

// A span's values with their residuals into the sums. Nothing stays of what is sent.
__device__ inline void send_span(const Params& p, const Dense& layer, u64 span, Program* program,
                                 const void* gradients, float* residuals, void* sums) {
    for (u64 i = span * SPAN + threadIdx.x; i < min(u64(layer.count), (span + 1) * SPAN); i += BLOCK) {
        float before = before_of(*program, residuals)[layer.first + i];
        float own = value(gradients, p.dtype, layer.first + i);
        float both = offered(own, before, &program->fault, layer.layer, layer.start + i);
        float left = both - send(p, sums, layer.sum + i, both);
        after_of(*program, residuals)[layer.first + i] = stays(program, before, left, layer.layer, layer.start + i);
    }
}

// A column of the Q that P is made with: the remembered one, or that of the start matrix where it is zero, scaled by the
// power of two that brings its largest magnitude into [1, 2).
__device__ static inline void start(const Params& p, const Factors& f, u32 column, const float* remembered, float* q) {
    __shared__ u32 largest;
    u64 first = u64(column) * f.cols;
    const float* last = remembered + f.q + first;
    float* to = q + f.q + first;
    u32 found = 0;
    for (u32 i = threadIdx.x; i < f.cols; i += BLOCK) {
        found = max(found, __float_as_uint(last[i]) & MAGNITUDE);
    }
    found = block_max(found, largest);
    bool afresh = found == 0;
    if (afresh) {
        for (u32 i = threadIdx.x; i < f.cols; i += BLOCK) {
            to[i] = start_element(first + i, f.id, p.seed_low, p.seed_high);
            found = max(found, __float_as_uint(to[i]) & MAGNITUDE);
        }
        __syncthreads();
        found = block_max(found, largest);
    }
    for (u32 i = threadIdx.x; i < f.cols; i += BLOCK) {
        to[i] = scaled_down(afresh ? to[i] : last[i], found);
    }
    __syncthreads();
}

// What the first sum begins with: uncompressed values, and the Q that P is made with.
extern "C" __global__ void prepare(Params p, const Dense* dense, const Factors* all, Program* program,
                                   const void* gradients, float* residuals, const float* remembered, float* q,
                                   void* sums) {
    for (u64 piece = blockIdx.x; piece < u64(p.columns) + p.dense_spans; piece += gridDim.x) {
        if (piece < p.columns) {
            const Factors& f = all[owner<&Factors::first_column>(all, p.matrices, piece)];
            start(p, f, u32(piece) - f.first_column, remembered + program->half * program->factors, q);
        } else {
            u64 span = piece - p.columns;
            const Dense& layer = dense[owner<&Dense::first_span>(dense, p.dense, span)];
            send_span(p, layer, span - layer.first_span, program, gradients, residuals, sums);
        }
    }
}

// A matrix with its residual, which is kept where the next one is to be.
struct Compensated {
    const void* gradients;
    u32 dtype;
    const float* before;
    float* after;
    u64* fault;
    u32 layer;

    template <u32 LINES, u32 EACH>
    __device__ void read(const u64 (&lines)[LINES], const u32 (&places)[EACH], u32 own,
                         float (&out)[LINES * EACH]) const {
        float gradient[LINES * EACH];
        values_at(gradients, dtype, lines, places, gradient);
        values_at(before, 0, lines, places, out);
#pragma unroll
        for (u32 k = 0; k < LINES * EACH; k++) {
            out[k] += gradient[k];
        }
#pragma unroll
        for (u32 k = 0; k < LINES * EACH; k++) {
            if ((own >> k & 1) == 0) {
                continue;
            }
            u64 i = lines[k / EACH] + places[k % EACH];
            after[i] = out[k];
            if (!is_finite(out[k])) {
                note(fault, is_finite(gradient[k]) ? SUM_LEFT_F32 : NOT_FINITE, layer, i);
            }
        }
    }
};

// The matrix that was kept.
struct Kept {
    const float* values;

    template <u32 LINES, u32 EACH>
    __device__ void read(const u64 (&lines)[LINES], const u32 (&places)[EACH], u32, float (&out)[LINES * EACH]) const {
        values_at(values, 0, lines, places, out);
    }
};

// Where a factor goes that is to be summed, which must be finite.
struct Factor {
    const Params& p;
    void* sums;
    const u64& first;
    u64* fault;
    const u32& layer;

    __device__ void put(u64 at, float value) const {
        if (!is_finite(send(p, sums, first + at, value))) {
            note(fault, FACTOR_LEFT_F32, layer, 0);
        }
    }
};

// A factor as it is summed.
struct Summed {
    const void* sums;
    u32 dtype;
    u64 first;

    __device__ float at(u64 place, bool = true) const {
        return value(sums, dtype, first + place);
    }
};

// P's columns: as they were summed or, when they become orthonormal for the second time, as the first has left them.
__device__ inline Summed columns_of(const Params& p, const Factors& f, const void* sums, const float* of_rows) {
    return p.second != 0 ? Summed{of_rows, 0, f.p} : Summed{sums, p.reduce_dtype, f.sum};
}

// P = M Q.
extern "C" __launch_bounds__(BLOCK, 2) __global__ void project(Params p, const Factors* all, Program* program,
                                                               const void* gradients, float* residuals, const float* q,
                                                               float* partial, u32* counters, void* sums) {
    __shared__ Room room;
    for (u64 piece = blockIdx.x; piece < p.products; piece += gridDim.x) {
        const Factors& f = all[owner<&Factors::first_product>(all, p.matrices, piece)];
        const void* own = static_cast<const u8*>(gradients) + f.values * (p.dtype == 0 ? 4 : 2);
        Compensated matrix{own,
                           p.dtype,
                           before_of(*program, residuals) + f.values,
                           after_of(*program, residuals) + f.values,
                           &program->fault,
                           f.layer};
        multiply<false>(f, u32(piece) - f.first_product, matrix, q + f.q, partial, counters,
                        Factor{p, sums, f.sum, &program->fault, f.layer}, room);
    }
}

// What the first sum tells of this rank, behind each of its parts. One block.
extern "C" __global__ void tell_sums(Params p, const Program* program, const u64* slips, void* sums) {
    float code = own_code(p, *program);
    for (u32 i = 0; i < owners(*program); i++) {
        tell(p, *program, code, sums, slips[i]);
    }
}

// Inner products of P's columns; the block that comes last for a matrix factors them.
extern "C" __global__ void gram(Params p, const Factors* all, Program* program, const void* sums,
                                const float* of_rows, double* partials, double* triangles, u32* counters) {
    __shared__ GramRoom room;
    if (!sums_fare_well(p, *program, sums)) {
        return;
    }
    for (u64 piece = blockIdx.x; piece < p.grams; piece += gridDim.x) {
        const Factors& f = all[owner<&Factors::first_gram>(all, p.matrices, piece)];
        double sum = add_to_gram(f, u32(piece) - f.first_gram, p.second != 0, columns_of(p, f, sums, of_rows),
                                 partials + f.gram, triangles + f.triangle, counters + f.counter, room);
        // Sums of squares of f32 do not come near the end of f64.
        if (p.second == 0 && !(fabs(sum) < 1e300)) {
            note(&program->fault, FACTOR_LEFT_F32, f.layer, 0);
        }
    }
}

// P becomes orthonormal, BLOCK rows at a time.
extern "C" __global__ void solve(Params p, const Factors* all, const Program* program, const void* sums,
                                 float* of_rows, const double* triangles) {
    if (!sums_fare_well(p, *program, sums)) {
        return;
    }
    for (u64 piece = blockIdx.x; piece < p.solves; piece += gridDim.x) {
        const Factors& f = all[owner<&Factors::first_solve>(all, p.matrices, piece)];
        u64 i = (piece - f.first_solve) * BLOCK + threadIdx.x;
        if (i < f.rows) {
            substitute(columns_of(p, f, sums, of_rows), of_rows + f.p, f.rows, f.columns, triangles + f.triangle, i);
        }
        __syncwarp();
    }
}

// Q = the transposed M's product with P.
extern "C" __launch_bounds__(BLOCK, 3) __global__ void back_project(Params p, const Factors* all, Program* program,
                                                                    float* residuals, const void* sums,
                                                                    const float* of_rows, float* partial,
                                                                    u32* counters, void* factors) {
    __shared__ Room room;
    if (!sums_fare_well(p, *program, sums)) {
        return;
    }
    for (u64 piece = blockIdx.x; piece < p.backs; piece += gridDim.x) {
        const Factors& f = all[owner<&Factors::first_back>(all, p.matrices, piece)];
        Kept matrix{after_of(*program, residuals) + f.values};
        multiply<true>(f, u32(piece) - f.first_back, matrix, of_rows + f.p, partial, counters,
                       Factor{p, factors, f.q, &program->fault, f.layer}, room);
    }
}

// What is to be remembered of a matrix, if all goes well: what this worker's product of factors leaves.
extern "C" __global__ void take_off(Params p, const Factors* all, Program* program, float* residuals, const void* sums,
                                    const float* of_rows, const void* factors) {
    __shared__ Slabs slabs;
    if (!sums_fare_well(p, *program, sums)) {
        return;
    }
    for (u64 piece = blockIdx.x; piece < p.tiles; piece += gridDim.x) {
        const Factors& f = all[owner<&Factors::first_tile>(all, p.matrices, piece)];
        Tile tile(f, u32(piece) - f.first_tile);
        tile.add(f, of_rows + f.p, Summed{factors, p.reduce_dtype, f.q}, 0, f.columns, slabs);
        const float* before = before_of(*program, residuals) + f.values;
        float* after = after_of(*program, residuals) + f.values;
#pragma unroll
        for (u32 k = 0; k < HIGH / WARPS; k++) {
            if (tile.is_inside(f, k)) {
                u64 i = u64(tile.row_of(k)) * f.cols + tile.own_col();
                after[i] = stays(program, before[i], after[i] - tile.sums[k], f.layer, i);
            }
        }
    }
}

// What the second sum tells of this rank: also that another has failed before.
extern "C" __global__ void tell_factors(Params p, const Program* program, const void* sums, void* factors) {
    bool good = program->fault != 0 || sums_fare_well(p, *program, sums);
    tell(p, *program, good ? own_code(p, *program) : float(p.peer), factors, program->factors);
}

// The mean of all ranks' Q, which is to be remembered.
struct Averaged {
    Summed sums;
    float* remembered;
    float world;
    u64* fault;
    u32 layer;

    __device__ float at(u64 place, bool first) const {
        float mean = sums.at(place) / world;
        if (first) {
            remembered[place] = mean;
            if (!is_finite(mean)) {
                note(fault, FACTOR_LEFT_F32, layer, 0);
            }
        }
        return mean;
    }
};

// The means of what was summed; `fill` where a rank is at fault.
extern "C" __global__ void means(Params p, const Dense* dense, const Factors* all, Program* program, const void* sums,
                                 const float* of_rows, const void* factors, float* remembered, void* means) {
    __shared__ Slabs slabs;
    if (judge(p, *program, sums, factors) != program->world) {
        fill(*program, p.dtype, means);
        return;
    }
    u64 size = p.dtype == 0 ? 4 : 2;
    float world = float(program->world);
    remembered += (1 - program->half) * program->factors;
    for (u64 piece = blockIdx.x; piece < u64(p.tiles) + p.dense_spans; piece += gridDim.x) {
        if (piece < p.tiles) {
            const Factors& f = all[owner<&Factors::first_tile>(all, p.matrices, piece)];
            Tile tile(f, u32(piece) - f.first_tile);
            Averaged q{{factors, p.reduce_dtype, f.q}, remembered + f.q, world, &program->fault, f.layer};
            tile.add(f, of_rows + f.p, q, 0, f.columns, slabs);
            void* own = static_cast<u8*>(means) + f.values * size;
#pragma unroll
            for (u32 k = 0; k < HIGH / WARPS; k++) {
                if (tile.is_inside(f, k)) {
                    u64 i = u64(tile.row_of(k)) * f.cols + tile.own_col();
                    give(p.dtype, program, f.layer, 0, own, i, tile.sums[k]);
                }
            }
        } else {
            u64 span = piece - p.tiles;
            const Dense& layer = dense[owner<&Dense::first_span>(dense, p.dense, span)];
            void* own = static_cast<u8*>(means) + layer.first * size;
            u64 first = (span - layer.first_span) * SPAN;
            for (u64 i = first + threadIdx.x; i < min(u64(layer.count), first + SPAN); i += BLOCK) {
                float sum = value(sums, p.reduce_dtype, layer.sum + i);
                give(p.dtype, program, layer.layer, layer.start, own, i, sum / world);
            }
        }
    }
}

// What the ranks have said by what was summed; the step's end where nothing else travels. One block.
extern "C" __global__ void settle(Params p, Program* program, const void* sums, const void* factors) {
    u32 faulty = judge(p, *program, sums, factors);
    if (threadIdx.x == 0) {
        if (p.ends) {
            end_step(program, faulty);
        } else {
            program->judged = faulty;
        }
    }
}
