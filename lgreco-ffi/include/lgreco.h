/*
 * lgreco: layer-wise adaptive gradient compression.
 *
 * Most programs need only this header. It measures a model's gradients, plans a compressor for each layer, and compresses.
 * Alternatively, a controller does all of this and exchanges the gradients, one call per training step. Three headers add
 * more: lgreco_train.h (files, saved states, buckets in flight, GPUs), lgreco_cuda.h (gradients in the memory of an NVIDIA
 * GPU), and lgreco_pipeline.h (activations between pipeline stages). A complete program:
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
 * docs/src/reference/c-contract.md states the rules for all calls. In short: a call returns a status, and its outputs
 * are valid only after LGRECO_OK. Handles are freed by their destroy call. Different threads may use different handles
 * at the same time. Options are an array of names and values, all of them text, with NULL at its end. A NULL array
 * means the defaults. A wrong value gives LGRECO_PARAMETER, unless the option names another code. Initialise structs
 * with their INIT macro. Lengths count elements.
 *
 * Made from headers/lgreco.h.in and the Rust source: LGRECO_BLESS=1 cargo test -p lgreco-ffi --test header
 */
#ifndef LGRECO_H
#define LGRECO_H

#include <stddef.h>
#include <stdint.h>

// The version of these headers; lgreco_version() returns the version of the library.
#define LGRECO_VERSION_MAJOR 0
#define LGRECO_VERSION_MINOR 1
#define LGRECO_VERSION_PATCH 0
#define LGRECO_VERSION "0.1.0"

// Revision of these headers. The revision changes whenever a declaration changes, and the INIT macros write the
// revision into their structs. In a program that was compiled with headers of another revision, the first call that
// takes a struct fails with LGRECO_STRUCT_SIZE.
#define LGRECO_HEADER_REVISION 6

// The value of struct_size. The lower 16 bits are the struct's size in bytes, and the bits above are the headers' revision.
#define LGRECO_SIZE_OF(type) ((size_t)LGRECO_HEADER_REVISION << 16 | sizeof(type))

// A 32-bit type with named values.
#ifdef __cplusplus
#define LGRECO_ENUM(name) enum name : uint32_t
extern "C" {
#else
#define LGRECO_ENUM(name) typedef uint32_t name; enum
#endif

// Returns the version of the library in use, such as "0.1.0". LGRECO_VERSION has the version of the headers. The text
// is static.
const char *lgreco_version(void);

// Returns the text of this thread's last failed call. Before the first failure, the text is empty.
//
// An example is "layer `fc1`: element 77 is NaN". The text names the layer, option, argument or file, and says what
// was found and what is expected. The text is UTF-8 and meant for people. Only status codes are stable. The text is
// valid until this thread's next call that fails. Calls that succeed leave the text unchanged.
const char *lgreco_message(void);

// The result of a call: LGRECO_OK, or the reason of the failure. Codes are permanent.
LGRECO_ENUM(lgreco_status) {
    LGRECO_OK = 0,  // The call succeeded.
    LGRECO_LENGTH = 1,  // An array or buffer does not have the length that the call needs.
    LGRECO_PARAMETER = 2,  // A parameter or an option's value is out of range, or does not fit the other options.
    LGRECO_TOO_MANY_ELEMENTS = 3,  // A tensor has 2^32 or more rows, columns or elements.
    LGRECO_NON_FINITE = 4,  // A gradient holds NaN or infinity.
    LGRECO_OVERFLOW = 5,  // A result does not fit the number format in which it is sent.
    LGRECO_UNKNOWN_NAME = 6,  // A name is unknown.
    LGRECO_OUT_OF_MEMORY = 7,  // Memory cannot be allocated.
    LGRECO_ELEMENT_OVERFLOW = 8,  // An element is too large for the format in which it is sent.
    LGRECO_DEVICE = 9,  // A device failed, or does not support the operation.
    LGRECO_SETTING_WORD = 10,  // A word of a setting is unknown at its position.
    LGRECO_SETTING_SYNTAX = 11,  // A setting has a wrong word or number, or ends too early.
    LGRECO_EMPTY_TABLE = 20,  // A table has no layers.
    LGRECO_EMPTY_LAYER = 21,  // A layer has no options.
    LGRECO_OPTION_ERROR = 22,  // An option's error is NaN, infinite or negative.
    LGRECO_SIZE_OVERFLOW = 23,  // The sum of the layers' largest option sizes does not fit 64 bits.
    LGRECO_NO_SUCH_OPTION = 24,  // A number is not the index of an option of its layer.
    LGRECO_BUDGET = 25,  // An error budget is NaN, infinite or negative.
    LGRECO_INFEASIBLE = 26,  // No plan is within the error budget.
    LGRECO_OVER_BUDGET = 27,  // The error of a plan exceeds its budget.
    LGRECO_PLAN_MISMATCH = 28,  // A plan does not have the size, error or bound that it states.
    LGRECO_DUPLICATE_NAME = 29,  // Two layers have the same name.
    LGRECO_SIZE_INFEASIBLE = 30,  // No plan is within the size limit.
    LGRECO_OVER_SIZE = 31,  // The size of a plan exceeds its size limit.
    LGRECO_NO_SHARED_OPTION = 32,  // The layers of a group have no option in common.
    // The layers of a group, matched by option index, have different numbers of options. C calls match by label, and do
    // not return this code.
    LGRECO_UNEQUAL_OPTIONS = 33,
    LGRECO_RULED_OUT = 34,  // A plan chooses an option that the table's groups or fixed options exclude.
    LGRECO_PAYLOAD_HEADER = 40,  // The bytes are not a payload of this version.
    LGRECO_PAYLOAD_BODY = 41,  // The body of a payload contradicts the payload's header.
    LGRECO_PAYLOAD_FIELD = 42,  // A header field of a payload has a value that this version does not define.
    LGRECO_UNKNOWN_METHOD = 43,  // Neither the library nor the program knows the method.
    LGRECO_NOT_CONTRACTIVE = 60,  // With this setting, error feedback may amplify errors.
    // The compressor has no error feedback, or the memory of a cut does not fit its codec, its direction or the call.
    LGRECO_FEEDBACK_RULE = 61,
    LGRECO_SAVED_STATE = 62,  // The bytes are not a saved state of this version.
    LGRECO_CHECKSUM = 63,  // A saved state or a sealed payload is damaged or cut short.
    LGRECO_COLLECTIVE = 80,  // A collective callback failed.
    LGRECO_PEER = 81,  // Another worker failed.
    LGRECO_PEER_PLAN = 82,  // Workers differ in the layers or options of an exchange.
    LGRECO_PEER_MESSAGE = 83,  // A message from another worker cannot be decoded.
    LGRECO_LAYER_MISMATCH = 100,  // A layer, gradient or bucket does not match the layers of the controller.
    LGRECO_NON_FINITE_GRADIENT = 101,  // A layer's gradient holds NaN or infinity.
    LGRECO_IN_FLIGHT = 102,  // A layer is in a bucket that is being exchanged.
    // The call is not allowed at this point of the step. For instance, no step has begun, or gradients were already
    // submitted.
    LGRECO_STEP_ORDER = 103,
    LGRECO_NOT_FIXED = 104,  // The call gives settings to a controller that was made without settings.
    LGRECO_OUT_OF_STEP = 120,  // The message is not the next message for this end of the cut.
    LGRECO_SAMPLE_OUT_OF_STEP = 121,  // The two ends of a cut remember different values of a sample.
    LGRECO_DUPLICATE_SAMPLE = 122,  // A batch contains a sample twice.
    LGRECO_TOO_MANY_IN_FLIGHT = 123,  // There are more micro-batches in flight than the option `in_flight` allows.
    LGRECO_NOT_IN_FLIGHT = 124,  // No micro-batch in flight has this ticket.
    LGRECO_MID_STEP = 125,  // The call is allowed only between steps.
    LGRECO_OTHER_SETTING = 126,  // The saved end of a cut has a different setting.
    LGRECO_NULL_POINTER = 200,  // A required pointer is NULL.
    LGRECO_ALIGNMENT = 201,  // A pointer is not aligned for its type.
    LGRECO_OVERLAP = 202,  // An output overlaps an input or another output.
    // The struct_size of a struct differs from the value in this library's headers. Either the INIT macro was not used, or
    // the program was compiled with headers of another revision.
    LGRECO_STRUCT_SIZE = 203,
    LGRECO_UNKNOWN_CONSTANT = 204,  // A number is not one of the constants of its type.
    LGRECO_TEXT = 205,  // A text is not UTF-8, contains a NUL, or lacks the NUL at its end.
    LGRECO_JSON = 206,  // The text is not JSON, or lacks expected fields.
    LGRECO_JSON_VERSION = 207,  // The version of a table or plan file is not supported by this library.
    LGRECO_HANDLE = 208,  // The pointer is not a handle, is a handle of another kind, or is a copy of a destroyed handle.
    LGRECO_BUSY = 209,  // The handle is in use by another call.
    // The device does not exist, cannot be used, or does not support the request; or the requested data do not exist yet.
    LGRECO_UNAVAILABLE = 210,
    // The table has no compressor setting for the option, because the library did not measure the table.
    LGRECO_NO_SETTINGS = 211,
    LGRECO_OTHER_END = 212,  // The call is only for the other end of a cut.
    LGRECO_NOT_BUILT_IN = 213,  // This build of the library does not support devices of this kind.
    LGRECO_UNKNOWN_OPTION = 214,  // The call has no option of this name, or the option is given twice.
    LGRECO_TRAINER = 215,  // The trainer of this rank has reported a failure by lgreco_bucket_submit_failure.
    LGRECO_PANIC = 255,  // A bug in the library. The handle of the call can only be destroyed.
};

// Returns the name of the constant, such as "LGRECO_INFEASIBLE", or "unknown status" for other numbers. The text is
// static.
const char *lgreco_status_name(lgreco_status status);

/* ---- 1. Layers, and what compression does to their gradients ---- */

// An element type.
LGRECO_ENUM(lgreco_dtype) {
    LGRECO_DTYPE_F32 = 0,  // IEEE single precision.
    LGRECO_DTYPE_F16 = 1,  // IEEE half precision, stored as its bits.
    LGRECO_DTYPE_BF16 = 2,  // bfloat16, stored as its bits.
};

// A named tensor of the model. Begin with LGRECO_LAYER_INIT.
typedef struct lgreco_layer {
    // Set by the INIT macro.
    size_t struct_size;
    // The layer's name, UTF-8. Saved states and plans identify the layer by this name.
    const char *name;
    // The layer's dimensions. PowerSGD treats the tensor as a matrix. Its rows are the first dimension, its columns
    // the product of the other dimensions.
    const size_t *dims;
    // Number of dimensions; 0 for a scalar.
    size_t dims_len;
    // The gradient, row-major. The number of elements is the product of `dims`. The library only reads the gradient.
    // lgreco_compressor_create does not need a gradient.
    const void *values;
    // Type of the gradient's elements.
    lgreco_dtype dtype;
} lgreco_layer;
#define LGRECO_LAYER_INIT {LGRECO_SIZE_OF(lgreco_layer), NULL, NULL, 0, NULL, LGRECO_DTYPE_F32}

// A device that measures and compresses, made by lgreco_context_create. NULL in place of a context means the CPU. Any
// number of threads may use a context. Handles that were made with a context remain valid after the context is
// destroyed.
typedef struct lgreco_context lgreco_context;

// An error table with names, owned by the library. It never changes.
typedef struct lgreco_table lgreco_table;

// Measures every layer of a model on its gradient under every candidate setting. The result is the error table for
// lgreco_plan_solve. The table leaves out layers with one dimension or fewer, or with fewer elements than the option
// `min_elements`. `model_layers` of the view lists the measured layers. NULL for `context` means the CPU. Allocates.
//
// Fails with LGRECO_NON_FINITE, with LGRECO_EMPTY_TABLE when no layer is left, and with LGRECO_DUPLICATE_NAME. For
// wrong options, fails with LGRECO_UNKNOWN_OPTION, LGRECO_UNKNOWN_NAME or LGRECO_PARAMETER.
lgreco_status lgreco_table_measure(const struct lgreco_context *context,
                                   const struct lgreco_layer *layers,
                                   size_t layers_len,
                                   const char *const *options,
                                   struct lgreco_table **table);
//
// Options:
//   method                the compressors from which a plan chooses one for each layer, with commas between: qsgd, topk,
//                         powersgd, eden, clt-k, sidco, hard-threshold, adacomp, loco. The first one with the parameter
//                         `default` is the uniform setting, from which budgets are derived. Default: hybrid, which means eden,
//                         topk and powersgd and stands alone. Unknown and repeated names give LGRECO_UNKNOWN_NAME.
//   default               the first method's parameter in the uniform setting. qsgd and eden: bits per element, 1 to 8 (default
//                         4, for eden 3). topk, clt-k and sidco: the density, which is the fraction of elements sent, 2^-32 to
//                         1 (0.01). powersgd: the rank, 1 to 65536 (4). hard-threshold: the smallest magnitude sent, above 0
//                         (0.01). adacomp and loco: elements per bin or group, 1 to 2^24 (500 and 512).
//   candidates            "first,last,step": the first method's parameters from which plans choose, at most 10000, each in the
//                         range of `default`. `default` is always added. Without this option, and for all further methods, they
//                         are derived from the method's default D: D/2 to 2 D in steps of 1 for qsgd and powersgd, D/10 to 10 D
//                         in steps of D/10 for topk and clt-k, 1 to 8 for eden, D/2 to 2 D in steps of D/4 for the rest.
//   widths                the formats of the values that topk sends, with commas between: full, which is the gradient's type,
//                         or 1 to 8, the bits per value. Other values, and methods without topk, give LGRECO_UNKNOWN_NAME.
//                         Default: full.
//   metric                the error of an option: squared-l2, the squared L2 norm of the compression error, or l2, the norm, as
//                         in the L-GreCo paper. Other names give LGRECO_UNKNOWN_NAME. Default: squared-l2, or l2 under a
//                         controller's policy paper.
//   min_elements          layers with fewer elements stay uncompressed, like all layers with one dimension or fewer. Default:
//                         1024.
//   workers               the number of workers whose payloads are averaged, at least 1. The squared errors of unbiased methods
//                         (qsgd, eden) are divided by it, which affects the choice between methods. Default: 1; in a
//                         controller, its number of workers, or of nodes (lgreco_controller_create_on_nodes).
//   reduce_dtype          the type in which ranks sum uncompressed layers, the factors of powersgd and the values of clt-k:
//                         float32, or bfloat16, which halves their bytes. In a controller on nodes, the ranks of a node also
//                         send each other gradients in this type. Default: float32.
//   random_seed           the seed of all random numbers, 0 to 2^64 - 1, the same on every rank. Default: 0.

// One option of one layer. The layout of this struct never changes.
typedef struct lgreco_choice {
    // Bits that one worker sends for the layer under this option.
    uint64_t size;
    // Error of the option, finite and not negative. All options must use the same metric.
    double error;
} lgreco_choice;

// Value in `fixed` of a table view for a layer without a fixed option: plans may choose any option.
#define LGRECO_NO_OPTION UINT32_MAX

// An error table as arrays, owned by the caller or by a table handle. Begin with LGRECO_TABLE_VIEW_INIT, which sets all
// pointers to NULL.
typedef struct lgreco_table_view {
    // Set by the INIT macro.
    size_t struct_size;
    // Number of layers, at least 1.
    size_t layers;
    // Per layer, the end of its options in `choices`. The options of layer l have the indices from ends[l - 1], or 0
    // for layer 0, to ends[l] - 1.
    const size_t *ends;
    // All options, layer after layer.
    const struct lgreco_choice *choices;
    // Per layer, the option of the uniform setting; may be NULL. The size or error of the uniform setting can serve as
    // a plan's limit.
    const uint32_t *defaults;
    // The table's error budget; NULL for none.
    const double *budget;
    // Per layer, its name in UTF-8. If NULL, the layers are named "0", "1" and so on.
    const char *const *names;
    // Per option, its label in UTF-8. If NULL, the labels are "0", "1" and so on.
    const char *const *labels;
    // Per layer, the number of elements of its gradient; NULL for 0.
    const uint64_t *elements;
    // Per layer, the bits of its uncompressed gradient; NULL for 32 per element.
    const uint64_t *uncompressed_sizes;
    // The metric of the errors, such as "l2"; NULL for "".
    const char *metric;
    // Per layer of the table, its index in the model. The library sets this field for tables that it measured. NULL
    // for other tables.
    const size_t *model_layers;
    // Per layer, the name of its group in UTF-8, or NULL for no group. Plans choose options with the same label for
    // all layers of a group (tied weights, fused projections). NULL for no groups.
    const char *const *groups;
    // Per layer, the option that every plan must choose, or LGRECO_NO_OPTION. NULL for none.
    const uint32_t *fixed;
} lgreco_table_view;
#define LGRECO_TABLE_VIEW_INIT                                                                                         \
    {LGRECO_SIZE_OF(lgreco_table_view), 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL}

// Copies a table into a handle, and checks the whole table, including names and labels.
//
// Fails with LGRECO_LENGTH when `ends` does not ascend, with LGRECO_EMPTY_TABLE, LGRECO_EMPTY_LAYER,
// LGRECO_OPTION_ERROR and LGRECO_SIZE_OVERFLOW, and with LGRECO_NO_SUCH_OPTION for an entry of `defaults` or `fixed`.
// Fails with LGRECO_DUPLICATE_NAME for two layers of one name, with LGRECO_TEXT for a name that is not UTF-8, and with
// LGRECO_NO_SHARED_OPTION for a group whose layers have no allowed label in common.
lgreco_status lgreco_table_create(const struct lgreco_table_view *view,
                                  struct lgreco_table **table);

// Fills `view` with pointers into the table, which are valid until the table is destroyed. `names`, `labels`,
// `elements`, `uncompressed_sizes` and `metric` are never NULL in the filled view.
lgreco_status lgreco_table_get(const struct lgreco_table *table, struct lgreco_table_view *view);

// Size of a setting's text in bytes, including the NUL. Every text that the library writes fits this size.
#define LGRECO_SETTING_TEXT_BYTES 64

// A compressor with its parameters as text: {"qsgd 4"}, {"topk 786"} or {"powersgd 4 iterations 2"}, as in table and plan
// files. docs/src/reference/settings.md lists the words. Calls with a single setting take only the text. The layout of
// this struct never changes.
//
// Calls that read a setting fail with LGRECO_SETTING_WORD for an unknown word. The code is LGRECO_SETTING_SYNTAX where
// another word or a number is expected, and for an empty text. The message names the word. The code is
// LGRECO_PARAMETER for a number out of range. The code is LGRECO_TEXT for a text that is not UTF-8, or has no NUL
// among its first LGRECO_SETTING_TEXT_BYTES bytes.
typedef struct lgreco_setting {
    // The text and a NUL. The library fills the remaining bytes with NULs.
    char text[LGRECO_SETTING_TEXT_BYTES];
} lgreco_setting;

// Fills `setting` with the compressor of an option. The library must have measured the table, in this run or before it was
// written to a file.
//
// Fails with LGRECO_NO_SETTINGS for other tables, with LGRECO_LENGTH for an unknown layer, and with
// LGRECO_NO_SUCH_OPTION.
lgreco_status lgreco_table_setting(const struct lgreco_table *table,
                                   size_t layer,
                                   uint32_t option,
                                   struct lgreco_setting *setting);

// Frees a table and sets the caller's pointer to NULL. Does nothing for NULL, or for a pointer to NULL.
lgreco_status lgreco_table_destroy(struct lgreco_table **table);

/* ---- 2. Plans: one option per layer ---- */

// A verified plan: one option per layer. It never changes.
typedef struct lgreco_plan lgreco_plan;

// Chooses one option per layer: the fewest bits within the error budget, or the least error within the size limit. If
// the uniform setting is within the limit, the plan is no worse. The plan keeps the table's groups and fixed options.
// The same input gives the same plan. Allocates its workspace.
//
// Fails with LGRECO_INFEASIBLE when no plan meets the error budget; the message has the smallest error. Fails with
// LGRECO_SIZE_INFEASIBLE when no plan meets the size limit; the message has the smallest size. Also fails with
// LGRECO_UNKNOWN_OPTION or LGRECO_PARAMETER for wrong options, with LGRECO_BUDGET for a wrong budget of the table,
// with the codes of lgreco_table_create for a wrong table, and with LGRECO_OUT_OF_MEMORY.
lgreco_status lgreco_plan_solve(const struct lgreco_table_view *table,
                                const char *const *options,
                                struct lgreco_plan **plan);
//
// Options:
//   solver                exact: an optimal plan, or the best plan found within the limit `states`, with a proved bound. dp:
//                         Algorithm 1 of the L-GreCo paper. paper: like dp, but `budget` is error by default; measure the table
//                         with the metric l2. Default: exact.
//   levels                the number of cells into which Algorithm 1 divides the limit, at least 1. Default: 10000.
//   states                the largest number of partial plans that the exact solver holds at once, each in 32 bytes. With 0, it
//                         only rounds the solution of the linear relaxation. Default: 524288.
//   budget                the limit of a plan. size: at most the size of the uniform setting, with the least error. error: at
//                         most the table's budget, or the error of the uniform setting if the table has no budget, with the
//                         least size. A number: at most this many bits, a whole number below 2^63, with the least error; under
//                         a controller's objective seconds, at most this many seconds, below 10^6. Default: error if the table
//                         has a budget or the solver is paper, else size. If the limit needs `defaults` of the table and it is
//                         NULL, the call fails with LGRECO_NULL_POINTER.
//   alpha                 the factor by which the limit is multiplied if `budget` is size or error, finite and at least 0.
//                         Default: 1.

// The kind of limit that a plan keeps.
LGRECO_ENUM(lgreco_limit) {
    LGRECO_LIMIT_NONE = 0,  // No limit, because there is no plan.
    LGRECO_LIMIT_ERROR = 1,  // A limit on the error. `lower_bound` is a lower bound of the size of all plans within the limit.
    // A limit on the size. `error_lower_bound` is a lower bound of the error of all plans within the limit.
    LGRECO_LIMIT_SIZE = 2,
};

// A plan as arrays, owned by a plan handle or by the caller. Begin with LGRECO_PLAN_VIEW_INIT.
typedef struct lgreco_plan_view {
    // Set by the INIT macro.
    size_t struct_size;
    // Number of layers.
    size_t layers;
    // Per layer, the index of the chosen option among the layer's options.
    const uint32_t *options;
    // Total bits of the chosen options.
    uint64_t size;
    // If `limit` is LGRECO_LIMIT_ERROR, a lower bound, in bits, of the size of all plans within the budget. Otherwise
    // 0. If `size` equals this bound, the plan is proved optimal.
    uint64_t lower_bound;
    // Total error of the chosen options.
    double error;
    // If `limit` is LGRECO_LIMIT_ERROR, the error budget of the plan; otherwise 0.
    double budget;
    // The solver that made the plan, such as "exact". The library sets this field and does not read it.
    const char *solver;
    // 1 if the plan is proved optimal, else 0. The library sets this field and does not read it.
    uint32_t proven;
    // The kind of limit that the plan keeps.
    lgreco_limit limit;
    // If `limit` is LGRECO_LIMIT_SIZE, the maximum number of bits; otherwise 0.
    uint64_t size_limit;
    // If `limit` is LGRECO_LIMIT_SIZE, a lower bound of the error of all plans within the size limit. Otherwise 0. The
    // plan is proved optimal if `error` exceeds this bound by at most the fraction 2^-40 of it, the resolution of the
    // solver.
    double error_lower_bound;
} lgreco_plan_view;
#define LGRECO_PLAN_VIEW_INIT                                                                                          \
    {LGRECO_SIZE_OF(lgreco_plan_view), 0, NULL, 0, 0, 0, 0, NULL, 0, LGRECO_LIMIT_ERROR, 0, 0}

// Fills `view` with the plan. The view's pointers are valid until the plan is destroyed.
lgreco_status lgreco_plan_get(const struct lgreco_plan *plan, struct lgreco_plan_view *view);

// Frees a plan and sets the caller's pointer to NULL. Does nothing for NULL, or for a pointer to NULL.
lgreco_status lgreco_plan_destroy(struct lgreco_plan **plan);

/*
 * ---- 3. Compression by hand ----
 *
 * Every rank needs the settings of every layer. A setting is a text, which is the same on every machine. Decode each
 * payload by itself, even for PowerSGD, and sum the decoded gradients. The payload length of AdaComp, hard thresholds
 * and SIDCo depends on the values; lgreco_compressor_encode reports the length. Under one setting, payloads of other
 * methods have the same length on every rank.
 */

// The compressor of one layer on one worker, with its residual and its workspace.
typedef struct lgreco_compressor lgreco_compressor;

// Makes the compressor of `layer`. The layer's `values` are not read. `setting` is text, such as "topk 786". NULL for
// `context` means the CPU. Allocates all memory that encoding and decoding on the CPU need.
//
// Fails with LGRECO_PARAMETER when the setting does not fit the layer. Fails with LGRECO_NOT_CONTRACTIVE when the
// setting does not suit error feedback (lgreco_feedback_check). Also fails with the codes of lgreco_setting for a
// wrong setting, and with LGRECO_UNKNOWN_OPTION or LGRECO_PARAMETER for a wrong option.
lgreco_status lgreco_compressor_create(const struct lgreco_context *context,
                                       const struct lgreco_layer *layer,
                                       const char *setting,
                                       const char *const *options,
                                       struct lgreco_compressor **compressor);
//
// Options:
//   random_seed           the seed of all random numbers, 0 to 2^64 - 1, the same on every rank. Default: 0.
//   layer_index           the index of the layer in the model, from 0. It selects the layer's random numbers, such as
//                         powersgd's start matrix. Default: 0.
//   rank                  the number of this worker, from 0. Give every worker a different number; otherwise their rounding
//                         errors do not average out. Default: 0.
//   error_feedback        true: the compressor keeps its compression error as a residual, and adds it to the next gradient.
//                         false: it keeps no residual. Default: false.
//   residual_dtype        the type in which residuals are stored: float32, bfloat16 or int8. Default: float32.
//   gain                  the factor a, above 0 and at most 1, in the update of a residual r: r becomes r + a (gradient -
//                         decoded payload). Default: 1, which is classic error feedback.
//   reset_every           the number of steps between resets of the residuals to zeros; 0 means never. Default: 0.

// Reports the largest number of bytes that lgreco_compressor_encode writes under the present setting. Encoding writes
// exactly this number, unless the payload's length depends on the values (AdaComp, hard thresholds, SIDCo).
lgreco_status lgreco_compressor_bound(struct lgreco_compressor *compressor,
                                      size_t *bytes);

// Compresses the layer's gradient of step `step`. `values` has the layer's type and number of elements. With error
// feedback, the call first adds the residual, and the compression error becomes the new residual. `length` receives
// the number of bytes written to `payload`. Does not allocate on the CPU.
//
// Fails with LGRECO_NON_FINITE, LGRECO_OVERFLOW, LGRECO_ELEMENT_OVERFLOW, and with LGRECO_LENGTH when the payload does
// not fit `capacity` (lgreco_compressor_bound always suffices). After a failure the residual is unchanged.
lgreco_status lgreco_compressor_encode(struct lgreco_compressor *compressor,
                                       uint32_t step,
                                       const void *values,
                                       uint8_t *payload,
                                       size_t capacity,
                                       size_t *length);

// Decodes a payload of this layer, made under any setting, into `values`. `values_len` is the layer's number of
// elements. Changes no state. Does not allocate on the CPU.
//
// Fails with LGRECO_PAYLOAD_HEADER, LGRECO_PAYLOAD_FIELD, LGRECO_PAYLOAD_BODY or LGRECO_LENGTH on bytes that no encoder
// writes.
lgreco_status lgreco_compressor_decode(struct lgreco_compressor *compressor,
                                       const uint8_t *payload,
                                       size_t length,
                                       float *values,
                                       size_t values_len);

// Frees a compressor and sets the caller's pointer to NULL. Does nothing for NULL, or for a pointer to NULL.
lgreco_status lgreco_compressor_destroy(struct lgreco_compressor **compressor);

/*
 * ---- 4. A controller: a whole training step in one call ----
 *
 * A controller measures, plans, switches settings, compresses, exchanges, and keeps the residuals. The trainer supplies
 * collectives as a callback and gradients as pointers. The means replace the gradients. To exchange gradients during the
 * backward pass, use lgreco_train.h.
 */

// The kind of memory that a request's pointers point to.
LGRECO_ENUM(lgreco_device) {
    LGRECO_DEVICE_CPU = 0,  // Host memory.
    LGRECO_DEVICE_CUDA = 1,  // Memory of the NVIDIA GPU that a lgreco_cuda_bucket uses.
};

// The group of workers that performs a collective.
LGRECO_ENUM(lgreco_group) {
    LGRECO_GROUP_ALL = 0,  // All workers.
    LGRECO_GROUP_NODE = 1,  // The workers of this worker's node, in rank order. Only lgreco_controller_create_on_nodes uses it.
    // This worker's peers: the workers with the same index within their nodes, one per node. Only
    // lgreco_controller_create_on_nodes uses it.
    LGRECO_GROUP_PEERS = 2,
};

// The kind of collective that the caller performs.
LGRECO_ENUM(lgreco_request_kind) {
    LGRECO_REQUEST_NONE = 0,  // No collective: nothing is left to do.
    // Replace the `count` f32 values of `buffer` by their sums over the workers. All workers must get the same bits, and
    // NaN must stay NaN.
    LGRECO_REQUEST_ALL_REDUCE_SUM = 1,
    // Fill `buffer` with `length` bytes of every worker, in rank order; world_size * length in total. This worker's bytes are
    // already in place: MPI_Allgather with MPI_IN_PLACE, ncclAllGather with sendbuff = recvbuff + rank * length.
    LGRECO_REQUEST_ALL_GATHER = 2,
    // Like LGRECO_REQUEST_ALL_GATHER, with lens[i] bytes of worker i: MPI_Allgatherv with MPI_IN_PLACE. A length may be 0.
    // Only hard thresholds, SIDCo, AdaComp, the route scatter_reduce and nodes need this kind.
    LGRECO_REQUEST_ALL_GATHER_EACH = 3,
    LGRECO_REQUEST_BROADCAST = 4,  // Replace the `length` bytes of `buffer` by the bytes of worker `root`.
    // For each worker i in ascending order: send it the next send_lens[i] bytes of `send`, and receive from it the next
    // received_lens[i] bytes of `received`. Only the route scatter_reduce, shards, and nodes with `reduce_dtype` bfloat16
    // need this kind.
    LGRECO_REQUEST_ALL_TO_ALL = 5,
    // `buffer` has `count` f32 values, of which lens[i] consecutive values belong to worker i. Replace this worker's
    // values by their sums over the workers. The other values may change arbitrarily. Only shards and nodes need this
    // kind.
    LGRECO_REQUEST_REDUCE_SCATTER_SUM = 6,
    // Like LGRECO_REQUEST_ALL_REDUCE_SUM, for `count` bf16 values. A bf16 is the upper half of an f32. Sums may be rounded
    // once or at every addition. Only the option `reduce_dtype` needs this kind.
    LGRECO_REQUEST_ALL_REDUCE_SUM_BF16 = 7,
    // Like LGRECO_REQUEST_REDUCE_SCATTER_SUM, for `count` bf16 values. Only shards with the option `reduce_dtype` need
    // this kind.
    LGRECO_REQUEST_REDUCE_SCATTER_SUM_BF16 = 8,
};

// A collective to perform, blocking or not, on memory of the library. Begin with LGRECO_REQUEST_INIT.
//
// Fields that the kind does not mention are 0 or NULL. Perform the collective before the next call on the bucket, or
// the next call of lgreco_controller_control. The request's pointers are valid until that call. All workers get the
// same requests with the same lengths. All workers must start the collectives of different buckets in the same order.
typedef struct lgreco_request {
    // Set by the INIT macro.
    size_t struct_size;
    // Kind of collective.
    lgreco_request_kind kind;
    // The memory that `buffer`, `send` and `received` point to. LGRECO_DEVICE_CUDA for requests of
    // lgreco_cuda_bucket_next, else LGRECO_DEVICE_CPU.
    lgreco_device memory;
    // The worker that broadcasts.
    uint32_t root;
    // The group that performs the collective. The fields below number the workers of this group from 0.
    lgreco_group group;
    // The memory to replace or fill. Aligned for f32 if the values are f32.
    void *buffer;
    // Number of f32 or bf16 values.
    size_t count;
    // Number of bytes. For LGRECO_REQUEST_ALL_GATHER, the bytes of one worker.
    size_t length;
    // For LGRECO_REQUEST_ALL_GATHER_EACH, the bytes of each worker. For scattered sums, the number of values of each
    // worker.
    const uint64_t *lens;
    // Bytes to send, in order of the receivers.
    const uint8_t *send;
    // Number of bytes to send to each worker.
    const uint64_t *send_lens;
    // Memory for the received bytes, in order of the senders.
    uint8_t *received;
    // Number of bytes to receive from each worker.
    const uint64_t *received_lens;
} lgreco_request;
#define LGRECO_REQUEST_INIT                                                                                            \
    {LGRECO_SIZE_OF(lgreco_request), LGRECO_REQUEST_NONE, LGRECO_DEVICE_CPU, 0, LGRECO_GROUP_ALL, NULL, 0, 0, NULL, NULL, NULL, \
     NULL, NULL}

// `perform` returns this code for a kind of collective that the program does not support.
#define LGRECO_COLLECTIVE_UNSUPPORTED INT32_MIN

// Performs one collective and returns when it is done.
typedef int32_t (*lgreco_perform)(void *user, const struct lgreco_request *request);

// The network of one worker: blocking collectives, which the program implements on NCCL, MPI, Gloo or sockets. Begin
// with LGRECO_COLLECTIVE_INIT.
typedef struct lgreco_collective {
    // Set by the INIT macro.
    size_t struct_size;
    // This worker's rank, less than `world_size`.
    uint32_t rank;
    // Number of workers, at least 1; 1 by default.
    uint32_t world_size;
    // Passed to `perform`.
    void *user;
    // Performs the collective of a lgreco_request. The function returns 0, or an error code that the program chooses.
    // After an error code, the library call fails with LGRECO_COLLECTIVE. All workers get the same requests in the
    // same order with the same lengths. A worker that cannot continue must make the other workers' collectives fail,
    // so that they do not wait forever.
    //
    // The library calls the function during a library call, on the thread of that call. The request and its memory are
    // valid until the function returns. The function must not throw. If it uses the handle of the library call, that
    // use fails with LGRECO_BUSY.
    //
    // Every network must support LGRECO_REQUEST_ALL_REDUCE_SUM, ALL_GATHER and BROADCAST. lgreco_request_kind says
    // when the other kinds are requested. Return LGRECO_COLLECTIVE_UNSUPPORTED for a kind that the network does not
    // support. LGRECO_REQUEST_REDUCE_SCATTER_SUM may be performed as an all-reduce of all `count` values, at about
    // twice the traffic.
    lgreco_perform perform;
} lgreco_collective;
#define LGRECO_COLLECTIVE_INIT {LGRECO_SIZE_OF(lgreco_collective), 0, 1, NULL, NULL}

// The controller of one worker. It compresses and exchanges the gradients, and keeps the residuals. At a decision, it
// chooses a setting for every layer; the ranks use these settings until the next decision.
typedef struct lgreco_controller lgreco_controller;

// Makes the controller of a model with these layers. The collective states this worker's rank. `values` of layers are
// not read. All ranks must give the same layers and options. NULL for `context` means the CPU. If `settings` is NULL,
// the policy chooses the settings. Otherwise `settings` has one setting per layer. They apply from step `start_iter`
// on, until lgreco_controller_set_settings. The call performs no collective.
//
// Fails with LGRECO_UNKNOWN_OPTION, LGRECO_UNKNOWN_NAME, LGRECO_PARAMETER or LGRECO_LENGTH for wrong or contradictory
// options. Also fails with the codes of lgreco_setting for a wrong setting, and with LGRECO_DUPLICATE_NAME for two
// layers with the same name.
lgreco_status lgreco_controller_create(const struct lgreco_context *context,
                                       const struct lgreco_collective *collective,
                                       const struct lgreco_layer *layers,
                                       size_t layers_len,
                                       const struct lgreco_setting *settings,
                                       const char *const *options,
                                       struct lgreco_controller **controller);
//
// Options: those of lgreco_table_measure and lgreco_plan_solve, and those below. The default of `budget` is size, or
// error under the policy paper.
//   policy                the rule by which decisions choose settings. lgreco: the plan within `budget`, made by `solver`.
//                         paper: the plan of Algorithm 1; `budget` is error and `metric` is l2 unless they are given. uniform:
//                         the uniform setting for every layer. uncompressed: no compression. kmeans: one setting for each
//                         cluster of layers, within `budget`, as in CGX. accordion: one of two parameters for each layer
//                         (option `accordion`). legacy: a parameter by the size of the layer and the phase of training (option
//                         `legacy`). Default: lgreco. Not allowed together with the argument `settings`.
//   objective             the unit in which plans count sizes: bits or seconds. With seconds, the controller measures during
//                         training how long the slowest rank sends and compresses, and a layer is sent uncompressed if its
//                         compression saves no time. Default: bits.
//   start_iter            the number of uncompressed steps before the first decision, at least 2. Default: 100.
//   period                the number of steps from one decision to the next, at least 1. With the objective seconds, one more
//                         decision follows 50 steps after the first (window + lead + 1 steps if that is more), unless the
//                         period is shorter. Default: 1000.
//   window                the number of steps whose mean gradient a decision uses, at least 1. If fewer steps have passed since
//                         the last decision, it uses these. Default: 10.
//   lead                  the number of steps between the window and its decision, fewer than start_iter and period. During
//                         these steps another thread may plan (lgreco_controller_take_plan_task); otherwise the call that
//                         begins the decision's step plans. Default: 0.
//   ramp_up               "first,steps": compression begins milder. At start_iter, `default` has the value `first`. Each
//                         decision brings it geometrically closer to its own value, which it reaches after `steps` steps, at
//                         least 1. Allowed if `budget` is size or error, and the policy is uniform, kmeans, or lgreco or paper
//                         without `accordion`. Default: no ramp-up.
//   clusters              the number of clusters of the policy kmeans, at least 1. Default: 6.
//   accordion             "low,high" or "low,high,eta,drop": two parameters of the first method, low above high, and two
//                         thresholds. Under the policy accordion, which needs this option, critical layers get `low` and all
//                         others `high`. Under lgreco and paper, these settings determine the limit of plans instead of the
//                         uniform setting, and both parameters must be candidates. A layer is critical at the first decision,
//                         and if its gradient norm has changed by at least the fraction `eta` since the last one (above 0,
//                         default 0.5). When the learning rate falls by more than the factor `drop` below its highest value
//                         since the last decision (at least 1, default 1.5), all layers get `low`. Default: none.
//   legacy                "bounds; parameters of a phase; ...; steps", such as "1000,100000; 8,6,4; 6,4,2; 900", for the policy
//                         legacy, which needs it. The ascending bounds, in elements, divide the layers into classes, here below
//                         1000, below 100000 and the rest. Each phase has one parameter of the first method per class; another
//                         number of parameters gives LGRECO_LENGTH. The phases divide this many steps of training, at least 1,
//                         equally. A phase takes effect at its first decision, and the last phase has no end. Default: none.
//   error_feedback        true: layers keep their compression error as a residual under all lossy settings except qsgd and
//                         unbiased eden. false: no layer keeps a residual. Default: true.
//   loco_residual_dtype   like residual_dtype, for layers under loco. Default: int8.
//   loco_gain             like gain, for layers under loco. Default: 0.2.
//   loco_reset_every      like reset_every, for layers under loco. Default: 512.
//   non_finite            what lgreco_controller_step does if some rank's gradient holds NaN or infinity; residuals stay
//                         unchanged. error: it fails on every rank before anything is exchanged, and may be repeated. skip: it
//                         replaces all gradients by zeros, with LGRECO_OUTCOME_SKIPPED. pass_through: it exchanges all
//                         gradients uncompressed, with NaN and infinity. With buckets in flight or on nodes, only the affected
//                         buckets fail, become zeros or become NaN (lgreco_bucket_next). Default: error.
//   route                 the way in which ranks average payloads that a collective cannot sum. all_gather: every rank gets all
//                         payloads. scatter_reduce: each rank averages its part of the elements, compresses the mean again and
//                         sends it to all ranks (LGRECO_REQUEST_ALL_TO_ALL and ALL_GATHER_EACH). Payloads of hard-threshold,
//                         sidco and adacomp always take all_gather. Default: all_gather.
//   bucket_bytes          the largest bucket of lgreco_controller_step, in bytes of uncompressed gradients; a larger layer is a
//                         bucket by itself. Default: 4194304.
//   measuring_rank        the rank that measures gradients and plans for all ranks, below the number of workers. On nodes, it
//                         is the number of a node, below the number of nodes, and each rank of this node plans for its peers.
//                         Default: 0.
//   metrics_every         the number of steps between measurements of `relative_error` in lgreco_metrics; 0 means never.
//                         Default: 10.
//   undo                  true: the controller keeps the residuals from before the last step, so that
//                         lgreco_controller_roll_back and lgreco_controller_abandon_step can restore them; this doubles the
//                         memory of residuals. false: it keeps them only if `non_finite` is not error. Default: false.
//   residual_dtype        the type in which residuals are stored: float32, bfloat16 or int8. Default: float32.
//   gain                  the factor a, above 0 and at most 1, in the update of a residual r: r becomes r + a (gradient -
//                         decoded payload). Default: 1, which is classic error feedback.
//   reset_every           the number of steps between resets of the residuals to zeros; 0 means never. Default: 0.

// What a step has done to the gradients.
LGRECO_ENUM(lgreco_outcome) {
    LGRECO_OUTCOME_EXCHANGED = 0,  // The gradients are the means over the workers, after compression.
    // Some rank's gradients were not finite; all gradients are now zeros. Do not update the parameters. After a step with
    // buckets in flight, only the gradients of the affected buckets are zeros, and the other means must be ignored.
    // Residuals are as before the step.
    LGRECO_OUTCOME_SKIPPED = 1,
    // Some rank's gradients were not finite. All gradients are now uncompressed means, which are not finite either. After
    // a step with buckets in flight, only the gradients of the affected buckets are replaced, by NaN.
    LGRECO_OUTCOME_PASSED_THROUGH = 2,
    // After a step with buckets in flight, the exchange of some bucket failed, and its gradients are unusable. Usually the
    // exchange failed on every rank. Some failures affect only this rank: a mean is too large for its shard's element type
    // (LGRECO_ELEMENT_OVERFLOW), or the bucket was closed during its exchange. The next bucket or step then fails on all
    // ranks.
    LGRECO_OUTCOME_FAILED = 3,
};

// The report of a step. All fields are the same on every rank, with these exceptions: the seconds; `bytes_out` if the
// length of a payload depends on its values; the outcome if a bucket failed on one rank only. On nodes, the bytes
// count only this rank's shards. Begin with LGRECO_REPORT_INIT.
typedef struct lgreco_report {
    // Set by the INIT macro.
    size_t struct_size;
    // The step's number, from 0.
    uint64_t step;
    // What the step has done to the gradients.
    lgreco_outcome outcome;
    // 1 if the step was the first under new settings, else 0.
    uint32_t switched;
    // Bytes of one worker's gradients.
    uint64_t bytes_in;
    // Bytes that this worker sent for its gradients.
    uint64_t bytes_out;
    // Seconds for checking gradients and waiting for other ranks. At a decision, includes measuring, planning and
    // switching.
    double planning_seconds;
    // Seconds for compressing and exchanging.
    double exchange_seconds;
} lgreco_report;
#define LGRECO_REPORT_INIT {LGRECO_SIZE_OF(lgreco_report), 0, LGRECO_OUTCOME_EXCHANGED, 0, 0, 0, 0, 0}

// Performs a training step. Call it on every rank after every backward pass. gradients[l] has layer l's type and
// number of elements, and is replaced by its mean over the workers. `learning_rate` must be the same on all ranks.
// Only the option `accordion` uses the learning rate. `report` may be NULL. Allocates at the first step, at decisions
// and when the window of a decision begins.
//
// If the call fails on one rank, it fails on all ranks, even for wrong pointers and lengths. The rank at fault gets
// the code of its error. The other ranks get LGRECO_PEER, with the failed rank and its code in the message. The other
// ranks do not learn of the failure if this rank cannot use the network: if `controller` or `collective` is wrong, or
// another call uses the controller (LGRECO_BUSY).
//
// After LGRECO_NON_FINITE_GRADIENT and the following errors, everything is unchanged and the step may be repeated (for
// nodes see lgreco_controller_create_on_nodes). LGRECO_PEER_PLAN means that ranks differ in options or layers; the
// message names the first difference. LGRECO_PARAMETER can mean that the collective's rank or number of workers
// differs from the controller's. LGRECO_STEP_ORDER means that a step of lgreco_controller_begin_step is under way. The
// codes of planning are possible too.
//
// LGRECO_OVERFLOW, LGRECO_ELEMENT_OVERFLOW and LGRECO_PEER_MESSAGE end the step. The step's gradients are then
// unusable, but the next step works. After LGRECO_COLLECTIVE, ranks may have different states: load a saved state.
lgreco_status lgreco_controller_step(struct lgreco_controller *controller,
                                     const struct lgreco_collective *collective,
                                     void *const *gradients,
                                     size_t gradients_len,
                                     double learning_rate,
                                     struct lgreco_report *report);

// Frees a controller and sets the caller's pointer to NULL. Does nothing for NULL, or for a pointer to NULL.
lgreco_status lgreco_controller_destroy(struct lgreco_controller **controller);

#ifdef __cplusplus
} // extern "C"
#endif

#endif // LGRECO_H
