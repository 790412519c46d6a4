// Exchanges the layers of a bucket that collectives sum over the ranks (uncompressed layers and PowerSGD), entirely on
// the device. The first sum has uncompressed values and PowerSGD's P. The second sum has Q. Sums are f32 or bf16. The
// residual keeps the rounding errors of this rank's values and of its own Q. P is made orthonormal after it is summed,
// in f32 and in separate memory.
//
// The memory of the residuals has two halves, as in exchange.cu, and so has the memory of the remembered Q. A step
// reads one half and writes the other. While P is computed, the sum of each matrix and its residual is stored in the
// half that is written. So a step reads four arrays per matrix: the gradient, the residual, their sum for Q, and their
// sum for the next residual.

// This rank's status number: the error code of its fault or, without a fault, the result of `well`.
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

// The sum of a gradient's value and its residual. Records a fault if it is not finite.
__device__ inline float offered(float own, float before, u64* fault, u32 layer, u64 i) {
    float both = before + own;
    if (!is_finite(both)) {
        note(fault, is_finite(own) ? SUM_LEFT_F32 : NOT_FINITE, layer, i);
    }
    return both;
}

// Makes next residuals.
struct Rest {
    float keep;
    float gain;
    u64* fault;

    __device__ explicit Rest(Program* program) : keep(program->keep), gain(program->gain), fault(&program->fault) {}

    // The next residual of a value; `left` is the part of it that is not sent. Records a fault if the residual is not
    // finite. Reads the old residual only if a part of it is kept.
    __device__ float of(const float* before, float left, u32 layer, u64 i) const {
        float rest = keep == 0.0f ? left : keep * *before + gain * left;
        if (!is_finite(rest)) {
            note(fault, REST_LEFT_F32, layer, i);
        }
        return rest;
    }
};

// The address of the value after the first `before` values.
__device__ inline const void* from_value(const void* values, u32 dtype, u64 before) {
    return static_cast<const u8*>(values) + before * (dtype == 0 ? 4 : 2);
}

// Adds the residuals to the values of an uncompressed span, multiplies the results by `share_of`, and writes them to
// the first sum. The only unsent part of a value is its rounding error in the type of the sums (none for f32). With
// gain 1, this is its next residual.
__device__ inline void send_span(const Params& p, const Dense& layer, u64 span, Program* program,
                                 const void* gradients, float* residuals, void* sums) {
    const void* own = from_value(gradients, p.dtype, layer.first);
    const float* before = before_of(*program, residuals) + layer.first;
    float* after = after_of(*program, residuals) + layer.first;
    void* to = const_cast<void*>(from_value(sums, p.reduce_dtype, layer.sum));
    Rest rest(program);
    float share = share_of(program->world);
    float back = 1.0f / share;
    u32 count = layer.count;
    for (u64 i = span * SPAN + threadIdx.x * 4; i < min(u64(count), (span + 1) * SPAN); i += BLOCK * 4) {
        float gradient[4];
        float remembered[4];
        u32 here = load4(own, p.dtype, i, count, gradient);
        load4(before, 0, i, count, remembered);
        u32 sent[4];
        u32 stays[4];
#pragma unroll
        for (u32 k = 0; k < 4; k++) {
            // Values after the last one are 0.
            u64 place = layer.start + i + k;
            float both = offered(gradient[k], remembered[k], rest.fault, layer.layer, place);
            sent[k] = sent_of(p, both * share);
            float left = p.reduce_dtype == 0 ? 0.0f : both - read_of(p, sent[k]) * back;
            stays[k] = __float_as_uint(rest.of(&remembered[k], left, layer.layer, place));
        }
        store4(to, p.reduce_dtype, i, here, sent);
        store4(after, 0, i, here, stays);
    }
}

// Makes a column of the Q with which P is computed: the remembered column or, if that is zero, the column of the start
// matrix. It is multiplied by the power of two that brings its largest magnitude into [1, 2).
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

// Writes uncompressed values to the first sum, and makes the Q with which P is computed.
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

// Reads the sum of a matrix's gradient and residual. Stores it where the next residual will be.
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

// Reads the sum that `Compensated` has stored.
struct Kept {
    const float* values;

    template <u32 LINES, u32 EACH>
    __device__ void read(const u64 (&lines)[LINES], const u32 (&places)[EACH], u32, float (&out)[LINES * EACH]) const {
        values_at(values, 0, lines, places, out);
    }
};

// Writes the elements of a PowerSGD factor to the buffer that is summed over the ranks. Records a fault if an element
// is not finite.
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

// Reads a factor of type `dtype`, from a sum or from other memory.
struct Summed {
    const void* sums;
    u32 dtype;
    u64 first;

    __device__ float at(u64 place, bool = true) const {
        return value(sums, dtype, first + place);
    }
};

// P's columns as the input of an orthonormalisation. The first one reads them from the first sum. The second one reads
// the result of the first one.
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

// Writes this rank's status record behind the first sum or, with shards, behind each rank's part of it. Launched with
// one block.
extern "C" __global__ void tell_sums(Params p, const Program* program, const u64* slips, void* sums) {
    float code = own_code(p, *program);
    for (u32 i = 0; i < owners(*program); i++) {
        tell(p, *program, code, sums, slips[i]);
    }
}

// Computes the inner products of P's columns. The last block of a matrix computes the Cholesky factor.
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
        // Sums of squares of finite f32 are far below 1e300.
        if (p.second == 0 && !(fabs(sum) < 1e300)) {
            note(&program->fault, FACTOR_LEFT_F32, f.layer, 0);
        }
    }
}

// Makes P's columns orthonormal, BLOCK rows at a time.
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

// Q = Mᵀ P.
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

// Makes the next residual of each matrix from the matrix minus P Qᵀ, with this rank's own Q. The residual becomes
// current if no rank fails.
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
        Rest rest(program);
        float matrix[HIGH / WARPS];
#pragma unroll
        for (u32 k = 0; k < HIGH / WARPS; k++) {
            u64 i = u64(tile.row_of(k)) * f.cols + tile.own_col();
            matrix[k] = tile.is_inside(f, k) ? after[i] : 0.0f;
        }
#pragma unroll
        for (u32 k = 0; k < HIGH / WARPS; k++) {
            if (tile.is_inside(f, k)) {
                u64 i = u64(tile.row_of(k)) * f.cols + tile.own_col();
                after[i] = rest.of(before + i, matrix[k] - tile.sums[k], f.layer, i);
            }
        }
    }
}

// Writes this rank's status record behind the second sum. If the first sum shows another rank at fault, the record says
// so.
extern "C" __global__ void tell_factors(Params p, const Program* program, const void* sums, void* factors) {
    bool good = program->fault != 0 || sums_fare_well(p, *program, sums);
    tell(p, *program, good ? own_code(p, *program) : float(p.peer), factors, program->factors);
}

// The mean of all ranks' Q. It is stored as the remembered Q of the next step.
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

// Writes the means of summed layers. If a rank is at fault, overwrites all means instead.
extern "C" __global__ void means(Params p, const Dense* dense, const Factors* all, Program* program, const void* sums,
                                 const float* of_rows, const void* factors, float* remembered, void* means) {
    __shared__ Slabs slabs;
    if (judge(p, *program, sums, factors) != program->world) {
        fill(*program, p.dtype, means);
        return;
    }
    u64 size = p.dtype == 0 ? 4 : 2;
    World all_ranks(program->world, share_of(program->world));
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
            const void* of_layer = from_value(sums, p.reduce_dtype, layer.sum);
            u64 first = (span - layer.first_span) * SPAN;
            u32 count = layer.count;
            for (u64 i = first + threadIdx.x * 8; i < min(u64(count), first + SPAN); i += BLOCK * 8) {
                float eight[8] = {};
                u32 here = 0;
#pragma unroll
                for (u32 half = 0; half < 8; half += 4) {
                    float four[4] = {};
                    here += i + half < count ? load4(of_layer, p.reduce_dtype, i + half, count, four) : 0;
#pragma unroll
                    for (u32 k = 0; k < 4; k++) {
                        eight[half + k] = four[k];
                    }
                }
                give_eight(p.dtype, program, layer.layer, layer.start, all_ranks, own, i, here, first + SPAN <= count,
                           eight);
            }
        }
    }
}

// Finds the first rank at fault according to the sums. Ends the step if no messages follow. Launched with one block.
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
