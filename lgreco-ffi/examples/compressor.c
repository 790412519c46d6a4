// Two workers train on different gradients: measure, plan, then compress every step with error feedback, average what the
// payloads decode to, and continue from a saved state.
#include <inttypes.h>
#include <lgreco.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WORKERS = 2, LAYERS = 2, ROWS = 64, COLS = 96, ELEMENTS = ROWS * COLS, STEPS = 40 };

static lgreco_context *context;

static void check(lgreco_status status, const char *message) {
    if (status == LGRECO_OK) return;
    fprintf(stderr, "%s: %s\n", lgreco_status_name(status), message);
    exit(1);
}

// The gradient of one layer on one worker at one step, the second layer's a tenth of the first's.
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
    check(lgreco_context_create(NULL, &context), "no context");

    // Measure TopK at densities around 10 % on one worker's first gradients, and plan.
    lgreco_layer layers[LAYERS] = {LGRECO_LAYER_INIT, LGRECO_LAYER_INIT};
    for (int l = 0; l < LAYERS; l++) {
        gradient(0, l, 0, values[l]);
        layers[l].name = names[l];
        layers[l].dims = dims;
        layers[l].dims_len = 2;
        layers[l].values = values[l];
    }
    lgreco_search_options search = LGRECO_SEARCH_OPTIONS_INIT;
    search.methods = "topk";
    search.parameter = 0.1;
    lgreco_table *table = NULL;
    lgreco_table_view measured = LGRECO_TABLE_VIEW_INIT;
    lgreco_plan *plan = NULL;
    lgreco_plan_view chosen = LGRECO_PLAN_VIEW_INIT;
    check(lgreco_table_measure(context, layers, LAYERS, &search, &table), lgreco_context_message(context));
    check(lgreco_table_get(table, &measured), "no view");
    check(lgreco_plan_solve(context, &measured, NULL, &plan), lgreco_context_message(context));
    check(lgreco_plan_get(plan, &chosen), "no view");
    printf("plan: %" PRIu64 " bits per step, dense would be %d\n", chosen.size, LAYERS * ELEMENTS * 32);

    for (int l = 0; l < LAYERS; l++) {
        lgreco_setting setting;
        check(lgreco_table_setting(table, (size_t)l, chosen.options[l], &setting), "no setting");
        lgreco_compressor *compressors[WORKERS] = {NULL, NULL};
        for (int w = 0; w < WORKERS; w++) {
            lgreco_compressor_options options = LGRECO_COMPRESSOR_OPTIONS_INIT;
            options.layer_index = (uint32_t)l;
            options.rank = (uint32_t)w;
            options.feedback = LGRECO_FEEDBACK_RESIDUAL;
            check(lgreco_compressor_create(context, &layers[l], setting.text, &options, &compressors[w]),
                  lgreco_context_message(context));
        }
        size_t bound = 0;
        check(lgreco_compressor_bound(compressors[0], &bound), lgreco_compressor_message(compressors[0]));
        uint8_t *payload = malloc(bound);
        memset(sent, 0, sizeof sent);
        memset(wanted, 0, sizeof wanted);
        for (int step = 0; step < STEPS; step++) {
            for (int w = 0; w < WORKERS; w++) {
                lgreco_compressor *own = compressors[w];
                size_t length = 0;
                gradient(w, l, step, values[l]);
                check(lgreco_compressor_encode(own, (uint32_t)step, values[l], payload, bound, &length),
                      lgreco_compressor_message(own));
                // Here the payload travels; every worker decodes everybody's.
                check(lgreco_compressor_decode(own, payload, length, decoded, ELEMENTS),
                      lgreco_compressor_message(own));
                for (int i = 0; i < ELEMENTS; i++) {
                    sent[i] += decoded[i] / WORKERS;
                    wanted[i] += values[l][i] / WORKERS;
                }
            }
            if (step == STEPS / 2) {  // A checkpoint: what worker 0 remembers moves to a new compressor.
                size_t saved_len = 0;
                lgreco_compressor_save(compressors[0], NULL, 0, &saved_len);  // tells how many bytes it takes
                uint8_t *saved = malloc(saved_len);
                check(lgreco_compressor_save(compressors[0], saved, saved_len, &saved_len), "not saved");
                lgreco_compressor_options options = LGRECO_COMPRESSOR_OPTIONS_INIT;
                options.layer_index = (uint32_t)l;
                options.feedback = LGRECO_FEEDBACK_RESIDUAL;
                lgreco_compressor_destroy(&compressors[0]);
                check(lgreco_compressor_create(context, &layers[l], setting.text, &options, &compressors[0]),
                      lgreco_context_message(context));
                check(lgreco_compressor_load(compressors[0], saved, saved_len),
                      lgreco_compressor_message(compressors[0]));
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
    lgreco_context_destroy(&context);
    return 0;
}
