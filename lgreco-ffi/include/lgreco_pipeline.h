/*
 * Compression at the cuts between pipeline stages: activations go forward, gradients go back. The stages above and below
 * a cut are two processes, and each process has one end of the cut.
 *
 *     above                                           below
 *     lgreco_cut_send_activations  ── message ──>     lgreco_cut_receive
 *     lgreco_cut_receive           <── message ──     lgreco_cut_send_gradients
 *     lgreco_cut_commit_step                          lgreco_cut_commit_step
 *
 * A codec and a memory are texts. Words in brackets may be left out. The first of several alternatives is the default.
 *
 * Codecs:
 *     dense [f32|f16|bf16]
 *         The values, uncompressed in this type.
 *     min-max BITS [tile ELEMENTS|tile batch]
 *         1 to 8 bits per value, on a grid from the smallest to the largest value. Each tile of ELEMENTS values of a
 *         sample has a grid, or the whole batch has one. Default: tile 128.
 *     symmetric BITS [channels NUMBER] [scale f32|scale bf16]
 *         2 to 8 bits per value, on a grid symmetric about zero. Each sample has a scale. With channels, each channel
 *         over all samples has a scale; NUMBER divides the number of features.
 *     topk KEEP [f32|f16|bf16]
 *         The KEEP largest magnitudes of each sample.
 *     shared-index KEEP [f32|f16|bf16]
 *         Gradients only: the values at the positions that the forward codec kept for this micro-batch. The forward
 *         codec must be topk with the same KEEP.
 *     eden BITS
 *         1 to 8 bits per value, after a random rotation of blocks of 4096 values.
 *
 * Memories:
 *     none
 *         Every message is independent.
 *     residual [gain NUMBER] [reset MESSAGES] [f32|bf16|int8]
 *         Error feedback, by position in the batch. The type is that of the stored residual.
 *     mixed [gain NUMBER] [reset MESSAGES] [f32|bf16|int8]
 *         EF-mixed, by position in the batch; for topk only.
 *     ef21
 *         EF21, by position in the batch.
 *     samples CAPACITY [bf16|f32|bits NUMBER]
 *         Activations only: AQ-SGD keeps the last reconstruction of up to CAPACITY samples, by id, in this type or in 2
 *         to 8 bits.
 *
 * `gain` and `reset` are the options gain and reset_every of lgreco_compressor_create, counted in messages. The
 * defaults are 1 and 0.
 *
 * Made from headers/lgreco_pipeline.h.in and the Rust source: LGRECO_BLESS=1 cargo test -p lgreco-ffi --test header
 */
#ifndef LGRECO_PIPELINE_H
#define LGRECO_PIPELINE_H

#include "lgreco.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- 1. The setting of a cut, the same at both ends ---- */

// Number of bytes of a cut setting.
#define LGRECO_CUT_SETTING_BYTES 76

// Everything about a cut that both ends must agree on, with a checksum. The bytes are the same on every machine.
// Compression at a cut is part of the trained model, so save this struct with the model. The layout of this struct
// never changes.
typedef struct lgreco_cut_setting {
    // Written by lgreco_cut_setting_make.
    uint8_t bytes[LGRECO_CUT_SETTING_BYTES];
} lgreco_cut_setting;

// Makes a setting from options. The options `batch` and `features` are required.
//
// Fails with LGRECO_UNKNOWN_NAME for a text that is not a codec or a memory, and with LGRECO_FEEDBACK_RULE when a
// memory or shared-index does not fit the other options. Also fails with LGRECO_UNKNOWN_OPTION, with LGRECO_PARAMETER
// for numbers out of range, and with LGRECO_TOO_MANY_ELEMENTS for a batch of 2^32 or more values.
lgreco_status lgreco_cut_setting_make(const char *const *options,
                                      struct lgreco_cut_setting *setting);
//
// Options:
//   batch                 the number of samples per message, at least 1. With a memory by position (residual, mixed or ef21) in
//                         either direction, every training message has exactly this number; otherwise it is the maximum.
//                         Required.
//   features              the number of values per sample, at least 1. Required.
//   forward               the codec of activations: a text as at the top of this header, but not shared-index. Default: min-max
//                         4.
//   forward_memory        the memory of activations: a text as at the top of this header. Default: none.
//   backward              the codec of gradients: a text as at the top of this header. Gradients need milder compression than
//                         activations. Default: min-max 8.
//   backward_memory       the memory of gradients: a text as at the top of this header, but not samples. Default: none.
//   cut                   the number of the cut in the model, from 0. Default: 0.
//   in_flight             the largest number of micro-batches in flight, at least 1. A micro-batch is in flight until its
//                         gradients have been sent. Default: 8.

// Whether a model that was trained with one setting of a cut may be run with another.
LGRECO_ENUM(lgreco_compatibility) {
    LGRECO_COMPATIBILITY_SAME = 0,  // The settings are the same.
    LGRECO_COMPATIBILITY_TRAINS_DIFFERENTLY = 1,  // Evaluation gives the same numbers, but further training differs.
    // Evaluation gives different numbers, because the setting changes the model.
    LGRECO_COMPATIBILITY_EVALUATES_DIFFERENTLY = 2,
};

// Compares `setting` with `trained`, the setting that a model was trained with. If `what` is not NULL, it receives the
// name of the first field that differs, such as "forward codec", or "" if no field differs. The text is static.
//
// Fails with LGRECO_CHECKSUM or LGRECO_SAVED_STATE for bytes that are not a setting.
lgreco_status lgreco_cut_setting_compare(const struct lgreco_cut_setting *setting,
                                         const struct lgreco_cut_setting *trained,
                                         lgreco_compatibility *compatibility,
                                         const char **what);

/* ---- 2. An end ---- */

// One end of a cut between two pipeline stages. The other end is in another process. Messages between the two ends
// must not be lost or change their order.
typedef struct lgreco_cut lgreco_cut;

// An end of a cut.
LGRECO_ENUM(lgreco_end) {
    LGRECO_END_UPSTREAM = 0,  // The stage above. The upstream end sends activations and receives gradients.
    LGRECO_END_DOWNSTREAM = 1,  // The stage below. The downstream end receives activations and sends gradients.
};

// Creates a new end. Both ends need the same setting and generation. A run that resumes without saved ends must take
// an unused generation, so that messages of old ends are refused.
//
// Fails with LGRECO_CHECKSUM or LGRECO_SAVED_STATE for bytes that are not a setting.
lgreco_status lgreco_cut_create(const struct lgreco_cut_setting *setting,
                                lgreco_end end,
                                uint32_t generation,
                                struct lgreco_cut **cut);

// Writes the largest length of this end's messages, in bytes, to `bytes`.
lgreco_status lgreco_cut_bound(struct lgreco_cut *cut, size_t *bytes);

// Frees an end and sets the caller's pointer to NULL. Does nothing for NULL, or for a pointer to NULL.
lgreco_status lgreco_cut_destroy(struct lgreco_cut **cut);

/* ---- 3. A training step ---- */

// Replaces the id of a sample that AQ-SGD must not remember.
#define LGRECO_UNREMEMBERED UINT64_MAX

// Upstream: compresses the activations of a micro-batch into `message`. `values` has `samples` rows with one value per
// feature. `length` receives the number of bytes. `ticket` receives the micro-batch's number. Later,
// lgreco_cut_receive returns the same number with the micro-batch's gradients. With the forward memory samples
// (AQ-SGD), `ids` has one id per sample, or LGRECO_UNREMEMBERED for a sample that must not be remembered. With other
// memories, the ids are not used, and `ids` may be NULL. Allocates only while the memory of samples grows.
//
// Fails with LGRECO_OTHER_END for a downstream end. Also fails with LGRECO_NON_FINITE, LGRECO_OVERFLOW,
// LGRECO_ELEMENT_OVERFLOW, LGRECO_LENGTH, LGRECO_DUPLICATE_SAMPLE and LGRECO_TOO_MANY_IN_FLIGHT.
lgreco_status lgreco_cut_send_activations(struct lgreco_cut *cut,
                                          const void *values,
                                          lgreco_dtype dtype,
                                          size_t samples,
                                          const uint64_t *ids,
                                          uint8_t *message,
                                          size_t capacity,
                                          size_t *length,
                                          uint64_t *ticket);

// Writes the number of samples in a message for this end to `samples`. The number is at most the batch size. The
// message holds one value for each sample and feature.
//
// Fails with LGRECO_PAYLOAD_HEADER, LGRECO_PAYLOAD_FIELD or LGRECO_LENGTH for bytes that are not a message of the
// other end, and with LGRECO_OUT_OF_STEP for a message of another generation.
lgreco_status lgreco_cut_samples(struct lgreco_cut *cut,
                                 const uint8_t *message,
                                 size_t length,
                                 size_t *samples);

// Decompresses the other end's message into `values`. A downstream end receives activations, an upstream end
// gradients. `values_len` is the number of samples in the message times the number of features. `ticket` receives the
// micro-batch's number, which the upstream end has chosen.
//
// Fails with LGRECO_OUT_OF_STEP when this is not the next message, and with LGRECO_SAMPLE_OUT_OF_STEP when the two
// ends remember different values of a sample. Fails with LGRECO_PAYLOAD_HEADER for a message of another cut, or for
// the other end. Also fails with LGRECO_TOO_MANY_IN_FLIGHT, LGRECO_NOT_IN_FLIGHT, LGRECO_PAYLOAD_BODY and
// LGRECO_LENGTH.
lgreco_status lgreco_cut_receive(struct lgreco_cut *cut,
                                 const uint8_t *message,
                                 size_t length,
                                 float *values,
                                 size_t values_len,
                                 uint64_t *ticket);

// Downstream: compresses the gradients of a micro-batch into `message`. `ticket` is the micro-batch's number from
// lgreco_cut_receive, and can be used once. The message has the same number of values as the micro-batch's
// activations. Gradients of different micro-batches may be sent in any order.
//
// Fails with LGRECO_OTHER_END for an upstream end. Also fails with LGRECO_NOT_IN_FLIGHT, LGRECO_NON_FINITE,
// LGRECO_OVERFLOW, LGRECO_ELEMENT_OVERFLOW and LGRECO_LENGTH.
lgreco_status lgreco_cut_send_gradients(struct lgreco_cut *cut,
                                        uint64_t ticket,
                                        const void *values,
                                        lgreco_dtype dtype,
                                        size_t samples,
                                        uint8_t *message,
                                        size_t capacity,
                                        size_t *length);

// Ends an optimiser step. The updates from the step's messages become part of this end's state. Both ends must commit
// between the same two activation messages.
//
// Fails with LGRECO_PARAMETER when no activations went through the cut in this step.
lgreco_status lgreco_cut_commit_step(struct lgreco_cut *cut);

/* ---- 4. Lost messages ---- */

// Upstream: writes the message of a micro-batch in flight once more. Use this call when the message was lost, or when
// the same step makes another forward pass over the same values. Changes nothing.
//
// Fails like lgreco_cut_send_activations. Also fails with LGRECO_NOT_IN_FLIGHT, with LGRECO_OUT_OF_STEP when the step
// has been committed since, and with LGRECO_FEEDBACK_RULE for the forward memories residual, mixed and ef21.
lgreco_status lgreco_cut_repeat_activations(struct lgreco_cut *cut,
                                            uint64_t ticket,
                                            const void *values,
                                            lgreco_dtype dtype,
                                            size_t samples,
                                            const uint64_t *ids,
                                            uint8_t *message,
                                            size_t capacity,
                                            size_t *length);

// Downstream: decompresses a message of lgreco_cut_repeat_activations, or the micro-batch's first message again.
// Changes nothing.
//
// Fails like lgreco_cut_receive. Also fails with LGRECO_NOT_IN_FLIGHT, and with LGRECO_FEEDBACK_RULE for the forward
// memories residual, mixed and ef21.
lgreco_status lgreco_cut_receive_repeated(struct lgreco_cut *cut,
                                          const uint8_t *message,
                                          size_t length,
                                          float *values,
                                          size_t values_len);

// Gives back the ticket of a micro-batch whose gradients will never be sent. The other end must make the same call.
//
// Fails with LGRECO_NOT_IN_FLIGHT when the ticket is not in use.
lgreco_status lgreco_cut_forget(struct lgreco_cut *cut,
                                uint64_t ticket);

/* ---- 5. Evaluation ---- */

// Upstream: writes a message for evaluation. If `compressed` is not 0, the forward codec compresses the values,
// without a memory. Changes nothing.
//
// Fails like lgreco_cut_send_activations for wrong values and buffers.
lgreco_status lgreco_cut_evaluate(struct lgreco_cut *cut,
                                  uint32_t compressed,
                                  const void *values,
                                  lgreco_dtype dtype,
                                  size_t samples,
                                  uint8_t *message,
                                  size_t capacity,
                                  size_t *length);

// Downstream: decompresses a message for evaluation. Changes nothing.
//
// Fails like lgreco_cut_receive for wrong messages and buffers.
lgreco_status lgreco_cut_receive_evaluation(struct lgreco_cut *cut,
                                            const uint8_t *message,
                                            size_t length,
                                            float *values,
                                            size_t values_len);

/* ---- 6. Remembered samples, and saved ends ---- */

// For AQ-SGD: writes the remembered activations of a sample to `values`, and 1 to `found`. `values_len` is the number
// of features. For an unknown sample, `found` receives 0, and `values` are unchanged.
//
// Fails with LGRECO_LENGTH if `values_len` is not the number of features.
lgreco_status lgreco_cut_remembered(struct lgreco_cut *cut,
                                    uint64_t sample,
                                    float *values,
                                    size_t values_len,
                                    uint32_t *found);

// For AQ-SGD: writes the ids of all remembered samples to samples[0 .. length], least recently updated first. `length`
// receives the number of ids, and must not be NULL.
//
// Fails with LGRECO_LENGTH when `capacity` is less than the number of ids. Even then `length` is set, and `samples`
// may be NULL.
lgreco_status lgreco_cut_remembered_samples(struct lgreco_cut *cut,
                                            uint64_t *samples,
                                            size_t capacity,
                                            size_t *length);

// Writes the state of this end to `saved`. Save both ends after the same step. `length` receives the number of bytes
// and must not be NULL.
//
// Fails with LGRECO_MID_STEP while updates wait for lgreco_cut_commit_step or tickets are in flight. Fails with
// LGRECO_LENGTH when `capacity` is less than the number of bytes; even then `length` is set, and `saved` may be NULL.
lgreco_status lgreco_cut_save(struct lgreco_cut *cut,
                              uint8_t *saved,
                              size_t capacity,
                              size_t *length);

// Creates an end from a saved state. The run continues bit for bit. Any bytes are allowed as input.
//
// Fails with LGRECO_OTHER_SETTING for a state with another setting, and with LGRECO_CHECKSUM for a damaged state.
// Fails with LGRECO_SAVED_STATE or another code for bytes that are not the state of an upstream or downstream end, as
// `end` says.
lgreco_status lgreco_cut_restore(const struct lgreco_cut_setting *setting,
                                 lgreco_end end,
                                 const uint8_t *saved,
                                 size_t length,
                                 struct lgreco_cut **cut);

#ifdef __cplusplus
} // extern "C"
#endif

#endif // LGRECO_PIPELINE_H
