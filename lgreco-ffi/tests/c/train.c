// Tests the controller in a training loop of several workers. Every rank has the same bits, and every option has an
// effect. Callbacks that fail end the step on every rank, and a run continues bit for bit from a saved state.
#include "model.h"

#include <math.h>

enum { STEPS = 12 };

// The inputs and the results of a run.
typedef struct {
    Options options;
    uint64_t bytes_out, switches;
    uint64_t hash[WORKERS_MAX];
    lgreco_decision decision[WORKERS_MAX];
    lgreco_metrics metrics[WORKERS_MAX][LAYERS];
    lgreco_setting settings[LAYERS];
    lgreco_outcome outcome[WORKERS_MAX];
    double residual[WORKERS_MAX];
    int nan_rank, nan_step;
    uint32_t huge_step;  // when rank 0's first gradient is too large for PowerSGD's Q, but not for its P; 0: never
    double drop_rate_at;
    lgreco_status failed[WORKERS_MAX];
    char message[WORKERS_MAX][200];
} Run;

static Run *now;  // the run under way

static uint64_t hashed(uint64_t hash, const void *bytes, size_t length) {
    for (size_t i = 0; i < length; i++) hash = (hash ^ ((const uint8_t *)bytes)[i]) * 1099511628211u;
    return hash;
}

static lgreco_status step(lgreco_controller *controller, Member *member, Model *model, double rate, lgreco_report *report) {
    const lgreco_collective collective = collective_of(member);
    void *pointers[LAYERS];
    for (int l = 0; l < LAYERS; l++) pointers[l] = model->values[l];
    return lgreco_controller_step(controller, &collective, pointers, LAYERS, rate, report);
}

static void *train(void *argument) {
    Member *const member = argument;
    Run *const run = now;
    const uint32_t rank = member->rank;
    Model *const model = malloc(sizeof *model);
    lgreco_controller *controller = controller_of(member, &run->options);
    uint64_t hash = 1469598103934665603u, bytes_out = 0, switches = 0;
    run->failed[rank] = LGRECO_OK;
    for (uint32_t s = 0; s < STEPS && run->failed[rank] == LGRECO_OK; s++) {
        lgreco_report report = LGRECO_REPORT_INIT;
        gradients(model, rank, s);
        if (run->nan_rank == (int)rank && run->nan_step == (int)s) model->values[0][77] = NAN;
        if (rank == 0 && s > 0 && run->huge_step == s)
            for (int row = 0; row < ROWS; row++) model->values[0][row * COLS] = 1e38f;
        const double rate = run->drop_rate_at > 0 && s >= run->drop_rate_at ? 0.01 : 0.1;
        run->failed[rank] = step(controller, member, model, rate, &report);
        if (run->failed[rank] != LGRECO_OK) break;
        for (int l = 0; l < LAYERS; l++) hash = hashed(hash, model->values[l], elements(l) * sizeof(float));
        bytes_out += report.bytes_out;
        switches += report.switched;
        if (report.outcome != LGRECO_OUTCOME_EXCHANGED) run->outcome[rank] = report.outcome;
        CHECK(report.bytes_in == 4 * (2 * ELEMENTS + BIAS) && report.exchange_seconds >= 0);
    }
    snprintf(run->message[rank], sizeof run->message[rank], "%s", lgreco_message());
    run->hash[rank] = hash;
    run->decision[rank] = (lgreco_decision)LGRECO_DECISION_INIT;
    OK(lgreco_controller_decision(controller, &run->decision[rank]));
    run->residual[rank] = 0;
    for (size_t l = 0; l < LAYERS; l++) {
        run->metrics[rank][l] = (lgreco_metrics)LGRECO_METRICS_INIT;
        OK(lgreco_controller_metrics(controller, l, &run->metrics[rank][l]));
        float *residual = malloc(elements((int)l) * sizeof *residual);
        OK(lgreco_controller_residual(controller, l, residual, elements((int)l)));
        for (size_t i = 0; i < elements((int)l); i++) run->residual[rank] += pow(residual[i], 2);
        free(residual);
        if (rank == 0) {
            OK(lgreco_controller_setting(controller, l, &run->settings[l]));
        }
    }
    if (rank == 0) {
        run->bytes_out = bytes_out;
        run->switches = switches;
    }
    OK(lgreco_controller_destroy(&controller));
    free(model);
    return NULL;
}

// Runs with these options. All ranks must end with the same results.
static Run with(Options options, uint32_t workers) {
    Run run;
    Member members[WORKERS_MAX];
    memset(&run, 0, sizeof run);
    memset(members, 0, sizeof members);
    run.options = options;
    run.nan_rank = -1;
    now = &run;
    run_group(workers, members, train);
    for (uint32_t rank = 0; rank < workers; rank++) {
        CHECK(run.failed[rank] == LGRECO_OK && run.hash[rank] == run.hash[0] && run.outcome[rank] == run.outcome[0]);
        CHECK(memcmp(&run.decision[rank], &run.decision[0], sizeof run.decision[0]) == 0);
    }
    return run;
}

static Options base(void) {
    Options options = OPTIONS;
    set(&options, "method", "topk");
    set(&options, "default", "0.1");
    set(&options, "budget", "error");
    set(&options, "start_iter", "3");
    set(&options, "period", "4");
    set(&options, "window", "2");
    set(&options, "metrics_every", "1");
    return options;
}

static void policies(void) {
    Options options = base();
    const Run l_greco = with(options, 3);
    CHECK(l_greco.switches == 3 && l_greco.decision[0].step == 11 && l_greco.decision[0].cause == LGRECO_CAUSE_SCHEDULE);
    CHECK(l_greco.decision[0].planned == 1 && l_greco.decision[0].proven == 1);
    CHECK(l_greco.decision[0].size <= l_greco.decision[0].default_size);
    CHECK(l_greco.decision[0].size < l_greco.decision[0].uncompressed_size);
    CHECK(l_greco.decision[0].error <= l_greco.decision[0].budget && l_greco.decision[0].in_picoseconds == 0);
    TEXT("topk ", l_greco.settings[0].text);
    CHECK(says(&l_greco.settings[1], "dense"));
    CHECK(l_greco.metrics[1][0].uncompressed == LGRECO_UNCOMPRESSED_NOT);
    CHECK(l_greco.metrics[1][1].uncompressed == LGRECO_UNCOMPRESSED_SMALL && l_greco.metrics[1][1].residual_norm == -1);
    CHECK(l_greco.metrics[1][0].steps == STEPS && l_greco.metrics[1][0].bytes_in == STEPS * ELEMENTS * 4);
    CHECK(l_greco.metrics[1][0].bytes_out < l_greco.metrics[1][0].bytes_in);
    CHECK(l_greco.metrics[1][0].relative_error > 0 && l_greco.metrics[1][0].residual_norm > 0);
    CHECK(l_greco.metrics[1][0].bucket_seconds > 0);
    CHECK(l_greco.residual[0] > 0 && l_greco.residual[0] != l_greco.residual[1]);

    set(&options, "policy", "uncompressed");
    const Run uncompressed = with(options, 3);
    CHECK(uncompressed.switches == 0 && uncompressed.decision[0].cause == LGRECO_CAUSE_NONE);
    CHECK(uncompressed.bytes_out == STEPS * 4 * (2 * ELEMENTS + BIAS) && uncompressed.bytes_out > l_greco.bytes_out);
    CHECK(uncompressed.metrics[0][0].uncompressed == LGRECO_UNCOMPRESSED_CHOSEN && uncompressed.residual[0] == 0);
    set(&options, "policy", "uniform");
    const Run uniform = with(options, 3);
    CHECK(uniform.switches == 1 && uniform.decision[0].planned == 0);
    CHECK(says(&uniform.settings[0], "topk 205") && says(&uniform.settings[2], "topk 205"));
    CHECK(uniform.hash[0] != l_greco.hash[0]);
    set(&options, "ramp_up", "0.2,8");  // 20 %, 10 % and 5 % at the three decisions; the last one is checked
    const Run ramped = with(options, 3);
    CHECK(ramped.switches == 3 && says(&ramped.settings[0], "topk 205") && ramped.bytes_out > uniform.bytes_out);
    set(&options, "ramp_up", NULL);
    set(&options, "policy", "kmeans");
    set(&options, "clusters", "1");
    const Run one = with(options, 2);
    CHECK(says(&one.settings[0], one.settings[2].text) && one.decision[0].planned == 1);
    set(&options, "clusters", "2");
    const Run two = with(options, 2);
    TEXT("topk ", two.settings[0].text);

    // Layers 0 and 2 are in the last of three size classes. The last number of the option `legacy` is the number of
    // training steps, which the two phases share equally. With 24 steps, the last decision is in the first phase; with
    // 2 steps, in the second phase.
    set(&options, "policy", "legacy");
    set(&options, "legacy", "16,17; 0.5,0.4,0.3; 0.2,0.1,0.02; 24");
    const Run first = with(options, 2);
    CHECK(says(&first.settings[0], "topk 614") && says(&first.settings[1], "dense"));  // 30 %
    CHECK(first.decision[0].planned == 0);
    set(&options, "legacy", "16,17; 0.5,0.4,0.3; 0.2,0.1,0.02; 2");
    const Run second = with(options, 2);
    CHECK(says(&second.settings[2], "topk 41"));  // 2 %

    lgreco_setting fixed[LAYERS] = {{"powersgd 3"}, {"dense"}, {"qsgd 6"}};
    set(&options, "policy", NULL);
    options.fixed = fixed;
    const Run chosen = with(options, 2);
    CHECK(says(&chosen.settings[0], "powersgd 3") && says(&chosen.settings[2], "qsgd 6"));
    // The caller must choose the following methods, because plans do not choose them. Every rank has the same means.
    const lgreco_setting others[] = {
        {"clt-k 60"}, {"hard-threshold 0.9"}, {"sidco 0.03 gamma-pareto stages 2"}, {"adacomp 64"}, {"loco 128"}};
    uint64_t before = chosen.hash[0];
    for (int i = 0; i < 5; i++) {
        fixed[0] = fixed[2] = others[i];
        const Run run = with(options, 3);
        CHECK(says(&run.settings[0], others[i].text) && says(&run.settings[2], others[i].text));
        CHECK(run.bytes_out < STEPS * 4 * (2 * ELEMENTS + BIAS) / 2 && run.hash[0] != before && run.residual[0] > 0);
        before = run.hash[0];
    }

    options = base();
    set(&options, "policy", "accordion");
    set(&options, "accordion", "0.3,0.02,1e9,1.5");
    const Run high = with(options, 2);
    CHECK(says(&high.settings[0], "topk 41"));  // 2 %
    set(&options, "accordion", "0.3,0.02,1e-9,1.5");
    const Run low = with(options, 2);
    CHECK(says(&low.settings[0], "topk 614"));  // 30 %
    set(&options, "accordion", "0.3,0.02,1e9,1.5");
    set(&options, "period", "100");
    Run dropped = {.options = options, .nan_rank = -1, .drop_rate_at = 9};
    Member members[WORKERS_MAX] = {{0}};
    now = &dropped;
    run_group(2, members, train);
    CHECK(says(&dropped.settings[0], "topk 614") && dropped.decision[0].cause == LGRECO_CAUSE_LEARNING_RATE);
    set(&dropped.options, "accordion", "0.3,0.02,1e9,20");  // the rate falls only by a factor of 10
    run_group(2, members, train);
    CHECK(dropped.decision[0].cause == LGRECO_CAUSE_SCHEDULE);
    options = base();
    set(&options, "accordion", "0.2,0.05,1e9,1.5");
    CHECK(with(options, 2).decision[0].budget != l_greco.decision[0].budget);  // the budget depends on the levels
}

static void options_count(void) {
    Options options = base();
    const Run plain = with(options, 2);
    set(&options, "method", NULL);  // hybrid, which is EDEN here
    set(&options, "default", NULL);
    const Run eden = with(options, 2);
    TEXT("eden ", eden.settings[0].text);
    CHECK(eden.metrics[0][0].residual_norm == -1);
    set(&options, "random_seed", "9");
    CHECK(with(options, 2).hash[0] != eden.hash[0]);
    options = base();
    set(&options, "alpha", "0.5");
    CHECK(with(options, 2).decision[0].size > plain.decision[0].size);
    set(&options, "alpha", NULL);
    set(&options, "budget", "size");
    const Run sized = with(options, 2);
    CHECK(sized.decision[0].limit == LGRECO_LIMIT_SIZE && sized.decision[0].size_limit == plain.decision[0].default_size);
    CHECK(sized.decision[0].size <= sized.decision[0].size_limit && sized.decision[0].size > plain.decision[0].size);
    CHECK(sized.decision[0].error <= plain.decision[0].error && sized.decision[0].proven == 1);
    CHECK(sized.decision[0].error_lower_bound > 0 && sized.decision[0].error_lower_bound <= sized.decision[0].error);
    CHECK(sized.decision[0].lower_bound == 0 && sized.decision[0].budget == 0);
    set(&options, "budget", NULL);
    CHECK(with(options, 2).hash[0] == sized.hash[0]);
    set_number(&options, "budget", (double)plain.decision[0].default_size);
    CHECK(with(options, 2).decision[0].error == sized.decision[0].error);
    set(&options, "budget", "error");
    set(&options, "solver", "dp");
    set(&options, "levels", "4");
    CHECK(with(options, 2).decision[0].size > plain.decision[0].size);
    // The policy `paper` selects the solver, metric and budget of the paper.
    options = base();
    set(&options, "metric", "l2");
    set(&options, "solver", "dp");
    const Run algorithm = with(options, 2);
    options = base();
    set(&options, "policy", "paper");
    set(&options, "budget", NULL);
    const Run paper = with(options, 2);
    CHECK(paper.hash[0] == algorithm.hash[0] && paper.decision[0].error == algorithm.decision[0].error);
    options = base();
    set(&options, "start_iter", "5");
    CHECK(with(options, 2).decision[0].step == 9);
    options = base();
    set(&options, "period", "100");
    CHECK(with(options, 2).switches == 1);
    options = base();
    set(&options, "window", "4");
    CHECK(with(options, 2).decision[0].error != plain.decision[0].error);
    options = base();
    set(&options, "measuring_rank", "1");
    CHECK(with(options, 2).decision[0].error != plain.decision[0].error);
    options = base();
    set(&options, "metrics_every", "0");
    CHECK(with(options, 2).metrics[0][0].relative_error == -1);
    options = base();
    set(&options, "error_feedback", "false");
    const Run without = with(options, 2);
    CHECK(without.residual[0] == 0 && without.hash[0] != plain.hash[0]);
    options = base();
    set(&options, "residual_dtype", "bfloat16");
    const Run bf16 = with(options, 2);
    set(&options, "residual_dtype", "int8");
    const Run int8 = with(options, 2);
    CHECK(bf16.hash[0] != plain.hash[0] && int8.hash[0] != plain.hash[0] && int8.hash[0] != bf16.hash[0]);
    options = base();
    set(&options, "gain", "0.5");
    const Run half = with(options, 2);
    CHECK(half.hash[0] != plain.hash[0] && half.residual[0] > 0 && half.residual[0] < plain.residual[0]);
    options = base();
    set(&options, "reset_every", "2");
    CHECK(with(options, 2).residual[0] < plain.residual[0]);
    // LoCo has its own options for residuals, which do not affect other methods.
    options = base();
    set(&options, "loco_gain", "0.9");
    set(&options, "loco_reset_every", "3");
    set(&options, "loco_residual_dtype", "float32");
    CHECK(with(options, 2).hash[0] == plain.hash[0]);
    const lgreco_setting loco[LAYERS] = {{"loco 512"}, {"dense"}, {"dense"}};
    options = base();
    set(&options, "policy", NULL);
    options.fixed = loco;
    const Run average = with(options, 2);
    set(&options, "gain", "0.5");
    set(&options, "reset_every", "1");
    set(&options, "residual_dtype", "bfloat16");
    CHECK(with(options, 2).hash[0] == average.hash[0]);
    set(&options, "loco_gain", "1");
    const Run whole = with(options, 2);
    CHECK(whole.hash[0] != average.hash[0]);
    set(&options, "loco_residual_dtype", "float32");
    const Run exact = with(options, 2);
    CHECK(exact.hash[0] != whole.hash[0]);
    set(&options, "loco_reset_every", "1");
    CHECK(with(options, 2).hash[0] != exact.hash[0]);
    options = base();
    set(&options, "route", "scatter_reduce");
    CHECK(with(options, 3).hash[0] != with(base(), 3).hash[0]);

    // With the objective seconds, the library measures time with its own clock.
    options = base();
    set(&options, "method", NULL);
    set(&options, "default", NULL);
    set(&options, "objective", "seconds");
    Run measured = {.options = options, .nan_rank = -1};
    Member members[WORKERS_MAX] = {{0}};
    now = &measured;
    run_group(2, members, train);
    CHECK(measured.decision[0].in_picoseconds == 1 && measured.decision[0].measured_seconds > 0);
    CHECK(measured.decision[0].plan_seconds > 0 && measured.decision[0].uncompressed_seconds > 0);
}

static void non_finite_gradients(void) {
    Run run = {.options = base(), .nan_rank = 1, .nan_step = 6};
    Member members[WORKERS_MAX] = {{0}};
    now = &run;
    run_group(3, members, train);
    CHECK(run.failed[1] == LGRECO_NON_FINITE_GRADIENT && run.failed[0] == LGRECO_PEER && run.failed[2] == LGRECO_PEER);
    TEXT("layer `fc1.weight`", run.message[1]);
    TEXT("rank 1 failed with error code 101", run.message[0]);
    set(&run.options, "non_finite", "skip");
    run_group(3, members, train);
    CHECK(run.failed[0] == LGRECO_OK && run.outcome[0] == LGRECO_OUTCOME_SKIPPED && run.hash[0] == run.hash[1]);
    CHECK(run.metrics[0][0].steps == STEPS - 1);
    set(&run.options, "non_finite", "pass_through");
    run_group(3, members, train);
    CHECK(run.failed[0] == LGRECO_OK && run.outcome[0] == LGRECO_OUTCOME_PASSED_THROUGH);
}

// In each run, a different collective of rank 1 fails. The step ends on both ranks, and no rank waits forever.
static void callbacks_that_fail(void) {
    Run run = {.options = base(), .nan_rank = -1};
    Member members[WORKERS_MAX] = {{0}};
    now = &run;
    run_group(2, members, train);
    const int calls = members[1].calls;
    CHECK(run.failed[0] == LGRECO_OK && calls > STEPS);
    for (int call = 1; call <= calls; call += 3) {
        members[1].fail_at = call;
        members[1].fail_code = 77;
        run_group(2, members, train);
        CHECK(run.failed[1] == LGRECO_COLLECTIVE && run.failed[0] == LGRECO_COLLECTIVE);
        TEXT("a collective call failed with the caller's code 77", run.message[1]);
        TEXT("a collective call failed with the caller's code 78", run.message[0]);
    }
}

// Rank 0 fails between PowerSGD's two all-reduces. In the second all-reduce, the other ranks learn which rank failed.
static void a_factor_that_overflows(void) {
    const lgreco_setting fixed[LAYERS] = {{"powersgd 1"}, {"dense"}, {"dense"}};
    Run run = {.options = base(), .nan_rank = -1, .huge_step = 3};
    run.options.fixed = fixed;
    Member members[WORKERS_MAX] = {{0}};
    now = &run;
    run_group(3, members, train);
    CHECK(run.failed[0] == LGRECO_OVERFLOW && run.failed[1] == LGRECO_PEER && run.failed[2] == LGRECO_PEER);
    CHECK(strstr(run.message[0], "PowerSGD factor Q") != NULL);
    TEXT("rank 0 failed with error code 5", run.message[1]);
    TEXT("rank 0 failed with error code 5", run.message[2]);
}

// Takes six steps with a single worker, and returns the first failure or LGRECO_OK. Supports all-gathers with different
// lengths and all-to-alls only if the arguments say so.
static lgreco_status alone_with(Options options, int all_gather_each_too, int all_to_all_too) {
    Group group;
    Model *const model = malloc(sizeof *model);
    begin_group(&group, 1);
    Member member = {.group = &group};
    lgreco_controller *controller = controller_of(&member, &options);
    const lgreco_collective collective = collective_of(&member);
    if (!all_gather_each_too) member.missing |= 1u << LGRECO_REQUEST_ALL_GATHER_EACH;
    if (!all_to_all_too) member.missing |= 1u << LGRECO_REQUEST_ALL_TO_ALL | 1u << LGRECO_REQUEST_ALL_REDUCE_SUM_BF16;
    const int halves = strcmp(value_of(&options, "reduce_dtype"), "bfloat16") == 0;
    void *pointers[LAYERS];
    for (int l = 0; l < LAYERS; l++) pointers[l] = model->values[l];
    lgreco_status status = LGRECO_OK;
    for (uint32_t s = 0; s < 6 && status == LGRECO_OK; s++) {
        gradients(model, 0, s);
        status = lgreco_controller_step(controller, &collective, pointers, LAYERS, 0.1, NULL);
        CHECK(status == LGRECO_OK || s == (halves ? 0 : 3));  // the first that compresses
    }
    if (status == LGRECO_COLLECTIVE)
        TEXT("a collective call failed: the caller's network has no such collective", lgreco_message());
    OK(lgreco_controller_destroy(&controller));
    end_group(&group);
    free(model);
    return status;
}

static void optional_collectives(void) {
    STATUS(LGRECO_OK, alone_with(base(), 0, 0));
    Options options = base();
    set(&options, "route", "scatter_reduce");
    STATUS(LGRECO_OK, alone_with(options, 1, 1));
    STATUS(LGRECO_COLLECTIVE, alone_with(options, 0, 1));
    STATUS(LGRECO_COLLECTIVE, alone_with(options, 1, 0));
    options = base();
    set(&options, "reduce_dtype", "bfloat16");
    STATUS(LGRECO_OK, alone_with(options, 0, 1));
    STATUS(LGRECO_COLLECTIVE, alone_with(options, 0, 0));
    const uint64_t shards[] = {ELEMENTS, BIAS, ELEMENTS};
    options = base();
    options.shards = shards;
    STATUS(LGRECO_OK, alone_with(options, 0, 1));
    STATUS(LGRECO_COLLECTIVE, alone_with(options, 0, 0));
    lgreco_setting fixed[LAYERS] = {{"dense"}, {"dense"}, {"dense"}};
    options = base();
    set(&options, "policy", NULL);
    options.fixed = fixed;
    const lgreco_setting methods[] = {{"qsgd 4"},     {"powersgd 4"},  {"clt-k 1"},           {"loco 512"},
                                      {"sidco 0.01"}, {"adacomp 500"}, {"hard-threshold 0.5"}};
    for (int i = 0; i < 7; i++) {
        fixed[0] = methods[i];
        STATUS(i < 4 ? LGRECO_OK : LGRECO_COLLECTIVE, alone_with(options, 0, 0));  // the last three vary in length
        STATUS(LGRECO_OK, alone_with(options, 1, 0));
    }
}

static uint8_t *saved[WORKERS_MAX];
static size_t saved_len[WORKERS_MAX];
static uint64_t straight[WORKERS_MAX], resumed[WORKERS_MAX];

static void *stop_half_way(void *argument) {
    Member *const member = argument;
    const uint32_t rank = member->rank;
    const Options options = base();
    Model *const model = malloc(sizeof *model);
    lgreco_controller *controller = controller_of(member, &options);
    straight[rank] = 1;
    for (uint32_t s = 0; s < STEPS; s++) {
        if (s == STEPS / 2) {
            STATUS(LGRECO_LENGTH, lgreco_controller_save(controller, LGRECO_SAVE_EVERYTHING, NULL, 0, &saved_len[rank]));
            saved[rank] = malloc(saved_len[rank]);
            OK(lgreco_controller_save(controller, LGRECO_SAVE_EVERYTHING, saved[rank], saved_len[rank], &saved_len[rank]));
        }
        gradients(model, rank, s);
        OK(step(controller, member, model, 0.1, NULL));
        if (s >= STEPS / 2)
            for (int l = 0; l < LAYERS; l++)
                straight[rank] = hashed(straight[rank], model->values[l], elements(l) * sizeof(float));
    }
    OK(lgreco_controller_destroy(&controller));
    free(model);
    return NULL;
}

static void *resume(void *argument) {
    Member *const member = argument;
    const uint32_t rank = member->rank;
    const Options options = base();
    Model *const model = malloc(sizeof *model);
    lgreco_controller *controller = controller_of(member, &options);
    lgreco_loaded loaded = LGRECO_LOADED_INIT;
    const uint8_t *const own[] = {saved[rank]};
    for (size_t shorter = 0; shorter < saved_len[rank]; shorter += shorter < 300 ? 7 : 1009)
        CHECK(lgreco_controller_load(controller, own[0], shorter, own, &saved_len[rank], 1, NULL) != LGRECO_OK);
    // Flips bits everywhere in the state, also in the magic number and the version.
    for (size_t bit = 0; bit < 8 * saved_len[rank]; bit += 67) {
        saved[rank][bit / 8] ^= (uint8_t)(1 << bit % 8);
        STATUS(bit < 128 ? LGRECO_SAVED_STATE : LGRECO_CHECKSUM,
               lgreco_controller_load(controller, own[0], saved_len[rank], own, &saved_len[rank], 1, NULL));
        saved[rank][bit / 8] ^= (uint8_t)(1 << bit % 8);
    }
    OK(lgreco_controller_load(controller, own[0], saved_len[rank], own, &saved_len[rank], 1, &loaded));
    CHECK(loaded.missing_len == 0 && loaded.extra_len == 0 && loaded.misshaped_len == 0);
    CHECK(loaded.rank == rank && loaded.world_size == member->group->workers);
    CHECK(loaded.step == STEPS / 2 && loaded.oldest_residual == STEPS / 2);
    uint64_t steps = 0, non_finite = 1;
    OK(lgreco_controller_steps(controller, &steps, &non_finite));
    CHECK(steps == STEPS / 2 && non_finite == 0);
    resumed[rank] = 1;
    for (uint32_t s = STEPS / 2; s < STEPS; s++) {
        gradients(model, rank, s);
        OK(step(controller, member, model, 0.1, NULL));
        for (int l = 0; l < LAYERS; l++)
            resumed[rank] = hashed(resumed[rank], model->values[l], elements(l) * sizeof(float));
    }
    if (rank == 0) {
        size_t length = 0;
        STATUS(LGRECO_LENGTH, lgreco_controller_metrics_json(controller, NULL, 0, &length));
        char *json = malloc(length + 1);
        OK(lgreco_controller_metrics_json(controller, json, length + 1, &length));
        CHECK(strlen(json) == length && json[0] == '{' && strstr(json, "\"step\":11") && strstr(json, "fc2.weight"));
        free(json);
    }
    OK(lgreco_controller_destroy(&controller));
    free(model);
    return NULL;
}

static void saved_states(void) {
    Member members[WORKERS_MAX] = {{0}};
    run_group(2, members, stop_half_way);
    run_group(2, members, resume);
    CHECK(straight[0] == resumed[0] && straight[1] == resumed[1] && straight[0] == straight[1] && straight[0] != 1);

    // Loads a state into another model. The result names missing layers, extra layers, and layers of another shape.
    lgreco_controller *controller = NULL;
    lgreco_layer layers[LAYERS];
    describe(layers);
    layers[0].name = "other";
    layers[2].dims_len = 1;
    Group alone = {.workers = 1};
    Member member = {.group = &alone};
    const lgreco_collective collective = collective_of(&member);
    lgreco_loaded loaded = LGRECO_LOADED_INIT;
    OK(lgreco_controller_create(NULL, &collective, layers, LAYERS, NULL, NULL, &controller));
    OK(lgreco_controller_load(controller, saved[1], saved_len[1], NULL, NULL, 0, &loaded));
    CHECK(loaded.missing_len == 1 && strcmp(loaded.missing[0], "other") == 0);
    CHECK(loaded.extra_len == 1 && strcmp(loaded.extra[0], "fc1.weight") == 0);
    CHECK(loaded.misshaped_len == 1 && strcmp(loaded.misshaped[0], "fc2.weight") == 0);
    CHECK(loaded.rank == 1 && loaded.world_size == 2);
    OK(lgreco_controller_destroy(&controller));
    free(saved[0]);
    free(saved[1]);
}

static lgreco_controller *inner;

// A callback that uses the controller during that controller's call.
static int32_t reenter(void *user, const lgreco_request *request) {
    uint64_t steps, non_finite;
    lgreco_controller *copy = inner;
    STATUS(LGRECO_BUSY, lgreco_controller_steps(inner, &steps, &non_finite));
    STATUS(LGRECO_BUSY, lgreco_controller_destroy(&copy));
    return perform(user, request);
}

static void misuse(void) {
    lgreco_controller *made = NULL;
    lgreco_layer layers[LAYERS];
    describe(layers);
    Group alone;
    begin_group(&alone, 1);
    Member member = {.group = &alone};
    lgreco_collective collective = collective_of(&member);
    Options options = base();

    collective.rank = 1;
    STATUS(LGRECO_PARAMETER, lgreco_controller_create(NULL, &collective, layers, LAYERS, NULL, NULL, &made));
    collective = collective_of(&member);
    collective.perform = NULL;
    STATUS(LGRECO_NULL_POINTER, lgreco_controller_create(NULL, &collective, layers, LAYERS, NULL, NULL, &made));
    TEXT("perform is NULL", lgreco_message());
    collective = collective_of(&member);
    layers[2].name = "fc1.bias";
    STATUS(LGRECO_DUPLICATE_NAME, lgreco_controller_create(NULL, &collective, layers, LAYERS, NULL, NULL, &made));
    describe(layers);
    set(&options, "start_iter", "1");
    STATUS(LGRECO_PARAMETER, lgreco_controller_create(NULL, &collective, layers, LAYERS, NULL, listed(&options), &made));
    options = base();
    set(&options, "measuring_rank", "1");
    STATUS(LGRECO_PARAMETER, lgreco_controller_create(NULL, &collective, layers, LAYERS, NULL, listed(&options), &made));
    options = base();
    set(&options, "policy", "accordion");
    STATUS(LGRECO_PARAMETER, lgreco_controller_create(NULL, &collective, layers, LAYERS, NULL, listed(&options), &made));
    TEXT("the option `policy` is `accordion`, expected its levels as the option `accordion`", lgreco_message());
    const lgreco_setting wrong[LAYERS] = {{"dense"}, {"dense"}, {"qsdg 4"}};
    const lgreco_setting sound[LAYERS] = {{"dense"}, {"dense"}, {"dense"}};
    STATUS(LGRECO_PARAMETER, lgreco_controller_create(NULL, &collective, layers, LAYERS, sound, listed(&options), &made));
    TEXT("the option `policy` is `accordion`, expected none beside settings", lgreco_message());
    STATUS(LGRECO_SETTING_WORD, lgreco_controller_create(NULL, &collective, layers, LAYERS, wrong, NULL, &made));
    TEXT("layer `fc2.weight`: setting: `qsdg` is unknown: is `qsgd` meant?", lgreco_message());
    const char *const gains[] = {"gain", "loco_gain"};
    for (int i = 0; i < 2; i++) {
        options = base();
        set(&options, gains[i], "1.5");
        STATUS(LGRECO_PARAMETER, lgreco_controller_create(NULL, &collective, layers, LAYERS, NULL, listed(&options), &made));
        TEXT("residual gain is 1.5, expected in (0, 1]", lgreco_message());
    }
    const char *const words[] = {"policy",     "error_feedback", "residual_dtype", "loco_residual_dtype",
                                 "non_finite", "route",          "objective",      "undo"};
    for (int i = 0; i < 8; i++) {
        options = base();
        set(&options, words[i], "17");
        STATUS(LGRECO_PARAMETER, lgreco_controller_create(NULL, &collective, layers, LAYERS, NULL, listed(&options), &made));
    }
    const uint64_t beyond[] = {ELEMENTS, BIAS, ELEMENTS + 1};
    STATUS(LGRECO_NULL_POINTER, lgreco_controller_create_sharded(NULL, &collective, layers, LAYERS, NULL, NULL, NULL, &made));
    TEXT("shards is NULL", lgreco_message());
    CHECK(lgreco_controller_create_sharded(NULL, &collective, layers, LAYERS, beyond, NULL, NULL, &made) != LGRECO_OK);
    CHECK(made == NULL);

    // Refuses wrong numbers of gradients, wrong learning rates and wrong pointers.
    options = base();
    OK(lgreco_controller_create(NULL, &collective, layers, LAYERS, NULL, listed(&options), &made));
    inner = made;
    static Model model;
    void *pointers[LAYERS] = {model.values[0], model.values[1], model.values[2]};
    gradients(&model, 0, 0);
    STATUS(LGRECO_LENGTH, lgreco_controller_step(made, &collective, pointers, LAYERS - 1, 0.1, NULL));
    STATUS(LGRECO_PARAMETER, lgreco_controller_step(made, &collective, pointers, LAYERS, NAN, NULL));
    pointers[1] = model.values[0] + ELEMENTS - 1;
    STATUS(LGRECO_OVERLAP, lgreco_controller_step(made, &collective, pointers, LAYERS, 0.1, NULL));
    TEXT("layer `", lgreco_message());
    CHECK(strstr(lgreco_message(), "share memory with values of layer 0, counted from 0") != NULL);
    pointers[1] = NULL;
    STATUS(LGRECO_NULL_POINTER, lgreco_controller_step(made, &collective, pointers, LAYERS, 0.1, NULL));
    pointers[1] = model.values[1];
    size_t length = 0;
    STATUS(LGRECO_UNAVAILABLE, lgreco_controller_metrics_json(made, NULL, 0, &length));
    collective.perform = reenter;
    OK(lgreco_controller_step(made, &collective, pointers, LAYERS, 0.1, NULL));
    CHECK(member.calls > 0);
    collective.world_size = 2;
    STATUS(LGRECO_PARAMETER, lgreco_controller_step(made, &collective, pointers, LAYERS, 0.1, NULL));
    TEXT("the collective reports rank 0 of 2, but this controller was created as rank 0 of 1", lgreco_message());
    lgreco_setting setting;
    lgreco_metrics metrics = LGRECO_METRICS_INIT;
    float value;
    STATUS(LGRECO_LAYER_MISMATCH, lgreco_controller_setting(made, LAYERS, &setting));
    TEXT("there is no layer 3: layers are counted from 0, and the model has 3", lgreco_message());
    STATUS(LGRECO_LAYER_MISMATCH, lgreco_controller_metrics(made, LAYERS, &metrics));
    STATUS(LGRECO_LAYER_MISMATCH, lgreco_controller_residual(made, LAYERS, &value, 1));
    STATUS(LGRECO_LENGTH, lgreco_controller_residual(made, 0, &value, 1));
    OK(lgreco_controller_destroy(&made));
    end_group(&alone);
}

// Rank 1 makes mistakes. Both ranks learn of each mistake in the same step, and the next step works.
static void *wrong_on_one_rank(void *argument) {
    Member *const member = argument;
    Model *const model = malloc(sizeof *model);
    Options options = base();
    lgreco_controller *controller = controller_of(member, &options);
    lgreco_report report = LGRECO_REPORT_INIT, uninitialised;
    memset(&uninitialised, 0, sizeof uninitialised);
    const lgreco_status expected[] = {LGRECO_NULL_POINTER, LGRECO_NULL_POINTER, LGRECO_LENGTH,      LGRECO_ALIGNMENT,
                                      LGRECO_OVERLAP,      LGRECO_PARAMETER,    LGRECO_PARAMETER,   LGRECO_PARAMETER,
                                      LGRECO_STRUCT_SIZE,  LGRECO_STEP_ORDER};
    enum { CASES = sizeof expected / sizeof *expected };
    for (uint32_t s = 0; s < 2 * CASES; s++) {
        const int wrong = s % 2 == 1 && member->rank == 1 ? (int)s / 2 : -1;
        lgreco_collective collective = collective_of(member);
        void *pointers[LAYERS] = {model->values[0], model->values[1], model->values[2]};
        gradients(model, member->rank, s);
        if (wrong == 1) pointers[2] = NULL;
        if (wrong == 3) pointers[1] = (uint8_t *)model->values[1] + 2;
        if (wrong == 4) pointers[1] = model->values[0] + ELEMENTS - 1;
        if (wrong == 5) collective.rank = 0;
        if (wrong == 6) collective.world_size = 1;
        if (wrong == 9) OK(lgreco_controller_begin_step(controller, 0.1));
        const lgreco_status status =
            lgreco_controller_step(controller, &collective, wrong == 0 ? NULL : pointers, LAYERS - (wrong == 2),
                                   wrong == 7 ? -1.0 : 0.1, wrong == 8 ? &uninitialised : &report);
        if (s % 2 == 0) {
            CHECK(status == LGRECO_OK && report.step == s / 2 && report.outcome == LGRECO_OUTCOME_EXCHANGED);
            continue;
        }
        CHECK(status == (member->rank == 1 ? expected[s / 2] : LGRECO_PEER));
        if (member->rank == 0) TEXT("rank 1 failed with error code ", lgreco_message());
        if (wrong == 9) OK(lgreco_controller_abandon_step(controller));
    }
    OK(lgreco_controller_destroy(&controller));
    free(model);
    return NULL;
}

int main(void) {
    policies();
    options_count();
    non_finite_gradients();
    callbacks_that_fail();
    a_factor_that_overflows();
    optional_collectives();
    saved_states();
    misuse();
    Member members[2] = {{0}, {0}};
    run_group(2, members, wrong_on_one_rank);
    return report("train");
}
