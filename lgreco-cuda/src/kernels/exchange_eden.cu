// Layers under EDEN of an exchange: payloads with what is to be remembered, whether encoders wrote the payloads of all ranks, and their
// means. A span is a chunk.

struct Params {
    u32 dtype;
    u32 seed_low;
    u32 seed_high;
};

// Tables of spans are apart from those under QSGD; other launches end the step.

// What this rank offers of a layer, and what it remembers of it.
struct Offered {
    const void* gradient;
    u32 dtype;
    const float* before;
    float* after;
    float gain;
    float keep;
    u64* fault;
    u32 layer;
    u32 start;

    static constexpr bool DECODES = true;

    __device__ float sum(u32 i) const {
        return before[i] + value(gradient, dtype, i);
    }

    __device__ float at(u32 i) const {
        float both = sum(i);
        if (!is_finite(both)) {
            note(fault, is_finite(value(gradient, dtype, i)) ? SUM_LEFT_F32 : NOT_FINITE, layer, u64(start) + i);
        }
        return both;
    }

    __device__ void nothing(u32 first, u32 len, bool) const {
        for (u32 i = threadIdx.x; i < len; i += BLOCK) {
            take(first, first + i, 0.0f);
        }
    }

    // What stays of a value that is sent as `sent`.
    __device__ void take(u32, u32 i, float sent) const {
        float stays = gain * (sum(i) - sent);
        // Times 0, what was remembered is a zero of the sign that the sum has already.
        if (keep != 0.0f) {
            stays = keep * before[i] + stays;
        }
        after[i] = stays;
        if (!is_finite(stays)) {
            note(fault, REST_LEFT_F32, layer, u64(start) + i);
        }
    }
};

// Bytes of a payload behind its header: seed, scales and codes.
__device__ inline u64 body_bytes(const Layer& layer) {
    return 8 + 4 * u64(layer.buckets) + (u64(layer.count) * layer.bits + 7) / 8;
}

// A rank's payloads, and what is to be remembered if all goes well.
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
        u32* body = reinterpret_cast<u32*>(payload + HEADER);
        // The seed is words 0 and 1 of the layer's stream in this step.
        Words seed = philox(0, program->step, layer.id, layer.rank, p.seed_low, p.seed_high);
        if (chunk == 0 && threadIdx.x == 0) {
            reinterpret_cast<u64*>(payload)[0] = layer.header_low;
            reinterpret_cast<u64*>(payload)[1] = layer.header_high;
            body[0] = seed.word[0];
            body[1] = seed.word[1];
            // The next payload begins at a multiple of 16.
            for (u64 at = HEADER + body_bytes(layer); at % 16 != 0; at++) {
                payload[at] = 0;
            }
        }
        Offered offered{static_cast<const u8*>(gradients) + layer.first * size,
                        p.dtype,
                        before + layer.first,
                        after + layer.first,
                        program->gain,
                        program->keep,
                        &program->fault,
                        layer.number,
                        layer.start};
        draw_signs(room, chunk, seed.word[0], seed.word[1]);
        float* scales = reinterpret_cast<float*>(body + 2);
        u8* codes = reinterpret_cast<u8*>(body + 2 + layer.buckets) + u64(chunk) * (CHUNK / 8) * layer.bits;
        encode_chunk(room, Grid(grids, layer.bits), eights, layer.least_squares != 0, chunk,
                     chunk_len(layer.count, chunk), scales, codes, offered, offered);
    }
}

// From this scale on decoded values may leave f32.
#define LARGE_SCALE 1e34f

// One rank's chunk of a layer.
struct Sent {
    const u8* payload;
    const u32* body;
    const u32* scales;
    const u8* codes;
    u32 here;
    u32 bytes;  // of codes

    __device__ Sent(const Layer& layer, const u8* message, u32 chunk)
        : payload(message + layer.payload),
          body(reinterpret_cast<const u32*>(payload + HEADER)),
          scales(body + 2),
          codes(reinterpret_cast<const u8*>(scales + layer.buckets) + u64(chunk) * (CHUNK / 8) * layer.bits),
          here(chunk_len(layer.count, chunk)),
          bytes((here * layer.bits + 7) / 8) {}

    // Whether header, scales and the bits behind the last code are as an encoder writes them.
    __device__ bool is_written(const Layer& layer, u32 chunk) const {
        const u64* header = reinterpret_cast<const u64*>(payload);
        u32 used = here * layer.bits % 8;
        bool good = header[0] == layer.header_low && header[1] == layer.header_high;
        good = good && (used == 0 || codes[bytes - 1] >> used == 0);
        for (u32 number = chunk, left = here; left > 0; number++) {
            good = good && scales[number] < INFINITE;
            left -= block_len(left);
        }
        return good;
    }
};

// Blames ranks whose payloads no encoder wrote, or decode to what is not finite. A block looks at a chunk of one rank.
extern "C" __launch_bounds__(BLOCK, 3) __global__ void check_rotated(Params, const Layer* layers, const u32* layer_of,
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
        u32 chunk = span - layer.first_span;
        Sent sent(layer, message_of(*program, messages, rank), chunk);
        bool good = sent.is_written(layer, chunk);
        u32 number = chunk;
        for (u32 at = 0, len; good && at < sent.here; at += len, number++) {
            len = block_len(sent.here - at);
            float scale = __uint_as_float(sent.scales[number]);
            if (scale < LARGE_SCALE) {
                continue;
            }
            __syncthreads();  // the block before is done
            draw_signs(room, chunk, sent.body[0], sent.body[1]);
            packed.load(sent.codes, sent.bytes);
            __syncthreads();
            bool fits = true;
            decode_block(room, Grid(grids, layer.bits), packed, scale, at, len, [&](u32, const auto& values) {
#pragma unroll
                for (u32 k = 0; k < COUNT_OF(values); k++) {
                    fits = fits && is_finite(values[k]);
                }
            });
            if (!fits) {
                blame(program, rank, layer.number);
            }
        }
        if (!good && threadIdx.x == 0) {
            blame(program, rank, layer.number);
        }
    }
}

// Sums of a short block lie behind its values.
#define OF_SUMS 2176

// The means of what all ranks' payloads hold, added up in the order of the ranks, unless a rank is at fault.
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
        u32 chunk = span - layer.first_span;
        u32 here = chunk_len(layer.count, chunk);
        void* own = static_cast<u8*>(means) + layer.first * size;
        u32 number = chunk;
        for (u32 at = 0, len; at < here; at += len, number++) {
            len = block_len(here - at);
            // The identity of addition.
            float sums[16];
#pragma unroll
            for (u32 k = 0; k < 16; k++) {
                sums[k] = -0.0f;
            }
            float* of_short = room.values + OF_SUMS;
            __syncthreads();  // the block before is done
            if (len < CHUNK) {
                for (u32 i = threadIdx.x; i < len; i += BLOCK) {
                    of_short[i] = -0.0f;
                }
            }
#pragma unroll 1
            for (u32 rank = 0; rank < world.ranks; rank++) {
                Sent sent(layer, message_of(*program, messages, rank), chunk);
                __syncthreads();  // the rank before is done
                draw_signs(room, chunk, sent.body[0], sent.body[1]);
                packed.load(sent.codes, sent.bytes);
                __syncthreads();
                // Grid points times a scale of 0 are zeros of both signs; what is added is 0.
                float scale = __uint_as_float(sent.scales[number]);
                bool is_zero = scale == 0.0f;
                decode_block(room, Grid(grids, layer.bits), packed, scale, at, len, [&](u32 j, const auto& values) {
                    if constexpr (COUNT_OF(values) == 16) {
#pragma unroll
                        for (u32 k = 0; k < 16; k++) {
                            sums[k] += is_zero ? 0.0f : values[k];
                        }
                    } else {
                        of_short[j - at] += is_zero ? 0.0f : values[0];
                    }
                });
            }
            u32 first = chunk * CHUNK + at;
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
