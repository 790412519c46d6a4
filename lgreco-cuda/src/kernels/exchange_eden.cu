// The exchange of layers under EDEN: error feedback and payloads, checks of all ranks' payloads, and means. A span is
// one chunk. EDEN and QSGD have separate tables of spans. Kernels of other files end the step.

struct Params {
    u32 dtype;
    u32 seed_low;
    u32 seed_high;
};

// The values that are encoded: the sums of a layer's gradient and residual. Also makes the next residuals.
struct Offered {
    const void* gradient;
    u32 dtype;
    const float* before;
    float* after;
    float gain;
    float keep;
    u64* fault;
    const Layer& layer;

    static constexpr bool DECODES = true;

    // Records a fault of value i.
    __device__ void mark(u32 kind, u32 i) const {
        note(fault, kind, layer.number, u64(layer.start) + i);
    }

    __device__ float at(u32 i) const {
        float own = value(gradient, dtype, i);
        float both = before[i] + own;
        if (!is_finite(both)) {
            mark(is_finite(own) ? SUM_LEFT_F32 : NOT_FINITE, i);
        }
        return both;
    }

    __device__ void nothing(u32 first, u32 len, bool) const {
        for (u32 i = threadIdx.x; i < len; i += BLOCK) {
            take(first, first + i, 0.0f);
        }
    }

    // Writes the next residual of a value that is sent as `sent`.
    __device__ void take(u32, u32 i, float sent) const {
        float remembered = before[i];
        float stays = gain * (remembered + value(gradient, dtype, i) - sent);
        // If `keep` is 0, the old residual would only add a zero. This would change nothing, not even the sign of zero.
        if (keep != 0.0f) {
            stays = keep * remembered + stays;
        }
        after[i] = stays;
        if (!is_finite(stays)) {
            mark(REST_LEFT_F32, i);
        }
    }
};

// Writes this rank's payloads. Also writes the next residuals, which become current if no rank fails.
extern "C" __launch_bounds__(BLOCK, 3) __global__ void encode_offered(Params p, const Layer* layers,
                                                                      const u32* layer_of, Program* program,
                                                                      const void* gradients, float* residuals,
                                                                      u8* message) {
    __shared__ Room room;
    __shared__ Grids grids;
    __shared__ u64 eights[CHUNK / 8];
    fill(grids);
    u64 size = p.dtype == 0 ? 4 : 2;
    const float* before = residuals + program->half * program->elements;
    float* after = residuals + (1 - program->half) * program->elements;
    for (u32 span = blockIdx.x; span < program->rotated; span += gridDim.x) {
        const Layer& layer = layers[layer_of[span]];
        u32 chunk = span - layer.first_span;
        u8* payload = message + layer.payload;
        if (chunk == 0 && threadIdx.x == 0) {
            reinterpret_cast<u64*>(payload)[0] = layer.header_low;
            reinterpret_cast<u64*>(payload)[1] = layer.header_high;
            // The next payload begins at a multiple of 16.
            for (u64 at = HEADER + body_len(layer.count, layer.bits); at % 16 != 0; at++) {
                payload[at] = 0;
            }
        }
        const void* gradient = static_cast<const u8*>(gradients) + layer.first * size;
        Offered offered{gradient,      p.dtype,       before + layer.first, after + layer.first,
                        program->gain, program->keep, &program->fault,      layer};
        Words seed = philox(0, program->step, layer.id, layer.rank, p.seed_low, p.seed_high);
        Target target{layer.count, seed.word[0], seed.word[1], layer.least_squares != 0, payload + HEADER};
        encode_chunk(room, Grid(grids, layer.bits), eights, chunk, target, offered);
    }
}

// A chunk of a layer in a rank's payload.
__device__ inline Sent sent_by(const Program& program, const Layer& layer, const u8* messages, u32 rank, u32 span) {
    const u8* payload = message_of(program, messages, rank) + layer.payload;
    return Sent(payload + HEADER, layer.count, layer.bits, span - layer.first_span);
}

// If a scale is below this limit, all values that are decoded with it are in the range of f32.
#define LARGE_SCALE 1e34f

// Reports ranks with invalid payloads: no encoder can have written them, or they do not decode to finite values. A CUDA
// block checks one chunk of one rank at a time.
extern "C" __launch_bounds__(BLOCK, 4) __global__ void check_rotated(Params, const Layer* layers, const u32* layer_of,
                                                                     Program* program, const u8* messages) {
    __shared__ Room room;
    __shared__ Grids grids;
    __shared__ Packed packed;
    if (first_failed(*program, messages) < program->world) {
        return;
    }
    fill(grids);
    u32 world = program->world;
    for (u64 piece = blockIdx.x; piece < u64(program->own_rotated) * world; piece += gridDim.x) {
        u32 span = u32(piece / world);
        u32 rank = u32(piece % world);
        const Layer& layer = layers[layer_of[span]];
        const u64* header = reinterpret_cast<const u64*>(message_of(*program, messages, rank) + layer.payload);
        Sent sent = sent_by(*program, layer, messages, rank, span);
        bool is_written = header[0] == layer.header_low && header[1] == layer.header_high && sent.is_written();
        bool fits = true;
        u32 number = 0;
        for (u32 at = 0, len; is_written && at < sent.here; at += len, number++) {
            len = block_len(sent.here - at);
            if (__uint_as_float(sent.scales[number]) < LARGE_SCALE) {
                continue;
            }
            sent.decode(room, packed, Grid(grids, layer.bits), number, at, len, [&](u32, const auto& values) {
#pragma unroll
                for (u32 k = 0; k < COUNT_OF(values); k++) {
                    fits = fits && is_finite(values[k]);
                }
            });
        }
        if (!fits || !is_written) {
            blame(program, rank, layer.number);
        }
    }
}

// Index in `Room::values` where the sums of a short block begin, after its values.
#define OF_SUMS 2176

// Writes the means of all ranks' payloads, unless a rank is at fault. Values are added up in the order of the ranks.
extern "C" __launch_bounds__(BLOCK, 3) __global__ void average_rotated(Params p, const Layer* layers,
                                                                       const u32* layer_of, Program* program,
                                                                       const u8* messages, void* means) {
    __shared__ Room room;
    __shared__ Grids grids;
    __shared__ Packed packed;
    if (first_faulty(*program, messages) < program->world) {
        return;
    }
    fill(grids);
    u64 size = p.dtype == 0 ? 4 : 2;
    World world(program->world);
    for (u32 span = blockIdx.x; span < program->own_rotated; span += gridDim.x) {
        const Layer& layer = layers[layer_of[span]];
        Grid grid(grids, layer.bits);
        void* own = static_cast<u8*>(means) + layer.first * size;
        u32 chunk = span - layer.first_span;
        u32 here = chunk_len(layer.count, chunk);
        u32 number = 0;
        for (u32 at = 0, len; at < here; at += len, number++) {
            len = block_len(here - at);
            u32 first = chunk * CHUNK + at;
            // The sums of a full block are in registers, 16 per thread. They begin as -0, the identity of addition.
            float sums[16];
#pragma unroll
            for (u32 k = 0; k < 16; k++) {
                sums[k] = -0.0f;
            }
            float* of_short = room.values + OF_SUMS;
            __syncthreads();  // the block before may still be read
            for (u32 i = threadIdx.x; len < CHUNK && i < len; i += BLOCK) {
                of_short[i] = -0.0f;
            }
#pragma unroll 1
            for (u32 rank = 0; rank < world.ranks; rank++) {
                Sent sent = sent_by(*program, layer, messages, rank, span);
                sent.decode(room, packed, grid, number, at, len, [&](u32 j, const auto& values) {
                    if constexpr (COUNT_OF(values) == 16) {
#pragma unroll
                        for (u32 k = 0; k < 16; k++) {
                            sums[k] += values[k];
                        }
                    } else {
                        of_short[j - at] += values[0];
                    }
                });
            }
            if (len == CHUNK) {
#pragma unroll
                for (u32 k = 0; k < 16; k++) {
                    u32 i = first + threadIdx.x + 256 * k;
                    give(p.dtype, program, layer.number, layer.start, own, i, world.mean(sums[k]));
                }
            } else {
                for (u32 i = threadIdx.x; i < len; i += BLOCK) {
                    give(p.dtype, program, layer.number, layer.start, own, first + i, world.mean(of_short[i]));
                }
            }
        }
    }
}
