// Layers under TopK, or the parts of them that ranks have as shards, of an exchange or one alone: what is known of each, and what kernels of all of them share.

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
    u64 payload;  // where its payload begins in a message, or its row's errors among all
    u64 header_low;
    u64 header_high;
    u64 bits_at;  // bits of the payload before those that begin as 0: the codes, or what follows,
    u64 low_at;   // before the packed bits of positions,
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
    u32 bits;  // of a code; 0 where values are sent as `sent`
    u32 few;   // number among layers with codes
    u32 start;  // its first value's place in the layer
};

// What is known of where a layer's k largest end.
struct Cut {
    u32 prefix;  // where the bin begins that has the k-th largest magnitude; at last this magnitude, or 0 if all are kept, and above it
    u32 rank;    // how many of that bin are among the k largest
    u32 done;    // parts that have been through the launch
    u32 used;    // entries gathered, or that there was no room for
    u32 largest;  // magnitude so far, and complement of the least but 0, of those from `bound` on
    u32 least;
    u32 high;  // the largest magnitude, and the least that is kept but 0
    u32 low;
    u32 bound;  // from which on magnitudes are gathered and counted,
    u32 base;   // and narrow bins begin
    u32 bin;    // that has the k-th largest; NOWHERE if fewer than k reach `bound`
};

// What is known of each span, each kind in a place of its own.
struct Spans {
    uint2* chosen;  // where what was gathered of it begins, NOWHERE if there was no room, and how many these are
    uint2* before;  // how many are above the cut and at it in the layer's spans before
    u32* kept;      // 0x10000 for each above the cut, 1 for each at it

    __device__ Spans(const Params& p, uint2* memory)
        : chosen(memory), before(memory + p.spans), kept(reinterpret_cast<u32*>(memory + 2 * u64(p.spans))) {}
};

// Values of a span.
#define SPAN 4096
#define NOWHERE 0xffffffffu
// 2^FIRST_BITS bins of magnitudes are counted first, then as many kinds as are in one of them: 2^SECOND_BITS.
#define FIRST_BITS 12
#define SECOND_BITS 13
// A layer's counts.
#define BINS (1u << SECOND_BITS)

__device__ inline u32 size_of(const Top& top, u32 span) {
    return u32(min(top.count - u64(span) * SPAN, u64(SPAN)));
}

// What the threads before this one have, and all of the block.
struct Sums {
    u64 before;
    u64 all;
};

// All threads of the block must come.
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

// Shows `take` each of `count` places from `first` on and the sum of what `of` has for those before it; returns the sum of all. Each
// warp has places in a row, of which its lanes read four times as many as they are at once. All threads of the block must come.
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

// Of a layer: what is selected from, and what is remembered.
struct Offered {
    const void* gradient;
    u32 gradient_dtype;
    const float* before;
    float* after;  // null where nothing is remembered
    const void* values;  // of the gradient or, where something is, the sums, once they are there
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

    // What will be selected from, before it is there.
    __device__ float sum(u64 i) const {
        float own = value(gradient, gradient_dtype, i);
        return after != nullptr ? before[i] + own : own;
    }

    __device__ float stays(const Program* program, u64 i, float offered, float sent) const {
        float rest = program->gain * (offered - sent);
        // Of two zeros at gain 1 both are negative, or neither is.
        return program->keep != 0.0f ? program->keep * before[i] + rest : rest;
    }
};

// What a span chooses from, in order of position: what was gathered of it or, where there was no room, all its values.
struct Choice {
    const uint2* entries;  // null for all values
    const Offered& offered;
    u64 first;
    u32 size;

    __device__ Choice(const Top& top, uint2 chosen, const Offered& offered, const uint2* all, u32 span)
        : offered(offered), first(u64(span) * SPAN), size(chosen.y) {
        entries = chosen.x == NOWHERE ? nullptr : all + top.room + chosen.x;
    }

    // Position and bits.
    __device__ uint2 at(u32 i) const {
        if (entries != nullptr) {
            return entries[i];
        }
        return uint2{u32(first) + i, __float_as_uint(value(offered.values, offered.dtype, first + i))};
    }
};

// 0x10000 above the cut, 1 at it. Sums over a span fit.
__device__ inline u32 above_or_tied(u32 magnitude, u32 cut) {
    return magnitude > cut ? 0x10000u : magnitude == cut ? 1 : 0;
}
