// Tests how much memory a controller allocates, and that lgreco_controller_memory reports the amount before training
// begins. The argument is the model's number of rows of 512 values, in thousands; the default is 5. With 242, the model
// has 124 million parameters.
#include "check.h"

#include <malloc.h>
#include <stdatomic.h>

enum { COLUMNS = 512, LAYERS = 25, STEPS = 6 };

// This allocator counts. The counting allocator calls glibc's functions by their internal names.
extern void *__libc_malloc(size_t size);
extern void *__libc_calloc(size_t count, size_t size);
extern void *__libc_realloc(void *old, size_t size);
extern void *__libc_memalign(size_t alignment, size_t size);
extern void __libc_free(void *memory);

static atomic_size_t held, most;

static void *count(void *memory) {
    const size_t now = atomic_fetch_add(&held, malloc_usable_size(memory)) + malloc_usable_size(memory);
    size_t before = atomic_load(&most);
    while (before < now && !atomic_compare_exchange_weak(&most, &before, now)) {}
    return memory;
}

void *malloc(size_t size) { return count(__libc_malloc(size)); }
void *calloc(size_t number, size_t size) { return count(__libc_calloc(number, size)); }
void *aligned_alloc(size_t alignment, size_t size) { return count(__libc_memalign(alignment, size)); }
void free(void *memory) {
    atomic_fetch_sub(&held, malloc_usable_size(memory));
    __libc_free(memory);
}
void *realloc(void *old, size_t size) {
    atomic_fetch_sub(&held, malloc_usable_size(old));
    return count(__libc_realloc(old, size));
}
int posix_memalign(void **memory, size_t alignment, size_t size) {
    *memory = aligned_alloc(alignment, size);
    return *memory == NULL ? 12 : 0;
}

static size_t rows[LAYERS], elements;
static float *gradients[LAYERS];

// A single worker has nothing to exchange.
static int32_t perform(void *user, const lgreco_request *request) {
    (void)user, (void)request;
    return 0;
}

static void step(lgreco_controller *controller, uint32_t seed) {
    lgreco_bucket *buckets[LAYERS] = {NULL};
    lgreco_request request = LGRECO_REQUEST_INIT;
    for (size_t l = 0; l < LAYERS; l++) fill(gradients[l], rows[l] * COLUMNS, seed + (uint32_t)l);
    OK(lgreco_controller_begin_step(controller, 0.1));
    do OK(lgreco_controller_control(controller, &request));
    while (request.kind != LGRECO_REQUEST_NONE);
    for (size_t l = 0; l < LAYERS; l++) {
        OK(lgreco_bucket_open(controller, &l, 1, &buckets[l]));
        OK(lgreco_bucket_submit(buckets[l], (void *[]){gradients[l]}, 1));
    }
    for (size_t l = 0; l < LAYERS; l++) {
        do OK(lgreco_bucket_next(buckets[l], &request));
        while (request.kind != LGRECO_REQUEST_NONE);
        OK(lgreco_bucket_close(controller, &buckets[l]));
    }
    OK(lgreco_controller_finish_step(controller, NULL));
}

// Asserts that a run, after its decision, needs at most `allowed` times the memory of the gradients.
static void takes(const char *methods, const char *storage, double allowed) {
    Options options = OPTIONS;
    lgreco_layer layers[LAYERS];
    size_t dims[LAYERS][2];
    char names[LAYERS][8];
    set(&options, "method", methods);
    set(&options, "policy", "uniform");
    set(&options, "residual_dtype", storage);
    set(&options, "start_iter", "3");
    set(&options, "window", "1");
    for (size_t l = 0; l < LAYERS; l++) {
        dims[l][0] = rows[l];
        dims[l][1] = COLUMNS;
        snprintf(names[l], sizeof names[l], "%zu", l);
        layers[l] = (lgreco_layer)LGRECO_LAYER_INIT;
        layers[l].name = names[l];
        layers[l].dims = dims[l];
        layers[l].dims_len = 2;
    }
    lgreco_collective collective = LGRECO_COLLECTIVE_INIT;
    collective.perform = perform;
    const size_t before = held;
    most = before;
    lgreco_controller *controller = NULL;
    lgreco_memory_use use = LGRECO_MEMORY_USE_INIT;
    OK(lgreco_controller_create(NULL, &collective, layers, LAYERS, NULL, listed(&options), &controller));
    OK(lgreco_controller_memory(controller, 1, SIZE_MAX, &use));
    size_t until_plan = 0;
    for (uint32_t s = 0; s < STEPS; s++) {
        if (s == STEPS - 2) {
            until_plan = most;
            most = held;
        }
        step(controller, s);
    }
    const double gradient_bytes = 4.0 * (double)elements, taken = (double)(most - before) / gradient_bytes;
    // This rank measures. A measuring rank frees the stored gradients of a decision when the decision is made.
    CHECK((double)(until_plan - before) / gradient_bytes <= allowed + 1 && use.window == 4 * elements);
    const double foretold = (double)(use.residuals + use.undo + use.factors + use.exchange) / gradient_bytes;
    printf("%s, storage %s: %.2f times the gradients, %.2f foretold, %.2f allowed\n", methods, storage, taken,
           foretold, allowed);
    CHECK(taken <= allowed);
    CHECK(0.9 * taken <= foretold && foretold <= 1.1 * taken);
    OK(lgreco_controller_destroy(&controller));
}

int main(int arguments, char **argument) {
    const size_t thousands = arguments > 1 ? strtoul(argument[1], NULL, 10) : 5;
    // The first layer has a third of the model, like an embedding.
    for (size_t l = 0; l < LAYERS; l++) {
        rows[l] = 1000 * thousands * (l == 0 ? 12 : 1) / 36;
        elements += rows[l] * COLUMNS;
        gradients[l] = malloc(rows[l] * COLUMNS * sizeof(float));
    }
    takes("qsgd", "float32", 0.5);
    takes("topk", "float32", 1.5);
    takes("topk", "int8", 0.8);
    takes("powersgd", "float32", 1.5);
    for (size_t l = 0; l < LAYERS; l++) free(gradients[l]);
    return report("memory");
}
