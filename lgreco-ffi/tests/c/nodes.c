// Two nodes of two workers. Blocking steps and buckets in flight give all ranks the same results, and failures reach
// all ranks. Runs continue from saved states, even without nodes.
#include "model.h"

#include <math.h>

enum { STEPS = 10, WORKERS = 4, PER_NODE = 2 };

static Options base(void) {
    Options options = OPTIONS;
    options.per_node = PER_NODE;
    set(&options, "method", "topk");
    set(&options, "default", "0.1");
    set(&options, "start_iter", "3");
    set(&options, "period", "4");
    set(&options, "window", "2");
    set(&options, "undo", "true");
    return options;
}

static Model *means[WORKERS][STEPS];
static uint8_t *saved[WORKERS];
static size_t saved_len[WORKERS];

// Takes a step with one bucket per layer, with all buckets in flight at the same time.
static lgreco_report overlapped(lgreco_controller *controller, Member *member, Model *model) {
    lgreco_bucket *buckets[LAYERS] = {NULL};
    lgreco_request request = LGRECO_REQUEST_INIT;
    lgreco_report report = LGRECO_REPORT_INIT;
    OK(lgreco_controller_begin_step(controller, 0.1));
    for (;;) {
        OK(lgreco_controller_control(controller, &request));
        if (request.kind == LGRECO_REQUEST_NONE) break;
        CHECK(request.group != LGRECO_GROUP_ALL && perform(member, &request) == 0);
    }
    for (size_t l = 0; l < LAYERS; l++) {
        void *const gradient = model->values[l];
        OK(lgreco_bucket_open(controller, &l, 1, &buckets[l]));
        OK(lgreco_bucket_submit(buckets[l], &gradient, 1));
    }
    // The last request of each bucket, a gather in the node, is performed after all other requests.
    lgreco_request last[LAYERS];
    int reduced[LAYERS] = {0}, left = LAYERS;
    for (size_t rounds = 0; left > 0; rounds++)
        for (int l = 0; l < LAYERS; l++) {
            lgreco_request announced = LGRECO_REQUEST_INIT;
            if (reduced[l] == 2) continue;
            OK(lgreco_bucket_round(buckets[l], rounds, &announced));
            OK(lgreco_bucket_next(buckets[l], &request));
            CHECK(announced.kind == request.kind && announced.group == request.group && announced.count == request.count);
            if (reduced[l] == 1 && request.group == LGRECO_GROUP_NODE) {
                reduced[l] = 2;
                left--;
                last[l] = request;
                continue;
            }
            if (request.kind == LGRECO_REQUEST_REDUCE_SCATTER_SUM) reduced[l] = 1;
            CHECK(perform(member, &request) == 0);
        }
    for (int l = 0; l < LAYERS; l++) CHECK(perform(member, &last[l]) == 0);
    for (int l = 0; l < LAYERS; l++) {
        OK(lgreco_bucket_next(buckets[l], &request));
        CHECK(request.kind == LGRECO_REQUEST_NONE);
        OK(lgreco_bucket_close(controller, &buckets[l]));
    }
    OK(lgreco_controller_finish_step(controller, &report));
    return report;
}

static void *train(void *argument) {
    Member *const member = argument;
    const uint32_t rank = member->rank;
    Options options = base();
    set(&options, "bucket_bytes", "0");
    lgreco_controller *blocking = controller_of(member, &options), *in_flight = controller_of(member, &options);
    for (uint32_t s = 0; s < STEPS; s++) {
        Model *const model = malloc(sizeof *model), *const other = malloc(sizeof *other);
        gradients(model, rank, s);
        memcpy(other, model, sizeof *other);
        const lgreco_report report = take_step(blocking, member, model);
        const lgreco_report found = overlapped(in_flight, member, other);
        CHECK(report.step == s && found.step == s && report.bytes_out == found.bytes_out);
        CHECK(report.bytes_in == 4 * (2 * ELEMENTS + BIAS) / PER_NODE);
        CHECK(s < 4 || report.bytes_out < report.bytes_in / 4);
        for (int l = 0; l < LAYERS; l++) CHECK(memcmp(model->values[l], other->values[l], elements(l) * sizeof(float)) == 0);
        means[rank][s] = model;
        free(other);
    }
    CHECK(same_state(blocking, in_flight));
    size_t first = 1, count = 1;
    OK(lgreco_controller_shard(blocking, 0, &first, &count));
    CHECK(count == ELEMENTS / PER_NODE && first == rank % PER_NODE * count);
    STATUS(LGRECO_LAYER_MISMATCH, lgreco_controller_shard(blocking, LAYERS, &first, &count));
    float *const residual = malloc(count * sizeof *residual);
    OK(lgreco_controller_residual(blocking, 0, residual, count));
    double norm = 0;
    for (size_t i = 0; i < count; i++) norm += pow(residual[i], 2);
    CHECK(norm > 0);
    free(residual);
    STATUS(LGRECO_LENGTH, lgreco_controller_save(blocking, LGRECO_SAVE_EVERYTHING, NULL, 0, &saved_len[rank]));
    saved[rank] = malloc(saved_len[rank]);
    OK(lgreco_controller_save(blocking, LGRECO_SAVE_EVERYTHING, saved[rank], saved_len[rank], &saved_len[rank]));
    OK(lgreco_controller_destroy(&in_flight));
    OK(lgreco_controller_destroy(&blocking));
    return NULL;
}

// In warm-up steps, the means are exact up to rounding.
static void all_ranks_have_the_means(void) {
    Member members[WORKERS] = {{0}};
    run_nodes(WORKERS, PER_NODE, members, train);
    for (uint32_t s = 0; s < STEPS; s++) {
        Model *const given = malloc(WORKERS * sizeof *given);
        for (uint32_t rank = 0; rank < WORKERS; rank++) gradients(&given[rank], rank, s);
        for (int l = 0; l < LAYERS; l++) {
            for (uint32_t rank = 1; rank < WORKERS; rank++)
                CHECK(memcmp(means[rank][s]->values[l], means[0][s]->values[l], elements(l) * sizeof(float)) == 0);
            for (size_t i = 0; i < elements(l) && s < 3; i++) {
                double mean = 0;
                for (uint32_t rank = 0; rank < WORKERS; rank++) mean += given[rank].values[l][i] / WORKERS;
                CHECK(fabs(means[0][s]->values[l][i] - mean) < 1e-6);
            }
        }
        free(given);
    }
    for (uint32_t rank = 0; rank < WORKERS; rank++)
        for (uint32_t s = 0; s < STEPS; s++) free(means[rank][s]);
}

// Rank 3 passes NULL for its second gradient at step 1, and a NaN at step 5. All ranks then fail, and the next step
// works.
static void *wrong_on_one_rank(void *argument) {
    Member *const member = argument;
    const int is_wrong = member->rank == 3;
    const Options options = base();
    const lgreco_collective collective = collective_of(member);
    lgreco_controller *controller = controller_of(member, &options);
    Model *const model = malloc(sizeof *model);
    for (uint32_t s = 0; s < 8; s++) {
        void *pointers[LAYERS] = {model->values[0], model->values[1], model->values[2]};
        gradients(model, member->rank, s);
        if (is_wrong && s == 1) pointers[1] = NULL;
        if (is_wrong && s == 5) model->values[2][9] = NAN;
        const lgreco_status status = lgreco_controller_step(controller, &collective, pointers, LAYERS, 0.1, NULL);
        if (s != 1 && s != 5) {
            CHECK(status == LGRECO_OK);
        } else if (is_wrong) {
            CHECK(status == (s == 1 ? LGRECO_NULL_POINTER : LGRECO_NON_FINITE_GRADIENT));
        } else {
            CHECK(status == LGRECO_PEER);
            TEXT("rank 3 failed with error code ", lgreco_message());
        }
    }
    OK(lgreco_controller_destroy(&controller));
    free(model);
    return NULL;
}

// Continues with two workers that form no nodes. Each worker loads the states of one former node.
static void *without_nodes(void *argument) {
    Member *const member = argument;
    Options options = base();
    options.per_node = 0;
    lgreco_controller *controller = controller_of(member, &options);
    Model *const model = malloc(sizeof *model);
    const uint8_t *const of_node[] = {saved[2 * member->rank], saved[2 * member->rank + 1]};
    const size_t lens[] = {saved_len[2 * member->rank], saved_len[2 * member->rank + 1]};
    lgreco_loaded loaded = LGRECO_LOADED_INIT;
    STATUS(LGRECO_SAVED_STATE, lgreco_controller_load(controller, saved[0], saved_len[0], of_node, lens, 1, NULL));
    OK(lgreco_controller_load(controller, saved[0], saved_len[0], of_node, lens, 2, &loaded));
    CHECK(loaded.missing_len == 0 && loaded.misshaped_len == 0 && loaded.world_size == 2 && loaded.step == STEPS);
    for (uint32_t s = STEPS; s < STEPS + 3; s++) {
        gradients(model, member->rank, s);
        CHECK(take_step(controller, member, model).step == s);
    }
    OK(lgreco_controller_destroy(&controller));
    free(model);
    return NULL;
}

static void refusals(void) {
    Member member = {0};
    Group alone = {.workers = 4};
    member.group = &alone;
    lgreco_layer layers[LAYERS];
    lgreco_controller *controller = NULL;
    const lgreco_collective collective = collective_of(&member);
    describe(layers);
    STATUS(LGRECO_PARAMETER, lgreco_controller_create_on_nodes(NULL, &collective, 0, layers, LAYERS, NULL, NULL, &controller));
    STATUS(LGRECO_PARAMETER, lgreco_controller_create_on_nodes(NULL, &collective, 3, layers, LAYERS, NULL, NULL, &controller));
    TEXT("the number of ranks per node is 3, expected a divisor", lgreco_message());
}

int main(void) {
    Member members[WORKERS] = {{0}};
    all_ranks_have_the_means();
    run_nodes(WORKERS, PER_NODE, members, wrong_on_one_rank);
    run_group(2, members, without_nodes);
    for (uint32_t rank = 0; rank < WORKERS; rank++) free(saved[rank]);
    refusals();
    return report("nodes");
}
