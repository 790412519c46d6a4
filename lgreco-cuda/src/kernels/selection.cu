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

// What a thread has found in spans.
struct Found {
    u32 zeros;
    u32 largest;  // magnitude, and complement of the least but 0
    u32 least;
};

// What the threads of a block tell each other of a span. It is passed on, since what is shared in a template is not where the shim
// looks for it.
struct Together {
    u32 totals[WARPS];
    u32 ends[WARPS];
    u32 place;
};

// Sums of gradients and residuals of a layer's spans from `at` to `stop`; those that may be among the k largest, in order within
// each span, and their bins. All threads of the block must come.
template <bool IS_WIDE>
__device__ inline Found offer_spans(const Top& top, const Offered& offered, bool is_simple, u32 at, u32 stop,
                                    Program* program, Cut* cut, u32* room, Kept* spans, uint2* entries,
                                    Together& together) {
    u32 base = cut->base;
    float bound = __uint_as_float(cut->bound);
    u32 count = top.count;
    uint2* own_entries = entries + top.room;
    u32 room_size = top.room_size;
    Found found = {0, 0, 0};
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
        if (IS_WIDE) {
            u32 own = warp_sum(take_ends(strips, mask, cut, found.largest, found.least));
            if (threadIdx.x % 32 == 0) {
                together.ends[threadIdx.x / 32] = own;
            }
        }
        Positions positions(mask, together.totals);
        if (threadIdx.x == 0) {
            u32 used = atomicAdd(&cut->used, positions.all);
            bool fits = used + positions.all <= room_size;
            u32 place = fits ? used : NOWHERE;
            together.place = place;
            u32 size = fits ? positions.all : u32(min(count - min(span, u64(count)), u64(SPAN)));
            spans[at] = Kept{place, size, 0, 0, 0, 0};
            if (IS_WIDE) {
                count_ends(Ends(together.ends), fits, cut, room, &spans[at]);
            }
        }
        __syncthreads();
        u32 to = together.place;
        for (u32 rest = mask; rest != 0; rest &= rest - 1) {
            u32 bit = __ffs(rest) - 1;
            u32 strip = bit / 4;
            u64 i = first + strip * STRIP + bit % 4;
            u32 bits = __float_as_uint(value(offered.values, offered.dtype, i));
            u32 magnitude = bits & MAGNITUDE;
            if (magnitude == 0) {
                found.zeros++;
            } else {
                atomicAdd(&room[bin_of(magnitude, base)], 1u);
            }
            found.largest = max(found.largest, magnitude);
            found.least = max(found.least, magnitude == 0 ? 0 : ~magnitude);
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
    return found;
}

// Of the layers that have a ceiling, or of the others. All threads of the block must come.
template <bool IS_WIDE>
__device__ inline void offer_layers(const Params& p, const Top* tops, const u32* top_of, Program* program,
                                    const void* gradients, float* residuals, Cut* cuts, u32* bins, Kept* spans,
                                    uint2* entries, u32* room, Together& together) {
    u32 end = share(p.spans, blockIdx.x + 1);
    for (u32 at = share(p.spans, blockIdx.x); at < end;) {
        u32 number = p.layers == 1 ? 0 : top_of[at];
        const Top& top = tops[number];
        Cut* cut = &cuts[number];
        if ((cut->ceiling != NOWHERE) != IS_WIDE) {
            at = top.first_span + top.spans;
            continue;
        }
        Offered offered(p, top, program, gradients, residuals);
        bool is_simple = has_fours(offered.gradient, p.dtype) && has_fours(offered.before, 0) &&
                         has_fours(offered.after, 0);
        u32 begin = at;
        at = min(end, top.first_span + top.spans);
        Found found = offer_spans<IS_WIDE>(top, offered, is_simple, begin, at, program, cut, room, spans, entries,
                                           together);
        if (found.zeros != 0) {
            atomicAdd(&room[bin_of(0, cut->base)], found.zeros);
        }
        u32 largest = warp_max(found.largest);
        u32 least = warp_max(found.least);
        if (threadIdx.x % 32 == 0) {
            atomicMax(&cut->largest, largest);
            atomicMax(&cut->least, least);
        }
        u32* counts = bins + u64(number) * BINS;
        if (give_counts<FIRST_BITS>(room, counts, at - begin, top.spans, cut)) {
            u32 rank = top.keep - min(fresh(cut->above), top.keep);
            Picked found = {NOWHERE, 0};
            if (rank > 0 || top.keep == top.count) {
                found = pick(counts, 1u << FIRST_BITS, rank);
            }
            if (threadIdx.x == 0) {
                cut->bin = found.bin;
                cut->rank = found.rank;
                cut->prefix = start_of(found.bin, *cut);
            }
            forget_counts(counts);
        }
    }
}

extern "C" __launch_bounds__(BLOCK, 3) __global__ void offer(Params p, const Top* tops, const u32* top_of,
                                                             Program* program, const void* gradients,
                                                             float* residuals, Cut* cuts, u32* bins, Kept* spans,
                                                             uint2* entries) {
    __shared__ u32 room[1u << FIRST_BITS];
    __shared__ Together together;
    count_nothing<FIRST_BITS>(room);
    offer_layers<false>(p, tops, top_of, program, gradients, residuals, cuts, bins, spans, entries, room,
                        together);
    offer_layers<true>(p, tops, top_of, program, gradients, residuals, cuts, bins, spans, entries, room,
                       together);
}

// Makes a layer's spans choose from all their values, by one block.
__device__ inline void forget_gathered(const Top& top, Kept* spans) {
    for (u32 span = threadIdx.x; span < top.spans; span += BLOCK) {
        spans[top.first_span + span] = Kept{NOWHERE, size_of(top, span), 0, 0, 0, 0};
    }
}

// Finds the cut whatever the sample was, by one block: among what was gathered or, where there was no room for all of it or the
// k-th largest is not where the sample has it, among all values. `room` has 2^SECOND_BITS zeros.
__device__ inline void settle(const Top& top, const Offered& offered, Cut* cut, Kept* spans, const uint2* entries,
                              u32* room) {
    bool missed = cut->bin == NOWHERE;
    bool gathered = !missed && cut->used <= top.room_size;
    u32 size = gathered ? cut->used : top.count;
    bool is_narrow = !gathered && offered.dtype != 0;
    const u32* words = gathered ? &entries[top.room].y : static_cast<const u32*>(offered.values);
    u64 apart = gathered ? 2 : 1;
    u32 largest = 0;
    u32 least = 0;
    Picked found = {0, top.keep - (gathered ? cut->above : 0)};
    Digits digits(31);
#pragma unroll 1
    while (digits.next()) {
        auto add = [&](float own) {
            u32 magnitude = __float_as_uint(own) & MAGNITUDE;
            largest = max(largest, magnitude);
            least = max(least, magnitude == 0 ? 0 : ~magnitude);
            digits.add(room, magnitude, found.bin, 1);
        };
#pragma unroll 1
        for (u64 i = threadIdx.x; is_narrow && i < size; i += BLOCK) {
            add(widen(static_cast<const u16*>(offered.values)[i], offered.dtype));
        }
#pragma unroll 4
        for (u64 i = threadIdx.x; !is_narrow && i < size; i += BLOCK) {
            add(__uint_as_float(words[i * apart]));
        }
#pragma unroll 1
        for (u32 span = threadIdx.x; gathered && cut->ceiling != NOWHERE && span < top.spans; span += BLOCK) {
            Ends ends(spans[top.first_span + span]);
            digits.add(room, cut->ceiling, found.bin, ends.upper);
            digits.add(room, cut->bound, found.bin, ends.lower);
        }
        found = digits.pick(room, found);
    }
    if (missed) {
        forget_gathered(top, spans);
    }
    atomicMax(&cut->largest, largest);
    atomicMax(&cut->least, least);
    __syncthreads();
    if (threadIdx.x == 0) {
        cut->prefix = found.bin;
        cut->rank = found.rank;
    }
}

// The cut. And words of the payload in which bits will be set become 0.
extern "C" __global__ void refine(Params p, const Top* tops, const u32* top_of, Program* program,
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
        u32 ceiling = cut->ceiling;
        bool is_infinite = ceiling != NOWHERE && cut->largest >= INFINITE;
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
            // What was only counted.
            u32 rest = is_infinite ? size_of(top, span) : 0;
            for (u32 i = threadIdx.x % 32; i < rest; i += 32) {
                note_infinite(program, top, offered, u64(span) * SPAN + i);
            }
            auto add = [&](u32 magnitude, u32 times) {
                // The first bin and the last one may have more magnitudes than there are counts.
                if (times != 0 && bin_of(magnitude, base) == bin && magnitude >= start && magnitude <= ceiling) {
                    atomicAdd(&room[min(magnitude - start, BINS - 1)], times);
                }
            };
            Choice choice(top, spans[of_warp], offered, entries, span);
#pragma unroll 1
            for (u32 i = threadIdx.x % 32; i < choice.size; i += 32) {
                add(choice.at(i).y & MAGNITUDE, 1);
            }
            if (ceiling != NOWHERE && threadIdx.x % 32 == 0) {
                Ends ends(spans[of_warp]);
                add(ceiling, ends.upper);
                add(cut->bound, ends.lower);
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

// Whether a layer's bins are added up while codes are written.
__device__ inline bool adds_later(const Params& p, const Top& top, const Cut& cut) {
    return top.bits != 0 && !p.remembers && cut.ceiling != NOWHERE;
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

// Adds up the magnitudes above the cut in those of a layer's bins whose largest one has an exponent that was not thought of, by the
// last block.
__device__ inline void add_missed(const Top& top, u32 prefix, const BinUnits& units, const Offered& offered,
                                  const Kept* spans, const uint2* entries, Few* few, BinSums& sums) {
    bool misses = false;
    for (u32 bin = 0; bin < 1u << units.bins.log_count; bin++) {
        misses = misses || units.is_missed(bin, fresh(few->exponents[bin]));
    }
    __syncthreads();
    if (!misses) {
        return;
    }
    u32 own = threadIdx.x;
    if (own < 1u << units.bins.log_count && units.is_missed(own, fresh(few->exponents[own]))) {
        atomicExch(&few->sums[units.slot(own)], 0ull);
    }
    for (u32 span = 0; span < top.spans; span++) {
        const Kept& of_span = spans[top.first_span + span];
        if (fresh(of_span.above) == 0) {
            continue;
        }
        Kept kept = {fresh(of_span.start), fresh(of_span.size), 0, 0, 0, 0};
        Choice choice(top, kept, offered, entries, span);
#pragma unroll 1
        for (u32 i = threadIdx.x; i < choice.size; i += BLOCK) {
            u32 magnitude = choice.at(i).y & MAGNITUDE;
            u32 bin = units.bins.of(magnitude);
            u32 exponent = fresh(few->exponents[bin]);
            if (magnitude > prefix && units.is_missed(bin, exponent)) {
                atomicAdd(&sums.sums[units.slot(bin)], digits_of(magnitude, exponent));
            }
        }
    }
    sums.give(few);
}

// How much of each span is kept; of layers with codes, the means of their bins too. Where bins span many powers of two, which
// takes magnitudes 2^14 apart or more, and one has none in its upper four, the last block goes over what is kept once more.
extern "C" __launch_bounds__(BLOCK, 4) __global__ void count_kept(Params p, const Top* tops, const u32* top_of,
                                                                  const Program* program, const void* gradients,
                                                                  float* residuals, Cut* cuts, Kept* spans,
                                                                  const uint2* entries, Few* few, u8* message) {
    __shared__ BinSums sums;
    sums.clear();
    u32 end = share(p.spans, blockIdx.x + 1);
    for (u32 at = share(p.spans, blockIdx.x); at < end;) {
        u32 number = p.layers == 1 ? 0 : top_of[at];
        Top top = tops[number];
        Cut* cut = &cuts[number];
        u32 prefix = cut->prefix;
        u32 bound = cut->bound;
        u32 ceiling = cut->ceiling;
        bool is_wide = ceiling != NOWHERE;
        // What a layer has too much of to be gathered is read once more, for its bins: before codes are written where what they
        // stand for is taken off what is remembered, else with them.
        bool adds = top.bits != 0 && !adds_later(p, top, *cut);
        bool reads_all = is_wide && adds;
        BinUnits units{CodeBins(top, *cut)};
        Offered offered(p, top, program, gradients, residuals);
        u32 begin = at;
        at = min(end, top.first_span + top.spans);
        for (u32 of_warp = begin + threadIdx.x / 32; of_warp < at; of_warp += WARPS) {
            u32 span = of_warp - top.first_span;
            Kept kept = spans[of_warp];
            u32 own = 0;
            if (reads_all) {
                kept.start = NOWHERE;
                kept.size = size_of(top, span);
            } else if (is_wide && threadIdx.x % 32 == 0) {
                Ends ends(kept);
                own = ends.above << 16;
                own += ends.upper * above_or_tied(ceiling, prefix) + ends.lower * above_or_tied(bound, prefix);
            }
            Choice choice(top, kept, offered, entries, span);
#pragma unroll 1
            for (u32 i = threadIdx.x % 32; i < choice.size; i += 32) {
                u32 magnitude = choice.at(i).y & MAGNITUDE;
                own += above_or_tied(magnitude, prefix);
                if (adds) {
                    sums.add(units, magnitude, prefix);
                }
            }
            own = warp_scan(own);
            __syncwarp();
            if (threadIdx.x % 32 == 31) {
                spans[of_warp].above = own >> 16;
                spans[of_warp].tied = own & 0xffffu;
                if (is_wide) {
                    spans[of_warp].start = NOWHERE;
                    spans[of_warp].size = size_of(top, span);
                }
            }
        }
        if (adds) {
            sums.give(&few[top.few]);
        }
        if (is_last(&cut->done, at - begin, top.spans)) {
            add_up(top, spans);
            if (threadIdx.x == 0) {
                cut->used = 0;
                cut->above = 0;
            }
            if (adds) {
                add_missed(top, prefix, units, offered, spans, entries, &few[top.few], sums);
                make_means(top, *cut, units, &few[top.few], reinterpret_cast<u32*>(message + top.payload));
            }
        }
    }
}
