// TopK's payloads of all layers of an exchange, in five launches: sums of gradients and residuals, counted by the upper 12
// bits of their magnitudes; those that may be among the k largest, gathered and counted by the next 10 bits; the same by
// the last 9, which makes the cut known; how many of each span are kept; what is kept, and what stays. Selection is integer
// arithmetic, and places come from counts, so nothing depends on the order of blocks.
//
// The last block that has been through a layer's spans finds what the next launch needs.

struct Params {
    u32 dtype;
    u32 layers;
    u32 spans;
    u32 chunks;
    u32 remembers;  // whether there are residuals
};

// A layer under TopK.
struct Top {
    u64 first;    // its first value
    u64 payload;  // where its payload begins in a message
    u64 header_low;
    u64 header_high;
    u64 low_at;   // bits of the payload before the packed bits of positions,
    u64 high_at;  // before the bitmap or the bits in unary,
    u64 end;      // and in all
    u64 room;     // where what is gathered of it goes
    u32 room_size;
    u32 layer;  // its number in the program
    u32 count;
    u32 keep;
    u32 sent;       // type of the values in the payload
    u32 placement;  // 0: no positions, 1: bitmap, 2: Elias-Fano
    u32 low_bits;
    u32 first_span;  // among all layers'
    u32 spans;
    u32 first_chunk;  // among all layers'
    u32 chunks;
    u32 unused;
};

// What is known of where a layer's k largest end.
struct Cut {
    u32 prefix;  // upper bits of the k-th largest magnitude; at last all of them
    u32 rank;    // how many of those with these bits are among the k largest
    u32 done;    // spans that have been through the launch
    u32 used;    // entries gathered
};

// A span: what was gathered of it, which is NOWHERE if there was no room; and how many of that are above and at the cut,
// here and in the layer's spans before.
struct Kept {
    u32 start;
    u32 size;
    u32 above;
    u32 tied;
    u32 above_before;
    u32 tied_before;
};

// Values of a span, those that its threads read at once, and how often they do.
#define SPAN 4096
#define STEP (4 * BLOCK)
#define STEPS (SPAN / STEP)
#define NOWHERE 0xffffffffu
// Bits of a magnitude by which each of three launches counts.
#define FIRST_BITS 12
#define SECOND_BITS 10
#define THIRD_BITS 9
// A layer's counts.
#define BINS (1u << FIRST_BITS)

// What the threads before this one have, and all of the block.
struct Sums {
    u64 before;
    u64 all;
};

// All threads of the block must come.
__device__ static inline Sums block_scan(u64 own) {
    __shared__ u64 totals[WARPS];
    u32 warp = threadIdx.x / 32;
    u64 sum = own;
    for (u32 reach = 1; reach < 32; reach <<= 1) {
        u64 other = __shfl_up_sync(FULL, sum, reach);
        sum += threadIdx.x % 32 >= reach ? other : 0;
    }
    __syncthreads();
    if (threadIdx.x % 32 == 31) {
        totals[warp] = sum;
    }
    __syncthreads();
    Sums sums = {sum - own, 0};
    for (u32 other = 0; other < WARPS; other++) {
        sums.before += other < warp ? totals[other] : 0;
        sums.all += totals[other];
    }
    return sums;
}

// Where number `rank` from above is among 2^BITS bins, and its rank there; the bins begin anew. All threads of the block must
// come.
template <u32 BITS>
__device__ inline void pick(u32* bins, u32 prefix, u32 rank, Cut* cut) {
    const u32 OWN = (1u << BITS) / BLOCK;
    u32 counts[OWN];
    u32 first = (BLOCK - 1 - threadIdx.x) * OWN;
    u32 sum = 0;
#pragma unroll
    for (u32 k = 0; k < OWN; k++) {
        counts[k] = atomicExch(&bins[first + k], 0u);
        sum += counts[k];
    }
    u32 above = u32(block_scan(sum).before);
    if (above >= rank || rank - above > sum) {
        return;
    }
#pragma unroll
    for (u32 k = OWN; k > 0; k--) {
        if (above < rank && rank - above <= counts[k - 1]) {
            cut->prefix = prefix << BITS | (first + k - 1);
            cut->rank = rank - above;
        }
        above += counts[k - 1];
    }
}

// The values of a launch counted in shared memory, by 2^BITS kinds.
template <u32 BITS>
__device__ inline void count_nothing(u32* room) {
    for (u32 bin = threadIdx.x; bin < 1u << BITS; bin += BLOCK) {
        room[bin] = 0;
    }
    __syncthreads();
}

// Gives away what was counted of a layer in `own` spans; the last block picks. All threads of the block must come.
template <u32 BITS>
__device__ inline void give_counts(u32* room, u32* bins, u32 own, const Top& top, u32 prefix, u32 rank, Cut* cut) {
    __syncthreads();
    for (u32 bin = threadIdx.x; bin < 1u << BITS; bin += BLOCK) {
        if (room[bin] != 0) {
            atomicAdd(&bins[bin], room[bin]);
            room[bin] = 0;
        }
    }
    if (is_last(&cut->done, own, top.spans)) {
        pick<BITS>(bins, prefix, rank, cut);
    }
}

// Of a layer: what is selected from, and what is remembered.
struct Offered {
    const void* values;
    u32 dtype;
    const float* before;
    float* after;  // null where nothing is remembered

    __device__ Offered(const Params& p, const Top& top, const Program* program, const void* gradients, float* residuals) {
        if (!p.remembers) {
            before = nullptr;
            after = nullptr;
            values = static_cast<const u8*>(gradients) + top.first * (p.dtype == 0 ? 4 : 2);
            dtype = p.dtype;
        } else {
            before = residuals + program->half * program->elements + top.first;
            after = residuals + (1 - program->half) * program->elements + top.first;
            values = after;
            dtype = 0;
        }
    }

    __device__ float stays(const Program* program, u64 i, float offered, float sent) const {
        return program->keep * before[i] + program->gain * (offered - sent);
    }
};

// Four values from i on, or what there is of them up to `count`.
__device__ inline void store4(float* values, u64 i, u64 count, const float (&four)[4]) {
    if (count - i >= 4 && reinterpret_cast<u64>(values) % 16 == 0) {
        reinterpret_cast<uint4*>(values)[i / 4] = uint4{__float_as_uint(four[0]), __float_as_uint(four[1]),
                                                        __float_as_uint(four[2]), __float_as_uint(four[3])};
        return;
    }
#pragma unroll
    for (u32 k = 0; k < 4; k++) {
        if (i + k < count) {
            values[i + k] = four[k];
        }
    }
}

// Sums of gradients and residuals, and their bins.
extern "C" __launch_bounds__(BLOCK, 4) __global__ void offer(Params p, const Top* tops, const u32* top_of, Program* program, const void* gradients,
                                 float* residuals, Cut* cuts, u32* bins) {
    __shared__ u32 room[1u << FIRST_BITS];
    count_nothing<FIRST_BITS>(room);
    u32 end = share(p.spans, blockIdx.x + 1);
    for (u32 at = share(p.spans, blockIdx.x); at < end;) {
        u32 number = p.layers == 1 ? 0 : top_of[at];
        Top top = tops[number];
        Offered offered(p, top, program, gradients, residuals);
        const void* gradient = static_cast<const u8*>(gradients) + top.first * (p.dtype == 0 ? 4 : 2);
        u32 begin = at;
        u32 zeros = 0;
        u32 largest = 0;
        for (; at < min(end, top.first_span + top.spans); at++) {
            for (u32 step = 0; step < STEPS; step++) {
                u64 i = u64(at - top.first_span) * SPAN + step * STEP + threadIdx.x * 4;
                if (i >= top.count) {
                    break;
                }
                float own[4];
                float sum[4];
                u32 here = load4(gradient, p.dtype, i, top.count, own);
                if (offered.after != nullptr) {
                    load4(offered.before, 0, i, top.count, sum);
                }
#pragma unroll
                for (u32 k = 0; k < 4; k++) {
                    sum[k] = offered.after != nullptr ? sum[k] + own[k] : own[k];
                    u32 magnitude = __float_as_uint(sum[k]) & MAGNITUDE;
                    largest = max(largest, magnitude);
                    if (k >= here) {
                        continue;
                    }
                    u32 bin = magnitude >> (SECOND_BITS + THIRD_BITS);
                    if (bin == 0) {
                        zeros++;
                    } else {
                        atomicAdd(&room[bin], 1u);
                    }
                    if (magnitude >= INFINITE) {
                        note(&program->fault, is_finite(own[k]) ? SUM_LEFT_F32 : NOT_FINITE, top.layer, i + k);
                    }
                }
                if (offered.after != nullptr) {
                    store4(offered.after, i, top.count, sum);
                }
            }
        }
        if (zeros != 0) {
            atomicAdd(&room[0], zeros);
        }
        largest = warp_max(largest);
        if (offered.after == nullptr && threadIdx.x % 32 == 0) {
            atomicMax(&program->largest, largest);
        }
        give_counts<FIRST_BITS>(room, bins + u64(number) * BINS, at - begin, top, 0, top.keep, &cuts[number]);
    }
}

// Those that may be among the k largest, in order within each span.
extern "C" __launch_bounds__(BLOCK, 3) __global__ void gather(Params p, const Top* tops, const u32* top_of, const Program* program,
                                  const void* gradients, float* residuals, Cut* cuts, u32* bins, Kept* spans,
                                  uint2* entries) {
    __shared__ u32 room[1u << SECOND_BITS];
    __shared__ u32 start;
    count_nothing<SECOND_BITS>(room);
    u32 end = share(p.spans, blockIdx.x + 1);
    for (u32 at = share(p.spans, blockIdx.x); at < end;) {
        u32 number = p.layers == 1 ? 0 : top_of[at];
        const Top& top = tops[number];
        Cut* cut = &cuts[number];
        u32 prefix = cut->prefix;
        u32 rank = cut->rank;
        Offered offered(p, top, program, gradients, residuals);
        u32 begin = at;
        for (; at < min(end, top.first_span + top.spans); at++) {
            u64 first = u64(at - top.first_span) * SPAN + threadIdx.x * 4;
            float values[STEPS][4];
            u64 found = 0;
#pragma unroll
            for (u32 step = 0; step < STEPS; step++) {
                u64 i = first + step * STEP;
                u32 here = i < top.count ? load4(offered.values, offered.dtype, i, top.count, values[step]) : 0;
#pragma unroll
                for (u32 k = 0; k < 4; k++) {
                    u32 upper = (__float_as_uint(values[step][k]) & MAGNITUDE) >> (SECOND_BITS + THIRD_BITS);
                    found += k < here && upper >= prefix ? 1ull << (16 * step) : 0;
                }
            }
            Sums sums = block_scan(found);
            u32 total = 0;
#pragma unroll
            for (u32 step = 0; step < STEPS; step++) {
                total += u32(sums.all >> (16 * step)) & 0xffffu;
            }
            if (threadIdx.x == 0) {
                u32 used = atomicAdd(&cut->used, total);
                start = used + total <= top.room_size ? used : NOWHERE;
                u32 here = u32(min(top.count - (first < top.count ? first : top.count), u64(SPAN)));
                spans[at] = Kept{start, start == NOWHERE ? here : total, 0, 0, 0, 0};
            }
            __syncthreads();
            u32 index = start;
#pragma unroll
            for (u32 step = 0; step < STEPS; step++) {
                u64 i = first + step * STEP;
                u32 place = index + (u32(sums.before >> (16 * step)) & 0xffffu);
                index += u32(sums.all >> (16 * step)) & 0xffffu;
                float stays[4];
#pragma unroll
                for (u32 k = 0; k < 4; k++) {
                    if (i + k >= top.count) {
                        break;
                    }
                    float own = values[step][k];
                    u32 magnitude = __float_as_uint(own) & MAGNITUDE;
                    u32 upper = magnitude >> (SECOND_BITS + THIRD_BITS);
                    if (upper == prefix) {
                        atomicAdd(&room[magnitude >> THIRD_BITS & ((1u << SECOND_BITS) - 1)], 1u);
                    }
                    if (upper >= prefix && start != NOWHERE) {
                        entries[top.room + place] = uint2{u32(i) + k, __float_as_uint(own)};
                        place++;
                    }
                    if (offered.after != nullptr && program->keep != 0.0f) {
                        stays[k] = offered.stays(program, i + k, own, 0.0f);
                    }
                }
                // Where all is remembered, what is not sent stays as it is.
                if (offered.after != nullptr && program->keep != 0.0f && start != NOWHERE && i < top.count) {
                    store4(offered.after, i, top.count, stays);
                }
            }
        }
        give_counts<SECOND_BITS>(room, bins + u64(number) * BINS, at - begin, top, prefix, rank, cut);
    }
}

// What a span chooses from, in order of position: what was gathered of it or, where there was no room, all its values.
struct Choice {
    const uint2* entries;  // null for all values
    const Offered& offered;
    u64 first;
    u32 size;

    __device__ Choice(const Top& top, const Kept& kept, const Offered& offered, const uint2* all, u32 span)
        : offered(offered), first(u64(span) * SPAN), size(kept.size) {
        entries = kept.start == NOWHERE ? nullptr : all + top.room + kept.start;
    }

    // Position and bits.
    __device__ uint2 at(u32 i) const {
        if (entries != nullptr) {
            return entries[i];
        }
        return uint2{u32(first) + i, __float_as_uint(value(offered.values, offered.dtype, first + i))};
    }
};

// The last bits of the cut. And words of the payload in which bits will be set become 0.
extern "C" __global__ void refine(Params p, const Top* tops, const u32* top_of, const Program* program,
                                  const void* gradients, float* residuals, Cut* cuts, u32* bins, const Kept* spans,
                                  const uint2* entries, u8* message) {
    __shared__ u32 room[1u << THIRD_BITS];
    count_nothing<THIRD_BITS>(room);
    u32 end = share(p.spans, blockIdx.x + 1);
    for (u32 at = share(p.spans, blockIdx.x); at < end;) {
        u32 number = p.layers == 1 ? 0 : top_of[at];
        Top top = tops[number];
        Cut* cut = &cuts[number];
        u32 prefix = cut->prefix;
        u32 rank = cut->rank;
        Offered offered(p, top, program, gradients, residuals);
        u32* words = reinterpret_cast<u32*>(message + top.payload) + top.low_at / 32;
        u64 of_positions = (top.end + 31) / 32 - top.low_at / 32;
        u32 begin = at;
        for (; at < min(end, top.first_span + top.spans); at++) {
            u32 span = at - top.first_span;
            u64 next = of_positions * (span + 1) / top.spans;
            for (u64 word = of_positions * span / top.spans + threadIdx.x; word < next; word += BLOCK) {
                words[word] = 0;
            }
            Choice choice(top, spans[at], offered, entries, span);
            for (u32 i = threadIdx.x; i < choice.size; i += BLOCK) {
                u32 magnitude = choice.at(i).y & MAGNITUDE;
                if (magnitude >> THIRD_BITS == prefix) {
                    atomicAdd(&room[magnitude & ((1u << THIRD_BITS) - 1)], 1u);
                }
            }
        }
        give_counts<THIRD_BITS>(room, bins + u64(number) * BINS, at - begin, top, prefix, rank, cut);
    }
}

// 0x10000 above the cut, 1 at it. Sums over a span fit.
__device__ inline u32 above_or_tied(u32 magnitude, u32 cut) {
    return magnitude > cut ? 0x10000u : magnitude == cut ? 1 : 0;
}

// How many are above the cut and at it before each of a layer's spans, by one block.
__device__ inline void add_up(const Top& top, Kept* spans) {
    u32 first = top.first_span + u32(u64(top.spans) * threadIdx.x / BLOCK);
    u32 end = top.first_span + u32(u64(top.spans) * (threadIdx.x + 1) / BLOCK);
    u32 above = 0;
    u32 tied = 0;
    for (u32 at = first; at < end; at++) {
        above += fresh(spans[at].above);
        tied += fresh(spans[at].tied);
    }
    above = u32(block_scan(above).before);
    tied = u32(block_scan(tied).before);
    for (u32 at = first; at < end; at++) {
        spans[at].above_before = above;
        spans[at].tied_before = tied;
        above += fresh(spans[at].above);
        tied += fresh(spans[at].tied);
    }
}

// How much of each span is kept.
extern "C" __global__ void count_kept(Params p, const Top* tops, const u32* top_of, const Program* program,
                                      const void* gradients, float* residuals, Cut* cuts, Kept* spans,
                                      const uint2* entries) {
    u32 end = share(p.spans, blockIdx.x + 1);
    for (u32 at = share(p.spans, blockIdx.x); at < end;) {
        u32 number = p.layers == 1 ? 0 : top_of[at];
        Top top = tops[number];
        Cut* cut = &cuts[number];
        u32 prefix = cut->prefix;
        Offered offered(p, top, program, gradients, residuals);
        u32 begin = at;
        for (; at < min(end, top.first_span + top.spans); at++) {
            Choice choice(top, spans[at], offered, entries, at - top.first_span);
            u32 own = 0;
            for (u32 i = threadIdx.x; i < choice.size; i += BLOCK) {
                own += above_or_tied(choice.at(i).y & MAGNITUDE, prefix);
            }
            u32 all = u32(block_scan(own).all);
            if (threadIdx.x == 0) {
                spans[at].above = all >> 16;
                spans[at].tied = all & 0xffffu;
            }
        }
        if (is_last(&cut->done, at - begin, top.spans)) {
            add_up(top, spans);
            if (threadIdx.x == 0) {
                cut->used = 0;
            }
        }
    }
}

// Sets bits of words that begin as 0.
__device__ inline void set_bits(u32* words, u64 at, u32 bits) {
    u32 shift = u32(at % 32);
    atomicOr(&words[at / 32], bits << shift);
    if (shift > 0 && bits >> (32 - shift) != 0) {
        atomicOr(&words[at / 32 + 1], bits >> (32 - shift));
    }
}

// Writes a value that is kept, and its position. Returns what it is for those who read it.
__device__ inline float write_one(const Top& top, u32* words, u32 index, uint2 entry) {
    float sent = __uint_as_float(entry.y);
    if (top.sent == 0) {
        words[HEADER / 4 + index] = entry.y;
    } else {
        u32 half = top.sent == 1 ? narrow_f16(entry.y) : narrow_bf16(entry.y);
        sent = widen(half, top.sent);
        // Positions may share the last word.
        if (index + 1 == top.keep && index % 2 == 0) {
            set_bits(words, 8 * HEADER + u64(index) * 16, half);
        } else {
            reinterpret_cast<u16*>(words)[HEADER / 2 + index] = u16(half);
        }
    }
    if (top.placement == 1) {
        set_bits(words, top.high_at + entry.x, 1);
    } else if (top.placement == 2) {
        if (top.low_bits > 0) {
            set_bits(words, top.low_at + u64(index) * top.low_bits, entry.x & ((1u << top.low_bits) - 1));
        }
        set_bits(words, top.high_at + u64(entry.x >> top.low_bits) + index, 1);
    }
    return sent;
}

// The payloads, and what stays. Then what the other ranks are told of this one or, of a layer on its own, which magnitudes are
// the largest and the k-th largest.
extern "C" __global__ void write_kept(Params p, const Top* tops, const u32* top_of, Program* program,
                                      const void* gradients, float* residuals, const Cut* cuts, const Kept* spans,
                                      const uint2* entries, u8* message) {
    u32 end = share(p.spans, blockIdx.x + 1);
    for (u32 at = share(p.spans, blockIdx.x); at < end; at++) {
        u32 number = p.layers == 1 ? 0 : top_of[at];
        Top top = tops[number];
        u32 cut = cuts[number].prefix;
        u32 ties = cuts[number].rank;
        Offered offered(p, top, program, gradients, residuals);
        u32* words = reinterpret_cast<u32*>(message + top.payload);
        if (at == top.first_span && threadIdx.x < HEADER / 4) {
            u64 half = threadIdx.x < 2 ? top.header_low : top.header_high;
            words[threadIdx.x] = u32(half >> (threadIdx.x % 2 * 32));
        }
        Kept kept = spans[at];
        Choice choice(top, kept, offered, entries, at - top.first_span);
        for (u32 first = 0; first < kept.size; first += BLOCK) {
            u32 i = first + threadIdx.x;
            bool here = i < kept.size;
            uint2 entry = here ? choice.at(i) : uint2{0, 0};
            u32 own = here ? above_or_tied(entry.y & MAGNITUDE, cut) : 0;
            Sums sums = block_scan(own);
            u32 tied = kept.tied_before + (u32(sums.before) & 0xffffu);
            u32 index = kept.above_before + (u32(sums.before) >> 16) + min(tied, ties);
            // More than k only when the values were written to meanwhile.
            bool goes = (own > 1 || (own == 1 && tied < ties)) && index < top.keep;
            float sent = goes ? write_one(top, words, index, entry) : 0.0f;
            if (here && offered.after != nullptr && (goes || kept.start == NOWHERE)) {
                float stays = offered.stays(program, entry.x, __uint_as_float(entry.y), sent);
                offered.after[entry.x] = stays;
                if (!is_finite(stays)) {
                    note(&program->fault, REST_LEFT_F32, top.layer, entry.x);
                }
            }
            kept.above_before += u32(sums.all) >> 16;
            kept.tied_before += u32(sums.all) & 0xffffu;
        }
    }
    if (!is_last(&program->done, 1, gridDim.x) || threadIdx.x != 0) {
        return;
    }
    if (p.remembers) {
        tell(program, reinterpret_cast<u32*>(message));
    } else {
        program->told = u64(cuts[0].prefix) << 32 | program->largest;
    }
}
