/*
 * lgreco: layer-wise adaptive gradient compression.
 *
 * What holds for every call here (order of arguments, NULL, ownership, threads, errors, versions) stands in
 * lgreco-ffi/README.md. In short: every call returns a status, outputs count only after LGRECO_OK, handles are freed
 * by their destroy call (a bucket by lgreco_bucket_close) and nothing else, different handles may be used by different threads at the same time. A
 * context is one handle: a call that is given a context another thread is using returns LGRECO_BUSY, so threads that
 * make things at the same time need a context each, or a lock. After fork() the child may go on with handles of the CPU
 * that no thread was using at that moment, which are copies; those of a GPU belong to the parent.
 *
 * Which calls for which kind of trainer:
 *   - One that compresses by its own means and wants to know how hard: plan offline. lgreco_table_measure, or
 *     lgreco_table_create with errors of its own; lgreco_plan_solve; lgreco_plan_get. examples/minimal.c
 *   - One that has its own exchange of bytes: compress by hand. A plan; per layer a lgreco_compressor, with feedback;
 *     lgreco_compressor_encode, _decode. examples/compressor.c; in an NVIDIA GPU's memory lgreco_cuda_...
 *   - One whose gradients lie in an NVIDIA GPU's memory, and whose collectives work there (NCCL): a bucket on the device.
 *     lgreco_cuda_bucket_create; every step lgreco_cuda_bucket_submit, then lgreco_cuda_bucket_next and the collective that it
 *     asks for, until that is LGRECO_REQUEST_NONE. What has become of a step, and the table of a later plan, are read when
 *     they are there: lgreco_cuda_bucket_outcome_place, lgreco_cuda_enqueue_rows. examples/nccl_trainer.cpp
 *   - One that exchanges after the backward pass: the blocking controller. lgreco_controller_create with the network as
 *     a callback (lgreco_collective), then lgreco_controller_step after every backward pass: measures, plans, switches,
 *     compresses, exchanges and remembers. examples/mpi_trainer.cpp, examples/libtorch
 *   - One that exchanges during the backward pass, or has its own non-blocking collectives: buckets in flight. The same
 *     controller, whose callback is then never called. Every step:
 *         lgreco_controller_begin_step
 *         lgreco_controller_control, perform what it asks for, until that is LGRECO_REQUEST_NONE
 *         per bucket, any number at a time, on any threads:
 *             lgreco_bucket_open, lgreco_bucket_submit
 *             lgreco_bucket_next, perform what it asks for, until that is LGRECO_REQUEST_NONE
 *             lgreco_bucket_close
 *         lgreco_controller_finish_step
 *     Where a loss scaler skips the update or changes its scale, lgreco_controller_roll_back and
 *     lgreco_controller_rescale_residuals. examples/mpi_trainer.cpp with --overlap
 *     In both, so that no step waits for a decision: lgreco_controller_options.lead, lgreco_controller_take_plan_task, and
 *     lgreco_plan_task_run on a thread of its own. Where ranks keep a shard of the model each (FSDP, ZeRO):
 *     LGRECO_ROUTE_SHARDED. To decide by oneself: LGRECO_POLICY_FIXED, and lgreco_controller_set_settings later.
 *   - One that sends activations and their gradients between pipeline stages: pipeline cuts. A lgreco_cut at both ends,
 *     lgreco_cut_send_activations, _send_gradients, _receive, _commit_step.
 *
 * Compressing by hand: what lgreco_controller does for a trainer, one that exchanges payloads itself must do.
 *   - Every rank needs the settings of every layer: lgreco_setting is text, the same on every machine, to be sent as
 *     LGRECO_SETTING_TEXT_BYTES bytes. Tables and plans as JSON hold settings as the same text; lgreco_table_setting tells
 *     those of a table that was read.
 *   - lgreco_feedback_check tells which feedback suits which method.
 *   - Networks that may change bits unnoticed: lgreco_payload_seal and lgreco_payload_unseal put a checksum behind a payload.
 *   - Payloads are decoded one by one, and what they decode to is summed. Those of PowerSGD too: two factors of every
 *     rank belong together, and sums of factors are the factors of nothing. Only the controller all-reduces factors.
 *   - Payloads whose length the values decide (AdaComp, hard thresholds, SIDCo) are as long as the call that writes them
 *     says, at most lgreco_compressor_bound; send the length before them, or as many bytes as the bound with the length
 *     told some other way. All others have one length under one setting, on every rank.
 *
 * Generated from the Rust source: LGRECO_BLESS=1 cargo test -p lgreco-ffi --test header
 */
#ifndef LGRECO_H
#define LGRECO_H

#include <stddef.h>
#include <stdint.h>

// The version this header belongs to; lgreco_version() is that of the library.
#define LGRECO_VERSION_MAJOR 0
#define LGRECO_VERSION_MINOR 1
#define LGRECO_VERSION_PATCH 0
#define LGRECO_VERSION_STRING "0.1.0"
#define LGRECO_VERSION (LGRECO_VERSION_MAJOR * 10000 + LGRECO_VERSION_MINOR * 100 + LGRECO_VERSION_PATCH)

// Number of this header, which changes with every declaration in it. The INIT macros put it into their structs: the first call
// that is given a struct, a callback among them, by a program that was compiled with another header than the library's fails
// with LGRECO_STRUCT_SIZE.
#define LGRECO_HEADER_REVISION 3

// Bytes of a setting's text with the NUL after it. All that the library writes fit.
#define LGRECO_SETTING_TEXT_BYTES 64

// Of search options' `widths`: kept values in the gradient's own type.
#define LGRECO_WIDTH_FULL 1

// Of `fixed` in a table view: plans choose the layer's option.
#define LGRECO_NO_OPTION UINT32_MAX

// Bytes that lgreco_payload_seal adds. Sizes in tables and plans are those of payloads without them.
#define LGRECO_SEAL_BYTES 8

// What `perform` returns for a kind of collective that the embedder does not have.
#define LGRECO_COLLECTIVE_UNSUPPORTED INT32_MIN

// Bytes of a saved cut setting.
#define LGRECO_CUT_SETTING_BYTES 76

// The id of samples that are not to be remembered.
#define LGRECO_UNREMEMBERED UINT64_MAX

// No rank is at fault.
#define LGRECO_NO_RANK UINT32_MAX

// Layers that are exchanged together in one step, on loan from a controller with all that this rank remembers of them.
// Different buckets may be used by different threads at the same time, and their controller by another. Only
// lgreco_bucket_close frees one.
typedef struct lgreco_bucket lgreco_bucket;

// The compressor of one layer on one worker, with what it remembers and the memory it works in.
typedef struct lgreco_compressor lgreco_compressor;

// A device, and the message about the last failed call that was given the context.
//
// Other handles are made with a context, but do not need it afterwards.
typedef struct lgreco_context lgreco_context;

// One worker's end of the training loop: decides when and how hard to compress each layer, compresses, exchanges,
// remembers.
typedef struct lgreco_controller lgreco_controller;

// An NVIDIA GPU that works on pointers to its own memory, on one stream, in libraries built with the feature `cuda`.
// Calls say in their first word whether their work is enqueued there when they return, or done. (The devices that
// there are can be listed in Rust alone: `lgreco_cuda::devices`.)
typedef struct lgreco_cuda lgreco_cuda;

// Layers that are exchanged together, with gradients, residuals and messages in the device's memory, compressed and summed
// there. A step is lgreco_cuda_bucket_submit, then lgreco_cuda_bucket_next and the collective that it asks for until there is
// none. Nothing of a step waits, allocates or brings anything from the host: it may be captured into a CUDA graph together with its
// collectives, and replayed. Calls also need the lgreco_cuda, which keeps the message of one that fails.
typedef struct lgreco_cuda_bucket lgreco_cuda_bucket;

// One end of a cut between two pipeline stages. The other is in another process; between them messages travel, which
// must neither be lost nor change their order.
typedef struct lgreco_cut lgreco_cut;

// One option per layer, verified. It never changes.
typedef struct lgreco_plan lgreco_plan;

// The work of a controller's next decision: to measure gradients and plan, for seconds with large models. One thread may
// run it while others take steps with its controller.
typedef struct lgreco_plan_task lgreco_plan_task;

// An error table with names, owned by the library. It never changes.
typedef struct lgreco_table lgreco_table;

// How a call ended: LGRECO_OK, or why it failed. Codes are permanent.
typedef uint32_t lgreco_status;

// A device: LGRECO_DEVICE_...
typedef uint32_t lgreco_device;

// Where a context works. Begin with LGRECO_CONTEXT_OPTIONS_INIT.
typedef struct lgreco_context_options {
    // Set by the INIT macro.
    size_t struct_size;
    // LGRECO_DEVICE_CPU, the default.
    lgreco_device device;
    // Which device of that kind, from 0, the default: CUDA's ordinal; of LGRECO_DEVICE_WGPU there is one, the fastest
    // adapter.
    uint32_t device_index;
    // Where lgreco_context_create writes why it failed, as there is no handle then to ask: text with a NUL at its end, cut
    // to `message_capacity`, and "" when it succeeds. NULL, the default, for nowhere. Not used after the call.
    char *message;
    // Bytes there; 512 are always enough.
    size_t message_capacity;
} lgreco_context_options;

// An element type: LGRECO_DTYPE_...
typedef uint32_t lgreco_dtype;

// A named tensor of the model. Begin with LGRECO_LAYER_INIT.
typedef struct lgreco_layer {
    // Set by the INIT macro.
    size_t struct_size;
    // Its name, UTF-8; state and plans are keyed by it.
    const char *name;
    // Its dimensions; PowerSGD sees a matrix of the first by the product of the others.
    const size_t *dims;
    // Their number; 0 for a scalar.
    size_t dims_len;
    // Its gradient, row-major, as many elements as the product of `dims`. Only read; not needed to make a compressor.
    const void *values;
    // Type of its elements.
    lgreco_dtype dtype;
} lgreco_layer;

// What errors of tables are measured in: LGRECO_METRIC_...
typedef uint32_t lgreco_metric;

// What to offer each layer of a model. Begin with LGRECO_SEARCH_OPTIONS_INIT.
//
// Methods are "qsgd", "topk", "powersgd", "eden", "clt-k", "sidco", "hard-threshold", "adacomp", "loco", several of them with
// commas between, the first of which says what is uniform, or "hybrid", the default: EDEN, TopK and PowerSGD, that about
// rank 8. Parameters are
// those of the first method: bits per element for QSGD (1 to 8; 4 by default) and EDEN (3), the density for TopK, CLT-k and
// SIDCo (above 0, to 1; 0.01), the rank for PowerSGD (1 to 65536; 4), the least magnitude for hard thresholds (0.01), elements
// per bin for AdaComp (500) and per group for LoCo (512).
typedef struct lgreco_search_options {
    // Set by the INIT macro.
    size_t struct_size;
    // The methods, UTF-8; NULL, the default, for "hybrid". Not kept.
    const char *methods;
    // LGRECO_METRIC_SQUARED_L2, the default, or LGRECO_METRIC_L2, the paper's.
    lgreco_metric metric;
    // The uniform setting that the budget is taken from; 0, the default, for the method's.
    double parameter;
    // Smallest parameter offered; 0 in this and the next two, the default, for L-GreCo's range about `parameter`, and for EDEN's 1 to 8 bits.
    double first;
    // Largest parameter offered.
    double last;
    // Distance of two parameters.
    double step;
    // Layers with fewer elements stay uncompressed and are not in the table; 1024 by default.
    size_t min_elements;
    // Seed of random start matrices: give compressors the same; 0 by default.
    uint64_t seed;
    // TopK, also among several: how the values it keeps may be sent, LGRECO_WIDTH_FULL and 1 << bits for each of 1 to 8
    // bits, added up; 0, the default, for full ones alone. `parameter`'s are full.
    uint64_t widths;
    // How many workers' payloads are averaged, which decides between methods where they mix: the squared errors of EDEN and of QSGD with
    // stochastic rounding, which are independent from worker to worker, are divided by it. 0, the default, for 1, in a
    // controller for its world size.
    uint32_t workers;
    // The type in which values that are summed on the wire travel: uncompressed ones, PowerSGD's factors, and those at shared
    // positions. LGRECO_DTYPE_F32, the default, or LGRECO_DTYPE_BF16, of half the size, which are summed by
    // LGRECO_REQUEST_ALL_REDUCE_SUM_BF16.
    lgreco_dtype reduce_dtype;
} lgreco_search_options;

// A compressor with its parameters, as text: {"qsgd 4"}, {"topk 786"} or {"powersgd 4 iterations 2"}, as in table and
// plan files. README.md has the words. Calls that take one setting take its text alone. This struct never changes.
//
// Calls that read a setting fail with LGRECO_SETTING_WORD for a word that is unknown there. They fail with
// LGRECO_SETTING_SYNTAX where another word or a number is expected, also on an empty text. The message names the word.
// LGRECO_PARAMETER is for a number out of range, LGRECO_TEXT for text that is not UTF-8 or has no NUL among its first
// LGRECO_SETTING_TEXT_BYTES bytes.
typedef struct lgreco_setting {
    // With a NUL after it. The library fills what is left with NULs.
    char text[LGRECO_SETTING_TEXT_BYTES];
} lgreco_setting;

// One option of one layer. This struct never changes.
typedef struct lgreco_choice {
    // Bits one worker sends for the layer under this option.
    uint64_t size;
    // How much the option hurts: finite, not negative, in any one metric.
    double error;
} lgreco_choice;

// An error table in arrays: the caller's own, or what is in a table handle. Begin with LGRECO_TABLE_VIEW_INIT, all NULL.
typedef struct lgreco_table_view {
    // Set by the INIT macro.
    size_t struct_size;
    // Number of layers, at least 1.
    size_t layers;
    // Per layer, where its options end in `choices`: layer l has ends[l - 1] .. ends[l], layer 0 begins at 0.
    const size_t *ends;
    // All options, layer after layer.
    const struct lgreco_choice *choices;
    // Per layer, the option of the uniform setting, whose size or error a limit may be; may be NULL.
    const uint32_t *defaults;
    // The table's own error budget; NULL for none.
    const double *budget;
    // Per layer, its name, UTF-8; NULL for names like "0", "1".
    const char *const *names;
    // Per option, its label, UTF-8; NULL for labels like "0", "1".
    const char *const *labels;
    // Per layer, the number of elements of its gradient; NULL for 0.
    const uint64_t *elements;
    // Per layer, the bits of its gradient as it is; NULL for 32 per element.
    const uint64_t *uncompressed_sizes;
    // What errors are measured in, such as "l2"; NULL for "".
    const char *metric;
    // Filled by the library for measured tables: which of the model's layers each layer of the table is; else NULL.
    const size_t *model_layers;
    // Per layer, the name of its group, UTF-8, or NULL: plans give all layers of a group options of one label (tied weights,
    // fused projections). NULL for no groups.
    const char *const *groups;
    // Per layer, the option that every plan has, or LGRECO_NO_OPTION. NULL for none.
    const uint32_t *fixed;
} lgreco_table_view;

// How to choose: LGRECO_SOLVER_...
typedef uint32_t lgreco_solver;

// What a plan keeps within: LGRECO_LIMIT_...
typedef uint32_t lgreco_limit;

// How to plan. Begin with LGRECO_PLAN_OPTIONS_INIT.
typedef struct lgreco_plan_options {
    // Set by the INIT macro.
    size_t struct_size;
    // LGRECO_SOLVER_EXACT, the default, or LGRECO_SOLVER_DP.
    lgreco_solver solver;
    // DP: cells of the grid, at least 1; 10000 by default.
    uint32_t levels;
    // Exact: partial plans kept at once, 32 bytes each; 2^19 by default; with 0 the relaxation is rounded.
    uint64_t states;
    // The error budget, or the size of the defaults, is multiplied by this, finite and not negative; 1 by default.
    double alpha;
    // LGRECO_LIMIT_DEFAULT by default.
    lgreco_limit limit;
    // LGRECO_LIMIT_SIZE: the most bits, or, of a controller that plans in seconds, picoseconds. Otherwise not read.
    uint64_t size_limit;
} lgreco_plan_options;

// A plan in arrays: what is in a plan handle, or the caller's own. Begin with LGRECO_PLAN_VIEW_INIT.
typedef struct lgreco_plan_view {
    // Set by the INIT macro.
    size_t struct_size;
    // Number of layers.
    size_t layers;
    // Per layer, the index of the chosen option among the layer's options.
    const uint32_t *options;
    // Bits of the chosen options in all.
    uint64_t size;
    // LGRECO_LIMIT_ERROR: no plan within the budget is smaller than this many bits; the plan is proved optimal when `size`
    // equals it. Otherwise 0.
    uint64_t lower_bound;
    // Error of the chosen options in all.
    double error;
    // LGRECO_LIMIT_ERROR: the error budget the plan was made for. Otherwise 0.
    double budget;
    // Who made it, such as "exact"; filled by the library, not read.
    const char *solver;
    // 1 when the plan is proved optimal, else 0; filled by the library, not read.
    uint32_t proven;
    // What the plan was made for: LGRECO_LIMIT_ERROR or LGRECO_LIMIT_SIZE.
    lgreco_limit limit;
    // LGRECO_LIMIT_SIZE: the most bits that the plan may have. Otherwise 0.
    uint64_t size_limit;
    // LGRECO_LIMIT_SIZE: no plan within the size limit has less error than this; the plan is proved optimal when `error` is
    // within 2^-40 of it, which is how finely the solver tells errors apart. Otherwise 0.
    double error_lower_bound;
} lgreco_plan_view;

// What a compressor remembers between steps: LGRECO_FEEDBACK_...
typedef uint32_t lgreco_feedback;

// What a residual is kept in: LGRECO_STORAGE_...
typedef uint32_t lgreco_storage;

// Whose compressor it is, and what it remembers. Begin with LGRECO_COMPRESSOR_OPTIONS_INIT.
typedef struct lgreco_compressor_options {
    // Set by the INIT macro.
    size_t struct_size;
    // Seed of the run, the same on every rank; 0 by default.
    uint64_t seed;
    // Index of the layer in the model; with `seed` it names PowerSGD's start matrix; 0 by default.
    uint32_t layer_index;
    // Number of this worker. Workers must differ here, or their rounding errors do not average out; 0 by default.
    uint32_t rank;
    // LGRECO_FEEDBACK_NONE by default.
    lgreco_feedback feedback;
    // Residuals: how much of an error is remembered, in (0, 1]; 1 by default.
    float gain;
    // Residuals: zeroed after every so many steps; 0, the default, for never.
    uint32_t reset_every;
    // Residuals: LGRECO_STORAGE_F32 by default.
    lgreco_storage storage;
} lgreco_compressor_options;

// A collective that the caller is to perform: LGRECO_REQUEST_...
typedef uint32_t lgreco_request_kind;

// A collective to perform, blocking or not, on memory of the library's. Begin with LGRECO_REQUEST_INIT.
//
// Fields that the kind does not speak of are 0 or NULL. Pointers are valid until the next call on the bucket, or for
// lgreco_controller_control on the controller, which comes once the collective is done. All workers are asked for the
// same ones with the same lengths, and must start those of different buckets in the same order. Later versions may
// ask for other kinds, only where a new option asks for it.
typedef struct lgreco_request {
    // Set by the INIT macro.
    size_t struct_size;
    // LGRECO_REQUEST_...
    lgreco_request_kind kind;
    // Whose memory the pointers but `lens`, `send_lens` and `received_lens` are to: LGRECO_DEVICE_CPU; of
    // lgreco_cuda_bucket_next LGRECO_DEVICE_CUDA.
    lgreco_device memory;
    // The worker whose bytes all others get.
    uint32_t root;
    // What is replaced or filled; aligned for f32 where it holds them.
    void *buffer;
    // Number of f32 or bf16.
    size_t count;
    // Bytes; of one worker where they are gathered.
    size_t length;
    // Bytes of each worker; of sums that are scattered number of values.
    const uint64_t *lens;
    // What to send, by receiver.
    const uint8_t *send;
    // Bytes for each worker.
    const uint64_t *send_lens;
    // What comes, by sender.
    uint8_t *received;
    // Bytes from each worker.
    const uint64_t *received_lens;
} lgreco_request;

// Performs one collective, which blocks.
typedef int32_t (*lgreco_perform)(void *user, const struct lgreco_request *request);

// The network: blocking collective calls of one worker in a group, which the embedder supplies over NCCL, MPI, Gloo or
// sockets. Begin with LGRECO_COLLECTIVE_INIT.
typedef struct lgreco_collective {
    // Set by the INIT macro.
    size_t struct_size;
    // This worker's number, below `world_size`.
    uint32_t rank;
    // Number of workers, at least 1; 1 by default.
    uint32_t world_size;
    // Given to `perform`.
    void *user;
    // Performs what a lgreco_request describes and returns 0, or an error code of the embedder's: the call that made it then
    // fails with LGRECO_COLLECTIVE. All workers are asked for the same collectives in the same order with the same lengths. A
    // worker that cannot go on must make the others' collectives fail rather than wait for ever.
    //
    // It is called in the calling thread, during the call; the request and its memory are valid until it returns. It must not
    // throw, nor use the handle of the call (LGRECO_BUSY).
    //
    // Every network needs LGRECO_REQUEST_ALL_REDUCE_SUM, ALL_GATHER and BROADCAST. The other kinds are asked for by options that
    // say so; without them it returns LGRECO_COLLECTIVE_UNSUPPORTED. LGRECO_REQUEST_REDUCE_SCATTER_SUM may be performed as
    // an all-reduce of all `count` values, at about twice the traffic.
    lgreco_perform perform;
} lgreco_collective;

// Who decides how hard each layer is compressed: LGRECO_POLICY_...
typedef uint32_t lgreco_policy;

// What happens to a step in which some rank's gradient holds NaN or infinity: LGRECO_NON_FINITE_STEP_...
typedef uint32_t lgreco_non_finite_step;

// How payloads that cannot be summed on the wire travel: LGRECO_ROUTE_...
typedef uint32_t lgreco_route;

// What sizes are: LGRECO_OBJECTIVE_...
typedef uint32_t lgreco_objective;

// What a controller is told once, the same on every rank. Begin with LGRECO_CONTROLLER_OPTIONS_INIT.
typedef struct lgreco_controller_options {
    // Set by the INIT macro.
    size_t struct_size;
    // What is offered to the layers; its seed is that of all random bits; NULL for the defaults. Not kept.
    const struct lgreco_search_options *search;
    // Solver, its limits, and what plans keep within; NULL for the defaults. Not kept.
    const struct lgreco_plan_options *plan;
    // LGRECO_POLICY_FIXED: one setting per layer. Not kept.
    const struct lgreco_setting *fixed;
    // LGRECO_POLICY_K_MEANS: at least 1; 6 by default.
    size_t clusters;
    // Accordion: the parameter (bits, density or rank) of critical layers; 0 for none, the default.
    double accordion_low;
    // Accordion: the parameter of the others, below `accordion_low`.
    double accordion_high;
    // Accordion: relative change of a gradient's norm from which on a layer is critical; 0.5 by default.
    double accordion_eta;
    // Accordion: factor by which the learning rate must fall to make all layers critical; 1.5 by default.
    double accordion_drop;
    // Steps before the first decision, uncompressed; at least 2; 100 by default.
    uint64_t warmup;
    // Steps from one decision to the next, at least 1; 1000 by default.
    uint64_t period;
    // A decision sees the mean gradient of so many steps before it, at least 1; 10 by default.
    uint64_t window;
    // Steps from the last gradient that a decision sees to the first step under it, fewer than `warmup` and `period`, in
    // which another thread may plan (lgreco_controller_take_plan_task); 0 by default.
    uint64_t lead;
    // LGRECO_POLICY_...; LGRECO_POLICY_L_GRECO by default.
    lgreco_policy policy;
    // LGRECO_FEEDBACK_RESIDUAL, the default: error feedback for all lossy compressors but QSGD and EDEN, with the fields `loco_...`
    // for LoCo and `gain`, `reset_every`, `storage` for the others; LGRECO_FEEDBACK_NONE.
    lgreco_feedback feedback;
    // What residuals are kept in; LGRECO_STORAGE_F32 by default.
    lgreco_storage storage;
    // How much of an error is remembered, in (0, 1]; 1 by default.
    float gain;
    // Residuals are zeroed after every so many steps; 0, the default, for never.
    uint32_t reset_every;
    // LoCo: as `storage`; LGRECO_STORAGE_INT8 by default.
    lgreco_storage loco_storage;
    // LoCo: as `gain`; 0.2 by default.
    float loco_gain;
    // LoCo: as `reset_every`; 512 by default.
    uint32_t loco_reset_every;
    // LGRECO_NON_FINITE_STEP_ERROR by default.
    lgreco_non_finite_step non_finite;
    // LGRECO_ROUTE_ALL_GATHER by default.
    lgreco_route route;
    // The rank that measures and plans for all; 0 by default.
    uint32_t measuring_rank;
    // LGRECO_OBJECTIVE_BITS by default.
    lgreco_objective objective;
    // Layers are exchanged together until their uncompressed gradients exceed so many bytes; 4 MiB by default.
    size_t bucket_bytes;
    // Relative errors are measured every so many steps, 0 for never; 10 by default.
    uint64_t metrics_every;
    // LGRECO_ROUTE_SHARDED: where shards end, in elements, world_size of them per layer, one layer after the other. Of each
    // layer rank r has the elements from its number r - 1, or 0, to its number r, which may be none; the last is the number of
    // the layer's elements. Must be NULL, the default, for other routes. Not kept.
    const uint64_t *shards;
    // LGRECO_POLICY_LEGACY: the parameters (bits, densities or ranks), `legacy_classes` for each of `legacy_phases`, one phase
    // after the other. Not kept.
    const double *legacy_levels;
    // LGRECO_POLICY_LEGACY: `legacy_classes - 1` numbers of elements, ascending, from which on a layer is of the next class.
    // Not kept.
    const uint64_t *legacy_sizes;
    // LGRECO_POLICY_LEGACY: at least 1; 1 by default.
    size_t legacy_classes;
    // LGRECO_POLICY_LEGACY: at least 1; 1 by default.
    size_t legacy_phases;
    // LGRECO_POLICY_LEGACY: steps of training, at least 1, which the phases divide; 0 by default, which is refused.
    uint64_t legacy_steps;
    // Compression that begins mild: the search's default (bits, density or rank) after `warmup` steps, from where it comes to
    // its own by a like factor in like times; 0, the default, for its own at once. Only for policies that go by the default.
    double ramp_up_first;
    // With `ramp_up_first`: steps after `warmup` until the default is its own, at least 1; 0 by default.
    uint64_t ramp_up_steps;
    // 1: the residuals of the step before are kept, which takes their memory twice, so that lgreco_controller_roll_back and
    // lgreco_controller_abandon_step restore them. 0, the default: only where `non_finite` is not an error.
    uint32_t undo;
} lgreco_controller_options;

// What became of a step's gradients: LGRECO_OUTCOME_...
typedef uint32_t lgreco_outcome;

// What a step did; all but the seconds is the same on every rank. Begin with LGRECO_REPORT_INIT.
typedef struct lgreco_report {
    // Set by the INIT macro.
    size_t struct_size;
    // Its number, from 0.
    uint64_t step;
    // LGRECO_OUTCOME_...
    lgreco_outcome outcome;
    // 1 when it was the first under new settings, else 0.
    uint32_t switched;
    // Bytes of one worker's gradients.
    uint64_t bytes_in;
    // Bytes that one worker sent for them.
    uint64_t bytes_out;
    // Seconds for checking gradients and waiting for the others; at a decision for measuring, planning and switching too.
    double planning_seconds;
    // Seconds for compressing and exchanging.
    double exchange_seconds;
} lgreco_report;

// Why a layer is sent uncompressed: LGRECO_UNCOMPRESSED_...
typedef uint32_t lgreco_uncompressed;

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
    // LGRECO_UNCOMPRESSED_...
    lgreco_uncompressed uncompressed;
} lgreco_metrics;

// What made the settings change: LGRECO_CAUSE_...
typedef uint32_t lgreco_cause;

// The last decision; the same on every rank. Begin with LGRECO_DECISION_INIT.
typedef struct lgreco_decision {
    // Set by the INIT macro.
    size_t struct_size;
    // The first step under it.
    uint64_t step;
    // LGRECO_CAUSE_...
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
    // What the plan was made for: LGRECO_LIMIT_ERROR or LGRECO_LIMIT_SIZE.
    lgreco_limit limit;
    // LGRECO_OBJECTIVE_MEASURED_SECONDS: layers that are compressed. Otherwise 0.
    uint32_t compressed;
    // LGRECO_LIMIT_SIZE: the most that the plan may have, in the unit of `size`. Otherwise 0.
    uint64_t size_limit;
    // LGRECO_LIMIT_SIZE: no plan within the size limit has less error. Otherwise 0.
    double error_lower_bound;
    // LGRECO_OBJECTIVE_MEASURED_SECONDS; otherwise this and all below is 0. Seconds that a step's exchange has taken on the slowest
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

// How much of a controller is saved: LGRECO_SAVE_...
typedef uint32_t lgreco_save_contents;

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

// How one direction of a cut is compressed: LGRECO_CODEC_...
typedef uint32_t lgreco_codec;

// What one direction of a cut remembers: LGRECO_LINK_MEMORY_...
typedef uint32_t lgreco_link_memory;

// What AQ-SGD's rows are kept in: LGRECO_ROWS_...
typedef uint32_t lgreco_rows;

// Codec and memory of one direction of a cut. Begin with LGRECO_LINK_INIT; fields of other codecs and memories are not
// looked at.
typedef struct lgreco_link {
    // Set by the INIT macro.
    size_t struct_size;
    // LGRECO_CODEC_MIN_MAX by default.
    lgreco_codec codec;
    // Bits per value; 4 by default.
    uint32_t bits;
    // Min-max: so many consecutive values of a sample share a grid, 0 for the whole batch; 128 by default.
    uint32_t tile;
    // Symmetric: samples consist of so many channels, each with a scale of its own; 0, the default, for one per sample.
    uint32_t channels;
    // Symmetric: type of the scales; LGRECO_DTYPE_F32, the default, or BF16.
    lgreco_dtype scale;
    // TopK: values sent per sample; 1 by default.
    uint32_t keep;
    // Dense, TopK, shared indices: type of the values sent; LGRECO_DTYPE_F32 by default.
    lgreco_dtype values;
    // LGRECO_LINK_MEMORY_NONE by default.
    lgreco_link_memory memory;
    // Residuals: how much of an error is remembered, in (0, 1]; 1 by default.
    float gain;
    // Residuals: zeroed after every so many messages; 0, the default, for never.
    uint32_t reset_every;
    // Residuals: LGRECO_STORAGE_F32 by default.
    lgreco_storage storage;
    // AQ-SGD: samples remembered at most, at least 1; 1024 by default.
    uint32_t capacity;
    // AQ-SGD: LGRECO_ROWS_BF16 by default.
    lgreco_rows rows;
    // AQ-SGD, quantised rows: 2 to 8; 8 by default.
    uint32_t row_bits;
} lgreco_link;

// Everything about a cut that both ends must agree on. Begin with LGRECO_CUT_SETTING_INIT; `batch` and `features` must
// be set.
typedef struct lgreco_cut_setting {
    // Set by the INIT macro.
    size_t struct_size;
    // Activations; NULL for LGRECO_LINK_INIT. Not kept.
    const struct lgreco_link *forward;
    // Gradients, which need milder compression; NULL for LGRECO_LINK_INIT with 8 bits. Not kept.
    const struct lgreco_link *backward;
    // Which cut of the model; 0 by default.
    uint32_t cut;
    // Samples per message: in training with a memory by position exactly so many, else at most; at least 1.
    uint32_t batch;
    // Values per sample, at least 1.
    uint32_t features;
    // Micro-batches that may be on their way forward and back at a time, at least 1; 8 by default.
    uint32_t in_flight;
} lgreco_cut_setting;

// Whether a model trained with one setting of a cut may be run with another: LGRECO_COMPATIBILITY_...
typedef uint32_t lgreco_compatibility;

// Which end of a cut: LGRECO_END_...
typedef uint32_t lgreco_end;

// Calls on device memory, a sum of LGRECO_CUDA_...
typedef uint32_t lgreco_cuda_calls;

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

// What becomes of means where a rank has failed: LGRECO_ON_FAULT_...
typedef uint32_t lgreco_on_fault;

// What ranks have in common, and which one this is. Begin with LGRECO_CUDA_BUCKET_OPTIONS_INIT.
typedef struct lgreco_cuda_bucket_options {
    // Set by the INIT macro.
    size_t struct_size;
    // Seed of the run, the same on every rank; 0 by default.
    uint64_t seed;
    // Index of each layer in the model, with which random words are named; NULL, the default, for 0, 1, 2 and so on.
    const uint32_t *indices;
    // Number of workers; 1 by default.
    uint32_t world_size;
    // Number of this worker; 0 by default.
    uint32_t rank;
    // Number of the first step; 0 by default.
    uint32_t step;
    // How much of an error is remembered, in (0, 1]; 1 by default.
    float gain;
    // LGRECO_ON_FAULT_ZEROS by default.
    lgreco_on_fault on_fault;
    // Type in which uncompressed layers and PowerSGD's factors are summed: LGRECO_DTYPE_F32, the default, or BF16. What a worker's
    // own values lose by it is remembered.
    lgreco_dtype reduce_dtype;
} lgreco_cuda_bucket_options;

// What has become of a bucket's steps. Begin with LGRECO_CUDA_OUTCOME_INIT.
typedef struct lgreco_cuda_outcome {
    // Set by the INIT macro.
    size_t struct_size;
    // The number of the next step.
    uint32_t step;
    // Steps that failed so far: residuals stayed as they were, on all ranks, and means are what `on_fault` says; but where a mean
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

// Done.
#define LGRECO_OK 0

// An array or buffer has not the length the call needs.
#define LGRECO_LENGTH 1

// A parameter is outside its range.
#define LGRECO_PARAMETER 2

// A tensor with 2^32 rows, columns or elements, or more.
#define LGRECO_TOO_MANY_ELEMENTS 3

// A gradient holds NaN or infinity.
#define LGRECO_NON_FINITE 4

// A result does not fit the number format it is sent in.
#define LGRECO_OVERFLOW 5

// A word that names nothing.
#define LGRECO_UNKNOWN_NAME 6

// There is no memory for a workspace.
#define LGRECO_OUT_OF_MEMORY 7

// An element is too large for the format it is to be sent in.
#define LGRECO_ELEMENT_OVERFLOW 8

// A device failed or cannot do this.
#define LGRECO_DEVICE 9

// A word that no setting has there.
#define LGRECO_SETTING_WORD 10

// A text that is not a setting, although all words before the place at fault are known.
#define LGRECO_SETTING_SYNTAX 11

// A table without layers.
#define LGRECO_EMPTY_TABLE 20

// A layer without options.
#define LGRECO_EMPTY_LAYER 21

// An option's error is NaN, infinite or negative.
#define LGRECO_OPTION_ERROR 22

// The sizes of the largest options do not fit 64 bits in all.
#define LGRECO_SIZE_OVERFLOW 23

// A choice names an option its layer does not have.
#define LGRECO_NO_SUCH_OPTION 24

// A budget that is NaN, infinite or negative.
#define LGRECO_BUDGET 25

// No plan meets the budget.
#define LGRECO_INFEASIBLE 26

// A plan's choices cost more error than its budget.
#define LGRECO_OVER_BUDGET 27

// A plan's statement about itself does not hold.
#define LGRECO_PLAN_MISMATCH 28

// Two layers have one name.
#define LGRECO_DUPLICATE_NAME 29

// No plan is within the size limit.
#define LGRECO_SIZE_INFEASIBLE 30

// A plan's choices are larger than its size limit.
#define LGRECO_OVER_SIZE 31

// Layers of one group have no option left that all of them can have.
#define LGRECO_NO_SHARED_OPTION 32

// Layers of one group differ in their number of options, where these are matched by their index.
#define LGRECO_UNEQUAL_OPTIONS 33

// A plan's choice that the table's groups or fixed options rule out.
#define LGRECO_RULED_OUT 34

// Bytes that are not a payload of this version.
#define LGRECO_PAYLOAD_HEADER 40

// A payload whose body contradicts its header.
#define LGRECO_PAYLOAD_BODY 41

// A header field of a payload beyond what this version defines.
#define LGRECO_PAYLOAD_FIELD 42

// A method that is neither the library's own nor known to the program.
#define LGRECO_UNKNOWN_METHOD 43

// A compressor under which feedback may amplify errors.
#define LGRECO_NOT_CONTRACTIVE 60

// A feedback rule used where it does not work.
#define LGRECO_FEEDBACK_RULE 61

// Bytes that are not a saved state of this version.
#define LGRECO_SAVED_STATE 62

// A saved state or a sealed payload that is not as it was written: damaged or cut short.
#define LGRECO_CHECKSUM 63

// A collective callback failed.
#define LGRECO_COLLECTIVE 80

// Another worker could not take part.
#define LGRECO_PEER 81

// Workers want to exchange different things.
#define LGRECO_PEER_PLAN 82

// What another worker sent cannot be decoded.
#define LGRECO_PEER_MESSAGE 83

// What is handed to a controller is not the layer it was made for.
#define LGRECO_LAYER_MISMATCH 100

// A layer's gradient holds NaN or infinity.
#define LGRECO_NON_FINITE_GRADIENT 101

// A layer is in a bucket that is being exchanged.
#define LGRECO_IN_FLIGHT 102

// A call that does not fit where the step is: before it has begun, say, or twice.
#define LGRECO_STEP_ORDER 103

// Settings given to a controller whose policy is not LGRECO_POLICY_FIXED.
#define LGRECO_NOT_FIXED 104

// A message of a cut is not the one that comes next.
#define LGRECO_OUT_OF_STEP 120

// The two ends of a cut remember different things of a sample.
#define LGRECO_SAMPLE_OUT_OF_STEP 121

// A batch holds a sample twice.
#define LGRECO_DUPLICATE_SAMPLE 122

// More micro-batches on their way than a cut keeps tickets for.
#define LGRECO_TOO_MANY_IN_FLIGHT 123

// A ticket that no micro-batch in flight has.
#define LGRECO_NOT_IN_FLIGHT 124

// A call that has to wait for the end of the step.
#define LGRECO_MID_STEP 125

// A saved cut that was set otherwise.
#define LGRECO_OTHER_SETTING 126

// A pointer is NULL that must not be.
#define LGRECO_NULL_POINTER 200

// A pointer is not aligned for its type.
#define LGRECO_ALIGNMENT 201

// An output overlaps an input or another output.
#define LGRECO_OVERLAP 202

// A struct's struct_size is not that of this library: the INIT macro was not used, or the program was compiled with another
// header than the library's.
#define LGRECO_STRUCT_SIZE 203

// A number that should be one of a list of constants is none of them.
#define LGRECO_UNKNOWN_CONSTANT 204

// Text is not UTF-8, holds a NUL, or has none at its end.
#define LGRECO_TEXT 205

// Not JSON, or not the JSON expected there.
#define LGRECO_JSON 206

// A table or plan file of a version this library does not read.
#define LGRECO_JSON_VERSION 207

// Not a handle, one of another kind, or a copy of one that has been destroyed.
#define LGRECO_HANDLE 208

// The handle is in use by another call.
#define LGRECO_BUSY 209

// The device, or what is asked of it, does not exist.
#define LGRECO_UNAVAILABLE 210

// The table has no compressor setting for the option, as those that the library did not measure.
#define LGRECO_NO_SETTINGS 211

// The call is for the other end of a cut.
#define LGRECO_OTHER_END 212

// Devices of this kind were left out of this build of the library.
#define LGRECO_NOT_BUILT_IN 213

// A bug in the library. The handle it happened in can only be destroyed.
#define LGRECO_PANIC 255

// The CPU.
#define LGRECO_DEVICE_CPU 0

// An NVIDIA GPU through CUDA, in libraries built with the feature `cuda`. As LGRECO_DEVICE_WGPU, of values in host
// memory, but for PowerSGD with ranks above 1024 and QSGD with buckets that are no power of two from 64 to 4096, which are the
// CPU's; what works on values in the GPU's memory begins
// with lgreco_cuda_.
#define LGRECO_DEVICE_CUDA 1

// Any GPU through Vulkan, Metal or DirectX 12, in libraries built with the feature `wgpu`. Error rows and payloads of QSGD,
// TopK and PowerSGD are made there, of values in host memory; everything else is done on the CPU.
#define LGRECO_DEVICE_WGPU 2

// IEEE single precision.
#define LGRECO_DTYPE_F32 0

// IEEE half precision, by its bits.
#define LGRECO_DTYPE_F16 1

// bfloat16, by its bits.
#define LGRECO_DTYPE_BF16 2

// The L2 norm, as in the L-GreCo paper.
#define LGRECO_METRIC_L2 0

// The squared L2 norm, which adds up over layers.
#define LGRECO_METRIC_SQUARED_L2 1

// The proved optimum, or the best plan and an honest bound where `states` end the search.
#define LGRECO_SOLVER_EXACT 0

// Algorithm 1 of the L-GreCo paper on a grid of `levels` cells.
#define LGRECO_SOLVER_DP 1

// LGRECO_LIMIT_ERROR for a table that has a budget, LGRECO_LIMIT_DEFAULT_SIZE for another and for controllers.
#define LGRECO_LIMIT_DEFAULT 0

// An error, and the plan is as small as that allows: the table's budget or, without, the error of its defaults, times
// `alpha`.
#define LGRECO_LIMIT_ERROR 1

// A size, and the plan has as little error as that allows: `size_limit`.
#define LGRECO_LIMIT_SIZE 2

// The same, of the size of the table's defaults, times `alpha`.
#define LGRECO_LIMIT_DEFAULT_SIZE 3

// Nothing.
#define LGRECO_FEEDBACK_NONE 0

// Error feedback: what was not sent; `gain`, `reset_every`, `storage`.
#define LGRECO_FEEDBACK_RESIDUAL 1

// 4 bytes per element, exact.
#define LGRECO_STORAGE_F32 0

// 2 bytes per element, stochastically rounded.
#define LGRECO_STORAGE_BF16 1

// About 1 byte per element, stochastically rounded.
#define LGRECO_STORAGE_INT8 2

// None: there is nothing left to do.
#define LGRECO_REQUEST_NONE 0

// Replace the `count` f32 of `buffer` by their sums over the workers: the same bits on each, NaN stays NaN.
#define LGRECO_REQUEST_ALL_REDUCE_SUM 1

// Fill `buffer` with `length` bytes of every worker, in rank order: world_size * length in all. This worker's are in their
// place already: MPI_Allgather with MPI_IN_PLACE, ncclAllGather with sendbuff = recvbuff + rank * length.
#define LGRECO_REQUEST_ALL_GATHER 2

// As LGRECO_REQUEST_ALL_GATHER, with lens[i] bytes of worker i, which may be 0: MPI_Allgatherv with MPI_IN_PLACE. Only hard
// thresholds, SIDCo, AdaComp and LGRECO_ROUTE_SCATTER_REDUCE ask for it.
#define LGRECO_REQUEST_ALL_GATHER_EACH 3

// Replace the `length` bytes of `buffer` by those of worker `root`.
#define LGRECO_REQUEST_BROADCAST 4

// Send worker i the next send_lens[i] bytes of `send`, and receive the next received_lens[i] of `received` from it, i
// ascending. Only LGRECO_ROUTE_SCATTER_REDUCE and LGRECO_ROUTE_SHARDED ask for it.
#define LGRECO_REQUEST_ALL_TO_ALL 5

// Replace, of the `count` f32 of `buffer`, the next lens[i], i being this worker, by their sums over the workers; what becomes
// of the others does not matter. Only LGRECO_ROUTE_SHARDED asks for it.
#define LGRECO_REQUEST_REDUCE_SCATTER_SUM 6

// As LGRECO_REQUEST_ALL_REDUCE_SUM, of `count` bf16 (the upper halves of f32), rounded once or at every addition. Only
// `reduce_dtype` LGRECO_DTYPE_BF16 asks for it.
#define LGRECO_REQUEST_ALL_REDUCE_SUM_BF16 7

// As LGRECO_REQUEST_REDUCE_SCATTER_SUM, of `count` bf16; likewise.
#define LGRECO_REQUEST_REDUCE_SCATTER_SUM_BF16 8

// The best plan within the budget; with `accordion_low` set, Accordion's levels are where the budget comes from.
#define LGRECO_POLICY_L_GRECO 0

// Nothing is ever compressed.
#define LGRECO_POLICY_UNCOMPRESSED 1

// The search's default everywhere.
#define LGRECO_POLICY_UNIFORM 2

// The settings of `fixed`.
#define LGRECO_POLICY_FIXED 3

// CGX: layers in `clusters` by size and error, within the budget.
#define LGRECO_POLICY_K_MEANS 4

// Two levels, by Accordion's detector.
#define LGRECO_POLICY_ACCORDION 5

// LEGACY: by the size of a layer and the phase of training, which the fields `legacy_...` say.
#define LGRECO_POLICY_LEGACY 6

// The step fails on every rank before anything is exchanged, and may be repeated with other gradients.
#define LGRECO_NON_FINITE_STEP_ERROR 0

// The step is not to be applied: its outcome is LGRECO_OUTCOME_SKIPPED, gradients become zeros, and residuals stay. Of buckets in
// flight those with NaN or infinity become zeros; lgreco_controller_finish_step takes back what the others have done to residuals.
#define LGRECO_NON_FINITE_STEP_SKIP 1

// The step is exchanged uncompressed, NaN and infinity with it; residuals stay. Of buckets in flight those with NaN or infinity
// become NaN.
#define LGRECO_NON_FINITE_STEP_PASS_THROUGH 2

// Everybody gets everybody's payloads.
#define LGRECO_ROUTE_ALL_GATHER 0

// Each rank averages a part and compresses the mean again; asks for LGRECO_REQUEST_ALL_GATHER_EACH and ALL_TO_ALL.
#define LGRECO_ROUTE_SCATTER_REDUCE 1

// Each rank gets the means of its shards alone (FSDP, ZeRO), in their place in the gradients, whose other elements are then
// of no use; needs `shards`, and asks for LGRECO_REQUEST_ALL_TO_ALL and REDUCE_SCATTER_SUM. Payloads of hard thresholds, SIDCo and
// AdaComp are gathered whole, and decoded by every rank.
#define LGRECO_ROUTE_SHARDED 2

// Bits on the wire.
#define LGRECO_OBJECTIVE_BITS 0

// Seconds that the controller measures itself: what sending costs, and what compressing costs, on the slowest rank. Layers whose
// compression does not pay are sent uncompressed, and a network that changes is followed at the next decision or the one after.
// All ranks must say so.
#define LGRECO_OBJECTIVE_MEASURED_SECONDS 1

// They are the means of all workers' gradients, compressed as was decided.
#define LGRECO_OUTCOME_EXCHANGED 0

// Some rank's were not finite; they are zeros. Do not update the parameters. After buckets in flight: the gradients of other
// buckets are means that do not count, and residuals are what they were before the step.
#define LGRECO_OUTCOME_SKIPPED 1

// Some rank's were not finite; they are the plain means, not finite either. After buckets in flight: those of some bucket,
// which are NaN now.
#define LGRECO_OUTCOME_PASSED_THROUGH 2

// After buckets in flight: the exchange of some bucket has failed, on every rank, and its gradients are of no use.
#define LGRECO_OUTCOME_FAILED 3

// It is compressed.
#define LGRECO_UNCOMPRESSED_NOT 0

// Nothing has been decided yet, or the layer was not in the state loaded.
#define LGRECO_UNCOMPRESSED_WARM_UP 1

// It has one dimension or fewer, or too few elements.
#define LGRECO_UNCOMPRESSED_SMALL 2

// The setting would have saved no bytes.
#define LGRECO_UNCOMPRESSED_NO_SAVING 3

// It was chosen, by the plan or in `fixed`.
#define LGRECO_UNCOMPRESSED_CHOSEN 4

// Compressing it would take longer than sending it does.
#define LGRECO_UNCOMPRESSED_SLOWER 5

// Feedback would not work with what was chosen.
#define LGRECO_UNCOMPRESSED_NOT_CONTRACTIVE 6

// Nothing yet: there was no decision.
#define LGRECO_CAUSE_NONE 0

// The schedule.
#define LGRECO_CAUSE_SCHEDULE 1

// The learning rate fell, and Accordion put all layers to low compression.
#define LGRECO_CAUSE_LEARNING_RATE 2

// The caller gave a fixed policy other settings.
#define LGRECO_CAUSE_CALLER 3

// All of it: a run continues bit for bit.
#define LGRECO_SAVE_EVERYTHING 0

// Without the gradients that the next decision would be made by, an f32 per element of the model on the measuring rank:
// whoever continues collects new ones.
#define LGRECO_SAVE_WITHOUT_WINDOW 1

// The values as `values`.
#define LGRECO_CODEC_DENSE 0

// Codes from the smallest to the largest value: `bits` 1 to 8, `tile`.
#define LGRECO_CODEC_MIN_MAX 1

// Codes on a grid symmetric about zero: `bits` 2 to 8, `channels`, `scale`.
#define LGRECO_CODEC_SYMMETRIC 2

// The largest magnitudes of each sample: `keep`, `values`.
#define LGRECO_CODEC_TOPK 3

// Gradients where the forward TopK of the same micro-batch kept activations: `keep` as forward, `values`.
#define LGRECO_CODEC_SHARED_INDEX 4

// Codes after a random rotation of blocks of 4096 values (EDEN): `bits` 1 to 8.
#define LGRECO_CODEC_EDEN 5

// Nothing.
#define LGRECO_LINK_MEMORY_NONE 0

// Error feedback by position in the batch: `gain`, `reset_every`, `storage`.
#define LGRECO_LINK_MEMORY_RESIDUAL 1

// EF-mixed by position, for TopK: `gain`, `reset_every`, `storage`.
#define LGRECO_LINK_MEMORY_MIXED 2

// EF21 by position.
#define LGRECO_LINK_MEMORY_EF21 3

// AQ-SGD: what was last made of each sample, by its id; forward only: `capacity`, `rows`, `row_bits`.
#define LGRECO_LINK_MEMORY_SAMPLES 4

// 4 bytes per value.
#define LGRECO_ROWS_F32 0

// 2 bytes per value.
#define LGRECO_ROWS_BF16 1

// `row_bits` per value.
#define LGRECO_ROWS_QUANTISED 2

// The settings are the same.
#define LGRECO_COMPATIBILITY_SAME 0

// Evaluation gives the same numbers, training goes on differently.
#define LGRECO_COMPATIBILITY_TRAINS_DIFFERENTLY 1

// Evaluation is of another model than was trained.
#define LGRECO_COMPATIBILITY_EVALUATES_DIFFERENTLY 2

// The stage above: sends activations, receives gradients.
#define LGRECO_END_UPSTREAM 0

// The stage below: receives activations, sends gradients.
#define LGRECO_END_DOWNSTREAM 1

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

// Zeros.
#define LGRECO_ON_FAULT_ZEROS 0

// NaN, for a loss scaler to find.
#define LGRECO_ON_FAULT_NAN 1

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// The name of the constant, such as "LGRECO_INFEASIBLE"; of other numbers "unknown status". Static text.
const char *lgreco_status_name(lgreco_status status);

// Version of the library in use, as LGRECO_VERSION is of the header: major * 10000 + minor * 100 + patch.
uint32_t lgreco_version(void);

// Version of the library in use, as LGRECO_VERSION_STRING is of the header. Static text.
const char *lgreco_version_string(void);

// Makes a context. `options` may be NULL: the CPU.
//
// LGRECO_NOT_BUILT_IN when this build has no such devices, LGRECO_UNAVAILABLE when this machine has none, or none that
// can be used, LGRECO_DEVICE when its driver fails. What is missing, or failed, is written to the options' `message`.
lgreco_status lgreco_context_create(const struct lgreco_context_options *options,
                                    struct lgreco_context **context);

// Frees a context and sets the caller's pointer to NULL; NULL, or a pointer to NULL, does nothing.
lgreco_status lgreco_context_destroy(struct lgreco_context **context);

// What went wrong in the last failed call that was given the context; empty if none has failed. Valid until the next
// such call.
const char *lgreco_context_message(const struct lgreco_context *context);

// Measures every layer of a model on its gradient under every candidate: the error table to plan on, each option with
// its setting (lgreco_table_setting). Layers with one dimension or fewer, or few elements, are left out: `model_layers`
// of the view tells which are in. `options` may be NULL. Allocates.
//
// LGRECO_NON_FINITE, LGRECO_EMPTY_TABLE when no layer is left, LGRECO_DUPLICATE_NAME, LGRECO_PARAMETER; of `methods`
// LGRECO_UNKNOWN_NAME for a word that is no method, one that is there twice, or hybrid among others, LGRECO_TEXT.
lgreco_status lgreco_table_measure(struct lgreco_context *context,
                                   const struct lgreco_layer *layers,
                                   size_t layers_len,
                                   const struct lgreco_search_options *options,
                                   struct lgreco_table **table);

// Measures one layer under given settings: squared_errors[i] is the squared L2 norm of what compression by settings[i]
// does to the gradient (for stochastic rounding its expectation), sizes[i] the bits of its payload, also where the values
// decide them; `sizes` may be NULL, else it has `settings_len` places too. Settings next to each other that differ in the
// first number alone are measured together, for QSGD, TopK, CLT-k, PowerSGD and hard thresholds in about one pass, for
// quantised TopK in three. `seed` and `layer_index` name PowerSGD's start matrix, as in lgreco_compressor_options. Allocates.
//
// LGRECO_NON_FINITE, LGRECO_PARAMETER when a setting does not fit the layer.
lgreco_status lgreco_measure(struct lgreco_context *context,
                             const struct lgreco_layer *layer,
                             const struct lgreco_setting *settings,
                             size_t settings_len,
                             uint64_t seed,
                             uint32_t layer_index,
                             double *squared_errors,
                             uint64_t *sizes);

// Copies a table into a handle and checks it whole: names and labels too.
lgreco_status lgreco_table_create(struct lgreco_context *context,
                                  const struct lgreco_table_view *view,
                                  struct lgreco_table **table);

// Frees a table and sets the caller's pointer to NULL; NULL, or a pointer to NULL, does nothing.
lgreco_status lgreco_table_destroy(struct lgreco_table **table);

// Fills `view` with pointers into the table, valid until it is destroyed. `names`, `labels`, `elements`,
// `uncompressed_sizes` and `metric` are then never NULL.
lgreco_status lgreco_table_get(const struct lgreco_table *table, struct lgreco_table_view *view);

// Fills `setting` with the compressor behind an option of a table that was measured by the library, now or before it was
// written to a file.
//
// LGRECO_NO_SETTINGS for tables of other origin; LGRECO_NO_SUCH_OPTION; LGRECO_LENGTH when there
// is no such layer.
lgreco_status lgreco_table_setting(const struct lgreco_table *table,
                                   size_t layer,
                                   uint32_t option,
                                   struct lgreco_setting *setting);

// Reads a table file, `length` bytes of JSON as described by schemas/table.schema.json.
//
// LGRECO_JSON, LGRECO_JSON_VERSION, and the codes of lgreco_table_create and lgreco_setting; the message names layer, option and field.
lgreco_status lgreco_table_from_json(struct lgreco_context *context,
                                     const char *json,
                                     size_t length,
                                     struct lgreco_table **table);

// Writes the table as JSON with a NUL after it; `length`, which must not be NULL, receives the number of bytes before
// the NUL.
//
// LGRECO_LENGTH when `capacity` is not above that number: `length` is then set all the same, and `json` may be NULL.
// Allocates.
lgreco_status lgreco_table_to_json(const struct lgreco_table *table,
                                   char *json,
                                   size_t capacity,
                                   size_t *length);

// Chooses one option per layer: the fewest bits within the error budget, or the least error within the size limit, and never
// more than the defaults of the table have, where those are within it. It keeps the groups and fixed options of the table.
// `options` may be NULL. The same input gives the same plan.
//
// LGRECO_INFEASIBLE when no plan meets the budget: the message tells the smallest error; LGRECO_SIZE_INFEASIBLE when none
// meets the size limit: the message tells the smallest size; codes from 20 on about the table. Allocates its workspace.
lgreco_status lgreco_plan_solve(struct lgreco_context *context,
                                const struct lgreco_table_view *table,
                                const struct lgreco_plan_options *options,
                                struct lgreco_plan **plan);

// Verifies a plan against a table: one option per layer, size and error as stated, error within the stated budget or size
// within the stated limit, groups and fixed options kept. What is checked is decided in exact arithmetic; a lower bound is only compared with what it is a
// bound of.
//
// LGRECO_PLAN_MISMATCH, LGRECO_OVER_BUDGET, LGRECO_OVER_SIZE, LGRECO_NO_SUCH_OPTION, LGRECO_RULED_OUT, LGRECO_BUDGET,
// LGRECO_LENGTH.
lgreco_status lgreco_plan_check(struct lgreco_context *context,
                                const struct lgreco_table_view *table,
                                const struct lgreco_plan_view *plan);

// Fills `view` with the plan and a pointer to its choices, valid until the plan is destroyed.
lgreco_status lgreco_plan_get(const struct lgreco_plan *plan, struct lgreco_plan_view *view);

// Frees a plan and sets the caller's pointer to NULL; NULL, or a pointer to NULL, does nothing.
lgreco_status lgreco_plan_destroy(struct lgreco_plan **plan);

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
lgreco_status lgreco_plan_from_json(struct lgreco_context *context,
                                    const struct lgreco_table *table,
                                    const char *json,
                                    size_t length,
                                    struct lgreco_plan **plan);

// Makes the compressor of `layer`, whose `values` are not looked at. `setting` is text, such as "topk 786". `options` may
// be NULL. Allocates all that later calls work in.
//
// LGRECO_PARAMETER when the setting does not fit the layer; the codes of lgreco_setting; as lgreco_feedback_check when it
// does not suit the feedback.
lgreco_status lgreco_compressor_create(struct lgreco_context *context,
                                       const struct lgreco_layer *layer,
                                       const char *setting,
                                       const struct lgreco_compressor_options *options,
                                       struct lgreco_compressor **compressor);

// Whether the feedback of `options` may be kept under `setting` on `layer`, which lgreco_compressor_create asks too, without
// values. All methods go with it; QSGD does with 4 bits in buckets of up to 512.
//
// QSGD is unbiased and needs no feedback. With few bits or long buckets it adds more error than it is given, and what is
// remembered would grow until it overflows. The layer's `values` may be NULL: QSGD is then judged by heavy-tailed values, as
// when a compressor is made. Otherwise any method is judged by them, which must be finite: more than
// that may suit them, or less. With LGRECO_FEEDBACK_NONE nothing is asked of the values. Allocates.
//
// LGRECO_NOT_CONTRACTIVE, with the squared error in the context's message; LGRECO_PARAMETER, LGRECO_NON_FINITE.
lgreco_status lgreco_feedback_check(struct lgreco_context *context,
                                    const struct lgreco_layer *layer,
                                    const char *setting,
                                    const struct lgreco_compressor_options *options);

// Frees a compressor and sets the caller's pointer to NULL; NULL, or a pointer to NULL, does nothing.
lgreco_status lgreco_compressor_destroy(struct lgreco_compressor **compressor);

// What went wrong in the last failed call on the compressor, beginning with the layer's name; empty if none has failed.
// Valid until the next call on it.
const char *lgreco_compressor_message(const struct lgreco_compressor *compressor);

// Changes the setting between two steps, as when plans change; what is remembered stays. Allocates when the new setting
// needs a larger workspace than any before.
//
// As lgreco_compressor_create when it does not fit the layer or suit the feedback. The setting is then unchanged.
lgreco_status lgreco_compressor_set_setting(struct lgreco_compressor *compressor,
                                            const char *setting);

// Tells the most bytes that lgreco_compressor_encode writes under the present setting; exactly so many, unless the values
// decide the length of its payloads (AdaComp, hard thresholds, SIDCo).
lgreco_status lgreco_compressor_bound(struct lgreco_compressor *compressor,
                                      size_t *bytes);

// Compresses the layer's gradient of step `step`: `values` has the layer's type and number of elements. With feedback,
// what is remembered is added before, and what is left out is remembered. `length` receives the bytes written to
// `payload`. Does not allocate.
//
// LGRECO_NON_FINITE; LGRECO_LENGTH when the payload does not fit `capacity`, as it always does that of
// lgreco_compressor_bound; LGRECO_OVERFLOW, LGRECO_ELEMENT_OVERFLOW. The memory is then unchanged.
lgreco_status lgreco_compressor_encode(struct lgreco_compressor *compressor,
                                       uint32_t step,
                                       const void *values,
                                       uint8_t *payload,
                                       size_t capacity,
                                       size_t *length);

// Decodes any payload of this layer, whatever setting made it, into `values`, `values_len` = the layer's number of
// elements. Changes nothing; does not allocate.
//
// LGRECO_PAYLOAD_HEADER, LGRECO_PAYLOAD_FIELD, LGRECO_PAYLOAD_BODY, LGRECO_LENGTH on bytes that no encoder writes.
lgreco_status lgreco_compressor_decode(struct lgreco_compressor *compressor,
                                       const uint8_t *payload,
                                       size_t length,
                                       float *values,
                                       size_t values_len);

// Writes what the compressor remembers to `values`; `values_len` = the layer's number of
// elements.
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

// Writes a checksum of payload[0 .. length] to the LGRECO_SEAL_BYTES after it, for networks and files that may change bits
// unnoticed: most changes of a payload decode to other numbers. `sealed_length` receives the length of both. Does not
// allocate.
//
// LGRECO_LENGTH when `capacity` is less than that; nothing is written.
lgreco_status lgreco_payload_seal(struct lgreco_context *context,
                                  uint8_t *payload,
                                  size_t length,
                                  size_t capacity,
                                  size_t *sealed_length);

// Tells how many of the bytes that lgreco_payload_seal closed are the payload: those that lgreco_compressor_decode takes.
// Any bytes may be given. Does not allocate.
//
// LGRECO_CHECKSUM when a bit has changed or the end is missing; LGRECO_LENGTH when there are fewer than LGRECO_SEAL_BYTES.
lgreco_status lgreco_payload_unseal(struct lgreco_context *context,
                                    const uint8_t *sealed,
                                    size_t sealed_length,
                                    size_t *length);

// Makes a controller for a model of these layers, whose `values` are not looked at, at the collective's rank. All ranks
// must give the same layers and options; `options` may be NULL. No collective call is made.
//
// LGRECO_PARAMETER, LGRECO_LENGTH for what makes no sense in the options, LGRECO_DUPLICATE_NAME.
lgreco_status lgreco_controller_create(struct lgreco_context *context,
                                       const struct lgreco_collective *collective,
                                       const struct lgreco_layer *layers,
                                       size_t layers_len,
                                       const struct lgreco_controller_options *options,
                                       struct lgreco_controller **controller);

// Frees a controller and sets the caller's pointer to NULL; NULL, or a pointer to NULL, does nothing.
lgreco_status lgreco_controller_destroy(struct lgreco_controller **controller);

// What went wrong in the last failed call on the controller, with the layer's name if one is at fault; empty if none has
// failed. Valid until the next call on it.
const char *lgreco_controller_message(const struct lgreco_controller *controller);

// Takes a step, on every rank after every backward pass: gradients[l], of layer l's type and number of elements, becomes
// its mean over the workers. `learning_rate`, the same on all ranks, matters to Accordion alone. `report` may be NULL.
// Allocates at decisions only.
//
// Whatever fails on one rank fails on all, wrong pointers and lengths too: with its own code there, elsewhere with LGRECO_PEER,
// whose message tells rank and code. Only where the network cannot be used (`controller` or `collective` is wrong, or another call
// uses the controller: LGRECO_BUSY) nobody else is told. LGRECO_NON_FINITE_GRADIENT, LGRECO_PEER_PLAN when ranks differ in options
// or layers, of which the message names the first, LGRECO_PARAMETER, also when the collective's rank or number of workers is not
// that of the controller, LGRECO_STEP_ORDER while a step of lgreco_controller_begin_step is under way, and
// codes of planning come before anything has changed: the step may be repeated. LGRECO_OVERFLOW, LGRECO_ELEMENT_OVERFLOW
// and LGRECO_PEER_MESSAGE end the step without its gradients being of use; the next one works. After LGRECO_COLLECTIVE
// ranks may differ: load a saved state.
lgreco_status lgreco_controller_step(struct lgreco_controller *controller,
                                     const struct lgreco_collective *collective,
                                     void *const *gradients,
                                     size_t gradients_len,
                                     double learning_rate,
                                     struct lgreco_report *report);

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

// Ends the step, of which all buckets have been closed. Layers that were in none keep what is remembered of them.
// `report` may be NULL; its outcome is LGRECO_OUTCOME_FAILED when the exchange of some bucket has failed,
// LGRECO_OUTCOME_SKIPPED or LGRECO_OUTCOME_PASSED_THROUGH, by the option `non_finite`, when the gradients of some were not finite.
//
// LGRECO_IN_FLIGHT when a bucket has not been closed; LGRECO_STEP_ORDER when no step is under way, or its control
// requests are not done.
lgreco_status lgreco_controller_finish_step(struct lgreco_controller *controller,
                                            struct lgreco_report *report);

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
// are told, and lgreco_bucket_next fails on each. A trainer that has no gradients to give, because it has failed, submits NULL.
lgreco_status lgreco_bucket_submit(struct lgreco_bucket *bucket,
                                   void *const *gradients,
                                   size_t gradients_len);

// Goes on, once the collective asked for before is done, and tells the next one; LGRECO_REQUEST_NONE when the
// gradients are means. Does not allocate.
//
// What fails on one rank fails on all: with its own code there, elsewhere with LGRECO_PEER, whose message tells rank
// and code. Gradients of the bucket are then of no use, what is remembered of its layers is as it was, and other
// buckets are not concerned: LGRECO_NON_FINITE_GRADIENT, LGRECO_PEER_PLAN when ranks exchange different layers or
// under different options, LGRECO_OVERFLOW, LGRECO_ELEMENT_OVERFLOW, LGRECO_PEER_MESSAGE. Where the controller's
// options do not make gradients that are not finite an error, all of the bucket's become zeros (LGRECO_NON_FINITE_STEP_SKIP) or
// NaN, for a loss scaler to find, on every rank instead, and residuals stay. LGRECO_STEP_ORDER before lgreco_bucket_submit, and after a failure.
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

// What went wrong in the last failed call on the bucket, with the layer's name if one is at fault; empty if none has
// failed. Valid until the next call on it. Failures of lgreco_bucket_open and lgreco_bucket_close are the controller's
// (lgreco_controller_message).
const char *lgreco_bucket_message(const struct lgreco_bucket *bucket);

// Makes the work of the controller's next decision a handle: once, on the measuring rank, from the end of the step
// before the decision's `lead` (lgreco_controller_options) on; `task` receives NULL at other times, on other ranks, and
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

// What went wrong in the last failed call on the task, with the layer's name if one is at fault; empty if none has
// failed. Valid until the next call on it. Failures of lgreco_controller_take_plan_task and lgreco_controller_hand_in are
// the controller's (lgreco_controller_message).
const char *lgreco_plan_task_message(const struct lgreco_plan_task *task);

// Asks for a decision before the schedule's next, because the data or the network have changed: its window begins with the next
// step, and it is due `window + lead` steps later, or when it would have been if that is sooner. Tells that step in `due`,
// UINT64_MAX under policies that decide nothing any more. All ranks ask, between the same two steps: the next step fails with
// LGRECO_PEER_PLAN on every rank when some have not.
//
// LGRECO_STEP_ORDER while a step is under way.
lgreco_status lgreco_controller_replan(struct lgreco_controller *controller,
                                       uint64_t *due);

// Gives a controller of LGRECO_POLICY_FIXED other settings, one per layer. All ranks do, between the same two steps, and
// switch at the next one, or at the end of the warm-up if that comes later. What is remembered of the layers stays. The
// step fails with LGRECO_PEER_PLAN on every rank when ranks have given different settings. In buckets
// (lgreco_controller_control) a rank that has given none does not expect what the others ask it first, and hangs.
//
// LGRECO_NOT_FIXED under another policy; LGRECO_STEP_ORDER while a step is under way; LGRECO_LENGTH unless there are as
// many settings as layers, codes of settings that do not fit their layer. Nothing has changed then.
lgreco_status lgreco_controller_set_settings(struct lgreco_controller *controller,
                                             const struct lgreco_setting *settings,
                                             size_t settings_len);

// Fills `setting` with how layer `layer` was compressed at the last step. LGRECO_LAYER_MISMATCH when there is no such layer, as
// for the calls below.
lgreco_status lgreco_controller_setting(struct lgreco_controller *controller,
                                        size_t layer,
                                        struct lgreco_setting *setting);

// Fills `metrics` with what is known about layer `layer` on this rank; looks at all of its residual.
lgreco_status lgreco_controller_metrics(struct lgreco_controller *controller,
                                        size_t layer,
                                        struct lgreco_metrics *metrics);

// Writes the residual of layer `layer` on this rank to `values`, zeros without one; `values_len` = its number of elements.
// LGRECO_IN_FLIGHT while a bucket has the layer.
lgreco_status lgreco_controller_residual(struct lgreco_controller *controller,
                                         size_t layer,
                                         float *values,
                                         size_t values_len);

// Fills `decision` with the last decision; LGRECO_CAUSE_NONE before the first.
lgreco_status lgreco_controller_decision(struct lgreco_controller *controller,
                                         struct lgreco_decision *decision);

// Tells the number of steps taken, skipped ones included, and of those in which some rank's gradient was not finite.
lgreco_status lgreco_controller_steps(struct lgreco_controller *controller,
                                      uint64_t *steps,
                                      uint64_t *non_finite);

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

// Writes this rank's state, read_struct and the same on every machine: residuals, factors, settings, schedule, but not the
// options; `contents` is LGRECO_SAVE_... Every rank saves its own, between the same two steps. `length`, which must not be
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

// Writes a setting to bytes[0 .. LGRECO_CUT_SETTING_BYTES], read_struct and the same on every machine. Compression at a cut
// becomes part of the model: save this with it.
//
// LGRECO_LENGTH when `capacity` is less; codes of lgreco_cut_create for what makes no sense in the setting.
lgreco_status lgreco_cut_setting_to_bytes(struct lgreco_context *context,
                                          const struct lgreco_cut_setting *setting,
                                          uint8_t *bytes,
                                          size_t capacity);

// Fills `setting`, and `forward` and `backward`, to which the setting then points, with what lgreco_cut_setting_to_bytes
// wrote. Any bytes may be given.
//
// LGRECO_CHECKSUM for a setting that is damaged; LGRECO_LENGTH, LGRECO_SAVED_STATE for bytes that are no setting; codes of
// lgreco_cut_create.
lgreco_status lgreco_cut_setting_from_bytes(struct lgreco_context *context,
                                            const uint8_t *bytes,
                                            size_t length,
                                            struct lgreco_cut_setting *setting,
                                            struct lgreco_link *forward,
                                            struct lgreco_link *backward);

// Tells what running with `setting` means for a model trained with `trained`, and in `what`, unless it is NULL, the first
// field that differs: static text, such as "forward codec"; "" when none does.
lgreco_status lgreco_cut_setting_compare(struct lgreco_context *context,
                                         const struct lgreco_cut_setting *setting,
                                         const struct lgreco_cut_setting *trained,
                                         lgreco_compatibility *compatibility,
                                         const char **what);

// Makes an end without a past. Both ends need the same setting and generation; a run that resumes without saved ends
// takes a generation it has not used, so that an old end is noticed.
//
// LGRECO_PARAMETER, LGRECO_FEEDBACK_RULE for what makes no sense in the setting.
lgreco_status lgreco_cut_create(struct lgreco_context *context,
                                const struct lgreco_cut_setting *setting,
                                lgreco_end end,
                                uint32_t generation,
                                struct lgreco_cut **cut);

// Frees an end and sets the caller's pointer to NULL; NULL, or a pointer to NULL, does nothing.
lgreco_status lgreco_cut_destroy(struct lgreco_cut **cut);

// What went wrong in the last failed call on the end; empty if none has failed. Valid until the next call on it.
const char *lgreco_cut_message(const struct lgreco_cut *cut);

// Tells the most bytes of a message that this end writes.
lgreco_status lgreco_cut_bound(struct lgreco_cut *cut, size_t *bytes);

// Tells of how many samples a message for this end is, at most a batch: the values that it gets are as many times the
// features.
//
// LGRECO_PAYLOAD_HEADER, LGRECO_PAYLOAD_FIELD, LGRECO_LENGTH for bytes that are no message of the other end's;
// LGRECO_OUT_OF_STEP for those of another generation.
lgreco_status lgreco_cut_samples(struct lgreco_cut *cut,
                                 const uint8_t *message,
                                 size_t length,
                                 size_t *samples);

// Upstream: compresses the activations of a micro-batch, `samples` rows of the features, into `message`. `length`
// receives its bytes, `ticket` the number under which its gradients come back. `ids`, one per sample, name the samples to
// AQ-SGD (LGRECO_UNREMEMBERED: not this one); NULL otherwise. Allocates only while a memory of samples grows.
//
// LGRECO_NON_FINITE, LGRECO_OVERFLOW, LGRECO_ELEMENT_OVERFLOW, LGRECO_LENGTH, LGRECO_DUPLICATE_SAMPLE,
// LGRECO_TOO_MANY_IN_FLIGHT; LGRECO_OTHER_END downstream.
lgreco_status lgreco_cut_send_activations(struct lgreco_cut *cut,
                                          const void *values,
                                          lgreco_dtype dtype,
                                          size_t samples,
                                          const uint64_t *ids,
                                          uint8_t *message,
                                          size_t capacity,
                                          size_t *length,
                                          uint64_t *ticket);

// Upstream: writes the message of a micro-batch in flight once more, when it was lost or for another forward pass of the
// same step over the same values. Changes nothing.
//
// As lgreco_cut_send_activations; LGRECO_NOT_IN_FLIGHT; LGRECO_OUT_OF_STEP when the step has been committed since;
// LGRECO_FEEDBACK_RULE under a memory by position.
lgreco_status lgreco_cut_repeat_activations(struct lgreco_cut *cut,
                                            uint64_t ticket,
                                            const void *values,
                                            lgreco_dtype dtype,
                                            size_t samples,
                                            const uint64_t *ids,
                                            uint8_t *message,
                                            size_t capacity,
                                            size_t *length);

// Decompresses the other end's message into `values`, `values_len` = its samples times the features: downstream activations,
// upstream gradients. `ticket` receives the micro-batch's number, which the upstream end gives back.
//
// LGRECO_OUT_OF_STEP when it is not the next message, LGRECO_SAMPLE_OUT_OF_STEP when the ends remember different things;
// LGRECO_PAYLOAD_HEADER when it is another cut's or not for this end; LGRECO_TOO_MANY_IN_FLIGHT, LGRECO_NOT_IN_FLIGHT,
// LGRECO_PAYLOAD_BODY, LGRECO_LENGTH.
lgreco_status lgreco_cut_receive(struct lgreco_cut *cut,
                                 const uint8_t *message,
                                 size_t length,
                                 float *values,
                                 size_t values_len,
                                 uint64_t *ticket);

// Downstream: decompresses a message that lgreco_cut_repeat_activations wrote, or the first one again. Changes nothing.
//
// As lgreco_cut_receive; LGRECO_NOT_IN_FLIGHT; LGRECO_FEEDBACK_RULE under a memory by position.
lgreco_status lgreco_cut_receive_repeated(struct lgreco_cut *cut,
                                          const uint8_t *message,
                                          size_t length,
                                          float *values,
                                          size_t values_len);

// Downstream: compresses the gradients of a micro-batch, as many as its activations, into `message`, and gives its ticket
// back. The micro-batches' gradients may go back in any order.
//
// LGRECO_NOT_IN_FLIGHT, LGRECO_NON_FINITE, LGRECO_OVERFLOW, LGRECO_ELEMENT_OVERFLOW, LGRECO_LENGTH; LGRECO_OTHER_END
// upstream.
lgreco_status lgreco_cut_send_gradients(struct lgreco_cut *cut,
                                        uint64_t ticket,
                                        const void *values,
                                        lgreco_dtype dtype,
                                        size_t samples,
                                        uint8_t *message,
                                        size_t capacity,
                                        size_t *length);

// Upstream: writes a message of evaluation, by the forward codec without memory if `compressed` is not 0, else
// uncompressed. Changes nothing.
//
// As lgreco_cut_send_activations on values and buffers.
lgreco_status lgreco_cut_evaluate(struct lgreco_cut *cut,
                                  uint32_t compressed,
                                  const void *values,
                                  lgreco_dtype dtype,
                                  size_t samples,
                                  uint8_t *message,
                                  size_t capacity,
                                  size_t *length);

// Downstream: decompresses a message of evaluation. Changes nothing.
//
// As lgreco_cut_receive on messages and buffers.
lgreco_status lgreco_cut_receive_evaluation(struct lgreco_cut *cut,
                                            const uint8_t *message,
                                            size_t length,
                                            float *values,
                                            size_t values_len);

// Ends an optimiser step: what its messages made of the samples is remembered from now on. Both ends must commit between
// the same two activation messages.
//
// LGRECO_PARAMETER when no activations went through the cut in this step.
lgreco_status lgreco_cut_commit_step(struct lgreco_cut *cut);

// Gives back the ticket of a micro-batch whose gradients will never travel. The other end must do the same.
//
// LGRECO_NOT_IN_FLIGHT.
lgreco_status lgreco_cut_forget(struct lgreco_cut *cut, uint64_t ticket);

// AQ-SGD: writes what is remembered of a sample to `values`, `values_len` = the features, and 1 to `found`; when nothing is,
// `found` receives 0, and `values` are as they were.
//
// LGRECO_LENGTH when `values_len` is another.
lgreco_status lgreco_cut_remembered(struct lgreco_cut *cut,
                                    uint64_t sample,
                                    float *values,
                                    size_t values_len,
                                    uint32_t *found);

// AQ-SGD: writes the ids of all samples remembered to samples[0 .. length], least recently updated first; `length`, which
// must not be NULL, receives their number.
//
// LGRECO_LENGTH when `capacity` is less: `length` is then set all the same, and `samples` may be NULL.
lgreco_status lgreco_cut_remembered_samples(struct lgreco_cut *cut,
                                            uint64_t *samples,
                                            size_t capacity,
                                            size_t *length);

// Writes the whole end. Both ends must be saved after the same step. `length`, which must not be NULL, receives the number of
// bytes.
//
// LGRECO_MID_STEP while updates wait for lgreco_cut_commit_step or tickets are in flight; LGRECO_LENGTH when `capacity` is
// less: `length` is then set all the same, and `saved` may be NULL.
lgreco_status lgreco_cut_save(struct lgreco_cut *cut,
                              uint8_t *saved,
                              size_t capacity,
                              size_t *length);

// Makes the end that was saved, which continues bit for bit. Any bytes may be given.
//
// LGRECO_OTHER_SETTING when it was saved under another setting; LGRECO_CHECKSUM when it is damaged; LGRECO_SAVED_STATE and
// others for bytes that no such end writes.
lgreco_status lgreco_cut_restore(struct lgreco_context *context,
                                 const struct lgreco_cut_setting *setting,
                                 lgreco_end end,
                                 const uint8_t *saved,
                                 size_t length,
                                 struct lgreco_cut **cut);

// Makes a handle for device number `ordinal`, from 0, in its primary context (PyTorch's, and that of the CUDA
// runtime), on a stream of its own, which does not wait for the default stream.
//
// LGRECO_NOT_BUILT_IN without the feature `cuda`; LGRECO_UNAVAILABLE when the driver or the device is missing or
// too old, or no kernels come with the library for it: the context's message says which; LGRECO_DEVICE when the driver
// fails, also for want of memory for a context or a stream.
lgreco_status lgreco_cuda_create(struct lgreco_context *context,
                                 uint32_t ordinal,
                                 struct lgreco_cuda **cuda);

// Makes a handle for a stream, a cudaStream_t or CUstream, and its CUDA context, from any thread; of NULL, the default
// stream, the context is the one that is current on the calling thread. Both must outlive the handle. While the stream is
// being captured into a graph, calls are refused with LGRECO_DEVICE.
//
// As lgreco_cuda_create; LGRECO_UNAVAILABLE also for a default stream when no context is current.
lgreco_status lgreco_cuda_create_on_stream(struct lgreco_context *context,
                                           struct lgreco_cuda **cuda,
                                           void *stream);

// Done: waits for the stream, frees the handle with its memory and sets the caller's pointer to NULL; NULL, or a pointer
// to NULL, does nothing.
lgreco_status lgreco_cuda_destroy(struct lgreco_cuda **cuda);

// What went wrong in the last failed call on the handle, with the layer's name where it is that layer's fault; empty
// if none has failed. Valid until the next call on it.
const char *lgreco_cuda_message(const struct lgreco_cuda *cuda);

// Tells the bytes of device memory that the handle holds: what calls have worked in so far, and what was reserved.
lgreco_status lgreco_cuda_held_bytes(struct lgreco_cuda *cuda,
                                     uint64_t *bytes);

// Done: waits for all that is in the stream.
//
// LGRECO_DEVICE also when something enqueued before has failed.
lgreco_status lgreco_cuda_synchronize(struct lgreco_cuda *cuda);

// Done: whether all that lgreco_cuda_encode_to_device and lgreco_cuda_decode_on_device have enqueued since the last
// check could be done. Reads no gradient. The message names the first call that failed by its number, from 0, among all calls of both kinds
// that returned LGRECO_OK since the last check. Calls after it may have failed too, and are not told of: nothing of
// what came out of it or of them may be used. At least one check is due in 4096 such calls.
//
// LGRECO_NON_FINITE, LGRECO_OVERFLOW, LGRECO_ELEMENT_OVERFLOW, LGRECO_PAYLOAD_BODY; LGRECO_DEVICE where the
// driver fails: then no call is named and nothing is known of any.
lgreco_status lgreco_cuda_check(struct lgreco_cuda *cuda);

// Done: lgreco_table_measure for gradients in the device's memory: enqueues all layers, waits once, and only errors
// come back. `values` of layers are device pointers; those of layers that are left out of the table are not looked at.
// `options` may be NULL. Allocates, on the device too unless that was reserved.
//
// As lgreco_table_measure; LGRECO_UNAVAILABLE for PowerSGD with ranks above 1024 and for QSGD with buckets that are no power of
// two from 64 to 4096; LGRECO_OUT_OF_MEMORY, LGRECO_DEVICE, which name no layer.
lgreco_status lgreco_cuda_measure(struct lgreco_cuda *cuda,
                                  const struct lgreco_layer *layers,
                                  size_t layers_len,
                                  const struct lgreco_search_options *options,
                                  struct lgreco_table **table);

// Tells the bytes of device memory that lgreco_cuda_enqueue_rows takes for such layers, whose `values` are not looked at, under
// these options: to work in, and of results. The device is not asked.
//
// As lgreco_cuda_measure, but for the values.
lgreco_status lgreco_cuda_rows_bytes(struct lgreco_cuda *cuda,
                                     const struct lgreco_layer *layers,
                                     size_t layers_len,
                                     const struct lgreco_search_options *options,
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
                                       const struct lgreco_search_options *options,
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
                                    const struct lgreco_search_options *options,
                                    const void *copy,
                                    size_t copy_bytes,
                                    struct lgreco_table **table);

// Tells the bytes of device memory that `calls` work in on such layers, whose `values` are not looked at, under any
// setting that `options` offer them: what lgreco_cuda_held_bytes tells when a handle that held none has reserved them.
// The device is not asked.
//
// As lgreco_cuda_measure, but for the values; LGRECO_UNKNOWN_CONSTANT.
lgreco_status lgreco_cuda_workspace_bytes(struct lgreco_cuda *cuda,
                                          const struct lgreco_layer *layers,
                                          size_t layers_len,
                                          const struct lgreco_search_options *options,
                                          lgreco_cuda_calls calls,
                                          uint64_t *bytes);

// Done: allocates that memory, and compiles and loads the kernels, so that later `calls` for such layers, under any
// setting that `options` offer them, allocate nothing on the device and load nothing.
//
// As lgreco_cuda_workspace_bytes; LGRECO_OUT_OF_MEMORY, LGRECO_DEVICE.
lgreco_status lgreco_cuda_reserve(struct lgreco_cuda *cuda,
                                  const struct lgreco_layer *layers,
                                  size_t layers_len,
                                  const struct lgreco_search_options *options,
                                  lgreco_cuda_calls calls);

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

// Tells the bytes of device memory that a bucket of these layers works in: some 8 per element, and messages. `values` of
// layers are not looked at; `settings` are one per layer.
//
// LGRECO_UNAVAILABLE for settings that are not exchanged on devices, LGRECO_PARAMETER for layers of different types.
lgreco_status lgreco_cuda_bucket_bytes(struct lgreco_cuda *cuda,
                                       const struct lgreco_layer *layers,
                                       const struct lgreco_setting *settings,
                                       size_t layers_len,
                                       const struct lgreco_cuda_bucket_options *options,
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
                                        const struct lgreco_cuda_bucket_options *options,
                                        void *memory,
                                        uint64_t memory_bytes,
                                        struct lgreco_cuda_bucket **bucket);

// Frees a bucket and sets the caller's pointer to NULL; NULL, or a pointer to NULL, does nothing. Its memory may go when what was
// enqueued with it is done.
lgreco_status lgreco_cuda_bucket_destroy(struct lgreco_cuda_bucket **bucket);

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

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

// What struct_size is: the bytes of the struct and, above 16 bits, the number of this header.
#define LGRECO_SIZE_OF(type) ((size_t)LGRECO_HEADER_REVISION << 16 | sizeof(type))

// Structs as calls expect them: struct_size set, options at their defaults.
#define LGRECO_CUDA_BUCKET_OPTIONS_INIT                                                                                \
    {LGRECO_SIZE_OF(lgreco_cuda_bucket_options), 0, NULL, 1, 0, 0, 1, LGRECO_ON_FAULT_ZEROS, LGRECO_DTYPE_F32}
#define LGRECO_CUDA_OUTCOME_INIT {LGRECO_SIZE_OF(lgreco_cuda_outcome), 0, 0, LGRECO_NO_RANK, LGRECO_OK, 0, 0, 0}
#define LGRECO_CONTEXT_OPTIONS_INIT {LGRECO_SIZE_OF(lgreco_context_options), LGRECO_DEVICE_CPU, 0, NULL, 0}
#define LGRECO_LAYER_INIT {LGRECO_SIZE_OF(lgreco_layer), NULL, NULL, 0, NULL, LGRECO_DTYPE_F32}
#define LGRECO_SEARCH_OPTIONS_INIT                                                                                     \
    {LGRECO_SIZE_OF(lgreco_search_options), NULL, LGRECO_METRIC_SQUARED_L2, 0, 0, 0, 0, 1024, 0, 0, 0, \
     LGRECO_DTYPE_F32}
// As the L-GreCo paper plans: l2 errors, as few bits as possible for the error of the default settings, Algorithm 1.
#define LGRECO_SEARCH_OPTIONS_PAPER                                                                                    \
    {LGRECO_SIZE_OF(lgreco_search_options), NULL, LGRECO_METRIC_L2, 0, 0, 0, 0, 1024, 0, 0, 0, LGRECO_DTYPE_F32}
#define LGRECO_PLAN_OPTIONS_PAPER {LGRECO_SIZE_OF(lgreco_plan_options), LGRECO_SOLVER_DP, 10000, 1 << 19, 1, LGRECO_LIMIT_ERROR, 0}
#define LGRECO_TABLE_VIEW_INIT                                                                                         \
    {LGRECO_SIZE_OF(lgreco_table_view), 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL}
#define LGRECO_PLAN_OPTIONS_INIT {LGRECO_SIZE_OF(lgreco_plan_options), LGRECO_SOLVER_EXACT, 10000, 1 << 19, 1, LGRECO_LIMIT_DEFAULT, 0}
#define LGRECO_PLAN_VIEW_INIT {LGRECO_SIZE_OF(lgreco_plan_view), 0, NULL, 0, 0, 0, 0, NULL, 0, LGRECO_LIMIT_ERROR, 0, 0}
#define LGRECO_COMPRESSOR_OPTIONS_INIT                                                                                 \
    {LGRECO_SIZE_OF(lgreco_compressor_options), 0, 0, 0, LGRECO_FEEDBACK_NONE, 1, 0, LGRECO_STORAGE_F32}
#define LGRECO_COLLECTIVE_INIT {LGRECO_SIZE_OF(lgreco_collective), 0, 1, NULL, NULL}
#define LGRECO_CONTROLLER_OPTIONS_INIT                                                                                 \
    {LGRECO_SIZE_OF(lgreco_controller_options), NULL, NULL, NULL, 6, 0, 0, 0.5, 1.5, 100, 1000, 10, 0, LGRECO_POLICY_L_GRECO,  \
     LGRECO_FEEDBACK_RESIDUAL, LGRECO_STORAGE_F32, 1, 0, LGRECO_STORAGE_INT8, 0.2f, 512, LGRECO_NON_FINITE_STEP_ERROR,  \
     LGRECO_ROUTE_ALL_GATHER, 0, LGRECO_OBJECTIVE_BITS, 4 << 20, 10, NULL, NULL, NULL, 1, 1, 0, 0, 0, 0}
#define LGRECO_REPORT_INIT {LGRECO_SIZE_OF(lgreco_report), 0, LGRECO_OUTCOME_EXCHANGED, 0, 0, 0, 0, 0}
#define LGRECO_MEMORY_USE_INIT {LGRECO_SIZE_OF(lgreco_memory_use), 0, 0, 0, 0, 0}
#define LGRECO_REQUEST_INIT                                                                                            \
    {LGRECO_SIZE_OF(lgreco_request), LGRECO_REQUEST_NONE, LGRECO_DEVICE_CPU, 0, NULL, 0, 0, NULL, NULL, NULL, NULL, NULL}
#define LGRECO_METRICS_INIT {LGRECO_SIZE_OF(lgreco_metrics), 0, 0, 0, -1, -1, -1, 0, LGRECO_UNCOMPRESSED_NOT}
#define LGRECO_DECISION_INIT                                                                                           \
    {LGRECO_SIZE_OF(lgreco_decision), 0, LGRECO_CAUSE_NONE, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,                                   \
     LGRECO_LIMIT_DEFAULT, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}
#define LGRECO_LINK_INIT                                                                                               \
    {LGRECO_SIZE_OF(lgreco_link), LGRECO_CODEC_MIN_MAX, 4, 128, 0, LGRECO_DTYPE_F32, 1, LGRECO_DTYPE_F32,                      \
     LGRECO_LINK_MEMORY_NONE, 1, 0, LGRECO_STORAGE_F32, 1024, LGRECO_ROWS_BF16, 8}
#define LGRECO_CUT_SETTING_INIT {LGRECO_SIZE_OF(lgreco_cut_setting), NULL, NULL, 0, 0, 0, 8}
#define LGRECO_LOADED_INIT {LGRECO_SIZE_OF(lgreco_loaded), NULL, 0, NULL, 0, NULL, 0, 0, 0, 0, 0}

#endif // LGRECO_H
