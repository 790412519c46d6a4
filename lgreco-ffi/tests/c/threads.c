// Several threads with different handles give the same results as one thread. All threads may read the same plan. Two
// calls at the same time on one handle are detected.
#include "check.h"

#include <pthread.h>

enum { THREADS = 4, STEPS = 20, ROWS = 32, COLS = 40, ELEMENTS = ROWS * COLS };

static const size_t ENDS[] = {2, 4};
static const lgreco_choice CHOICES[] = {{80, 0.5}, {40, 1.0}, {60, 0.5}, {30, 2.0}};
static const uint32_t DEFAULTS[] = {1, 0};
static lgreco_plan *shared_plan;
static lgreco_compressor *shared_compressor;

typedef struct {
    uint32_t rank;
    uint64_t hash;
    int busy;
} Worker;

static void *work(void *argument) {
    Worker *const worker = argument;
    static const size_t dims[] = {ROWS, COLS};
    float values[ELEMENTS], decoded[ELEMENTS];
    uint8_t payload[16 + 4 * ELEMENTS];
    lgreco_compressor *compressor = NULL;
    lgreco_layer layer = LGRECO_LAYER_INIT;
    Options options = OPTIONS;
    layer.name = "fc1";
    layer.dims = dims;
    layer.dims_len = 2;
    set(&options, "error_feedback", "true");
    set_number(&options, "rank", worker->rank);
    worker->hash = 1469598103934665603u;
    if (lgreco_compressor_create(NULL, &layer, "qsgd 4", listed(&options), &compressor) != LGRECO_OK) return NULL;
    for (uint32_t step = 0; step < STEPS; step++) {
        size_t length = 0, bytes = 0;
        fill(values, ELEMENTS, step + 100 * worker->rank);
        if (lgreco_compressor_encode(compressor, step, values, payload, sizeof payload, &length) != LGRECO_OK ||
            lgreco_compressor_decode(compressor, payload, length, decoded, ELEMENTS) != LGRECO_OK)
            return NULL;
        for (size_t i = 0; i < length; i++) worker->hash = (worker->hash ^ payload[i]) * 1099511628211u;

        lgreco_plan_view plan = LGRECO_PLAN_VIEW_INIT;
        if (lgreco_plan_get(shared_plan, &plan) != LGRECO_OK || plan.size != 100) worker->hash = 0;
        // All threads use one handle. Each call succeeds, or is refused with LGRECO_BUSY.
        for (int i = 0; i < 200; i++) {
            const lgreco_status status = lgreco_compressor_bound(shared_compressor, &bytes);
            worker->busy += status == LGRECO_BUSY;
            if (status != LGRECO_BUSY && !(status == LGRECO_OK && bytes == 16 + 4 * ELEMENTS)) worker->hash = 0;
        }
    }
    lgreco_compressor_destroy(&compressor);
    return worker;
}

int main(void) {
    lgreco_table_view table = LGRECO_TABLE_VIEW_INIT;
    table.layers = 2;
    table.ends = ENDS;
    table.choices = CHOICES;
    table.defaults = DEFAULTS;
    OK(lgreco_plan_solve(&table, NULL, &shared_plan));
    const size_t dims[] = {ROWS, COLS};
    lgreco_layer layer = LGRECO_LAYER_INIT;
    layer.name = "shared";
    layer.dims = dims;
    layer.dims_len = 2;
    OK(lgreco_compressor_create(NULL, &layer, "dense", NULL, &shared_compressor));

    Worker together[THREADS], alone[THREADS];
    pthread_t threads[THREADS];
    for (uint32_t rank = 0; rank < THREADS; rank++) {
        together[rank] = alone[rank] = (Worker){rank, 0, 0};
        CHECK(pthread_create(&threads[rank], NULL, work, &together[rank]) == 0);
    }
    for (int rank = 0; rank < THREADS; rank++) {
        void *done = NULL;
        CHECK(pthread_join(threads[rank], &done) == 0 && done == &together[rank]);
    }
    for (int rank = 0; rank < THREADS; rank++) {
        CHECK(work(&alone[rank]) == &alone[rank] && alone[rank].busy == 0);
        CHECK(together[rank].hash == alone[rank].hash && alone[rank].hash != 0);
        for (int other = 0; other < rank; other++) CHECK(alone[rank].hash != alone[other].hash);
    }
    lgreco_compressor_destroy(&shared_compressor);
    lgreco_plan_destroy(&shared_plan);
    return report("threads");
}
