// The exchange of a bucket's layers under QSGD, entirely on the device. `encode` reads gradients and residuals once: it
// applies error feedback and writes all payloads. `average` reads the payloads of all ranks once and writes the means.
// The host passes nothing that changes from step to step. `Program` has the step and says which half of the residuals
// is current, so a graph of these launches can be replayed.

__device__ inline Params of_layer(Params p, const Layer& layer, u32 step) {
    p.count = layer.count;
    p.bucket = layer.bucket;
    p.buckets = layer.buckets;
    p.sign_magnitude = layer.sign_magnitude;
    p.min_max = layer.min_max;
    p.nearest = layer.nearest;
    p.bits = layer.bits;
    p.log_levels = layer.log_levels;
    p.step = step;
    p.layer = layer.id;
    p.rank = layer.rank;
    return p;
}

// Size of the scales in bytes. The codes follow the scales.
__device__ inline u64 codes_at(const Params& p) {
    return u64(p.buckets) * (p.min_max ? 8 : 4);
}

// Reads values for `hold`: the sums of a layer's gradient and residual.
struct Offered {
    const void* gradient;
    const float* residual;
    u64* fault;
    u32 layer;
    u64 start;

    __device__ void load(const Params& p, u64 first, float (&both)[STRIPS][4]) const {
        float own[STRIPS][4];
        load_tile(gradient, p.dtype, p.count, first, own);
        load_tile(residual, 0, p.count, first, both);
#pragma unroll
        for (u32 j = 0; j < STRIPS; j++) {
#pragma unroll
            for (u32 k = 0; k < 4; k++) {
                both[j][k] += own[j][k];
                if (!is_finite(both[j][k])) {
                    u32 kind = is_finite(own[j][k]) ? SUM_LEFT_F32 : NOT_FINITE;
                    note(fault, kind, layer, start + first + j * STRIP + k);
                }
            }
        }
    }
};

// Makes the next residuals while values are encoded.
struct Remember {
    float gain;
    float keep;
    const float* before;
    float* after;
    u64* fault;
    u32 layer;
    u64 start;

    __device__ void take(const Params& p, u64 i, const float (&offered)[4], const Grid& grid, u32 codes) const {
        u32 here = there(p, i);
        if (here == 0) {
            return;
        }
        // If `keep` is 0, the old residual would only add a zero. This would change nothing, not even the sign of zero.
        float remembered[4] = {};
        if (keep != 0.0f) {
            load4(before, 0, i, p.count, remembered);
        }
        u32 mask = (1u << p.bits) - 1;
        u32 bits[4];
#pragma unroll
        for (u32 k = 0; k < 4; k++) {
            float sent = decoded(p, codes >> (k * p.bits) & mask, grid.low, grid.high, step_of(p));
            float stays = gain * (offered[k] - sent);
            if (keep != 0.0f) {
                stays = keep * remembered[k] + stays;
            }
            bits[k] = __float_as_uint(stays);
            if (k < here && !is_finite(stays)) {
                note(fault, REST_LEFT_F32, layer, start + i + k);
            }
        }
        store4(after, 0, i, here, bits);
    }
};

// Writes this rank's payloads. Also writes the next residuals, which become current if no rank fails.
extern "C" __global__ void encode(Params p, const Layer* layers, const u32* layer_of, Program* program,
                                  const void* gradients, float* residuals, u8* message) {
    __shared__ Held held;
    hold_nothing(held);
    u64 size = p.dtype == 0 ? 4 : 2;
    const float* before = residuals + program->half * program->elements;
    float* after = residuals + (1 - program->half) * program->elements;
    float gain = program->gain;
    float keep = program->keep;
    for (u64 at = blockIdx.x; at < program->spans; at += gridDim.x) {
        Layer layer = layers[layer_of[at]];
        p = of_layer(p, layer, program->step);
        u64 span = at - layer.first_span;
        u8* payload = message + layer.payload;
        if (span == 0 && threadIdx.x == 0) {
            reinterpret_cast<u64*>(payload)[0] = layer.header_low;
            reinterpret_cast<u64*>(payload)[1] = layer.header_high;
            // The next payload begins at a multiple of 16.
            u64 end = HEADER + codes_at(p) + (u64(p.count) * p.bits + 7) / 8;
            for (u64 at = end; at % 16 != 0; at++) {
                payload[at] = 0;
            }
        }
        const void* gradient = static_cast<const u8*>(gradients) + layer.first * size;
        Offered offered{gradient, before + layer.first, &program->fault, layer.number, layer.start};
        hold(p, offered, span, held, &program->largest);
        u32 slot = own_slot(p);
        u64 bucket = (span * SPAN >> Held::log_bucket(p)) + slot;
        if (slot < SLOTS && bucket < p.buckets) {
            send(p, held.grids[slot], bucket, reinterpret_cast<float*>(payload + HEADER));
        }
        Remember to{gain, keep, before + layer.first, after + layer.first, &program->fault, layer.number, layer.start};
        encode_tile(p, held, span * WARPS + threadIdx.x / 32, payload + HEADER + codes_at(p), to);
        // The next span's buckets may be shared by other warps.
        __syncthreads();
    }
}

// Writes this rank's status record into each of its messages, which begin at the offsets `heads`. Launched with one
// block.
extern "C" __global__ void announce(Params, Program* program, const u64* heads, u8* message) {
    for (u32 i = threadIdx.x; i < owners(*program); i += BLOCK) {
        tell(program, reinterpret_cast<u32*>(message + heads[i]));
    }
}

// Writes the means of all ranks' payloads, added up in the order of the ranks. If a rank is at fault, overwrites all
// means instead. Then ends the step.
extern "C" __launch_bounds__(BLOCK, 4) __global__ void average(Params p, const Layer* layers, const u32* layer_of,
                                                               Program* program, const u8* messages, void* means) {
    __shared__ float parts[CODES];
    __shared__ Layer layer;
    bool good = first_faulty(*program, messages) == program->world;
    if (!good) {
        fill(*program, p.dtype, means);
    }
    u64 size = p.dtype == 0 ? 4 : 2;
    World world(program->world);
    u32 held = ~0u;
    for (u32 at = blockIdx.x; good && at < program->own_spans; at += gridDim.x) {
        u32 next = layer_of[at];
        if (next != held) {
            held = next;
            __syncthreads();
            make_parts(layers[held], parts);
            if (threadIdx.x == 0) {
                layer = layers[held];
            }
            __syncthreads();
        }
        const u8* payloads = messages + layer.payload + HEADER;
        void* own = static_cast<u8*>(means) + layer.first * size;
        average_codes(layer, parts, p.dtype, program, world, payloads, at - layer.first_span, own);
    }
    if (is_last(&program->done, 1, gridDim.x) && threadIdx.x == 0) {
        end_step(program, first_faulty(*program, messages));
    }
}
