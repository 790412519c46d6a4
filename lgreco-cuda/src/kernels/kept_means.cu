// Checks of all payloads in an exchange, and the means of TopK's payloads. QSGD's payloads are checked in one launch.
// TopK's payloads take two launches. The first counts the set bits of bitmaps and of Elias-Fano's high bits. The second
// finds where each window of a layer begins in these bits. The means are sums over a window in shared memory, in the
// order of the ranks.
//
// Payloads come from other ranks. Whatever they contain, kernels access no memory outside the messages and their own
// buffers. If no encoder can have written a payload, its rank is at fault before any mean is written.

// A chunk is the unit of work of a block: 32 bits per thread. If all values of a layer are kept, a chunk is SPAN
// values.
#define CHUNK (32 * BLOCK)
// WINDOW is the number of positions whose means a warp makes. WINDOWS is the number of windows in a span.
#define WINDOW 1024
#define WINDOWS (SPAN / WINDOW)
// Number of ranks whose values of a window are loaded at once.
#define RANKS_AT_ONCE 4

// Up to 32 bits from bit `at` on. Bits from `end` on are returned as 0. `words` extends at least to `end`.
__device__ inline u32 bits_from(const u32* words, u64 at, u64 end) {
    if (at >= end) {
        return 0;
    }
    u32 shift = u32(at % 32);
    u32 bits = words[at / 32] >> shift;
    if (shift > 0 && at / 32 < (end - 1) / 32) {
        bits |= words[at / 32 + 1] << (32 - shift);
    }
    return end - at < 32 ? bits & ((1u << (end - at)) - 1) : bits;
}

// A rank's payload of a layer. Indices of values must be below `keep`.
struct Payload {
    const Top& top;
    const u32* words;

    __device__ Payload(const Top& top, const Program* program, const u8* messages, u32 rank)
        : top(top), words(reinterpret_cast<const u32*>(message_of(*program, messages, rank) + top.payload)) {}

    __device__ bool has_header() const {
        return words[0] == u32(top.header_low) && words[1] == u32(top.header_low >> 32) &&
               words[2] == u32(top.header_high) && words[3] == u32(top.header_high >> 32);
    }

    // Whether the padding bits after the codes and after the packed low bits are 0.
    __device__ bool is_padded() const {
        u64 of_codes = top.bits_at + u64(top.keep) * top.bits;
        u64 of_positions = top.low_at + u64(top.keep) * top.low_bits;
        return bits_from(words, of_codes, top.bits != 0 ? top.low_at : 0) == 0 &&
               bits_from(words, of_positions, top.placement == 2 ? top.high_at : 0) == 0;
    }

    // Whether the mean that this thread checks, if any, is finite and not negative.
    __device__ bool has_mean() const {
        return top.bits == 0 || threadIdx.x >> (top.bits - 1) != 0 || words[HEADER / 4 + threadIdx.x] < INFINITE;
    }

    // Bits from `at` to `end` of the bitmap or of Elias-Fano's high bits.
    __device__ u32 ones(u64 at, u64 end) const {
        return bits_from(words, top.high_at + at, min(top.high_at + end, top.end));
    }

    __device__ u64 high_bits() const {
        return top.end - top.high_at;
    }

    __device__ float kept(u32 index) const {
        if (top.bits != 0) {
            u64 at = top.bits_at + u64(index) * top.bits;
            return meaning_of(words + HEADER / 4, bits_from(words, at, at + top.bits), top.bits);
        }
        return value(words + HEADER / 4, top.sent, index);
    }

    // The position whose set bit is `bit`. `index` is the number of set bits before it.
    __device__ u64 position(u64 bit, u32 index) const {
        if (top.placement == 1) {
            return bit;
        }
        u64 at = top.low_at + u64(index) * top.low_bits;
        return (bit - index) << top.low_bits | bits_from(words, at, at + top.low_bits);
    }
};

// Checks QSGD's payloads. For TopK's payloads, counts the set bits in each chunk and before it, and checks everything
// except values and positions.
extern "C" __global__ void check_payloads(Params p, const Top* tops, const u32* top_of, Program* program,
                                          const u8* messages, u32* counts, u32* before, u32* done, const Layer* layers,
                                          const u32* layer_of) {
    if (first_failed(*program, messages) < program->world) {
        return;
    }
    check_scales(layers, layer_of, program, messages);
    for (u64 item = blockIdx.x; item < u64(p.chunks) * program->world; item += gridDim.x) {
        u32 rank = u32(item / p.chunks);
        u32 number = top_of[item % p.chunks];
        Top top = tops[number];
        Payload payload(top, program, messages, rank);
        u64 bit = u64(item % p.chunks - top.first_chunk) * CHUNK + threadIdx.x * 32;
        u64 all = block_scan(top.placement == 0 ? 0 : __popc(payload.ones(bit, bit + 32))).all;
        if (threadIdx.x == 0) {
            counts[item] = u32(all);
        }
        if (is_last(&done[u64(rank) * p.layers + number], 1, top.chunks)) {
            u64 first = u64(rank) * p.chunks + top.first_chunk;
            auto ones = [&](u32 chunk) { return u64(fresh(counts[first + chunk])); };
            auto take = [&](u32 chunk, u64 sum) { before[first + chunk] = u32(sum); };
            bool complete = add_up(0, top.chunks, ones, take) == top.keep || top.placement == 0;
            if (!complete || !payload.has_header() || !payload.is_padded() || !payload.has_mean()) {
                blame(program, rank, top.layer);
            }
        }
    }
}

// Walks over a thread's bits, and checks the positions and values of the set bits. On the way, sets starts[window] to
// the number of values that are kept before the window.
struct Walk {
    const Payload& payload;
    u32* starts;
    u64 bit;
    u32 index;   // number of set bits before `bit`
    u64 window;  // window of the next position
    u64 least;   // smallest valid next position
    bool good;

    __device__ Walk(const Payload& payload, u32* starts, u64 bit, u32 before)
        : payload(payload), starts(starts), bit(bit), index(before), window(0), least(0), good(true) {
        if (bit == 0) {
            starts[0] = 0;
        } else if (payload.top.placement == 1) {
            window = window_of(bit - 1);
        } else if (payload.ones(bit - 1, bit) == 0) {
            window = window_of((bit - index) << payload.top.low_bits);
        } else if (index > 0 && index <= payload.top.keep) {
            least = payload.position(bit - 1, index - 1) + 1;
            window = window_of(least - 1);
        }
    }

    __device__ u64 window_of(u64 position) const {
        return min(position / WINDOW, u64(payload.top.spans) * WINDOWS);
    }

    // Sets the starts of windows up to this one.
    __device__ void reach(u64 next) {
        for (; window < next; window++) {
            starts[window + 1] = index;
        }
    }

    __device__ void one() {
        if (index >= payload.top.keep) {
            good = false;
            return;
        }
        u64 position = payload.position(bit, index);
        good = good && position >= least && position < payload.top.count && is_finite(payload.kept(index));
        reach(window_of(position));
        least = position + 1;
        index++;
    }

    __device__ void zero() {
        reach(window_of(payload.top.placement == 1 ? bit : (bit + 1 - index) << payload.top.low_bits));
        least = 0;
    }

    __device__ void end() {
        reach(u64(payload.top.spans) * WINDOWS);
    }
};

// Index of a rank's first element of `starts` for a layer. It has one element for each window, and one for the layer's
// end.
__device__ inline u64 starts_of(const Params& p, const Top& top, u32 rank, u32 number) {
    return rank * (u64(p.spans) * WINDOWS + p.layers) + u64(top.first_span) * WINDOWS + number;
}

// Checks the values and positions of TopK's payloads, and counts how many values each payload keeps before each window.
extern "C" __global__ void check_kept(Params p, const Top* tops, const u32* top_of, Program* program, const u8* messages,
                                      const u32* before, u32* starts) {
    if (first_failed(*program, messages) < program->world) {
        return;
    }
    for (u64 item = blockIdx.x; item < u64(p.chunks) * program->world; item += gridDim.x) {
        u32 rank = u32(item / p.chunks);
        u32 number = top_of[item % p.chunks];
        Top top = tops[number];
        Payload payload(top, program, messages, rank);
        u64 chunk = item % p.chunks - top.first_chunk;
        if (top.placement == 0) {
            for (u64 i = chunk * SPAN + threadIdx.x; i < min(u64(top.keep), (chunk + 1) * SPAN); i += BLOCK) {
                if (!is_finite(payload.kept(u32(i)))) {
                    blame(program, rank, top.layer);
                }
            }
            continue;
        }
        u64 bit = chunk * CHUNK + threadIdx.x * 32;
        u32 ones = payload.ones(bit, bit + 32);
        u32 index = before[item] + u32(block_scan(__popc(ones)).before);
        if (bit >= payload.high_bits()) {
            continue;
        }
        Walk walk(payload, starts + starts_of(p, top, rank, number), bit, index);
        u64 end = min(bit + 32, payload.high_bits());
        for (; walk.bit < end && walk.good; walk.bit++, ones >>= 1) {
            if (ones & 1) {
                walk.one();
            } else {
                walk.zero();
            }
        }
        if (end == payload.high_bits()) {
            walk.end();
        }
        if (!walk.good) {
            blame(program, rank, top.layer);
        }
    }
}

// Reads a rank's values of a window from a checked payload. Each lane takes one of 32 bits at a time.
struct Window {
    u32 bits;   // number of bits for the window
    u32 index;  // number of set bits before `ones`
    u32 ones;   // the next 32 bits
    u32 place;  // position of this lane's value in the window; WINDOW if it has none
    float value;

    __device__ static u64 first_bit(const Top& top, u64 first, u32 index) {
        return top.placement == 2 ? (first >> top.low_bits) + index : first;
    }

    // `start` and `next` are the numbers of values kept before this window and before the next one.
    __device__ void begin(const Payload& payload, u32 first, u32 start, u32 next) {
        index = start;
        u64 bit = first_bit(payload.top, first, start);
        bits = u32(first_bit(payload.top, u64(first) + WINDOW, next) - bit);
        ones = payload.ones(bit, bit + min(bits, 32u));
    }

    // Returns the window that lane `lane` has begun. All lanes must call it.
    __device__ Window of(u32 lane) const {
        Window other;
        other.bits = __shfl_sync(FULL, bits, lane);
        other.index = __shfl_sync(FULL, index, lane);
        other.ones = __shfl_sync(FULL, ones, lane);
        return other;
    }

    __device__ void fetch(const Payload& payload, u32 first, u64 bit, u32 before) {
        u32 lane = threadIdx.x % 32;
        u32 own = before + __popc(ones & ((1u << lane) - 1));
        place = WINDOW;
        if ((ones >> lane & 1) != 0 && own < payload.top.keep) {
            place = u32(min(payload.position(bit + lane, own) - first, u64(WINDOW)));
            value = payload.kept(own);
        }
    }

    __device__ void fetch_first(const Payload& payload, u32 first) {
        fetch(payload, first, first_bit(payload.top, first, index), index);
    }

    __device__ void add(float* sums) const {
        if (place < WINDOW) {
            sums[place] += value;
        }
    }

    // Adds all values of the window. The first 32 bits must have been fetched.
    __device__ void add_all(const Payload& payload, u32 first, float* sums) {
        add(sums);
        u64 bit = first_bit(payload.top, first, index);
#pragma unroll 1
        for (u32 done = 32; done < bits; done += 32) {
            index += __popc(ones);
            ones = payload.ones(bit + done, bit + min(bits, done + 32));
            fetch(payload, first, bit + done, index);
            add(sums);
        }
    }
};

// Adds the values of a window from all ranks to `sums`, in the order of the ranks. All lanes must call it.
__device__ inline void add_window(const Params& p, const Top& top, u32 number, const Program* program,
                                  const u8* messages, const u32* starts, u32 window, float* sums) {
    u32 world = program->world;
    u32 first = window * WINDOW;
    if (top.placement == 0) {
        for (u32 rank = 0; rank < world; rank++) {
            Payload payload(top, program, messages, rank);
            for (u32 i = threadIdx.x % 32; i < min(u32(WINDOW), top.count - first); i += 32) {
                sums[i] += payload.kept(first + i);
            }
        }
        return;
    }
    Window begun;
#pragma unroll 1
    for (u32 from = 0; from < world; from += RANKS_AT_ONCE) {
        if (from % 32 == 0) {
            // Each lane begins the window of a different rank.
            u32 rank = min(from + threadIdx.x % 32, world - 1);
            const u32* start = starts + starts_of(p, top, rank, number) + window;
            begun.begin(Payload(top, program, messages, rank), first, start[0], start[1]);
        }
        Window own[RANKS_AT_ONCE];
#pragma unroll
        for (u32 r = 0; r < RANKS_AT_ONCE; r++) {
            if (from + r < world) {
                own[r] = begun.of((from + r) % 32);
                own[r].fetch_first(Payload(top, program, messages, from + r), first);
            }
        }
#pragma unroll
        for (u32 r = 0; r < RANKS_AT_ONCE; r++) {
            if (from + r < world) {
                own[r].add_all(Payload(top, program, messages, from + r), first, sums);
                __syncwarp();
            }
        }
    }
}

// Writes the means, added up in the order of the ranks. If a rank is at fault, overwrites all means instead. Ends the
// step, unless QSGD's means follow.
extern "C" __launch_bounds__(BLOCK, 3) __global__ void average_kept(Params p, const Top* tops, const u32* top_of,
                                                                    Program* program, const u8* messages,
                                                                    const u32* starts, void* means) {
    __shared__ float all_sums[WARPS][WINDOW];
    bool good = first_faulty(*program, messages) == program->world;
    if (!good) {
        fill(*program, p.dtype, means);
    }
    World world(program->world);
    float* sums = all_sums[threadIdx.x / 32];
    u32 lane = threadIdx.x % 32;
    for (u32 at = blockIdx.x * WARPS + threadIdx.x / 32; good && at < p.spans * WINDOWS; at += gridDim.x * WARPS) {
        u32 number = top_of[at / WINDOWS];
        const Top& top = tops[number];
        u32 window = at - top.first_span * WINDOWS;
        u32 first = window * WINDOW;
        if (first >= top.count) {
            continue;
        }
        uint4* quads = reinterpret_cast<uint4*>(sums);
        for (u32 i = lane; i < WINDOW / 4; i += 32) {
            quads[i] = uint4{0, 0, 0, 0};
        }
        __syncwarp();
        add_window(p, top, number, program, messages, starts, window, sums);
        __syncwarp();
        void* own = static_cast<u8*>(means) + top.first * (p.dtype == 0 ? 4 : 2);
        u32 here = min(u32(WINDOW), top.count - first);
#pragma unroll 1
        for (u32 i = lane * 8; i < here; i += 32 * 8) {
            float eight[8];
#pragma unroll
            for (u32 k = 0; k < 8; k++) {
                eight[k] = sums[i + k];
            }
            give_eight(p.dtype, program, top.layer, top.start, world, own, u64(first) + i, min(here - i, 8u),
                       here == WINDOW, eight);
        }
        // The next window sets the sums to 0.
        __syncwarp();
    }
    if (is_last(&program->done, 1, gridDim.x) && threadIdx.x == 0 && program->own_spans == 0) {
        end_step(program, first_faulty(*program, messages));
    }
}
