// PowerSGD: products with a matrix and its transpose, orthonormal columns, and what a product of factors leaves.
//
// The matrix is read as M' = M / 2^e, where 2^e brings its largest magnitude into [1, 2), so that nothing overflows.
// Factors hold their columns one after the other. Every sum is made in an order that the shape alone decides.

struct Params {
    u32 dtype;
    u32 rows;
    u32 cols;
    u32 columns;     // of the factors
    u32 transposed;  // whether the product is with M' transposed
    u32 chunk;       // terms of a product that one block adds up, a multiple of DEPTH
    u32 chunks;
    u32 len;      // of the columns scaled
    u32 second;   // whether columns are orthonormalised for the second time
    u32 stretch;  // rows of an inner product that one thread adds up
    u32 stretches;
    u32 ranks;          // of `sought`
    u32 near_overflow;  // the magnitude from which on products of factors may leave the range of f32
    u32 layer;
    u32 seed_low;
    u32 seed_high;
};

// A block's part of a product: OUTER of its rows, WIDE of its columns, DEPTH terms at a time.
#define OUTER 64
#define WIDE 32
// A block's part of the matrix that factors make, and the columns of both fetched at a time.
#define SIDE 32
#define SLAB 16
#define RANKS 8

__device__ inline int exponent_of(u32 largest) {
    return int(largest >> 23) - 127;
}

__device__ inline float power_of_two(int exponent) {
    return __uint_as_float(u32(127 + exponent) << 23);
}

__device__ inline double wide_power_of_two(int exponent) {
    return __longlong_as_double(u64(1023 + exponent) << 52);
}

// The matrix, scaled. 2^-e takes two steps, since it may be beyond the range of f32.
struct Matrix {
    const void* values;
    u32 dtype;
    u32 cols;
    float first;
    float second;

    __device__ Matrix(const Params& p, const void* all, const u32* largest)
        : values(all), dtype(p.dtype), cols(p.cols) {
        int e = exponent_of(*largest);
        first = power_of_two(-(e / 2));
        second = power_of_two(e / 2 - e);
    }

    __device__ float at(u32 row, u32 col) const {
        return element(u64(row) * cols + col);
    }

    __device__ float element(u64 i) const {
        return value(values, dtype, i) * first * second;
    }
};

__device__ inline bool finite(float value) {
    return (__float_as_uint(value) & MAGNITUDE) < INFINITE;
}

// The start matrix: an odd multiple of 2^-24 per element.
extern "C" __global__ void start(Params p, float* factor) {
    u64 count = u64(p.cols) * p.columns;
    u64 stride = u64(gridDim.x) * BLOCK;
    for (u64 block = u64(blockIdx.x) * BLOCK + threadIdx.x; block * 4 < count; block += stride) {
        Words words = philox(u32(block), 0, p.layer, 0xffffffffu, p.seed_low, p.seed_high);
        for (u32 k = 0; k < 4 && block * 4 + k < count; k++) {
            int odd = int(2 * (words.word[k] >> 8) + 1) - (1 << 24);
            factor[block * 4 + k] = float(odd) / float(1 << 24);
        }
    }
}

// Multiplies every column by the power of two that brings its largest magnitude into [1, 2). A block per column.
extern "C" __global__ void scale_columns(Params p, float* factor) {
    __shared__ u32 largest;
    float* column = factor + u64(blockIdx.x) * p.len;
    if (threadIdx.x == 0) {
        largest = 0;
    }
    __syncthreads();
    u32 found = 0;
    for (u32 i = threadIdx.x; i < p.len; i += BLOCK) {
        found = max(found, __float_as_uint(column[i]) & MAGNITUDE);
    }
    found = warp_max(found);
    if (threadIdx.x % 32 == 0) {
        atomicMax(&largest, found);
    }
    __syncthreads();
    int e = exponent_of(largest);
    for (u32 i = threadIdx.x; i < p.len; i += BLOCK) {
        column[i] = column[i] * power_of_two(-(e / 2)) * power_of_two(e / 2 - e);
    }
}

// The matrix in f32, for products by cuBLAS.
extern "C" __global__ void scale_matrix(Params p, const void* values, const u32* largest, float* scaled) {
    Matrix matrix(p, values, largest);
    u64 count = u64(p.rows) * p.cols;
    u64 stride = u64(gridDim.x) * BLOCK;
    for (u64 i = u64(blockIdx.x) * BLOCK + threadIdx.x; i < count; i += stride) {
        scaled[i] = matrix.element(i);
    }
}

// partial[chunk][column][o] = sum over the chunk's j of M'[o, j] * factor[column][j], or of M'[j, o] when transposed.
extern "C" __global__ void multiply(Params p, const void* values, const u32* largest, const float* factor,
                                    float* partial) {
    __shared__ float tile[DEPTH][OUTER + 1];
    __shared__ float slab[DEPTH][WIDE + 1];
    Matrix matrix(p, values, largest);
    u32 outer = p.transposed ? p.cols : p.rows;
    u32 inner = p.transposed ? p.rows : p.cols;
    u32 chunk = blockIdx.x % p.chunks;
    u32 first_o = blockIdx.x / p.chunks * OUTER;
    u32 first_column = blockIdx.y * WIDE;
    u64 start = u64(chunk) * p.chunk;
    u64 end = min(start + p.chunk, u64(inner));
    u32 x = threadIdx.x % 16;
    u32 y = threadIdx.x / 16;
    float sums[4][2] = {};
    for (u64 j0 = start; j0 < end; j0 += DEPTH) {
#pragma unroll
        for (u32 at = threadIdx.x; at < DEPTH * OUTER; at += BLOCK) {
            // Neighbouring threads read neighbouring values.
            u32 o = p.transposed ? at % OUTER : at / DEPTH;
            u32 j = p.transposed ? at / OUTER : at % DEPTH;
            bool inside = first_o + o < outer && j0 + j < end;
            u32 row = p.transposed ? u32(j0) + j : first_o + o;
            u32 col = p.transposed ? first_o + o : u32(j0) + j;
            tile[j][o] = inside ? matrix.at(row, col) : 0.0f;
        }
#pragma unroll
        for (u32 at = threadIdx.x; at < DEPTH * WIDE; at += BLOCK) {
            u32 column = at / DEPTH;
            u32 j = at % DEPTH;
            bool inside = first_column + column < p.columns && j0 + j < end;
            slab[j][column] = inside ? factor[u64(first_column + column) * inner + j0 + j] : 0.0f;
        }
        __syncthreads();
        float parts[4][2] = {};
        for (u32 j = 0; j < DEPTH; j++) {
#pragma unroll
            for (u32 a = 0; a < 4; a++) {
#pragma unroll
                for (u32 b = 0; b < 2; b++) {
                    parts[a][b] = fmaf(tile[j][x + 16 * a], slab[j][y + 16 * b], parts[a][b]);
                }
            }
        }
#pragma unroll
        for (u32 a = 0; a < 4; a++) {
            sums[a][0] += parts[a][0];
            sums[a][1] += parts[a][1];
        }
        __syncthreads();
    }
#pragma unroll
    for (u32 a = 0; a < 4; a++) {
#pragma unroll
        for (u32 b = 0; b < 2; b++) {
            u32 o = first_o + x + 16 * a;
            u32 column = first_column + y + 16 * b;
            if (o < outer && column < p.columns) {
                partial[(u64(chunk) * p.columns + column) * outer + o] = sums[a][b];
            }
        }
    }
}

// Adds the chunks up.
extern "C" __global__ void add_chunks(Params p, const float* partial, float* product) {
    u64 count = u64(p.transposed ? p.cols : p.rows) * p.columns;
    u64 stride = u64(gridDim.x) * BLOCK;
    for (u64 at = u64(blockIdx.x) * BLOCK + threadIdx.x; at < count; at += stride) {
        double sum = 0.0;
        for (u32 chunk = 0; chunk < p.chunks; chunk++) {
            sum += double(partial[chunk * count + at]);
        }
        product[at] = float(sum);
    }
}

// output = factor * 2^e, for what is sent. Bit 0 of `faults` becomes 1 when not all of it is finite.
extern "C" __global__ void unscale(Params p, const u32* largest, const float* factor, float* output, u32* faults) {
    double power = wide_power_of_two(exponent_of(*largest));
    u64 count = u64(p.cols) * p.columns;
    u64 stride = u64(gridDim.x) * BLOCK;
    for (u64 at = u64(blockIdx.x) * BLOCK + threadIdx.x; at < count; at += stride) {
        output[at] = float(double(factor[at]) * power);
        if (!finite(output[at])) {
            atomicOr(faults, 1u);
        }
    }
}

// A tile of the matrix that factors make: a thread has four of its rows in one of its columns. Each element is summed in
// f32 over the columns of the factors in order, as the core does.
struct Tile {
    u32 row;
    u32 col;
    float sums[4];
    float (&left)[SLAB][SIDE];
    float (&right)[SLAB][SIDE];

    __device__ Tile(const Params& p, u64 number, float (&l)[SLAB][SIDE], float (&r)[SLAB][SIDE])
        : sums{}, left(l), right(r) {
        u32 across = (p.cols + SIDE - 1) / SIDE;
        row = u32(number / across) * SIDE;
        col = u32(number % across) * SIDE;
    }

    __device__ u32 row_of(u32 k) const {
        return row + threadIdx.x / 32 + 8 * k;
    }

    __device__ u32 own_col() const {
        return col + threadIdx.x % 32;
    }

    // Fetches SLAB columns of both factors.
    __device__ void load(const Params& p, const float* of_rows, const float* of_cols, u32 first) {
        __syncthreads();
        for (u32 at = threadIdx.x; at < SLAB * SIDE; at += BLOCK) {
            u32 c = first + at / SIDE;
            u32 i = at % SIDE;
            bool known = c < p.columns;
            left[at / SIDE][i] = known && row + i < p.rows ? of_rows[u64(c) * p.rows + row + i] : 0.0f;
            right[at / SIDE][i] = known && col + i < p.cols ? of_cols[u64(c) * p.cols + col + i] : 0.0f;
        }
        __syncthreads();
    }

    // Adds columns `from` to `to` of the factors. All threads must come.
    __device__ void add(const Params& p, const float* of_rows, const float* of_cols, u32 from, u32 to) {
        for (u32 c = from; c < to; c++) {
            if (c % SLAB == 0) {
                load(p, of_rows, of_cols, c);
            }
            float x = right[c % SLAB][threadIdx.x % 32];
#pragma unroll
            for (u32 k = 0; k < 4; k++) {
                sums[k] += left[c % SLAB][threadIdx.x / 32 + 8 * k] * x;
            }
        }
    }
};

// The squared distance of M from the product of the first columns of the factors, for each of the sought ranks, which
// ascend; summed over the tiles of a block.
extern "C" __global__ void residuals(Params p, const void* values, const u32* largest, const float* of_rows,
                                     const float* of_cols, const u32* sought, double* partials) {
    __shared__ float left[SLAB][SIDE];
    __shared__ float right[SLAB][SIDE];
    Matrix matrix(p, values, largest);
    u64 tiles = u64((p.rows + SIDE - 1) / SIDE) * ((p.cols + SIDE - 1) / SIDE);
    double squares[RANKS] = {};
    for (u64 number = blockIdx.x; number < tiles; number += gridDim.x) {
        Tile tile(p, number, left, right);
        float found[4];
#pragma unroll
        for (u32 k = 0; k < 4; k++) {
            bool inside = tile.row_of(k) < p.rows && tile.own_col() < p.cols;
            found[k] = inside ? matrix.at(tile.row_of(k), tile.own_col()) : 0.0f;
        }
        u32 done = 0;
#pragma unroll
        for (u32 r = 0; r < RANKS; r++) {
            if (r < p.ranks) {
                tile.add(p, of_rows, of_cols, done, sought[r]);
                done = sought[r];
#pragma unroll
                for (u32 k = 0; k < 4; k++) {
                    double apart = double(found[k]) - double(tile.sums[k]);
                    squares[r] += apart * apart;
                }
            }
        }
    }
    double unit = wide_power_of_two(exponent_of(*largest));
#pragma unroll
    for (u32 r = 0; r < RANKS; r++) {
        double sum = block_sum(squares[r]);
        if (threadIdx.x == 0) {
            partials[u64(blockIdx.x) * RANKS + r] = sum * unit * unit;
        }
    }
}

// The matrix that factors make. status[0] becomes 1 when not all of it is finite.
extern "C" __global__ void reconstruct(Params p, const float* of_rows, const float* of_cols, float* output,
                                       u32* status) {
    __shared__ float left[SLAB][SIDE];
    __shared__ float right[SLAB][SIDE];
    Tile tile(p, blockIdx.x, left, right);
    tile.add(p, of_rows, of_cols, 0, p.columns);
    for (u32 k = 0; k < 4; k++) {
        if (tile.row_of(k) < p.rows && tile.own_col() < p.cols) {
            output[u64(tile.row_of(k)) * p.cols + tile.own_col()] = tile.sums[k];
            if (!finite(tile.sums[k])) {
                atomicMax(status, 1u);
            }
        }
    }
}

// Whether the matrix that factors make leaves the range of f32, as bit 1 of `faults`. Nothing to do unless the largest
// magnitude is near the range's end.
extern "C" __global__ void check_product(Params p, const u32* largest, const float* of_rows, const float* of_cols,
                                         u32* faults) {
    __shared__ float left[SLAB][SIDE];
    __shared__ float right[SLAB][SIDE];
    if (*largest < p.near_overflow) {
        return;
    }
    u64 tiles = u64((p.rows + SIDE - 1) / SIDE) * ((p.cols + SIDE - 1) / SIDE);
    for (u64 number = blockIdx.x; number < tiles; number += gridDim.x) {
        Tile tile(p, number, left, right);
        tile.add(p, of_rows, of_cols, 0, p.columns);
        for (u32 k = 0; k < 4; k++) {
            if (!finite(tile.sums[k])) {
                atomicOr(faults, 2u);
            }
        }
    }
}

// partial[stretch][part] = a part of the Gram matrix, summed over a stretch of rows.
extern "C" __global__ void gram(Params p, const float* factor, double* partial) {
    __shared__ Inner room;
    u64 start = u64(blockIdx.x) * p.stretch;
    u64 end = min(start + p.stretch, u64(p.rows));
    double sum = inner_product(factor, p.rows, p.columns, blockIdx.y, start, end, room);
    partial[(u64(blockIdx.x) * gridDim.y + blockIdx.y) * BLOCK + threadIdx.x] = sum;
}

// One block.
extern "C" __global__ void cholesky(Params p, const double* partial, double* triangle) {
    DYN_SHARED(double, room);
    double* g = p.columns <= MOST_SHARED ? room + p.columns : triangle;
    factorise(p.columns, p.stretches, p.second != 0, partial, triangle, room, g);
}

// Threads of a block that substitutes.
#define SOLVERS 64

extern "C" __global__ void solve(Params p, float* factor, const double* triangle) {
    u64 i = u64(blockIdx.x) * SOLVERS + threadIdx.x;
    if (i < p.rows) {
        substitute(factor, p.rows, p.columns, triangle, i);
    }
}
