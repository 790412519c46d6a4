/*
 * lgreco: layer-wise adaptive gradient compression.
 *
 * This header is all that most programs need: measure a model's gradients, plan a compressor for each layer, and compress;
 * or leave all of that to a controller, which takes a whole training step in one call. Others build on it: lgreco_train.h
 * (files, saved states, buckets in flight, GPUs), lgreco_cuda.h (gradients in the memory of an NVIDIA GPU), and
 * lgreco_pipeline.h (activations between pipeline stages). A whole program:
 *
 *     #include <lgreco.h>
 *     #include <stdio.h>
 *     #include <stdlib.h>
 *
 *     static void check(lgreco_status status) {
 *         if (status == LGRECO_OK) return;
 *         fprintf(stderr, "%s: %s\n", lgreco_status_name(status), lgreco_message());
 *         exit(1);
 *     }
 *
 *     int main(void) {
 *         enum { LAYERS = 2, ROWS = 64, COLS = 96, ELEMENTS = ROWS * COLS };
 *         static float gradients[LAYERS][ELEMENTS], decoded[ELEMENTS];
 *         const char *const names[LAYERS] = {"fc1", "fc2"};
 *         const size_t dims[] = {ROWS, COLS};
 *         lgreco_layer layers[LAYERS];
 *         for (int l = 0; l < LAYERS; l++) {
 *             for (int i = 0; i < ELEMENTS; i++) gradients[l][i] = (float)(i * i % 251 - 125) / (float)(1 + l);
 *             layers[l] = (lgreco_layer)LGRECO_LAYER_INIT;
 *             layers[l].name = names[l];
 *             layers[l].dims = dims;
 *             layers[l].dims_len = 2;
 *             layers[l].values = gradients[l];
 *         }
 *
 *         // Measure what compression does to these gradients, and plan: the least error in the bytes of 4-bit QSGD.
 *         const char *const search[] = {"method", "qsgd,topk", "default", "4", NULL};
 *         lgreco_table *table = NULL;
 *         lgreco_table_view errors = LGRECO_TABLE_VIEW_INIT;
 *         lgreco_plan *plan = NULL;
 *         lgreco_plan_view chosen = LGRECO_PLAN_VIEW_INIT;
 *         check(lgreco_table_measure(NULL, layers, LAYERS, search, &table));
 *         check(lgreco_table_get(table, &errors));
 *         check(lgreco_plan_solve(&errors, NULL, &plan));
 *         check(lgreco_plan_get(plan, &chosen));
 *
 *         for (size_t l = 0; l < chosen.layers; l++) {
 *             lgreco_setting setting;
 *             lgreco_compressor *compressor = NULL;
 *             size_t bound = 0, length = 0;
 *             check(lgreco_table_setting(table, l, chosen.options[l], &setting));
 *             check(lgreco_compressor_create(NULL, &layers[l], setting.text, NULL, &compressor));
 *             check(lgreco_compressor_bound(compressor, &bound));
 *             uint8_t *payload = malloc(bound);
 *             check(lgreco_compressor_encode(compressor, 0, gradients[l], payload, bound, &length));
 *             // Here the payload travels to the other workers.
 *             check(lgreco_compressor_decode(compressor, payload, length, decoded, ELEMENTS));
 *             printf("%s: %s, %zu bytes instead of %zu\n", names[l], setting.text, length, sizeof decoded);
 *             free(payload);
 *             lgreco_compressor_destroy(&compressor);
 *         }
 *         lgreco_plan_destroy(&plan);
 *         lgreco_table_destroy(&table);
 *         return 0;
 *     }
 *
 * What holds for every call stands in lgreco-ffi/README.md. In short: a call returns a status, and its outputs count only after
 * LGRECO_OK. Handles are freed by their destroy call. Different handles may be used by different threads at the same time.
 * Options are an array of names and values, all of them text, with NULL at its end; NULL stands for the defaults. Structs begin
 * with their INIT macro. Lengths count elements.
 *
 * Made from headers/lgreco.h.in and the Rust source: LGRECO_BLESS=1 cargo test -p lgreco-ffi --test header
 */
#ifndef LGRECO_H
#define LGRECO_H

#include <stddef.h>
#include <stdint.h>

// The version of these headers; lgreco_version() is that of the library.
#define LGRECO_VERSION_MAJOR 0
#define LGRECO_VERSION_MINOR 1
#define LGRECO_VERSION_PATCH 0
#define LGRECO_VERSION "0.1.0"

// Number of the headers, which changes with every declaration in them. The INIT macros put it into their structs. The first
// call that is given a struct by a program that was compiled with other headers than the library's fails with
// LGRECO_STRUCT_SIZE.
#define LGRECO_HEADER_REVISION 5

// What struct_size is: the bytes of the struct and, above 16 bits, the number of the headers.
#define LGRECO_SIZE_OF(type) ((size_t)LGRECO_HEADER_REVISION << 16 | sizeof(type))

// A type of 32 bits with names for its values.
#ifdef __cplusplus
#define LGRECO_ENUM(name) enum name : uint32_t
extern "C" {
#else
#define LGRECO_ENUM(name) typedef uint32_t name; enum
#endif

// Version of the library in use, such as "0.1.0"; LGRECO_VERSION is that of the headers. Static text.
const char *lgreco_version(void);

// What has failed in this thread's last failed call; empty before the first.
//
// Such as "layer `fc1`: element 77 is NaN": it names layer, option, argument or file, what was found and what is expected. Text
// is UTF-8, for people; only status codes are stable. It belongs to the thread, and is valid until the thread's next call
// that fails. Calls that succeed leave it alone.
const char *lgreco_message(void);

// How a call ended: LGRECO_OK, or why it failed. Codes are permanent.
LGRECO_ENUM(lgreco_status) {
    LGRECO_OK = 0,  // Done.
    LGRECO_LENGTH = 1,  // An array or buffer has not the length the call needs.
    LGRECO_PARAMETER = 2,  // A parameter is outside its range.
    LGRECO_TOO_MANY_ELEMENTS = 3,  // A tensor with 2^32 rows, columns or elements, or more.
    LGRECO_NON_FINITE = 4,  // A gradient holds NaN or infinity.
    LGRECO_OVERFLOW = 5,  // A result does not fit the number format it is sent in.
    LGRECO_UNKNOWN_NAME = 6,  // A word that names nothing.
    LGRECO_OUT_OF_MEMORY = 7,  // There is no memory for a workspace.
    LGRECO_ELEMENT_OVERFLOW = 8,  // An element is too large for the format it is to be sent in.
    LGRECO_DEVICE = 9,  // A device failed or cannot do this.
    LGRECO_SETTING_WORD = 10,  // A word that no setting has there.
    LGRECO_SETTING_SYNTAX = 11,  // A text that is not a setting, although all words before the place at fault are known.
    LGRECO_EMPTY_TABLE = 20,  // A table without layers.
    LGRECO_EMPTY_LAYER = 21,  // A layer without options.
    LGRECO_OPTION_ERROR = 22,  // An option's error is NaN, infinite or negative.
    LGRECO_SIZE_OVERFLOW = 23,  // The sizes of the largest options do not fit 64 bits in all.
    LGRECO_NO_SUCH_OPTION = 24,  // A choice names an option its layer does not have.
    LGRECO_BUDGET = 25,  // A budget that is NaN, infinite or negative.
    LGRECO_INFEASIBLE = 26,  // No plan meets the budget.
    LGRECO_OVER_BUDGET = 27,  // A plan's choices cost more error than its budget.
    LGRECO_PLAN_MISMATCH = 28,  // A plan's statement about itself does not hold.
    LGRECO_DUPLICATE_NAME = 29,  // Two layers have one name.
    LGRECO_SIZE_INFEASIBLE = 30,  // No plan is within the size limit.
    LGRECO_OVER_SIZE = 31,  // A plan's choices are larger than its size limit.
    LGRECO_NO_SHARED_OPTION = 32,  // Layers of one group have no option left that all of them can have.
    // Layers of one group differ in their number of options, where these are matched by their index.
    LGRECO_UNEQUAL_OPTIONS = 33,
    LGRECO_RULED_OUT = 34,  // A plan's choice that the table's groups or fixed options rule out.
    LGRECO_PAYLOAD_HEADER = 40,  // Bytes that are not a payload of this version.
    LGRECO_PAYLOAD_BODY = 41,  // A payload whose body contradicts its header.
    LGRECO_PAYLOAD_FIELD = 42,  // A header field of a payload beyond what this version defines.
    LGRECO_UNKNOWN_METHOD = 43,  // A method that is neither the library's own nor known to the program.
    LGRECO_NOT_CONTRACTIVE = 60,  // A compressor under which feedback may amplify errors.
    LGRECO_FEEDBACK_RULE = 61,  // A feedback rule used where it does not work.
    LGRECO_SAVED_STATE = 62,  // Bytes that are not a saved state of this version.
    LGRECO_CHECKSUM = 63,  // A saved state or a sealed payload that is not as it was written: damaged or cut short.
    LGRECO_COLLECTIVE = 80,  // A collective callback failed.
    LGRECO_PEER = 81,  // Another worker could not take part.
    LGRECO_PEER_PLAN = 82,  // Workers want to exchange different things.
    LGRECO_PEER_MESSAGE = 83,  // What another worker sent cannot be decoded.
    LGRECO_LAYER_MISMATCH = 100,  // What is handed to a controller is not the layer it was made for.
    LGRECO_NON_FINITE_GRADIENT = 101,  // A layer's gradient holds NaN or infinity.
    LGRECO_IN_FLIGHT = 102,  // A layer is in a bucket that is being exchanged.
    LGRECO_STEP_ORDER = 103,  // A call that does not fit where the step is: before it has begun, say, or twice.
    LGRECO_NOT_FIXED = 104,  // Settings given to a controller that was made without.
    LGRECO_OUT_OF_STEP = 120,  // A message of a cut is not the one that comes next.
    LGRECO_SAMPLE_OUT_OF_STEP = 121,  // The two ends of a cut remember different things of a sample.
    LGRECO_DUPLICATE_SAMPLE = 122,  // A batch holds a sample twice.
    LGRECO_TOO_MANY_IN_FLIGHT = 123,  // More micro-batches on their way than a cut keeps tickets for.
    LGRECO_NOT_IN_FLIGHT = 124,  // A ticket that no micro-batch in flight has.
    LGRECO_MID_STEP = 125,  // A call that has to wait for the end of the step.
    LGRECO_OTHER_SETTING = 126,  // A saved cut that was set otherwise.
    LGRECO_NULL_POINTER = 200,  // A pointer is NULL that must not be.
    LGRECO_ALIGNMENT = 201,  // A pointer is not aligned for its type.
    LGRECO_OVERLAP = 202,  // An output overlaps an input or another output.
    // A struct's struct_size is not that of this library: the INIT macro was not used, or the program was compiled with another
    // header than the library's.
    LGRECO_STRUCT_SIZE = 203,
    LGRECO_UNKNOWN_CONSTANT = 204,  // A number that should be one of a list of constants is none of them.
    LGRECO_TEXT = 205,  // Text is not UTF-8, holds a NUL, or has none at its end.
    LGRECO_JSON = 206,  // Not JSON, or not the JSON expected there.
    LGRECO_JSON_VERSION = 207,  // A table or plan file of a version this library does not read.
    LGRECO_HANDLE = 208,  // Not a handle, one of another kind, or a copy of one that has been destroyed.
    LGRECO_BUSY = 209,  // The handle is in use by another call.
    LGRECO_UNAVAILABLE = 210,  // The device, or what is asked of it, does not exist.
    LGRECO_NO_SETTINGS = 211,  // The table has no compressor setting for the option, as those that the library did not measure.
    LGRECO_OTHER_END = 212,  // The call is for the other end of a cut.
    LGRECO_NOT_BUILT_IN = 213,  // Devices of this kind were left out of this build of the library.
    LGRECO_UNKNOWN_OPTION = 214,  // The name of an option that the call does not have, or one that is given twice.
    LGRECO_TRAINER = 215,  // The trainer of this rank has failed, as it has said by lgreco_bucket_submit_failure.
    LGRECO_PANIC = 255,  // A bug in the library. The handle it happened in can only be destroyed.
};

// The name of the constant, such as "LGRECO_INFEASIBLE"; of other numbers "unknown status". Static text.
const char *lgreco_status_name(lgreco_status status);

/* ---- 1. Layers, and what compression does to their gradients ---- */

// An element type.
LGRECO_ENUM(lgreco_dtype) {
    LGRECO_DTYPE_F32 = 0,  // IEEE single precision.
    LGRECO_DTYPE_F16 = 1,  // IEEE half precision, by its bits.
    LGRECO_DTYPE_BF16 = 2,  // bfloat16, by its bits.
};

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
#define LGRECO_LAYER_INIT {LGRECO_SIZE_OF(lgreco_layer), NULL, NULL, 0, NULL, LGRECO_DTYPE_F32}

// A device that measures and compresses (lgreco_context_create); NULL wherever one is asked for is the CPU. Any number of threads
// may use it, and what was made with it does not need it afterwards.
typedef struct lgreco_context lgreco_context;

// An error table with names, owned by the library. It never changes.
typedef struct lgreco_table lgreco_table;

// Measures every layer of a model on its gradient under every candidate setting. The result is the error table to plan on.
// Layers with one dimension or fewer, or few elements, are left out: `model_layers` of the view tells which are in.
// `context` may be NULL: the CPU. Allocates.
//
// LGRECO_NON_FINITE, LGRECO_EMPTY_TABLE when no layer is left, LGRECO_DUPLICATE_NAME; LGRECO_UNKNOWN_OPTION,
// LGRECO_UNKNOWN_NAME and LGRECO_PARAMETER for options.
lgreco_status lgreco_table_measure(const struct lgreco_context *context,
                                   const struct lgreco_layer *layers,
                                   size_t layers_len,
                                   const char *const *options,
                                   struct lgreco_table **table);
//
// Options:
//   method                the compressor: qsgd, topk, powersgd, eden, clt-k, sidco, hard-threshold, adacomp or loco. Of several
//                         with commas between each layer gets one, and the first says what is uniform. Default: hybrid, which
//                         is eden, topk and powersgd.
//   default               the first method's parameter in the uniform setting, from which budgets come: bits per element for
//                         qsgd (default 4) and eden (3); the density, above 0 and at most 1, for topk, clt-k and sidco (0.01);
//                         the rank for powersgd (4); the least magnitude for hard-threshold (0.01); elements per bin for
//                         adacomp (500), per group for loco (512).
//   candidates            the parameters to choose from: "first,last,step". Default: around `default`, as in the L-GreCo paper;
//                         eden has 1 to 8 bits.
//   widths                how topk may send the values that it keeps: full, or 1 to 8 bits each, with commas between. Default:
//                         full.
//   metric                what errors are measured in: squared-l2, the default, or l2, the paper's.
//   min_elements          layers with fewer elements stay uncompressed. Default: 1024.
//   workers               whose mean is taken. Errors of unbiased methods are divided by it, which decides between methods.
//                         Default: 1; in a controller its world size.
//   reduce_dtype          the type of values that are summed on the wire, of uncompressed layers and powersgd's factors:
//                         float32, the default, or bfloat16.
//   random_seed           the seed of all random bits, the same on every rank. Default: 0.

// One option of one layer. This struct never changes.
typedef struct lgreco_choice {
    // Bits one worker sends for the layer under this option.
    uint64_t size;
    // How much the option hurts: finite, not negative, in any one metric.
    double error;
} lgreco_choice;

// Of `fixed` in a table view: plans choose the layer's option.
#define LGRECO_NO_OPTION UINT32_MAX

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
#define LGRECO_TABLE_VIEW_INIT                                                                                         \
    {LGRECO_SIZE_OF(lgreco_table_view), 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL}

// Copies a table into a handle and checks it whole: names and labels too.
lgreco_status lgreco_table_create(const struct lgreco_table_view *view, struct lgreco_table **table);

// Fills `view` with pointers into the table, valid until it is destroyed. `names`, `labels`, `elements`,
// `uncompressed_sizes` and `metric` are then never NULL.
lgreco_status lgreco_table_get(const struct lgreco_table *table, struct lgreco_table_view *view);

// Bytes of a setting's text with the NUL after it. All that the library writes fit.
#define LGRECO_SETTING_TEXT_BYTES 64

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

// Fills `setting` with the compressor behind an option of a table that was measured by the library, now or before it was
// written to a file.
//
// LGRECO_NO_SETTINGS for tables of other origin; LGRECO_NO_SUCH_OPTION; LGRECO_LENGTH when there is no such layer.
lgreco_status lgreco_table_setting(const struct lgreco_table *table,
                                   size_t layer,
                                   uint32_t option,
                                   struct lgreco_setting *setting);

// Frees a table and sets the caller's pointer to NULL; NULL, or a pointer to NULL, does nothing.
lgreco_status lgreco_table_destroy(struct lgreco_table **table);

/* ---- 2. Plans: one option per layer ---- */

// One option per layer, verified. It never changes.
typedef struct lgreco_plan lgreco_plan;

// Chooses one option per layer: the fewest bits within the error budget, or the least error within the size limit, and never
// more than the uniform setting has, where that is within it. It keeps the groups and fixed options of the table. The same
// input gives the same plan. Allocates its workspace.
//
// LGRECO_INFEASIBLE when no plan meets the error budget: the message tells the smallest error; LGRECO_SIZE_INFEASIBLE when
// none meets the size limit: the message tells the smallest size; LGRECO_UNKNOWN_OPTION, LGRECO_PARAMETER for options; codes
// from 20 on about the table.
lgreco_status lgreco_plan_solve(const struct lgreco_table_view *table,
                                const char *const *options,
                                struct lgreco_plan **plan);
//
// Options:
//   solver                exact, the default: the proved optimum, or the best plan and an honest bound where `states` end the
//                         search; dp: Algorithm 1 of the L-GreCo paper; paper: the same, within the error of the uniform
//                         setting unless `budget` says otherwise.
//   levels                dp: cells of the grid, at least 1. Default: 10000.
//   states                exact: partial plans kept at once, 32 bytes each; with 0 the relaxation is rounded. Default: 524288.
//   budget                size: plans have at most the uniform setting's size, and the least error; error: at most its error,
//                         or that of the table's own budget, and the least size; or so many bits (of a controller with the
//                         objective seconds, seconds). Default: error for a table that has a budget, else size.
//   alpha                 the budget of `size` or `error` is multiplied by this. Default: 1.

// What a plan was made to keep within.
LGRECO_ENUM(lgreco_limit) {
    LGRECO_LIMIT_NONE = 0,  // Nothing: there is no plan.
    LGRECO_LIMIT_ERROR = 1,  // An error: no plan within it is smaller than `lower_bound`.
    LGRECO_LIMIT_SIZE = 2,  // A size: no plan within it has less error than `error_lower_bound`.
};

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
    // What the plan was made for.
    lgreco_limit limit;
    // LGRECO_LIMIT_SIZE: the most bits that the plan may have. Otherwise 0.
    uint64_t size_limit;
    // LGRECO_LIMIT_SIZE: no plan within the size limit has less error than this; the plan is proved optimal when `error` is
    // within 2^-40 of it, which is how finely the solver tells errors apart. Otherwise 0.
    double error_lower_bound;
} lgreco_plan_view;
#define LGRECO_PLAN_VIEW_INIT                                                                                          \
    {LGRECO_SIZE_OF(lgreco_plan_view), 0, NULL, 0, 0, 0, 0, NULL, 0, LGRECO_LIMIT_ERROR, 0, 0}

// Fills `view` with the plan and a pointer to its choices, valid until the plan is destroyed.
lgreco_status lgreco_plan_get(const struct lgreco_plan *plan, struct lgreco_plan_view *view);

// Frees a plan and sets the caller's pointer to NULL; NULL, or a pointer to NULL, does nothing.
lgreco_status lgreco_plan_destroy(struct lgreco_plan **plan);

/*
 * ---- 3. Compression by hand ----
 *
 * Every rank needs the settings of every layer: text, which is the same on every machine. Payloads are decoded one by one, and
 * what they decode to is summed, those of PowerSGD too. Payloads of AdaComp, hard thresholds and SIDCo are as long as the call
 * that writes them says; all others have one length under one setting, on every rank.
 */

// The compressor of one layer on one worker, with what it remembers and the memory it works in.
typedef struct lgreco_compressor lgreco_compressor;

// Makes the compressor of `layer`, whose `values` are not looked at. `setting` is text, such as "topk 786". `context` may be
// NULL: the CPU. Allocates all that later calls work in.
//
// LGRECO_PARAMETER when the setting does not fit the layer, LGRECO_NOT_CONTRACTIVE when it does not suit error feedback
// (lgreco_feedback_check); the codes of lgreco_setting; LGRECO_UNKNOWN_OPTION.
lgreco_status lgreco_compressor_create(const struct lgreco_context *context,
                                       const struct lgreco_layer *layer,
                                       const char *setting,
                                       const char *const *options,
                                       struct lgreco_compressor **compressor);
//
// Options:
//   random_seed           the seed of all random bits, the same on every rank. Default: 0.
//   layer_index           the layer's number in the model, from 0; with the seed it names powersgd's start matrix. Default: 0.
//   rank                  the worker's number. Workers must differ here, or their rounding errors do not average out. Default:
//                         0.
//   error_feedback        true: what is not sent is remembered, and added to the next gradient. Default: false.
//   residual_dtype        what is remembered is kept in float32, the default, bfloat16 or int8.
//   gain                  how much of an error is remembered, above 0, at most 1. Default: 1.
//   reset_every           what is remembered becomes zeros after every so many steps, with 0 never. Default: 0.

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

// Frees a compressor and sets the caller's pointer to NULL; NULL, or a pointer to NULL, does nothing.
lgreco_status lgreco_compressor_destroy(struct lgreco_compressor **compressor);

/*
 * ---- 4. A controller: a whole training step in one call ----
 *
 * It measures, plans, switches, compresses, exchanges, and remembers what was not sent. The trainer gives it the network as a
 * callback and its gradients as pointers, and gets their means. Exchanges that go on during the backward pass are in
 * lgreco_train.h.
 */

// Whose memory it is.
LGRECO_ENUM(lgreco_device) {
    LGRECO_DEVICE_CPU = 0,  // The host's.
    LGRECO_DEVICE_CUDA = 1,  // That of the NVIDIA GPU of a lgreco_cuda_bucket.
};

// The workers among whom a collective is performed.
LGRECO_ENUM(lgreco_group) {
    LGRECO_GROUP_ALL = 0,  // All workers.
    // Those of this worker's node, in the order of their ranks. Only lgreco_controller_create_on_nodes asks for it.
    LGRECO_GROUP_NODE = 1,
    // This worker's peers: those with its place in their nodes, one per node. Only lgreco_controller_create_on_nodes asks for it.
    LGRECO_GROUP_PEERS = 2,
};

// A collective that the caller is to perform.
LGRECO_ENUM(lgreco_request_kind) {
    LGRECO_REQUEST_NONE = 0,  // None: there is nothing left to do.
    // Replace the `count` f32 of `buffer` by their sums over the workers: the same bits on each, NaN stays NaN.
    LGRECO_REQUEST_ALL_REDUCE_SUM = 1,
    // Fill `buffer` with `length` bytes of every worker, in rank order: world_size * length in all. This worker's are in their
    // place already: MPI_Allgather with MPI_IN_PLACE, ncclAllGather with sendbuff = recvbuff + rank * length.
    LGRECO_REQUEST_ALL_GATHER = 2,
    // As LGRECO_REQUEST_ALL_GATHER, with lens[i] bytes of worker i, which may be 0: MPI_Allgatherv with MPI_IN_PLACE. Only hard
    // thresholds, SIDCo, AdaComp, the route scatter_reduce and nodes ask for it.
    LGRECO_REQUEST_ALL_GATHER_EACH = 3,
    LGRECO_REQUEST_BROADCAST = 4,  // Replace the `length` bytes of `buffer` by those of worker `root`.
    // Send worker i the next send_lens[i] bytes of `send`, and receive the next received_lens[i] of `received` from it, i
    // ascending. Only the route scatter_reduce and shards ask for it.
    LGRECO_REQUEST_ALL_TO_ALL = 5,
    // Replace, of the `count` f32 of `buffer`, the next lens[i], i being this worker, by their sums over the workers; what becomes
    // of the others does not matter. Only shards and nodes ask for it.
    LGRECO_REQUEST_REDUCE_SCATTER_SUM = 6,
    // As LGRECO_REQUEST_ALL_REDUCE_SUM, of `count` bf16 (the upper halves of f32), rounded once or at every addition. Only
    // the option `reduce_dtype` asks for it.
    LGRECO_REQUEST_ALL_REDUCE_SUM_BF16 = 7,
    LGRECO_REQUEST_REDUCE_SCATTER_SUM_BF16 = 8,  // As LGRECO_REQUEST_REDUCE_SCATTER_SUM, of `count` bf16; likewise.
};

// A collective to perform, blocking or not, on memory of the library's. Begin with LGRECO_REQUEST_INIT.
//
// Fields that the kind does not speak of are 0 or NULL. Pointers are valid until the next call on the bucket, or for
// lgreco_controller_control on the controller, which comes once the collective is done. All workers are asked for the
// same ones with the same lengths, and must start those of different buckets in the same order.
typedef struct lgreco_request {
    // Set by the INIT macro.
    size_t struct_size;
    // Which collective.
    lgreco_request_kind kind;
    // Whose memory the pointers but `lens`, `send_lens` and `received_lens` are to: LGRECO_DEVICE_CPU; of
    // lgreco_cuda_bucket_next LGRECO_DEVICE_CUDA.
    lgreco_device memory;
    // The worker whose bytes all others get.
    uint32_t root;
    // Among whom. All that is said of workers below is about those of the group, numbered from 0.
    lgreco_group group;
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
#define LGRECO_REQUEST_INIT                                                                                            \
    {LGRECO_SIZE_OF(lgreco_request), LGRECO_REQUEST_NONE, LGRECO_DEVICE_CPU, 0, LGRECO_GROUP_ALL, NULL, 0, 0, NULL, NULL, NULL, \
     NULL, NULL}

// What `perform` returns for a kind of collective that the embedder does not have.
#define LGRECO_COLLECTIVE_UNSUPPORTED INT32_MIN

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
#define LGRECO_COLLECTIVE_INIT {LGRECO_SIZE_OF(lgreco_collective), 0, 1, NULL, NULL}

// One worker's end of the training loop: decides when and how hard to compress each layer, compresses, exchanges,
// remembers.
typedef struct lgreco_controller lgreco_controller;

// Makes a controller for a model of these layers, whose `values` are not looked at, at the collective's rank. All ranks
// must give the same layers and options. `context` may be NULL: the CPU. `settings` may be NULL: the policy decides; else they
// are one per layer, and stay until lgreco_controller_set_settings. No collective call is made.
//
// LGRECO_UNKNOWN_OPTION, LGRECO_PARAMETER, LGRECO_LENGTH for what makes no sense in the options; the codes of lgreco_setting;
// LGRECO_DUPLICATE_NAME.
lgreco_status lgreco_controller_create(const struct lgreco_context *context,
                                       const struct lgreco_collective *collective,
                                       const struct lgreco_layer *layers,
                                       size_t layers_len,
                                       const struct lgreco_setting *settings,
                                       const char *const *options,
                                       struct lgreco_controller **controller);
//
// Options: those of lgreco_table_measure and lgreco_plan_solve (the default of `budget` is size), and
//   policy                who decides: lgreco, the default, plans within the budget; paper does as the L-GreCo paper (l2
//                         errors, at most those of the uniform setting, by the dynamic program); uniform: the uniform setting
//                         everywhere; uncompressed; kmeans: layers in `clusters` by size and error, as CGX; accordion: two
//                         levels, by how gradients' norms change; legacy: by the size of a layer and the phase of training.
//   objective             bits, the default; or seconds: what sending and what compressing costs on the slowest rank is
//                         measured while training, and layers whose compression does not pay are sent uncompressed.
//   start_iter            steps before the first decision, which are uncompressed; at least 2. Default: 100.
//   period                steps from one decision to the next, at least 1. Default: 1000.
//   window                a decision sees the mean gradient of so many steps before it, at least 1. Default: 10.
//   lead                  steps from the last gradient that a decision sees to the first step under it, in which another thread
//                         may plan (lgreco_controller_take_plan_task); fewer than start_iter and period. Default: 0.
//   ramp_up               compression that begins mild, "first,steps": `default` is `first` after start_iter steps, and comes
//                         to its own by a like factor in like times, in so many steps.
//   clusters              kmeans: the number of clusters, at least 1. Default: 6.
//   accordion             "low,high": the parameters of critical layers and of the others; then, unless they are 0.5 and 1.5,
//                         the relative change of a norm, and the factor by which the learning rate falls, that make layers
//                         critical. With the policy lgreco, budgets come from these levels.
//   legacy                "1000,100000; 8,6,4; 6,4,2; 900": ascending numbers of elements from which on a layer is of the next
//                         class (none: one class); for each phase the parameters of the classes; steps of training, which the
//                         phases divide.
//   error_feedback        whether what lossy methods but qsgd and eden do not send is remembered, and sent later. Default:
//                         true.
//   residual_dtype        what is remembered is kept in float32, the default, bfloat16 or int8.
//   gain                  how much of an error is remembered, above 0, at most 1. Default: 1.
//   reset_every           what is remembered becomes zeros after every so many steps, with 0 never. Default: 0.
//   loco_residual_dtype   residual_dtype for loco. Default: int8.
//   loco_gain             gain for loco. Default: 0.2.
//   loco_reset_every      reset_every for loco. Default: 512.
//   non_finite            a step in which some rank's gradient holds NaN or infinity: error, the default, fails on every rank
//                         before anything is exchanged, and may be repeated with other gradients; skip: its outcome is
//                         LGRECO_OUTCOME_SKIPPED, gradients become zeros, residuals stay; pass_through: it is exchanged
//                         uncompressed, with NaN and infinity.
//   route                 how payloads that cannot be summed on the wire travel: all_gather, the default: every rank gets every
//                         rank's; scatter_reduce: each rank averages a part and sends its mean, compressed again
//                         (LGRECO_REQUEST_ALL_GATHER_EACH and ALL_TO_ALL).
//   bucket_bytes          layers are exchanged together until their uncompressed gradients exceed so many bytes. Default:
//                         4194304.
//   measuring_rank        the rank that measures and plans for all. Default: 0.
//   metrics_every         relative errors are measured every so many steps, with 0 never. Default: 10.
//   undo                  true: the residuals of the step before are kept, in as much memory again, for
//                         lgreco_controller_roll_back and lgreco_controller_abandon_step. Default: false; they are always kept
//                         where `non_finite` is not error.

// What became of a step's gradients.
LGRECO_ENUM(lgreco_outcome) {
    LGRECO_OUTCOME_EXCHANGED = 0,  // They are the means of all workers' gradients, compressed as was decided.
    // Some rank's were not finite; they are zeros. Do not update the parameters. After buckets in flight: the gradients of other
    // buckets are means that do not count, and residuals are what they were before the step.
    LGRECO_OUTCOME_SKIPPED = 1,
    // Some rank's were not finite; they are the plain means, not finite either. After buckets in flight: those of some bucket,
    // which are NaN now.
    LGRECO_OUTCOME_PASSED_THROUGH = 2,
    // After buckets in flight: the exchange of some bucket has failed, on every rank, and its gradients are of no use.
    LGRECO_OUTCOME_FAILED = 3,
};

// What a step did; all but the seconds is the same on every rank. Begin with LGRECO_REPORT_INIT.
typedef struct lgreco_report {
    // Set by the INIT macro.
    size_t struct_size;
    // Its number, from 0.
    uint64_t step;
    // What became of the gradients.
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
#define LGRECO_REPORT_INIT {LGRECO_SIZE_OF(lgreco_report), 0, LGRECO_OUTCOME_EXCHANGED, 0, 0, 0, 0, 0}

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

// Frees a controller and sets the caller's pointer to NULL; NULL, or a pointer to NULL, does nothing.
lgreco_status lgreco_controller_destroy(struct lgreco_controller **controller);

#ifdef __cplusplus
} // extern "C"
#endif

#endif // LGRECO_H
