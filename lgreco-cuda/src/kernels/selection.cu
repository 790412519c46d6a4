// Which values are the k largest, of all layers together. After the sample one launch goes over all values: it sums up gradients
// and residuals, gathers what reaches the sample's bound, in order within each span, and counts that in narrow bins. One launch
// counts what is in the bin that has the k-th largest by magnitude, which makes the cut known, and one counts how many of each
// span are kept. The last block that has been through a layer's spans finds what the next launch needs. Selection is integer
// arithmetic, and places come from counts, so nothing depends on the order of blocks, nor on the sample: where its bound is too
// high, or the bin too wide to tell its magnitudes apart, the last block finds the cut by itself.

// The range of what is kept, once all of the cut is known; the next step's begins anew. By one block.
__device__ inline void end_cut(Cut* cut) {
    __syncthreads();
    if (threadIdx.x == 0) {
        // This block may have changed them.
        u32 largest = atomicExch(&cut->largest, 0u);
        u32 least = atomicExch(&cut->least, 0u);
        cut->high = largest;
        // Where zeros are kept, so is all else.
        cut->low = cut->prefix != 0 ? cut->prefix : least != 0 ? ~least : largest;
    }
}

// Sums of gradients and residuals; those that may be among the k largest, in order within each span, and their bins.
extern "C" __launch_bounds__(BLOCK, 3) __global__ void offer(Params p, const Top* tops, const u32* top_of,
                                                             Program* program, const void* gradients,
                                                             float* residuals, Cut* cuts, u32* bins, Kept* spans,
                                                             uint2* entries) {
    __shared__ u32 room[1u << FIRST_BITS];
    __shared__ u32 totals[WARPS];
    __shared__ u32 place;
    count_nothing<FIRST_BITS>(room);
    u32 end = share(p.spans, blockIdx.x + 1);
    for (u32 at = share(p.spans, blockIdx.x); at < end;) {
        u32 number = p.layers == 1 ? 0 : top_of[at];
        const Top& top = tops[number];
        Cut* cut = &cuts[number];
        u32 base = cut->base;
        float bound = __uint_as_float(cut->bound);
        Offered offered(p, top, program, gradients, residuals);
        bool is_simple = has_fours(offered.gradient, p.dtype) && has_fours(offered.before, 0) &&
                         has_fours(offered.after, 0);
        u32 count = top.count;
        uint2* own_entries = entries + top.room;
        u32 room_size = top.room_size;
        u32 stop = min(end, top.first_span + top.spans);
        u32 begin = at;
        u32 zeros = 0;
        u32 largest = 0;
        u32 least = 0;
        for (; at < stop; at++) {
            u64 span = u64(at - top.first_span) * SPAN;
            u64 first = span + threadIdx.x / 32 * OF_WARP + threadIdx.x % 32 * 4;
            Strips strips;
            if (is_simple && span + SPAN <= count) {
                strips.load_simple(offered, first);
            } else {
                strips.load(offered, first, count);
            }
            u32 mask = 0;
#pragma unroll
            for (u32 strip = 0; strip < STRIPS; strip++) {
#pragma unroll
                for (u32 k = 0; k < 4; k++) {
                    // What is no number reaches every bound.
                    mask |= fabsf(strips.values[strip][k]) < bound ? 0 : 1u << (4 * strip + k);
                }
            }
            mask &= strips.there;
            Positions positions(mask, totals);
            if (threadIdx.x == 0) {
                u32 used = atomicAdd(&cut->used, positions.all);
                bool fits = used + positions.all <= room_size;
                place = fits ? used : NOWHERE;
                u32 size = fits ? positions.all : u32(min(count - min(span, u64(count)), u64(SPAN)));
                spans[at] = Kept{place, size, 0, 0, 0, 0};
            }
            __syncthreads();
            u32 to = place;
            for (u32 rest = mask; rest != 0; rest &= rest - 1) {
                u32 bit = __ffs(rest) - 1;
                u32 strip = bit / 4;
                u64 i = first + strip * STRIP + bit % 4;
                u32 bits = __float_as_uint(value(offered.values, offered.dtype, i));
                u32 magnitude = bits & MAGNITUDE;
                if (magnitude == 0) {
                    zeros++;
                } else {
                    atomicAdd(&room[bin_of(magnitude, base)], 1u);
                }
                largest = max(largest, magnitude);
                least = max(least, magnitude == 0 ? 0 : ~magnitude);
                if (magnitude >= INFINITE) {
                    bool good = is_finite(value(offered.gradient, offered.gradient_dtype, i));
                    note(&program->fault, good ? SUM_LEFT_F32 : NOT_FINITE, top.layer, top.start + i);
                }
                if (to != NOWHERE) {
                    u32 earlier = __popc(mask & ((1u << bit) - (1u << (4 * strip))));
                    own_entries[to + positions.of(strip) + earlier] = uint2{u32(i), bits};
                }
            }
        }
        if (zeros != 0) {
            atomicAdd(&room[bin_of(0, base)], zeros);
        }
        largest = warp_max(largest);
        least = warp_max(least);
        if (threadIdx.x % 32 == 0) {
            atomicMax(&cut->largest, largest);
            atomicMax(&cut->least, least);
        }
        u32* counts = bins + u64(number) * BINS;
        if (give_counts<FIRST_BITS>(room, counts, at - begin, top.spans, cut)) {
            Picked found = pick(counts, 1u << FIRST_BITS, top.keep);
            if (threadIdx.x == 0) {
                cut->bin = found.bin;
                cut->rank = found.rank;
                cut->prefix = start_of(found.bin, *cut);
            }
            forget_counts(counts);
        }
    }
}

// Makes a layer's spans choose from all their values, by one block.
__device__ inline void forget_gathered(const Top& top, Kept* spans) {
    for (u32 span = threadIdx.x; span < top.spans; span += BLOCK) {
        u32 size = u32(min(top.count - u64(span) * SPAN, u64(SPAN)));
        spans[top.first_span + span] = Kept{NOWHERE, size, 0, 0, 0, 0};
    }
}

// Finds the cut whatever the sample was, by one block: among what was gathered or, where there was no room for all of it or
// fewer than k values reach the bound, among all values. `room` has 2^SECOND_BITS zeros.
__device__ inline void settle(const Top& top, const Offered& offered, Cut* cut, Kept* spans, const uint2* entries,
                              u32* room) {
    bool missed = cut->bin == NOWHERE;
    bool gathered = !missed && cut->used <= top.room_size;
    u32 size = gathered ? cut->used : top.count;
    bool is_narrow = !gathered && offered.dtype != 0;
    const u32* words = gathered ? &entries[top.room].y : static_cast<const u32*>(offered.values);
    u64 apart = gathered ? 2 : 1;
    Picked found = {0, top.keep};
    u32 prefix = 0;
    u32 largest = 0;
    u32 least = 0;
#pragma unroll 1
    for (u32 shift = 31; shift > 0;) {
        u32 bits = min(shift, u32(SECOND_BITS));
        shift -= bits;
        auto add = [&](float own) {
            u32 magnitude = __float_as_uint(own) & MAGNITUDE;
            largest = max(largest, magnitude);
            least = max(least, magnitude == 0 ? 0 : ~magnitude);
            if (u64(magnitude) >> (shift + bits) == prefix) {
                atomicAdd(&room[magnitude >> shift & ((1u << bits) - 1)], 1u);
            }
        };
#pragma unroll 1
        for (u64 i = threadIdx.x; is_narrow && i < size; i += BLOCK) {
            add(widen(static_cast<const u16*>(offered.values)[i], offered.dtype));
        }
#pragma unroll 4
        for (u64 i = threadIdx.x; !is_narrow && i < size; i += BLOCK) {
            add(__uint_as_float(words[i * apart]));
        }
        __syncthreads();
        found = pick(room, 1u << SECOND_BITS, found.rank);
        count_nothing<SECOND_BITS>(room);
        prefix = prefix << bits | found.bin;
    }
    if (missed) {
        forget_gathered(top, spans);
    }
    atomicMax(&cut->largest, largest);
    atomicMax(&cut->least, least);
    __syncthreads();
    if (threadIdx.x == 0) {
        cut->prefix = prefix;
        cut->rank = found.rank;
    }
}

// The cut. And words of the payload in which bits will be set become 0.
extern "C" __global__ void refine(Params p, const Top* tops, const u32* top_of, const Program* program,
                                  const void* gradients, float* residuals, Cut* cuts, u32* bins, Kept* spans,
                                  const uint2* entries, u8* message) {
    __shared__ u32 room[1u << SECOND_BITS];
    count_nothing<SECOND_BITS>(room);
    u32 end = share(p.spans, blockIdx.x + 1);
    for (u32 at = share(p.spans, blockIdx.x); at < end;) {
        u32 number = p.layers == 1 ? 0 : top_of[at];
        Top top = tops[number];
        Cut* cut = &cuts[number];
        u32 bin = cut->bin;
        u32 base = cut->base;
        u32 start = cut->prefix;
        u32 rank = cut->rank;
        Offered offered(p, top, program, gradients, residuals);
        u32* words = reinterpret_cast<u32*>(message + top.payload) + top.bits_at / 32;
        u64 of_bits = (top.end + 31) / 32 - top.bits_at / 32;
        u32 begin = at;
        at = min(end, top.first_span + top.spans);
        for (u32 of_warp = begin + threadIdx.x / 32; of_warp < at; of_warp += WARPS) {
            u32 span = of_warp - top.first_span;
            u64 next = of_bits * (span + 1) / top.spans;
#pragma unroll 1
            for (u64 word = of_bits * span / top.spans + threadIdx.x % 32; word < next; word += 32) {
                words[word] = 0;
            }
            Choice choice(top, spans[of_warp], offered, entries, span);
#pragma unroll 1
            for (u32 i = threadIdx.x % 32; i < choice.size; i += 32) {
                u32 magnitude = choice.at(i).y & MAGNITUDE;
                // The first bin and the last one may have more magnitudes than there are counts.
                if (bin_of(magnitude, base) == bin && magnitude >= start) {
                    atomicAdd(&room[min(magnitude - start, BINS - 1)], 1u);
                }
            }
        }
        u32* counts = bins + u64(number) * BINS;
        if (give_counts<SECOND_BITS>(room, counts, at - begin, top.spans, cut)) {
            Picked found = pick(counts, 1u << SECOND_BITS, rank);
            forget_counts(counts);
            bool is_narrow = bin != 0 && bin < LAST_BIN;
            if (is_narrow || (bin != NOWHERE && found.bin < BINS - 1)) {
                if (threadIdx.x == 0) {
                    cut->prefix = start + found.bin;
                    cut->rank = found.rank;
                }
            } else if (bin != NOWHERE && top.keep == top.count) {
                // All are above zero, or that would have been found.
                if (threadIdx.x == 0) {
                    cut->prefix = 0;
                    cut->rank = 0;
                }
            } else {
                settle(top, offered, cut, spans, entries, room);
            }
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
#pragma unroll 1
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
        at = min(end, top.first_span + top.spans);
        for (u32 of_warp = begin + threadIdx.x / 32; of_warp < at; of_warp += WARPS) {
            Choice choice(top, spans[of_warp], offered, entries, of_warp - top.first_span);
            u32 own = 0;
#pragma unroll 1
            for (u32 i = threadIdx.x % 32; i < choice.size; i += 32) {
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
            own = warp_scan(own);
            if (threadIdx.x % 32 == 31) {
                spans[of_warp].above = own >> 16;
                spans[of_warp].tied = own & 0xffffu;
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
