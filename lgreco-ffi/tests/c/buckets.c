// Buckets in flight give the same bits as lgreco_controller_step, with all buckets on one thread or one bucket per
// thread. All ranks learn of a failure in one bucket, and other buckets are not affected. Calls out of order are
// refused and change nothing.
#include "model.h"

#include <math.h>

enum { STEPS = 9 };

static Options options = OPTIONS;
static Group of_layer[LAYERS];  // a group per bucket, for buckets on threads
static int on_threads;

// A bucket of one layer in flight.
typedef struct {
    lgreco_bucket *bucket;
    float *values;
    Member member;
    lgreco_request request;
    lgreco_status status;
    int done;
    size_t round;
    char message[200];  // of the thread that it failed on
} Flight;

static void submit(Flight *flight) {
    void *pointers[] = {flight->values};
    flight->status = lgreco_bucket_submit(flight->bucket, pointers, 1);
    flight->request = (lgreco_request)LGRECO_REQUEST_INIT;
    flight->done = flight->status != LGRECO_OK;
}

static uint64_t sum(const uint64_t *lens, uint32_t workers) {
    uint64_t all = 0;
    for (uint32_t rank = 0; rank < workers; rank++) all += lens[rank];
    return all;
}

// Asserts that the request equals the announced request.
static void check_round(const lgreco_request *announced, const lgreco_request *request, uint32_t workers) {
    CHECK(announced->kind == request->kind && announced->count == request->count && announced->buffer == NULL);
    if (request->kind == LGRECO_REQUEST_ALL_GATHER_EACH)
        CHECK(announced->length >= sum(request->lens, workers));
    else if (request->kind == LGRECO_REQUEST_ALL_TO_ALL)
        CHECK(announced->length == sum(request->send_lens, workers) + sum(request->received_lens, workers));
    else
        CHECK(announced->length == request->length);
}

// Advances a bucket by one collective.
static void go_on(Flight *flight, Member *member) {
    lgreco_request announced = LGRECO_REQUEST_INIT;
    OK(lgreco_bucket_round(flight->bucket, flight->round++, &announced));
    flight->status = lgreco_bucket_next(flight->bucket, &flight->request);
    flight->done = flight->status != LGRECO_OK || flight->request.kind == LGRECO_REQUEST_NONE;
    if (flight->status != LGRECO_OK) snprintf(flight->message, sizeof flight->message, "%s", lgreco_message());
    if (flight->status == LGRECO_OK && flight->request.kind != LGRECO_REQUEST_NONE)
        check_round(&announced, &flight->request, member->group->workers);
    if (!flight->done) CHECK(perform(member, &flight->request) == 0);
}

static void *fly(void *argument) {
    Flight *const flight = argument;
    submit(flight);
    while (!flight->done) go_on(flight, &flight->member);
    return NULL;
}

static void begin(lgreco_controller *controller, Member *member) {
    lgreco_request request = LGRECO_REQUEST_INIT;
    OK(lgreco_controller_begin_step(controller, 0.1));
    for (;;) {
        OK(lgreco_controller_control(controller, &request));
        if (request.kind == LGRECO_REQUEST_NONE) return;
        CHECK(perform(member, &request) == 0);
    }
}

// Takes a step with one bucket per layer, from the last layer to the first, with all buckets in flight at the same
// time. Afterwards `flights` has the result of each bucket.
static lgreco_report overlapped(lgreco_controller *controller, Member *member, Model *model, Flight *flights) {
    lgreco_report report = LGRECO_REPORT_INIT;
    pthread_t threads[LAYERS];
    begin(controller, member);
    for (size_t l = LAYERS; l-- > 0;) {
        flights[l] = (Flight){.values = model->values[l], .member = {.group = &of_layer[l], .rank = member->rank}};
        OK(lgreco_bucket_open(controller, &l, 1, &flights[l].bucket));
        if (on_threads)
            CHECK(pthread_create(&threads[l], NULL, fly, &flights[l]) == 0);
        else
            submit(&flights[l]);
    }
    for (int flying = !on_threads; flying;) {
        flying = 0;
        for (int l = LAYERS; l-- > 0;)
            if (!flights[l].done) {
                go_on(&flights[l], member);
                flying = 1;
            }
    }
    for (int l = 0; l < LAYERS; l++) {
        if (on_threads) CHECK(pthread_join(threads[l], NULL) == 0);
        if (flights[l].status == LGRECO_OK) OK(lgreco_bucket_close(controller, &flights[l].bucket));
    }
    // The caller examines failed buckets and closes them.
    for (int l = 0; l < LAYERS; l++)
        if (flights[l].bucket != NULL) return report;
    OK(lgreco_controller_finish_step(controller, &report));
    return report;
}

static void *compare(void *argument) {
    Member *const member = argument;
    Model *const model = malloc(sizeof *model), *const expected = malloc(sizeof *expected);
    lgreco_controller *blocking = controller_of(member, &options), *controller = controller_of(member, &options);
    uint64_t switches = 0;
    for (uint32_t s = 0; s < STEPS; s++) {
        Flight flights[LAYERS];
        gradients(model, member->rank, s);
        *expected = *model;
        const lgreco_report report = overlapped(controller, member, model, flights);
        const lgreco_report of_step = take_step(blocking, member, expected);
        for (int l = 0; l < LAYERS; l++)
            CHECK(memcmp(model->values[l], expected->values[l], elements(l) * sizeof(float)) == 0);
        CHECK(report.step == s && report.outcome == of_step.outcome && report.switched == of_step.switched);
        CHECK(report.bytes_in == of_step.bytes_in && report.bytes_out == of_step.bytes_out);
        switches += report.switched;
    }
    CHECK(same_state(controller, blocking));
    CHECK(switches == (options.fixed == NULL ? 2 : 1));
    OK(lgreco_controller_destroy(&blocking));
    OK(lgreco_controller_destroy(&controller));
    free(expected);
    free(model);
    return NULL;
}

static void run(uint32_t workers, void *(*work)(void *)) {
    Member members[WORKERS_MAX] = {{0}};
    for (int l = 0; l < LAYERS; l++) begin_group(&of_layer[l], workers);
    run_group(workers, members, work);
    for (int l = 0; l < LAYERS; l++) end_group(&of_layer[l]);
}

static void base(const char *methods) {
    options = (Options)OPTIONS;
    set(&options, "method", methods);
    set(&options, "start_iter", "3");
    set(&options, "period", "4");
    set(&options, "window", "2");
    set(&options, "metrics_every", "3");
    set(&options, "undo", "true");
    set(&options, "bucket_bytes", "0");  // one layer per bucket, as here
}

static void as_the_blocking_step(void) {
    const char *planned[] = {"qsgd", "topk", "powersgd", "hybrid"};
    const lgreco_setting others[] = {{"clt-k 60"}, {"sidco 0.01"}, {"adacomp 500"}, {"loco 512"}};
    for (on_threads = 0; on_threads < 2; on_threads++) {
        for (int i = 0; i < 4; i++) {
            base(planned[i]);
            run(3, compare);
            set(&options, "route", "scatter_reduce");
            run(2, compare);
            const uint64_t shards[] = {ELEMENTS / 2, ELEMENTS, 0, BIAS, ELEMENTS - 100, ELEMENTS};
            set(&options, "route", NULL);
            options.shards = shards;
            run(2, compare);
            set(&options, "reduce_dtype", "bfloat16");
            run(2, compare);
            base(planned[i]);
            set(&options, "reduce_dtype", "bfloat16");
            run(3, compare);
        }
        for (int i = 0; i < 4; i++) {
            const lgreco_setting fixed[LAYERS] = {others[i], {"dense"}, others[i]};
            base("qsgd");
            options.fixed = fixed;
            run(3, compare);
        }
    }
    on_threads = 0;
}

static void residual(lgreco_controller *controller, size_t layer, float *values) {
    OK(lgreco_controller_residual(controller, layer, values, elements((int)layer)));
}

// At step 5, rank 1's gradient of layer 0 is not finite.
static void *spoilt(void *argument) {
    Member *const member = argument;
    Model *const model = malloc(sizeof *model);
    float *const before = malloc(2 * ELEMENTS * sizeof *before), *const after = before + ELEMENTS;
    lgreco_controller *controller = controller_of(member, &options);
    for (uint32_t s = 0; s < STEPS; s++) {
        Flight flights[LAYERS];
        gradients(model, member->rank, s);
        if (s == 5 && member->rank == 1) model->values[0][77] = -INFINITY;
        if (s == 5) residual(controller, 0, before);
        lgreco_report report = overlapped(controller, member, model, flights);
        CHECK(flights[1].status == LGRECO_OK && flights[2].status == LGRECO_OK);
        CHECK(isfinite(model->values[1][0]) && isfinite(model->values[2][0]));
        if (s != 5) {
            CHECK(flights[0].status == LGRECO_OK && report.outcome == LGRECO_OUTCOME_EXCHANGED);
            continue;
        }
        if (*value_of(&options, "non_finite") == 0) {
            CHECK(flights[0].status == (member->rank == 1 ? LGRECO_NON_FINITE_GRADIENT : LGRECO_PEER));
            TEXT(member->rank == 1 ? "layer `fc1.weight`: element 77 is -inf" : "rank 1 failed with error code 101",
                 flights[0].message);
            STATUS(LGRECO_STEP_ORDER, lgreco_bucket_next(flights[0].bucket, &flights[0].request));
            STATUS(LGRECO_IN_FLIGHT, lgreco_controller_finish_step(controller, NULL));
            TEXT("layer `fc1.weight`: ", lgreco_message());
            OK(lgreco_bucket_close(controller, &flights[0].bucket));
            OK(lgreco_controller_finish_step(controller, &report));
            CHECK(report.outcome == LGRECO_OUTCOME_FAILED);
        } else {
            const int skips = strcmp(value_of(&options, "non_finite"), "skip") == 0;
            const lgreco_outcome outcome = skips ? LGRECO_OUTCOME_SKIPPED : LGRECO_OUTCOME_PASSED_THROUGH;
            CHECK(flights[0].status == LGRECO_OK && report.outcome == outcome);
            for (size_t i = 0; i < elements(0); i++)
                CHECK(skips ? model->values[0][i] == 0 : isnan(model->values[0][i]));
        }
        residual(controller, 0, after);
        CHECK(memcmp(before, after, ELEMENTS * sizeof *before) == 0);
        uint64_t steps = 0, non_finite = 0;
        OK(lgreco_controller_steps(controller, &steps, &non_finite));
        CHECK(steps == 6 && non_finite == 1);
    }
    OK(lgreco_controller_destroy(&controller));
    free(before);
    free(model);
    return NULL;
}

// Tests lgreco_bucket_withhold, rolling back and abandoning steps, and rescaling residuals.
static void *transactions(void *argument) {
    Member *const member = argument;
    Model *const model = malloc(sizeof *model);
    float *const before = malloc(2 * ELEMENTS * sizeof *before), *const after = before + ELEMENTS;
    lgreco_controller *controller = controller_of(member, &options);
    Flight flights[LAYERS];
    for (uint32_t s = 0; s < 5; s++) {
        gradients(model, member->rank, s);
        overlapped(controller, member, model, flights);
    }
    residual(controller, 0, before);
    gradients(model, member->rank, 5);
    overlapped(controller, member, model, flights);
    residual(controller, 0, after);
    CHECK(memcmp(before, after, ELEMENTS * sizeof *before) != 0);
    OK(lgreco_controller_roll_back(controller));
    residual(controller, 0, after);
    CHECK(memcmp(before, after, ELEMENTS * sizeof *before) == 0);

    // The network fails in the middle of a step.
    STATUS(LGRECO_STEP_ORDER, lgreco_controller_abandon_step(controller));
    gradients(model, member->rank, 6);
    begin(controller, member);
    lgreco_bucket *lost = NULL;
    const size_t first[] = {0};
    OK(lgreco_bucket_open(controller, first, 1, &lost));
    OK(lgreco_bucket_submit(lost, (void *[]){model->values[0]}, 1));
    STATUS(LGRECO_IN_FLIGHT, lgreco_controller_abandon_step(controller));
    OK(lgreco_bucket_close(controller, &lost));
    OK(lgreco_controller_abandon_step(controller));
    residual(controller, 0, after);
    CHECK(memcmp(before, after, ELEMENTS * sizeof *before) == 0);

    OK(lgreco_controller_rescale_residuals(controller, 0.5f));
    residual(controller, 0, after);
    for (int i = 0; i < ELEMENTS; i++) CHECK(after[i] == 0.5f * before[i]);
    STATUS(LGRECO_PARAMETER, lgreco_controller_rescale_residuals(controller, 0.0f));
    STATUS(LGRECO_PARAMETER, lgreco_controller_rescale_residuals(controller, NAN));

    // Exchanges a bucket with two layers in another order than the model's. Rank 0 has no gradient of layer 0.
    memcpy(before, after, ELEMENTS * sizeof *before);
    gradients(model, member->rank, 6);
    begin(controller, member);
    STATUS(LGRECO_STEP_ORDER, lgreco_controller_roll_back(controller));
    STATUS(LGRECO_STEP_ORDER, lgreco_controller_rescale_residuals(controller, 2.0f));
    const size_t layers[] = {2, 0};
    Flight flight = {.values = NULL};
    lgreco_request *const request = &flight.request;
    void *pointers[] = {model->values[2], model->values[0]};
    OK(lgreco_bucket_open(controller, layers, 2, &flight.bucket));
    STATUS(LGRECO_LAYER_MISMATCH, lgreco_bucket_withhold(flight.bucket, 1));
    TEXT("layer `fc1.bias`: ", lgreco_message());
    if (member->rank == 0) OK(lgreco_bucket_withhold(flight.bucket, 0));
    OK(lgreco_bucket_submit(flight.bucket, pointers, 2));
    STATUS(LGRECO_STEP_ORDER, lgreco_bucket_withhold(flight.bucket, 0));
    *request = (lgreco_request)LGRECO_REQUEST_INIT;
    do go_on(&flight, member);
    while (!flight.done);
    OK(flight.status);
    OK(lgreco_bucket_close(controller, &flight.bucket));
    OK(lgreco_controller_finish_step(controller, NULL));
    residual(controller, 0, after);
    CHECK((memcmp(before, after, ELEMENTS * sizeof *before) == 0) == (member->rank == 0));
    OK(lgreco_controller_destroy(&controller));
    free(before);
    free(model);
    return NULL;
}

// The ranks exchange different layers. In this case the bucket fails on all ranks, after the same number of
// collectives.
static void *different_layers(void *argument) {
    Member *const member = argument;
    Model *const model = malloc(sizeof *model);
    lgreco_controller *controller = controller_of(member, &options);
    const size_t layers[] = {2, 0};
    Flight flight = {.values = NULL};
    void *pointers[] = {model->values[2], model->values[0]};
    gradients(model, member->rank, 0);
    begin(controller, member);
    OK(lgreco_bucket_open(controller, layers, 2 - member->rank, &flight.bucket));
    OK(lgreco_bucket_submit(flight.bucket, pointers, 2 - member->rank));
    flight.request = (lgreco_request)LGRECO_REQUEST_INIT;
    do go_on(&flight, member);
    while (!flight.done);
    STATUS(LGRECO_PEER_PLAN, flight.status);
    OK(lgreco_bucket_close(controller, &flight.bucket));
    OK(lgreco_controller_destroy(&controller));
    free(model);
    return NULL;
}

// If rank 1 gives wrong pointers or a wrong learning rate, the bucket fails on both ranks.
static void *wrong_on_one_rank(void *argument) {
    Member *const member = argument;
    Model *const model = malloc(sizeof *model);
    lgreco_controller *controller = controller_of(member, &options);
    const size_t layers[] = {0, 1};
    const lgreco_status expected[] = {LGRECO_LENGTH,  LGRECO_NULL_POINTER, LGRECO_NULL_POINTER, LGRECO_ALIGNMENT,
                                      LGRECO_OVERLAP, LGRECO_PARAMETER};
    enum { CASES = sizeof expected / sizeof *expected };
    for (uint32_t s = 0; s < 2 * CASES; s++) {
        const int wrong = s % 2 == 1 && member->rank == 1 ? (int)s / 2 : -1;
        void *pointers[] = {model->values[0], model->values[1]};
        lgreco_request request = LGRECO_REQUEST_INIT;
        Flight flight = {.values = NULL};
        gradients(model, member->rank, s);
        if (wrong == 2) pointers[1] = NULL;
        if (wrong == 3) pointers[1] = (uint8_t *)model->values[1] + 2;
        if (wrong == 4) pointers[1] = model->values[0] + ELEMENTS - 1;
        OK(lgreco_controller_begin_step(controller, wrong == 5 ? NAN : 0.1));
        do {
            OK(lgreco_controller_control(controller, &request));
            if (request.kind != LGRECO_REQUEST_NONE) CHECK(perform(member, &request) == 0);
        } while (request.kind != LGRECO_REQUEST_NONE);
        OK(lgreco_bucket_open(controller, layers, 2, &flight.bucket));
        OK(lgreco_bucket_submit(flight.bucket, wrong == 1 ? NULL : pointers, wrong == 0 ? 1 : 2));
        flight.request = (lgreco_request)LGRECO_REQUEST_INIT;
        do go_on(&flight, member);
        while (!flight.done);
        if (s % 2 == 0) {
            OK(flight.status);
        } else {
            CHECK(flight.status == (member->rank == 1 ? expected[s / 2] : LGRECO_PEER));
        }
        if (wrong == 4) TEXT("layer `fc1.", flight.message);
        OK(lgreco_bucket_close(controller, &flight.bucket));
        OK(lgreco_controller_finish_step(controller, NULL));
    }
    OK(lgreco_controller_destroy(&controller));
    free(model);
    return NULL;
}

// Rank 1 reports that its backward pass failed. Both ranks learn of the failed backward pass in the same step, and the
// next step works.
static void *failed_on_one_rank(void *argument) {
    Member *const member = argument;
    Model *const model = malloc(sizeof *model);
    float *const before = malloc(2 * ELEMENTS * sizeof *before), *const after = before + ELEMENTS;
    lgreco_controller *controller = controller_of(member, &options);
    for (uint32_t s = 0; s < STEPS; s++) {
        const int fails = s == 2 || s == 5;
        const size_t layers[] = {0, 2};
        void *pointers[] = {model->values[0], model->values[2]};
        Flight flight = {.request = LGRECO_REQUEST_INIT};
        gradients(model, member->rank, s);
        residual(controller, 0, before);
        begin(controller, member);
        OK(lgreco_bucket_open(controller, layers, 2, &flight.bucket));
        if (fails && member->rank == 1)
            OK(lgreco_bucket_submit_failure(flight.bucket));
        else
            OK(lgreco_bucket_submit(flight.bucket, pointers, 2));
        STATUS(LGRECO_STEP_ORDER, lgreco_bucket_submit_failure(flight.bucket));
        do go_on(&flight, member);
        while (!flight.done);
        STATUS(!fails ? LGRECO_OK : member->rank == 1 ? LGRECO_TRAINER : LGRECO_PEER, flight.status);
        if (fails) {
            TEXT(member->rank == 1 ? "the trainer of this rank has failed: its own backward pass"
                                   : "rank 1 failed with error code 215: its own backward pass",
                 flight.message);
        }
        OK(lgreco_bucket_close(controller, &flight.bucket));
        lgreco_report report = LGRECO_REPORT_INIT;
        OK(lgreco_controller_finish_step(controller, &report));
        CHECK(report.outcome == (fails ? LGRECO_OUTCOME_FAILED : LGRECO_OUTCOME_EXCHANGED));
        residual(controller, 0, after);
        CHECK(!fails || memcmp(before, after, ELEMENTS * sizeof *before) == 0);
    }
    OK(lgreco_controller_destroy(&controller));
    free(before);
    free(model);
    return NULL;
}

static void out_of_order(void) {
    static Model model;
    Group group;
    begin_group(&group, 1);
    Member member = {.group = &group};
    base("topk");
    lgreco_controller *controller = controller_of(&member, &options), *other = controller_of(&member, &options);
    lgreco_request request = LGRECO_REQUEST_INIT;
    lgreco_bucket *bucket = NULL, *second = NULL;
    const size_t all[] = {0, 1, 2}, twice[] = {1, 1}, beyond[] = {LAYERS};
    void *pointers[LAYERS] = {model.values[0], model.values[1], model.values[2]};
    gradients(&model, 0, 0);

    STATUS(LGRECO_STEP_ORDER, lgreco_bucket_open(controller, all, LAYERS, &bucket));
    STATUS(LGRECO_STEP_ORDER, lgreco_controller_control(controller, &request));
    STATUS(LGRECO_STEP_ORDER, lgreco_controller_finish_step(controller, NULL));
    OK(lgreco_controller_begin_step(controller, 0.1));
    STATUS(LGRECO_STEP_ORDER, lgreco_controller_begin_step(controller, 0.1));
    STATUS(LGRECO_STEP_ORDER, lgreco_bucket_open(controller, all, LAYERS, &bucket));
    TEXT("the ranks have not agreed on the step", lgreco_message());
    OK(lgreco_controller_control(controller, &request));
    CHECK(request.kind == LGRECO_REQUEST_NONE);
    STATUS(LGRECO_LAYER_MISMATCH, lgreco_bucket_open(controller, beyond, 1, &bucket));
    STATUS(LGRECO_IN_FLIGHT, lgreco_bucket_open(controller, twice, 2, &bucket));
    TEXT("layer `fc1.bias`: the layer is in a bucket", lgreco_message());
    CHECK(bucket == NULL);
    OK(lgreco_bucket_open(controller, all, 2, &bucket));
    STATUS(LGRECO_IN_FLIGHT, lgreco_bucket_open(controller, all, LAYERS, &second));
    STATUS(LGRECO_IN_FLIGHT, lgreco_controller_finish_step(controller, NULL));
    const lgreco_collective collective = collective_of(&member);
    STATUS(LGRECO_STEP_ORDER, lgreco_controller_step(controller, &collective, pointers, LAYERS, 0.1, NULL));

    STATUS(LGRECO_STEP_ORDER, lgreco_bucket_next(bucket, &request));
    OK(lgreco_bucket_submit(bucket, pointers, 2));
    STATUS(LGRECO_STEP_ORDER, lgreco_bucket_submit(bucket, pointers, 2));
    lgreco_request no_request;
    memset(&no_request, 0, sizeof no_request);
    STATUS(LGRECO_STRUCT_SIZE, lgreco_bucket_next(bucket, &no_request));
    OK(lgreco_bucket_next(bucket, &request));
    CHECK(request.kind != LGRECO_REQUEST_NONE);

    // A bucket can be closed in the middle of its exchange, but only with its own controller.
    lgreco_bucket *const kept = bucket;
    STATUS(LGRECO_STEP_ORDER, lgreco_bucket_close(other, &bucket));
    TEXT("the bucket is another controller's", lgreco_message());
    STATUS(LGRECO_NULL_POINTER, lgreco_bucket_close(NULL, &bucket));
    STATUS(LGRECO_HANDLE, lgreco_bucket_close((lgreco_controller *)(void *)bucket, &bucket));
    CHECK(bucket == kept);
    OK(lgreco_bucket_close(controller, &bucket));
    CHECK(bucket == NULL);
    OK(lgreco_bucket_close(controller, &bucket));
    OK(lgreco_bucket_close(controller, NULL));
    OK(lgreco_bucket_close(NULL, NULL));

    // After a bucket is closed, a new bucket can be opened with the same layers. A bucket whose exchange is done stays
    // done, and no longer reads the gradients.
    OK(lgreco_bucket_open(controller, all, LAYERS, &bucket));
    gradients(&model, 0, 0);
    Model *const own = malloc(sizeof *own);
    *own = model;
    for (int l = 0; l < LAYERS; l++) pointers[l] = own->values[l];
    Flight flight = {.bucket = bucket, .request = LGRECO_REQUEST_INIT};
    OK(lgreco_bucket_submit(bucket, pointers, LAYERS));
    do go_on(&flight, &member);
    while (!flight.done);
    CHECK(memcmp(own->values[0], model.values[0], sizeof model.values[0]) == 0);  // one worker, not compressed yet
    free(own);
    OK(lgreco_bucket_next(bucket, &request));
    CHECK(request.kind == LGRECO_REQUEST_NONE && request.buffer == NULL);
    STATUS(LGRECO_STEP_ORDER, lgreco_bucket_submit(bucket, pointers, LAYERS));
    OK(lgreco_bucket_close(controller, &bucket));
    OK(lgreco_controller_finish_step(controller, NULL));

    // Tests a bucket without layers, and a controller that is destroyed before its bucket.
    begin(controller, &member);
    OK(lgreco_bucket_open(controller, NULL, 0, &bucket));
    OK(lgreco_bucket_open(controller, all, LAYERS, &second));
    OK(lgreco_bucket_close(controller, &bucket));
    OK(lgreco_controller_destroy(&controller));
    STATUS(LGRECO_STEP_ORDER, lgreco_bucket_close(other, &second));
    OK(lgreco_bucket_close(NULL, &second));
    CHECK(second == NULL);
    OK(lgreco_controller_destroy(&other));
    end_group(&group);
}

int main(void) {
    as_the_blocking_step();
    for (on_threads = 0; on_threads < 2; on_threads++) {
        base("topk");
        run(3, spoilt);
        set(&options, "non_finite", "skip");
        run(3, spoilt);
        set(&options, "non_finite", "pass_through");
        run(3, spoilt);
        base("topk");
        run(2, transactions);
        run(2, different_layers);
        run(2, failed_on_one_rank);
        set(&options, "policy", "uniform");
        run(2, wrong_on_one_rank);
    }
    out_of_order();
    return report("buckets");
}
