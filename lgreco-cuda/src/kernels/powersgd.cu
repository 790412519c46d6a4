// PowerSGD: rows and payloads of matrices in device memory.
//
// To avoid overflow, computations use M' = M / 2^e instead of a matrix M, where 2^e brings its largest magnitude into
// [1, 2). This magnitude is known only after the first product has read the matrix. So the first product P uses M
// itself: making P orthonormal removes the scale. If magnitudes are extreme, P is made again from M'. In a launch for
// many matrices, results have the same bits as for each matrix alone.

struct Params {
    u32 rows;  // rows of the matrix, in launches for a single matrix
    u32 cols;
    u32 rank;           // columns of its factors
    u32 near_overflow;  // if a magnitude reaches this, the factors' product may leave the range of f32
    u32 matrices;
    u32 columns;  // number of columns of all factors
    u32 products;  // number of pieces of `project`
    u32 backs;  // number of pieces of `back_project`
    u32 grams;  // number of pieces of `gram`
    u32 solves;  // number of pieces of `solve`
    u32 tiles;  // number of tiles of the matrix, for `check_product`
    u32 runs;  // number of runs of tiles of all matrices
    u32 second;      // whether columns are orthonormalised for the second time
    u32 fresh;       // whether `scale_columns` begins with the start matrix instead of Q
    u32 known;       // whether largest magnitudes are known; otherwise `project` finds them
    u32 again;       // whether only matrices of extreme magnitudes are multiplied
    u32 first_rank;  // index of the first of the RANKS ranks that are measured together
    u32 words;       // distance from one matrix's results to the next matrix's, in words of 8 bytes
    u32 seed_low;
    u32 seed_high;
};

// A matrix whose errors are measured for several ranks.
struct Row {
    u32 dtype;
    u32 first_run;  // the number of its first run of tiles
    u32 sought;     // index of its first rank in the array `sought`; ranks ascend
    u32 ranks;  // number of its ranks
};

// RUN is the number of tiles whose squared errors are added to one sum. RANKS is the number of ranks measured together.
#define RUN 8
#define RANKS 8

__device__ inline double wide_power_of_two(int exponent) {
    return __longlong_as_double(u64(1023 + exponent) << 52);
}

// The bits of a matrix's largest magnitude.
__device__ inline u32 largest_of(const Params& p, const Factors& f, const u32* results) {
    return results[2 * u64(p.words) * f.layer];
}

// The exponent by which a matrix is scaled before P is made. For moderate magnitudes it is 0: they are not scaled.
__device__ inline int extreme_of(u32 largest) {
    int e = exponent_of(largest);
    return e < -64 || e > 64 ? e : 0;
}

// Reads the values of a matrix times 2^-e. The scaling takes two steps, because 2^-e may be outside the range of f32.
// `found` is the largest magnitude that was read.
struct Matrix {
    const void* values;
    u32 dtype;
    float first;
    float second;
    u32 found;

    __device__ Matrix(const Factors& f, const Row& row, int e)
        : values(reinterpret_cast<const void*>(f.values)), dtype(row.dtype), first(power_of_two(-(e / 2))),
          second(power_of_two(e / 2 - e)), found(0) {
        // The compiler does not know that this address, loaded from memory, is in global memory.
        __builtin_assume(__isGlobal(values));
    }

    // Multiplies values only by `first`. The caller multiplies the sums by `second`.
    template <u32 LINES, u32 EACH>
    __device__ void read(const u64 (&lines)[LINES], const u32 (&places)[EACH], u32, float (&out)[LINES * EACH]) {
        values_at(values, dtype, lines, places, out);
#pragma unroll
        for (u32 k = 0; k < LINES * EACH; k++) {
            found = max(found, __float_as_uint(out[k]) & MAGNITUDE);
            out[k] *= first;
        }
    }

    __device__ float scaled(u64 i) const {
        return value(values, dtype, i) * first * second;
    }
};

// Writes the elements of a factor, multiplied by `by`.
struct Factor {
    float* all;
    const u64& first;
    float by;

    __device__ void put(u64 at, float value) const {
        all[first + at] = value * by;
    }
};

// Multiplies each column of Q or of the start matrix by a power of two that brings its largest magnitude into [1, 2).
extern "C" __global__ void scale_columns(Params p, const Factors* all, float* factors) {
    __shared__ u32 largest;
    for (u64 piece = blockIdx.x; piece < p.columns; piece += gridDim.x) {
        const Factors& f = all[owner<&Factors::first_column>(all, p.matrices, piece)];
        u64 first = u64(u32(piece) - f.first_column) * f.cols;
        float* column = factors + f.q + first;
        u32 found = 0;
        for (u32 i = threadIdx.x; i < f.cols; i += BLOCK) {
            if (p.fresh) {
                column[i] = start_element(first + i, f.id, p.seed_low, p.seed_high);
            }
            found = max(found, __float_as_uint(column[i]) & MAGNITUDE);
        }
        found = block_max(found, largest);
        for (u32 i = threadIdx.x; i < f.cols; i += BLOCK) {
            column[i] = scaled_down(column[i], found);
        }
        __syncthreads();
    }
}

// P = M Q, or M' Q if magnitudes are extreme. Unless the largest magnitudes are known, also finds them. Sets the first
// word of each matrix's results to the maximum of itself and the bits of the matrix's largest magnitude.
extern "C" __launch_bounds__(BLOCK, 3) __global__ void project(Params p, const Factors* all, const Row* rows,
                                                               u32* results, const float* of_cols, float* partial,
                                                               u32* counters, float* of_rows) {
    __shared__ Room room;
    __shared__ u32 largest;
    for (u64 piece = blockIdx.x; piece < p.products; piece += gridDim.x) {
        u32 number = owner<&Factors::first_product>(all, p.matrices, piece);
        const Factors& f = all[number];
        int e = p.known ? extreme_of(largest_of(p, f, results)) : 0;
        if (p.again && e == 0) {
            continue;
        }
        Matrix matrix(f, rows[number], e);
        multiply<false>(f, u32(piece) - f.first_product, matrix, of_cols + f.q, partial, counters,
                        Factor{of_rows, f.p, matrix.second}, room);
        if (!p.known) {
            u32 found = block_max(matrix.found, largest);
            if (threadIdx.x == 0) {
                atomicMax(results + 2 * u64(p.words) * f.layer, found);
            }
        }
    }
}

// Q = M'ᵀ P.
extern "C" __launch_bounds__(BLOCK, 3) __global__ void back_project(Params p, const Factors* all, const Row* rows,
                                                                    const u32* results, const float* of_rows,
                                                                    float* partial, u32* counters, float* of_cols) {
    __shared__ Room room;
    for (u64 piece = blockIdx.x; piece < p.backs; piece += gridDim.x) {
        u32 number = owner<&Factors::first_back>(all, p.matrices, piece);
        const Factors& f = all[number];
        Matrix matrix(f, rows[number], exponent_of(largest_of(p, f, results)));
        multiply<true>(f, u32(piece) - f.first_back, matrix, of_rows + f.p, partial, counters,
                       Factor{of_cols, f.q, matrix.second}, room);
    }
}

// Computes the inner products of P's columns. The last block of a matrix computes the Cholesky factor.
extern "C" __global__ void gram(Params p, const Factors* all, const float* of_rows, double* partials,
                                double* triangles, u32* counters) {
    __shared__ GramRoom room;
    for (u64 piece = blockIdx.x; piece < p.grams; piece += gridDim.x) {
        const Factors& f = all[owner<&Factors::first_gram>(all, p.matrices, piece)];
        add_to_gram(f, u32(piece) - f.first_gram, p.second != 0, Plain{of_rows + f.p}, partials + f.gram,
                    triangles + f.triangle, counters + f.counter, room);
    }
}

// Makes P's columns orthonormal, BLOCK rows at a time.
extern "C" __global__ void solve(Params p, const Factors* all, float* of_rows, const double* triangles) {
    for (u64 piece = blockIdx.x; piece < p.solves; piece += gridDim.x) {
        const Factors& f = all[owner<&Factors::first_solve>(all, p.matrices, piece)];
        u64 i = (piece - f.first_solve) * BLOCK + threadIdx.x;
        if (i < f.rows) {
            substitute(Plain{of_rows + f.p}, of_rows + f.p, f.rows, f.columns, triangles + f.triangle, i);
        }
        __syncwarp();
    }
}

// For up to RANKS ranks r, computes the squared distance between M and the product of the factors' first r columns.
// Each sum covers one run of tiles.
extern "C" __global__ void residuals(Params p, const Factors* all, const Row* rows, const u32* results,
                                     const float* of_rows, const float* of_cols, const u32* sought,
                                     double* partials) {
    __shared__ Slabs slabs;
    for (u64 piece = blockIdx.x; piece < p.runs; piece += gridDim.x) {
        u32 number = owner<&Row::first_run>(rows, p.matrices, piece);
        const Factors& f = all[number];
        const Row& row = rows[number];
        Matrix matrix(f, row, exponent_of(largest_of(p, f, results)));
        u32 tiles = (f.rows + HIGH - 1) / HIGH * ((f.cols + SIDE - 1) / SIDE);
        u32 first = (u32(piece) - row.first_run) * RUN;
        double squares[RANKS] = {};
        for (u32 at = first; at < min(first + RUN, tiles); at++) {
            Tile tile(f, at);
            float found[HIGH / WARPS];
#pragma unroll
            for (u32 k = 0; k < HIGH / WARPS; k++) {
                u64 i = u64(tile.row_of(k)) * f.cols + tile.own_col();
                found[k] = tile.is_inside(f, k) ? matrix.scaled(i) : 0.0f;
            }
            u32 done = 0;
#pragma unroll 1
            for (u32 r = 0; r < RANKS && p.first_rank + r < row.ranks; r++) {
                u32 rank = sought[row.sought + p.first_rank + r];
                tile.add(f, of_rows + f.p, Plain{of_cols + f.q}, done, rank, slabs);
                done = rank;
                double sum = 0.0;
#pragma unroll
                for (u32 k = 0; k < HIGH / WARPS; k++) {
                    double apart = double(found[k]) - double(tile.sums[k]);
                    sum += apart * apart;
                }
#pragma unroll
                for (u32 place = 0; place < RANKS; place++) {
                    if (place == r) {
                        squares[place] += sum;
                    }
                }
            }
        }
        double unit = wide_power_of_two(exponent_of(largest_of(p, f, results)));
#pragma unroll
        for (u32 r = 0; r < RANKS; r++) {
            double sum = block_sum(squares[r]);
            if (threadIdx.x == 0) {
                partials[piece * RANKS + r] = sum * unit * unit;
            }
        }
    }
}

// Adds up the sums of each matrix's runs, a block per matrix.
extern "C" __global__ void add_runs(Params p, const Row* rows, const double* partials, double* results) {
    for (u32 number = blockIdx.x; number < p.matrices; number += gridDim.x) {
        u32 end = number + 1 < p.matrices ? rows[number + 1].first_run : p.runs;
        double* to = results + u64(number) * p.words + 1 + p.first_rank;
        for (u32 r = 0; r < RANKS; r++) {
            double sum = 0.0;
            for (u32 run = rows[number].first_run + threadIdx.x; run < end; run += BLOCK) {
                sum += partials[u64(run) * RANKS + r];
            }
            sum = block_sum(sum);
            if (threadIdx.x == 0) {
                to[r] = sum;
            }
        }
    }
}

// output = factor * 2^e, for the payload. Sets bit 0 of `faults` if an element is not finite.
extern "C" __global__ void unscale(Params p, const u32* largest, const float* factor, float* output, u32* faults) {
    double power = wide_power_of_two(exponent_of(*largest));
    u64 count = u64(p.cols) * p.rank;
    u64 stride = u64(gridDim.x) * BLOCK;
    for (u64 at = u64(blockIdx.x) * BLOCK + threadIdx.x; at < count; at += stride) {
        output[at] = float(double(factor[at]) * power);
        if (!is_finite(output[at])) {
            atomicOr(faults, 1u);
        }
    }
}

// Returns the fields of `Factors` that a tile needs, in launches for a single matrix.
__device__ inline Factors of_one(const Params& p) {
    Factors f = {};
    f.rows = p.rows;
    f.cols = p.cols;
    f.columns = p.rank;
    return f;
}

// Computes the product of the factors. Sets status[0] to 1 if an element is not finite.
extern "C" __global__ void reconstruct(Params p, const float* of_rows, const float* of_cols, float* output,
                                       u32* status) {
    __shared__ Slabs slabs;
    Factors f = of_one(p);
    Tile tile(f, blockIdx.x);
    tile.add(f, of_rows, Plain{of_cols}, 0, f.columns, slabs);
#pragma unroll
    for (u32 k = 0; k < HIGH / WARPS; k++) {
        if (tile.is_inside(f, k)) {
            output[u64(tile.row_of(k)) * f.cols + tile.own_col()] = tile.sums[k];
            if (!is_finite(tile.sums[k])) {
                atomicMax(status, 1u);
            }
        }
    }
}

// Sets bit 1 of `faults` if the product of the factors leaves the range of f32. Does nothing unless the largest
// magnitude reaches `near_overflow`.
extern "C" __global__ void check_product(Params p, const u32* largest, const float* of_rows, const float* of_cols,
                                         u32* faults) {
    __shared__ Slabs slabs;
    if (*largest < p.near_overflow) {
        return;
    }
    Factors f = of_one(p);
    for (u64 number = blockIdx.x; number < p.tiles; number += gridDim.x) {
        Tile tile(f, u32(number));
        tile.add(f, of_rows, Plain{of_cols}, 0, f.columns, slabs);
#pragma unroll
        for (u32 k = 0; k < HIGH / WARPS; k++) {
            if (!is_finite(tile.sums[k])) {
                atomicOr(faults, 2u);
            }
        }
    }
}
