// Writes TopK's payloads and the next residuals.

// Writes `bits` from bit `at` on, where all bits must be 0 before.
__device__ inline void set_bits(u32* words, u64 at, u32 bits) {
    u32 shift = u32(at % 32);
    atomicOr(&words[at / 32], bits << shift);
    if (shift > 0 && bits >> (32 - shift) != 0) {
        atomicOr(&words[at / 32 + 1], bits >> (32 - shift));
    }
}

// Writes a kept value, and under Elias-Fano its position. Returns the value that receivers decode.
__device__ inline float write_one(const Top& top, const Cut& cut, const Few* few, u32* words, u32 index, uint2 entry) {
    float sent = __uint_as_float(entry.y);
    if (top.bits != 0) {
        u32 bin = CodeBins(top, cut).of(entry.y & MAGNITUDE);
        sent = __uint_as_float(few[top.few].means[bin] | (entry.y & SIGN));
        set_bits(words, top.bits_at + u64(index) * top.bits, bin | entry.y >> 31 << (top.bits - 1));
    } else if (top.sent == 0) {
        words[HEADER / 4 + u64(index)] = entry.y;
    } else {
        u32 half = top.sent == 1 ? narrow_f16(entry.y) : narrow_bf16(entry.y);
        sent = widen(half, top.sent);
        // The last word may also contain bits of positions, which other threads write.
        if (index + 1 == top.keep && index % 2 == 0) {
            set_bits(words, 8 * HEADER + u64(index) * 16, half);
        } else {
            reinterpret_cast<u16*>(words)[HEADER / 2 + u64(index)] = u16(half);
        }
    }
    if (top.placement == 2) {
        if (top.low_bits > 0) {
            set_bits(words, top.low_at + u64(index) * top.low_bits, entry.x & ((1u << top.low_bits) - 1));
        }
        set_bits(words, top.high_at + u64(entry.x >> top.low_bits) + index, 1);
    }
    return sent;
}

// Sets the bits of a bitmap for the values that a warp keeps. `goes` says whether this lane keeps its value. `in_turn`
// says that the lanes have consecutive positions.
__device__ inline void mark(u32* words, u64 at, bool in_turn, bool goes, u32 position) {
    if (!in_turn) {
        if (goes) {
            set_bits(words, at + position, 1);
        }
        return;
    }
    u32 bits = __ballot_sync(FULL, goes);
    if (threadIdx.x % 32 == 0 && bits != 0) {
        set_bits(words, at + position, bits);
    }
}

// Writes the payloads, the next residuals and this rank's status record. A single tensor has neither residuals nor a
// status record. Its largest and its k-th largest magnitude are written to `residuals` instead. The latter may be 0 if
// all values are kept.
extern "C" __launch_bounds__(BLOCK, 4) __global__ void write_kept(Params p, const Top* tops, const u32* top_of,
                                                                  Program* program, const void* gradients,
                                                                  float* residuals, const Cut* cuts, uint2* of_spans,
                                                                  const uint2* entries, const Few* few, u8* message) {
    Spans spans(p, of_spans);
    u32 lane = threadIdx.x % 32;
    u32 before = (1u << lane) - 1;
    u32 end = share(p.spans, blockIdx.x + 1);
    for (u32 at = share(p.spans, blockIdx.x) + threadIdx.x / 32; at < end; at += WARPS) {
        u32 number = p.layers == 1 ? 0 : top_of[at];
        const Top& top = tops[number];
        Cut cut = cuts[number];
        Offered offered(p, top, program, gradients, residuals);
        u32* words = reinterpret_cast<u32*>(message + top.payload);
        if (at == top.first_span && lane < HEADER / 4) {
            u64 half = lane < 2 ? top.header_low : top.header_high;
            words[lane] = u32(half >> (lane % 2 * 32));
        }
        uint2 kept = spans.before[at];
        Choice choice(top, spans.chosen[at], offered, entries, at - top.first_span);
        bool has_all = choice.entries == nullptr;
        if (offered.after != nullptr && program->keep != 0.0f && !has_all) {
            // Values that are not candidates are not sent. Because `keep` is not 0, their next residuals also contain a
            // part of the old residuals.
            u64 stop = min(choice.first + SPAN, u64(top.count));
            for (u64 i = choice.first + lane; i < stop; i += 32) {
                offered.after[i] = offered.stays(program, i, offered.after[i], 0.0f);
            }
            __syncwarp();
        }
        for (u32 first = 0; first < choice.size; first += 32) {
            u32 i = first + lane;
            bool here = i < choice.size;
            uint2 entry = here ? choice.at(i) : uint2{0, 0};
            u32 magnitude = entry.y & MAGNITUDE;
            u32 above = __ballot_sync(FULL, here && magnitude > cut.prefix);
            u32 ties = __ballot_sync(FULL, here && magnitude == cut.prefix);
            u32 tied = kept.y + __popc(ties & before);
            u32 index = kept.x + __popc(above & before) + min(tied, cut.rank);
            bool is_tied = (ties >> lane & 1) != 0 && tied < cut.rank;
            // More than k values can qualify only if the caller has changed values since the cut was found.
            bool goes = ((above >> lane & 1) != 0 || is_tied) && index < top.keep;
            float sent = goes ? write_one(top, cut, few, words, index, entry) : 0.0f;
            if (here && offered.after != nullptr && (goes || has_all)) {
                float stays = offered.stays(program, entry.x, __uint_as_float(entry.y), sent);
                offered.after[entry.x] = stays;
                if (!is_finite(stays)) {
                    note(&program->fault, REST_LEFT_F32, top.layer, u64(top.start) + entry.x);
                }
            }
            if (top.placement == 1) {
                mark(words, top.high_at, has_all, goes, entry.x);
            }
            kept.x += __popc(above);
            kept.y += __popc(ties);
        }
    }
    if (!is_last(&program->done, 1, gridDim.x) || threadIdx.x != 0) {
        return;
    }
    if (p.remembers) {
        tell(program, reinterpret_cast<u32*>(message));
    } else {
        u32* told = reinterpret_cast<u32*>(residuals);
        told[0] = cuts[0].high;
        told[1] = cuts[0].prefix;
    }
}
