/*
 * lgreco.h for trainers that need more: devices, files, checks, what compressors remember, buckets in flight, plans on a thread
 * of their own, inspection, saved states. In order of use; every section stands for itself.
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

// Makes a context of a device: "cpu"; "cuda", an NVIDIA GPU, or "cuda:1" by its ordinal, in libraries built with the feature
// `cuda`; "wgpu", the fastest GPU through Vulkan, Metal or DirectX 12, in libraries built with the feature `wgpu`.
//
// On a GPU error rows and payloads of QSGD, TopK and PowerSGD are made, of values in host memory; everything else is done on
// the CPU, and so are on CUDA PowerSGD with ranks above 1024 and QSGD with buckets that are no power of two from 64 to 4096.
//
// LGRECO_UNKNOWN_NAME for another device; LGRECO_NOT_BUILT_IN when this build has no such devices; LGRECO_UNAVAILABLE when
// this machine has none, or none that can be used; LGRECO_DEVICE when its driver fails.
lgreco_status lgreco_context_create(const char *device,
                                    struct lgreco_context **context);

// Frees a context and sets the caller's pointer to NULL; NULL, or a pointer to NULL, does nothing.
lgreco_status lgreco_context_destroy(struct lgreco_context **context);

/* ---- 2. Rows of errors; tables and plans as files ---- */

// Measures one layer under given settings: squared_errors[i] is the squared L2 norm of what compression by settings[i]
// does to the gradient (for stochastic rounding its expectation), sizes[i] the bits of its payload, also where the values
// decide them; `sizes` may be NULL, else it has `settings_len` places too. `context` may be NULL: the CPU. Settings next to each other that differ in the
// first number alone are measured together, for QSGD, TopK, CLT-k, PowerSGD and hard thresholds in about one pass, for
// quantised TopK in three. `seed` and `layer_index` name PowerSGD's start matrix, as the options of a compressor. Allocates.
//
// LGRECO_NON_FINITE, LGRECO_PARAMETER when a setting does not fit the layer.
lgreco_status lgreco_measure(const struct lgreco_context *context,
                             const struct lgreco_layer *layer,
                             const struct lgreco_setting *settings,
                             size_t settings_len,
                             uint64_t seed,
                             uint32_t layer_index,
                             double *squared_errors,
                             uint64_t *sizes);

// Writes the table as JSON with a NUL after it; `length`, which must not be NULL, receives the number of bytes before
// the NUL.
//
// LGRECO_LENGTH when `capacity` is not above that number: `length` is then set all the same, and `json` may be NULL.
// Allocates.
lgreco_status lgreco_table_to_json(const struct lgreco_table *table,
                                   char *json,
                                   size_t capacity,
                                   size_t *length);

// Reads a table file, `length` bytes of JSON as described by schemas/table.schema.json.
//
// LGRECO_JSON, LGRECO_JSON_VERSION, and the codes of lgreco_table_create and lgreco_setting; the message names layer, option and field.
lgreco_status lgreco_table_from_json(const char *json,
                                     size_t length,
                                     struct lgreco_table **table);

// Writes a plan for `table` as JSON (schemas/plan.schema.json) with a NUL after it, and in it the settings that the table
// has; `length` as for lgreco_table_to_json.
//
// Also LGRECO_PLAN_MISMATCH and the other codes of lgreco_plan_check when the plan is not one for this table. Allocates.
lgreco_status lgreco_plan_to_json(const struct lgreco_plan *plan,
                                  const struct lgreco_table *table,
                                  char *json,
                                  size_t capacity,
                                  size_t *length);

// Reads a plan file for `table`, `length` bytes of JSON, and verifies it: layers may stand in another order, but each
// must name a layer of the table and its option by index and label. That no plan is smaller than the bound in the file is
// taken on trust.
//
// LGRECO_JSON, LGRECO_JSON_VERSION; the codes of lgreco_setting for a setting in it; LGRECO_LENGTH when it does not have one entry per layer; LGRECO_UNKNOWN_NAME for a
// layer or label that is not the table's, LGRECO_DUPLICATE_NAME; LGRECO_PLAN_MISMATCH and the other codes of
// lgreco_plan_check. The message names the layer.
lgreco_status lgreco_plan_from_json(const struct lgreco_table *table,
                                    const char *json,
                                    size_t length,
                                    struct lgreco_plan **plan);

// Verifies a plan against a table: one option per layer, size and error as stated, error within the stated budget or size
// within the stated limit, groups and fixed options kept. What is checked is decided in exact arithmetic; a lower bound is only compared with what it is a
// bound of.
//
// LGRECO_PLAN_MISMATCH, LGRECO_OVER_BUDGET, LGRECO_OVER_SIZE, LGRECO_NO_SUCH_OPTION, LGRECO_RULED_OUT, LGRECO_BUDGET,
// LGRECO_LENGTH.
lgreco_status lgreco_plan_check(const struct lgreco_table_view *table,
                                const struct lgreco_plan_view *plan);

/* ---- 3. Compressors: other settings, what they remember, saved states, checksums of payloads ---- */

// Whether the error feedback of a compressor's `options` may be kept under `setting` on `layer`, which
// lgreco_compressor_create asks too, without values. All methods go with it; QSGD does with 4 bits in buckets of up to 512.
//
// QSGD is unbiased and needs no feedback. With few bits or long buckets it adds more error than it is given, and what is
// remembered would grow until it overflows. The layer's `values` may be NULL: QSGD is then judged by heavy-tailed values, as
// when a compressor is made. Otherwise any method is judged by them, which must be finite: more than
// that may suit them, or less. Without error feedback nothing is asked of the values. Allocates.
//
// LGRECO_NOT_CONTRACTIVE, with the squared error in the message; LGRECO_PARAMETER, LGRECO_NON_FINITE.
lgreco_status lgreco_feedback_check(const struct lgreco_layer *layer,
                                    const char *setting,
                                    const char *const *options);

// Changes the setting between two steps, as when plans change; what is remembered stays. Allocates when the new setting
// needs a larger workspace than any before.
//
// As lgreco_compressor_create when it does not fit the layer or suit the feedback. The setting is then unchanged.
lgreco_status lgreco_compressor_set_setting(struct lgreco_compressor *compressor,
                                            const char *setting);

// Writes what the compressor remembers to `values`; `values_len` = the layer's number of elements.
//
// LGRECO_FEEDBACK_RULE without feedback, as for the calls below.
lgreco_status lgreco_compressor_memory(struct lgreco_compressor *compressor,
                                       float *values,
                                       size_t values_len);

// Replaces what the compressor remembers, for instance by the residual of a worker that left; `step` as for encoding.
//
// LGRECO_OVERFLOW when a value is not finite or too large for the storage. The memory is then unchanged.
lgreco_status lgreco_compressor_set_memory(struct lgreco_compressor *compressor,
                                           uint32_t step,
                                           const float *values,
                                           size_t values_len);

// Multiplies what the compressor remembers by `factor`, new over old loss scale; `step` as for encoding.
//
// LGRECO_PARAMETER unless `factor` is positive and finite; LGRECO_OVERFLOW. The memory is then unchanged.
lgreco_status lgreco_compressor_rescale_memory(struct lgreco_compressor *compressor,
                                               uint32_t step,
                                               float factor);

// Tells the squared L2 norm of what the compressor remembers, and how many steps it has seen.
lgreco_status lgreco_compressor_memory_norm(struct lgreco_compressor *compressor,
                                            double *squared_norm,
                                            uint64_t *steps);

// Writes what the compressor remembers, versioned and the same on every machine. Layer and rank are for the caller to note.
// `length`, which must not be NULL, receives the number of bytes, always the same.
//
// LGRECO_LENGTH when `capacity` is less: `length` is then set all the same, and `saved` may be NULL.
lgreco_status lgreco_compressor_save(struct lgreco_compressor *compressor,
                                     uint8_t *saved,
                                     size_t capacity,
                                     size_t *length);

// Restores what another compressor of the same layer and options saved; it continues bit for bit. Any bytes may be given.
//
// LGRECO_CHECKSUM when they are damaged; LGRECO_SAVED_STATE when the bytes are no saved state, or that of another shape or
// other feedback; LGRECO_LENGTH. The memory is then unchanged. Allocates.
lgreco_status lgreco_compressor_load(struct lgreco_compressor *compressor,
                                     const uint8_t *saved,
                                     size_t length);

// Bytes that lgreco_payload_seal adds. Sizes in tables and plans are those of payloads without them.
#define LGRECO_SEAL_BYTES 8

// Writes a checksum of payload[0 .. length] to the LGRECO_SEAL_BYTES after it, for networks and files that may change bits
// unnoticed: most changes of a payload decode to other numbers. `sealed_length` receives the length of both. Does not
// allocate.
//
// LGRECO_LENGTH when `capacity` is less than that; nothing is written.
lgreco_status lgreco_payload_seal(uint8_t *payload,
                                  size_t length,
                                  size_t capacity,
                                  size_t *sealed_length);

// Tells how many of the bytes that lgreco_payload_seal closed are the payload: those that lgreco_compressor_decode takes.
// Any bytes may be given. Does not allocate.
//
// LGRECO_CHECKSUM when a bit has changed or the end is missing; LGRECO_LENGTH when there are fewer than LGRECO_SEAL_BYTES.
lgreco_status lgreco_payload_unseal(const uint8_t *sealed,
                                    size_t sealed_length,
                                    size_t *length);

/*
 * ---- 4. A step in parts, for exchanges that go on during the backward pass ----
 *
 * The caller performs the collectives, blocking or not; the controller's callback is never called. Every step:
 *
 *     lgreco_controller_begin_step
 *     lgreco_controller_control, perform what it asks for, until that is LGRECO_REQUEST_NONE
 *     per bucket, any number at a time, on any threads:
 *         lgreco_bucket_open, lgreco_bucket_submit
 *         lgreco_bucket_next, perform what it asks for, until that is LGRECO_REQUEST_NONE
 *         lgreco_bucket_close
 *     lgreco_controller_finish_step
 */

// As lgreco_controller_create, where ranks keep a shard of each layer (FSDP, ZeRO): each rank gets the means of its shards
// alone, in their place in the gradients, whose other elements are then of no use.
//
// `shards` says where shards end, in elements, world_size of them per layer, one layer after the other. Of each layer rank r
// has the elements from its number r - 1, or 0, to its number r, which may be none; the last is the number of the layer's
// elements. Asks for LGRECO_REQUEST_ALL_TO_ALL and REDUCE_SCATTER_SUM. Payloads of hard thresholds, SIDCo and AdaComp are
// gathered whole, and decoded by every rank. The option `route` has no effect.
//
// Also LGRECO_NULL_POINTER for `shards`, LGRECO_PARAMETER for what they cannot be.
lgreco_status lgreco_controller_create_sharded(const struct lgreco_context *context,
                                               const struct lgreco_collective *collective,
                                               const struct lgreco_layer *layers,
                                               size_t layers_len,
                                               const uint64_t *shards,
                                               const struct lgreco_setting *settings,
                                               const char *const *options,
                                               struct lgreco_controller **controller);

// As lgreco_controller_create, for nodes of `ranks_per_node` workers, whose ranks follow each other. The workers of a node sum
// gradients, uncompressed; each exchanges its shard of them, compressed, with its peers, those with the same place in other nodes;
// the workers of a node gather the means. So each byte of a payload goes through a node's link once per other node.
//
// Every request says in its `group` among whom it is performed: LGRECO_GROUP_NODE or LGRECO_GROUP_PEERS; the
// ranks in it are `rank % ranks_per_node` and `rank / ranks_per_node`. The last request of a bucket is that in its node after
// LGRECO_REQUEST_REDUCE_SCATTER_SUM. The ranks of a node may have had different numbers of requests among peers before it, so buckets in flight
// either have groups of their own, or their last requests are started once all have come to theirs, in the same order on all ranks. Asks for LGRECO_REQUEST_REDUCE_SCATTER_SUM and ALL_GATHER_EACH
// inside nodes. Settings, residuals, metrics and the bytes of reports are those of this rank's shards (lgreco_controller_shard);
// `settings` and the option `min_elements` are for whole layers. Errors number ranks as the collective does. States are
// loaded with other nodes too: lgreco_controller_load takes the states of all ranks of the nodes that this node takes over, and
// each rank finds its shards in them.
//
// Also LGRECO_PARAMETER unless `ranks_per_node` divides the number of workers.
lgreco_status lgreco_controller_create_on_nodes(const struct lgreco_context *context,
                                                const struct lgreco_collective *collective,
                                                uint32_t ranks_per_node,
                                                const struct lgreco_layer *layers,
                                                size_t layers_len,
                                                const struct lgreco_setting *settings,
                                                const char *const *options,
                                                struct lgreco_controller **controller);

// Tells which elements of layer `layer` this rank remembers and exchanges with its peers: `count` from number `first` on. All of them
// unless the controller is one of lgreco_controller_create_on_nodes.
//
// LGRECO_LAYER_MISMATCH when there is no such layer.
lgreco_status lgreco_controller_shard(struct lgreco_controller *controller,
                                      size_t layer,
                                      size_t *first,
                                      size_t *count);

// Begins a step of which the caller performs the collectives: then come the requests of lgreco_controller_control, the
// buckets (lgreco_bucket_open), as many as the caller likes at the same time, and lgreco_controller_finish_step. All
// workers do, with the same `learning_rate`, which matters to Accordion alone. lgreco_controller_step does all of this
// in one call, and finds out before anything is exchanged whether all gradients can be.
//
// A learning rate that is not finite or negative is told to all ranks: lgreco_controller_control fails, or, where there is
// nothing to control, the first bucket. LGRECO_STEP_ORDER when a step is under way.
lgreco_status lgreco_controller_begin_step(struct lgreco_controller *controller,
                                           double learning_rate);

// Tells the next collective to perform before buckets may be opened; to be called again once it is done, until the
// kind is LGRECO_REQUEST_NONE: at once at most steps. Where a decision is due, the measuring rank measures and plans
// during a call. Allocates at decisions only.
//
// What fails on one rank fails on all, and the step may be begun again: LGRECO_PEER, LGRECO_PEER_PLAN,
// LGRECO_PEER_MESSAGE, codes of measuring and planning. LGRECO_STEP_ORDER when no step is under way. Where a
// collective cannot be performed, ranks may differ: lgreco_controller_load ends the step.
lgreco_status lgreco_controller_control(struct lgreco_controller *controller,
                                        struct lgreco_request *request);

// Layers that are exchanged together in one step, on loan from a controller with all that this rank remembers of them.
// Different buckets may be used by different threads at the same time, and their controller by another. Only
// lgreco_bucket_close frees one.
typedef struct lgreco_bucket lgreco_bucket;

// Lends a bucket of these layers, by their index and in any order, for one exchange in the step that has begun. All
// workers exchange the same layers together, in the same order; with layers that have not been exchanged together
// before, a further all-gather of 24 bytes per worker finds out whether they do. Allocates: what the
// settings need and up to three f32 per element where no bucket that was closed had as much room, else a few hundred bytes.
//
// LGRECO_STEP_ORDER unless a step has begun and its control requests are done; LGRECO_LAYER_MISMATCH for a layer that
// there is not; LGRECO_IN_FLIGHT for one that is in another bucket, or twice in this.
lgreco_status lgreco_bucket_open(struct lgreco_controller *controller,
                                 const size_t *layers,
                                 size_t layers_len,
                                 struct lgreco_bucket **bucket);

// Says that a layer has no gradient on this rank in this step, before lgreco_bucket_submit: whatever is submitted in
// its place becomes zeros, of which the mean is then made, and its residual stays. Other ranks may have a gradient.
//
// LGRECO_STEP_ORDER when there are gradients already; LGRECO_LAYER_MISMATCH when the layer is not in this bucket.
lgreco_status lgreco_bucket_withhold(struct lgreco_bucket *bucket,
                                     size_t layer);

// Tells the collective number `index`, from 0, that lgreco_bucket_next will ask for, so that memory can be reserved or
// registered beforehand: its kind, LGRECO_REQUEST_NONE where there are no more, and its size; pointers are NULL. `count` is
// the number of f32, where they are summed; `length` the bytes of one worker that LGRECO_REQUEST_ALL_GATHER gathers, of all
// workers that LGRECO_REQUEST_ALL_GATHER_EACH gathers (the most, where values decide), that are broadcast, or that
// LGRECO_REQUEST_ALL_TO_ALL sends and receives together. Fewer come if the exchange fails.
lgreco_status lgreco_bucket_round(struct lgreco_bucket *bucket,
                                  size_t index,
                                  struct lgreco_request *request);

// Takes the gradients of this step, one pointer per layer in the order in which the bucket was opened, adds residuals
// and compresses. The library keeps the pointers: what they point to must stay in its place, used by nobody else,
// until lgreco_bucket_next says LGRECO_REQUEST_NONE or fails, or the bucket is closed. Does not allocate.
//
// LGRECO_STEP_ORDER when there are gradients already; the bucket is then as it was. What is wrong with gradients (they are not
// finite, or lgreco_controller_step would refuse the pointers) is no failure here, because the other ranks wait for this one: all
// are told, and lgreco_bucket_next fails on each. A trainer that has no gradients to give calls lgreco_bucket_submit_failure.
lgreco_status lgreco_bucket_submit(struct lgreco_bucket *bucket,
                                   void *const *gradients,
                                   size_t gradients_len);

// Says in place of lgreco_bucket_submit that this rank has no gradients to give, because its own backward pass has failed.
// All ranks learn of it in this step: lgreco_bucket_next, which is called as after lgreco_bucket_submit, fails here with
// LGRECO_TRAINER and elsewhere with LGRECO_PEER, whose message tells the rank. What is remembered of the layers is as it was.
//
// LGRECO_STEP_ORDER when there are gradients already.
lgreco_status lgreco_bucket_submit_failure(struct lgreco_bucket *bucket);

// Goes on, once the collective asked for before is done, and tells the next one; LGRECO_REQUEST_NONE when the
// gradients are means. Does not allocate.
//
// What fails on one rank fails on all: with its own code there, elsewhere with LGRECO_PEER, whose message tells rank
// and code. Gradients of the bucket are then of no use, what is remembered of its layers is as it was, and other
// buckets are not concerned: LGRECO_NON_FINITE_GRADIENT, LGRECO_PEER_PLAN when ranks exchange different layers or
// under different options, LGRECO_OVERFLOW, LGRECO_ELEMENT_OVERFLOW, LGRECO_PEER_MESSAGE. Where the controller's
// options do not make gradients that are not finite an error, all of the bucket's become zeros (skip) or
// NaN (pass_through), for a loss scaler to find, on every rank instead, and residuals stay. LGRECO_STEP_ORDER before lgreco_bucket_submit, and after a failure.
lgreco_status lgreco_bucket_next(struct lgreco_bucket *bucket,
                                 struct lgreco_request *request);

// Gives a bucket back to its controller, wherever it is, frees it and sets the caller's pointer to NULL; NULL, or a
// pointer to NULL, does nothing. A collective that is still under way on its memory must have ended. One that has not
// come to its means leaves what is remembered of its layers as it was; one from before lgreco_controller_load is only
// freed. `controller` may be NULL once that of the bucket has been destroyed.
//
// LGRECO_STEP_ORDER for a bucket of another controller, which stays as it is. LGRECO_PANIC for one that a call has
// panicked on: it is freed with what it had of its layers, which are LGRECO_IN_FLIGHT until a saved state is loaded.
lgreco_status lgreco_bucket_close(struct lgreco_controller *controller,
                                  struct lgreco_bucket **bucket);

// Ends the step, of which all buckets have been closed. Layers that were in none keep what is remembered of them.
// `report` may be NULL; its outcome is LGRECO_OUTCOME_FAILED when the exchange of some bucket has failed,
// LGRECO_OUTCOME_SKIPPED or LGRECO_OUTCOME_PASSED_THROUGH, by the option `non_finite`, when the gradients of some were not finite.
//
// LGRECO_IN_FLIGHT when a bucket has not been closed; LGRECO_STEP_ORDER when no step is under way, or its control
// requests are not done.
lgreco_status lgreco_controller_finish_step(struct lgreco_controller *controller,
                                            struct lgreco_report *report);

/* ---- 5. Between steps ---- */

// Takes back what the last step has done to residuals, because its means have not been applied: a loss scaler has
// skipped the update, say. The step still counts. Every rank does it or none; once only.
//
// LGRECO_STEP_ORDER while a step is under way, and where the residuals before it are gone: `undo` in the options, or a
// `non_finite` that is no error, keeps them. Nothing has changed then.
lgreco_status lgreco_controller_roll_back(struct lgreco_controller *controller);

// Gives up the step under way, because a collective has failed: it may be begun again, and residuals are what they were before
// it, if `undo` keeps them; if not, those of layers whose exchange was done are what it has left. All buckets are closed first, once the engine no longer touches their memory. Ranks may have got differently far:
// whatever they go on with, all load the plan of one of them, each with its own residuals. lgreco_controller_step does it
// by itself when a callback fails.
//
// LGRECO_IN_FLIGHT when a bucket is not closed, LGRECO_STEP_ORDER when no step is under way.
lgreco_status lgreco_controller_abandon_step(struct lgreco_controller *controller);

// Multiplies all residuals by `factor`, because gradients are from now on so many times what they were: the scale of
// the loss has changed. Every rank does it with the same factor, or none. The last step can then no longer be rolled
// back.
//
// LGRECO_PARAMETER unless `factor` is positive and finite, LGRECO_OVERFLOW when a residual no longer fits its format,
// LGRECO_STEP_ORDER while a step is under way: no residual has changed then.
lgreco_status lgreco_controller_rescale_residuals(struct lgreco_controller *controller,
                                                  float factor);

// Asks for a decision before the schedule's next, because the data or the network have changed: its window begins with the next
// step, and it is due `window + lead` steps later, or when it would have been if that is sooner. Tells that step in `due`,
// UINT64_MAX under policies that decide nothing any more. All ranks ask, between the same two steps: the next step fails with
// LGRECO_PEER_PLAN on every rank when some have not.
//
// LGRECO_STEP_ORDER while a step is under way.
lgreco_status lgreco_controller_replan(struct lgreco_controller *controller,
                                       uint64_t *due);

// Gives a controller that was made with settings other ones, one per layer. All ranks do, between the same two steps, and
// switch at the next one, or at the end of the warm-up if that comes later. What is remembered of the layers stays. The
// step fails with LGRECO_PEER_PLAN on every rank when ranks have given different settings. In buckets
// (lgreco_controller_control) a rank that has given none does not expect what the others ask it first, and hangs.
//
// LGRECO_NOT_FIXED for a controller that was made without; LGRECO_STEP_ORDER while a step is under way; LGRECO_LENGTH unless there are as
// many settings as layers, codes of settings that do not fit their layer. Nothing has changed then.
lgreco_status lgreco_controller_set_settings(struct lgreco_controller *controller,
                                             const struct lgreco_setting *settings,
                                             size_t settings_len);

/* ---- 6. Plans on a thread of their own: the option `lead` ---- */

// The work of a controller's next decision: to measure gradients and plan, for seconds with large models. One thread may
// run it while others take steps with its controller.
typedef struct lgreco_plan_task lgreco_plan_task;

// Makes the work of the controller's next decision a handle: once, on the measuring rank, from the end of the step
// before the decision's `lead` on; `task` receives NULL at other times, on other ranks, and
// where `lead` is 0. Ask after every step. Does not copy gradients.
//
// At the step of the decision all ranks switch. If the task has not been handed in by then, they take the step as they
// are and ask again at the next one: nobody waits. If it was not taken, or was destroyed, a call of
// lgreco_controller_control or lgreco_controller_step does its work. A state that is saved meanwhile has the gradients;
// whoever loads it decides by them.
lgreco_status lgreco_controller_take_plan_task(struct lgreco_controller *controller,
                                               struct lgreco_plan_task **task);

// Measures and plans, in the calling thread, on the device of the controller's context. The controller may be used
// meanwhile, and destroyed. Once. Allocates.
//
// Codes of measuring and planning are this call's, and those of the step of the decision on every rank, if the task is
// handed in all the same. LGRECO_STEP_ORDER when it has been run.
lgreco_status lgreco_plan_task_run(struct lgreco_plan_task *task);

// Hands in a task that has been run, frees it and sets the caller's pointer to NULL; NULL, or a pointer to NULL, does
// nothing. One that nobody waits for any more, because a saved state has been loaded or the learning rate has fallen
// instead, is only freed.
//
// LGRECO_STEP_ORDER for a task of another controller and for one that has not been run, LGRECO_BUSY for one that is
// being run: it stays as it is. LGRECO_PANIC for one that has panicked: it is freed, and the controller does its work.
lgreco_status lgreco_controller_hand_in(struct lgreco_controller *controller,
                                        struct lgreco_plan_task **task);

// Frees a task and sets the caller's pointer to NULL; NULL, or a pointer to NULL, does nothing. Its work is there to be
// taken again.
lgreco_status lgreco_plan_task_destroy(struct lgreco_plan_task **task);

/* ---- 7. What a controller does ---- */

// Fills `setting` with how layer `layer` was compressed at the last step. LGRECO_LAYER_MISMATCH when there is no such layer, as
// for the calls below.
lgreco_status lgreco_controller_setting(struct lgreco_controller *controller,
                                        size_t layer,
                                        struct lgreco_setting *setting);

// Why a layer is sent uncompressed.
LGRECO_ENUM(lgreco_uncompressed) {
    LGRECO_UNCOMPRESSED_NOT = 0,  // It is compressed.
    LGRECO_UNCOMPRESSED_WARM_UP = 1,  // Nothing has been decided yet, or the layer was not in the state loaded.
    LGRECO_UNCOMPRESSED_SMALL = 2,  // It has one dimension or fewer, or too few elements.
    LGRECO_UNCOMPRESSED_NO_SAVING = 3,  // The setting would have saved no bytes.
    LGRECO_UNCOMPRESSED_CHOSEN = 4,  // It was chosen, by the plan or by the caller.
    LGRECO_UNCOMPRESSED_SLOWER = 5,  // Compressing it would take longer than sending it does.
    LGRECO_UNCOMPRESSED_NOT_CONTRACTIVE = 6,  // Feedback would not work with what was chosen.
};

// What is known about one layer on one rank. Begin with LGRECO_METRICS_INIT.
typedef struct lgreco_metrics {
    // Set by the INIT macro.
    size_t struct_size;
    // Steps in which it was exchanged.
    uint64_t steps;
    // Bytes of its gradients in these steps.
    uint64_t bytes_in;
    // Bytes sent for them.
    uint64_t bytes_out;
    // Squared error of what was sent, by the squared norm of what was compressed, when last measured; -1 before.
    double relative_error;
    // L2 norm of the residual; -1 without one.
    double residual_norm;
    // Seconds that compressing and exchanging its bucket took, since the controller was made or loaded; layers of one
    // bucket share them. -1 before the first exchange.
    double bucket_seconds;
    // Decisions whose setting was refused because feedback would not have worked with it.
    uint64_t not_contractive;
    // Why it is sent uncompressed, if it is.
    lgreco_uncompressed uncompressed;
} lgreco_metrics;
#define LGRECO_METRICS_INIT {LGRECO_SIZE_OF(lgreco_metrics), 0, 0, 0, -1, -1, -1, 0, LGRECO_UNCOMPRESSED_NOT}

// Fills `metrics` with what is known about layer `layer` on this rank; looks at all of its residual.
lgreco_status lgreco_controller_metrics(struct lgreco_controller *controller,
                                        size_t layer,
                                        struct lgreco_metrics *metrics);

// Writes the residual of layer `layer` on this rank to `values`, zeros without one; `values_len` = its number of elements, on nodes
// that of the shard (lgreco_controller_shard). LGRECO_IN_FLIGHT while a bucket has the layer.
lgreco_status lgreco_controller_residual(struct lgreco_controller *controller,
                                         size_t layer,
                                         float *values,
                                         size_t values_len);

// What made the settings change.
LGRECO_ENUM(lgreco_cause) {
    LGRECO_CAUSE_NONE = 0,  // Nothing yet: there was no decision.
    LGRECO_CAUSE_SCHEDULE = 1,  // The schedule.
    LGRECO_CAUSE_LEARNING_RATE = 2,  // The learning rate fell, and Accordion put all layers to low compression.
    LGRECO_CAUSE_CALLER = 3,  // The caller gave other settings.
};

// The last decision; the same on every rank. Begin with LGRECO_DECISION_INIT.
typedef struct lgreco_decision {
    // Set by the INIT macro.
    size_t struct_size;
    // The first step under it.
    uint64_t step;
    // What made them change.
    lgreco_cause cause;
    // 1 when sizes are picoseconds, 0 when they are bits.
    uint32_t in_picoseconds;
    // 1 when the policy planned, else 0; the numbers below are then 0.
    uint32_t planned;
    // 1 when the plan is proved optimal, else 0.
    uint32_t proven;
    // Size of the layers that may be compressed; bits, or picoseconds (`in_picoseconds`).
    uint64_t size;
    // LGRECO_LIMIT_ERROR: no plan within the budget is smaller. Otherwise 0.
    uint64_t lower_bound;
    // Size of the same layers under the settings that the budget comes from.
    uint64_t default_size;
    // Size of the same layers uncompressed: where `size` is not less, compression does not pay.
    uint64_t uncompressed_size;
    // Error of the plan.
    double error;
    // LGRECO_LIMIT_ERROR: its budget. Otherwise 0.
    double budget;
    // Layers that are sent uncompressed because that is faster.
    uint32_t slower;
    // Layers that are sent uncompressed because feedback would not work with what was chosen.
    uint32_t not_contractive;
    // What the plan was made for.
    lgreco_limit limit;
    // With the objective seconds: layers that are compressed. Otherwise 0.
    uint32_t compressed;
    // LGRECO_LIMIT_SIZE: the most that the plan may have, in the unit of `size`. Otherwise 0.
    uint64_t size_limit;
    // LGRECO_LIMIT_SIZE: no plan within the size limit has less error. Otherwise 0.
    double error_lower_bound;
    // With the objective seconds; otherwise this and all below is 0. Seconds that a step's exchange has taken on the slowest
    // rank since the decision before, compressing included; the median.
    double measured_seconds;
    // Of them, compressing and decompressing.
    double computing_seconds;
    // Seconds that another byte takes, sent by every rank.
    double seconds_per_byte;
    // Seconds that a step's exchange is expected to take.
    double plan_seconds;
    // Of them, compressing and decompressing.
    double plan_computing_seconds;
    // Under the default settings.
    double default_seconds;
    // With all layers uncompressed.
    double uncompressed_seconds;
} lgreco_decision;
#define LGRECO_DECISION_INIT                                                                                           \
    {LGRECO_SIZE_OF(lgreco_decision), 0, LGRECO_CAUSE_NONE, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,                           \
     LGRECO_LIMIT_NONE, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}

// Fills `decision` with the last decision; LGRECO_CAUSE_NONE before the first.
lgreco_status lgreco_controller_decision(struct lgreco_controller *controller,
                                         struct lgreco_decision *decision);

// Tells the number of steps taken, skipped ones included, and of those in which some rank's gradient was not finite.
lgreco_status lgreco_controller_steps(struct lgreco_controller *controller,
                                      uint64_t *steps,
                                      uint64_t *non_finite);

// Bytes that a controller takes on one rank, by what they are for, beside the trainer's gradients. Begin with
// LGRECO_MEMORY_USE_INIT.
typedef struct lgreco_memory_use {
    // Set by the INIT macro.
    size_t struct_size;
    // Residuals of error feedback.
    uint64_t residuals;
    // The residuals of the step before, where `undo` asks for them.
    uint64_t undo;
    // PowerSGD's factors.
    uint64_t factors;
    // Messages of the buckets that are on their way at the same time, and what one of them is computed in.
    uint64_t exchange;
    // The gradients that a decision is made of: on the measuring rank, in the steps of the window and until the decision.
    uint64_t window;
} lgreco_memory_use;
#define LGRECO_MEMORY_USE_INIT {LGRECO_SIZE_OF(lgreco_memory_use), 0, 0, 0, 0, 0}

// Tells how much memory the run takes on this rank, before its first step too: under the settings of the last decision, or
// before the first under the search's default. `at_once` buckets are on their way at the same time, at most, of
// `bucket_bytes` each; lgreco_controller_step has 1, of the size that the options say, for which 0 stands.
lgreco_status lgreco_controller_memory(struct lgreco_controller *controller,
                                       size_t bucket_bytes,
                                       size_t at_once,
                                       struct lgreco_memory_use *memory);

// Writes the last step's report with the last decision and the metrics of all layers as one line of JSON, without the
// line's end, and a NUL after it; `length` as for lgreco_table_to_json. Allocates.
//
// LGRECO_UNAVAILABLE before the first step.
lgreco_status lgreco_controller_metrics_json(struct lgreco_controller *controller,
                                             char *json,
                                             size_t capacity,
                                             size_t *length);

/* ---- 8. Saved states ---- */

// How much of a controller is saved.
LGRECO_ENUM(lgreco_save_contents) {
    LGRECO_SAVE_EVERYTHING = 0,  // All of it: a run continues bit for bit.
    // Without the gradients that the next decision would be made by, an f32 per element of the model on the measuring rank:
    // whoever continues collects new ones.
    LGRECO_SAVE_WITHOUT_WINDOW = 1,
};

// Writes this rank's state, the same on every machine: residuals, factors, settings, schedule, but not the
// options. Every rank saves its own, between the same two steps. `length`, which must not be
// NULL, receives the number of bytes.
//
// LGRECO_LENGTH when `capacity` is less: `length` is then set all the same, and `saved` may be NULL. LGRECO_IN_FLIGHT while
// a bucket has not been closed. Allocates.
lgreco_status lgreco_controller_save(struct lgreco_controller *controller,
                                     lgreco_save_contents contents,
                                     uint8_t *saved,
                                     size_t capacity,
                                     size_t *length);

// As lgreco_controller_save, a part of the state, for checkpoints that are maps by name: part 0 is what belongs to no
// layer, and its `name` is NULL; part 1 + l is layer l with its name, which is valid until the controller is destroyed.
// lgreco_controller_load_parts takes them in any order.
//
// LGRECO_LAYER_MISMATCH when there is no such part.
lgreco_status lgreco_controller_save_part(struct lgreco_controller *controller,
                                          size_t part,
                                          lgreco_save_contents contents,
                                          const char **name,
                                          uint8_t *saved,
                                          size_t capacity,
                                          size_t *length);

// What lgreco_controller_load found. Begin with LGRECO_LOADED_INIT. The names are valid until the next load, or until the
// controller is destroyed.
typedef struct lgreco_loaded {
    // Set by the INIT macro.
    size_t struct_size;
    // Layers of the model that the state does not have: they start without residual, uncompressed until the next
    // decision, which then comes at once.
    const char *const *missing;
    // Their number.
    size_t missing_len;
    // Layers of the state that the model does not have: they are ignored.
    const char *const *extra;
    // Their number.
    size_t extra_len;
    // Layers whose shape or element type is not that of the state: they are missing and extra at once.
    const char *const *misshaped;
    // Their number.
    size_t misshaped_len;
    // The rank that saved the plan.
    uint32_t rank;
    // The number of workers then.
    uint32_t world_size;
    // The step that the run continues with: that of the plan.
    uint64_t step;
    // The earliest step of a residual; that of the plan if none is earlier. What a rank has not sent between the two, its
    // residual does not have.
    uint64_t oldest_residual;
} lgreco_loaded;
#define LGRECO_LOADED_INIT {LGRECO_SIZE_OF(lgreco_loaded), NULL, 0, NULL, 0, NULL, 0, 0, 0, 0, 0}

// Continues from `plan`, the saved state of any rank, with the residuals of `residuals`, an array of saved states of the
// same step or earlier ones with their lengths. To resume, give this rank's state as both: the run continues bit for bit. With fewer
// workers, give also the states of the ranks that this one takes over; on a new rank any rank's `plan` and no residuals.
// Where a rank has died, all give the state of one of the others as `plan` and their own residuals, and whoever takes the dead
// one's place the last that it saved. Any bytes may be given. A step under way is over, and buckets of before may only be closed. `loaded` may be NULL.
// Allocates.
//
// LGRECO_CHECKSUM for a state that is damaged; LGRECO_SAVED_STATE, LGRECO_LENGTH and others for bytes that are no state. The
// controller is then unchanged.
lgreco_status lgreco_controller_load(struct lgreco_controller *controller,
                                     const uint8_t *plan,
                                     size_t plan_len,
                                     const uint8_t *const *residuals,
                                     const size_t *residual_lens,
                                     size_t residuals_len,
                                     struct lgreco_loaded *loaded);

// As lgreco_controller_load, from parts that lgreco_controller_save_part wrote: `plan` is an array of all parts of any
// rank's state, where layers that the model does not have may be left out, `residuals` one of the parts of layers, of one
// or more ranks; their order does not matter.
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
