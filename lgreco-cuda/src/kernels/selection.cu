// Which values are the k largest, of all layers together. One launch sums up gradients and residuals, and counts by the
// upper 12 bits of magnitudes; one gathers those that may be among the k largest, and counts by the next 10 bits; one counts
// these by the last 9 bits, which makes the cut known; and one counts how many of each span are kept. The last block that
// has been through a layer's spans finds what the next launch needs. Selection is integer arithmetic, and places come from
// counts, so nothing depends on the order of blocks.

// Where number `rank` from above is among 2^BITS bins, and its rank there; the bins begin anew. All threads of the block
// must come.
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

// Gives away what was counted of a layer in `own` spans; the last block picks. Returns whether this is it. All threads of
// the block must come.
template <u32 BITS>
__device__ inline bool give_counts(u32* room, u32* bins, u32 own, const Top& top, u32 prefix, u32 rank, Cut* cut) {
    __syncthreads();
    for (u32 bin = threadIdx.x; bin < 1u << BITS; bin += BLOCK) {
        if (room[bin] != 0) {
            atomicAdd(&bins[bin], room[bin]);
            room[bin] = 0;
        }
    }
    bool last = is_last(&cut->done, own, top.spans);
    if (last) {
        pick<BITS>(bins, prefix, rank, cut);
    }
    return last;
}

// The range of what is kept, once all of the cut is known; the next step's begins anew. By one block.
__device__ inline void end_cut(Cut* cut) {
    __syncthreads();
    if (threadIdx.x == 0) {
        cut->high = cut->largest;
        // Where zeros are kept, so is all else.
        cut->low = cut->prefix != 0 ? cut->prefix : cut->least != 0 ? ~cut->least : cut->largest;
        cut->largest = 0;
        cut->least = 0;
    }
}

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
extern "C" __launch_bounds__(BLOCK, 4) __global__ void offer(Params p, const Top* tops, const u32* top_of,
                                                             Program* program, const void* gradients,
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
        u32 least = 0;
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
                    if (k >= here) {
                        continue;
                    }
                    largest = max(largest, magnitude);
                    least = max(least, magnitude == 0 ? 0 : ~magnitude);
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
        least = warp_max(least);
        if (threadIdx.x % 32 == 0) {
            atomicMax(&cuts[number].largest, largest);
            atomicMax(&cuts[number].least, least);
        }
        give_counts<FIRST_BITS>(room, bins + u64(number) * BINS, at - begin, top, 0, top.keep, &cuts[number]);
    }
}

// Those that may be among the k largest, in order within each span.
extern "C" __launch_bounds__(BLOCK, 3) __global__ void gather(Params p, const Top* tops, const u32* top_of,
                                                              const Program* program, const void* gradients,
                                                              float* residuals, Cut* cuts, u32* bins, Kept* spans,
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
        u32* words = reinterpret_cast<u32*>(message + top.payload) + top.bits_at / 32;
        u64 of_bits = (top.end + 31) / 32 - top.bits_at / 32;
        u32 begin = at;
        for (; at < min(end, top.first_span + top.spans); at++) {
            u32 span = at - top.first_span;
            u64 next = of_bits * (span + 1) / top.spans;
            for (u64 word = of_bits * span / top.spans + threadIdx.x; word < next; word += BLOCK) {
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
        if (give_counts<THIRD_BITS>(room, bins + u64(number) * BINS, at - begin, top, prefix, rank, cut)) {
            end_cut(cut);
        }
    }
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

// Adds up the magnitudes above the cut in a layer's bins, in units of the bins' largest ones, by the last block.
__device__ inline void add_bins(const Top& top, u32 prefix, const CodeBins& bins, const Offered& offered,
                                const Kept* spans, const uint2* entries, Few* few, BinSums& sums) {
    for (u32 span = 0; span < top.spans; span++) {
        const Kept& kept = spans[top.first_span + span];
        if (fresh(kept.above) == 0) {
            continue;
        }
        Choice choice(top, kept, offered, entries, span);
        for (u32 i = threadIdx.x; i < choice.size; i += BLOCK) {
            u32 magnitude = choice.at(i).y & MAGNITUDE;
            if (magnitude > prefix) {
                u32 bin = bins.of(magnitude);
                sums.add(bin, digits_of(magnitude, fresh(few->exponents[bin])));
            }
        }
    }
    sums.give(few);
}

// How much of each span is kept; of layers with codes, the means of their bins too. Where bins span many powers of two, which
// takes magnitudes 2^14 apart or more, the last block goes over what is kept once more.
extern "C" __global__ void count_kept(Params p, const Top* tops, const u32* top_of, const Program* program,
                                      const void* gradients, float* residuals, Cut* cuts, Kept* spans,
                                      const uint2* entries, Few* few, u8* message) {
    __shared__ BinSums sums;
    sums.clear();
    u32 end = share(p.spans, blockIdx.x + 1);
    for (u32 at = share(p.spans, blockIdx.x); at < end;) {
        u32 number = p.layers == 1 ? 0 : top_of[at];
        Top top = tops[number];
        Cut* cut = &cuts[number];
        u32 prefix = cut->prefix;
        CodeBins code_bins(top, *cut);
        BinUnits units{code_bins};
        Offered offered(p, top, program, gradients, residuals);
        u32 begin = at;
        for (; at < min(end, top.first_span + top.spans); at++) {
            Choice choice(top, spans[at], offered, entries, at - top.first_span);
            u32 own = 0;
            for (u32 i = threadIdx.x; i < choice.size; i += BLOCK) {
                u32 magnitude = choice.at(i).y & MAGNITUDE;
                own += above_or_tied(magnitude, prefix);
                // Of those at the cut one is kept at least.
                if (top.bits != 0 && magnitude >= prefix) {
                    u32 bin = code_bins.of(magnitude);
                    atomicMax(&few[top.few].exponents[bin], exponent_of(magnitude));
                    if (units.at_once() && magnitude > prefix) {
                        sums.add(bin, units.first_digits(magnitude, bin));
                    }
                }
            }
            u32 all = u32(block_scan(own).all);
            if (threadIdx.x == 0) {
                spans[at].above = all >> 16;
                spans[at].tied = all & 0xffffu;
            }
        }
        if (top.bits != 0) {
            sums.give(&few[top.few]);
        }
        if (is_last(&cut->done, at - begin, top.spans)) {
            add_up(top, spans);
            if (threadIdx.x == 0) {
                cut->used = 0;
            }
            if (top.bits != 0) {
                if (!units.at_once()) {
                    add_bins(top, prefix, code_bins, offered, spans, entries, &few[top.few], sums);
                }
                make_means(top, *cut, units, &few[top.few], reinterpret_cast<u32*>(message + top.payload));
            }
        }
    }
}
