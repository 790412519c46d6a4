/*
 * Calls on gradients, residuals and payloads in the memory of an NVIDIA GPU, in libraries built with the feature `cuda`.
 * In other libraries, lgreco_cuda_create fails with LGRECO_NOT_BUILT_IN. Pointers are device pointers unless the call says
 * otherwise.
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

// An NVIDIA GPU with one stream, for calls on pointers to GPU memory. Needs a library with the feature `cuda`. A call
// that is described as "Enqueued" only adds work to the stream. A call that is described as "Blocking" returns when
// its work is done.
typedef struct lgreco_cuda lgreco_cuda;

// Makes a handle for device number `ordinal`, from 0. The handle uses the device's primary context, like PyTorch and
// the CUDA runtime. The handle has a new stream, which does not wait for the default stream.
//
// Fails with LGRECO_NOT_BUILT_IN without the feature `cuda`. Fails with LGRECO_UNAVAILABLE when driver or device are
// missing or too old, or when the library has no kernels for the device. The message names the reason. Fails with
// LGRECO_DEVICE when the driver fails, for instance because a context or stream cannot be allocated.
lgreco_status lgreco_cuda_create(uint32_t ordinal,
                                 struct lgreco_cuda **cuda);

// Makes a handle for a stream (a cudaStream_t or CUstream) and its CUDA context. Any thread may make this call. NULL
// is the default stream of the context that is current on the calling thread. Stream and context must outlive the
// handle. While the stream is captured into a graph, calls fail with LGRECO_DEVICE.
//
// Fails like lgreco_cuda_create, and with LGRECO_UNAVAILABLE for a default stream when no context is current.
lgreco_status lgreco_cuda_create_on_stream(void *stream,
                                           struct lgreco_cuda **cuda);

// Blocking: waits until all work in the stream is done.
//
// Fails with LGRECO_DEVICE when the driver fails, or when earlier enqueued work has failed.
lgreco_status lgreco_cuda_synchronize(struct lgreco_cuda *cuda);

// Blocking: waits for the stream, frees the handle and its device memory, and sets the caller's pointer to NULL. Does
// nothing for NULL, or for a pointer to NULL.
lgreco_status lgreco_cuda_destroy(struct lgreco_cuda **cuda);

/* ---- 2. Error tables. Options are those of lgreco_table_measure ---- */

// Blocking: like lgreco_table_measure, but for gradients in the device's memory. The call enqueues all layers and
// waits once. The call copies only the measured errors to the host. `values` of layers are device pointers. The call
// does not read the values of layers that are left out of the table. Allocates on the host. Allocates on the device
// unless lgreco_cuda_reserve has reserved the memory.
//
// Fails like lgreco_table_measure. Fails with LGRECO_UNAVAILABLE for PowerSGD with ranks above 1024. Also fails with
// LGRECO_UNAVAILABLE for QSGD with bucket sizes that are not a power of two from 64 to 4096. With LGRECO_OUT_OF_MEMORY
// and LGRECO_DEVICE, the message names no layer.
lgreco_status lgreco_cuda_measure(struct lgreco_cuda *cuda,
                                  const struct lgreco_layer *layers,
                                  size_t layers_len,
                                  const char *const *options,
                                  struct lgreco_table **table);

// Reports the bytes of workspace and of results that lgreco_cuda_enqueue_rows needs on the device for these layers and
// options. `values` are not read, and the device is not used.
//
// Fails like lgreco_cuda_measure, except for errors about values.
lgreco_status lgreco_cuda_rows_bytes(struct lgreco_cuda *cuda,
                                     const struct lgreco_layer *layers,
                                     size_t layers_len,
                                     const char *const *options,
                                     uint64_t *workspace_bytes,
                                     uint64_t *results_bytes);

// Enqueued: like lgreco_cuda_measure, but without waiting for the results. The work uses `workspace` and `results` on
// the device. `workspace` and `results` have at least the sizes that lgreco_cuda_rows_bytes reports, and are aligned
// to 256 and 8 bytes. The call allocates on the host, but not on the device. The first call on a handle waits while
// kernels are loaded. A call with more layers or options than before may wait for page-locked memory. Any other call
// does not wait. After this call, enqueue a copy of the results to host memory, and pass the copy to
// lgreco_cuda_read_rows.
//
// Fails like lgreco_cuda_rows_bytes. Also fails with LGRECO_LENGTH when the memory is too small, and with
// LGRECO_ALIGNMENT when it is not aligned. With LGRECO_OUT_OF_MEMORY and LGRECO_DEVICE, the message names no layer.
lgreco_status lgreco_cuda_enqueue_rows(struct lgreco_cuda *cuda,
                                       const struct lgreco_layer *layers,
                                       size_t layers_len,
                                       const char *const *options,
                                       void *workspace,
                                       uint64_t workspace_bytes,
                                       void *results,
                                       uint64_t results_bytes);

// Makes the table of lgreco_cuda_measure from a host copy of the `results` of lgreco_cuda_enqueue_rows, for the same
// layers and options. Make this call once the copy has arrived, for instance after an event that follows the copy. The
// copy need not be aligned. The device is used only if a gradient is not finite or almost exceeds its type. In that
// case the call waits and reads the gradients, which must still be unchanged. If it finds no error in the gradients,
// the call fails with LGRECO_DEVICE. Allocates.
//
// Fails like lgreco_cuda_measure, and with LGRECO_LENGTH unless `copy_bytes` is the number of bytes of the results. If
// the copy holds other bytes, the call returns meaningless numbers or LGRECO_OPTION_ERROR.
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
 * All collectives are on device memory, so that NCCL can perform them. To take a step, make these calls:
 *
 *     lgreco_cuda_bucket_submit
 *     lgreco_cuda_bucket_next, then enqueue the requested collective; repeat until LGRECO_REQUEST_NONE
 */

// Layers that are exchanged together, with gradients, residuals and messages in the device's memory. To take a step,
// call lgreco_cuda_bucket_submit. Then repeat lgreco_cuda_bucket_next and the requested collective, until the request
// is LGRECO_REQUEST_NONE. A step never waits, allocates or copies from the host, so a CUDA graph can capture and
// replay it together with its collectives. Every call also takes the lgreco_cuda that made the bucket.
typedef struct lgreco_cuda_bucket lgreco_cuda_bucket;

// Reports the number of bytes of device memory that a bucket of these layers needs: about 8 per element, plus
// messages. `values` of layers are not read. `settings` has one setting per layer.
//
// Fails with LGRECO_UNAVAILABLE for settings that cannot be exchanged on a device, with LGRECO_PARAMETER for layers of
// different types, and with LGRECO_UNKNOWN_OPTION, LGRECO_PARAMETER or LGRECO_LENGTH for wrong options.
lgreco_status lgreco_cuda_bucket_bytes(struct lgreco_cuda *cuda,
                                       const struct lgreco_layer *layers,
                                       const struct lgreco_setting *settings,
                                       size_t layers_len,
                                       const char *const *options,
                                       uint64_t *bytes);

// Enqueued: makes a bucket of these layers in `memory` on the device. The memory has at least the bytes that
// lgreco_cuda_bucket_bytes reports, and is aligned to 16 bytes. Nothing else may use the memory until all work that
// was enqueued with the bucket is done. Residuals start as zeros. The call first waits until kernels are loaded.
//
// Fails like lgreco_cuda_bucket_bytes. Also fails with LGRECO_LENGTH when the memory is too small, and with
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
//   world_size            the number of workers, at least 1. Default: 1.
//   rank                  the number of this worker, below `world_size`. Default: 0.
//   step                  the number of the first step, 0 to 2^32 - 1. Default: 0.
//   indices               the index of each layer in the model, with commas between. It selects the layer's random numbers. Any
//                         other number of indices than layers gives LGRECO_LENGTH. Default: 0,1,2 and so on.
//   gain                  the factor a, above 0 and at most 1, in the update of a residual r: r becomes r + a (gradient -
//                         decoded payload). Default: 1, which is classic error feedback.
//   on_fault              the value of all means of the bucket after a step in which some rank has failed: zeros, or nan, which
//                         a loss scaler detects. Default: zeros.
//   reduce_dtype          the type in which ranks sum uncompressed layers and the factors of powersgd: float32, or bfloat16,
//                         which halves their bytes. The residual keeps the rounding errors of this rank's uncompressed values
//                         and of its factor Q. Default: float32.
//   random_seed           the seed of all random numbers, 0 to 2^64 - 1, the same on every rank. Default: 0.

// Enqueued: adds residuals to the gradients of a step and compresses them. The gradients of all layers lie one after the
// other in the device's memory. The gradients must stay in place until lgreco_cuda_bucket_next has returned
// LGRECO_REQUEST_NONE. The means then replace them.
//
// Fails with LGRECO_STEP_ORDER when a step is under way, and with LGRECO_DEVICE for an address that is NULL or not
// aligned. The device detects wrong values and informs all ranks. lgreco_cuda_bucket_outcome reports wrong values.
lgreco_status lgreco_cuda_bucket_submit(struct lgreco_cuda *cuda,
                                        struct lgreco_cuda_bucket *bucket,
                                        void *gradients);

// Enqueued: returns in `request` the next collective to enqueue on the stream. Call it after the previous collective
// was enqueued. The kind is LGRECO_REQUEST_ALL_GATHER, LGRECO_REQUEST_ALL_REDUCE_SUM or
// LGRECO_REQUEST_ALL_REDUCE_SUM_BF16. NCCL performs these collectives in place, on device memory. LGRECO_REQUEST_NONE
// means that the work that computes the means is enqueued. All ranks get the same requests, and must start the
// requests of different buckets in the same order.
//
// Fails with LGRECO_STEP_ORDER before lgreco_cuda_bucket_submit. LGRECO_DEVICE in place of LGRECO_REQUEST_NONE means that
// the driver refused a call. All workers have then enqueued the same collectives, and the step has failed on all
// workers.
lgreco_status lgreco_cuda_bucket_next(struct lgreco_cuda *cuda,
                                      struct lgreco_cuda_bucket *bucket,
                                      struct lgreco_request *request);

// The value of `rank` in an outcome if no rank is at fault.
#define LGRECO_NO_RANK UINT32_MAX

// The outcome of a bucket's steps. Begin with LGRECO_CUDA_OUTCOME_INIT.
typedef struct lgreco_cuda_outcome {
    // Set by the INIT macro.
    size_t struct_size;
    // The number of the next step.
    uint32_t step;
    // Number of steps that failed. A failed step leaves residuals unchanged on all ranks, and the option `on_fault`
    // decides the value of all means. If a mean is out of range for its type, the step also fails, but only this mean
    // is infinite or NaN.
    uint32_t failed;
    // The first rank at fault in the last step, else LGRECO_NO_RANK. A rank is at fault if its gradient was not
    // finite, if its step or settings differed, or if its payload cannot be decoded.
    uint32_t rank;
    // The fault that this rank found in the last step: LGRECO_NON_FINITE, LGRECO_OVERFLOW, or LGRECO_OK for none. If a
    // payload cannot be decoded, the fault is LGRECO_PEER_MESSAGE on all ranks.
    lgreco_status fault;
    // Layer of the first value with this fault, as an index into the bucket's layers.
    size_t layer;
    // Index of this value in its layer; 0 if the fault is in a factor of PowerSGD or in a payload.
    size_t element;
    // 1 when the last step failed on some rank, else 0.
    uint32_t has_failed;
} lgreco_cuda_outcome;
#define LGRECO_CUDA_OUTCOME_INIT {LGRECO_SIZE_OF(lgreco_cuda_outcome), 0, 0, LGRECO_NO_RANK, LGRECO_OK, 0, 0, 0}

// Blocking: reports the outcome of the bucket's steps so far. To read the outcome without waiting, use
// lgreco_cuda_bucket_outcome_place.
//
// Fails with LGRECO_DEVICE.
lgreco_status lgreco_cuda_bucket_outcome(struct lgreco_cuda *cuda,
                                         struct lgreco_cuda_bucket *bucket,
                                         struct lgreco_cuda_outcome *outcome);

// Reports the device address and the number of bytes of the outcome of the bucket's last step. Address and number stay
// the same as long as the bucket lives. After LGRECO_REQUEST_NONE and before the next lgreco_cuda_bucket_submit,
// enqueue a copy to page-locked memory on the same stream. The copy then holds this step's outcome, whatever is
// enqueued later. Record an event after the copy. When the event has completed, lgreco_cuda_bucket_read_outcome can
// read the copy. With this method a trainer learns of faults one step later, and waits only for the copy.
lgreco_status lgreco_cuda_bucket_outcome_place(struct lgreco_cuda *cuda,
                                               struct lgreco_cuda_bucket *bucket,
                                               const void **address,
                                               size_t *bytes);

// Reads the outcome of the bucket's steps from a copy of the bytes at lgreco_cuda_bucket_outcome_place. The copy need not
// be aligned. The device is not used.
//
// Fails with LGRECO_LENGTH unless `copy_bytes` is the number that lgreco_cuda_bucket_outcome_place reports. If the
// copy holds other bytes, the outcome is meaningless and may name a layer that the bucket does not have.
lgreco_status lgreco_cuda_bucket_read_outcome(struct lgreco_cuda *cuda,
                                              struct lgreco_cuda_bucket *bucket,
                                              const void *copy,
                                              size_t copy_bytes,
                                              struct lgreco_cuda_outcome *outcome);

// Reports the device address of an f32 flag: 1 if the last step failed on some rank, else 0. Loss scalers read this
// flag as `found_inf`.
lgreco_status lgreco_cuda_bucket_found_inf(struct lgreco_cuda *cuda,
                                           struct lgreco_cuda_bucket *bucket,
                                           float **found_inf);

// Blocking: copies the residuals of all layers, one layer after the other, to host memory. Call it between two steps.
//
// Fails with LGRECO_LENGTH unless `values_len` is the number of elements of all layers, and with LGRECO_DEVICE.
lgreco_status lgreco_cuda_bucket_get_residuals(struct lgreco_cuda *cuda,
                                               struct lgreco_cuda_bucket *bucket,
                                               float *values,
                                               size_t values_len);

// Blocking: replaces the residuals of all layers by these values. Call it between two steps.
//
// Fails like lgreco_cuda_bucket_get_residuals.
lgreco_status lgreco_cuda_bucket_set_residuals(struct lgreco_cuda *cuda,
                                               struct lgreco_cuda_bucket *bucket,
                                               const float *values,
                                               size_t values_len);

// Blocking: copies the residuals and the step count of another bucket with the same layers to this bucket, between two
// steps. Use this call to change the layers' settings. PowerSGD's factors are reset. Both buckets must have been made
// with `cuda`.
//
// Fails with LGRECO_LENGTH when the layers have other numbers of elements, with LGRECO_BUSY for the same bucket twice,
// and with LGRECO_DEVICE.
lgreco_status lgreco_cuda_bucket_take_over(struct lgreco_cuda *cuda,
                                           struct lgreco_cuda_bucket *bucket,
                                           struct lgreco_cuda_bucket *from);

// Frees a bucket and sets the caller's pointer to NULL. Does nothing for NULL, or for a pointer to NULL. The bucket's
// memory may be freed once all work that was enqueued with the bucket is done.
lgreco_status lgreco_cuda_bucket_destroy(struct lgreco_cuda_bucket **bucket);

/* ---- 4. Single payloads ---- */

// Selects the random bits of one payload. QSGD's rounding and EDEN's rotation use all fields. PowerSGD's start matrix
// uses `seed` and `layer`. The layout of this struct never changes.
typedef struct lgreco_rng_stream {
    // Seed of the run, the same on every rank.
    uint64_t seed;
    // The training step.
    uint32_t step;
    // Index of the layer in the model.
    uint32_t layer;
    // Number of this worker. The number must differ between workers, or their rounding errors do not average out.
    uint32_t rank;
} lgreco_rng_stream;

// Reports the number of payload bytes of a layer under a setting. The number does not depend on the values, and the
// call does not read them.
//
// Fails with LGRECO_PARAMETER when the setting does not fit the layer.
lgreco_status lgreco_cuda_payload_len(struct lgreco_cuda *cuda,
                                      const struct lgreco_layer *layer,
                                      const char *setting,
                                      size_t *bytes);

// Blocking: compresses a gradient in the device's memory into a payload in host memory. The gradient is `values` of
// `layer`. `length` receives the payload's number of bytes. `rng` selects the random bits. The call supports
// uncompressed gradients, EDEN, TopK, and TopK with values in few bits. It also supports QSGD with bucket sizes of a
// power of two from 64 to 4096, and PowerSGD with ranks up to 1024.
//
// Fails with LGRECO_LENGTH when `capacity` is less than lgreco_cuda_payload_len reports, and with LGRECO_UNAVAILABLE
// for other methods, bucket sizes and ranks. Also fails with LGRECO_NON_FINITE, LGRECO_OVERFLOW,
// LGRECO_ELEMENT_OVERFLOW, LGRECO_OUT_OF_MEMORY and LGRECO_DEVICE.
lgreco_status lgreco_cuda_encode(struct lgreco_cuda *cuda,
                                 const struct lgreco_layer *layer,
                                 const char *setting,
                                 const struct lgreco_rng_stream *rng,
                                 uint8_t *payload,
                                 size_t capacity,
                                 size_t *length);

// Enqueued for QSGD, blocking for other methods: decodes any payload in host memory into `values` in the device's
// memory. `values_len` is the number of elements. The payload may be freed when the call returns.
//
// Fails with LGRECO_PAYLOAD_HEADER, LGRECO_PAYLOAD_FIELD, LGRECO_PAYLOAD_BODY or LGRECO_LENGTH for bytes that no
// encoder writes. Also fails with LGRECO_OUT_OF_MEMORY and LGRECO_DEVICE. `values` are then unusable.
lgreco_status lgreco_cuda_decode(struct lgreco_cuda *cuda,
                                 const uint8_t *payload,
                                 size_t length,
                                 float *values,
                                 size_t values_len);

// Enqueued: compresses a gradient like lgreco_cuda_encode, but into `payload` in the device's memory, so that NCCL can
// send it. `payload` is aligned to 4 bytes. A later call of lgreco_cuda_check reports whether the gradient could be
// compressed. Work that is enqueued after this call may overwrite the gradient.
//
// Fails like lgreco_cuda_encode, except for errors about values, and with LGRECO_DEVICE when a check is due.
lgreco_status lgreco_cuda_encode_to_device(struct lgreco_cuda *cuda,
                                           const struct lgreco_layer *layer,
                                           const char *setting,
                                           const struct lgreco_rng_stream *rng,
                                           uint8_t *payload,
                                           size_t capacity,
                                           size_t *length);

// Enqueued: decodes a payload in the device's memory into `values` in the device's memory. The library first copies a
// payload that is not 4-byte aligned to its own memory. The payload must come from lgreco_cuda_encode_to_device on any
// worker, for this layer under this setting. The layer's `values` are not read. Other bytes decode to arbitrary
// values, or lgreco_cuda_check reports a failure. Supports QSGD, EDEN, TopK and PowerSGD.
//
// Fails with LGRECO_LENGTH when `length` is less than lgreco_cuda_payload_len reports, or when `values_len` is not the
// layer's number of elements. Fails with LGRECO_UNAVAILABLE for other methods, and with LGRECO_DEVICE when the driver
// fails or a check is due.
lgreco_status lgreco_cuda_decode_on_device(struct lgreco_cuda *cuda,
                                           const struct lgreco_layer *layer,
                                           const char *setting,
                                           const uint8_t *payload,
                                           size_t length,
                                           float *values,
                                           size_t values_len);

// Blocking: checks all calls of lgreco_cuda_encode_to_device and lgreco_cuda_decode_on_device since the last check.
// The check does not read gradients. The message has the number of the first failed call. Calls of both kinds that
// returned LGRECO_OK since the last check are numbered from 0. Later calls may have failed too, but are not reported.
// After a failed check, do not use the results of the failed call or of later calls. A check is due after at most 4096
// calls of both kinds.
//
// Fails with LGRECO_NON_FINITE, LGRECO_OVERFLOW, LGRECO_ELEMENT_OVERFLOW, LGRECO_PAYLOAD_BODY. LGRECO_DEVICE means that
// the driver failed. The message then names no call, and any call may have failed.
lgreco_status lgreco_cuda_check(struct lgreco_cuda *cuda);

/* ---- 5. Memory of the device ---- */

// Kinds of calls on device memory, as a sum of LGRECO_CUDA_...
typedef uint32_t lgreco_cuda_calls;
enum {
    LGRECO_CUDA_MEASURE = 1,  // Calls of lgreco_cuda_measure.
    LGRECO_CUDA_ENCODE = 2,  // Calls of lgreco_cuda_encode.
    LGRECO_CUDA_DECODE = 4,  // Calls of lgreco_cuda_decode.
    LGRECO_CUDA_ENCODE_TO_DEVICE = 8,  // Calls of lgreco_cuda_encode_to_device.
    LGRECO_CUDA_DECODE_ON_DEVICE = 16,  // Calls of lgreco_cuda_decode_on_device.
};

// Reports the number of bytes of device memory that the handle holds: the workspace of past calls and reserved memory.
lgreco_status lgreco_cuda_held_bytes(struct lgreco_cuda *cuda,
                                     uint64_t *bytes);

// Reports the bytes of device memory that `calls` need for these layers, under every candidate setting of `options`.
// `values` are not read, and the device is not used. When a new handle has reserved this memory,
// lgreco_cuda_held_bytes reports the same number.
//
// Fails like lgreco_cuda_measure, except for errors about values, and with LGRECO_UNKNOWN_CONSTANT.
lgreco_status lgreco_cuda_workspace_bytes(struct lgreco_cuda *cuda,
                                          const struct lgreco_layer *layers,
                                          size_t layers_len,
                                          const char *const *options,
                                          lgreco_cuda_calls calls,
                                          uint64_t *bytes);

// Blocking: allocates the memory that lgreco_cuda_workspace_bytes reports, and compiles and loads the kernels. After
// that, `calls` for these layers, under every candidate setting of `options`, allocate nothing on the device and load
// nothing.
//
// Fails like lgreco_cuda_workspace_bytes, and with LGRECO_OUT_OF_MEMORY and LGRECO_DEVICE.
lgreco_status lgreco_cuda_reserve(struct lgreco_cuda *cuda,
                                  const struct lgreco_layer *layers,
                                  size_t layers_len,
                                  const char *const *options,
                                  lgreco_cuda_calls calls);

#ifdef __cplusplus
} // extern "C"
#endif

#endif // LGRECO_CUDA_H
