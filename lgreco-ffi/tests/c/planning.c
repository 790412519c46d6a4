// A separate thread makes plans while steps are taken. The results are the same bit for bit as without this thread, and
// no step waits for a late plan. Also tests tasks that are destroyed or fail, settings that the caller changes, and
// saved states in parts.
#include "model.h"

enum { STEPS = 12 };

static Options options = OPTIONS;
static int late;  // number of steps between the due decision and the hand-in

static void *run_task(void *argument) {
    lgreco_plan_task *const task = argument;
    OK(lgreco_plan_task_run(task));
    STATUS(LGRECO_STEP_ORDER, lgreco_plan_task_run(task));
    TEXT("the plan task has been run", lgreco_message());
    return NULL;
}

// Saves and loads a state part by part, in another order. Also saves states without the window.
static void in_parts(lgreco_controller *controller, lgreco_controller *other, int measures) {
    const char *const names[] = {"fc1.weight", "fc1.bias", "fc2.weight"};
    const uint8_t *parts[LAYERS + 1];
    size_t lens[LAYERS + 1], total = 0, whole = 0, small = 0;
    const char *name = NULL;
    lgreco_loaded loaded = LGRECO_LOADED_INIT;
    for (size_t p = 0; p <= LAYERS; p++) {
        const size_t at = LAYERS - p;
        STATUS(LGRECO_LENGTH, lgreco_controller_save_part(controller, p, LGRECO_SAVE_EVERYTHING, &name, NULL, 0, &lens[at]));
        CHECK(p == 0 ? name == NULL : strcmp(name, names[p - 1]) == 0);
        uint8_t *const part = malloc(lens[at]);
        OK(lgreco_controller_save_part(controller, p, LGRECO_SAVE_EVERYTHING, &name, part, lens[at], &lens[at]));
        parts[at] = part;
        total += lens[at];
    }
    STATUS(LGRECO_LAYER_MISMATCH, lgreco_controller_save_part(controller, LAYERS + 1, 0, &name, NULL, 0, &small));
    STATUS(LGRECO_UNKNOWN_CONSTANT, lgreco_controller_save_part(controller, 0, 2, &name, NULL, 0, &small));
    STATUS(LGRECO_UNKNOWN_CONSTANT, lgreco_controller_save(controller, 2, NULL, 0, &small));
    OK(lgreco_controller_load_parts(other, parts, lens, LAYERS + 1, parts, lens, LAYERS + 1, &loaded));
    CHECK(loaded.missing_len == 0 && loaded.extra_len == 0 && loaded.misshaped_len == 0);
    CHECK(same_state(controller, other));
    // First loads without the part that belongs to no layer, which is the last part in the array. The second load lacks
    // the last layer.
    STATUS(LGRECO_SAVED_STATE, lgreco_controller_load_parts(other, parts, lens, LAYERS, NULL, NULL, 0, NULL));
    OK(lgreco_controller_load_parts(other, parts + 1, lens + 1, LAYERS, parts, lens, LAYERS, &loaded));
    CHECK(loaded.missing_len == 1 && strcmp(loaded.missing[0], names[LAYERS - 1]) == 0);
    STATUS(LGRECO_LENGTH, lgreco_controller_load_parts(other, parts, (const size_t[]){3}, 1, NULL, NULL, 0, NULL));
    STATUS(LGRECO_LENGTH, lgreco_controller_save(controller, LGRECO_SAVE_EVERYTHING, NULL, 0, &whole));
    STATUS(LGRECO_LENGTH, lgreco_controller_save(controller, LGRECO_SAVE_WITHOUT_WINDOW, NULL, 0, &small));
    CHECK(whole == small + (measures ? sizeof(float) * (2 * ELEMENTS + BIAS) : 0));
    CHECK(total > whole);
    for (size_t p = 0; p <= LAYERS; p++) free((void *)(uintptr_t)parts[p]);
}

// Decisions are due at steps 4 and 9. The decisions use the gradients up to steps 1 and 6.
static void *planning(void *argument) {
    Member *const member = argument;
    Model *const model = malloc(sizeof *model), *const expected = malloc(sizeof *expected);
    lgreco_controller *blocking = controller_of(member, &options), *controller = controller_of(member, &options);
    lgreco_plan_task *task = NULL, *none = NULL;
    pthread_t thread;
    for (uint32_t s = 0; s < STEPS; s++) {
        if (task != NULL && (s == 4 + (uint32_t)late || s == 9 + (uint32_t)late)) {
            CHECK(pthread_join(thread, NULL) == 0);
            STATUS(LGRECO_STEP_ORDER, lgreco_controller_hand_in(blocking, &task));
            TEXT("the plan task is another controller's", lgreco_message());
            OK(lgreco_controller_hand_in(controller, &task));
            CHECK(task == NULL);
        }
        gradients(model, member->rank, s);
        *expected = *model;
        const lgreco_report report = take_step(controller, member, model), of_blocking = take_step(blocking, member, expected);
        CHECK(of_blocking.switched == (s == 4 || s == 9));
        CHECK(report.switched == (s == 4 + (uint32_t)late || s == 9 + (uint32_t)late));
        if (late == 0) {
            for (int l = 0; l < LAYERS; l++)
                CHECK(memcmp(model->values[l], expected->values[l], elements(l) * sizeof(float)) == 0);
            CHECK(same_state(controller, blocking));
        }
        if (task == NULL) OK(lgreco_controller_take_plan_task(controller, &task));
        const uint32_t end = 4 + (uint32_t)late;
        const int out = (s >= 1 && s < end) || (s >= 6 && s < end + 5) || s == 11;
        CHECK((task != NULL) == (out && member->rank == (uint32_t)atoi(value_of(&options, "measuring_rank"))));
        if (task != NULL && (s == 1 || s == 6)) {
            OK(lgreco_controller_take_plan_task(controller, &none));
            CHECK(none == NULL);
            STATUS(LGRECO_STEP_ORDER, lgreco_controller_hand_in(controller, &task));
            TEXT("the plan task has not been run", lgreco_message());
            CHECK(pthread_create(&thread, NULL, run_task, task) == 0);
        }
    }
    OK(lgreco_plan_task_destroy(&task));
    OK(lgreco_plan_task_destroy(&task));
    in_parts(controller, blocking, member->rank == (uint32_t)atoi(value_of(&options, "measuring_rank")));
    OK(lgreco_controller_destroy(&blocking));
    OK(lgreco_controller_destroy(&controller));
    free(expected);
    free(model);
    return NULL;
}

// No plan is within the budget. The task fails, and then the step fails on all ranks. The measuring rank gets the
// task's code, and the other ranks get LGRECO_PEER.
static void *infeasible(void *argument) {
    Member *const member = argument;
    Model *const model = malloc(sizeof *model);
    const lgreco_collective collective = collective_of(member);
    lgreco_controller *controller = controller_of(member, &options);
    lgreco_plan_task *task = NULL;
    void *const pointers[LAYERS] = {model->values[0], model->values[1], model->values[2]};
    const int measures = member->rank == (uint32_t)atoi(value_of(&options, "measuring_rank"));
    for (uint32_t s = 0; s < 4; s++) {
        gradients(model, member->rank, s);
        take_step(controller, member, model);
        if (task == NULL) OK(lgreco_controller_take_plan_task(controller, &task));
    }
    CHECK((task != NULL) == measures);
    if (measures) {
        STATUS(LGRECO_INFEASIBLE, lgreco_plan_task_run(task));
        OK(lgreco_controller_hand_in(controller, &task));
    }
    gradients(model, member->rank, 4);
    STATUS(measures ? LGRECO_INFEASIBLE : LGRECO_PEER,
           lgreco_controller_step(controller, &collective, pointers, LAYERS, 0.1, NULL));
    // The task can be taken again. Steps do not wait for the task. The task can be run even after the controller is
    // destroyed.
    OK(lgreco_controller_take_plan_task(controller, &task));
    CHECK((task != NULL) == measures && take_step(controller, member, model).switched == 0);
    OK(lgreco_controller_destroy(&controller));
    if (measures) STATUS(LGRECO_INFEASIBLE, lgreco_plan_task_run(task));
    OK(lgreco_plan_task_destroy(&task));
    free(model);
    return NULL;
}

// The caller changes the settings at step 5. Rank 1 first gives different settings.
static void *given(void *argument) {
    Member *const member = argument;
    Model *const model = malloc(sizeof *model);
    const lgreco_collective collective = collective_of(member);
    lgreco_controller *controller = controller_of(member, &options);
    void *const pointers[LAYERS] = {model->values[0], model->values[1], model->values[2]};
    lgreco_setting settings[LAYERS] = {{"dense"}, {"dense"}, {"dense"}}, found;
    lgreco_decision decision = LGRECO_DECISION_INIT;
    for (uint32_t s = 0; s < 5; s++) {
        gradients(model, member->rank, s);
        take_step(controller, member, model);
    }
    snprintf(settings[0].text, sizeof settings[0].text, "topk %u", 7 + member->rank);
    settings[2] = settings[0];
    STATUS(LGRECO_LENGTH, lgreco_controller_set_settings(controller, settings, LAYERS - 1));
    OK(lgreco_controller_set_settings(controller, settings, LAYERS));
    STATUS(LGRECO_PEER_PLAN, lgreco_controller_step(controller, &collective, pointers, LAYERS, 0.1, NULL));
    TEXT("settings of the fixed policy: checksum ", lgreco_message());
    settings[0] = settings[2] = (lgreco_setting){"topk 7"};
    OK(lgreco_controller_set_settings(controller, settings, LAYERS));
    CHECK(take_step(controller, member, model).switched == 1);
    OK(lgreco_controller_setting(controller, 2, &found));
    CHECK(says(&found, "topk 7"));
    OK(lgreco_controller_decision(controller, &decision));
    CHECK(decision.step == 5 && decision.cause == LGRECO_CAUSE_CALLER);
    uint64_t due = 0;
    OK(lgreco_controller_replan(controller, &due));
    CHECK(due == UINT64_MAX);
    OK(lgreco_controller_destroy(&controller));
    free(model);
    return NULL;
}

static void run(uint32_t workers, void *(*work)(void *)) {
    Member members[WORKERS_MAX] = {{0}};
    run_group(workers, members, work);
}

static void base(const char *methods) {
    options = (Options)OPTIONS;
    set(&options, "method", methods);
    set(&options, "start_iter", "4");
    set(&options, "period", "5");
    set(&options, "window", "2");
    set(&options, "lead", "2");
}

int main(void) {
    const char *methods[] = {"topk", "powersgd", "hybrid"};
    for (int i = 0; i < 3; i++) {
        base(methods[i]);
        set_number(&options, "measuring_rank", i > 0);
        for (late = 0; late < 2; late++) run(2, planning);
    }
    base("topk");
    set(&options, "budget", "error");
    set(&options, "alpha", "0");
    run(3, infeasible);
    base("qsgd");
    const lgreco_setting fixed[LAYERS] = {{"dense"}, {"dense"}, {"dense"}};
    options.fixed = fixed;
    run(3, given);
    return report("planning");
}
