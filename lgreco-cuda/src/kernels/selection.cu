// Selects the k largest values, for all layers together. The sample (sample.cu) gives a bound, usually a little below
// the k-th largest magnitude. Then `offer` reads all values: it adds up gradients and residuals, and gathers and counts
// the values whose magnitudes reach the bound. Gathered values keep their order within a span. Then `refine` counts the
// magnitudes in the bin of the k-th largest one. This gives the cut, the k-th largest magnitude itself. `count_kept`
// counts how many values of each span are kept. In each launch, the last block of a layer prepares the next launch.
//
// The selection uses integer arithmetic, and the values' places are computed from counts. So the results depend neither
// on the order of blocks nor on the sample. If the bound is too high, or the bin is too wide for exact counts, the last
// block finds the cut by itself.

// Sets the range of the kept magnitudes, once the cut is final. Resets `largest` and `least` for the next step. Called
// by one block.
__device__ inline void end_cut(Cut* cut) {
    __syncthreads();
    if (threadIdx.x == 0) {
        // Atomic, because this block may have changed them.
        u32 largest = atomicExch(&cut->largest, 0u);
        u32 least = atomicExch(&cut->least, 0u);
        cut->high = largest;
        // If the cut is 0, all nonzero values are kept, and the range begins at the smallest of them.
        cut->low = cut->prefix != 0 ? cut->prefix : least != 0 ? ~least : largest;
    }
}

// Statistics of the values in a thread's spans that reach the bound.
struct Found {
    u32 zeros;
    u32 largest;  // largest magnitude, and complement of the smallest nonzero one
    u32 least;
};

// Processes a layer's spans from `at` to `stop`. Adds up gradients and residuals, gathers the candidates for the k
// largest in order within each span, and counts them in bins. All threads of the block must call it.
__device__ static inline Found offer_spans(const Top& top, const Offered& offered, bool is_simple, u32 at, u32 stop,
                                    Program* program, Cut* cut, u32* room, const Spans& spans, uint2* entries) {
    __shared__ u32 totals[WARPS];
    __shared__ u32 place;
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
                // NaN reaches every bound.
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
            spans.chosen[at] = uint2{place, size};
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

// Gathers and counts the candidates of all layers. The last block of a layer finds the bin of the k-th largest
// magnitude.
extern "C" __launch_bounds__(BLOCK, 3) __global__ void offer(Params p, const Top* tops, const u32* top_of,
                                                             Program* program, const void* gradients,
                                                             float* residuals, Cut* cuts, u32* bins, uint2* of_spans,
                                                             uint2* entries) {
    __shared__ u32 room[1u << FIRST_BITS];
    Spans spans(p, of_spans);
    count_nothing<FIRST_BITS>(room);
    u32 end = share(p.spans, blockIdx.x + 1);
    for (u32 at = share(p.spans, blockIdx.x); at < end;) {
        u32 number = p.layers == 1 ? 0 : top_of[at];
        const Top& top = tops[number];
        Cut* cut = &cuts[number];
        Offered offered(p, top, program, gradients, residuals);
        bool is_simple = has_fours(offered.gradient, p.dtype) && has_fours(offered.before, 0) &&
                         has_fours(offered.after, 0);
        u32 begin = at;
        at = min(end, top.first_span + top.spans);
        Found found = offer_spans(top, offered, is_simple, begin, at, program, cut, room, spans, entries);
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
            take_counts<FIRST_BITS>(room, counts);
            Picked found = pick(room, 1u << FIRST_BITS, top.keep);
            if (threadIdx.x == 0) {
                cut->bin = found.bin;
                cut->rank = found.rank;
                cut->prefix = start_of(found.bin, *cut);
            }
            count_nothing<FIRST_BITS>(room);
        }
    }
}

// Makes all values of a layer candidates. Called by one block.
__device__ inline void forget_gathered(const Top& top, const Spans& spans) {
    for (u32 span = threadIdx.x; span < top.spans; span += BLOCK) {
        spans.chosen[top.first_span + span] = uint2{NOWHERE, size_of(top, span)};
    }
}

// Finds the cut by radix selection, whatever the sample was. Searches the gathered values. If some had no room, or if
// fewer than k values reach the bound, searches all values instead. `room` must have 2^SECOND_BITS zeros. Called by one
// block.
__device__ inline void settle(const Top& top, const Offered& offered, Cut* cut, const Spans& spans, const uint2* entries,
                              u32* room) {
    bool missed = cut->bin == NOWHERE;
    bool gathered = !missed && cut->used <= top.room_size;
    u32 size = gathered ? cut->used : top.count;
    bool is_narrow = !gathered && offered.dtype != 0;
    const u32* words = gathered ? &entries[top.room].y : static_cast<const u32*>(offered.values);
    u64 apart = gathered ? 2 : 1;
    u32 largest = 0;
    u32 least = 0;
    Picked found = {0, top.keep};
    Digits digits(31);
#pragma unroll 1
    while (digits.next()) {
        auto add = [&](float own) {
            u32 magnitude = __float_as_uint(own) & MAGNITUDE;
            largest = max(largest, magnitude);
            least = max(least, magnitude == 0 ? 0 : ~magnitude);
            digits.add(room, magnitude, found.bin);
        };
#pragma unroll 1
        for (u64 i = threadIdx.x; is_narrow && i < size; i += BLOCK) {
            add(widen(static_cast<const u16*>(offered.values)[i], offered.dtype));
        }
#pragma unroll 4
        for (u64 i = threadIdx.x; !is_narrow && i < size; i += BLOCK) {
            add(__uint_as_float(words[i * apart]));
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

// Finds the cut of each layer. Also zeros the payload's words in which bits will be set, up to the next multiple of 16
// bytes, where the next payload begins.
extern "C" __global__ void refine(Params p, const Top* tops, const u32* top_of, Program* program,
                                  const void* gradients, float* residuals, Cut* cuts, u32* bins, uint2* of_spans,
                                  const uint2* entries, u8* message) {
    __shared__ u32 room[1u << SECOND_BITS];
    Spans spans(p, of_spans);
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
        u64 of_bits = (top.end + 127) / 128 * 4 - top.bits_at / 32;
        u32 begin = at;
        at = min(end, top.first_span + top.spans);
        for (u32 of_warp = begin + threadIdx.x / 32; of_warp < at; of_warp += WARPS) {
            u32 span = of_warp - top.first_span;
            u64 next = of_bits * (span + 1) / top.spans;
#pragma unroll 1
            for (u64 word = of_bits * span / top.spans + threadIdx.x % 32; word < next; word += 32) {
                words[word] = 0;
            }
            Choice choice(top, spans.chosen[of_warp], offered, entries, span);
#pragma unroll 1
            for (u32 i = threadIdx.x % 32; i < choice.size; i += 32) {
                u32 magnitude = choice.at(i).y & MAGNITUDE;
                // The first and the last bin may have more magnitudes than there are counts.
                if (bin_of(magnitude, base) == bin && magnitude >= start) {
                    atomicAdd(&room[min(magnitude - start, BINS - 1)], 1u);
                }
            }
        }
        u32* counts = bins + u64(number) * BINS;
        if (give_counts<SECOND_BITS>(room, counts, at - begin, top.spans, cut)) {
            take_counts<SECOND_BITS>(room, counts);
            Picked found = pick(room, 1u << SECOND_BITS, rank);
            count_nothing<SECOND_BITS>(room);
            bool is_narrow = bin != 0 && bin < LAST_BIN;
            if (is_narrow || (bin != NOWHERE && found.bin < BINS - 1)) {
                if (threadIdx.x == 0) {
                    cut->prefix = start + found.bin;
                    cut->rank = found.rank;
                }
            } else if (bin != NOWHERE && top.keep == top.count) {
                // All values are kept, and no value is 0: a zero would be the k-th largest, and the counts would have
                // shown it.
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

// Computes the bin sums that a layer misses. A bin misses its sum if it has none in the unit of its largest magnitude's
// exponent (see `BinUnits`). Only magnitudes above the cut are added. Called by the last block.
__device__ inline void add_missed(const Top& top, u32 prefix, const BinUnits& units, const Offered& offered,
                                  const Spans& spans, const uint2* entries, Few* few, BinSums& sums) {
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
        u32 at = top.first_span + span;
        if (fresh(spans.kept[at]) >> 16 == 0) {
            continue;
        }
        Choice choice(top, spans.chosen[at], offered, entries, span);
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

// Counts the kept values of each span. For layers with codes, also computes the means of their bins. The last block may
// have to read the kept values again, by `add_missed`. That happens if bins span many powers of two, and a bin has no
// values in its upper four powers of two. Then some magnitudes differ by a factor of 2^14 or more.
extern "C" __launch_bounds__(BLOCK, 4) __global__ void count_kept(Params p, const Top* tops, const u32* top_of,
                                                                  const Program* program, const void* gradients,
                                                                  float* residuals, Cut* cuts, uint2* of_spans,
                                                                  const uint2* entries, Few* few, u8* message) {
    __shared__ BinSums sums;
    Spans spans(p, of_spans);
    sums.clear();
    u32 end = share(p.spans, blockIdx.x + 1);
    for (u32 at = share(p.spans, blockIdx.x); at < end;) {
        u32 number = p.layers == 1 ? 0 : top_of[at];
        Top top = tops[number];
        Cut* cut = &cuts[number];
        u32 prefix = cut->prefix;
        bool adds = top.bits != 0;
        BinUnits units{CodeBins(top, *cut)};
        Offered offered(p, top, program, gradients, residuals);
        u32 begin = at;
        at = min(end, top.first_span + top.spans);
        for (u32 of_warp = begin + threadIdx.x / 32; of_warp < at; of_warp += WARPS) {
            u32 span = of_warp - top.first_span;
            u32 own = 0;
            Choice choice(top, spans.chosen[of_warp], offered, entries, span);
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
                spans.kept[of_warp] = own;
            }
        }
        if (adds) {
            sums.give(&few[top.few]);
        }
        if (is_last(&cut->done, at - begin, top.spans)) {
            auto kept = [&](u32 span) {
                u32 own = fresh(spans.kept[span]);
                return u64(own >> 16) << 32 | (own & 0xffffu);
            };
            auto take = [&](u32 span, u64 before) { spans.before[span] = uint2{u32(before >> 32), u32(before)}; };
            add_up(top.first_span, top.spans, kept, take);
            if (threadIdx.x == 0) {
                cut->used = 0;
            }
            if (adds) {
                add_missed(top, prefix, units, offered, spans, entries, &few[top.few], sums);
                make_means(top, *cut, units, &few[top.few], reinterpret_cast<u32*>(message + top.payload));
            }
        }
    }
}
