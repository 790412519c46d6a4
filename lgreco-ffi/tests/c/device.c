// A context of a GPU gives the same rows and payloads as the CPU. `device cuda` and `device wgpu` select the GPU, for
// which the library must be built.
#include "check.h"

#include <math.h>

enum { ROWS = 32, COLS = 96, ELEMENTS = ROWS * COLS, COUNT = 4, STEPS = 3 };

static const size_t DIMS[] = {ROWS, COLS};
static float values[ELEMENTS];

static lgreco_layer layer(void) {
    lgreco_layer layer = LGRECO_LAYER_INIT;
    layer.name = "fc1";
    layer.dims = DIMS;
    layer.dims_len = 2;
    layer.values = values;
    return layer;
}

static const lgreco_setting list[COUNT] = {{"dense"}, {"qsgd 4"}, {"topk 50"}, {"loco 512"}};

static void payloads(lgreco_context *cpu, lgreco_context *gpu) {
    static uint8_t one[20000], two[20000];
    for (int i = 0; i < COUNT; i++) {
        Options options = OPTIONS;
        set(&options, "error_feedback", "true");
        const lgreco_layer fc1 = layer();
        lgreco_compressor *a = NULL, *b = NULL;
        OK(lgreco_compressor_create(cpu, &fc1, list[i].text, listed(&options), &a));
        OK(lgreco_compressor_create(gpu, &fc1, list[i].text, listed(&options), &b));
        for (uint32_t step = 0; step < STEPS; step++) {
            size_t length = 0, same = 1;
            fill(values, ELEMENTS, step);
            OK(lgreco_compressor_encode(a, step, values, one, sizeof one, &length));
            OK(lgreco_compressor_encode(b, step, values, two, sizeof two, &same));
            CHECK(length == same && memcmp(one, two, length) == 0);
        }
        values[5] = NAN;
        size_t length = 0;
        STATUS(LGRECO_NON_FINITE, lgreco_compressor_encode(b, STEPS, values, two, sizeof two, &length));
        TEXT("layer `fc1`: element 5 is NaN", lgreco_message());
        values[5] = 0;
        lgreco_compressor_destroy(&a);
        lgreco_compressor_destroy(&b);
    }
}

static void rows(lgreco_context *cpu, lgreco_context *gpu) {
    const lgreco_layer fc1 = layer();
    double one[COUNT], two[COUNT];
    uint64_t sizes[COUNT], same[COUNT];
    OK(lgreco_measure(cpu, &fc1, list, COUNT, 0, 0, one, sizes));
    OK(lgreco_measure(gpu, &fc1, list, COUNT, 0, 0, two, same));
    for (int i = 0; i < COUNT; i++) CHECK(sizes[i] == same[i] && fabs(one[i] - two[i]) <= 1e-4 * one[i]);
    values[9] = INFINITY;
    STATUS(LGRECO_NON_FINITE, lgreco_measure(gpu, &fc1, list, COUNT, 0, 0, two, same));
    TEXT("layer `fc1`: element 9 is inf", lgreco_message());
    values[9] = 0;
}

int main(int argc, char **argv) {
    lgreco_context *cpu = NULL, *gpu = NULL;
    OK(lgreco_context_create("cpu", &cpu));
    OK(lgreco_context_create(argc > 1 && strcmp(argv[1], "cuda") == 0 ? "cuda:0" : "wgpu", &gpu));
    fill(values, ELEMENTS, 7);
    payloads(cpu, gpu);
    rows(cpu, gpu);
    OK(lgreco_context_destroy(&cpu));
    OK(lgreco_context_destroy(&gpu));
    return report("device");
}
