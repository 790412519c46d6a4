// Products of many matrices with thin factors, and products of the factors.
//
// Factors are stored by columns, one factor after another in the order of their matrices. Pieces of work are numbered
// over all matrices, so that one launch does them all, for any shapes. The order of every sum depends only on the shape
// of its matrix. No column depends on the number of columns.

struct Factors {
    u64 values;    // where the matrix begins: index among all values, or address
    u64 p;         // index of P's first element in the memory for all P
    u64 sum;       // index of P's first element in the first sum
    u64 q;         // index of Q's first element in the memory for all Q, and in the second sum
    u64 partial;   // index of its first partial sum of a product; each chunk has a set of them
    u64 gram;      // index of its first partial sum of the Gram matrix
    u64 triangle;  // index of the first element of the Gram matrix's triangular factor
    u32 rows;
    u32 cols;
    u32 columns;      // number of columns of each factor
    u32 chunk;        // number of terms of a product M Q that one block adds up, a multiple of WARPS * DEEP
    u32 chunks;       // number of chunks in such a product
    u32 back_chunk;   // number of terms of a product Mᵀ P that one block adds up
    u32 back_chunks;  // number of chunks in such a product
    u32 stretch;      // number of rows that one thread adds up for an inner product
    u32 stretches;  // number of stretches in all rows
    u32 counter;  // index of its first counter, for the Gram matrix; counters of products follow
    u32 first_column;  // number of its first column among the columns of all factors
    u32 first_product;  // number of its first piece of M Q among the pieces of all matrices
    u32 first_back;     // number of its first piece of Mᵀ P
    u32 first_gram;  // number of its first piece of the Gram matrix
    u32 first_solve;  // number of its first row of P in `solve`
    u32 first_tile;  // number of its first tile
    u32 layer;  // number of the layer
    u32 id;     // layer number that its random words depend on
};

// Index of the table entry to which a piece of work belongs: the last one whose field FIRST is at most `piece`. All
// lanes of the warp must call it.
template <auto FIRST, class Entry>
__device__ inline u32 owner(const Entry* all, u32 count, u64 piece) {
    u32 number = 0;
    for (u32 base = 0; base < count; base += 32) {
        u32 at = base + threadIdx.x % 32;
        number += __popc(__ballot_sync(FULL, at < count && all[at].*FIRST <= piece));
    }
    return number - 1;
}

// Whether this block is the last of `blocks` to call it. If so, it can read what the other blocks wrote. All threads of
// the block must call it.
__device__ inline bool comes_last(u32* counter, u32 blocks, u32& shared) {
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        shared = atomicAdd(counter, 1u) == blocks - 1;
        if (shared) {
            atomicExch(counter, 0u);
        }
    }
    __syncthreads();
    __threadfence();
    return shared;
}

// A block's part of a product has OUTER rows and at most WIDEST columns. A warp computes FEW of the columns.
#define OUTER 64
#define WIDEST 16u
#define FEW 4
// A thread reads ROWS rows and STEPS columns of the matrix M together. For the product with the transposed matrix, it
// reads DEEP rows and PAIR columns of M together.
#define ROWS 4
#define STEPS 2
#define PAIR (OUTER / 32)
#define DEEP 4

struct Room {
    float sums[WIDEST][OUTER];
    u32 last;
};

// Loads the values of a tensor at all `places` of all `lines`. A line is given by the index at which it begins, a place
// by the distance from there.
template <u32 LINES, u32 EACH>
__device__ inline void values_at(const void* values, u32 dtype, const u64 (&lines)[LINES], const u32 (&places)[EACH],
                                 float (&out)[LINES * EACH]) {
    if (dtype == 0) {
#pragma unroll
        for (u32 k = 0; k < LINES * EACH; k++) {
            const float* line = static_cast<const float*>(values) + lines[k / EACH];
            out[k] = line[places[k % EACH]];
        }
        return;
    }
    u32 halves[LINES * EACH];
#pragma unroll
    for (u32 k = 0; k < LINES * EACH; k++) {
        const u16* line = static_cast<const u16*>(values) + lines[k / EACH];
        halves[k] = line[places[k % EACH]];
    }
    if (dtype == 2) {
#pragma unroll
        for (u32 k = 0; k < LINES * EACH; k++) {
            out[k] = __uint_as_float(halves[k] << 16);
        }
    } else {
#pragma unroll
        for (u32 k = 0; k < LINES * EACH; k++) {
            out[k] = widen_f16(halves[k]);
        }
    }
}

// Adds up sums over lanes. Each step halves the number of a lane's sums, and each sum then covers twice as many lanes.
// In the end, lane l has sum number l % (ROWS * FEW), over the lanes of its half of the warp.
template <u32 COUNT>
__device__ inline void fold(float (&sums)[ROWS * FEW]) {
    bool upper = (threadIdx.x & COUNT) != 0;
#pragma unroll
    for (u32 k = 0; k < COUNT; k++) {
        float kept = upper ? sums[k + COUNT] : sums[k];
        sums[k] = kept + __shfl_xor_sync(FULL, upper ? sums[k] : sums[k + COUNT], COUNT);
    }
    if constexpr (COUNT > 1) {
        fold<COUNT / 2>(sums);
    }
}

// A warp's part of M F: ROWS rows from `row` on, and FEW columns. Lane l returns the element in row l / FEW and column
// l % FEW of the part. Lanes read neighbouring values of a row. Each has its own sums of the terms that it reads.
template <class From>
__device__ inline float rows_of_product(const Factors& f, u32 row, u32 start, u32 end, bool first, From& from,
                                        const float* const (&columns)[FEW]) {
    // Beyond the last row, the last row is read again. These results are not used.
    u64 rows[ROWS];
#pragma unroll
    for (u32 k = 0; k < ROWS; k++) {
        rows[k] = u64(min(row + k, f.rows - 1)) * f.cols;
    }
    float sums[ROWS * FEW] = {};
#pragma unroll 1
    for (u32 j = start + threadIdx.x % 32; j < end; j += 32 * STEPS) {
        float right[STEPS][FEW];
        u32 terms[STEPS];
#pragma unroll
        for (u32 step = 0; step < STEPS; step++) {
            terms[step] = min(j + 32 * step, end - 1);
#pragma unroll
            for (u32 c = 0; c < FEW; c++) {
                right[step][c] = j + 32 * step < end ? (columns[c] + j)[32 * step] : 0.0f;
            }
        }
        // Every value of the matrix has its bit set in only one lane of one warp.
        u32 own = 0;
#pragma unroll
        for (u32 k = 0; k < ROWS * STEPS; k++) {
            own |= u32(first && row + k / STEPS < f.rows && j + 32 * (k % STEPS) < end) << k;
        }
        float left[ROWS * STEPS];
        from.read(rows, terms, own, left);
#pragma unroll
        for (u32 at = 0; at < ROWS * STEPS * FEW; at++) {
            u32 k = at / FEW;
            float& sum = sums[k / STEPS * FEW + at % FEW];
            sum = fmaf(left[k], right[k % STEPS][at % FEW], sum);
        }
    }
    fold<ROWS * FEW / 2>(sums);
    return sums[0] + __shfl_xor_sync(FULL, sums[0], 16);
}

// A warp's part of Mᵀ F: the terms from rows `start` to `end` of M, for PAIR columns of M per lane.
template <class From>
__device__ inline void rows_of_transposed(const Factors& f, u32 first_o, u32 start, u32 end, From& from,
                                          const float* const (&columns)[FEW], float (&sums)[PAIR * FEW]) {
    u32 own[PAIR];
#pragma unroll
    for (u32 k = 0; k < PAIR; k++) {
        own[k] = min(first_o + threadIdx.x % 32 + 32 * k, f.cols - 1);
    }
#pragma unroll 1
    for (u32 i = start; i < end; i += DEEP) {
        float right[DEEP][FEW];
        u64 rows[DEEP];
#pragma unroll
        for (u32 step = 0; step < DEEP; step++) {
            rows[step] = u64(min(i + step, end - 1)) * f.cols;
#pragma unroll
            for (u32 c = 0; c < FEW; c++) {
                right[step][c] = i + step < end ? (columns[c] + i)[step] : 0.0f;
            }
        }
        float left[DEEP * PAIR];
        from.read(rows, own, 0, left);
#pragma unroll
        for (u32 at = 0; at < DEEP * PAIR * FEW; at++) {
            u32 k = at / FEW;
            float& sum = sums[k % PAIR * FEW + at % FEW];
            sum = fmaf(left[k], right[k / PAIR][at % FEW], sum);
        }
    }
}

// Computes a piece of M F, or of Mᵀ F, with up to WIDEST columns. Warps divide the columns and, if there are fewer than
// WIDEST, also the rows or terms. This division does not change the order of a column's sums. `from.read(lines, places,
// own, out)` reads the matrix. Unless it is transposed, each element is read exactly once with its bit of `own` set.
template <bool TRANSPOSED, class From, class To>
__device__ inline void multiply(const Factors& f, u32 piece, From& from, const float* factor, float* partial,
                                u32* counters, const To& to, Room& room) {
    u32 outer = TRANSPOSED ? f.cols : f.rows;
    u32 inner = TRANSPOSED ? f.rows : f.cols;
    u32 columns = f.columns;
    u32 chunks = TRANSPOSED ? f.back_chunks : f.chunks;
    u32 terms = TRANSPOSED ? f.back_chunk : f.chunk;
    u32 panels = (columns + WIDEST - 1) / WIDEST;
    u32 first_column = piece % panels * WIDEST;
    u32 chunk = piece / panels % chunks;
    u32 first_o = piece / panels / chunks * OUTER;
    u32 start = chunk * terms;
    u32 end = min(start + terms, inner);
    u32 here = min(columns - first_column, WIDEST);
    u32 sets = here <= FEW ? 1 : here <= 2 * FEW ? 2 : WIDEST / FEW;
    const u32 GROUPS = TRANSPOSED ? WARPS : OUTER / ROWS;
    u32 lane = threadIdx.x % 32;
#pragma unroll 1
    for (u32 unit = threadIdx.x / 32; unit < sets * GROUPS; unit += WARPS) {
        u32 group = unit / sets;
        u32 own = unit % sets * FEW;
        // Beyond the last column, the last column is used again. These results are not used.
        const float* of[FEW];
#pragma unroll
        for (u32 c = 0; c < FEW; c++) {
            of[c] = factor + u64(min(first_column + own + c, columns - 1)) * inner;
        }
        if (TRANSPOSED) {
            u32 run = terms / GROUPS;
            u32 from_term = start + group * run;
            float sums[PAIR * FEW] = {};
            rows_of_transposed(f, first_o, from_term, min(from_term + run, end), from, of, sums);
            // The groups' sums are added up in order.
            u32 together = WARPS / sets;
#pragma unroll 1
            for (u32 turn = group / together * together; turn < (group / together + 1) * together; turn++) {
#pragma unroll
                for (u32 at = 0; at < PAIR * FEW; at++) {
                    float& sum = room.sums[own + at % FEW][lane + 32 * (at / FEW)];
                    if (group == turn) {
                        sum = turn == 0 ? sums[at] : sum + sums[at];
                    }
                }
                __syncthreads();
            }
        } else {
            u32 row = group * ROWS;
            bool first = first_column + own == 0;
            float sum = rows_of_product(f, first_o + row, start, end, first, from, of);
            if (lane < ROWS * FEW) {
                room.sums[own + lane % FEW][row + lane / FEW] = sum;
            }
        }
    }
    __syncthreads();
    partial += f.partial;
    counters += f.counter + 1;
    u64 count = u64(columns) * outer;
    if (chunks > 1) {
#pragma unroll 1
        for (u32 at = threadIdx.x; at < here * OUTER; at += BLOCK) {
            u32 o = first_o + at % OUTER;
            if (o < outer) {
                partial[chunk * count + u64(first_column + at / OUTER) * outer + o] = room.sums[at / OUTER][at % OUTER];
            }
        }
    }
    u32 counter = first_o / OUTER * panels + first_column / WIDEST;
    if (chunks == 1 || comes_last(counters + counter, chunks, room.last)) {
#pragma unroll 1
        for (u32 at = threadIdx.x; at < here * OUTER; at += BLOCK) {
            u32 o = first_o + at % OUTER;
            u64 place = u64(first_column + at / OUTER) * outer + o;
            if (o < outer) {
                double sum = chunks == 1 ? double(room.sums[at / OUTER][at % OUTER]) : 0.0;
#pragma unroll 1
                for (u32 of = 0; chunks > 1 && of < chunks; of++) {
                    sum += double(partial[of * count + place]);
                }
                to.put(place, float(sum));
            }
        }
    }
    // The next piece needs the room.
    __syncthreads();
}

// A block's part of the product of the factors: HIGH rows and SIDE columns. It loads SLAB columns of both factors at a
// time.
#define HIGH 64
#define SIDE 32
#define SLAB 16u

struct Slabs {
    float left[SLAB][HIGH];
    float right[SLAB][SIDE];
};

// A tile of the product of the factors. A thread has eight rows in one column. Each element is summed in f32 over the
// columns of the factors in order, as in lgreco-compress.
struct Tile {
    u32 row;
    u32 col;
    float sums[HIGH / WARPS];

    __device__ Tile(const Factors& f, u32 piece) : sums{} {
        u32 across = (f.cols + SIDE - 1) / SIDE;
        row = piece / across * HIGH;
        col = piece % across * SIDE;
    }

    __device__ u32 row_of(u32 k) const {
        return row + threadIdx.x / 32 + WARPS * k;
    }

    __device__ u32 own_col() const {
        return col + threadIdx.x % 32;
    }

    __device__ bool is_inside(const Factors& f, u32 k) const {
        return row_of(k) < f.rows && own_col() < f.cols;
    }

    // Adds columns `from` to `to` of the factors. `of_cols.at(place, first)` reads Q, with `first` true once for each
    // element. All threads of the block must call it.
    template <class Q>
    __device__ void add(const Factors& f, const float* of_rows, const Q& of_cols, u32 from, u32 to, Slabs& slabs) {
#pragma unroll 1
        for (u32 c = from; c < to;) {
            if (c % SLAB == 0) {
                load(f, of_rows, of_cols, c, slabs);
            }
            u32 end = min(to, c - c % SLAB + SLAB);
#pragma unroll 1
            for (; c < end; c++) {
                float x = slabs.right[c % SLAB][threadIdx.x % 32];
#pragma unroll
                for (u32 k = 0; k < HIGH / WARPS; k++) {
                    sums[k] += slabs.left[c % SLAB][threadIdx.x / 32 + WARPS * k] * x;
                }
            }
        }
    }

    // Loads SLAB columns of both factors, or the remaining ones.
    template <class Q>
    __device__ void load(const Factors& f, const float* of_rows, const Q& of_cols, u32 first, Slabs& slabs) {
        u32 here = min(f.columns - first, SLAB);
        __syncthreads();
#pragma unroll 1
        for (u32 at = threadIdx.x; at < here * HIGH; at += BLOCK) {
            u32 i = row + at % HIGH;
            slabs.left[at / HIGH][at % HIGH] = i < f.rows ? of_rows[u64(first + at / HIGH) * f.rows + i] : 0.0f;
        }
#pragma unroll 1
        for (u32 at = threadIdx.x; at < here * SIDE; at += BLOCK) {
            u32 i = col + at % SIDE;
            u64 place = u64(first + at / SIDE) * f.cols + i;
            slabs.right[at / SIDE][at % SIDE] = i < f.cols ? of_cols.at(place, row == 0) : 0.0f;
        }
        __syncthreads();
    }
};

// Reads a factor from f32 memory.
struct Plain {
    const float* factor;

    __device__ float at(u64 place, bool = true) const {
        return factor[place];
    }
};

__device__ inline int exponent_of(u32 largest) {
    return int(largest >> 23) - 127;
}

__device__ inline float power_of_two(int exponent) {
    return __uint_as_float(u32(127 + exponent) << 23);
}

// An element of the start matrix: an odd multiple of 2^-24.
__device__ inline float start_element(u64 at, u32 layer, u32 seed_low, u32 seed_high) {
    Words words = philox(u32(at / 4), 0, layer, 0xffffffffu, seed_low, seed_high);
    u32 word = at % 4 == 0 ? words.word[0] : at % 4 == 1 ? words.word[1] : at % 4 == 2 ? words.word[2] : words.word[3];
    int odd = int(2 * (word >> 8) + 1) - (1 << 24);
    return float(odd) / float(1 << 24);
}

// x / 2^e, where 2^e brings `largest` into [1, 2). It takes two steps, because 2^-e may be outside the range of f32.
__device__ inline float scaled_down(float x, u32 largest) {
    int e = exponent_of(largest);
    return x * power_of_two(-(e / 2)) * power_of_two(e / 2 - e);
}

// The largest magnitude that a block's threads have found, as bits. All threads of the block must call it.
__device__ inline u32 block_max(u32 found, u32& shared) {
    if (threadIdx.x == 0) {
        shared = 0;
    }
    __syncthreads();
    found = warp_max(found);
    if (threadIdx.x % 32 == 0) {
        atomicMax(&shared, found);
    }
    __syncthreads();
    return shared;
}
