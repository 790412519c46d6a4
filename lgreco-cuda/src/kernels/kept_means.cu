// Whether encoders wrote the payloads of an exchange: QSGD's in one launch, TopK's in two, of which the first counts the ones of
// bitmaps and bits in unary and the second finds where in them each span of a layer begins. Then the means of TopK's: the sums of
// each span in the order of the ranks, in shared memory.
//
// Payloads come from other ranks: whatever they hold, nothing is read or written elsewhere, and what no encoder writes makes
// its rank faulty before any mean is written.

// Bits that a block reads at once, 32 per thread: a chunk. Of layers whose values are all kept, a chunk is as many values
// as a span.
#define CHUNK (32 * BLOCK)
// Bits that a thread reads at once where each costs several reads.
#define FEW 4

// Up to 32 bits from `at` on, zeros from `end` on, which is in the words.
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

// A rank's payload of a layer. Indices of values are below `keep`.
struct Payload {
    const Top& top;
    const u32* words;

    __device__ Payload(const Top& top, const Program* program, const u8* messages, u32 rank)
        : top(top), words(reinterpret_cast<const u32*>(message_of(*program, messages, rank) + top.payload)) {}

    __device__ bool has_header() const {
        return words[0] == u32(top.header_low) && words[1] == u32(top.header_low >> 32) &&
               words[2] == u32(top.header_high) && words[3] == u32(top.header_high >> 32);
    }

    // Whether the last bytes of codes and of packed bits end with zeros.
    __device__ bool is_padded() const {
        u64 of_codes = top.bits_at + u64(top.keep) * top.bits;
        u64 of_positions = top.low_at + u64(top.keep) * top.low_bits;
        return bits_from(words, of_codes, top.bits != 0 ? top.low_at : 0) == 0 &&
               bits_from(words, of_positions, top.placement == 2 ? top.high_at : 0) == 0;
    }

    // Whether a thread's mean, if it has one, is finite and positive.
    __device__ bool has_mean() const {
        return top.bits == 0 || threadIdx.x >> (top.bits - 1) != 0 || words[HEADER / 4 + threadIdx.x] < INFINITE;
    }

    // Of the bitmap or the bits in unary, from bit `at` on and before `end`.
    __device__ u32 ones(u64 at, u64 end) const {
        return bits_from(words, top.high_at + at, min(top.high_at + end, top.end));
    }

    __device__ u64 high_bits() const {
        return top.end - top.high_at;
    }

    __device__ float kept(u32 index) const {
        if (top.bits != 0) {
            u64 at = top.bits_at + u64(index) * top.bits;
            u32 code = bits_from(words, at, at + top.bits);
            u32 sign = code >> (top.bits - 1);
            return __uint_as_float(words[HEADER / 4 + (code ^ sign << (top.bits - 1))] | sign << 31);
        }
        return value(words + HEADER / 4, top.sent, index);
    }

    // What the one at `bit` stands for, before which there are `index`.
    __device__ u64 position(u64 bit, u32 index) const {
        if (top.placement == 1) {
            return bit;
        }
        u64 at = top.low_at + u64(index) * top.low_bits;
        return (bit - index) << top.low_bits | bits_from(words, at, at + top.low_bits);
    }
};

// How many ones there are before each chunk of a payload, by one block; whether they are `keep`.
__device__ inline bool add_up(const Top& top, const u32* counts, u32* before) {
    u32 first = u32(u64(top.chunks) * threadIdx.x / BLOCK);
    u32 end = u32(u64(top.chunks) * (threadIdx.x + 1) / BLOCK);
    u64 sum = 0;
    for (u32 chunk = first; chunk < end; chunk++) {
        sum += fresh(counts[chunk]);
    }
    Sums sums = block_scan(sum);
    sum = sums.before;
    for (u32 chunk = first; chunk < end; chunk++) {
        before[chunk] = u32(sum);
        sum += fresh(counts[chunk]);
    }
    return sums.all == top.keep;
}

// QSGD's payloads; the ones of each chunk of TopK's, and those before it.
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
            bool complete = add_up(top, counts + first, before + first) || top.placement == 0;
            if (!complete || !payload.has_header() || !payload.is_padded() || !payload.has_mean()) {
                blame(program, rank, top.layer);
            }
        }
    }
}

// A thread's ones, and what is found of the spans on the way: starts[span] becomes how many values are kept before it.
struct Walk {
    const Payload& payload;
    u32* starts;
    u64 bit;
    u32 index;  // ones before it
    u64 span;   // of the positions that come next
    u64 least;  // that the next position may be
    bool good;

    __device__ Walk(const Payload& payload, u32* starts, u64 bit, u32 before)
        : payload(payload), starts(starts), bit(bit), index(before), span(0), least(0), good(true) {
        if (bit == 0) {
            starts[0] = 0;
        } else if (payload.top.placement == 1) {
            span = span_of(bit - 1);
        } else if (payload.ones(bit - 1, bit) == 0) {
            span = span_of((bit - index) << payload.top.low_bits);
        } else if (index > 0 && index <= payload.top.keep) {
            least = payload.position(bit - 1, index - 1) + 1;
            span = span_of(least - 1);
        }
    }

    __device__ u64 span_of(u64 position) const {
        return min(position / SPAN, u64(payload.top.spans));
    }

    // What is before the spans up to this one is known.
    __device__ void reach(u64 next) {
        for (; span < next; span++) {
            starts[span + 1] = index;
        }
    }

    __device__ void one() {
        if (index >= payload.top.keep) {
            good = false;
            return;
        }
        u64 position = payload.position(bit, index);
        good = good && position >= least && position < payload.top.count && is_finite(payload.kept(index));
        reach(span_of(position));
        least = position + 1;
        index++;
    }

    __device__ void zero() {
        reach(span_of(payload.top.placement == 1 ? bit : (bit + 1 - index) << payload.top.low_bits));
        least = 0;
    }

    __device__ void end() {
        reach(payload.top.spans);
    }
};

// Whether an encoder wrote the payloads, and how many values of each are kept before each span.
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
        u32* own = starts + u64(rank) * (u64(p.spans) + p.layers) + top.first_span + number;
        Walk walk(payload, own, bit, index);
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

// Adds to a span's sums what a payload, which has been checked, holds of it. All threads of the block must come; they
// wait for each other before they add what may be another's.
__device__ inline void add_span(const Payload& payload, const u32* starts, u32 span, float* sums) {
    const Top& top = payload.top;
    u64 first = u64(span) * SPAN;
    if (top.placement == 0) {
        for (u32 i = threadIdx.x; i < min(u64(SPAN), top.count - first); i += BLOCK) {
            sums[i] += payload.kept(u32(first) + i);
        }
        return;
    }
    u32 index = starts[span];
    u64 begin = first;
    u64 end = first + SPAN;
    if (top.placement == 2) {
        begin = (begin >> top.low_bits) + index;
        end = (end >> top.low_bits) + starts[span + 1];
    }
    for (u64 from = begin; from < end; from += FEW * BLOCK) {
        u64 bit = from + threadIdx.x * FEW;
        u32 ones = payload.ones(bit, min(bit + FEW, end));
        Sums counts = block_scan(__popc(ones));
        u32 own = index + u32(counts.before);
#pragma unroll
        for (u32 k = 0; k < FEW; k++) {
            if ((ones >> k & 1) == 0 || own >= top.keep) {
                continue;
            }
            u64 position = payload.position(bit + k, own);
            if (position - first < SPAN) {
                sums[position - first] += payload.kept(own);
            }
            own++;
        }
        index += u32(counts.all);
    }
}

// The means, added up in the order of the ranks; `fill` where a rank is at fault. Then the step's end, unless QSGD's means come.
extern "C" __global__ void average_kept(Params p, const Top* tops, const u32* top_of, Program* program,
                                        const u8* messages, const u32* starts, void* means) {
    __shared__ float sums[SPAN];
    bool good = first_faulty(*program, messages) == program->world;
    if (!good) {
        fill(*program, p.dtype, means);
    }
    for (u32 at = blockIdx.x; good && at < p.spans; at += gridDim.x) {
        u32 number = top_of[at];
        Top top = tops[number];
        u32 span = at - top.first_span;
        for (u32 i = threadIdx.x; i < SPAN; i += BLOCK) {
            sums[i] = 0.0f;
        }
        for (u32 rank = 0; rank < program->world; rank++) {
            const u32* own = starts + u64(rank) * (u64(p.spans) + p.layers) + top.first_span + number;
            add_span(Payload(top, program, messages, rank), own, span, sums);
        }
        __syncthreads();
        void* own = static_cast<u8*>(means) + top.first * (p.dtype == 0 ? 4 : 2);
        u64 first = u64(span) * SPAN;
        for (u32 i = threadIdx.x; i < SPAN && first + i < top.count; i += BLOCK) {
            give(p.dtype, program, top.layer, top.start, own, first + i, sums[i] / float(program->world));
        }
    }
    if (is_last(&program->done, 1, gridDim.x) && threadIdx.x == 0 && program->own_spans == 0) {
        end_step(program, first_faulty(*program, messages));
    }
}
