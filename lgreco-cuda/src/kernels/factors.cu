// Matrices and their factors, many at a time: products with thin factors, and the matrix that factors make.
//
// Factors hold their columns one after the other, and lie one behind the other in the order of their matrices. What is
// to be done for all matrices is numbered through, piece after piece, so that one launch does it whatever their shapes.
// Every sum is made in an order that the shape of its matrix alone decides, and no column depends on how many there are.

struct Factors {
    u64 values;    // where the matrix begins: among all values, or in memory
    u64 p;         // where P begins in memory for all of them
    u64 sum;       // and where in what is summed
    u64 q;         // likewise Q
    u64 partial;   // likewise the chunks of a product
    u64 gram;      // likewise the parts of a Gram matrix
    u64 triangle;  // likewise its factor
    u32 rows;
    u32 cols;
    u32 columns;      // of the factors
    u32 chunk;        // terms of a product with the matrix that one block adds up, a multiple of DEPTH
    u32 chunks;       // of that product
    u32 back_chunk;   // the same for the transposed matrix
    u32 back_chunks;  // likewise
    u32 stretch;      // rows of an inner product that one thread adds up
    u32 stretches;
    u32 counter;  // its first counter, for the Gram matrix; those of products follow
    u32 first_column;
    u32 first_product;  // the number of its first piece among those of all matrices
    u32 first_back;     // likewise for the transposed matrix
    u32 first_gram;
    u32 first_solve;
    u32 first_tile;
    u32 layer;  // its number among all layers
    u32 id;     // of its random words
};

// What a piece of work is about: the last of a table's entries whose first piece, a field, does not come after it.
template <auto FIRST, class Entry>
__device__ inline u32 owner(const Entry* all, u32 count, u64 piece) {
    u32 number = 0;
    for (u32 base = 0; base < count; base += 32) {
        u32 at = base + threadIdx.x % 32;
        number += __popc(__ballot_sync(FULL, at < count && all[at].*FIRST <= piece));
    }
    return number - 1;
}

// Whether this block is the last of `blocks` that come here; their writes can then be read. All threads must come.
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

// A block's part of a product: OUTER of its rows, at most WIDEST of its columns, DEPTH terms at a time.
#define OUTER 64
#define WIDEST 16
#define DEPTH 32
// Parts of DEPTH whose terms have sums of their own, whatever thread adds them up.
#define GROUPS 4

struct Room {
    float tile[DEPTH][OUTER + 1];
    float slab[DEPTH][WIDEST + 1];
    u32 last;
};

// Adds up the chunks of an element of a product, which lie `apart`.
template <class To>
__device__ inline void add_chunks(const float* partial, u64 apart, u32 chunks, u64 at, const To& to) {
    double sum = 0.0;
    for (u32 chunk = 0; chunk < chunks; chunk++) {
        sum += double(partial[chunk * apart + at]);
    }
    to.put(at, float(sum));
}

// A piece of M F, or of the transposed M's product with F, of up to WIDE columns. A thread has four rows in two columns of
// WIDE / 8 groups. The matrix is read by `from.at(row, col, first)`, for each element once with `first`.
template <u32 WIDE, bool TRANSPOSED, class From, class To>
__device__ inline void multiply(const Factors& f, u32 piece, const From& from, const float* factor, float* partial,
                                u32* counters, const To& to, Room& room) {
    const u32 OWN = WIDE / 8;
    u32 outer = TRANSPOSED ? f.cols : f.rows;
    u32 inner = TRANSPOSED ? f.rows : f.cols;
    u32 columns = f.columns;
    u32 chunks = TRANSPOSED ? f.back_chunks : f.chunks;
    u32 panels = (columns + WIDE - 1) / WIDE;
    u32 first_column = piece % panels * WIDE;
    u32 chunk = piece / panels % chunks;
    u32 first_o = piece / panels / chunks * OUTER;
    u64 start = u64(chunk) * (TRANSPOSED ? f.back_chunk : f.chunk);
    u64 end = min(start + (TRANSPOSED ? f.back_chunk : f.chunk), u64(inner));
    u32 x = threadIdx.x % 16;
    u32 y = threadIdx.x / 16 % (WIDE / 2);
    u32 set = threadIdx.x / (8 * WIDE);
    float sums[OWN][4][2] = {};
    for (u64 j0 = start; j0 < end; j0 += DEPTH) {
#pragma unroll 4
        for (u32 at = threadIdx.x; at < DEPTH * OUTER; at += BLOCK) {
            // Neighbouring threads read neighbouring values.
            u32 o = TRANSPOSED ? at % OUTER : at / DEPTH;
            u32 j = TRANSPOSED ? at / OUTER : at % DEPTH;
            bool inside = first_o + o < outer && j0 + j < end;
            u32 row = TRANSPOSED ? u32(j0) + j : first_o + o;
            u32 col = TRANSPOSED ? first_o + o : u32(j0) + j;
            room.tile[j][o] = inside ? from.at(row, col, first_column == 0) : 0.0f;
        }
#pragma unroll
        for (u32 at = threadIdx.x; at < DEPTH * WIDE; at += BLOCK) {
            u32 column = at / DEPTH;
            u32 j = at % DEPTH;
            bool inside = first_column + column < columns && j0 + j < end;
            room.slab[j][column] = inside ? factor[u64(first_column + column) * inner + j0 + j] : 0.0f;
        }
        __syncthreads();
#pragma unroll
        for (u32 k = 0; k < OWN; k++) {
            float parts[4][2] = {};
#pragma unroll 2
            for (u32 in_group = 0; in_group < DEPTH / GROUPS; in_group++) {
                u32 j = (set * OWN + k) * (DEPTH / GROUPS) + in_group;
#pragma unroll
                for (u32 a = 0; a < 4; a++) {
                    parts[a][0] = fmaf(room.tile[j][x + 16 * a], room.slab[j][y], parts[a][0]);
                    parts[a][1] = fmaf(room.tile[j][x + 16 * a], room.slab[j][y + WIDE / 2], parts[a][1]);
                }
            }
#pragma unroll
            for (u32 a = 0; a < 4; a++) {
                sums[k][a][0] += parts[a][0];
                sums[k][a][1] += parts[a][1];
            }
        }
        __syncthreads();
    }
    // The sums of the groups that the first threads do not have, one group behind the other.
    float* all = &room.tile[0][0];
#pragma unroll
    for (u32 k = 0; k < OWN; k++) {
#pragma unroll
        for (u32 a = 0; a < 8; a++) {
            u32 own = (y + WIDE / 2 * (a % 2)) * OUTER + x + 16 * (a / 2);
            if (set > 0) {
                all[((set - 1) * OWN + k) * WIDE * OUTER + own] = sums[k][a / 2][a % 2];
            }
        }
    }
    __syncthreads();
    // All groups added up, in order.
    if (set == 0) {
#pragma unroll
        for (u32 a = 0; a < 8; a++) {
            u32 own = (y + WIDE / 2 * (a % 2)) * OUTER + x + 16 * (a / 2);
            float sum = sums[0][a / 2][a % 2];
#pragma unroll
            for (u32 k = 1; k < GROUPS; k++) {
                sum += k < OWN ? sums[k < OWN ? k : 0][a / 2][a % 2] : all[(k - OWN) * WIDE * OUTER + own];
            }
            all[own] = sum;
        }
    }
    __syncthreads();
    u64 count = u64(columns) * outer;
#pragma unroll 1
    for (u32 own = threadIdx.x; own < WIDE * OUTER; own += BLOCK) {
        u32 o = first_o + own % OUTER;
        u32 column = first_column + own / OUTER;
        if (o < outer && column < columns) {
            u64 at = u64(column) * outer + o;
            if (chunks == 1) {
                to.put(at, all[own]);
            } else {
                partial[chunk * count + at] = all[own];
            }
        }
    }
    u32 counter = first_o / OUTER * panels + first_column / WIDE;
    if (chunks > 1 && comes_last(counters + counter, chunks, room.last)) {
#pragma unroll 1
        for (u32 own = threadIdx.x; own < WIDE * OUTER; own += BLOCK) {
            u32 o = first_o + own % OUTER;
            u32 column = first_column + own / OUTER;
            if (o < outer && column < columns) {
                add_chunks(partial, count, chunks, u64(column) * outer + o, to);
            }
        }
    }
    // The next piece needs the room.
    __syncthreads();
}

// The same, as wide as the factor needs.
template <bool TRANSPOSED, class From, class To>
__device__ inline void multiply(const Factors& f, u32 piece, const From& from, const float* factor, float* partial,
                                u32* counters, const To& to, Room& room) {
    if (f.columns <= 8) {
        multiply<8, TRANSPOSED>(f, piece, from, factor, partial, counters, to, room);
    } else {
        multiply<WIDEST, TRANSPOSED>(f, piece, from, factor, partial, counters, to, room);
    }
}

// A block's part of the matrix that factors make, and the columns of both fetched at a time.
#define HIGH 64
#define SIDE 32
#define SLAB 16u

struct Slabs {
    float left[SLAB][HIGH];
    float right[SLAB][SIDE];
};

// A tile of the matrix that factors make: a thread has eight of its rows in one of its columns. Each element is summed in
// f32 over the columns of the factors in order, as the core does.
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

    // Adds columns `from` to `to` of the factors; Q is read by `of_cols.at(place, first)`, each element once with `first`.
    // All threads must come.
    template <class Q>
    __device__ void add(const Factors& f, const float* of_rows, const Q& of_cols, u32 from, u32 to, Slabs& slabs) {
        for (u32 c = from; c < to; c++) {
            if (c % SLAB == 0) {
                load(f, of_rows, of_cols, c, slabs);
            }
            float x = slabs.right[c % SLAB][threadIdx.x % 32];
#pragma unroll
            for (u32 k = 0; k < HIGH / WARPS; k++) {
                sums[k] += slabs.left[c % SLAB][threadIdx.x / 32 + WARPS * k] * x;
            }
        }
    }

    // Fetches SLAB columns of both factors.
    template <class Q>
    __device__ void load(const Factors& f, const float* of_rows, const Q& of_cols, u32 first, Slabs& slabs) {
        __syncthreads();
        for (u32 at = threadIdx.x; at < SLAB * HIGH; at += BLOCK) {
            u32 c = first + at / HIGH;
            u32 i = row + at % HIGH;
            slabs.left[at / HIGH][at % HIGH] = c < f.columns && i < f.rows ? of_rows[u64(c) * f.rows + i] : 0.0f;
        }
        for (u32 at = threadIdx.x; at < SLAB * SIDE; at += BLOCK) {
            u32 c = first + at / SIDE;
            u32 i = col + at % SIDE;
            bool known = c < f.columns && i < f.cols;
            slabs.right[at / SIDE][at % SIDE] = known ? of_cols.at(u64(c) * f.cols + i, row == 0) : 0.0f;
        }
        __syncthreads();
    }
};

// A factor as it is.
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

// x / 2^e, where 2^e brings `largest` into [1, 2), in two steps, since that may be beyond the range of f32.
__device__ inline float scaled_down(float x, u32 largest) {
    int e = exponent_of(largest);
    return x * power_of_two(-(e / 2)) * power_of_two(e / 2 - e);
}

// The largest magnitude that threads of a block have seen, as bits. All threads must come.
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
