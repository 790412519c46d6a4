// Tables of layers under TopK, and functions that all of their kernels share. An entry is a layer of an exchange, a
// rank's shard of one, a single tensor, or one k of a row of the error table.

struct Params {
    u32 dtype;
    u32 layers;
    u32 spans;
    u32 chunks;
    u32 remembers;  // whether there are residuals (error feedback)
};

// An entry of the table.
struct Top {
    u64 first;    // index of its first value among all layers' values
    u64 payload;  // byte offset of its payload in a message; for a row, index of its first error
    u64 header_low;
    u64 header_high;
    u64 bits_at;  // bit offset of the codes or, without codes, of the positions
    u64 low_at;   // bit offset of the packed low bits of positions
    u64 high_at;  // bit offset of the bitmap or, under Elias-Fano, of the unary high bits
    u64 end;      // number of bits of the payload
    u64 room;     // index of its first gathered entry
    u32 room_size;  // number of gathered entries for which it has room
    u32 layer;  // number of the layer in the program
    u32 count;
    u32 keep;  // k, the number of values that are sent
    u32 sent;       // type of the values in the payload
    u32 placement;  // 0: no positions, 1: bitmap, 2: Elias-Fano
    u32 low_bits;  // under Elias-Fano, number of low bits of a position
    u32 first_span;  // number of its first span among the spans of all layers
    u32 spans;
    u32 first_chunk;  // number of its first chunk among the chunks of all layers
    u32 chunks;
    u32 bits;  // bits of a code; 0 if values are sent in the type `sent`
    u32 few;   // number among the layers with codes
    u32 start;  // index of its first value in the layer
};

// State of the search for a layer's cut, its k-th largest magnitude.
struct Cut {
    u32 prefix;  // start of the k-th largest magnitude's bin; then that magnitude, or 0 if all are kept and none is 0
    u32 rank;    // number of this bin's values among the k largest; then number of kept values equal to the cut
    u32 done;    // parts of the layer that blocks have finished in the current launch
    u32 used;    // number of values that reach `bound`, including those without room
    u32 largest;  // of values that reach `bound`: largest magnitude, and complement of the smallest nonzero one
    u32 least;
    u32 high;  // the layer's largest magnitude, and the smallest nonzero one that is kept
    u32 low;
    u32 bound;  // magnitudes from this one on are gathered and counted
    u32 base;   // magnitude at which the narrow bins begin
    u32 bin;    // bin of the k-th largest magnitude; NOWHERE if fewer than k reach `bound`
};

// Arrays with an element for each span.
struct Spans {
    uint2* chosen;  // first gathered entry, number of entries; if there was no room: NOWHERE, number of values
    uint2* before;  // numbers of values above the cut, and equal to it, in the layer's earlier spans
    u32* kept;      // the same numbers for this span; those above the cut count 0x10000 each

    __device__ Spans(const Params& p, uint2* memory)
        : chosen(memory), before(memory + p.spans), kept(reinterpret_cast<u32*>(memory + 2 * u64(p.spans))) {}
};

// Number of values of a span, the unit of work.
#define SPAN 4096
#define NOWHERE 0xffffffffu
// Magnitudes are first counted in 2^FIRST_BITS bins. Then the magnitudes of one bin are counted individually. A narrow
// bin has 2^SECOND_BITS magnitudes.
#define FIRST_BITS 12
#define SECOND_BITS 13
// Number of a layer's counts in device memory.
#define BINS (1u << SECOND_BITS)

__device__ inline u32 size_of(const Top& top, u32 span) {
    return u32(min(top.count - u64(span) * SPAN, u64(SPAN)));
}

// Result of a prefix sum for a thread: the sum over the threads before it, and the sum over the whole block.
struct Sums {
    u64 before;
    u64 all;
};

// Prefix sum over a block. All threads of the block must call it.
__device__ static inline Sums block_scan(u64 own) {
    __shared__ u64 totals[WARPS];
    u32 warp = threadIdx.x / 32;
    u64 sum = warp_scan(own);
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

// Calls `take(place, sum)` for `count` places from `first` on, where `sum` is the sum of `of` over all earlier places.
// Returns the sum over all places. Each warp has consecutive places, and each of its lanes reads four at a time. All
// threads of the block must call it.
template <class Of, class Take>
__device__ inline u64 add_up(u32 first, u32 count, const Of& of, const Take& take) {
    u32 lane = threadIdx.x % 32;
    u32 warp = threadIdx.x / 32;
    u32 begin = first + u32(u64(count) * warp / WARPS);
    u32 end = first + u32(u64(count) * (warp + 1) / WARPS);
    u64 own = 0;
#pragma unroll 8
    for (u32 at = begin + lane; at < end; at += 32) {
        own += of(at);
    }
    own = warp_sum(own);
    Sums sums = block_scan(lane == 31 ? own : 0);
    for (u32 base = begin; base < end; base += 4 * 32) {
        u64 four[4];
#pragma unroll
        for (u32 k = 0; k < 4; k++) {
            u32 at = base + k * 32 + lane;
            four[k] = at < end ? of(at) : 0;
        }
#pragma unroll
        for (u32 k = 0; k < 4; k++) {
            u32 at = base + k * 32 + lane;
            u64 sum = warp_scan(four[k]);
            if (at < end) {
                take(at, sums.before + sum - four[k]);
            }
            sums.before += __shfl_sync(FULL, sum, 31);
        }
    }
    return sums.all;
}

// The values of a layer from which the k largest are selected, and its residuals.
struct Offered {
    const void* gradient;
    u32 gradient_dtype;
    const float* before;
    float* after;  // next residuals; null without error feedback
    const void* values;  // gradient or, with error feedback, the sums of gradient and residual in `after`
    u32 dtype;

    __device__ Offered(const Params& p, const Top& top, const Program* program, const void* gradients, float* residuals)
        : gradient(static_cast<const u8*>(gradients) + top.first * (p.dtype == 0 ? 4 : 2)),
          gradient_dtype(p.dtype),
          before(nullptr),
          after(nullptr),
          values(gradient),
          dtype(p.dtype) {
        if (p.remembers) {
            before = residuals + program->half * program->elements + top.first;
            after = residuals + (1 - program->half) * program->elements + top.first;
            values = after;
            dtype = 0;
        }
    }

    // Computes the value that `values` will have at index i, before it is stored there.
    __device__ float sum(u64 i) const {
        float own = value(gradient, gradient_dtype, i);
        return after != nullptr ? before[i] + own : own;
    }

    // The next residual of a value that is sent as `sent`.
    __device__ float stays(const Program* program, u64 i, float offered, float sent) const {
        float rest = program->gain * (offered - sent);
        // If `keep` is 0, the old residual would only add a zero. This would change nothing, not even the sign of zero.
        return program->keep != 0.0f ? program->keep * before[i] + rest : rest;
    }
};

// A span's candidates for the k largest values, in order of position: the gathered values or, if there was no room, all
// values.
struct Choice {
    const uint2* entries;  // null if all values are candidates
    const Offered& offered;
    u64 first;
    u32 size;

    __device__ Choice(const Top& top, uint2 chosen, const Offered& offered, const uint2* all, u32 span)
        : offered(offered), first(u64(span) * SPAN), size(chosen.y) {
        entries = chosen.x == NOWHERE ? nullptr : all + top.room + chosen.x;
    }

    // Position and bits of candidate number i.
    __device__ uint2 at(u32 i) const {
        if (entries != nullptr) {
            return entries[i];
        }
        return uint2{u32(first) + i, __float_as_uint(value(offered.values, offered.dtype, first + i))};
    }
};

// 0x10000 for a magnitude above the cut, 1 for one equal to it. The sum over a span fits into 32 bits.
__device__ inline u32 above_or_tied(u32 magnitude, u32 cut) {
    return magnitude > cut ? 0x10000u : magnitude == cut ? 1 : 0;
}
