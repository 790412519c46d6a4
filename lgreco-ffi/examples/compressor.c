// Two workers train on different gradients. The workers measure and plan once, and then compress every step with error
// feedback. The mean gradient is the mean of the decoded payloads. Halfway, one worker continues from a saved state.
#include <inttypes.h>
#include <lgreco_train.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WORKERS = 2, LAYERS = 2, ROWS = 64, COLS = 96, ELEMENTS = ROWS * COLS, STEPS = 40 };

static void check(lgreco_status status) {
    if (status == LGRECO_OK) return;
    fprintf(stderr, "%s: %s\n", lgreco_status_name(status), lgreco_message());
    exit(1);
}

// Makes the compressor of one layer on one worker, with error feedback.
static lgreco_compressor *compressor_of(const lgreco_layer *layer, int index, int worker, const char *setting) {
    char layer_index[12], rank[12];
    snprintf(layer_index, sizeof layer_index, "%d", index);
    snprintf(rank, sizeof rank, "%d", worker);
    const char *const options[] = {"layer_index", layer_index, "rank", rank, "error_feedback", "true", NULL};
    lgreco_compressor *compressor = NULL;
    check(lgreco_compressor_create(NULL, layer, setting, options, &compressor));
    return compressor;
}

// Fills `values` with the gradient of one layer on one worker at one step. The second layer's gradients are a tenth of the
// first's.
static void gradient(int worker, int layer, int step, float *values) {
    for (int i = 0; i < ELEMENTS; i++) {
        const double x = 1e-3 * i * (1 + layer);
        values[i] = (float)((layer ? 0.1 : 1.0) * (sin(17 * x + worker) + 0.3 * cos(step + 89 * x) + (i % 61 == 0)));
    }
}

int main(void) {
    static float values[LAYERS][ELEMENTS], decoded[ELEMENTS], sent[ELEMENTS], wanted[ELEMENTS];
    const char *const names[LAYERS] = {"fc1.weight", "fc2.weight"};
    const size_t dims[] = {ROWS, COLS};

    // Measure TopK at densities around 10 % on one worker's first gradients, and plan.
    lgreco_layer layers[LAYERS] = {LGRECO_LAYER_INIT, LGRECO_LAYER_INIT};
    for (int l = 0; l < LAYERS; l++) {
        gradient(0, l, 0, values[l]);
        layers[l].name = names[l];
        layers[l].dims = dims;
        layers[l].dims_len = 2;
        layers[l].values = values[l];
    }
    const char *const search[] = {"method", "topk", "default", "0.1", NULL};
    lgreco_table *table = NULL;
    lgreco_table_view measured = LGRECO_TABLE_VIEW_INIT;
    lgreco_plan *plan = NULL;
    lgreco_plan_view chosen = LGRECO_PLAN_VIEW_INIT;
    check(lgreco_table_measure(NULL, layers, LAYERS, search, &table));
    check(lgreco_table_get(table, &measured));
    check(lgreco_plan_solve(&measured, NULL, &plan));
    check(lgreco_plan_get(plan, &chosen));
    printf("plan: %" PRIu64 " bits per step, dense would be %d\n", chosen.size, LAYERS * ELEMENTS * 32);

    for (int l = 0; l < LAYERS; l++) {
        lgreco_setting setting;
        check(lgreco_table_setting(table, (size_t)l, chosen.options[l], &setting));
        lgreco_compressor *compressors[WORKERS];
        for (int w = 0; w < WORKERS; w++) compressors[w] = compressor_of(&layers[l], l, w, setting.text);
        size_t bound = 0;
        check(lgreco_compressor_bound(compressors[0], &bound));
        uint8_t *payload = malloc(bound);
        memset(sent, 0, sizeof sent);
        memset(wanted, 0, sizeof wanted);
        for (int step = 0; step < STEPS; step++) {
            for (int w = 0; w < WORKERS; w++) {
                lgreco_compressor *own = compressors[w];
                size_t length = 0;
                gradient(w, l, step, values[l]);
                check(lgreco_compressor_encode(own, (uint32_t)step, values[l], payload, bound, &length));
                // A real program sends the payload here. Every worker decodes the payloads of all workers.
                check(lgreco_compressor_decode(own, payload, length, decoded, ELEMENTS));
                for (int i = 0; i < ELEMENTS; i++) {
                    sent[i] += decoded[i] / WORKERS;
                    wanted[i] += values[l][i] / WORKERS;
                }
            }
            if (step == STEPS / 2) {  // A checkpoint: the residual of worker 0 moves to a new compressor.
                size_t saved_len = 0;
                lgreco_compressor_save(compressors[0], NULL, 0, &saved_len);  // writes the length to saved_len
                uint8_t *saved = malloc(saved_len);
                check(lgreco_compressor_save(compressors[0], saved, saved_len, &saved_len));
                lgreco_compressor_destroy(&compressors[0]);
                compressors[0] = compressor_of(&layers[l], l, 0, setting.text);
                check(lgreco_compressor_load(compressors[0], saved, saved_len));
                free(saved);
            }
        }
        double error = 0, norm = 0;
        for (int i = 0; i < ELEMENTS; i++) {
            error += pow(sent[i] - wanted[i], 2);
            norm += pow(wanted[i], 2);
        }
        printf("%s: %zu bytes per step, %.1f %% of the sum of all gradients not yet sent\n", names[l], bound,
               100 * sqrt(error / norm));
        free(payload);
        for (int w = 0; w < WORKERS; w++) lgreco_compressor_destroy(&compressors[w]);
    }
    lgreco_plan_destroy(&plan);
    lgreco_table_destroy(&table);
    return 0;
}
