// Orthonormal columns by CholeskyQR, twice over (Yamamoto, Nakatsukasa, Yanagisawa, Fukaya, "Roundoff error analysis of
// the CholeskyQR2 algorithm", 2015): G = FᵀF, G = RᵀR, F becomes F R⁻¹. The number of launches does not depend on the
// number of columns.
//
// Forming G squares the condition number of F. But G, R and the substitution are in f64, and F is in f32. The remainder
// of a column is the part that is orthogonal to the columns before it. Rounding F to f32 changes the remainder's
// squared norm by 2^-48 of the squares of the column's coefficients. Rounding to f64 changes it by 2^-53. So squaring
// loses no more than rounding F to f32 has lost before. After the first pass, columns are nearly orthogonal. After the
// second pass, they are orthogonal to the last bits of f32. Gram-Schmidt is more precise if coefficients grow from
// column to column (by 2^24 in all) although no column is nearly dependent. This does not happen with products of a
// matrix and random columns.
//
// A pivot of the factorisation is the squared norm of a column's remainder. If it is only rounding error, the column
// becomes 0 and is not used further. The limit is 2^-40 of the column's squared norm in the first pass, and a quarter
// of it in the second.
//
// Sums over columns are added in the order of the columns. The division of sums over rows depends only on the number of
// rows. So the first columns do not depend on the number of columns.

// A block computes a part of G with EDGE rows and EDGE columns.
#define EDGE 16
// Number of rows of F that a block loads at a time.
#define DEPTH 32
// Largest number of columns for which G is in shared memory.
#define MOST_SHARED 64
// Number of columns for which a thread keeps sums during substitution.
#define PANEL 8

// Shared memory of a block that computes inner products.
struct Inner {
    double left[DEPTH][EDGE + 1];
    double right[DEPTH][EDGE + 1];
};

// The number of a part of G's upper triangle. It has the inner products of the EDGE columns from EDGE * above on with
// the EDGE columns from EDGE * beside on.
__device__ inline u32 number_of_part(u32 above, u32 beside) {
    return beside * (beside + 1) / 2 + above;
}

// Computes a part of G, one inner product per thread, over rows `start` to `end`. `factor.at(place)` reads the factor.
template <class From>
__device__ inline double inner_product(const From& factor, u32 rows, u32 columns, u32 part, u64 start, u64 end,
                                       Inner& room) {
    u32 beside = 0;
    while (number_of_part(0, beside + 1) <= part) {
        beside++;
    }
    u32 first_left = (part - number_of_part(0, beside)) * EDGE;
    u32 first_right = beside * EDGE;
    // If there are few columns, whole warps have no inner product.
    bool has = first_left + threadIdx.x / EDGE < columns;
    double sum = 0.0;
    for (u64 i0 = start; i0 < end; i0 += DEPTH) {
        for (u32 at = threadIdx.x; at < DEPTH * EDGE; at += BLOCK) {
            u32 c = at / DEPTH;
            u32 i = at % DEPTH;
            bool known = i0 + i < end;
            bool is_left = known && first_left + c < columns;
            bool is_right = known && first_right + c < columns;
            room.left[i][c] = is_left ? double(factor.at(u64(first_left + c) * rows + i0 + i)) : 0.0;
            room.right[i][c] = is_right ? double(factor.at(u64(first_right + c) * rows + i0 + i)) : 0.0;
        }
        __syncthreads();
        double part = 0.0;
        for (u32 i = 0; has && i < DEPTH; i++) {
            // The product of two f32 is exact.
            part = fma(room.left[i][threadIdx.x / EDGE], room.right[i][threadIdx.x % EDGE], part);
        }
        sum += part;
        __syncthreads();
    }
    return sum;
}

// Writes R to `triangle`. The diagonal has reciprocals, and 0 for columns that become 0. `norms` is shared memory of
// one f64 per column. `g` is `triangle`, or shared memory of the same size. Called by one block.
__device__ inline void factorise(u32 columns, u32 stretches, bool second, const double* partial, double* triangle,
                                 double* norms, double* g) {
    u32 side = (columns + EDGE - 1) / EDGE;
    u64 parts = number_of_part(0, side);
    for (u32 at = threadIdx.x; at < columns * columns; at += BLOCK) {
        u32 k = at / columns;
        u32 c = at % columns;
        if (k <= c) {
            u64 own = u64(number_of_part(k / EDGE, c / EDGE)) * BLOCK + k % EDGE * EDGE + c % EDGE;
            double sum = 0.0;
#pragma unroll 8
            for (u32 stretch = 0; stretch < stretches; stretch++) {
                sum += partial[stretch * parts * BLOCK + own];
            }
            g[at] = sum;
            if (k == c) {
                norms[c] = sum;
            }
        }
    }
    __syncthreads();
    double least = second ? 0.25 : 1.0 / (1ull << 40);
    for (u32 k = 0; k < columns; k++) {
        // Row k of G is final: it is row k of R times the root of its pivot.
        const double* row = g + k * columns;
        double inverse = row[k] > norms[k] * least ? 1.0 / row[k] : 0.0;
        for (u32 i = k + 1 + threadIdx.x / EDGE; i < columns; i += BLOCK / EDGE) {
            double by = row[i] * inverse;
            for (u32 c = i + threadIdx.x % EDGE; c < columns; c += EDGE) {
                g[i * columns + c] = fma(-by, row[c], g[i * columns + c]);
            }
        }
        __syncthreads();
    }
    for (u32 k = threadIdx.x; k < columns; k += BLOCK) {
        double left = g[k * columns + k];
        norms[k] = left > norms[k] * least ? 1.0 / sqrt(left) : 0.0;
    }
    __syncthreads();
    for (u32 at = threadIdx.x; at < columns * columns; at += BLOCK) {
        u32 k = at / columns;
        u32 c = at % columns;
        if (k <= c) {
            triangle[at] = k == c ? norms[k] : g[at] * norms[k];
        }
    }
}

// Row i of factor = from * R⁻¹, by forward substitution. It uses the earlier columns as rounded to f32. `from` and
// `factor` may be the same memory.
template <class From>
__device__ inline void substitute(const From& from, float* factor, u32 rows, u32 columns, const double* triangle,
                                  u64 i) {
    for (u32 first = 0; first < columns; first += PANEL) {
        double sums[PANEL] = {};
        for (u32 k = 0; k < first; k++) {
            double x = double(factor[u64(k) * rows + i]);
            const double* row = triangle + k * columns;
#pragma unroll
            for (u32 c = 0; c < PANEL; c++) {
                if (first + c < columns) {
                    sums[c] = fma(x, row[first + c], sums[c]);
                }
            }
        }
#pragma unroll
        for (u32 k = 0; k < PANEL; k++) {
            if (first + k < columns) {
                u64 own = u64(first + k) * rows + i;
                const double* row = triangle + (first + k) * columns;
                float x = float((double(from.at(own)) - sums[k]) * row[first + k]);
                factor[own] = x;
#pragma unroll
                for (u32 c = k + 1; c < PANEL; c++) {
                    if (first + c < columns) {
                        sums[c] = fma(double(x), row[first + c], sums[c]);
                    }
                }
            }
        }
    }
}

// Shared memory of a block that works on Gram matrices.
struct GramRoom {
    Inner inner;
    double g[MOST_SHARED * MOST_SHARED];
    u32 last;
};

// Computes a piece of a factor's Gram matrix: a part of it, over a stretch of rows. The last block computes the
// matrix's Cholesky factor. Returns the thread's sum.
template <class From>
__device__ inline double add_to_gram(const Factors& f, u32 piece, bool second, const From& factor, double* partial,
                                     double* triangle, u32* counter, GramRoom& room) {
    u32 parts = number_of_part(0, (f.columns + EDGE - 1) / EDGE);
    u64 start = u64(piece / parts) * f.stretch;
    u64 end = min(start + f.stretch, u64(f.rows));
    double sum = inner_product(factor, f.rows, f.columns, piece % parts, start, end, room.inner);
    partial[u64(piece) * BLOCK + threadIdx.x] = sum;
    if (comes_last(counter, parts * f.stretches, room.last)) {
        // The memory of `inner` is large enough for one f64 per column.
        double* norms = &room.inner.left[0][0];
        if (f.columns <= MOST_SHARED) {
            factorise(f.columns, f.stretches, second, partial, triangle, norms, room.g);
        } else {
            factorise(f.columns, f.stretches, second, partial, triangle, norms, triangle);
        }
    }
    __syncthreads();
    return sum;
}
