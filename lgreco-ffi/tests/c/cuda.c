// Tests that lgreco_cuda.h gives the same tables, payloads, residuals and failures on device pointers as the CPU. Needs
// a GPU or the fake driver of lgreco-cuda. `cuda missing` expects neither. `cuda FOLDER` stores compiled kernels in the
// folder.
#define _POSIX_C_SOURCE 200112L  // setenv
#include "driver.h"

#include <math.h>

enum { ROWS = 64, COLS = 48, ELEMENTS = ROWS * COLS, BYTES = 4 * ELEMENTS, ROOM = BYTES + 64 };
enum { BIAS = 96, BUCKET = ELEMENTS + BIAS, BUCKET_ROOM = 32 * BUCKET };
enum { LAYERS = 4, SEED = 7, RANK = 2 };

static const size_t MATRIX[] = {ROWS, COLS}, CONVOLUTION[] = {COLS, 4, 4, 4}, VECTOR[] = {ELEMENTS};
static const char *const NAMES[LAYERS] = {"bias", "fc1", "fc2", "conv"};

static lgreco_cuda *cuda;
static float f32[ELEMENTS];
static uint16_t f16[ELEMENTS], bf16[ELEMENTS];
static lgreco_layer on_host[LAYERS], model[LAYERS];  // the same values on both sides
static uint8_t one[ROOM], two[ROOM];
static float decoded[ELEMENTS], other[ELEMENTS];
static uint8_t *payload;           // on the device
static float *values;  // on the device
static void *bucket_memory[2], *bucket_values;  // likewise
static size_t length;

static void missing(void) {
    if (has_driver()) return;
    int any;
    lgreco_context *gpu = (lgreco_context *)(void *)&any;
    cuda = (lgreco_cuda *)(void *)&any;
    STATUS(LGRECO_UNAVAILABLE, lgreco_cuda_create(0, &cuda));
    TEXT("no NVIDIA driver: the library libcuda", lgreco_message());
    CHECK(cuda == NULL);
    STATUS(LGRECO_UNAVAILABLE, lgreco_cuda_create_on_stream(NULL, &cuda));
    STATUS(LGRECO_UNAVAILABLE, lgreco_context_create("cuda", &gpu));
    TEXT("no NVIDIA driver: the library libcuda", lgreco_message());
    CHECK(gpu == NULL);
}

static void prepare(void) {
    fill(f32, ELEMENTS, 1);
    for (int i = 0; i < ELEMENTS; i++) {
        uint32_t bits;
        memcpy(&bits, &f32[i], 4);
        bf16[i] = (uint16_t)(bits >> 16);
        f16[i] = (uint16_t)((bits >> 16 & 0x8000) | (0x3000 + (bits >> 13 & 0x7ff)));  // of magnitude 1/8 to 1/2
    }
    const void *const host[LAYERS] = {f32, f32, bf16, f16};
    const size_t *const dims[LAYERS] = {VECTOR, MATRIX, MATRIX, CONVOLUTION};
    const size_t ranks[LAYERS] = {1, 2, 2, 4};
    const lgreco_dtype dtypes[LAYERS] = {LGRECO_DTYPE_F32, LGRECO_DTYPE_F32, LGRECO_DTYPE_BF16, LGRECO_DTYPE_F16};
    for (int l = 0; l < LAYERS; l++) {
        on_host[l] = (lgreco_layer)LGRECO_LAYER_INIT;
        on_host[l].name = NAMES[l];
        on_host[l].dims = dims[l];
        on_host[l].dims_len = ranks[l];
        on_host[l].dtype = dtypes[l];
        on_host[l].values = host[l];
        model[l] = on_host[l];
        const size_t bytes = dtypes[l] == LGRECO_DTYPE_F32 ? 4 * ELEMENTS : 2 * ELEMENTS;
        model[l].values = l == 0 ? NULL : on_device(host[l], bytes);
    }
    payload = on_device(NULL, ROOM);
    values = on_device(NULL, 4 * ELEMENTS);
    for (int i = 0; i < 2; i++) bucket_memory[i] = on_device(NULL, BUCKET_ROOM);
    bucket_values = on_device(NULL, 4 * BUCKET);
}

static lgreco_rng_stream words(int layer, uint32_t step) {
    const lgreco_rng_stream words = {SEED, step, (uint32_t)layer, RANK};
    return words;
}

static lgreco_compressor *compressor_of(int layer, const char *setting) {
    Options options = OPTIONS;
    lgreco_compressor *made = NULL;
    set_number(&options, "random_seed", SEED);
    set_number(&options, "layer_index", (uint32_t)layer);
    set_number(&options, "rank", RANK);
    OK(lgreco_compressor_create(NULL, &on_host[layer], setting, listed(&options), &made));
    return made;
}

// Whether all values are equal. PowerSGD adds in another order on the GPU, so its values need only be close.
static int near(const float *a, const float *b, int exactly) {
    for (int i = 0; i < ELEMENTS; i++)
        if (fabsf(a[i] - b[i]) > (exactly ? 0.0f : 1e-4f)) return 0;
    return 1;
}

// Tests all ways to encode a gradient on the device and to decode it to the device.
static void payloads(int layer, const char *setting) {
    const int exactly = strncmp(setting, "powersgd", 8) != 0;
    const lgreco_rng_stream stream_of = words(layer, 3);
    lgreco_compressor *compressor = compressor_of(layer, setting);
    size_t needed = 0, expected = 0;
    OK(lgreco_cuda_payload_len(cuda, &model[layer], setting, &needed));
    OK(lgreco_compressor_encode(compressor, 3, on_host[layer].values, one, ROOM, &expected));
    OK(lgreco_cuda_encode(cuda, &model[layer], setting, &stream_of, two, needed, &length));
    CHECK(length == needed && length == expected && memcmp(one, two, exactly ? length : 16) == 0);
    OK(lgreco_compressor_decode(compressor, one, expected, decoded, ELEMENTS));
    OK(lgreco_cuda_decode(cuda, two, length, values, ELEMENTS));
    OK(lgreco_cuda_synchronize(cuda));
    to_host(other, values, sizeof other);
    CHECK(near(decoded, other, exactly));
    if (strcmp(setting, "dense") != 0) {
        memset(other, 0, sizeof other);
        OK(lgreco_cuda_encode_to_device(cuda, &model[layer], setting, &stream_of, payload, ROOM, &length));
        OK(lgreco_cuda_decode_on_device(cuda, &model[layer], setting, payload, length, values, ELEMENTS));
        OK(lgreco_cuda_check(cuda));
        to_host(one, payload, length);
        to_host(other, values, sizeof other);
        CHECK(length == needed && memcmp(one, two, length) == 0 && near(decoded, other, exactly));
    }
    OK(lgreco_compressor_destroy(&compressor));
}

static const lgreco_cuda_calls ALL = LGRECO_CUDA_MEASURE | LGRECO_CUDA_ENCODE | LGRECO_CUDA_DECODE |
                                     LGRECO_CUDA_ENCODE_TO_DEVICE | LGRECO_CUDA_DECODE_ON_DEVICE;

// Measures a table, makes a plan for it, and compresses with the plan's settings.
static void tables(const char *methods) {
    Options search = OPTIONS;
    lgreco_table *expected = NULL, *found = NULL;
    lgreco_table_view a = LGRECO_TABLE_VIEW_INIT, b = LGRECO_TABLE_VIEW_INIT;
    lgreco_plan *plan = NULL;
    lgreco_plan_view chosen = LGRECO_PLAN_VIEW_INIT;
    uint64_t needed = 0, held = 0;
    set(&search, "method", methods);
    set_number(&search, "random_seed", SEED);
    // Each kind of call needs less memory than all kinds together. After the reservation, no call allocates more
    // memory.
    for (lgreco_cuda_calls calls = LGRECO_CUDA_MEASURE; calls < ALL; calls <<= 1) {
        OK(lgreco_cuda_workspace_bytes(cuda, model, LAYERS, listed(&search), calls, &held));
        OK(lgreco_cuda_workspace_bytes(cuda, model, LAYERS, listed(&search), ALL, &needed));
        CHECK(held > 0 && held < needed);
    }
    OK(lgreco_cuda_reserve(cuda, model, LAYERS, listed(&search), ALL));
    OK(lgreco_cuda_held_bytes(cuda, &held));
    CHECK(held >= needed);
    OK(lgreco_cuda_measure(cuda, model, LAYERS, listed(&search), &found));
    OK(lgreco_table_measure(NULL, on_host, LAYERS, listed(&search), &expected));
    OK(lgreco_table_get(expected, &a));
    OK(lgreco_table_get(found, &b));
    CHECK(a.layers == LAYERS - 1 && b.layers == a.layers);
    for (size_t l = 0; l < b.layers; l++)
        CHECK(a.ends[l] == b.ends[l] && b.model_layers[l] == l + 1 && strcmp(b.names[l], NAMES[l + 1]) == 0);
    for (size_t o = 0; o < b.ends[b.layers - 1]; o++) {
        CHECK(a.choices[o].size == b.choices[o].size);
        CHECK(fabs(a.choices[o].error - b.choices[o].error) <= 1e-4 * a.choices[o].error);
    }
    OK(lgreco_plan_solve(&b, NULL, &plan));
    OK(lgreco_plan_get(plan, &chosen));
    for (size_t l = 0; l < b.layers; l++) {
        lgreco_setting setting;
        OK(lgreco_table_setting(found, l, chosen.options[l], &setting));
        payloads((int)b.model_layers[l], setting.text);
    }
    OK(lgreco_cuda_held_bytes(cuda, &needed));
    CHECK(held == needed);
    OK(lgreco_plan_destroy(&plan));
    OK(lgreco_table_destroy(&found));
    OK(lgreco_table_destroy(&expected));
}

#define NULL_(call) STATUS(LGRECO_NULL_POINTER, call)

// Asserts that two tables have the same names, options and settings, and errors that are equal bit for bit.
static void same_table(const lgreco_table *one_table, const lgreco_table *other_table) {
    lgreco_table_view a = LGRECO_TABLE_VIEW_INIT, b = LGRECO_TABLE_VIEW_INIT;
    OK(lgreco_table_get(one_table, &a));
    OK(lgreco_table_get(other_table, &b));
    CHECK(a.layers == b.layers && memcmp(a.ends, b.ends, a.layers * sizeof *a.ends) == 0);
    const size_t options = a.ends[a.layers - 1];
    CHECK(memcmp(a.choices, b.choices, options * sizeof *a.choices) == 0);
    for (size_t l = 0; l < a.layers; l++) {
        CHECK(a.model_layers[l] == b.model_layers[l] && strcmp(a.names[l], b.names[l]) == 0);
        for (size_t o = l == 0 ? 0 : a.ends[l - 1]; o < a.ends[l]; o++) {
            lgreco_setting x, y;
            const size_t option = o - (l == 0 ? 0 : a.ends[l - 1]);
            OK(lgreco_table_setting(one_table, l, option, &x));
            OK(lgreco_table_setting(other_table, l, option, &y));
            CHECK(says(&x, y.text) && strcmp(a.labels[o], b.labels[o]) == 0);
        }
    }
}

// Device memory for rows. Guard bytes follow the workspace and the results. No call may overwrite the guard bytes.
typedef struct {
    uint64_t workspace_bytes, results_bytes;
    uint8_t *workspace, *results;
} rows_memory;

enum { BEHIND = 256 };

static rows_memory memory_for_rows(const Options *search) {
    static const uint8_t behind[BEHIND];
    rows_memory memory = {0, 0, NULL, NULL};
    OK(lgreco_cuda_rows_bytes(cuda, model, LAYERS, listed(search), &memory.workspace_bytes, &memory.results_bytes));
    CHECK(memory.results_bytes > 0 && memory.results_bytes % 8 == 0);
    memory.workspace = on_device(NULL, memory.workspace_bytes + BEHIND);
    memory.results = on_device(NULL, memory.results_bytes + BEHIND);
    to_device(memory.workspace + memory.workspace_bytes, behind, BEHIND);
    to_device(memory.results + memory.results_bytes, behind, BEHIND);
    return memory;
}

static void let_go_of_rows(const rows_memory *memory) {
    uint8_t behind[2 * BEHIND];
    to_host(behind, memory->workspace + memory->workspace_bytes, BEHIND);
    to_host(behind + BEHIND, memory->results + memory->results_bytes, BEHIND);
    for (int i = 0; i < 2 * BEHIND; i++) CHECK(behind[i] == 0);
    give_back(memory->workspace);
    give_back(memory->results);
}

static lgreco_status enqueue_rows(const rows_memory *memory, const Options *search) {
    return lgreco_cuda_enqueue_rows(cuda, model, LAYERS, listed(search), memory->workspace, memory->workspace_bytes,
                                    memory->results, memory->results_bytes);
}

// lgreco_cuda_enqueue_rows and lgreco_cuda_read_rows give the same table as lgreco_cuda_measure, but without waiting.
static void rows_later(const char *methods) {
    Options search = OPTIONS;
    lgreco_table *expected = NULL, *found = NULL;
    uint64_t held = 0, still_held = 0;
    int before[NUMBERS] = {0};
    set(&search, "method", methods);
    set_number(&search, "random_seed", SEED);
    OK(lgreco_cuda_measure(cuda, model, LAYERS, listed(&search), &expected));
    const rows_memory memory = memory_for_rows(&search);
    // The first call may allocate memory for tables on the host.
    OK(enqueue_rows(&memory, &search));
    OK(lgreco_cuda_synchronize(cuda));
    uint8_t *const again = malloc(memory.results_bytes + 1);
    memset(again, 0xee, memory.results_bytes);
    to_device(memory.results, again, memory.results_bytes);
    OK(lgreco_cuda_held_bytes(cuda, &held));
    if (driver.state != NULL) driver.state(before);
    OK(enqueue_rows(&memory, &search));
    const copied copy = enqueue_copy(memory.results, memory.results_bytes);
    CHECK(only_launched(before) && is_on_its_way(&copy));
    wait_for(&copy);
    OK(lgreco_cuda_read_rows(cuda, model, LAYERS, listed(&search), copy.bytes, copy.length, &found));
    CHECK(only_launched(before));
    same_table(expected, found);
    OK(lgreco_table_destroy(&found));
    // The copy may be unaligned.
    memcpy(again + 1, copy.bytes, copy.length);
    OK(lgreco_cuda_read_rows(cuda, model, LAYERS, listed(&search), again + 1, copy.length, &found));
    same_table(expected, found);
    OK(lgreco_table_destroy(&found));
    OK(lgreco_cuda_held_bytes(cuda, &still_held));
    CHECK(held == still_held);
    // Arbitrary bytes give a table or a failure, but never LGRECO_PANIC.
    for (uint32_t seed = 1; seed <= 100; seed++) {
        for (size_t i = 0; i < copy.length; i++) copy.bytes[i] = (uint8_t)((seed * (uint32_t)(i + 1) * 2654435761u) >> 24);
        const lgreco_status status =
            lgreco_cuda_read_rows(cuda, model, LAYERS, listed(&search), copy.bytes, copy.length, &found);
        CHECK(status == LGRECO_OK || status == LGRECO_OPTION_ERROR || status == LGRECO_DEVICE ||
              status == LGRECO_OVERFLOW);
        CHECK((status == LGRECO_OK) == (found != NULL));
        OK(lgreco_table_destroy(&found));
    }
    let_go(&copy);
    free(again);
    let_go_of_rows(&memory);
    OK(lgreco_table_destroy(&expected));
}

// Tests wrong arguments of lgreco_cuda_rows_bytes, lgreco_cuda_enqueue_rows and lgreco_cuda_read_rows.
static void arguments_of_rows(void) {
    Options search = OPTIONS;
    lgreco_table *table = NULL;
    uint64_t bytes = 5, more = 6;
    const rows_memory memory = memory_for_rows(NULL);
    const uint64_t room = memory.workspace_bytes, results_room = memory.results_bytes;
    uint8_t *const workspace = memory.workspace, *const results = memory.results, *const copy = calloc(1, results_room + 8);
    lgreco_layer broken[LAYERS];
    memcpy(broken, model, sizeof broken);
    NULL_(lgreco_cuda_rows_bytes(cuda, NULL, 1, NULL, &bytes, &more));
    NULL_(lgreco_cuda_rows_bytes(cuda, model, LAYERS, NULL, NULL, &more));
    TEXT("workspace_bytes is NULL", lgreco_message());
    NULL_(lgreco_cuda_rows_bytes(cuda, model, LAYERS, NULL, &bytes, NULL));
    TEXT("results_bytes is NULL", lgreco_message());
    STATUS(LGRECO_OVERLAP, lgreco_cuda_rows_bytes(cuda, model, LAYERS, NULL, &bytes, &bytes));
    CHECK(bytes == 5 && more == 6);
    NULL_(lgreco_cuda_enqueue_rows(cuda, NULL, 1, NULL, workspace, room, results, results_room));
    NULL_(lgreco_cuda_enqueue_rows(cuda, model, LAYERS, NULL, NULL, room, results, results_room));
    TEXT("workspace is NULL", lgreco_message());
    NULL_(lgreco_cuda_enqueue_rows(cuda, model, LAYERS, NULL, workspace, room, NULL, results_room));
    TEXT("results is NULL", lgreco_message());
    STATUS(LGRECO_LENGTH, lgreco_cuda_enqueue_rows(cuda, model, LAYERS, NULL, workspace, room - 1, results, results_room));
    TEXT("bytes of the rows' workspace", lgreco_message());
    STATUS(LGRECO_LENGTH, lgreco_cuda_enqueue_rows(cuda, model, LAYERS, NULL, workspace, room, results, results_room - 1));
    TEXT("bytes of the rows' results", lgreco_message());
    STATUS(LGRECO_ALIGNMENT,
           lgreco_cuda_enqueue_rows(cuda, model, LAYERS, NULL, workspace + 128, room, results, results_room));
    TEXT("workspace is not aligned", lgreco_message());
    STATUS(LGRECO_ALIGNMENT,
           lgreco_cuda_enqueue_rows(cuda, model, LAYERS, NULL, workspace, room, results + 4, results_room));
    TEXT("results is not aligned", lgreco_message());
    STATUS(LGRECO_OVERLAP,
           lgreco_cuda_enqueue_rows(cuda, model, LAYERS, NULL, workspace, room, workspace + room - 8, results_room));
    STATUS(LGRECO_OVERLAP, lgreco_cuda_enqueue_rows(cuda, model, LAYERS, NULL, workspace, room,
                                                    (char *)(uintptr_t)model[1].values + BYTES - 8, results_room));
    TEXT("layer `fc1`: results overlaps values", lgreco_message());
    broken[2].values = workspace;
    STATUS(LGRECO_OVERLAP,
           lgreco_cuda_enqueue_rows(cuda, broken, LAYERS, NULL, workspace, room, results, results_room));
    TEXT("layer `fc2`: workspace overlaps values", lgreco_message());
    // The values of a layer that the table leaves out are not checked. All other layers need values.
    broken[0].values = workspace;
    broken[2] = model[2];
    OK(lgreco_cuda_enqueue_rows(cuda, broken, LAYERS, NULL, workspace, room, results, results_room));
    broken[2].values = NULL;
    NULL_(lgreco_cuda_enqueue_rows(cuda, broken, LAYERS, NULL, workspace, room, results, results_room));
    TEXT("layer `fc2`: values is NULL", lgreco_message());
    NULL_(lgreco_cuda_read_rows(cuda, broken, LAYERS, NULL, copy, results_room, &table));
    TEXT("layer `fc2`: values is NULL", lgreco_message());
    OK(lgreco_cuda_rows_bytes(cuda, broken, LAYERS, NULL, &bytes, &more));
    CHECK(bytes == room && more == results_room);
    NULL_(lgreco_cuda_read_rows(cuda, NULL, 1, NULL, copy, results_room, &table));
    NULL_(lgreco_cuda_read_rows(cuda, model, LAYERS, NULL, NULL, results_room, &table));
    TEXT("copy is NULL", lgreco_message());
    NULL_(lgreco_cuda_read_rows(cuda, model, LAYERS, NULL, copy, results_room, NULL));
    const size_t lengths[] = {0, 1, 8, results_room - 8, results_room - 1, results_room + 1, results_room + 8};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        table = (lgreco_table *)(void *)copy;
        STATUS(LGRECO_LENGTH, lgreco_cuda_read_rows(cuda, model, LAYERS, NULL, copy, lengths[i], &table));
        CHECK(table == NULL);
    }
    // A copy of zeros is accepted.
    OK(lgreco_cuda_read_rows(cuda, model, LAYERS, NULL, copy, results_room, &table));
    OK(lgreco_table_destroy(&table));
    // All calls refuse wrong options with the same code.
    const char *methods[] = {"qsgd", "loco", "qsgd", "qsgd", "no method"};
    for (size_t i = 0; i < sizeof methods / sizeof *methods; i++) {
        search = (Options)OPTIONS;
        set(&search, "method", methods[i]);
        if (i == 2) set(&search, "reduce_dtype", "float16");
        if (i == 3) set(&search, "metric", "99");
        const size_t layers = i == 0 ? 1 : LAYERS;  // only a bias
        const lgreco_status expected = lgreco_cuda_measure(cuda, model, layers, listed(&search), &table);
        CHECK(expected != LGRECO_OK && (i > 0 || expected == LGRECO_EMPTY_TABLE));
        STATUS(expected, lgreco_cuda_rows_bytes(cuda, model, layers, listed(&search), &bytes, &more));
        STATUS(expected, lgreco_cuda_enqueue_rows(cuda, model, layers, listed(&search), workspace, room, results, results_room));
        STATUS(expected, lgreco_cuda_read_rows(cuda, model, layers, listed(&search), copy, results_room, &table));
        CHECK(table == NULL);
    }
    OK(lgreco_cuda_synchronize(cuda));
    free(copy);
    let_go_of_rows(&memory);
}

// Tests wrong arguments of the other calls. misuse.c has the calls without a handle.
static void arguments(void) {
    const lgreco_rng_stream stream_of = words(1, 0);
    const lgreco_layer *const fc1 = &model[1];
    const char *const setting = "qsgd 4";
    lgreco_table *table = NULL;
    lgreco_layer broken = *fc1;
    uint64_t bytes = 0;
    NULL_(lgreco_cuda_held_bytes(cuda, NULL));
    NULL_(lgreco_cuda_measure(cuda, NULL, 1, NULL, &table));
    NULL_(lgreco_cuda_measure(cuda, fc1, 1, NULL, NULL));
    NULL_(lgreco_cuda_workspace_bytes(cuda, NULL, 1, NULL, ALL, &bytes));
    NULL_(lgreco_cuda_workspace_bytes(cuda, fc1, 1, NULL, ALL, NULL));
    NULL_(lgreco_cuda_reserve(cuda, NULL, 1, NULL, ALL));
    STATUS(LGRECO_UNKNOWN_CONSTANT, lgreco_cuda_workspace_bytes(cuda, fc1, 1, NULL, ALL + 1, &bytes));
    STATUS(LGRECO_UNKNOWN_CONSTANT, lgreco_cuda_reserve(cuda, fc1, 1, NULL, 1u << 31));
    NULL_(lgreco_cuda_payload_len(cuda, NULL, setting, &length));
    NULL_(lgreco_cuda_payload_len(cuda, fc1, NULL, &length));
    NULL_(lgreco_cuda_payload_len(cuda, fc1, setting, NULL));
    NULL_(lgreco_cuda_encode(cuda, NULL, setting, &stream_of, one, ROOM, &length));
    NULL_(lgreco_cuda_encode(cuda, fc1, NULL, &stream_of, one, ROOM, &length));
    NULL_(lgreco_cuda_encode(cuda, fc1, setting, NULL, one, ROOM, &length));
    NULL_(lgreco_cuda_encode(cuda, fc1, setting, &stream_of, NULL, ROOM, &length));
    NULL_(lgreco_cuda_encode(cuda, fc1, setting, &stream_of, one, ROOM, NULL));
    NULL_(lgreco_cuda_encode_to_device(cuda, NULL, setting, &stream_of, payload, ROOM, &length));
    NULL_(lgreco_cuda_encode_to_device(cuda, fc1, NULL, &stream_of, payload, ROOM, &length));
    NULL_(lgreco_cuda_encode_to_device(cuda, fc1, setting, NULL, payload, ROOM, &length));
    NULL_(lgreco_cuda_encode_to_device(cuda, fc1, setting, &stream_of, NULL, ROOM, &length));
    NULL_(lgreco_cuda_encode_to_device(cuda, fc1, setting, &stream_of, payload, ROOM, NULL));
    OK(lgreco_cuda_encode(cuda, fc1, setting, &stream_of, one, ROOM, &length));
    NULL_(lgreco_cuda_decode(cuda, NULL, length, values, ELEMENTS));
    NULL_(lgreco_cuda_decode(cuda, one, length, NULL, ELEMENTS));
    NULL_(lgreco_cuda_decode_on_device(cuda, NULL, setting, payload, length, values, ELEMENTS));
    NULL_(lgreco_cuda_decode_on_device(cuda, fc1, NULL, payload, length, values, ELEMENTS));
    NULL_(lgreco_cuda_decode_on_device(cuda, fc1, setting, NULL, length, values, ELEMENTS));
    NULL_(lgreco_cuda_decode_on_device(cuda, fc1, setting, payload, length, NULL, ELEMENTS));

    broken.values = NULL;
    NULL_(lgreco_cuda_encode(cuda, &broken, setting, &stream_of, one, ROOM, &length));
    TEXT("layer `fc1`: values is NULL", lgreco_message());
    NULL_(lgreco_cuda_measure(cuda, &broken, 1, NULL, &table));
    TEXT("layer `fc1`: values is NULL", lgreco_message());
    OK(lgreco_cuda_payload_len(cuda, &broken, setting, &length));  // needs no values
    broken.values = (const char *)fc1->values + 2;
    STATUS(LGRECO_ALIGNMENT, lgreco_cuda_encode(cuda, &broken, setting, &stream_of, one, ROOM, &length));
    STATUS(LGRECO_ALIGNMENT, lgreco_cuda_decode(cuda, one, length, (float *)(void *)(payload + 2), ELEMENTS));
    STATUS(LGRECO_ALIGNMENT,
           lgreco_cuda_encode_to_device(cuda, fc1, setting, &stream_of, payload + 2, ROOM - 2, &length));
    STATUS(LGRECO_OVERLAP, lgreco_cuda_decode_on_device(cuda, fc1, setting, payload, length,
                                                        (float *)(void *)payload, ELEMENTS));
    STATUS(LGRECO_LENGTH, lgreco_cuda_encode(cuda, fc1, setting, &stream_of, one, length - 1, &length));
    STATUS(LGRECO_LENGTH, lgreco_cuda_encode_to_device(cuda, fc1, setting, &stream_of, payload, length - 1, &length));
    STATUS(LGRECO_LENGTH, lgreco_cuda_decode(cuda, one, length, values, ELEMENTS - 1));
    STATUS(LGRECO_LENGTH, lgreco_cuda_decode(cuda, one, length - 1, values, ELEMENTS));
    STATUS(LGRECO_LENGTH, lgreco_cuda_decode_on_device(cuda, fc1, setting, payload, length - 1, values, ELEMENTS));
    STATUS(LGRECO_LENGTH, lgreco_cuda_decode_on_device(cuda, fc1, setting, payload, length, values, ELEMENTS - 1));
    STATUS(LGRECO_UNAVAILABLE, lgreco_cuda_encode(cuda, fc1, "loco 512", &stream_of, one, ROOM, &length));
    TEXT("layer `fc1`: this setting does not run on CUDA devices", lgreco_message());
    STATUS(LGRECO_PARAMETER, lgreco_cuda_payload_len(cuda, fc1, "qsgd 9", &length));
    STATUS(LGRECO_EMPTY_TABLE, lgreco_cuda_measure(cuda, model, 1, NULL, &table));
    uint64_t not_one[4] = {0, 0, 0, 0};
    STATUS(LGRECO_HANDLE, lgreco_cuda_synchronize((lgreco_cuda *)(void *)not_one));
    CHECK(table == NULL);
}

// Tests which calls report a NaN in a gradient at once, and which calls report the NaN later. Leaves the NaN in place.
static void not_finite(void) {
    const lgreco_rng_stream stream_of = words(1, 0);
    const char *const setting = "topk 50", *const qsgd = "qsgd 4";
    lgreco_table *table = NULL;
    f32[5] = NAN;
    CHECK(driver.to_device((uint64_t)(uintptr_t)model[1].values, f32, sizeof f32, stream) == 0);
    STATUS(LGRECO_NON_FINITE, lgreco_cuda_encode(cuda, &model[1], setting, &stream_of, one, ROOM, &length));
    TEXT("layer `fc1`: element 5 is NaN", lgreco_message());
    STATUS(LGRECO_NON_FINITE, lgreco_cuda_measure(cuda, model, LAYERS, NULL, &table));
    TEXT("layer `fc1`: element 5 is NaN", lgreco_message());
    // Enqueuing rows does not report the NaN. Reading the rows reports the NaN, as long as the gradient is unchanged.
    const rows_memory memory = memory_for_rows(NULL);
    OK(enqueue_rows(&memory, NULL));
    const copied copy = enqueue_copy(memory.results, memory.results_bytes);
    wait_for(&copy);
    STATUS(LGRECO_NON_FINITE, lgreco_cuda_read_rows(cuda, model, LAYERS, NULL, copy.bytes, copy.length, &table));
    TEXT("layer `fc1`: element 5 is NaN", lgreco_message());
    f32[5] = 0.5f;
    to_device((void *)(uintptr_t)model[1].values, f32, sizeof f32);
    STATUS(LGRECO_DEVICE, lgreco_cuda_read_rows(cuda, model, LAYERS, NULL, copy.bytes, copy.length, &table));
    TEXT("layer `fc1`: the device memory of a gradient was written while it was in use", lgreco_message());
    f32[5] = NAN;
    to_device((void *)(uintptr_t)model[1].values, f32, sizeof f32);
    let_go(&copy);
    let_go_of_rows(&memory);
    CHECK(table == NULL);
    // The call's number in the message also counts decoding calls, even for QSGD, whose decoding cannot fail. Refused
    // calls are not counted.
    OK(lgreco_cuda_encode_to_device(cuda, &model[2], qsgd, &stream_of, payload, ROOM, &length));
    OK(lgreco_cuda_decode_on_device(cuda, &model[2], qsgd, payload, length, values, ELEMENTS));
    STATUS(LGRECO_LENGTH, lgreco_cuda_decode_on_device(cuda, &model[2], qsgd, payload, 5, values, ELEMENTS));
    OK(lgreco_cuda_encode_to_device(cuda, &model[1], setting, &stream_of, payload, ROOM, &length));
    STATUS(LGRECO_NON_FINITE, lgreco_cuda_check(cuda));
    TEXT("call 2 since the last check: element 5 is NaN", lgreco_message());
    OK(lgreco_cuda_check(cuda));
}

// Messages about failures of the fake driver name no layer. Calls on a context give the same messages.
static void failures_of_the_device(void) {
    if (driver.state == NULL) return;
    lgreco_context *gpu = NULL;
    const lgreco_setting qsgd = {"qsgd 4"};
    lgreco_compressor *compressor = NULL;
    lgreco_table *table = NULL;
    double error = 0;
    const lgreco_rng_stream stream_of = words(1, 0);
    OK(lgreco_context_create("cuda", &gpu));
    OK(lgreco_compressor_create(gpu, &on_host[2], qsgd.text, NULL, &compressor));
    CHECK(setenv("FAKE_CUDA_FAIL", "cuMemAllocAsync=2", 1) == 0);
    STATUS(LGRECO_OUT_OF_MEMORY, lgreco_cuda_measure(cuda, model, LAYERS, NULL, &table));
    TEXT("the device is out of memory: ", lgreco_message());
    STATUS(LGRECO_OUT_OF_MEMORY, lgreco_cuda_reserve(cuda, model, LAYERS, NULL, ALL));
    TEXT("the device is out of memory: ", lgreco_message());
    STATUS(LGRECO_OUT_OF_MEMORY, lgreco_cuda_encode(cuda, &model[2], qsgd.text, &stream_of, one, ROOM, &length));
    TEXT("the device is out of memory: ", lgreco_message());
    STATUS(LGRECO_OUT_OF_MEMORY, lgreco_measure(gpu, &on_host[2], &qsgd, 1, 0, 0, &error, NULL));
    TEXT("the device is out of memory: ", lgreco_message());
    STATUS(LGRECO_OUT_OF_MEMORY, lgreco_table_measure(gpu, &on_host[2], 1, NULL, &table));
    TEXT("the device is out of memory: ", lgreco_message());
    STATUS(LGRECO_OUT_OF_MEMORY, lgreco_compressor_encode(compressor, 0, bf16, one, ROOM, &length));
    TEXT("the device is out of memory: ", lgreco_message());
    CHECK(setenv("FAKE_CUDA_FAIL", "cuStreamSynchronize=700", 1) == 0);
    STATUS(LGRECO_DEVICE, lgreco_compressor_encode(compressor, 0, bf16, one, ROOM, &length));
    TEXT("the driver failed in cuStreamSynchronize: ", lgreco_message());
    CHECK(setenv("FAKE_CUDA_FAIL", "cuStreamCreate=2", 1) == 0);
    lgreco_cuda *other_cuda = NULL;
    STATUS(LGRECO_DEVICE, lgreco_cuda_create(0, &other_cuda));
    CHECK(unsetenv("FAKE_CUDA_FAIL") == 0 && other_cuda == NULL);
    OK(lgreco_compressor_encode(compressor, 0, bf16, one, ROOM, &length));
    OK(lgreco_compressor_destroy(&compressor));
    OK(lgreco_context_destroy(&gpu));
}

// There are no kernels for PowerSGD with ranks above 1024. Calls with device pointers refuse such ranks. Contexts use
// the CPU for such ranks. The values contain a NaN, which the CPU reports before it computes anything.
static void large_ranks(void) {
    enum { SIDE = 2100 };
    static float square[SIDE * SIDE];
    static uint8_t room[4 * SIDE * SIDE];
    static const size_t dims[] = {SIDE, SIDE};
    const lgreco_rng_stream stream_of = words(1, 0);
    lgreco_context *gpu = NULL;
    const lgreco_setting power = {"powersgd 1025"};
    lgreco_compressor *compressor = NULL;
    lgreco_layer wide = LGRECO_LAYER_INIT;
    double error = 0;
    square[7] = NAN;
    wide.name = "wide";
    wide.dims = dims;
    wide.dims_len = 2;
    wide.values = square;
    OK(lgreco_context_create("cuda", &gpu));
    OK(lgreco_compressor_create(gpu, &wide, power.text, NULL, &compressor));
    STATUS(LGRECO_NON_FINITE, lgreco_compressor_encode(compressor, 0, square, room, sizeof room, &length));
    TEXT("layer `wide`: element 7 is NaN", lgreco_message());
    STATUS(LGRECO_NON_FINITE, lgreco_measure(gpu, &wide, &power, 1, 0, 0, &error, NULL));
    TEXT("layer `wide`: element 7 is NaN", lgreco_message());
    Options search = OPTIONS;
    lgreco_table *table = NULL;
    set(&search, "method", "powersgd");
    set(&search, "default", "1");
    set(&search, "candidates", "1,1025,1024");
    STATUS(LGRECO_NON_FINITE, lgreco_table_measure(gpu, &wide, 1, listed(&search), &table));
    TEXT("layer `wide`: element 7 is NaN", lgreco_message());
    wide.values = on_device(square, sizeof square);
    STATUS(LGRECO_UNAVAILABLE, lgreco_cuda_encode(cuda, &wide, power.text, &stream_of, room, sizeof room, &length));
    TEXT("layer `wide`: PowerSGD with a rank above 1024 does not run", lgreco_message());
    uint64_t bytes = 0, more = 0;
    STATUS(LGRECO_UNAVAILABLE, lgreco_cuda_measure(cuda, &wide, 1, listed(&search), &table));
    STATUS(LGRECO_UNAVAILABLE, lgreco_cuda_rows_bytes(cuda, &wide, 1, listed(&search), &bytes, &more));
    TEXT("layer `wide`: PowerSGD with a rank above 1024 does not run", lgreco_message());
    STATUS(LGRECO_UNAVAILABLE, lgreco_cuda_enqueue_rows(cuda, &wide, 1, listed(&search), room, 1 << 30, room, 1 << 30));
    STATUS(LGRECO_UNAVAILABLE, lgreco_cuda_read_rows(cuda, &wide, 1, listed(&search), room, sizeof room, &table));
    OK(lgreco_compressor_destroy(&compressor));
    OK(lgreco_context_destroy(&gpu));
}

// Tests the bucket of a single worker. The mean is the worker's decoded message, and the residual is the gradient minus
// the mean.
static void buckets(void) {
    const size_t dims[] = {BIAS};
    lgreco_layer layers[2] = {model[1], LGRECO_LAYER_INIT};
    lgreco_setting settings[2] = {{"qsgd 4"}, {"qsgd 4 bucket 64"}};
    Options options = OPTIONS;
    lgreco_cuda_bucket *bucket = NULL, *other = NULL;
    lgreco_cuda_outcome outcome = LGRECO_CUDA_OUTCOME_INIT;
    lgreco_request asked = LGRECO_REQUEST_INIT;
    uint64_t bytes = 0;
    float *found_inf = NULL;
    static float gradient[BUCKET], rest[BUCKET], mean[BUCKET], saved[BUCKET];
    layers[1].name = "bias";
    layers[1].dims = dims;
    layers[1].dims_len = 1;
    set_number(&options, "random_seed", SEED);
    set(&options, "indices", "1,4");
    set(&options, "step", "3");
    set(&options, "on_fault", "nan");
    OK(lgreco_cuda_bucket_bytes(cuda, layers, settings, 2, listed(&options), &bytes));
    CHECK(bytes > 8 * sizeof gradient / 4 && bytes < 16 * sizeof gradient / 4);
    CHECK(bytes <= BUCKET_ROOM);
    void *const memory = bucket_memory[0], *const more = bucket_memory[1];
    STATUS(LGRECO_LENGTH,
           lgreco_cuda_bucket_create(cuda, layers, settings, 2, listed(&options), memory, bytes - 1, &bucket));
    TEXT("bytes of the bucket's memory", lgreco_message());
    CHECK(bucket == NULL);
    const lgreco_setting second = settings[1];
    settings[1] = (lgreco_setting){"loco 512"};
    STATUS(LGRECO_UNAVAILABLE, lgreco_cuda_bucket_bytes(cuda, layers, settings, 2, listed(&options), &bytes));
    settings[1] = (lgreco_setting){"qsdg 4"};
    STATUS(LGRECO_SETTING_WORD, lgreco_cuda_bucket_bytes(cuda, layers, settings, 2, listed(&options), &bytes));
    TEXT("layer `bias`: setting: `qsdg` is unknown: is `qsgd` meant?", lgreco_message());
    settings[1] = second;
    layers[1].dtype = LGRECO_DTYPE_F16;
    STATUS(LGRECO_PARAMETER, lgreco_cuda_bucket_bytes(cuda, layers, settings, 2, listed(&options), &bytes));
    TEXT("layer `bias`: code of the element type", lgreco_message());
    layers[1].dtype = LGRECO_DTYPE_F32;
    set(&options, "on_fault", "2");
    STATUS(LGRECO_PARAMETER, lgreco_cuda_bucket_bytes(cuda, layers, settings, 2, listed(&options), &bytes));
    set(&options, "on_fault", "nan");
    set(&options, "reduce_dtype", "float16");
    STATUS(LGRECO_PARAMETER, lgreco_cuda_bucket_bytes(cuda, layers, settings, 2, listed(&options), &bytes));
    set(&options, "reduce_dtype", "float32");
    STATUS(LGRECO_NULL_POINTER, lgreco_cuda_bucket_bytes(cuda, layers, settings, 2, listed(&options), NULL));
    OK(lgreco_cuda_bucket_bytes(cuda, layers, settings, 2, NULL, &bytes));
    STATUS(LGRECO_NULL_POINTER, lgreco_cuda_bucket_bytes(cuda, NULL, settings, 2, listed(&options), &bytes));
    STATUS(LGRECO_NULL_POINTER, lgreco_cuda_bucket_bytes(cuda, layers, NULL, 2, listed(&options), &bytes));
    STATUS(LGRECO_NULL_POINTER, lgreco_cuda_bucket_create(cuda, layers, settings, 2, listed(&options), NULL, bytes, &bucket));
    STATUS(LGRECO_NULL_POINTER, lgreco_cuda_bucket_create(cuda, layers, settings, 2, listed(&options), memory, bytes, NULL));
    OK(lgreco_cuda_bucket_create(cuda, layers, settings, 2, listed(&options), memory, bytes, &bucket));

    fill(gradient, BUCKET, 9);
    to_device(bucket_values, gradient, sizeof gradient);
    STATUS(LGRECO_STEP_ORDER, lgreco_cuda_bucket_next(cuda, bucket, &asked));
    STATUS(LGRECO_DEVICE, lgreco_cuda_bucket_submit(cuda, bucket, NULL));
    STATUS(LGRECO_HANDLE, lgreco_cuda_bucket_submit(cuda, (lgreco_cuda_bucket *)(void *)cuda, bucket_values));
    STATUS(LGRECO_NULL_POINTER, lgreco_cuda_bucket_submit(cuda, NULL, bucket_values));
    OK(lgreco_cuda_bucket_submit(cuda, bucket, bucket_values));
    STATUS(LGRECO_STEP_ORDER, lgreco_cuda_bucket_submit(cuda, bucket, bucket_values));
    STATUS(LGRECO_NULL_POINTER, lgreco_cuda_bucket_next(cuda, bucket, NULL));
    OK(lgreco_cuda_bucket_next(cuda, bucket, &asked));
    CHECK(asked.kind == LGRECO_REQUEST_ALL_GATHER && asked.memory == LGRECO_DEVICE_CUDA);
    CHECK((uintptr_t)asked.buffer > (uintptr_t)memory && asked.length % 16 == 0);
    OK(lgreco_cuda_bucket_next(cuda, bucket, &asked));
    CHECK(asked.kind == LGRECO_REQUEST_NONE);
    OK(lgreco_cuda_bucket_outcome(cuda, bucket, &outcome));
    CHECK(outcome.step == 4 && outcome.failed == 0 && outcome.rank == LGRECO_NO_RANK && outcome.fault == LGRECO_OK);
    to_host(mean, bucket_values, sizeof mean);
    STATUS(LGRECO_LENGTH, lgreco_cuda_bucket_get_residuals(cuda, bucket, rest, ELEMENTS));
    STATUS(LGRECO_NULL_POINTER, lgreco_cuda_bucket_get_residuals(cuda, bucket, NULL, BUCKET));
    OK(lgreco_cuda_bucket_get_residuals(cuda, bucket, rest, BUCKET));
    for (int i = 0; i < BUCKET; i++) CHECK(rest[i] == gradient[i] - mean[i]);

    // A second bucket with 2-bit QSGD takes over the residuals of the first bucket with 4-bit QSGD, and then loads
    // saved residuals.
    settings[0] = (lgreco_setting){"qsgd 2"};
    OK(lgreco_cuda_bucket_create(cuda, layers, settings, 2, listed(&options), more, bytes, &other));
    STATUS(LGRECO_BUSY, lgreco_cuda_bucket_take_over(cuda, other, other));
    STATUS(LGRECO_NULL_POINTER, lgreco_cuda_bucket_take_over(cuda, other, NULL));
    STATUS(LGRECO_NULL_POINTER, lgreco_cuda_bucket_take_over(cuda, NULL, bucket));
    OK(lgreco_cuda_bucket_take_over(cuda, other, bucket));
    OK(lgreco_cuda_bucket_outcome(cuda, other, &outcome));
    OK(lgreco_cuda_bucket_get_residuals(cuda, other, saved, BUCKET));
    CHECK(outcome.step == 4 && memcmp(rest, saved, sizeof rest) == 0);
    saved[5] = 0.25f;
    STATUS(LGRECO_LENGTH, lgreco_cuda_bucket_set_residuals(cuda, other, saved, ELEMENTS));
    STATUS(LGRECO_NULL_POINTER, lgreco_cuda_bucket_set_residuals(cuda, other, NULL, BUCKET));
    OK(lgreco_cuda_bucket_set_residuals(cuda, other, saved, BUCKET));
    OK(lgreco_cuda_bucket_get_residuals(cuda, other, rest, BUCKET));
    CHECK(memcmp(rest, saved, sizeof rest) == 0);

    gradient[ELEMENTS + 7] = INFINITY;
    to_device(bucket_values, gradient, sizeof gradient);
    OK(lgreco_cuda_bucket_submit(cuda, other, bucket_values));
    do OK(lgreco_cuda_bucket_next(cuda, other, &asked));
    while (asked.kind != LGRECO_REQUEST_NONE);
    OK(lgreco_cuda_bucket_outcome(cuda, other, &outcome));
    CHECK(outcome.failed == 1 && outcome.rank == 0 && outcome.fault == LGRECO_NON_FINITE);
    CHECK(outcome.layer == 1 && outcome.element == 7);
    STATUS(LGRECO_NULL_POINTER, lgreco_cuda_bucket_found_inf(cuda, other, NULL));
    STATUS(LGRECO_NULL_POINTER, lgreco_cuda_bucket_outcome(cuda, other, NULL));
    OK(lgreco_cuda_bucket_found_inf(cuda, other, &found_inf));
    float found = 0;
    to_host(&found, found_inf, sizeof found);
    to_host(mean, bucket_values, sizeof mean);
    CHECK(found == 1 && isnan(mean[0]) && isnan(mean[BUCKET - 1]));
    OK(lgreco_cuda_bucket_destroy(&bucket));
    OK(lgreco_cuda_bucket_destroy(&other));
    CHECK(bucket == NULL && other == NULL);

    // Tests uncompressed layers with sums in bf16. The residuals keep the worker's own rounding errors.
    settings[0] = settings[1] = (lgreco_setting){"dense"};
    set(&options, "reduce_dtype", "bfloat16");
    OK(lgreco_cuda_bucket_bytes(cuda, layers, settings, 2, listed(&options), &bytes));
    CHECK(bytes <= BUCKET_ROOM);
    OK(lgreco_cuda_bucket_create(cuda, layers, settings, 2, listed(&options), memory, bytes, &bucket));
    fill(gradient, BUCKET, 9);
    to_device(bucket_values, gradient, sizeof gradient);
    OK(lgreco_cuda_bucket_submit(cuda, bucket, bucket_values));
    OK(lgreco_cuda_bucket_next(cuda, bucket, &asked));
    CHECK(asked.kind == LGRECO_REQUEST_ALL_REDUCE_SUM_BF16 && asked.memory == LGRECO_DEVICE_CUDA);
    CHECK(asked.count == BUCKET + 3);
    OK(lgreco_cuda_bucket_next(cuda, bucket, &asked));
    CHECK(asked.kind == LGRECO_REQUEST_NONE);
    to_host(mean, bucket_values, sizeof mean);
    OK(lgreco_cuda_bucket_get_residuals(cuda, bucket, rest, BUCKET));
    int rounded = 0;
    for (int i = 0; i < BUCKET; i++) {
        CHECK(rest[i] == gradient[i] - mean[i] && fabsf(rest[i]) <= fabsf(gradient[i]) / 256);
        rounded += rest[i] != 0;
    }
    CHECK(rounded > BUCKET / 2);
    OK(lgreco_cuda_bucket_destroy(&bucket));
}

// Reads the outcomes of steps after later steps were enqueued.
static void outcomes_later(void) {
    const size_t dims[] = {BIAS};
    lgreco_layer layers[2] = {model[1], LGRECO_LAYER_INIT};
    const lgreco_setting settings[2] = {{"qsgd 4"}, {"topk 9"}};
    Options options = OPTIONS;
    lgreco_cuda_bucket *bucket = NULL;
    lgreco_cuda_outcome outcome = LGRECO_CUDA_OUTCOME_INIT, untouched = LGRECO_CUDA_OUTCOME_INIT;
    lgreco_request asked = LGRECO_REQUEST_INIT;
    uint64_t needed = 0;
    int before[NUMBERS] = {0};
    static float gradient[BUCKET];
    layers[1].name = "bias";
    layers[1].dims = dims;
    layers[1].dims_len = 1;
    set_number(&options, "random_seed", SEED);
    set(&options, "step", "3");
    OK(lgreco_cuda_bucket_bytes(cuda, layers, settings, 2, listed(&options), &needed));
    CHECK(needed <= BUCKET_ROOM);
    OK(lgreco_cuda_bucket_create(cuda, layers, settings, 2, listed(&options), bucket_memory[0], needed, &bucket));
    // Three steps: the gradients of the first and the last step contain a value that is not finite.
    void *steps[3] = {bucket_values, on_device(NULL, 4 * BUCKET), on_device(NULL, 4 * BUCKET)};
    for (int s = 0; s < 3; s++) {
        fill(gradient, BUCKET, 20 + (uint32_t)s);
        if (s == 0) gradient[ELEMENTS + 7] = NAN;
        if (s == 2) gradient[3] = INFINITY;
        to_device(steps[s], gradient, sizeof gradient);
    }
    const void *place = NULL;
    size_t bytes = 0;
    OK(lgreco_cuda_bucket_outcome_place(cuda, bucket, &place, &bytes));
    CHECK(bytes > 0 && (uintptr_t)place >= (uintptr_t)bucket_memory[0]);
    CHECK((uintptr_t)place + bytes <= (uintptr_t)bucket_memory[0] + needed);
    copied copies[3];
    if (driver.state != NULL) driver.state(before);
    for (int s = 0; s < 3; s++) {
        OK(lgreco_cuda_bucket_submit(cuda, bucket, steps[s]));
        do OK(lgreco_cuda_bucket_next(cuda, bucket, &asked));
        while (asked.kind != LGRECO_REQUEST_NONE);
        copies[s] = enqueue_copy(place, bytes);
    }
    CHECK(only_launched(before));
    for (int s = 0; s < 3; s++) CHECK(is_on_its_way(&copies[s]));
    for (int s = 0; s < 3; s++) {
        wait_for(&copies[s]);
        if (s < 2) CHECK(is_on_its_way(&copies[s + 1]));
        OK(lgreco_cuda_bucket_read_outcome(cuda, bucket, copies[s].bytes, bytes, &outcome));
        CHECK(outcome.step == 4 + (uint32_t)s && outcome.failed == 1 + (uint32_t)(s / 2));
        CHECK(outcome.has_failed == (s != 1));
        CHECK(outcome.rank == (s == 1 ? LGRECO_NO_RANK : 0));
        CHECK(outcome.fault == (s == 1 ? LGRECO_OK : LGRECO_NON_FINITE));
        CHECK(outcome.layer == (s == 0) && outcome.element == (s == 0 ? 7u : s == 2 ? 3u : 0u));
    }
    CHECK(only_launched(before));
    OK(lgreco_cuda_bucket_outcome(cuda, bucket, &untouched));
    CHECK(untouched.step == outcome.step && untouched.failed == outcome.failed && untouched.rank == outcome.rank);
    CHECK(untouched.fault == outcome.fault && untouched.layer == outcome.layer && untouched.element == outcome.element);
    CHECK(untouched.has_failed == outcome.has_failed);

    // The copy of an outcome may be unaligned.
    static uint8_t copy[4096];
    CHECK(bytes <= sizeof copy - 1);
    memcpy(copy + 1, copies[0].bytes, bytes);
    lgreco_cuda_outcome first = LGRECO_CUDA_OUTCOME_INIT;
    OK(lgreco_cuda_bucket_read_outcome(cuda, bucket, copy + 1, bytes, &first));
    CHECK(first.step == 4 && first.layer == 1 && first.element == 7);
    CHECK(memcmp(copy + 1, copies[0].bytes, bytes) == 0);

    untouched.step = 77;
    NULL_(lgreco_cuda_bucket_outcome_place(cuda, NULL, &place, &bytes));
    NULL_(lgreco_cuda_bucket_outcome_place(cuda, bucket, NULL, &bytes));
    TEXT("address is NULL", lgreco_message());
    NULL_(lgreco_cuda_bucket_outcome_place(cuda, bucket, &place, NULL));
    TEXT("bytes is NULL", lgreco_message());
    STATUS(LGRECO_OVERLAP, lgreco_cuda_bucket_outcome_place(cuda, bucket, (const void **)(void *)&bytes, &bytes));
    STATUS(LGRECO_HANDLE, lgreco_cuda_bucket_outcome_place(cuda, (lgreco_cuda_bucket *)(void *)cuda, &place, &bytes));
    NULL_(lgreco_cuda_bucket_read_outcome(cuda, NULL, copies[0].bytes, bytes, &untouched));
    NULL_(lgreco_cuda_bucket_read_outcome(cuda, bucket, NULL, bytes, &untouched));
    TEXT("copy is NULL", lgreco_message());
    NULL_(lgreco_cuda_bucket_read_outcome(cuda, bucket, copies[0].bytes, bytes, NULL));
    STATUS(LGRECO_OVERLAP, lgreco_cuda_bucket_read_outcome(cuda, bucket, &untouched, bytes, &untouched));
    const size_t lengths[] = {0, 1, bytes - 1, bytes + 1, 2 * bytes};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        STATUS(LGRECO_LENGTH, lgreco_cuda_bucket_read_outcome(cuda, bucket, copies[0].bytes, lengths[i], &untouched));
        TEXT("bytes of an exchange's outcome", lgreco_message());
    }
    untouched.struct_size = 8;
    STATUS(LGRECO_STRUCT_SIZE, lgreco_cuda_bucket_read_outcome(cuda, bucket, copies[0].bytes, bytes, &untouched));
    CHECK(untouched.step == 77);
    // Arbitrary bytes are accepted as an outcome.
    for (uint32_t seed = 0; seed < 1000; seed++) {
        for (size_t i = 0; i < bytes; i++)
            copies[1].bytes[i] = seed == 0 ? 0xff : (uint8_t)((seed * (uint32_t)(i + 1) * 2654435761u) >> 24);
        OK(lgreco_cuda_bucket_read_outcome(cuda, bucket, copies[1].bytes, bytes, &outcome));
        CHECK(outcome.has_failed <= 1 && (outcome.rank == 0 || outcome.rank == LGRECO_NO_RANK || outcome.fault != LGRECO_OK));
    }
    for (int s = 0; s < 3; s++) let_go(&copies[s]);
    for (int s = 1; s < 3; s++) give_back(steps[s]);
    OK(lgreco_cuda_bucket_destroy(&bucket));
}

static void in_the_primary_context(void) {
    STATUS(LGRECO_UNAVAILABLE, lgreco_cuda_create(1000, &cuda));
    TEXT("no CUDA device 1000: ", lgreco_message());
    OK(lgreco_cuda_create(0, &cuda));
    payloads(2, "qsgd 4");
    OK(lgreco_cuda_synchronize(cuda));
    OK(lgreco_cuda_destroy(&cuda));
    CHECK(cuda == NULL);
}

int main(int argc, char **argv) {
    if (argc > 1 && strcmp(argv[1], "missing") == 0) {
        missing();
        return report("cuda missing");
    }
    void *const cuda_context = primary_context();
    STATUS(LGRECO_UNAVAILABLE, lgreco_cuda_create_on_stream(NULL, &cuda));
    TEXT("no CUDA device 0: no context is current on this thread", lgreco_message());
    CHECK(driver.push(cuda_context) == 0 && driver.stream(&stream, 0) == 0);
    prepare();
    int before[NUMBERS] = {0}, after[NUMBERS] = {0};
    OK(lgreco_cuda_create_on_stream(stream, &cuda));
    failures_of_the_device();
    large_ranks();
    OK(lgreco_cuda_destroy(&cuda));
    if (driver.state != NULL) driver.state(before);
    OK(lgreco_cuda_create_on_stream(stream, &cuda));
    const char *methods[] = {"qsgd", "eden", "topk", "powersgd", "hybrid"};
    for (size_t m = 0; m < sizeof methods / sizeof *methods; m++) {
        tables(methods[m]);
        rows_later(methods[m]);
    }
    payloads(1, "dense");
    arguments();
    arguments_of_rows();
    not_finite();
    buckets();
    outcomes_later();
    if (driver.last_stream != NULL) CHECK(driver.last_stream() == stream);
    OK(lgreco_cuda_destroy(&cuda));
    in_the_primary_context();
    if (driver.state != NULL) driver.state(after);
    // The first six counts must be the same as before the tests: allocations, contexts, streams, modules, pushed
    // contexts, and page-locked memory with events.
    CHECK(memcmp(before, after, 6 * sizeof *before) == 0);
    return report("cuda");
}
