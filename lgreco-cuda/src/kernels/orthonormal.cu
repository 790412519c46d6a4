// Orthonormal columns by CholeskyQR, twice over (Yamamoto, Nakatsukasa, Yanagisawa, Fukaya, "Roundoff error analysis of
// the CholeskyQR2 algorithm", 2015): G = FᵀF, G = RᵀR, F becomes F R⁻¹. Launches are six for any number of columns.
//
// Forming G squares the condition of F, but G, R and the substitution are f64, and F is f32. What the columns before
// leave of a column has a squared norm that f32's rounding of F moves by 2^-48, and f64's by 2^-53, of the squares of
// the column's coefficients: so what squaring loses, f32 has lost before. The first pass leaves columns that are nearly
// orthogonal, the second those that are so to f32's last bits. Gram-Schmidt does better where coefficients grow from
// column to column (by 2^24 in all) though no column is nearly dependent; products of a matrix with random columns are
// not such.
//
// A pivot of the factorisation is the squared norm that the columns before leave of a column. Where that is rounding
// (2^-40 of what it was, in the second pass a quarter), the column becomes 0 and has no part in anything after.
//
// Sums over columns take them in order, and how sums over rows are divided depends on the number of rows alone: so the
// first columns do not depend on how many there are.

// Columns on either side of a block's part of G.
#define EDGE 16
// The most columns whose G lies in shared memory.
#define MOST_SHARED 64
// Threads of a block that substitutes, and the columns it keeps sums of.
#define SOLVERS 64
#define PANEL 8

// A part of G's upper triangle holds the inner products of columns EDGE * above ... with columns EDGE * beside ...
__device__ inline u32 number_of_part(u32 above, u32 beside) {
    return beside * (beside + 1) / 2 + above;
}

// partial[stretch][part] = a part of G, summed over a stretch of rows. A thread has one inner product.
extern "C" __global__ void gram(Params p, const float* factor, double* partial) {
    __shared__ double left[DEPTH][EDGE + 1];
    __shared__ double right[DEPTH][EDGE + 1];
    u32 beside = 0;
    while (number_of_part(0, beside + 1) <= blockIdx.y) {
        beside++;
    }
    u32 first_left = (blockIdx.y - number_of_part(0, beside)) * EDGE;
    u32 first_right = beside * EDGE;
    u64 start = u64(blockIdx.x) * p.stretch;
    u64 end = min(start + p.stretch, u64(p.rows));
    double sum = 0.0;
    for (u64 i0 = start; i0 < end; i0 += DEPTH) {
        for (u32 at = threadIdx.x; at < DEPTH * EDGE; at += BLOCK) {
            u32 c = at / DEPTH;
            u32 i = at % DEPTH;
            bool known = i0 + i < end;
            bool is_left = known && first_left + c < p.columns;
            bool is_right = known && first_right + c < p.columns;
            left[i][c] = is_left ? double(factor[u64(first_left + c) * p.rows + i0 + i]) : 0.0;
            right[i][c] = is_right ? double(factor[u64(first_right + c) * p.rows + i0 + i]) : 0.0;
        }
        __syncthreads();
        double part = 0.0;
        for (u32 i = 0; i < DEPTH; i++) {
            // The product of two f32 is exact.
            part = fma(left[i][threadIdx.x / EDGE], right[i][threadIdx.x % EDGE], part);
        }
        sum += part;
        __syncthreads();
    }
    partial[(u64(blockIdx.x) * gridDim.y + blockIdx.y) * BLOCK + threadIdx.x] = sum;
}

// triangle = R, with the reciprocals of its diagonal, 0 for columns that become 0. One block.
extern "C" __global__ void cholesky(Params p, const double* partial, double* triangle) {
    DYN_SHARED(double, room);
    double* norms = room;
    double* g = p.columns <= MOST_SHARED ? room + p.columns : triangle;
    u32 side = (p.columns + EDGE - 1) / EDGE;
    u64 parts = number_of_part(0, side);
    for (u32 at = threadIdx.x; at < p.columns * p.columns; at += BLOCK) {
        u32 k = at / p.columns;
        u32 c = at % p.columns;
        if (k <= c) {
            u64 own = u64(number_of_part(k / EDGE, c / EDGE)) * BLOCK + k % EDGE * EDGE + c % EDGE;
            double sum = 0.0;
            for (u32 stretch = 0; stretch < p.stretches; stretch++) {
                sum += partial[stretch * parts * BLOCK + own];
            }
            g[at] = sum;
            if (k == c) {
                norms[c] = sum;
            }
        }
    }
    __syncthreads();
    double least = p.second ? 0.25 : 1.0 / (1ull << 40);
    for (u32 k = 0; k < p.columns; k++) {
        // Row k of G is done: that of R, times the root of its pivot.
        const double* row = g + k * p.columns;
        double inverse = row[k] > norms[k] * least ? 1.0 / row[k] : 0.0;
        for (u32 i = k + 1 + threadIdx.x / EDGE; i < p.columns; i += BLOCK / EDGE) {
            double by = row[i] * inverse;
            for (u32 c = i + threadIdx.x % EDGE; c < p.columns; c += EDGE) {
                g[i * p.columns + c] = fma(-by, row[c], g[i * p.columns + c]);
            }
        }
        __syncthreads();
    }
    for (u32 k = threadIdx.x; k < p.columns; k += BLOCK) {
        double left = g[k * p.columns + k];
        norms[k] = left > norms[k] * least ? 1.0 / sqrt(left) : 0.0;
    }
    __syncthreads();
    for (u32 at = threadIdx.x; at < p.columns * p.columns; at += BLOCK) {
        u32 k = at / p.columns;
        u32 c = at % p.columns;
        if (k <= c) {
            triangle[at] = k == c ? norms[k] : g[at] * norms[k];
        }
    }
}

// factor = factor * R⁻¹: a thread per row substitutes forwards, from columns as they are stored.
extern "C" __global__ void solve(Params p, float* factor, const double* triangle) {
    u64 i = u64(blockIdx.x) * SOLVERS + threadIdx.x;
    if (i >= p.rows) {
        return;
    }
    for (u32 first = 0; first < p.columns; first += PANEL) {
        double sums[PANEL] = {};
        for (u32 k = 0; k < first; k++) {
            double x = double(factor[u64(k) * p.rows + i]);
            const double* row = triangle + k * p.columns;
#pragma unroll
            for (u32 c = 0; c < PANEL; c++) {
                if (first + c < p.columns) {
                    sums[c] = fma(x, row[first + c], sums[c]);
                }
            }
        }
#pragma unroll
        for (u32 k = 0; k < PANEL; k++) {
            if (first + k < p.columns) {
                float* own = factor + u64(first + k) * p.rows + i;
                const double* row = triangle + (first + k) * p.columns;
                float x = float((double(*own) - sums[k]) * row[first + k]);
                *own = x;
#pragma unroll
                for (u32 c = k + 1; c < PANEL; c++) {
                    if (first + c < p.columns) {
                        sums[c] = fma(double(x), row[first + c], sums[c]);
                    }
                }
            }
        }
    }
}
