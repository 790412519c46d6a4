// Checks of the QSGD payloads that ranks have sent.

// Whether an encoder can have written the scales of a span's buckets. For the first span, also checks the header and
// the padding bits after the last code. Codes need no check, because every code is valid.
__device__ inline bool is_written(const Layer& layer, u64 span, const u8* payload) {
    const float* scales = reinterpret_cast<const float*>(payload + HEADER);
    u32 ends = layer.min_max ? 2 : 1;
    u32 buckets = SPAN / layer.bucket;
    u32 first = u32(span) * buckets;
    bool good = true;
    for (u32 bucket = first; bucket < min(first + buckets, layer.buckets); bucket++) {
        float high = scales[ends * bucket + ends - 1];
        float low = layer.min_max ? scales[2 * bucket] : -high;
        good = good && low <= high && is_finite(low) && is_finite(high);
    }
    if (span == 0) {
        const u64* header = reinterpret_cast<const u64*>(payload);
        u64 used = 8 * (HEADER + 4 * u64(ends) * layer.buckets) + u64(layer.count) * layer.bits;
        good = good && header[0] == layer.header_low && header[1] == layer.header_high;
        good = good && (used % 8 == 0 || payload[used / 8] >> used % 8 == 0);
    }
    return good;
}

// Reports ranks whose payloads no encoder can have written. A block checks 32 spans at a time, one per lane. Its warps
// check different ranks.
__device__ inline void check_scales(const Layer* layers, const u32* layer_of, Program* program, const u8* messages) {
    for (u64 at = blockIdx.x * 32ull + threadIdx.x % 32; at < program->own_spans; at += gridDim.x * 32ull) {
        Layer layer = layers[layer_of[at]];
        for (u32 rank = threadIdx.x / 32; rank < program->world; rank += WARPS) {
            if (!is_written(layer, at - layer.first_span, message_of(*program, messages, rank) + layer.payload)) {
                blame(program, rank, layer.number);
            }
        }
    }
}
