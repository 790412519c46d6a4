// Error rows and tables measured from gradients of every element type.
#include "check.h"

#include <math.h>

enum { ROWS = 48, COLS = 64, ELEMENTS = ROWS * COLS };

static const size_t DIMS[] = {ROWS, COLS};

static lgreco_layer layer(const char *name, const void *values) {
    lgreco_layer layer = LGRECO_LAYER_INIT;
    layer.name = name;
    layer.dims = DIMS;
    layer.dims_len = 2;
    layer.values = values;
    return layer;
}

static double squared_error(const lgreco_layer *layer, const char *setting,
                            uint32_t layer_index, uint64_t *bits) {
    static float decoded[ELEMENTS];
    Options options = OPTIONS;
    lgreco_compressor *compressor = NULL;
    set(&options, "random_seed", "5");
    set_number(&options, "layer_index", layer_index);
    OK(lgreco_compressor_create(NULL, layer, setting, listed(&options), &compressor));
    size_t bound = 0, length = 0;
    OK(lgreco_compressor_bound(compressor, &bound));
    uint8_t *payload = malloc(bound);
    OK(lgreco_compressor_encode(compressor, 0, layer->values, payload, bound, &length));
    OK(lgreco_compressor_decode(compressor, payload, length, decoded, ELEMENTS));
    double sum = 0;
    for (int i = 0; i < ELEMENTS; i++) sum += pow((double)((const float *)layer->values)[i] - decoded[i], 2);
    *bits = 8 * length;
    free(payload);
    lgreco_compressor_destroy(&compressor);
    return sum;
}

// Measured errors equal the errors of encoding and decoding. One list has settings of all methods.
static void rows(const float *values) {
    enum { COUNT = 19 };
    static const lgreco_setting settings[COUNT] = {
        {"qsgd 2 nearest"}, {"qsgd 5 nearest"}, {"qsgd 8 nearest"},
        {"topk 10"}, {"topk 510"}, {"topk 1010"},
        {"powersgd 1 iterations 2"}, {"powersgd 4 iterations 2"}, {"dense"},
        {"clt-k 20"}, {"clt-k 720"},
        {"hard-threshold 0.9"}, {"hard-threshold 0.4"},
        {"sidco 0.02"}, {"sidco 0.22"},
        {"adacomp 400"}, {"adacomp 50"},
        {"loco 512"}, {"loco 12"},
    };
    const lgreco_layer one = layer("fc1", values);
    double errors[COUNT];
    uint64_t sizes[COUNT];
    OK(lgreco_measure(NULL, &one, settings, COUNT, 5, 3, errors, sizes));
    for (int i = 0; i < COUNT; i++) {
        uint64_t bits = 0;
        const double found = squared_error(&one, settings[i].text, 3, &bits);
        CHECK(fabs(errors[i] - found) <= 1e-4 * found && sizes[i] == bits);
    }
    // Sparsifiers that send more values have a smaller error. AdaComp's bins and LoCo's groups have an effect.
    for (int i = 9; i < 15; i += 2) CHECK(errors[i] > errors[i + 1] && sizes[i] < sizes[i + 1]);
    for (int i = 15; i < COUNT; i += 2) CHECK(errors[i] != errors[i + 1] && sizes[i] < sizes[i + 1]);
    CHECK(errors[0] > errors[1] && errors[3] > errors[4] && errors[6] > errors[7] && errors[8] == 0);

    // Seed and layer select PowerSGD's start matrix.
    double others[COUNT];
    OK(lgreco_measure(NULL, &one, settings, COUNT, 6, 3, others, NULL));
    CHECK(others[0] == errors[0] && others[6] != errors[6]);
    OK(lgreco_measure(NULL, &one, settings, COUNT, 5, 4, others, NULL));
    CHECK(others[0] == errors[0] && others[6] != errors[6]);
    // The error of a setting does not depend on the other settings in the list.
    OK(lgreco_measure(NULL, &one, &settings[7], 1, 5, 3, others, NULL));
    CHECK(others[0] == errors[7]);
    OK(lgreco_measure(NULL, &one, &settings[12], 1, 5, 3, others, NULL));
    CHECK(others[0] == errors[12]);
}

static void element_types(const float *values) {
    // The two gradients have the same numbers in bf16 and in f32, without rounding. So the measured errors must be
    // equal.
    static uint16_t narrow[ELEMENTS];
    static float wide[ELEMENTS];
    for (int i = 0; i < ELEMENTS; i++) {
        uint32_t bits;
        memcpy(&bits, &values[i], 4);
        narrow[i] = (uint16_t)(bits >> 16);
        bits &= 0xffff0000u;
        memcpy(&wide[i], &bits, 4);
    }
    const lgreco_setting setting = {"qsgd 4"};
    lgreco_layer a = layer("a", wide), b = layer("b", narrow);
    b.dtype = LGRECO_DTYPE_BF16;
    double x = 0, y = 0;
    OK(lgreco_measure(NULL, &a, &setting, 1, 0, 0, &x, NULL));
    OK(lgreco_measure(NULL, &b, &setting, 1, 0, 0, &y, NULL));
    CHECK(x == y && x > 0);
    // In f16, the same bits have other values.
    for (int i = 0; i < ELEMENTS; i++) narrow[i] = (uint16_t)(0x3c00 | (i % 1024));
    b.dtype = LGRECO_DTYPE_F16;
    for (int i = 0; i < ELEMENTS; i++) wide[i] = 1.0f + (float)(i % 1024) / 1024;
    OK(lgreco_measure(NULL, &a, &setting, 1, 0, 0, &x, NULL));
    OK(lgreco_measure(NULL, &b, &setting, 1, 0, 0, &y, NULL));
    CHECK(x == y && x > 0);
}

static void tables(float *values) {
    static float small[ELEMENTS];
    for (int i = 0; i < ELEMENTS; i++) small[i] = 0.01f * values[(7 * i) % ELEMENTS];
    const size_t ten[] = {10};
    lgreco_layer model[3] = {layer("bias", values), layer("fc1", values), layer("fc2", small)};
    model[0].dims = ten;
    model[0].dims_len = 1;
    lgreco_table *table = NULL;
    lgreco_table_view view = LGRECO_TABLE_VIEW_INIT;
    lgreco_plan *plan = NULL;
    lgreco_plan_view chosen = LGRECO_PLAN_VIEW_INIT;
    // By default, plans choose among EDEN, TopK and PowerSGD. Default plans have the least error within the size of
    // uniform EDEN with 3 bits.
    OK(lgreco_table_measure(NULL, model, 3, NULL, &table));
    OK(lgreco_table_get(table, &view));
    CHECK(view.ends[0] > 100 && strcmp(view.metric, "squared-l2") == 0);
    OK(lgreco_plan_solve(&view, NULL, &plan));
    OK(lgreco_plan_get(plan, &chosen));
    const lgreco_choice first = view.choices[view.defaults[0]], second = view.choices[view.ends[0] + view.defaults[1]];
    CHECK(chosen.proven == 1 && chosen.size_limit == first.size + second.size && chosen.size <= chosen.size_limit);
    CHECK(chosen.error < first.error + second.error);
    lgreco_plan_destroy(&plan);
    lgreco_table_destroy(&table);

    Options search = OPTIONS;
    set(&search, "method", "qsgd");
    OK(lgreco_table_measure(NULL, model, 3, listed(&search), &table));
    OK(lgreco_table_get(table, &view));
    CHECK(view.layers == 2 && view.model_layers[0] == 1 && view.model_layers[1] == 2);
    CHECK(strcmp(view.names[1], "fc2") == 0 && strcmp(view.labels[view.defaults[0]], "qsgd 4") == 0);
    CHECK(view.ends[0] == 7 && view.elements[0] == ELEMENTS && strcmp(view.metric, "squared-l2") == 0);

    // The error and size of each option equal the measured error and size of the option's setting.
    lgreco_setting setting;
    double error = 0;
    uint64_t bits = 0;
    for (uint32_t option = 0; option < 7; option++) {
        OK(lgreco_table_setting(table, 1, option, &setting));
        char text[16];
        snprintf(text, sizeof text, "qsgd %u", 2 + option);
        CHECK(says(&setting, text));
        OK(lgreco_measure(NULL, &model[2], &setting, 1, 0, 2, &error, &bits));
        const lgreco_choice choice = view.choices[view.ends[0] + option];
        CHECK(choice.error == error && choice.size == bits);
    }
    STATUS(LGRECO_NO_SUCH_OPTION, lgreco_table_setting(table, 1, 7, &setting));
    STATUS(LGRECO_LENGTH, lgreco_table_setting(table, 2, 0, &setting));
    TEXT("layer is 2, expected an index below 2", lgreco_message());

    // The plan within the uniform setting's error is smaller than the uniform setting.
    Options within = OPTIONS;
    set(&within, "budget", "error");
    OK(lgreco_plan_solve(&view, listed(&within), &plan));
    OK(lgreco_plan_get(plan, &chosen));
    CHECK(chosen.proven == 1);
    CHECK(chosen.size < view.choices[view.defaults[0]].size + view.choices[view.ends[0] + view.defaults[1]].size);
    lgreco_plan_destroy(&plan);
    lgreco_table_destroy(&table);

    // Every option of the search has an effect.
    search = (Options)OPTIONS;
    set(&search, "method", "topk");
    set(&search, "metric", "l2");
    set(&search, "default", "0.05");
    set(&search, "candidates", "0.01,0.2,0.01");
    set_number(&search, "min_elements", ELEMENTS + 1);
    STATUS(LGRECO_EMPTY_TABLE, lgreco_table_measure(NULL, model, 3, listed(&search), &table));
    set_number(&search, "min_elements", ELEMENTS);
    OK(lgreco_table_measure(NULL, model, 3, listed(&search), &table));
    OK(lgreco_table_get(table, &view));
    CHECK(view.ends[0] == 20 && strcmp(view.labels[0], "topk 1%") == 0 && strcmp(view.metric, "l2") == 0);
    CHECK(strcmp(view.labels[view.defaults[0]], "topk 5%") == 0);
    OK(lgreco_table_setting(table, 0, 0, &setting));
    OK(lgreco_measure(NULL, &model[1], &setting, 1, 0, 1, &error, NULL));
    CHECK(fabs(view.choices[0].error - sqrt(error)) <= 1e-5 * sqrt(error));
    lgreco_table_destroy(&table);
    set(&search, "widths", "4, 2");
    OK(lgreco_table_measure(NULL, model, 3, listed(&search), &table));
    OK(lgreco_table_get(table, &view));
    CHECK(view.ends[0] == 41 && view.defaults[0] == 0 && strcmp(view.labels[0], "topk 5%") == 0);
    CHECK(strcmp(view.labels[1], "topk 1% bits 4") == 0 && strcmp(view.labels[2], "topk 1% bits 2") == 0);
    OK(lgreco_table_setting(table, 0, 1, &setting));
    CHECK(says(&setting, "topk 31 bits 4"));
    OK(lgreco_measure(NULL, &model[1], &setting, 1, 0, 1, &error, NULL));
    CHECK(fabs(view.choices[1].error - sqrt(error)) <= 1e-5 * sqrt(error));
    lgreco_table_destroy(&table);
    set(&search, "widths", "full,9");
    STATUS(LGRECO_UNKNOWN_NAME, lgreco_table_measure(NULL, model, 3, listed(&search), &table));
    set(&search, "widths", "full");
    set(&search, "method", "qsgd");
    set(&search, "default", NULL);
    set(&search, "candidates", NULL);
    STATUS(LGRECO_UNKNOWN_NAME, lgreco_table_measure(NULL, model, 3, listed(&search), &table));
    search = (Options)OPTIONS;
    set(&search, "method", "powersgd");
    set(&search, "default", "2");
    double errors[2];
    for (uint64_t seed = 0; seed < 2; seed++) {
        set_number(&search, "random_seed", seed);
        OK(lgreco_table_measure(NULL, model, 3, listed(&search), &table));
        OK(lgreco_table_get(table, &view));
        CHECK(strcmp(view.labels[0], "powersgd 1") == 0 && strcmp(view.labels[view.ends[0] - 1], "powersgd 4") == 0);
        errors[seed] = view.choices[0].error;
        lgreco_table_destroy(&table);
    }
    CHECK(errors[0] != errors[1]);
    search = (Options)OPTIONS;
    set(&search, "method", "hybrid");
    OK(lgreco_table_measure(NULL, model, 3, listed(&search), &table));
    OK(lgreco_table_get(table, &view));
    CHECK(view.ends[0] > 100);
    lgreco_table_destroy(&table);
    set(&search, "method", "eden, adacomp");
    OK(lgreco_table_measure(NULL, model, 3, listed(&search), &table));
    OK(lgreco_table_get(table, &view));
    CHECK(strcmp(view.labels[view.defaults[0]], "eden 3") == 0);
    CHECK(strncmp(view.labels[view.ends[0] - 1], "adacomp", 7) == 0);
    lgreco_table_destroy(&table);

    set(&search, "method", "hybrid");
    set(&search, "default", "9");
    STATUS(LGRECO_PARAMETER, lgreco_table_measure(NULL, model, 3, listed(&search), &table));
    set(&search, "default", NULL);
    set(&search, "method", "dense");
    STATUS(LGRECO_UNKNOWN_NAME, lgreco_table_measure(NULL, model, 3, listed(&search), &table));
    set(&search, "method", "qsgd,");
    STATUS(LGRECO_UNKNOWN_NAME, lgreco_table_measure(NULL, model, 3, listed(&search), &table));
    set(&search, "method", "qsgd,qsgd");
    STATUS(LGRECO_UNKNOWN_NAME, lgreco_table_measure(NULL, model, 3, listed(&search), &table));
    set(&search, "method", "qsgd");
    set(&search, "metric", "l1");
    STATUS(LGRECO_UNKNOWN_NAME, lgreco_table_measure(NULL, model, 3, listed(&search), &table));
    TEXT("the option `metric` is `l1`: unknown metric, expected l2 or squared-l2", lgreco_message());
    set(&search, "metric", NULL);
    set(&search, "candidates", "1,2");
    STATUS(LGRECO_PARAMETER, lgreco_table_measure(NULL, model, 3, listed(&search), &table));
    set(&search, "candidates", NULL);
    set(&search, "workers", "0");
    STATUS(LGRECO_PARAMETER, lgreco_table_measure(NULL, model, 3, listed(&search), &table));
    TEXT("the option `workers` is `0`, expected a number of workers of at least 1", lgreco_message());
    set(&search, "workers", NULL);
    set(&search, "perod", "3");
    STATUS(LGRECO_UNKNOWN_OPTION, lgreco_table_measure(NULL, model, 3, listed(&search), &table));
    TEXT("a search has no option `perod`; there are method, default, ", lgreco_message());
    const char *const twice[] = {"method", "qsgd", "method", "topk", NULL}, *const none[] = {"method", NULL};
    STATUS(LGRECO_UNKNOWN_OPTION, lgreco_table_measure(NULL, model, 3, twice, &table));
    TEXT("the option `method` is given twice", lgreco_message());
    STATUS(LGRECO_NULL_POINTER, lgreco_table_measure(NULL, model, 3, none, &table));
    model[2].name = "fc1";
    STATUS(LGRECO_DUPLICATE_NAME, lgreco_table_measure(NULL, model, 3, NULL, &table));
    model[2].name = "fc3";
    model[2].dtype = 99;
    STATUS(LGRECO_UNKNOWN_CONSTANT, lgreco_table_measure(NULL, model, 3, NULL, &table));
    TEXT("layer `fc3`: dtype is 99", lgreco_message());
    model[2].dtype = LGRECO_DTYPE_F32;
    model[2].values = NULL;
    STATUS(LGRECO_NULL_POINTER, lgreco_table_measure(NULL, model, 3, NULL, &table));
    TEXT("layer `fc3`: values is NULL", lgreco_message());
    model[2].dims = NULL;
    STATUS(LGRECO_NULL_POINTER, lgreco_table_measure(NULL, model, 3, NULL, &table));
    TEXT("layer `fc3`: dims of a layer is NULL", lgreco_message());
    STATUS(LGRECO_EMPTY_TABLE, lgreco_table_measure(NULL, NULL, 0, NULL, &table));
}

static void refusals(float *values) {
    lgreco_layer one = layer("fc1", values);
    const lgreco_setting settings[] = {{"dense"},      {"qsgd 4"},   {"topk 1"},  {"powersgd 4"},         {"adacomp 500"},
                                       {"eden 4"},     {"loco 512"}, {"clt-k 1"}, {"hard-threshold 0.5"}, {"sidco 0.01"}};
    lgreco_table *table = NULL;
    double error = 0, errors[2];
    values[77] = INFINITY;
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++) {
        STATUS(LGRECO_NON_FINITE, lgreco_measure(NULL, &one, &settings[i], 1, 0, 0, &error, NULL));
        TEXT("layer `fc1`: element 77 is inf", lgreco_message());
    }
    STATUS(LGRECO_NON_FINITE, lgreco_table_measure(NULL, &one, 1, NULL, &table));
    TEXT("layer `fc1`: element 77 is inf", lgreco_message());
    values[77] = 0;
    lgreco_setting wrong[2] = {{"dense"}, {"topk 3073"}};
    STATUS(LGRECO_PARAMETER, lgreco_measure(NULL, &one, wrong, 2, 0, 0, errors, NULL));
    wrong[1] = (lgreco_setting){"qsgd 200"};
    STATUS(LGRECO_PARAMETER, lgreco_measure(NULL, &one, wrong, 2, 0, 0, errors, NULL));
    TEXT("settings[1]: bits is 200, expected 1 to 8", lgreco_message());
    wrong[1] = (lgreco_setting){"qsgd 4 buckt 128"};
    STATUS(LGRECO_SETTING_WORD, lgreco_measure(NULL, &one, wrong, 2, 0, 0, errors, NULL));
    TEXT("settings[1]: setting: `buckt` is unknown: is `bucket` meant?", lgreco_message());
    const lgreco_setting setting = {"dense"};
    one.dtype = 3;
    STATUS(LGRECO_UNKNOWN_CONSTANT, lgreco_measure(NULL, &one, &setting, 1, 0, 0, &error, NULL));
    const size_t huge[] = {(size_t)1 << 20, (size_t)1 << 20};
    one.dims = huge;
    STATUS(LGRECO_TOO_MANY_ELEMENTS, lgreco_measure(NULL, &one, &setting, 1, 0, 0, &error, NULL));
}

int main(void) {
    static float values[ELEMENTS];
    fill(values, ELEMENTS, 1);
    rows(values);
    element_types(values);
    tables(values);
    refusals(values);
    return report("measure");
}
