/*
 * More of lgreco.h for trainers: devices, files, checks, residuals of compressors, buckets in flight, plans on a separate
 * thread, inspection, saved states. Sections are in order of use and do not depend on one another.
 *
 * Made from headers/lgreco_train.h.in and the Rust source: LGRECO_BLESS=1 cargo test -p lgreco-ffi --test header
 */
#ifndef LGRECO_TRAIN_H
#define LGRECO_TRAIN_H

#include "lgreco.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- 1. Devices ---- */

// Makes a context for a device. "cpu" is the CPU. "cuda" is the NVIDIA GPU with ordinal 0, and "cuda:1" the one with
// ordinal 1; they need a library with the feature `cuda`. "wgpu" is the fastest GPU through Vulkan, Metal or DirectX
// 12; it needs the feature `wgpu`.
//
// A GPU computes the error rows and payloads of QSGD, TopK and PowerSGD from values in host memory. A CUDA GPU also
// computes those of EDEN. The CPU does everything else. On CUDA the CPU also handles PowerSGD with ranks above 1024,
// and QSGD with bucket sizes that are not a power of two from 64 to 4096.
//
// Fails with LGRECO_UNKNOWN_NAME for another device, LGRECO_NOT_BUILT_IN when this build does not support the kind of
// device, LGRECO_UNAVAILABLE when this machine has no usable one, LGRECO_DEVICE when its driver fails.
lgreco_status lgreco_context_create(const char *device,
                                    struct lgreco_context **context);

// Frees a context and sets the caller's pointer to NULL. Does nothing for NULL, or for a pointer to NULL.
lgreco_status lgreco_context_destroy(struct lgreco_context **context);

/* ---- 2. Rows of errors; tables and plans as files ---- */

// Measures one layer under given settings. squared_errors[i] is the squared L2 norm of the compression error under
// settings[i], or its expectation for stochastic rounding. sizes[i] is the payload's size in bits, also if it depends on
// the values. `sizes` may be NULL; otherwise it has `settings_len` elements too. NULL for `context` means the CPU.
//
// Adjacent settings that differ only in their first number are measured together. This takes about one pass for QSGD,
// TopK, CLT-k, PowerSGD and hard thresholds, and three passes for quantised TopK. `seed` and `layer_index` select
// PowerSGD's start matrix, like the compressor options `random_seed` and `layer_index`. Allocates.
//
// Fails with LGRECO_NON_FINITE, LGRECO_PARAMETER when a setting does not fit the layer.
lgreco_status lgreco_measure(const struct lgreco_context *context,
                             const struct lgreco_layer *layer,
                             const struct lgreco_setting *settings,
                             size_t settings_len,
                             uint64_t seed,
                             uint32_t layer_index,
                             double *squared_errors,
                             uint64_t *sizes);

// Writes the table as JSON with a NUL after it. `length` must not be NULL and receives the number of bytes before the NUL.
// Allocates.
//
// Fails with LGRECO_LENGTH unless `capacity` is above that number. Even then `length` is set, and `json` may be NULL.
lgreco_status lgreco_table_to_json(const struct lgreco_table *table,
                                   char *json,
                                   size_t capacity,
                                   size_t *length);

// Reads a table file: `length` bytes of JSON as described by schemas/table.schema.json.
//
// Fails with LGRECO_JSON or LGRECO_JSON_VERSION, and the codes of lgreco_table_create and lgreco_setting. The message
// names layer, option and field.
lgreco_status lgreco_table_from_json(const char *json,
                                     size_t length,
                                     struct lgreco_table **table);

// Writes a plan for `table` as JSON (schemas/plan.schema.json) with a NUL after it. The file also contains the table's
// settings. `length` is as for lgreco_table_to_json. Allocates.
//
// Also fails with LGRECO_PLAN_MISMATCH and the other codes of lgreco_plan_check when the plan does not fit this table.
lgreco_status lgreco_plan_to_json(const struct lgreco_plan *plan,
                                  const struct lgreco_table *table,
                                  char *json,
                                  size_t capacity,
                                  size_t *length);

// Reads a plan file for `table` and verifies it. `json` has `length` bytes. The order of layers may differ. Each entry
// must name a layer of the table, and its option by index and label. The lower bound in the file is not verified.
//
// Fails with LGRECO_JSON or LGRECO_JSON_VERSION, the codes of lgreco_setting for a setting in the file, LGRECO_LENGTH
// unless there is one entry per layer, LGRECO_UNKNOWN_NAME for a layer or label that the table does not have,
// LGRECO_DUPLICATE_NAME, LGRECO_PLAN_MISMATCH and the other codes of lgreco_plan_check. The message names the layer.
lgreco_status lgreco_plan_from_json(const struct lgreco_table *table,
                                    const char *json,
                                    size_t length,
                                    struct lgreco_plan **plan);

// Verifies a plan against a table. The plan must have one option per layer, and keep groups and fixed options. The
// size and error that it states must be correct, and within the stated budget or size limit. These checks use exact
// arithmetic. A lower bound is only compared with the value that it bounds.
//
// Fails with LGRECO_PLAN_MISMATCH, LGRECO_OVER_BUDGET, LGRECO_OVER_SIZE, LGRECO_NO_SUCH_OPTION, LGRECO_RULED_OUT,
// LGRECO_BUDGET, LGRECO_LENGTH.
lgreco_status lgreco_plan_check(const struct lgreco_table_view *table,
                                const struct lgreco_plan_view *plan);

/* ---- 3. Compressors: other settings, residuals, saved states, checksums of payloads ---- */

// Checks whether `setting` suits error feedback on `layer`, under a compressor's `options`. All methods do, but QSGD
// only with at least 4 bits and buckets of up to 512 elements. lgreco_compressor_create makes the same check without
// values. Allocates.
//
// QSGD is unbiased and needs no feedback. With few bits or long buckets, its error has a larger norm than its input,
// so the residual would grow until it overflows. The layer's `values` may be NULL. The call then compresses
// heavy-tailed values to judge QSGD, as lgreco_compressor_create does. If `values` are given, they must be finite, and
// the call compresses them to judge any method. The result may then be stricter or more lenient. If the options have
// no error feedback, the call does not judge the values.
//
// Fails with LGRECO_NOT_CONTRACTIVE when the setting does not suit error feedback; the message then has the squared
// error. Also fails with LGRECO_PARAMETER when the setting does not fit the layer, and with LGRECO_NON_FINITE when a
// value is not finite.
lgreco_status lgreco_feedback_check(const struct lgreco_layer *layer,
                                    const char *setting,
                                    const char *const *options);

// Changes the setting between two steps, for instance after a new plan; the residual stays. Allocates when the new setting
// needs a larger workspace than all earlier ones.
//
// Fails like lgreco_compressor_create when the setting does not fit the layer or the feedback. The setting is then
// unchanged.
lgreco_status lgreco_compressor_set_setting(struct lgreco_compressor *compressor,
                                            const char *setting);

// Writes the residual of the compressor's error feedback to `values`; `values_len` is the layer's number of elements.
//
// Like the other calls on the residual, it fails with LGRECO_FEEDBACK_RULE if the compressor has no feedback.
lgreco_status lgreco_compressor_memory(struct lgreco_compressor *compressor,
                                       float *values,
                                       size_t values_len);

// Replaces the residual, for instance by that of a worker that left. `step` is the step number, as in
// lgreco_compressor_encode; it selects the random bits for rounding.
//
// Fails with LGRECO_OVERFLOW when a value is not finite or too large for the storage format. The residual is then
// unchanged.
lgreco_status lgreco_compressor_set_memory(struct lgreco_compressor *compressor,
                                           uint32_t step,
                                           const float *values,
                                           size_t values_len);

// Multiplies the residual by `factor`, the ratio of the new loss scale to the old one. `step` is as for
// lgreco_compressor_set_memory.
//
// Fails with LGRECO_PARAMETER unless `factor` is positive and finite, LGRECO_OVERFLOW when a value no longer fits the
// storage format. The residual is then unchanged.
lgreco_status lgreco_compressor_rescale_memory(struct lgreco_compressor *compressor,
                                               uint32_t step,
                                               float factor);

// Writes the squared L2 norm of the residual, and the number of steps that it has accumulated.
lgreco_status lgreco_compressor_memory_norm(struct lgreco_compressor *compressor,
                                            double *squared_norm,
                                            uint64_t *steps);

// Writes the residual as a saved state, versioned and the same on every machine. The state does not contain the layer's
// name or the rank. `length` must not be NULL and receives the number of bytes, which is the same at every step.
//
// Fails with LGRECO_LENGTH when `capacity` is less than this number. Even then `length` is set, and `saved` may be
// NULL.
lgreco_status lgreco_compressor_save(struct lgreco_compressor *compressor,
                                     uint8_t *saved,
                                     size_t capacity,
                                     size_t *length);

// Loads the saved state of a compressor with the same layer and options; the run continues bit for bit. Any bytes are
// allowed as input. Allocates.
//
// Fails with LGRECO_CHECKSUM when the bytes are damaged, LGRECO_SAVED_STATE when they are not a saved state or have
// another shape or other feedback options, LGRECO_LENGTH. The residual is then unchanged.
lgreco_status lgreco_compressor_load(struct lgreco_compressor *compressor,
                                     const uint8_t *saved,
                                     size_t length);

// Number of bytes that lgreco_payload_seal adds. Sizes in tables and plans do not include them.
#define LGRECO_SEAL_BYTES 8

// Writes a checksum of payload[0 .. length] to the LGRECO_SEAL_BYTES bytes after it. It is meant for networks and
// files that may flip bits unnoticed: most altered payloads decode to other numbers without an error. `sealed_length`
// receives the length of payload and checksum. Does not allocate.
//
// Fails with LGRECO_LENGTH when `capacity` is less than that length; nothing is written.
lgreco_status lgreco_payload_seal(uint8_t *payload,
                                  size_t length,
                                  size_t capacity,
                                  size_t *sealed_length);

// Verifies the checksum of lgreco_payload_seal, and writes the length of the payload without it to `length`, for
// lgreco_compressor_decode. Any bytes are allowed as input. Does not allocate.
//
// Fails with LGRECO_CHECKSUM when a bit has changed or the end is missing, LGRECO_LENGTH when there are fewer than
// LGRECO_SEAL_BYTES bytes.
lgreco_status lgreco_payload_unseal(const uint8_t *sealed,
                                    size_t sealed_length,
                                    size_t *length);

/*
 * ---- 4. A step in parts, for exchanges that go on during the backward pass ----
 *
 * The caller performs the collectives, blocking or not; the controller's callback is never called. A step makes these
 * calls:
 *
 *     lgreco_controller_begin_step
 *     lgreco_controller_control, then perform the requested collective; repeat until LGRECO_REQUEST_NONE
 *     per bucket, any number at a time, on any threads:
 *         lgreco_bucket_open, lgreco_bucket_submit
 *         lgreco_bucket_next, then perform the requested collective; repeat until LGRECO_REQUEST_NONE
 *         lgreco_bucket_close
 *     lgreco_controller_finish_step
 */

// Like lgreco_controller_create, for ranks that keep a shard of each layer (FSDP, ZeRO). Each rank gets the means of
// its own shards, at the shards' positions in the gradients. The other elements are then unusable.
//
// `shards` has world_size numbers per layer, layer after layer: the end of each rank's shard, in elements. The shard of
// rank r begins at the end of rank r - 1's shard, or at 0, and may be empty. The last end is the layer's number of
// elements. The controller asks for LGRECO_REQUEST_ALL_TO_ALL and REDUCE_SCATTER_SUM. Payloads of hard thresholds, SIDCo
// and AdaComp are gathered whole and decoded by every rank. The option `route` has no effect.
//
// Also fails with LGRECO_NULL_POINTER for `shards`, LGRECO_PARAMETER for invalid ends.
lgreco_status lgreco_controller_create_sharded(const struct lgreco_context *context,
                                               const struct lgreco_collective *collective,
                                               const struct lgreco_layer *layers,
                                               size_t layers_len,
                                               const uint64_t *shards,
                                               const struct lgreco_setting *settings,
                                               const char *const *options,
                                               struct lgreco_controller **controller);

// Like lgreco_controller_create, for nodes of `ranks_per_node` workers with consecutive ranks. The workers of a node
// sum their gradients uncompressed. Each worker exchanges its shard of the sums, compressed, with its peers: the
// workers with the same index within the other nodes. The workers of a node then gather the means. So each byte of a
// payload passes a node's link once per other node.
//
// Each request's `group` names the workers that perform it, LGRECO_GROUP_NODE or LGRECO_GROUP_PEERS. This worker's
// ranks in them are `rank % ranks_per_node` and `rank / ranks_per_node`. The last request of a bucket gathers the
// means in its node. Before it, ranks of a node may have performed different numbers of requests with their peers. So
// give each bucket in flight separate groups. Alternatively, start the last requests in the same order on all ranks,
// after all buckets have reached them.
//
// Inside nodes, the controller also asks for LGRECO_REQUEST_ALL_GATHER_EACH, and for REDUCE_SCATTER_SUM or, if
// `reduce_dtype` is bfloat16, ALL_TO_ALL. Settings, residuals, metrics and the bytes of reports are those of this
// rank's shards (lgreco_controller_shard). `settings` and the option `min_elements` are for whole layers. Rank numbers
// in errors are those of the collective. A run may resume with another division into nodes: give
// lgreco_controller_load the states of all ranks of the nodes that this node replaces, and each rank finds its shards
// in them.
//
// A gradient that is not finite affects its bucket only, also in lgreco_controller_step. Earlier buckets have then
// been exchanged. LGRECO_NON_FINITE_GRADIENT ends the step: do not repeat the step, and ignore its gradients. With the
// option `non_finite`, the outcome is as after a step with buckets in flight. If lgreco_controller_step is called
// while a step is under way, it abandons that step and fails with LGRECO_STEP_ORDER. If a bucket of that step is not
// closed, it fails with LGRECO_IN_FLIGHT, and the step stays under way. lgreco_controller_step also allocates small
// lists at every step.
//
// Also fails with LGRECO_PARAMETER unless `ranks_per_node` divides the number of workers.
lgreco_status lgreco_controller_create_on_nodes(const struct lgreco_context *context,
                                                const struct lgreco_collective *collective,
                                                uint32_t ranks_per_node,
                                                const struct lgreco_layer *layers,
                                                size_t layers_len,
                                                const struct lgreco_setting *settings,
                                                const char *const *options,
                                                struct lgreco_controller **controller);

// Reports which elements of layer `layer` this rank exchanges with its peers: `count` elements from index `first`. The
// rank's residual has only these elements. Without lgreco_controller_create_on_nodes, these are all elements.
//
// Fails with LGRECO_LAYER_MISMATCH when there is no such layer.
lgreco_status lgreco_controller_shard(struct lgreco_controller *controller,
                                      size_t layer,
                                      size_t *first,
                                      size_t *count);

// Begins a step whose collectives the caller performs. The requests of lgreco_controller_control follow, then any number
// of buckets at a time (lgreco_bucket_open), then lgreco_controller_finish_step. All workers make these calls, with
// the same `learning_rate`. Only Accordion uses it. lgreco_controller_step does all of this in one call, and checks
// all gradients before anything is exchanged.
//
// A negative or non-finite learning rate is reported to all ranks. lgreco_controller_control then fails, or the first
// bucket if there is no control request. Fails with LGRECO_STEP_ORDER when a step is under way.
lgreco_status lgreco_controller_begin_step(struct lgreco_controller *controller,
                                           double learning_rate);

// Reports the next collective to perform before buckets may be opened. Call it again after each collective, until the
// kind is LGRECO_REQUEST_NONE. In most steps the first call already returns that kind. If a decision is due, the
// measuring rank measures and plans during a call. Allocates at decisions only.
//
// If the call fails on one rank, it fails on all, and the step may be begun again. The codes are LGRECO_PEER,
// LGRECO_PEER_PLAN, LGRECO_PEER_MESSAGE, and those of measuring and planning. Fails with LGRECO_STEP_ORDER when no
// step is under way. If a collective cannot be performed, ranks may have different states. lgreco_controller_load then
// ends the step.
lgreco_status lgreco_controller_control(struct lgreco_controller *controller,
                                        struct lgreco_request *request);

// Layers that are exchanged together in one step. The controller lends them with this rank's residuals and factors.
// Different threads may use different buckets at the same time, while another thread uses their controller. Only
// lgreco_bucket_close frees a bucket.
typedef struct lgreco_bucket lgreco_bucket;

// Lends a bucket of these layers for one exchange in the step that has begun. `layers` are indices, in any order. All
// workers exchange the same layers together, in the same order. For layers that have not been exchanged together
// before, an additional all-gather of 24 bytes per worker checks this. Allocates the memory that the settings need and
// up to three f32 per element. If it can reuse the memory of a closed bucket, it allocates only a few hundred bytes.
//
// Fails with LGRECO_STEP_ORDER unless a step has begun and its control requests are done, LGRECO_LAYER_MISMATCH for an
// unknown layer, LGRECO_IN_FLIGHT for a layer that is in another bucket or twice in this one.
lgreco_status lgreco_bucket_open(struct lgreco_controller *controller,
                                 const size_t *layers,
                                 size_t layers_len,
                                 struct lgreco_bucket **bucket);

// Declares that a layer has no gradient on this rank in this step; to be called before lgreco_bucket_submit. The
// library treats the submitted values of the layer as zeros and replaces them by the mean. The residual stays
// unchanged. Other ranks may have a gradient for it.
//
// Fails with LGRECO_STEP_ORDER when gradients were already submitted, LGRECO_LAYER_MISMATCH when the layer is not in this
// bucket.
lgreco_status lgreco_bucket_withhold(struct lgreco_bucket *bucket,
                                     size_t layer);

// Reports the kind and size of a collective before lgreco_bucket_next asks for it, so that memory can be reserved or
// registered. `index` counts the bucket's collectives from 0. Beyond the last one, the kind is LGRECO_REQUEST_NONE.
// All pointers are NULL. An exchange that fails asks for fewer collectives.
//
// `count` is the number of f32 to sum. `length` is a number of bytes, which depends on the kind:
// - LGRECO_REQUEST_ALL_GATHER: the bytes of one worker.
// - LGRECO_REQUEST_ALL_GATHER_EACH: the bytes of all workers; an upper bound if the values decide them.
// - LGRECO_REQUEST_BROADCAST: the bytes that are broadcast.
// - LGRECO_REQUEST_ALL_TO_ALL: the bytes sent and received together.
lgreco_status lgreco_bucket_round(struct lgreco_bucket *bucket,
                                  size_t index,
                                  struct lgreco_request *request);

// Submits the gradients of this step, one pointer per layer in the order in which the bucket was opened. The call adds
// residuals and compresses. The library keeps the pointers. The gradients must stay in place, and nothing else may use
// them, until lgreco_bucket_next returns LGRECO_REQUEST_NONE or fails, or the bucket is closed. Does not allocate.
//
// Fails with LGRECO_STEP_ORDER when gradients were already submitted; the bucket is then unchanged. Wrong gradients
// are not an error of this call, because the other ranks wait for this one. Examples are values that are not finite,
// and pointers that lgreco_controller_step would refuse. lgreco_bucket_next reports wrong gradients to all ranks, and
// fails on each. A trainer that has no gradients calls lgreco_bucket_submit_failure.
lgreco_status lgreco_bucket_submit(struct lgreco_bucket *bucket,
                                   void *const *gradients,
                                   size_t gradients_len);

// Replaces lgreco_bucket_submit on a rank that has no gradients because its backward pass has failed. All ranks learn
// of it in this step. Call lgreco_bucket_next as after lgreco_bucket_submit. It fails with LGRECO_TRAINER on this
// rank. On the others it fails with LGRECO_PEER, and the message names this rank. Residuals and factors of the layers
// stay unchanged. A bucket whose layers have no elements sends no messages; the next bucket or step then fails on all
// ranks.
//
// Fails with LGRECO_STEP_ORDER when gradients were already submitted.
lgreco_status lgreco_bucket_submit_failure(struct lgreco_bucket *bucket);

// Continues the exchange after the previous request was performed, and returns the next collective in `request`.
// LGRECO_REQUEST_NONE means that the gradients are now means. Allocates scratch memory and, on nodes, memory for the
// last collective. If this allocation fails, the call fails with LGRECO_OUT_OF_MEMORY on this rank only.
//
// A failure on one rank is a failure on all. The rank at fault gets the code of its error. The others get LGRECO_PEER,
// with rank and code in the message. The bucket's gradients are then unusable, its residuals and factors are
// unchanged, and other buckets are not affected. The codes are LGRECO_NON_FINITE_GRADIENT, LGRECO_PEER_PLAN when ranks
// exchange different layers or have different options, LGRECO_OVERFLOW, LGRECO_ELEMENT_OVERFLOW and
// LGRECO_PEER_MESSAGE.
//
// If the option `non_finite` is `skip` or `pass_through`, gradients that are not finite are no error. All gradients of the
// bucket then become zeros (skip), or NaN for a loss scaler to find (pass_through), on every rank. Residuals stay
// unchanged. Fails with LGRECO_STEP_ORDER before lgreco_bucket_submit, and after a failure.
lgreco_status lgreco_bucket_next(struct lgreco_bucket *bucket,
                                 struct lgreco_request *request);

// Returns a bucket to its controller, at any stage of its exchange, frees it and sets the caller's pointer to NULL.
// Does nothing for NULL, or for a pointer to NULL. A collective that still works on the bucket's memory must have
// ended. If the exchange did not finish, residuals and factors of its layers stay as they were. A bucket that was
// opened before lgreco_controller_load is freed without any other effect. `controller` may be NULL once the bucket's
// controller is destroyed.
//
// If the bucket was in the middle of its exchange, other ranks may have the means. The step's outcome on this rank is
// then LGRECO_OUTCOME_FAILED. The next step fails on all ranks, on this one with LGRECO_STEP_ORDER. Both are avoided
// if all ranks exchange the layers again in this step, or abandon the step.
//
// Fails with LGRECO_STEP_ORDER for a bucket of another controller, which stays unchanged. LGRECO_PANIC means that an
// earlier call on the bucket panicked. The bucket is then freed with its layers' state. Calls on these layers fail
// with LGRECO_IN_FLIGHT until a saved state is loaded.
lgreco_status lgreco_bucket_close(struct lgreco_controller *controller,
                                  struct lgreco_bucket **bucket);

// Ends the step, after all its buckets were closed. Layers that were in no bucket keep their residuals and factors.
// `report` may be NULL. Its outcome is LGRECO_OUTCOME_FAILED when the exchange of some bucket failed. If gradients of some
// bucket were not finite, it is LGRECO_OUTCOME_SKIPPED or LGRECO_OUTCOME_PASSED_THROUGH, by the option `non_finite`.
//
// Fails with LGRECO_IN_FLIGHT when a bucket was not closed, LGRECO_STEP_ORDER when no step is under way or its control
// requests are not done.
lgreco_status lgreco_controller_finish_step(struct lgreco_controller *controller,
                                            struct lgreco_report *report);

/* ---- 5. Between steps ---- */

// Undoes the last step's changes to the residuals. Use it when the step's means were not applied, for instance because
// a loss scaler skipped the update. The step still counts. Either all ranks call it or none, at most once per step.
//
// Fails with LGRECO_STEP_ORDER while a step is under way, and when the earlier residuals are not available. They are
// available with the option `undo`, or with a `non_finite` other than `error`. On failure, nothing has changed.
lgreco_status lgreco_controller_roll_back(struct lgreco_controller *controller);

// Abandons the step under way because a collective failed; the step may be begun again. With the option `undo`, residuals
// return to their values before the step. Without it, layers whose exchange finished keep their new residuals.
//
// Close all buckets first, once the network no longer uses their memory. Ranks may have stopped at different points.
// Before they continue, all ranks must load the plan of one of them, each with its own residuals. lgreco_controller_step
// abandons the step itself when a callback fails.
//
// Fails with LGRECO_IN_FLIGHT when a bucket is not closed, LGRECO_STEP_ORDER when no step is under way.
lgreco_status lgreco_controller_abandon_step(struct lgreco_controller *controller);

// Multiplies all residuals by `factor`. Call it when the loss scale, and so all later gradients, change by this
// factor. Either all ranks call it with the same factor, or none. The last step can then no longer be rolled back.
//
// Fails with LGRECO_PARAMETER unless `factor` is positive and finite, LGRECO_OVERFLOW when a residual no longer fits its
// format, LGRECO_STEP_ORDER while a step is under way. On failure, no residual has changed.
lgreco_status lgreco_controller_rescale_residuals(struct lgreco_controller *controller,
                                                  float factor);

// Asks for a decision earlier than the schedule's next one, because the data or the network have changed. The
// decision's window begins with the next step. The decision is due `window + lead` steps later, or at the scheduled
// step if that is sooner. `due` receives the step of the decision, or UINT64_MAX under policies that make no further
// decisions. All ranks must ask, between the same two steps; otherwise the next step fails with LGRECO_PEER_PLAN on
// every rank.
//
// Fails with LGRECO_STEP_ORDER while a step is under way.
lgreco_status lgreco_controller_replan(struct lgreco_controller *controller,
                                       uint64_t *due);

// Gives new settings, one per layer, to a controller that was made with settings. All ranks must make this call
// between the same two steps. They switch at the next step, or at the end of the warm-up if that is later. With
// buckets in flight (lgreco_controller_control), they switch a step later. Residuals and factors stay. If ranks give
// different settings, or only some give any, the step fails with LGRECO_PEER_PLAN on every rank.
//
// Fails with LGRECO_NOT_FIXED for a controller that was made without settings, LGRECO_STEP_ORDER while a step is under
// way, LGRECO_LENGTH unless there is one setting per layer, and the codes of settings that do not fit their layer. On
// failure, nothing has changed.
lgreco_status lgreco_controller_set_settings(struct lgreco_controller *controller,
                                             const struct lgreco_setting *settings,
                                             size_t settings_len);

/* ---- 6. Plans on a separate thread: the option `lead` ---- */

// The work of a controller's next decision: measuring gradients and planning, which takes seconds for large models. One
// thread may run it while another takes steps with the controller.
typedef struct lgreco_plan_task lgreco_plan_task;

// Takes the work of the controller's next decision as a handle. There is one such task per decision. It exists only on the
// measuring rank, once all steps before step `decision - lead` have ended. At other times, on other ranks and if `lead` is
// 0, `task` receives NULL. Call this after every step. It does not copy gradients.
//
// All ranks switch at the step of the decision. If the task was not handed in by then, they take the step under the
// old settings and ask again at the next one. No rank waits. If the task was not taken, or was destroyed,
// lgreco_controller_control or lgreco_controller_step does its work. A state that is saved in the meantime contains
// the gradients. A run that loads it uses them for its decision.
lgreco_status lgreco_controller_take_plan_task(struct lgreco_controller *controller,
                                               struct lgreco_plan_task **task);

// Measures and plans, in the calling thread, on the device of the controller's context. Meanwhile the controller may be
// used or destroyed. A task can be run once. Allocates.
//
// Fails with the codes of measuring and planning. If the task is handed in nevertheless, the step of the decision fails
// with the same code on every rank. Fails with LGRECO_STEP_ORDER when the task was already run.
lgreco_status lgreco_plan_task_run(struct lgreco_plan_task *task);

// Hands in a task that was run, frees it and sets the caller's pointer to NULL. Does nothing for NULL, or for a
// pointer to NULL. A task that is no longer needed is freed without any other effect. This happens when a saved state
// was loaded, or when a fall of the learning rate made the decision instead.
//
// Fails with LGRECO_STEP_ORDER for a task of another controller or one that was not run, LGRECO_BUSY for one that is
// running. The task then stays unchanged. LGRECO_PANIC means that the task panicked: it is freed, and the controller does
// its work.
lgreco_status lgreco_controller_hand_in(struct lgreco_controller *controller,
                                        struct lgreco_plan_task **task);

// Frees a task and sets the caller's pointer to NULL. Does nothing for NULL, or for a pointer to NULL. The task can be
// taken again.
lgreco_status lgreco_plan_task_destroy(struct lgreco_plan_task **task);

/* ---- 7. Inspection of a controller ---- */

// Fills `setting` with the setting of layer `layer` in the last step. Like lgreco_controller_metrics and
// lgreco_controller_residual, it fails with LGRECO_LAYER_MISMATCH for an unknown layer.
lgreco_status lgreco_controller_setting(struct lgreco_controller *controller,
                                        size_t layer,
                                        struct lgreco_setting *setting);

// Why a layer is sent uncompressed.
LGRECO_ENUM(lgreco_uncompressed) {
    LGRECO_UNCOMPRESSED_NOT = 0,  // The layer is compressed.
    LGRECO_UNCOMPRESSED_WARM_UP = 1,  // There was no decision yet, or the loaded state did not have the layer.
    LGRECO_UNCOMPRESSED_SMALL = 2,  // The layer has one dimension or fewer, or too few elements.
    LGRECO_UNCOMPRESSED_NO_SAVING = 3,  // The setting would have saved no bytes.
    LGRECO_UNCOMPRESSED_CHOSEN = 4,  // The plan or the caller chose to send it uncompressed.
    LGRECO_UNCOMPRESSED_SLOWER = 5,  // Compressing it would take longer than sending it uncompressed.
    LGRECO_UNCOMPRESSED_NOT_CONTRACTIVE = 6,  // The chosen setting does not suit error feedback.
};

// Measurements of one layer on one rank. Begin with LGRECO_METRICS_INIT.
typedef struct lgreco_metrics {
    // Set by the INIT macro.
    size_t struct_size;
    // Number of steps in which the layer was exchanged.
    uint64_t steps;
    // Bytes of the layer's gradients in these steps.
    uint64_t bytes_in;
    // Bytes sent for the layer in these steps.
    uint64_t bytes_out;
    // Squared error of compression divided by the squared norm of its input, as last measured; -1 before the first
    // measurement.
    double relative_error;
    // L2 norm of the residual; -1 if there is no residual.
    double residual_norm;
    // Seconds for compressing and exchanging the layer's bucket, since the controller was made or loaded. All layers of a
    // bucket have the same value. -1 before the first exchange.
    double bucket_seconds;
    // Number of decisions that chose a setting that does not suit error feedback and was refused.
    uint64_t not_contractive;
    // Why the layer is sent uncompressed, if it is.
    lgreco_uncompressed uncompressed;
} lgreco_metrics;
#define LGRECO_METRICS_INIT {LGRECO_SIZE_OF(lgreco_metrics), 0, 0, 0, -1, -1, -1, 0, LGRECO_UNCOMPRESSED_NOT}

// Fills `metrics` with the measurements of layer `layer` on this rank. It reads the layer's whole residual.
lgreco_status lgreco_controller_metrics(struct lgreco_controller *controller,
                                        size_t layer,
                                        struct lgreco_metrics *metrics);

// Writes the residual of layer `layer` on this rank to `values`; zeros if it has none. `values_len` is the layer's number
// of elements; on nodes, that of the shard (lgreco_controller_shard). Fails with LGRECO_IN_FLIGHT while the layer is in a
// bucket.
lgreco_status lgreco_controller_residual(struct lgreco_controller *controller,
                                         size_t layer,
                                         float *values,
                                         size_t values_len);

// Why the settings changed.
LGRECO_ENUM(lgreco_cause) {
    LGRECO_CAUSE_NONE = 0,  // There was no decision yet.
    LGRECO_CAUSE_SCHEDULE = 1,  // A decision of the schedule was due.
    LGRECO_CAUSE_LEARNING_RATE = 2,  // The learning rate fell, and Accordion set all layers to low compression.
    LGRECO_CAUSE_CALLER = 3,  // The caller gave other settings.
};

// The last decision; the same on every rank. Begin with LGRECO_DECISION_INIT.
typedef struct lgreco_decision {
    // Set by the INIT macro.
    size_t struct_size;
    // The first step under the new settings.
    uint64_t step;
    // Why the settings changed.
    lgreco_cause cause;
    // 1 when sizes are picoseconds, 0 when they are bits.
    uint32_t in_picoseconds;
    // 1 when the policy made a plan, else 0. If it is 0, so are all fields below.
    uint32_t planned;
    // 1 when the plan is proved optimal, else 0.
    uint32_t proven;
    // Total size of the layers that may be compressed, in picoseconds if `in_picoseconds` is 1, otherwise in bits.
    uint64_t size;
    // If `limit` is LGRECO_LIMIT_ERROR, a lower bound of the size of all plans within the budget; otherwise 0.
    uint64_t lower_bound;
    // Size of the same layers under the default settings, from which the budget is derived.
    uint64_t default_size;
    // Size of the same layers uncompressed. If `size` is not smaller, compression does not pay.
    uint64_t uncompressed_size;
    // Total error of the plan.
    double error;
    // If `limit` is LGRECO_LIMIT_ERROR, the error budget of the plan; otherwise 0.
    double budget;
    // Number of layers that are sent uncompressed because that is faster.
    uint32_t slower;
    // Number of layers that are sent uncompressed because the chosen setting does not suit error feedback.
    uint32_t not_contractive;
    // The kind of limit that the plan keeps.
    lgreco_limit limit;
    // With the objective seconds, the number of layers that are compressed; otherwise 0.
    uint32_t compressed;
    // If `limit` is LGRECO_LIMIT_SIZE, the largest size that the plan may have, in the unit of `size`; otherwise 0.
    uint64_t size_limit;
    // If `limit` is LGRECO_LIMIT_SIZE, a lower bound of the error of all plans within the size limit; otherwise 0.
    double error_lower_bound;
    // Measured seconds of a step's exchange, including compression, on the slowest rank: the median since the previous
    // decision. This field and all below are 0 unless the objective is seconds.
    double measured_seconds;
    // The part of `measured_seconds` for compressing and decompressing.
    double computing_seconds;
    // Seconds per additional byte that every rank sends.
    double seconds_per_byte;
    // Predicted seconds of a step's exchange under the plan.
    double plan_seconds;
    // The part of `plan_seconds` for compressing and decompressing.
    double plan_computing_seconds;
    // Predicted seconds under the default settings.
    double default_seconds;
    // Predicted seconds with all layers uncompressed.
    double uncompressed_seconds;
} lgreco_decision;
#define LGRECO_DECISION_INIT                                                                                           \
    {LGRECO_SIZE_OF(lgreco_decision), 0, LGRECO_CAUSE_NONE, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,                           \
     LGRECO_LIMIT_NONE, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}

// Fills `decision` with the last decision; `cause` is LGRECO_CAUSE_NONE before the first one.
lgreco_status lgreco_controller_decision(struct lgreco_controller *controller,
                                         struct lgreco_decision *decision);

// Reports the number of steps taken, including skipped ones, and the number of steps in which some rank's gradient was
// not finite.
lgreco_status lgreco_controller_steps(struct lgreco_controller *controller,
                                      uint64_t *steps,
                                      uint64_t *non_finite);

// Memory that a controller uses on one rank, in bytes and by purpose. The trainer's gradients are not included. Begin
// with LGRECO_MEMORY_USE_INIT.
typedef struct lgreco_memory_use {
    // Set by the INIT macro.
    size_t struct_size;
    // Residuals of error feedback.
    uint64_t residuals;
    // Residuals of the previous step, which the option `undo` keeps.
    uint64_t undo;
    // PowerSGD's factors.
    uint64_t factors;
    // Messages of the buckets in flight, and the workspace of one bucket.
    uint64_t exchange;
    // Gradients for the next decision: on the measuring rank, from the first step of the window until the decision.
    uint64_t window;
} lgreco_memory_use;
#define LGRECO_MEMORY_USE_INIT {LGRECO_SIZE_OF(lgreco_memory_use), 0, 0, 0, 0, 0}

// Reports how much memory the run uses on this rank, also before its first step. It assumes the settings of the last
// decision, or the search's default before the first one. At most `at_once` buckets of `bucket_bytes` each are in flight.
// lgreco_controller_step has one in flight. If `bucket_bytes` is 0, it means the size in the options.
lgreco_status lgreco_controller_memory(struct lgreco_controller *controller,
                                       size_t bucket_bytes,
                                       size_t at_once,
                                       struct lgreco_memory_use *memory);

// Writes the last step's report, the last decision and the metrics of all layers as one line of JSON. A NUL and no line
// break follows. `length` is as for lgreco_table_to_json. Allocates.
//
// Fails with LGRECO_UNAVAILABLE before the first step.
lgreco_status lgreco_controller_metrics_json(struct lgreco_controller *controller,
                                             char *json,
                                             size_t capacity,
                                             size_t *length);

/* ---- 8. Saved states ---- */

// Which parts of a controller's state are saved.
LGRECO_ENUM(lgreco_save_contents) {
    LGRECO_SAVE_EVERYTHING = 0,  // The whole state: the run continues bit for bit.
    // The state without the gradients that were collected for the next decision. On the measuring rank, these gradients
    // take one f32 per element of the model. The continued run collects new ones.
    LGRECO_SAVE_WITHOUT_WINDOW = 1,
};

// Writes this rank's state, the same on every machine: residuals, factors, settings and schedule, but not the options.
// Every rank saves its own state, between the same two steps. `length` must not be NULL and receives the number of bytes.
// Allocates.
//
// Fails with LGRECO_LENGTH when `capacity` is less than this number; even then `length` is set, and `saved` may be
// NULL. Fails with LGRECO_IN_FLIGHT while a bucket is not closed.
lgreco_status lgreco_controller_save(struct lgreco_controller *controller,
                                     lgreco_save_contents contents,
                                     uint8_t *saved,
                                     size_t capacity,
                                     size_t *length);

// Like lgreco_controller_save, for one part of the state. Checkpoints that are maps with names as keys need such
// parts. Part 0 is the state that belongs to no layer; its `name` is NULL. Part 1 + l is layer l; its `name` is valid
// until the controller is destroyed. lgreco_controller_load_parts takes the parts in any order.
//
// Fails with LGRECO_LAYER_MISMATCH for an unknown part.
lgreco_status lgreco_controller_save_part(struct lgreco_controller *controller,
                                          size_t part,
                                          lgreco_save_contents contents,
                                          const char **name,
                                          uint8_t *saved,
                                          size_t capacity,
                                          size_t *length);

// The result of lgreco_controller_load. Begin with LGRECO_LOADED_INIT. The names are valid until the next load, or until
// the controller is destroyed.
typedef struct lgreco_loaded {
    // Set by the INIT macro.
    size_t struct_size;
    // Layers of the model that are missing in the state. They start without residual and uncompressed. The next decision
    // then comes at once.
    const char *const *missing;
    // Length of `missing`.
    size_t missing_len;
    // Layers of the state that the model does not have; they are ignored.
    const char *const *extra;
    // Length of `extra`.
    size_t extra_len;
    // Layers whose shape or element type differs from the state. They are treated as missing and as extra.
    const char *const *misshaped;
    // Length of `misshaped`.
    size_t misshaped_len;
    // The rank that saved the plan.
    uint32_t rank;
    // The number of workers when the plan was saved.
    uint32_t world_size;
    // The step with which the run continues: the step of the plan.
    uint64_t step;
    // The earliest step of a loaded residual, or the plan's step if none is earlier. Errors from the steps between the two
    // are lost.
    uint64_t oldest_residual;
} lgreco_loaded;
#define LGRECO_LOADED_INIT {LGRECO_SIZE_OF(lgreco_loaded), NULL, 0, NULL, 0, NULL, 0, 0, 0, 0, 0}

// Continues from saved states; any bytes are allowed as input. `plan` is the state of any rank. `residuals` is an array of
// states, with their lengths, from the plan's step or earlier ones.
//
// To resume, give this rank's state as `plan` and as the residuals: the run continues bit for bit. With fewer workers,
// add the states of the ranks that this one replaces. A new rank gives any rank's state as `plan`, and no residuals.
// After the death of a rank, all give the same surviving rank's state as `plan`, with their own residuals. The rank
// that replaces the dead one gives, as residuals, the last state that the dead rank saved.
//
// A step under way is ended, and buckets from before the call may only be closed. `loaded` may be NULL. Allocates.
//
// Fails with LGRECO_CHECKSUM for a damaged state, LGRECO_SAVED_STATE, LGRECO_LENGTH and others for bytes that are not
// a state. The controller is then unchanged.
lgreco_status lgreco_controller_load(struct lgreco_controller *controller,
                                     const uint8_t *plan,
                                     size_t plan_len,
                                     const uint8_t *const *residuals,
                                     const size_t *residual_lens,
                                     size_t residuals_len,
                                     struct lgreco_loaded *loaded);

// Like lgreco_controller_load, from parts that lgreco_controller_save_part wrote, in any order. `plan` is an array of all
// parts of one rank's state; parts of layers that the model does not have may be left out. `residuals` is an array of
// parts of layers, from one or more ranks.
lgreco_status lgreco_controller_load_parts(struct lgreco_controller *controller,
                                           const uint8_t *const *plan,
                                           const size_t *plan_lens,
                                           size_t plan_len,
                                           const uint8_t *const *residuals,
                                           const size_t *residual_lens,
                                           size_t residuals_len,
                                           struct lgreco_loaded *loaded);

#ifdef __cplusplus
} // extern "C"
#endif

#endif // LGRECO_TRAIN_H
