/*
 * lgreco for gradients, residuals and payloads in the memory of an NVIDIA GPU, in libraries built with the feature `cuda`; in
 * others lgreco_cuda_create is LGRECO_NOT_BUILT_IN. Pointers are the device's unless something else is said.
 *
 * Made from headers/lgreco_cuda.h.in and the Rust source: LGRECO_BLESS=1 cargo test -p lgreco-ffi --test header
 */
#ifndef LGRECO_CUDA_H
#define LGRECO_CUDA_H

#include "lgreco.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- 1. A device with a stream ---- */

// An NVIDIA GPU that works on pointers to its own memory, on one stream, in libraries built with the feature `cuda`.
// Calls say in their first word whether their work is enqueued there when they return, or done.
typedef struct lgreco_cuda lgreco_cuda;

// Makes a handle for device number `ordinal`, from 0, in its primary context (PyTorch's, and that of the CUDA
// runtime), on a stream of its own, which does not wait for the default stream.
//
// LGRECO_NOT_BUILT_IN without the feature `cuda`; LGRECO_UNAVAILABLE when the driver or the device is missing or
// too old, or no kernels come with the library for it: the message says which; LGRECO_DEVICE when the driver
// fails, also for want of memory for a context or a stream.
lgreco_status lgreco_cuda_create(uint32_t ordinal,
                                 struct lgreco_cuda **cuda);

// Makes a handle for a stream, a cudaStream_t or CUstream, and its CUDA context, from any thread; of NULL, the default
// stream, the context is the one that is current on the calling thread. Both must outlive the handle. While the stream is
// being captured into a graph, calls are refused with LGRECO_DEVICE.
//
// As lgreco_cuda_create; LGRECO_UNAVAILABLE also for a default stream when no context is current.
lgreco_status lgreco_cuda_create_on_stream(void *stream,
                                           struct lgreco_cuda **cuda);

// Done: waits for all that is in the stream.
//
// LGRECO_DEVICE also when something enqueued before has failed.
lgreco_status lgreco_cuda_synchronize(struct lgreco_cuda *cuda);

// Done: waits for the stream, frees the handle with its memory and sets the caller's pointer to NULL; NULL, or a pointer
// to NULL, does nothing.
lgreco_status lgreco_cuda_destroy(struct lgreco_cuda **cuda);

/* ---- 2. Error tables. Options are those of lgreco_table_measure ---- */

// Done: lgreco_table_measure for gradients in the device's memory: enqueues all layers, waits once, and only errors
// come back. `values` of layers are device pointers; those of layers that are left out of the table are not looked at.
// Allocates, on the device too unless that was reserved.
//
// As lgreco_table_measure; LGRECO_UNAVAILABLE for PowerSGD with ranks above 1024 and for QSGD with buckets that are no power of
// two from 64 to 4096; LGRECO_OUT_OF_MEMORY, LGRECO_DEVICE, which name no layer.
lgreco_status lgreco_cuda_measure(struct lgreco_cuda *cuda,
                                  const struct lgreco_layer *layers,
                                  size_t layers_len,
                                  const char *const *options,
                                  struct lgreco_table **table);

// Tells the bytes of device memory that lgreco_cuda_enqueue_rows takes for such layers, whose `values` are not looked at, under
// these options: to work in, and of results. The device is not asked.
//
// As lgreco_cuda_measure, but for the values.
lgreco_status lgreco_cuda_rows_bytes(struct lgreco_cuda *cuda,
                                     const struct lgreco_layer *layers,
                                     size_t layers_len,
                                     const char *const *options,
                                     uint64_t *workspace_bytes,
                                     uint64_t *results_bytes);

// Enqueued: what lgreco_cuda_measure does before it waits, in `workspace` and `results` on the device, aligned to 256 and to 8, of at
// least lgreco_cuda_rows_bytes. Nothing is allocated on the device. The first call on a handle loads kernels, and one with more
// layers or options than those before may make more room for them in page-locked memory: these wait, all others do not. A copy of the results to
// host memory, behind it on the same stream, is for lgreco_cuda_read_rows. Allocates on the host.
//
// As lgreco_cuda_rows_bytes; LGRECO_LENGTH when there is less memory, LGRECO_ALIGNMENT; LGRECO_OUT_OF_MEMORY, LGRECO_DEVICE, which name
// no layer.
lgreco_status lgreco_cuda_enqueue_rows(struct lgreco_cuda *cuda,
                                       const struct lgreco_layer *layers,
                                       size_t layers_len,
                                       const char *const *options,
                                       void *workspace,
                                       uint64_t workspace_bytes,
                                       void *results,
                                       uint64_t results_bytes);

// Makes the table of lgreco_cuda_measure out of a copy of what lgreco_cuda_enqueue_rows has left in `results`, for the same layers and
// options: when the copy is there, by an event behind it, say. It need not be aligned. The device is asked only where a gradient is
// not finite, or nearly leaves its type: then the call waits, and looks at the gradients, which must still be what they were
// (LGRECO_DEVICE if what is wrong is not found). Allocates.
//
// As lgreco_cuda_measure; LGRECO_LENGTH unless `copy_bytes` are the bytes of the results. Of a copy of something else the numbers are
// others, or LGRECO_OPTION_ERROR.
lgreco_status lgreco_cuda_read_rows(struct lgreco_cuda *cuda,
                                    const struct lgreco_layer *layers,
                                    size_t layers_len,
                                    const char *const *options,
                                    const void *copy,
                                    size_t copy_bytes,
                                    struct lgreco_table **table);

/*
 * ---- 3. Whole buckets, without the host ----
 *
 * Every collective is one on device memory, for NCCL. A step:
 *
 *     lgreco_cuda_bucket_submit
 *     lgreco_cuda_bucket_next, enqueue what it asks for, until that is LGRECO_REQUEST_NONE
 */

// Layers that are exchanged together, with gradients, residuals and messages in the device's memory, compressed and summed
// there. A step is lgreco_cuda_bucket_submit, then lgreco_cuda_bucket_next and the collective that it asks for until there is
// none. Nothing of a step waits, allocates or brings anything from the host: it may be captured into a CUDA graph together with its
// collectives, and replayed. Calls also need the lgreco_cuda.
typedef struct lgreco_cuda_bucket lgreco_cuda_bucket;

// Tells the bytes of device memory that a bucket of these layers works in: some 8 per element, and messages. `values` of
// layers are not looked at; `settings` are one per layer.
//
// LGRECO_UNAVAILABLE for settings that are not exchanged on devices, LGRECO_PARAMETER for layers of different types.
lgreco_status lgreco_cuda_bucket_bytes(struct lgreco_cuda *cuda,
                                       const struct lgreco_layer *layers,
                                       const struct lgreco_setting *settings,
                                       size_t layers_len,
                                       const char *const *options,
                                       uint64_t *bytes);

// Enqueued: makes a bucket of these layers in `memory` on the device, of at least lgreco_cuda_bucket_bytes and aligned to 16, which
// is the bucket's until all work enqueued with it is done. Residuals are zeros. Loads the kernels first, which waits.
//
// As lgreco_cuda_bucket_bytes; LGRECO_LENGTH when there is less memory; LGRECO_PARAMETER for ranks and gains out of range;
// LGRECO_DEVICE.
lgreco_status lgreco_cuda_bucket_create(struct lgreco_cuda *cuda,
                                        const struct lgreco_layer *layers,
                                        const struct lgreco_setting *settings,
                                        size_t layers_len,
                                        const char *const *options,
                                        void *memory,
                                        uint64_t memory_bytes,
                                        struct lgreco_cuda_bucket **bucket);
//
// Options:
//   world_size            the number of workers. Default: 1.
//   rank                  the number of this worker, below `world_size`. Default: 0.
//   step                  the number of the first step. Default: 0.
//   indices               each layer's number in the model, with commas between; it names the layer's random words. Default:
//                         0,1,2 and so on.
//   gain                  how much of an error is remembered, above 0, at most 1. Default: 1.
//   on_fault              what means become where a rank has failed: zeros, the default, or nan, for a loss scaler to find.
//   reduce_dtype          the type in which uncompressed layers and powersgd's factors are summed: float32, the default, or
//                         bfloat16. What a worker's own values lose by it is remembered.
//   random_seed           the seed of all random bits, the same on every rank. Default: 0.

// Enqueued: compresses the gradients of a step, which lie one after the other in the device's memory, with what is remembered.
// They stay where they are until lgreco_cuda_bucket_next has said LGRECO_REQUEST_NONE, and are then replaced by the means.
//
// LGRECO_STEP_ORDER when a step is under way; LGRECO_DEVICE for an address that is NULL or not aligned. What is wrong with values is
// found on the device and told to all ranks: lgreco_cuda_bucket_outcome tells of it.
lgreco_status lgreco_cuda_bucket_submit(struct lgreco_cuda *cuda,
                                        struct lgreco_cuda_bucket *bucket,
                                        void *gradients);

// Enqueued: goes on, once the collective asked for before is enqueued, and tells the next one, on the device's memory, to be enqueued
// on the stream: LGRECO_REQUEST_ALL_GATHER, LGRECO_REQUEST_ALL_REDUCE_SUM or LGRECO_REQUEST_ALL_REDUCE_SUM_BF16, as NCCL does
// them in place; LGRECO_REQUEST_NONE when the making of the means is enqueued. All ranks are asked for the same, and start those of
// different buckets in the same order.
//
// LGRECO_STEP_ORDER before lgreco_cuda_bucket_submit; LGRECO_DEVICE in place of LGRECO_REQUEST_NONE when the driver has refused
// something: all workers have made the same collectives then, and the step has failed on all.
lgreco_status lgreco_cuda_bucket_next(struct lgreco_cuda *cuda,
                                      struct lgreco_cuda_bucket *bucket,
                                      struct lgreco_request *request);

// No rank is at fault.
#define LGRECO_NO_RANK UINT32_MAX

// What has become of a bucket's steps. Begin with LGRECO_CUDA_OUTCOME_INIT.
typedef struct lgreco_cuda_outcome {
    // Set by the INIT macro.
    size_t struct_size;
    // The number of the next step.
    uint32_t step;
    // Steps that failed so far: residuals stayed as they were, on all ranks, and means are what the option `on_fault` says; but where a mean
    // has left its type only that one is infinite or NaN.
    uint32_t failed;
    // The first rank at fault in the last step: its gradient was not finite, or it was at another step or had other settings, or its
    // payload cannot be decoded; else LGRECO_NO_RANK.
    uint32_t rank;
    // What was wrong on this rank in the last step: LGRECO_NON_FINITE, LGRECO_OVERFLOW, or LGRECO_OK; on all ranks alike
    // LGRECO_PEER_MESSAGE where that rank's payload cannot be decoded.
    lgreco_status fault;
    // Of the first value at fault: its layer, as the bucket numbers them.
    size_t layer;
    // And its element; 0 where a factor of PowerSGD's is, or a payload.
    size_t element;
    // 1 when the last step failed on some rank, else 0.
    uint32_t has_failed;
} lgreco_cuda_outcome;
#define LGRECO_CUDA_OUTCOME_INIT {LGRECO_SIZE_OF(lgreco_cuda_outcome), 0, 0, LGRECO_NO_RANK, LGRECO_OK, 0, 0, 0}

// Done: what has become of the bucket's steps so far. lgreco_cuda_bucket_outcome_place is for those who do not want to wait.
//
// LGRECO_DEVICE.
lgreco_status lgreco_cuda_bucket_outcome(struct lgreco_cuda *cuda,
                                         struct lgreco_cuda_bucket *bucket,
                                         struct lgreco_cuda_outcome *outcome);

// Tells where in the device's memory is what the bucket knows of its last step, and of how many bytes: the same as long as it lives.
// A copy to page-locked memory, enqueued on the same stream between lgreco_cuda_bucket_next that says LGRECO_REQUEST_NONE and the next
// lgreco_cuda_bucket_submit, has what that step came to, whatever is enqueued after it. When it is there, by an event behind it, say,
// lgreco_cuda_bucket_read_outcome reads it: a trainer hears of faults a step later, and waits for nothing but the copy.
lgreco_status lgreco_cuda_bucket_outcome_place(struct lgreco_cuda *cuda,
                                               struct lgreco_cuda_bucket *bucket,
                                               const void **address,
                                               size_t *bytes);

// What such a copy, which need not be aligned, says of the bucket's steps up to its own. The device is not asked.
//
// LGRECO_LENGTH unless `copy_bytes` are the bytes that lgreco_cuda_bucket_outcome_place tells. Other bytes say something else, of a
// layer that the bucket does not have, perhaps.
lgreco_status lgreco_cuda_bucket_read_outcome(struct lgreco_cuda *cuda,
                                              struct lgreco_cuda_bucket *bucket,
                                              const void *copy,
                                              size_t copy_bytes,
                                              struct lgreco_cuda_outcome *outcome);

// Tells where in the device's memory an f32 is that is 1 after a step that failed on some rank, else 0: `found_inf` of loss scalers.
lgreco_status lgreco_cuda_bucket_found_inf(struct lgreco_cuda *cuda,
                                           struct lgreco_cuda_bucket *bucket,
                                           float **found_inf);

// Done: copies what is remembered of all layers, one after the other, to host memory, between two steps.
//
// LGRECO_LENGTH unless `values_len` is the number of all elements; LGRECO_DEVICE.
lgreco_status lgreco_cuda_bucket_get_residuals(struct lgreco_cuda *cuda,
                                               struct lgreco_cuda_bucket *bucket,
                                               float *values,
                                               size_t values_len);

// Done: remembers these values instead, between two steps.
//
// As lgreco_cuda_bucket_get_residuals.
lgreco_status lgreco_cuda_bucket_set_residuals(struct lgreco_cuda *cuda,
                                               struct lgreco_cuda_bucket *bucket,
                                               const float *values,
                                               size_t values_len);

// Done: takes over the residuals of another bucket of the same layers and how many steps it has taken, between two steps: so layers
// get other settings. PowerSGD's factors begin afresh. Both are of this lgreco_cuda.
//
// LGRECO_LENGTH when the layers have other numbers of elements; LGRECO_BUSY for the same bucket twice; LGRECO_DEVICE.
lgreco_status lgreco_cuda_bucket_take_over(struct lgreco_cuda *cuda,
                                           struct lgreco_cuda_bucket *bucket,
                                           struct lgreco_cuda_bucket *from);

// Frees a bucket and sets the caller's pointer to NULL; NULL, or a pointer to NULL, does nothing. Its memory may go when what was
// enqueued with it is done.
lgreco_status lgreco_cuda_bucket_destroy(struct lgreco_cuda_bucket **bucket);

/* ---- 4. Single payloads ---- */

// The random words of one payload: QSGD rounds by all of it, PowerSGD starts from `seed` and `layer`.
typedef struct lgreco_rng_stream {
    // Seed of the run, the same on every rank.
    uint64_t seed;
    // The training step.
    uint32_t step;
    // Index of the layer in the model.
    uint32_t layer;
    // Number of this worker. Workers must differ here, or their rounding errors do not average out.
    uint32_t rank;
} lgreco_rng_stream;

// Tells the bytes of the payload of a layer under a setting, whatever the values, which are not looked at.
//
// LGRECO_PARAMETER when the setting does not fit the layer.
lgreco_status lgreco_cuda_payload_len(struct lgreco_cuda *cuda,
                                      const struct lgreco_layer *layer,
                                      const char *setting,
                                      size_t *bytes);

// Done: compresses a gradient in the device's memory, `values` of `layer`, into a payload in host memory, of `length`
// bytes. Takes QSGD with buckets of a power of two from 64 to 4096 values, TopK, also in few bits, PowerSGD of ranks up to 1024
// and uncompressed gradients. `rng` names the random words.
//
// LGRECO_NON_FINITE; LGRECO_LENGTH when `capacity` is less than lgreco_cuda_payload_len; LGRECO_UNAVAILABLE for other
// methods and ranks; LGRECO_OVERFLOW, LGRECO_ELEMENT_OVERFLOW, LGRECO_OUT_OF_MEMORY, LGRECO_DEVICE.
lgreco_status lgreco_cuda_encode(struct lgreco_cuda *cuda,
                                 const struct lgreco_layer *layer,
                                 const char *setting,
                                 const struct lgreco_rng_stream *rng,
                                 uint8_t *payload,
                                 size_t capacity,
                                 size_t *length);

// Enqueued for QSGD, done for other methods: decodes any payload in host memory into `values` in the device's memory,
// `values_len` = the number of elements. The payload may go when the call has returned.
//
// LGRECO_PAYLOAD_HEADER, LGRECO_PAYLOAD_FIELD, LGRECO_PAYLOAD_BODY, LGRECO_LENGTH on bytes that no encoder writes;
// LGRECO_OUT_OF_MEMORY, LGRECO_DEVICE. `values` then hold nothing to be used.
lgreco_status lgreco_cuda_decode(struct lgreco_cuda *cuda,
                                 const uint8_t *payload,
                                 size_t length,
                                 float *values,
                                 size_t values_len);

// Enqueued: compresses a gradient as lgreco_cuda_encode, but into `payload` in the device's memory, 4-byte aligned, from
// where NCCL or the like may send it. lgreco_cuda_check says later whether the gradient could be compressed; what is
// enqueued after this call may overwrite it.
//
// As lgreco_cuda_encode, but for the values; LGRECO_DEVICE when a check is due.
lgreco_status lgreco_cuda_encode_to_device(struct lgreco_cuda *cuda,
                                           const struct lgreco_layer *layer,
                                           const char *setting,
                                           const struct lgreco_rng_stream *rng,
                                           uint8_t *payload,
                                           size_t capacity,
                                           size_t *length);

// Enqueued: decodes a payload in the device's memory into `values` there; one that is not 4-byte aligned is copied to the
// library's memory first. It is one that
// lgreco_cuda_encode_to_device, on any worker, made of this layer (whose `values` are not looked at) under this setting; of
// other bytes some values come out, or lgreco_cuda_check tells. Takes QSGD, EDEN, TopK and PowerSGD.
//
// LGRECO_LENGTH when `length` is less than lgreco_cuda_payload_len, or `values_len` not the layer's number of elements;
// LGRECO_UNAVAILABLE for other methods; LGRECO_DEVICE, also when a check is due.
lgreco_status lgreco_cuda_decode_on_device(struct lgreco_cuda *cuda,
                                           const struct lgreco_layer *layer,
                                           const char *setting,
                                           const uint8_t *payload,
                                           size_t length,
                                           float *values,
                                           size_t values_len);

// Done: whether all that lgreco_cuda_encode_to_device and lgreco_cuda_decode_on_device have enqueued since the last
// check could be done. Reads no gradient. The message names the first call that failed by its number, from 0, among all calls of both kinds
// that returned LGRECO_OK since the last check. Calls after it may have failed too, and are not told of: nothing of
// what came out of it or of them may be used. At least one check is due in 4096 such calls.
//
// LGRECO_NON_FINITE, LGRECO_OVERFLOW, LGRECO_ELEMENT_OVERFLOW, LGRECO_PAYLOAD_BODY; LGRECO_DEVICE where the
// driver fails: then no call is named and nothing is known of any.
lgreco_status lgreco_cuda_check(struct lgreco_cuda *cuda);

/* ---- 5. Memory of the device ---- */

// Calls on device memory, a sum of LGRECO_CUDA_...
typedef uint32_t lgreco_cuda_calls;
// lgreco_cuda_measure.
#define LGRECO_CUDA_MEASURE 1
// lgreco_cuda_encode.
#define LGRECO_CUDA_ENCODE 2
// lgreco_cuda_decode.
#define LGRECO_CUDA_DECODE 4
// lgreco_cuda_encode_to_device.
#define LGRECO_CUDA_ENCODE_TO_DEVICE 8
// lgreco_cuda_decode_on_device.
#define LGRECO_CUDA_DECODE_ON_DEVICE 16

// Tells the bytes of device memory that the handle holds: what calls have worked in so far, and what was reserved.
lgreco_status lgreco_cuda_held_bytes(struct lgreco_cuda *cuda,
                                     uint64_t *bytes);

// Tells the bytes of device memory that `calls` work in on such layers, whose `values` are not looked at, under any
// setting that `options` offer them: what lgreco_cuda_held_bytes tells when a handle that held none has reserved them.
// The device is not asked.
//
// As lgreco_cuda_measure, but for the values; LGRECO_UNKNOWN_CONSTANT.
lgreco_status lgreco_cuda_workspace_bytes(struct lgreco_cuda *cuda,
                                          const struct lgreco_layer *layers,
                                          size_t layers_len,
                                          const char *const *options,
                                          lgreco_cuda_calls calls,
                                          uint64_t *bytes);

// Done: allocates that memory, and compiles and loads the kernels, so that later `calls` for such layers, under any
// setting that `options` offer them, allocate nothing on the device and load nothing.
//
// As lgreco_cuda_workspace_bytes; LGRECO_OUT_OF_MEMORY, LGRECO_DEVICE.
lgreco_status lgreco_cuda_reserve(struct lgreco_cuda *cuda,
                                  const struct lgreco_layer *layers,
                                  size_t layers_len,
                                  const char *const *options,
                                  lgreco_cuda_calls calls);

#ifdef __cplusplus
} // extern "C"
#endif

#endif // LGRECO_CUDA_H
