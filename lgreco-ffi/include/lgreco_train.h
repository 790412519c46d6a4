/*
 * Further calls for trainers: devices, files, checks, residuals of compressors, buckets in flight, plans on a separate
 * thread, inspection, saved states. The sections are in order of use, and do not depend on one another.
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

// Makes a context for a device. "cpu" is the CPU. "cuda" is the NVIDIA GPU with ordinal 0, and "cuda:1" is the GPU
// with ordinal 1; both need a library with the feature `cuda`. "wgpu" is the GPU that wgpu prefers for high
// performance, through Vulkan, Metal or DirectX 12; it needs the feature `wgpu`.
//
// A GPU computes the error rows and payloads of QSGD, EDEN, TopK and PowerSGD from values in host memory. The CPU does
// everything else. With CUDA, the CPU also handles PowerSGD with ranks above 1024 or sides above 2^31, and QSGD with
// bucket sizes that are not a power of two from 64 to 4096.
//
// Fails with LGRECO_UNKNOWN_NAME for another name, and with LGRECO_NOT_BUILT_IN when this build does not support the
// kind of device. Fails with LGRECO_UNAVAILABLE when this machine has no usable device of the kind, and with
// LGRECO_DEVICE when the device's driver fails.
lgreco_status lgreco_context_create(const char *device,
                                    struct lgreco_context **context);

// Frees a context and sets the caller's pointer to NULL. Does nothing for NULL, or for a pointer to NULL.
lgreco_status lgreco_context_destroy(struct lgreco_context **context);

/* ---- 2. Rows of errors; tables and plans as files ---- */

// Measures one layer under given settings. squared_errors[i] is the squared L2 norm of the compression error under
// settings[i], or its expectation for stochastic rounding. sizes[i] is the payload's size in bits, even if the size
// depends on the values. `sizes` is NULL or has `settings_len` elements. NULL for `context` means the CPU.
//
// Adjacent settings that differ only in their first number are measured together. Measuring them takes about one pass
// for QSGD, TopK, CLT-k, PowerSGD and hard thresholds, and three passes for quantised TopK. `seed` and `layer_index`
// select PowerSGD's start matrix, like the compressor options `random_seed` and `layer_index`. Allocates.
//
// Fails with LGRECO_NON_FINITE, and with LGRECO_PARAMETER when a setting does not fit the layer.
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
// Fails with LGRECO_LENGTH unless `capacity` exceeds that number of bytes. Even then `length` is set, and `json` may
// be NULL.
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
// Also fails with the codes of lgreco_plan_check, such as LGRECO_PLAN_MISMATCH, when the plan does not fit this table.
lgreco_status lgreco_plan_to_json(const struct lgreco_plan *plan,
                                  const struct lgreco_table *table,
                                  char *json,
                                  size_t capacity,
                                  size_t *length);

// Reads a plan file for `table` and verifies it. `json` has `length` bytes. The order of layers may differ. Each entry
// must name a layer of the table, and the layer's option by index and label. The lower bound in the file is not
// verified.
//
// Fails with LGRECO_JSON or LGRECO_JSON_VERSION, and with LGRECO_LENGTH unless there is one entry per layer. Fails
// with LGRECO_UNKNOWN_NAME for a layer or label that the table does not have, and with LGRECO_DUPLICATE_NAME for a
// layer with two entries. Also fails with the codes of lgreco_setting for a setting in the file, and with the codes of
// lgreco_plan_check. The message names the layer.
lgreco_status lgreco_plan_from_json(const struct lgreco_table *table,
                                    const char *json,
                                    size_t length,
                                    struct lgreco_plan **plan);

// Verifies a plan against a table. The plan must have one option per layer, and keep groups and fixed options. The
// plan's stated size and error must be correct, and within the stated budget or size limit. The checks of a plan use
// exact arithmetic. The call does not prove a stated lower bound: it only checks that the bound does not exceed the
// plan's value.
//
// Fails with LGRECO_PLAN_MISMATCH, LGRECO_OVER_BUDGET, LGRECO_OVER_SIZE, LGRECO_NO_SUCH_OPTION, LGRECO_RULED_OUT,
// LGRECO_BUDGET or LGRECO_LENGTH.
lgreco_status lgreco_plan_check(const struct lgreco_table_view *table,
                                const struct lgreco_plan_view *plan);

/* ---- 3. Compressors: other settings, residuals, saved states, checksums of payloads ---- */

// Checks whether `setting` suits error feedback on `layer`, under a compressor's `options`. All methods suit error
// feedback, but QSGD only with at least 4 bits and buckets of up to 512 elements. lgreco_compressor_create makes the
// same check without values. Allocates.
//
// QSGD is unbiased and needs no error feedback. With few bits or long buckets, the norm of QSGD's error exceeds the
// norm of its input. The residual would then grow until it overflows. The layer's `values` may be NULL. The call then
// compresses heavy-tailed values to judge QSGD, as lgreco_compressor_create does. If `values` are given, they must be
// finite, and the call compresses them to judge any method. The verdict may then be stricter or more lenient than
// without values. If the options have no error feedback, the call does not judge the values.
//
// Fails with LGRECO_NOT_CONTRACTIVE when the setting does not suit error feedback; the message then has the squared
// error. Also fails with LGRECO_PARAMETER when the setting does not fit the layer, and with LGRECO_NON_FINITE when a
// value is not finite.
lgreco_status lgreco_feedback_check(const struct lgreco_layer *layer,
                                    const char *setting,
                                    const char *const *options);

// Changes the setting between two steps, for instance after a new plan. The residual stays. Allocates when the new
// setting needs a larger workspace than all earlier settings.
//
// Fails like lgreco_compressor_create when the setting does not fit the layer or does not suit error feedback. After a
// failure the old setting remains.
lgreco_status lgreco_compressor_set_setting(struct lgreco_compressor *compressor,
                                            const char *setting);

// Writes the residual of the compressor's error feedback to `values`; `values_len` is the layer's number of elements.
//
// All calls on the residual fail with LGRECO_FEEDBACK_RULE if the compressor has no error feedback.
lgreco_status lgreco_compressor_memory(struct lgreco_compressor *compressor,
                                       float *values,
                                       size_t values_len);

// Replaces the residual, for instance by the residual of a worker that left. `step` is the step number, as in
// lgreco_compressor_encode, and selects the random bits for rounding.
//
// Fails with LGRECO_OVERFLOW when a value is not finite or too large for the storage format. The residual is then
// unchanged.
lgreco_status lgreco_compressor_set_memory(struct lgreco_compressor *compressor,
                                           uint32_t step,
                                           const float *values,
                                           size_t values_len);

// Multiplies the residual by `factor`, the ratio of the new loss scale to the old loss scale. `step` is as for
// lgreco_compressor_set_memory.
//
// Fails with LGRECO_PARAMETER unless `factor` is positive and finite, and with LGRECO_OVERFLOW when a value no longer
// fits the storage format. The residual is then unchanged.
lgreco_status lgreco_compressor_rescale_memory(struct lgreco_compressor *compressor,
                                               uint32_t step,
                                               float factor);

// Writes the squared L2 norm of the residual, and the number of steps whose errors the residual has accumulated.
lgreco_status lgreco_compressor_memory_norm(struct lgreco_compressor *compressor,
                                            double *squared_norm,
                                            uint64_t *steps);

// Writes the residual as a saved state. The format has a version and is the same on every machine. The state does not
// contain the layer's name or the rank. `length` must not be NULL and receives the number of bytes, which is the same
// at every step.
//
// Fails with LGRECO_LENGTH when `capacity` is less than the number of bytes. Even then `length` is set, and `saved`
// may be NULL.
lgreco_status lgreco_compressor_save(struct lgreco_compressor *compressor,
                                     uint8_t *saved,
                                     size_t capacity,
                                     size_t *length);

// Loads the saved state of a compressor with the same layer and options. The run then continues bit for bit. Any bytes
// are allowed as input. Allocates.
//
// Fails with LGRECO_CHECKSUM when the bytes are damaged, and with LGRECO_LENGTH. Fails with LGRECO_SAVED_STATE when
// the bytes are not a saved state, or when the state has another shape or other feedback options. After a failure the
// residual is unchanged.
lgreco_status lgreco_compressor_load(struct lgreco_compressor *compressor,
                                     const uint8_t *saved,
                                     size_t length);

// Number of bytes that lgreco_payload_seal adds. Sizes in tables and plans do not include them.
#define LGRECO_SEAL_BYTES 8

// Writes a checksum of payload[0 .. length] to the LGRECO_SEAL_BYTES bytes after it. Seal payloads on networks and in
// files that may flip bits unnoticed, because most altered payloads decode to other numbers without an error.
// `sealed_length` receives the total length of payload and checksum. Does not allocate.
//
// Fails with LGRECO_LENGTH when `capacity` is less than the total length. Nothing is written in this case.
lgreco_status lgreco_payload_seal(uint8_t *payload,
                                  size_t length,
                                  size_t capacity,
                                  size_t *sealed_length);

// Verifies the checksum of lgreco_payload_seal. `length` receives the length of the payload without the checksum, for
// lgreco_compressor_decode. Any bytes are allowed as input. Does not allocate.
//
// Fails with LGRECO_CHECKSUM when a bit has changed or the end is missing, and with LGRECO_LENGTH for fewer than
// LGRECO_SEAL_BYTES bytes.
lgreco_status lgreco_payload_unseal(const uint8_t *sealed,
                                    size_t sealed_length,
                                    size_t *length);

/*
 * ---- 4. A step in parts, for exchanges that go on during the backward pass ----
 *
 * The caller performs the collectives, blocking or not. The controller's callback is never called. To take a step, make
 * these calls:
 *
 *     lgreco_controller_begin_step
 *     lgreco_controller_control, then perform the requested collective; repeat until LGRECO_REQUEST_NONE
 *     per bucket, any number at a time, on any threads:
 *         lgreco_bucket_open, lgreco_bucket_submit
 *         lgreco_bucket_next, then perform the requested collective; repeat until LGRECO_REQUEST_NONE
 *         lgreco_bucket_close
 *     lgreco_controller_finish_step
 */

// Like lgreco_controller_create, for ranks that keep a shard of each layer (FSDP, ZeRO). In each gradient, a rank's
// own shard is replaced by its mean. The other elements of the gradient become unusable.
//
// For each layer, `shards` has world_size numbers: the end of each rank's shard, in elements. The shard of rank r
// begins at the end of rank r - 1's shard, or at 0, and may be empty. The last end is the layer's number of elements.
// The controller asks for LGRECO_REQUEST_ALL_TO_ALL and REDUCE_SCATTER_SUM. Under hard thresholds, SIDCo and AdaComp,
// every rank gathers and decodes the payloads of whole layers. The option `route` has no effect.
//
// Also fails with LGRECO_NULL_POINTER if `shards` is NULL, and with LGRECO_PARAMETER for invalid ends.
lgreco_status lgreco_controller_create_sharded(const struct lgreco_context *context,
                                               const struct lgreco_collective *collective,
                                               const struct lgreco_layer *layers,
                                               size_t layers_len,
                                               const uint64_t *shards,
                                               const struct lgreco_setting *settings,
                                               const char *const *options,
                                               struct lgreco_controller **controller);

// Like lgreco_controller_create, for nodes of `ranks_per_node` workers with consecutive ranks. The workers of a node
// sum their gradients uncompressed. Each worker compresses its shard of the sums, and exchanges it with its peers: the
// workers with the same index in the other nodes. The workers of a node then gather the means. So a node sends each
// byte of a payload once to each other node.
//
// Each request's `group` names the workers that perform it, LGRECO_GROUP_NODE or LGRECO_GROUP_PEERS. This worker has
// rank `rank % ranks_per_node` in its node, and rank `rank / ranks_per_node` among its peers. The last request of a
// bucket gathers the means in the node. Before this gather, the ranks of a node may have performed different numbers
// of requests with their peers. Therefore give each bucket in flight separate groups. Alternatively, when all buckets
// have reached their last request, start the last requests in the same order on all ranks.
//
// Inside nodes, the controller also asks for LGRECO_REQUEST_ALL_GATHER_EACH and REDUCE_SCATTER_SUM. If `reduce_dtype`
// is bfloat16, ALL_TO_ALL replaces REDUCE_SCATTER_SUM. Reported settings, residuals, metrics and bytes describe this
// rank's shards (lgreco_controller_shard). `settings` and the option `min_elements` refer to whole layers. Errors
// number ranks like the collective. A run may resume with another division into nodes. To do so, give
// lgreco_controller_load the states of all ranks of the nodes that this node replaces. Each rank finds its shards in
// these states.
//
// A gradient that is not finite affects only its bucket, even in lgreco_controller_step. When the failure is found,
// earlier buckets have already been exchanged. LGRECO_NON_FINITE_GRADIENT ends the step: do not repeat the step, and
// ignore its gradients. With the option `non_finite`, the outcome is as after a step with buckets in flight. If
// lgreco_controller_step is called while a step is under way, the call abandons that step and fails with
// LGRECO_STEP_ORDER. If a bucket of the step under way is not closed, the call fails with LGRECO_IN_FLIGHT, and the
// step stays under way. lgreco_controller_step also allocates small lists at every step.
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
// rank's residual has only these elements. Unless the controller was made by lgreco_controller_create_on_nodes, the
// elements are the whole layer.
//
// Fails with LGRECO_LAYER_MISMATCH for an unknown layer.
lgreco_status lgreco_controller_shard(struct lgreco_controller *controller,
                                      size_t layer,
                                      size_t *first,
                                      size_t *count);

// Begins a step whose collectives the caller performs. Next, perform the requests of lgreco_controller_control. Then
// exchange buckets, any number at a time (lgreco_bucket_open), and call lgreco_controller_finish_step. All workers
// make these calls, with the same `learning_rate`. Only the option `accordion` uses the learning rate.
// lgreco_controller_step takes the whole step in one call, and checks all gradients before the exchange.
//
// All ranks learn of a negative or non-finite learning rate: lgreco_controller_control fails, or the first bucket if
// there is no control request. Fails with LGRECO_STEP_ORDER when a step is under way.
lgreco_status lgreco_controller_begin_step(struct lgreco_controller *controller,
                                           double learning_rate);

// Reports the next collective to perform before buckets may be opened. Call it again after each collective, until the
// kind is LGRECO_REQUEST_NONE. Without the option `accordion`, the first call already returns LGRECO_REQUEST_NONE in
// most steps. If a decision is due, the measuring rank measures and plans during a call. Allocates at decisions and
// when the window of a decision begins.
//
// If the call fails on one rank, it fails on all ranks, and the step may be begun again. The codes are LGRECO_PEER,
// LGRECO_PEER_PLAN, LGRECO_PEER_MESSAGE, and the codes of measuring and planning. Fails with LGRECO_STEP_ORDER when no
// step is under way. If a collective cannot be performed, ranks may have different states. In that case load a saved
// state with lgreco_controller_load, which also ends the step.
lgreco_status lgreco_controller_control(struct lgreco_controller *controller,
                                        struct lgreco_request *request);

// Layers that are exchanged together in one step. The controller lends them with this rank's residuals and factors.
// Several threads may each use a different bucket, while another thread uses the controller. Only lgreco_bucket_close
// frees a bucket.
typedef struct lgreco_bucket lgreco_bucket;

// Lends a bucket of these layers for one exchange in the step that has begun. `layers` are indices, in any order. All
// workers exchange the same layers together, in the same order. An additional all-gather of 24 bytes per worker checks
// that all ranks agree, if these layers have not been exchanged together before, or if a payload length depends on the
// values. Allocates the memory that the settings need, and up to three f32 per element. If the memory of a closed
// bucket can be reused, the call allocates only a few hundred bytes.
//
// Fails with LGRECO_STEP_ORDER unless a step has begun and its control requests are done. Fails with
// LGRECO_LAYER_MISMATCH for an unknown layer, and with LGRECO_IN_FLIGHT for a layer that is in another bucket or twice
// in `layers`.
lgreco_status lgreco_bucket_open(struct lgreco_controller *controller,
                                 const size_t *layers,
                                 size_t layers_len,
                                 struct lgreco_bucket **bucket);

// Declares that a layer has no gradient on this rank in this step. Call it before lgreco_bucket_submit. The library
// treats the submitted values of the layer as zeros and replaces them by the mean. The residual stays unchanged. Other
// ranks may have a gradient of this layer.
//
// Fails with LGRECO_STEP_ORDER when gradients were already submitted, and with LGRECO_LAYER_MISMATCH when the layer is
// not in this bucket.
lgreco_status lgreco_bucket_withhold(struct lgreco_bucket *bucket,
                                     size_t layer);

// Reports the kind and size of a collective before lgreco_bucket_next asks for it, so that memory can be reserved or
// registered. `index` counts the bucket's collectives from 0. After the bucket's last collective, the kind is
// LGRECO_REQUEST_NONE. All pointers are NULL. An exchange that fails asks for fewer collectives.
//
// `count` is the number of f32 or bf16 values to sum. `length` is a number of bytes, which depends on the kind:
// - LGRECO_REQUEST_ALL_GATHER: the bytes of one worker.
// - LGRECO_REQUEST_ALL_GATHER_EACH: the bytes of all workers, or an upper bound if the lengths depend on the values.
// - LGRECO_REQUEST_BROADCAST: the bytes that are broadcast.
// - LGRECO_REQUEST_ALL_TO_ALL: the bytes sent and received together.
lgreco_status lgreco_bucket_round(struct lgreco_bucket *bucket,
                                  size_t index,
                                  struct lgreco_request *request);

// Submits the gradients of this step, one pointer per layer in the order in which the bucket was opened. The call adds
// residuals and compresses. The library keeps the pointers: the gradients must stay in place, and nothing else may use
// them. The library releases the gradients when lgreco_bucket_next returns LGRECO_REQUEST_NONE or fails, or when the
// bucket is closed. Allocates scratch memory.
//
// Fails with LGRECO_STEP_ORDER when gradients were already submitted; the bucket is then unchanged. This call does not
// fail for wrong gradients, because the other ranks wait for this rank. Wrong gradients are values that are not
// finite, and pointers that lgreco_controller_step would refuse. lgreco_bucket_next reports them to all ranks, and
// fails on every rank. A trainer that has no gradients calls lgreco_bucket_submit_failure.
lgreco_status lgreco_bucket_submit(struct lgreco_bucket *bucket,
                                   void *const *gradients,
                                   size_t gradients_len);

// Replaces lgreco_bucket_submit on a rank that has no gradients because its backward pass has failed. All ranks learn
// of the failure in this step. Continue with lgreco_bucket_next, as after lgreco_bucket_submit. On this rank,
// lgreco_bucket_next fails with LGRECO_TRAINER. On the other ranks it fails with LGRECO_PEER, and the message names
// this rank. Residuals and factors of the layers stay unchanged. A bucket whose layers have no elements sends no
// messages. In this case the next bucket or step fails on all ranks.
//
// Fails with LGRECO_STEP_ORDER when gradients were already submitted.
lgreco_status lgreco_bucket_submit_failure(struct lgreco_bucket *bucket);

// Continues the exchange after the previous request was performed, and returns the next collective in `request`.
// LGRECO_REQUEST_NONE means that the gradients are now means. Allocates scratch memory and, on nodes, memory for the
// last collective. If this allocation fails, the call fails with LGRECO_OUT_OF_MEMORY on this rank only.
//
// Any other failure on one rank is a failure on all ranks. The rank at fault gets the code of its error. The other
// ranks get LGRECO_PEER, with the failed rank and its code in the message. After a failure, the bucket's gradients are
// unusable, its residuals and factors are unchanged, and other buckets are not affected. The codes are
// LGRECO_NON_FINITE_GRADIENT, LGRECO_OVERFLOW, LGRECO_ELEMENT_OVERFLOW, LGRECO_PEER_MESSAGE, and LGRECO_PEER_PLAN when
// ranks exchange different layers or have different options.
//
// If the option `non_finite` is `skip` or `pass_through`, gradients that are not finite are no error. With `skip`, all
// gradients of the bucket become zeros on every rank. With `pass_through`, all gradients of the bucket become NaN on
// every rank, which a loss scaler detects. Residuals stay unchanged. Fails with LGRECO_STEP_ORDER before
// lgreco_bucket_submit, and after a failure.
lgreco_status lgreco_bucket_next(struct lgreco_bucket *bucket,
                                 struct lgreco_request *request);

// Returns a bucket's layers to its controller, frees the bucket, and sets the caller's pointer to NULL. The exchange
// may be at any stage. Does nothing for NULL, or for a pointer to NULL. No collective may still use the bucket's
// memory. If the exchange did not finish, the residuals and factors of the bucket's layers stay unchanged. A bucket
// that was opened before lgreco_controller_load is freed without any other effect. `controller` may be NULL once the
// bucket's controller is destroyed.
//
// If the bucket is closed in the middle of its exchange, other ranks may have the means. The step's outcome on this
// rank is then LGRECO_OUTCOME_FAILED. The next step fails on all ranks, on this rank with LGRECO_STEP_ORDER. To avoid
// both failures, exchange the layers again in this step, or abandon the step, on all ranks.
//
// Fails with LGRECO_STEP_ORDER for a bucket of another controller; the bucket stays unchanged. LGRECO_PANIC means that
// an earlier call on the bucket panicked. The bucket is then freed together with the state of its layers. Calls on
// these layers fail with LGRECO_IN_FLIGHT until a saved state is loaded.
lgreco_status lgreco_bucket_close(struct lgreco_controller *controller,
                                  struct lgreco_bucket **bucket);

// Ends the step, after all its buckets were closed. Layers that were in no bucket keep their residuals and factors.
// `report` may be NULL. The report's outcome is LGRECO_OUTCOME_FAILED if the exchange of some bucket failed. If
// gradients of some bucket were not finite, the outcome is LGRECO_OUTCOME_SKIPPED or LGRECO_OUTCOME_PASSED_THROUGH,
// depending on the option `non_finite`.
//
// Fails with LGRECO_IN_FLIGHT when a bucket was not closed, and with LGRECO_STEP_ORDER when no step is under way or
// control requests are left.
lgreco_status lgreco_controller_finish_step(struct lgreco_controller *controller,
                                            struct lgreco_report *report);

/* ---- 5. Between steps ---- */

// Undoes the last step's changes to the residuals. Make this call if the step's means were not applied, for instance
// because a loss scaler skipped the update. The step still counts. Either all ranks or no ranks make this call, at
// most once per step.
//
// Fails with LGRECO_STEP_ORDER while a step is under way, and when the earlier residuals are not available. The
// controller keeps the earlier residuals with the option `undo`, or if `non_finite` is not `error`. A failed call
// changes nothing.
lgreco_status lgreco_controller_roll_back(struct lgreco_controller *controller);

// Abandons the step under way because a collective failed. The step may be begun again. With the option `undo`,
// residuals return to their values before the step. Without `undo`, layers whose exchange finished keep their new
// residuals.
//
// Close all buckets first, once the network no longer uses their memory. Ranks may have stopped at different points.
// Before they continue, all ranks must load the plan of the same rank, each with its own residuals.
// lgreco_controller_step abandons the step itself when a callback fails.
//
// Fails with LGRECO_IN_FLIGHT when a bucket is not closed, and with LGRECO_STEP_ORDER when no step is under way.
lgreco_status lgreco_controller_abandon_step(struct lgreco_controller *controller);

// Multiplies all residuals by `factor`. Make this call when the loss scale changes by this factor, because all later
// gradients change by it too. Either all ranks make this call with the same factor, or none. Afterwards the last step
// can no longer be rolled back.
//
// Fails with LGRECO_PARAMETER unless `factor` is positive and finite, and with LGRECO_OVERFLOW when a residual no
// longer fits its format. Fails with LGRECO_STEP_ORDER while a step is under way. A failed call changes no residual.
lgreco_status lgreco_controller_rescale_residuals(struct lgreco_controller *controller,
                                                  float factor);

// Asks for a decision before the next scheduled decision, for instance because the data or the network have changed.
// The window of the decision begins with the next step. The decision is due `window + lead` steps later, or at the
// scheduled step if that step is sooner. `due` receives the step of the decision, or UINT64_MAX under policies that
// make no further decisions. All ranks must make this call between the same two steps. Otherwise the next step fails
// with LGRECO_PEER_PLAN on every rank.
//
// Fails with LGRECO_STEP_ORDER while a step is under way.
lgreco_status lgreco_controller_replan(struct lgreco_controller *controller,
                                       uint64_t *due);

// Gives new settings, one per layer, to a controller that was made with settings. All ranks must make this call
// between the same two steps. The ranks switch at the next step, or at the end of the warm-up if that is later. With
// buckets in flight (lgreco_controller_control), the ranks switch one step later. Residuals and factors stay. If ranks
// give different settings, or only some ranks make the call, the step fails with LGRECO_PEER_PLAN on every rank.
//
// Fails with LGRECO_NOT_FIXED for a controller that was made without settings, and with LGRECO_STEP_ORDER while a step
// is under way. Fails with LGRECO_LENGTH unless there is one setting per layer. Also fails if a setting is wrong or
// does not fit its layer. A failed call changes nothing.
lgreco_status lgreco_controller_set_settings(struct lgreco_controller *controller,
                                             const struct lgreco_setting *settings,
                                             size_t settings_len);

/* ---- 6. Plans on a separate thread: the option `lead` ---- */

// The work of a controller's next decision: measuring gradients and planning, which takes seconds for large models.
// One thread may run the task while another thread takes steps with the controller.
typedef struct lgreco_plan_task lgreco_plan_task;

// Takes the work of the controller's next decision as a handle. There is one task per decision, on the measuring rank.
// The task is available once all steps before step `decision - lead` have ended. At other times, on other ranks and if
// `lead` is 0, `task` receives NULL. Make this call after every step. The call does not copy gradients.
//
// All ranks switch at the step of the decision. If the task was taken but not handed in by then, the ranks take the
// step under the old settings, and ask again at the next step. No rank waits. If the task was not taken, or was
// destroyed, lgreco_controller_control or lgreco_controller_step does the task's work. A state that is saved before
// the decision contains the decision's gradients. A run that loads the state uses these gradients.
lgreco_status lgreco_controller_take_plan_task(struct lgreco_controller *controller,
                                               struct lgreco_plan_task **task);

// Measures and plans on the calling thread, with the device of the controller's context. Meanwhile the controller may
// be used or destroyed. A task can be run once. Allocates.
//
// Fails with the codes of measuring and planning. If a failed task is handed in nevertheless, the step of the decision
// fails on every rank. Fails with LGRECO_STEP_ORDER when the task was already run.
lgreco_status lgreco_plan_task_run(struct lgreco_plan_task *task);

// Hands in a task that was run, frees it and sets the caller's pointer to NULL. Does nothing for NULL, or for a
// pointer to NULL. A task that is no longer needed is freed without any other effect. A task is no longer needed if a
// saved state was loaded, or if a fall of the learning rate has caused the decision.
//
// Fails with LGRECO_STEP_ORDER for a task that was not run, or that belongs to another controller. Fails with
// LGRECO_BUSY for a task that is running. After these failures the task stays unchanged. LGRECO_PANIC means that the
// task panicked: the task is freed, and the controller does its work.
lgreco_status lgreco_controller_hand_in(struct lgreco_controller *controller,
                                        struct lgreco_plan_task **task);

// Frees a task and sets the caller's pointer to NULL. Does nothing for NULL, or for a pointer to NULL. The
// controller's work is not lost: it can be taken again as a new task.
lgreco_status lgreco_plan_task_destroy(struct lgreco_plan_task **task);

/* ---- 7. Inspection of a controller ---- */

// Fills `setting` with the setting of layer `layer` in the last step. This call, lgreco_controller_metrics and
// lgreco_controller_residual fail with LGRECO_LAYER_MISMATCH for an unknown layer.
lgreco_status lgreco_controller_setting(struct lgreco_controller *controller,
                                        size_t layer,
                                        struct lgreco_setting *setting);

// Why a layer is sent uncompressed.
LGRECO_ENUM(lgreco_uncompressed) {
    LGRECO_UNCOMPRESSED_NOT = 0,  // The layer is compressed.
    LGRECO_UNCOMPRESSED_WARM_UP = 1,  // No decision was made yet, or the loaded state did not have the layer.
    LGRECO_UNCOMPRESSED_SMALL = 2,  // The layer has one dimension or fewer, or too few elements.
    LGRECO_UNCOMPRESSED_NO_SAVING = 3,  // The setting would have saved no bytes.
    LGRECO_UNCOMPRESSED_CHOSEN = 4,  // The plan or the caller chose to send the layer uncompressed.
    LGRECO_UNCOMPRESSED_SLOWER = 5,  // Compressing the layer would take longer than sending it uncompressed.
    LGRECO_UNCOMPRESSED_NOT_CONTRACTIVE = 6,  // The chosen setting does not suit error feedback.
};

// Measurements of one layer on one rank. Begin with LGRECO_METRICS_INIT.
typedef struct lgreco_metrics {
    // Set by the INIT macro.
    size_t struct_size;
    // Number of steps in which the layer was exchanged.
    uint64_t steps;
    // Bytes of the layer's gradients in the steps that `steps` counts.
    uint64_t bytes_in;
    // Bytes sent for the layer in the steps that `steps` counts.
    uint64_t bytes_out;
    // Relative error at the last measurement: the squared error of compression, divided by the squared norm of the
    // compressed vector. -1 before the first measurement.
    double relative_error;
    // L2 norm of the residual, or -1 for a layer without a residual.
    double residual_norm;
    // Seconds for compressing and exchanging the layer's bucket, since the controller was made or loaded. All layers of a
    // bucket have the same value. -1 before the first exchange.
    double bucket_seconds;
    // Number of decisions whose setting was refused because it does not suit error feedback.
    uint64_t not_contractive;
    // The reason if the layer is sent uncompressed, else LGRECO_UNCOMPRESSED_NOT.
    lgreco_uncompressed uncompressed;
} lgreco_metrics;
#define LGRECO_METRICS_INIT {LGRECO_SIZE_OF(lgreco_metrics), 0, 0, 0, -1, -1, -1, 0, LGRECO_UNCOMPRESSED_NOT}

// Fills `metrics` with the measurements of layer `layer` on this rank. The call reads the layer's whole residual.
lgreco_status lgreco_controller_metrics(struct lgreco_controller *controller,
                                        size_t layer,
                                        struct lgreco_metrics *metrics);

// Writes the residual of layer `layer` on this rank to `values`. A layer without a residual gives zeros. `values_len`
// is the layer's number of elements, or on nodes the shard's (lgreco_controller_shard). Fails with LGRECO_IN_FLIGHT
// while the layer is in a bucket.
lgreco_status lgreco_controller_residual(struct lgreco_controller *controller,
                                         size_t layer,
                                         float *values,
                                         size_t values_len);

// Why the settings changed.
LGRECO_ENUM(lgreco_cause) {
    LGRECO_CAUSE_NONE = 0,  // No decision was made yet.
    LGRECO_CAUSE_SCHEDULE = 1,  // A decision of the schedule was due.
    // The learning rate fell, and all layers got the parameter `low` of the option `accordion`.
    LGRECO_CAUSE_LEARNING_RATE = 2,
    LGRECO_CAUSE_CALLER = 3,  // The caller gave new settings.
};

// The last decision. It is the same on every rank; on nodes, on this rank and its peers. Begin with
// LGRECO_DECISION_INIT.
typedef struct lgreco_decision {
    // Set by the INIT macro.
    size_t struct_size;
    // The first step under the new settings.
    uint64_t step;
    // Why the settings changed.
    lgreco_cause cause;
    // The unit of sizes: 1 for picoseconds, 0 for bits.
    uint32_t in_picoseconds;
    // 1 when the policy made a plan, else 0. If 0, all fields below except `not_contractive` are 0.
    uint32_t planned;
    // 1 when the plan is proved optimal, else 0.
    uint32_t proven;
    // Total size of the layers that may be compressed, in picoseconds if `in_picoseconds` is 1, otherwise in bits.
    uint64_t size;
    // If `limit` is LGRECO_LIMIT_ERROR, a lower bound of the size of all plans within the budget; otherwise 0.
    uint64_t lower_bound;
    // Size of the layers that `size` counts, under the settings from which the limit is derived: the uniform setting,
    // or the settings of the option `accordion`.
    uint64_t default_size;
    // Size of the layers that `size` counts, uncompressed. If `size` is not smaller, compression does not pay.
    uint64_t uncompressed_size;
    // Total error of the plan.
    double error;
    // If `limit` is LGRECO_LIMIT_ERROR, the error budget of the plan; otherwise 0.
    double budget;
    // Number of layers that are sent uncompressed because compressing them would take longer.
    uint32_t slower;
    // Number of layers that are sent uncompressed because their setting does not suit error feedback.
    uint32_t not_contractive;
    // The kind of limit that the plan keeps.
    lgreco_limit limit;
    // With the objective seconds, the number of layers that are compressed; otherwise 0.
    uint32_t compressed;
    // If `limit` is LGRECO_LIMIT_SIZE, the largest size that the plan may have, in the unit of `size`; otherwise 0.
    uint64_t size_limit;
    // If `limit` is LGRECO_LIMIT_SIZE, a lower bound of the error of all plans within the size limit; otherwise 0.
    double error_lower_bound;
    // Seconds of a step's exchange, including compression, on the slowest rank: the measured median since the previous
    // decision. This field and all fields below are 0 unless the objective is seconds.
    double measured_seconds;
    // The part of `measured_seconds` for compressing and decompressing.
    double computing_seconds;
    // Seconds that one more byte on every rank adds to the exchange.
    double seconds_per_byte;
    // Predicted seconds of a step's exchange under the plan.
    double plan_seconds;
    // The part of `plan_seconds` for compressing and decompressing.
    double plan_computing_seconds;
    // Predicted seconds under the uniform setting.
    double default_seconds;
    // Predicted seconds with all layers uncompressed.
    double uncompressed_seconds;
} lgreco_decision;
#define LGRECO_DECISION_INIT                                                                                           \
    {LGRECO_SIZE_OF(lgreco_decision), 0, LGRECO_CAUSE_NONE, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,                           \
     LGRECO_LIMIT_NONE, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}

// Fills `decision` with the last decision. Before the first decision, `cause` is LGRECO_CAUSE_NONE.
lgreco_status lgreco_controller_decision(struct lgreco_controller *controller,
                                         struct lgreco_decision *decision);

// Reports the number of steps taken, including skipped steps. Also reports the number of steps in which some rank's
// gradient was not finite.
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
    // Gradients for the next decision. The measuring rank holds them from the first step of the window until the
    // decision.
    uint64_t window;
} lgreco_memory_use;
#define LGRECO_MEMORY_USE_INIT {LGRECO_SIZE_OF(lgreco_memory_use), 0, 0, 0, 0, 0}

// Reports how much memory the run uses on this rank, even before its first step. The report assumes the settings of
// the last decision. Before the first decision, it assumes the given settings or the uniform setting. It also assumes
// that at most `at_once` buckets of `bucket_bytes` each are in flight; lgreco_controller_step has one. If
// `bucket_bytes` is 0, the option `bucket_bytes` applies.
lgreco_status lgreco_controller_memory(struct lgreco_controller *controller,
                                       size_t bucket_bytes,
                                       size_t at_once,
                                       struct lgreco_memory_use *memory);

// Writes the last step's report, the last decision and the metrics of all layers as one line of JSON. The line ends
// with a NUL, and has no line break. `length` is as for lgreco_table_to_json. Allocates.
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
    // take one f32 per element of the model. The continued run collects new gradients.
    LGRECO_SAVE_WITHOUT_WINDOW = 1,
};

// Writes this rank's state: residuals, factors, settings and schedule, but not the options. The format is the same on
// every machine. Every rank saves its own state, between the same two steps. `length` must not be NULL and receives
// the number of bytes. Allocates.
//
// Fails with LGRECO_LENGTH when `capacity` is less than the number of bytes; even then `length` is set, and `saved`
// may be NULL. Fails with LGRECO_STEP_ORDER while a step is under way, and with LGRECO_IN_FLIGHT while a bucket is not
// closed.
lgreco_status lgreco_controller_save(struct lgreco_controller *controller,
                                     lgreco_save_contents contents,
                                     uint8_t *saved,
                                     size_t capacity,
                                     size_t *length);

// Like lgreco_controller_save, for one part of the state. Checkpoints that map names to values need such parts. Part 0
// is the state that belongs to no layer, and its `name` is NULL. Part 1 + l belongs to layer l, and its `name` is
// valid until the controller is destroyed. lgreco_controller_load_parts takes the parts in any order.
//
// Fails with LGRECO_LAYER_MISMATCH for an unknown part.
lgreco_status lgreco_controller_save_part(struct lgreco_controller *controller,
                                          size_t part,
                                          lgreco_save_contents contents,
                                          const char **name,
                                          uint8_t *saved,
                                          size_t capacity,
                                          size_t *length);

// The result of lgreco_controller_load. Begin with LGRECO_LOADED_INIT. The layer names are valid until the next load,
// or until the controller is destroyed.
typedef struct lgreco_loaded {
    // Set by the INIT macro.
    size_t struct_size;
    // Layers of the model that are missing in the state. Missing layers start without residual and uncompressed. If
    // layers are missing, the next decision comes at once.
    const char *const *missing;
    // Length of `missing`.
    size_t missing_len;
    // Layers of the state that the model does not have. The load ignores them.
    const char *const *extra;
    // Length of `extra`.
    size_t extra_len;
    // Layers whose shape or element type differs from the state. The load treats such layers as both missing and
    // extra.
    const char *const *misshaped;
    // Length of `misshaped`.
    size_t misshaped_len;
    // The rank that saved the plan.
    uint32_t rank;
    // The number of workers when the plan was saved.
    uint32_t world_size;
    // The step with which the run continues: the step of the plan.
    uint64_t step;
    // The earliest step of a loaded residual, or the plan's step if none is earlier. Compression errors from the steps
    // between this step and the plan's step are lost.
    uint64_t oldest_residual;
} lgreco_loaded;
#define LGRECO_LOADED_INIT {LGRECO_SIZE_OF(lgreco_loaded), NULL, 0, NULL, 0, NULL, 0, 0, 0, 0, 0}

// Continues from saved states. Any bytes are allowed as input. `plan` is the state of any rank. `residuals` is an
// array of states, with their lengths, from the plan's step or earlier steps.
//
// To resume, each rank gives its own state as `plan` and in `residuals`. The run then continues bit for bit. With
// fewer workers, each rank adds to `residuals` the states of the ranks that it replaces. A new rank gives any rank's
// state as `plan`, and no residuals. After the death of a rank, all ranks give the same surviving rank's state as
// `plan`. Surviving ranks give their own residuals. The rank that replaces the dead rank, or else one surviving rank,
// also gives the last state that the dead rank saved.
//
// All ranks must make this call between the same two steps. It ends a step that is under way. Afterwards, buckets from
// before the call can only be closed. `loaded` may be NULL. Allocates.
//
// Fails with LGRECO_CHECKSUM for a damaged state, and with LGRECO_SAVED_STATE, LGRECO_LENGTH or another code for bytes
// that are not a state. A failed call changes nothing.
lgreco_status lgreco_controller_load(struct lgreco_controller *controller,
                                     const uint8_t *plan,
                                     size_t plan_len,
                                     const uint8_t *const *residuals,
                                     const size_t *residual_lens,
                                     size_t residuals_len,
                                     struct lgreco_loaded *loaded);

// Like lgreco_controller_load, from parts that lgreco_controller_save_part wrote, in any order. `plan` is an array of
// all parts of one rank's state. Parts of layers that the model does not have may be left out. `residuals` is an array
// of parts that belong to layers, from one or more ranks.
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
