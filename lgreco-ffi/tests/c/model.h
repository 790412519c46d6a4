// A model of three layers, the model's gradients, and its controller.
#ifndef MODEL_H
#define MODEL_H

#include "group.h"

enum { ROWS = 32, COLS = 64, ELEMENTS = ROWS * COLS, BIAS = 16, LAYERS = 3 };

static const size_t WEIGHT[] = {ROWS, COLS}, VECTOR[] = {BIAS};

static inline void describe(lgreco_layer *layers) {
    const char *const names[LAYERS] = {"fc1.weight", "fc1.bias", "fc2.weight"};
    for (int l = 0; l < LAYERS; l++) {
        layers[l] = (lgreco_layer)LGRECO_LAYER_INIT;
        layers[l].name = names[l];
        layers[l].dims = l == 1 ? VECTOR : WEIGHT;
        layers[l].dims_len = l == 1 ? 1 : 2;
    }
}

static inline size_t elements(int layer) { return layer == 1 ? BIAS : ELEMENTS; }

typedef struct {
    float values[LAYERS][ELEMENTS];
} Model;

static inline void gradients(Model *model, uint32_t rank, uint32_t step) {
    for (int l = 0; l < LAYERS; l++) {
        fill(model->values[l], elements(l), 1000 * step + 10 * rank + (uint32_t)l);
        for (size_t i = 0; i < elements(l); i++) model->values[l][i] *= l == 2 ? 0.1f : 1.0f + (float)(i % 7 == 0);
    }
}

static inline lgreco_controller *controller_of(Member *member, const Options *options) {
    lgreco_controller *controller = NULL;
    lgreco_layer layers[LAYERS];
    const lgreco_collective collective = collective_of(member);
    const char *const *list = listed(options);
    describe(layers);
    const lgreco_status status =
        options->per_node > 0
            ? lgreco_controller_create_on_nodes(NULL, &collective, options->per_node, layers, LAYERS, options->fixed, list,
                                                &controller)
        : options->shards == NULL
            ? lgreco_controller_create(NULL, &collective, layers, LAYERS, options->fixed, list, &controller)
            : lgreco_controller_create_sharded(NULL, &collective, layers, LAYERS, options->shards, options->fixed, list,
                                               &controller);
    if (status != LGRECO_OK) fprintf(stderr, "%s\n", lgreco_message());
    OK(status);
    return controller;
}

static inline lgreco_report take_step(lgreco_controller *controller, Member *member, Model *model) {
    const lgreco_collective collective = collective_of(member);
    void *const pointers[LAYERS] = {model->values[0], model->values[1], model->values[2]};
    lgreco_report report = LGRECO_REPORT_INIT;
    OK(lgreco_controller_step(controller, &collective, pointers, LAYERS, 0.1, &report));
    return report;
}

static inline int same_state(lgreco_controller *one, lgreco_controller *other) {
    size_t lengths[2] = {0, 0};
    STATUS(LGRECO_LENGTH, lgreco_controller_save(one, LGRECO_SAVE_EVERYTHING, NULL, 0, &lengths[0]));
    STATUS(LGRECO_LENGTH, lgreco_controller_save(other, LGRECO_SAVE_EVERYTHING, NULL, 0, &lengths[1]));
    uint8_t *const saved = malloc(lengths[0] + lengths[1]);
    OK(lgreco_controller_save(one, LGRECO_SAVE_EVERYTHING, saved, lengths[0], &lengths[0]));
    OK(lgreco_controller_save(other, LGRECO_SAVE_EVERYTHING, saved + lengths[0], lengths[1], &lengths[1]));
    const int same = lengths[0] == lengths[1] && memcmp(saved, saved + lengths[0], lengths[0]) == 0;
    free(saved);
    return same;
}

#endif
