// Tests that calls refuse callers' mistakes: NULL pointers, misaligned and overlapping buffers, wrong handles, unknown
// constants, and structs of other versions. Also tests panics. This file calls every exported function.
#include "check.h"

enum { ELEMENTS = 8 };

lgreco_status lgreco_testing_panic(lgreco_compressor *compressor);

static const size_t DIMS[] = {2, 4}, ENDS[] = {2};
static const lgreco_choice CHOICES[] = {{80, 0.5}, {40, 1.0}};
static const uint32_t DEFAULTS[] = {1};
static const float VALUES[ELEMENTS] = {1, -2, 3, -4, 5, -6, 7, -8};

static lgreco_context *context;
static lgreco_table_view view = LGRECO_TABLE_VIEW_INIT;
static lgreco_plan_view plan_view = LGRECO_PLAN_VIEW_INIT;
static lgreco_layer layer = LGRECO_LAYER_INIT;
static lgreco_setting setting = {"dense"};
static lgreco_table *table;
static lgreco_plan *plan;
static lgreco_compressor *compressor;
static lgreco_controller *controller;
static lgreco_collective collective = LGRECO_COLLECTIVE_INIT;
static lgreco_cut *above, *below;
static lgreco_cut_setting cut_setting;
static uint8_t bytes[256];
static float floats[ELEMENTS];
static char text[256];
static size_t length;

// The collective of a single worker.
static int32_t perform_one(void *user, const lgreco_request *request) {
    return user != NULL || request->root != 0 || (request->count + request->length > 0 && request->buffer == NULL);
}

static void prepare(void) {
    OK(lgreco_context_create("cpu", &context));
    view.layers = 1;
    view.ends = ENDS;
    view.choices = CHOICES;
    view.defaults = DEFAULTS;
    layer.name = "fc1";
    layer.dims = DIMS;
    layer.dims_len = 2;
    layer.values = VALUES;
    Options options = OPTIONS;
    set(&options, "error_feedback", "true");
    OK(lgreco_table_create(&view, &table));
    OK(lgreco_plan_solve(&view, NULL, &plan));
    OK(lgreco_plan_get(plan, &plan_view));
    OK(lgreco_compressor_create(context, &layer, setting.text, listed(&options), &compressor));
    collective.perform = perform_one;
    OK(lgreco_controller_create(context, &collective, &layer, 1, NULL, NULL, &controller));
    const char *const cut[] = {"batch", "1", "features", "8", NULL};
    OK(lgreco_cut_setting_make(cut, &cut_setting));
    OK(lgreco_cut_create(&cut_setting, LGRECO_END_UPSTREAM, 0, &above));
    OK(lgreco_cut_create(&cut_setting, LGRECO_END_DOWNSTREAM, 0, &below));
}

#define NULL_(call) STATUS(LGRECO_NULL_POINTER, call)

// Passes NULL for each pointer of each function in turn, except where NULL is allowed.
static void null_pointers(void) {
    lgreco_table *no_table = NULL;
    lgreco_plan *no_plan = NULL;
    lgreco_compressor *no_compressor = NULL;
    double error, norm;
    uint64_t steps;

    lgreco_context *no_context = NULL;
    NULL_(lgreco_context_create(NULL, &no_context));
    NULL_(lgreco_context_create("cpu", NULL));
    NULL_(lgreco_table_measure(context, NULL, 1, NULL, &no_table));
    NULL_(lgreco_table_measure(context, &layer, 1, NULL, NULL));
    const char *const no_value[] = {"method", NULL};
    NULL_(lgreco_table_measure(context, &layer, 1, no_value, &no_table));
    TEXT("the option `method` has no value", lgreco_message());
    NULL_(lgreco_measure(context, NULL, &setting, 1, 0, 0, &error, NULL));
    NULL_(lgreco_measure(context, &layer, NULL, 1, 0, 0, &error, NULL));
    NULL_(lgreco_measure(context, &layer, &setting, 1, 0, 0, NULL, NULL));
    NULL_(lgreco_table_create(NULL, &no_table));
    NULL_(lgreco_table_create(&view, NULL));
    NULL_(lgreco_table_from_json(NULL, 2, &no_table));
    NULL_(lgreco_table_from_json("{}", 2, NULL));
    NULL_(lgreco_table_to_json(NULL, text, sizeof text, &length));
    NULL_(lgreco_table_to_json(table, NULL, sizeof text, &length));
    NULL_(lgreco_table_to_json(table, text, sizeof text, NULL));
    NULL_(lgreco_table_get(NULL, &view));
    NULL_(lgreco_table_get(table, NULL));
    NULL_(lgreco_table_setting(NULL, 0, 0, &setting));
    NULL_(lgreco_table_setting(table, 0, 0, NULL));
    NULL_(lgreco_plan_solve(NULL, NULL, &no_plan));
    NULL_(lgreco_plan_solve(&view, NULL, NULL));
    NULL_(lgreco_plan_check(NULL, &plan_view));
    NULL_(lgreco_plan_check(&view, NULL));
    NULL_(lgreco_plan_get(NULL, &plan_view));
    NULL_(lgreco_plan_get(plan, NULL));
    NULL_(lgreco_plan_to_json(NULL, table, text, sizeof text, &length));
    NULL_(lgreco_plan_to_json(plan, NULL, text, sizeof text, &length));
    NULL_(lgreco_plan_to_json(plan, table, NULL, 1000, &length));
    NULL_(lgreco_plan_to_json(plan, table, text, sizeof text, NULL));
    NULL_(lgreco_plan_from_json(NULL, "{}", 2, &no_plan));
    NULL_(lgreco_plan_from_json(table, NULL, 2, &no_plan));
    NULL_(lgreco_plan_from_json(table, "{}", 2, NULL));
    size_t sealed_length = 0;
    NULL_(lgreco_payload_seal(NULL, 1, sizeof bytes, &sealed_length));
    NULL_(lgreco_payload_seal(bytes, 1, sizeof bytes, NULL));
    NULL_(lgreco_payload_unseal(NULL, sizeof bytes, &sealed_length));
    NULL_(lgreco_payload_unseal(bytes, sizeof bytes, NULL));
    NULL_(lgreco_feedback_check(NULL, setting.text, NULL));
    NULL_(lgreco_feedback_check(&layer, NULL, NULL));
    NULL_(lgreco_compressor_create(context, NULL, setting.text, NULL, &no_compressor));
    NULL_(lgreco_compressor_create(context, &layer, NULL, NULL, &no_compressor));
    NULL_(lgreco_compressor_create(context, &layer, setting.text, NULL, NULL));
    NULL_(lgreco_compressor_set_setting(NULL, setting.text));
    NULL_(lgreco_compressor_set_setting(compressor, NULL));
    NULL_(lgreco_compressor_bound(NULL, &length));
    NULL_(lgreco_compressor_bound(compressor, NULL));
    NULL_(lgreco_compressor_encode(NULL, 0, VALUES, bytes, sizeof bytes, &length));
    NULL_(lgreco_compressor_encode(compressor, 0, NULL, bytes, sizeof bytes, &length));
    TEXT("layer `fc1`: values is NULL", lgreco_message());
    NULL_(lgreco_compressor_encode(compressor, 0, VALUES, NULL, sizeof bytes, &length));
    NULL_(lgreco_compressor_encode(compressor, 0, VALUES, bytes, sizeof bytes, NULL));
    OK(lgreco_compressor_encode(compressor, 0, VALUES, bytes, sizeof bytes, &length));
    NULL_(lgreco_compressor_decode(NULL, bytes, length, floats, ELEMENTS));
    NULL_(lgreco_compressor_decode(compressor, NULL, length, floats, ELEMENTS));
    NULL_(lgreco_compressor_decode(compressor, bytes, length, NULL, ELEMENTS));
    NULL_(lgreco_compressor_memory(NULL, floats, ELEMENTS));
    NULL_(lgreco_compressor_memory(compressor, NULL, ELEMENTS));
    NULL_(lgreco_compressor_set_memory(NULL, 0, VALUES, ELEMENTS));
    NULL_(lgreco_compressor_set_memory(compressor, 0, NULL, ELEMENTS));
    NULL_(lgreco_compressor_rescale_memory(NULL, 0, 1.0f));
    NULL_(lgreco_compressor_memory_norm(NULL, &norm, &steps));
    NULL_(lgreco_compressor_memory_norm(compressor, NULL, &steps));
    NULL_(lgreco_compressor_memory_norm(compressor, &norm, NULL));
    NULL_(lgreco_compressor_save(NULL, bytes, sizeof bytes, &length));
    NULL_(lgreco_compressor_save(compressor, NULL, 10000, &length));
    NULL_(lgreco_compressor_save(compressor, bytes, sizeof bytes, NULL));
    NULL_(lgreco_compressor_load(NULL, bytes, sizeof bytes));
    NULL_(lgreco_compressor_load(compressor, NULL, sizeof bytes));

    lgreco_controller *no_controller = NULL;
    lgreco_metrics metrics = LGRECO_METRICS_INIT;
    lgreco_decision decision = LGRECO_DECISION_INIT;
    uint64_t non_finite;
    float own[ELEMENTS] = {0};
    void *gradients[] = {own}, *null_gradients[] = {NULL};
    NULL_(lgreco_controller_create(context, NULL, &layer, 1, NULL, NULL, &no_controller));
    NULL_(lgreco_controller_create(context, &collective, NULL, 1, NULL, NULL, &no_controller));
    NULL_(lgreco_controller_create(context, &collective, &layer, 1, NULL, NULL, NULL));
    NULL_(lgreco_controller_create_sharded(context, NULL, &layer, 1, &steps, NULL, NULL, &no_controller));
    NULL_(lgreco_controller_create_sharded(context, &collective, NULL, 1, &steps, NULL, NULL, &no_controller));
    NULL_(lgreco_controller_create_sharded(context, &collective, &layer, 1, NULL, NULL, NULL, &no_controller));
    NULL_(lgreco_controller_create_sharded(context, &collective, &layer, 1, &steps, NULL, NULL, NULL));
    NULL_(lgreco_controller_create_on_nodes(context, NULL, 1, &layer, 1, NULL, NULL, &no_controller));
    NULL_(lgreco_controller_create_on_nodes(context, &collective, 1, NULL, 1, NULL, NULL, &no_controller));
    NULL_(lgreco_controller_create_on_nodes(context, &collective, 1, &layer, 1, NULL, NULL, NULL));
    size_t first, count;
    NULL_(lgreco_controller_shard(NULL, 0, &first, &count));
    NULL_(lgreco_controller_shard(controller, 0, NULL, &count));
    NULL_(lgreco_controller_shard(controller, 0, &first, NULL));
    NULL_(lgreco_controller_step(NULL, &collective, gradients, 1, 0.1, NULL));
    NULL_(lgreco_controller_step(controller, NULL, gradients, 1, 0.1, NULL));
    NULL_(lgreco_controller_step(controller, &collective, NULL, 1, 0.1, NULL));
    NULL_(lgreco_controller_step(controller, &collective, null_gradients, 1, 0.1, NULL));
    OK(lgreco_controller_step(controller, &collective, gradients, 1, 0.1, NULL));
    NULL_(lgreco_controller_setting(NULL, 0, &setting));
    NULL_(lgreco_controller_setting(controller, 0, NULL));
    NULL_(lgreco_controller_metrics(NULL, 0, &metrics));
    NULL_(lgreco_controller_metrics(controller, 0, NULL));
    lgreco_memory_use memory = LGRECO_MEMORY_USE_INIT;
    NULL_(lgreco_controller_memory(NULL, 0, 1, &memory));
    NULL_(lgreco_controller_memory(controller, 0, 1, NULL));
    OK(lgreco_controller_memory(controller, 1 << 20, 4, &memory));
    NULL_(lgreco_controller_residual(NULL, 0, floats, ELEMENTS));
    NULL_(lgreco_controller_residual(controller, 0, NULL, ELEMENTS));
    NULL_(lgreco_controller_decision(NULL, &decision));
    NULL_(lgreco_controller_decision(controller, NULL));
    NULL_(lgreco_controller_steps(NULL, &steps, &non_finite));
    NULL_(lgreco_controller_steps(controller, NULL, &non_finite));
    NULL_(lgreco_controller_steps(controller, &steps, NULL));
    NULL_(lgreco_controller_metrics_json(NULL, text, sizeof text, &length));
    NULL_(lgreco_controller_metrics_json(controller, NULL, 10000, &length));
    NULL_(lgreco_controller_metrics_json(controller, text, sizeof text, NULL));
    NULL_(lgreco_controller_save(NULL, LGRECO_SAVE_EVERYTHING, bytes, sizeof bytes, &length));
    NULL_(lgreco_controller_save(controller, LGRECO_SAVE_EVERYTHING, NULL, 10000, &length));
    NULL_(lgreco_controller_save(controller, LGRECO_SAVE_EVERYTHING, bytes, sizeof bytes, NULL));
    const char *part_name;
    NULL_(lgreco_controller_save_part(NULL, 0, 0, &part_name, bytes, sizeof bytes, &length));
    NULL_(lgreco_controller_save_part(controller, 0, 0, NULL, bytes, sizeof bytes, &length));
    NULL_(lgreco_controller_save_part(controller, 0, 0, &part_name, NULL, 10000, &length));
    NULL_(lgreco_controller_save_part(controller, 0, 0, &part_name, bytes, sizeof bytes, NULL));
    NULL_(lgreco_controller_load(NULL, bytes, 1, NULL, NULL, 0, NULL));
    NULL_(lgreco_controller_load(controller, NULL, 1, NULL, NULL, 0, NULL));
    const uint8_t *const states[] = {NULL};
    NULL_(lgreco_controller_load(controller, bytes, 1, NULL, &length, 1, NULL));
    NULL_(lgreco_controller_load(controller, bytes, 1, states, NULL, 1, NULL));
    NULL_(lgreco_controller_load(controller, bytes, 1, states, &length, 1, NULL));
    NULL_(lgreco_controller_load_parts(NULL, states, &length, 0, NULL, NULL, 0, NULL));
    NULL_(lgreco_controller_load_parts(controller, NULL, &length, 1, NULL, NULL, 0, NULL));
    NULL_(lgreco_controller_load_parts(controller, states, NULL, 1, NULL, NULL, 0, NULL));
    NULL_(lgreco_controller_load_parts(controller, states, &length, 1, NULL, NULL, 0, NULL));
    NULL_(lgreco_controller_load_parts(controller, NULL, NULL, 0, NULL, &length, 1, NULL));
    NULL_(lgreco_controller_load_parts(controller, NULL, NULL, 0, states, NULL, 1, NULL));

    lgreco_request request = LGRECO_REQUEST_INIT;
    lgreco_bucket *flying = NULL;
    const size_t lent[] = {0};
    NULL_(lgreco_controller_begin_step(NULL, 0.1));
    OK(lgreco_controller_begin_step(controller, 0.1));
    NULL_(lgreco_controller_control(NULL, &request));
    NULL_(lgreco_controller_control(controller, NULL));
    OK(lgreco_controller_control(controller, &request));
    NULL_(lgreco_bucket_open(NULL, lent, 1, &flying));
    NULL_(lgreco_bucket_open(controller, NULL, 1, &flying));
    NULL_(lgreco_bucket_open(controller, lent, 1, NULL));
    OK(lgreco_bucket_open(controller, lent, 1, &flying));
    NULL_(lgreco_bucket_withhold(NULL, 0));
    NULL_(lgreco_bucket_round(NULL, 0, &request));
    NULL_(lgreco_bucket_round(flying, 0, NULL));
    NULL_(lgreco_bucket_submit(NULL, gradients, 1));
    NULL_(lgreco_bucket_submit_failure(NULL));
    // The bucket first reports wrong pointers to all ranks, and then fails.
    for (int i = 0; i < 2; i++) {
        OK(lgreco_bucket_submit(flying, i == 0 ? NULL : null_gradients, 1));
        lgreco_status next;
        do next = lgreco_bucket_next(flying, &request);
        while (next == LGRECO_OK && request.kind != LGRECO_REQUEST_NONE);
        CHECK(next == LGRECO_NULL_POINTER);
        TEXT(i == 0 ? "gradients is NULL" : "layer `fc1`: gradient is NULL", lgreco_message());
        OK(lgreco_bucket_close(controller, &flying));
        OK(lgreco_bucket_open(controller, lent, 1, &flying));
    }
    OK(lgreco_bucket_submit(flying, gradients, 1));
    NULL_(lgreco_bucket_next(NULL, &request));
    NULL_(lgreco_bucket_next(flying, NULL));
    NULL_(lgreco_bucket_close(NULL, &flying));
    OK(lgreco_bucket_close(controller, NULL));
    OK(lgreco_bucket_close(controller, &flying));
    NULL_(lgreco_controller_finish_step(NULL, NULL));
    OK(lgreco_controller_finish_step(controller, NULL));
    lgreco_plan_task *no_task = NULL;
    NULL_(lgreco_controller_take_plan_task(NULL, &no_task));
    NULL_(lgreco_controller_take_plan_task(controller, NULL));
    OK(lgreco_controller_take_plan_task(controller, &no_task));
    NULL_(lgreco_plan_task_run(no_task));
    NULL_(lgreco_controller_hand_in(NULL, &no_task));
    OK(lgreco_controller_hand_in(controller, NULL));
    OK(lgreco_controller_hand_in(controller, &no_task));
    uint64_t due = 0;
    NULL_(lgreco_controller_set_settings(NULL, &setting, 1));
    NULL_(lgreco_controller_set_settings(controller, NULL, 1));
    STATUS(LGRECO_NOT_FIXED, lgreco_controller_set_settings(controller, &setting, 1));
    NULL_(lgreco_controller_replan(NULL, &due));
    NULL_(lgreco_controller_replan(controller, NULL));
    NULL_(lgreco_controller_roll_back(NULL));
    NULL_(lgreco_controller_abandon_step(NULL));
    NULL_(lgreco_controller_rescale_residuals(NULL, 1.0f));

    lgreco_cut *no_cut = NULL;
    uint64_t ticket = 0;
    size_t room = 0;
    const lgreco_dtype f32 = LGRECO_DTYPE_F32;
    NULL_(lgreco_cut_create(NULL, 0, 0, &no_cut));
    NULL_(lgreco_cut_create(&cut_setting, 0, 0, NULL));
    NULL_(lgreco_cut_bound(NULL, &room));
    NULL_(lgreco_cut_bound(above, NULL));
    NULL_(lgreco_cut_send_activations(NULL, VALUES, f32, 1, NULL, bytes, sizeof bytes, &length, &ticket));
    NULL_(lgreco_cut_send_activations(above, NULL, f32, 1, NULL, bytes, sizeof bytes, &length, &ticket));
    NULL_(lgreco_cut_send_activations(above, VALUES, f32, 1, NULL, NULL, sizeof bytes, &length, &ticket));
    NULL_(lgreco_cut_send_activations(above, VALUES, f32, 1, NULL, bytes, sizeof bytes, NULL, &ticket));
    NULL_(lgreco_cut_send_activations(above, VALUES, f32, 1, NULL, bytes, sizeof bytes, &length, NULL));
    OK(lgreco_cut_send_activations(above, VALUES, f32, 1, NULL, bytes, sizeof bytes, &length, &ticket));
    NULL_(lgreco_cut_repeat_activations(NULL, ticket, VALUES, f32, 1, NULL, bytes, sizeof bytes, &length));
    NULL_(lgreco_cut_repeat_activations(above, ticket, NULL, f32, 1, NULL, bytes, sizeof bytes, &length));
    NULL_(lgreco_cut_repeat_activations(above, ticket, VALUES, f32, 1, NULL, NULL, sizeof bytes, &length));
    NULL_(lgreco_cut_repeat_activations(above, ticket, VALUES, f32, 1, NULL, bytes, sizeof bytes, NULL));
    NULL_(lgreco_cut_samples(NULL, bytes, length, &room));
    NULL_(lgreco_cut_samples(below, NULL, length, &room));
    NULL_(lgreco_cut_samples(below, bytes, length, NULL));
    NULL_(lgreco_cut_receive(NULL, bytes, length, floats, ELEMENTS, &ticket));
    NULL_(lgreco_cut_receive(below, NULL, length, floats, ELEMENTS, &ticket));
    NULL_(lgreco_cut_receive(below, bytes, length, NULL, ELEMENTS, &ticket));
    NULL_(lgreco_cut_receive(below, bytes, length, floats, ELEMENTS, NULL));
    OK(lgreco_cut_receive(below, bytes, length, floats, ELEMENTS, &ticket));
    NULL_(lgreco_cut_receive_repeated(NULL, bytes, length, floats, ELEMENTS));
    NULL_(lgreco_cut_receive_repeated(below, NULL, length, floats, ELEMENTS));
    NULL_(lgreco_cut_receive_repeated(below, bytes, length, NULL, ELEMENTS));
    NULL_(lgreco_cut_send_gradients(NULL, ticket, VALUES, f32, 1, bytes, sizeof bytes, &length));
    NULL_(lgreco_cut_send_gradients(below, ticket, NULL, f32, 1, bytes, sizeof bytes, &length));
    NULL_(lgreco_cut_send_gradients(below, ticket, VALUES, f32, 1, NULL, sizeof bytes, &length));
    NULL_(lgreco_cut_send_gradients(below, ticket, VALUES, f32, 1, bytes, sizeof bytes, NULL));
    OK(lgreco_cut_send_gradients(below, ticket, VALUES, f32, 1, bytes, sizeof bytes, &length));
    NULL_(lgreco_cut_receive(NULL, bytes, length, floats, ELEMENTS, &ticket));
    NULL_(lgreco_cut_receive(above, NULL, length, floats, ELEMENTS, &ticket));
    NULL_(lgreco_cut_receive(above, bytes, length, NULL, ELEMENTS, &ticket));
    NULL_(lgreco_cut_receive(above, bytes, length, floats, ELEMENTS, NULL));
    OK(lgreco_cut_receive(above, bytes, length, floats, ELEMENTS, &ticket));
    NULL_(lgreco_cut_evaluate(NULL, 0, VALUES, f32, 1, bytes, sizeof bytes, &length));
    NULL_(lgreco_cut_evaluate(above, 0, NULL, f32, 1, bytes, sizeof bytes, &length));
    NULL_(lgreco_cut_evaluate(above, 0, VALUES, f32, 1, NULL, sizeof bytes, &length));
    NULL_(lgreco_cut_evaluate(above, 0, VALUES, f32, 1, bytes, sizeof bytes, NULL));
    NULL_(lgreco_cut_receive_evaluation(NULL, bytes, length, floats, ELEMENTS));
    NULL_(lgreco_cut_receive_evaluation(below, NULL, length, floats, ELEMENTS));
    NULL_(lgreco_cut_receive_evaluation(below, bytes, length, NULL, ELEMENTS));
    NULL_(lgreco_cut_commit_step(NULL));
    NULL_(lgreco_cut_forget(NULL, 0));
    NULL_(lgreco_cut_save(NULL, bytes, sizeof bytes, &room));
    NULL_(lgreco_cut_save(above, NULL, 10000, &room));
    NULL_(lgreco_cut_save(above, bytes, sizeof bytes, NULL));
    NULL_(lgreco_cut_restore(NULL, 0, bytes, 1, &no_cut));
    NULL_(lgreco_cut_restore(&cut_setting, 0, NULL, 1, &no_cut));
    NULL_(lgreco_cut_restore(&cut_setting, 0, bytes, 1, NULL));

    lgreco_cut_setting read = cut_setting;
    lgreco_compatibility same = LGRECO_COMPATIBILITY_EVALUATES_DIFFERENTLY;
    const char *const small[] = {"batch", "1", "features", "8", NULL};
    NULL_(lgreco_cut_setting_make(small, NULL));
    STATUS(LGRECO_PARAMETER, lgreco_cut_setting_make(NULL, &read));
    NULL_(lgreco_cut_setting_compare(NULL, &cut_setting, &same, NULL));
    NULL_(lgreco_cut_setting_compare(&read, NULL, &same, NULL));
    NULL_(lgreco_cut_setting_compare(&read, &cut_setting, NULL, NULL));
    CHECK(same == LGRECO_COMPATIBILITY_EVALUATES_DIFFERENTLY);
    OK(lgreco_cut_setting_compare(&read, &cut_setting, &same, NULL));
    CHECK(same == LGRECO_COMPATIBILITY_SAME);
    read.bytes[30] ^= 1;
    STATUS(LGRECO_CHECKSUM, lgreco_cut_setting_compare(&read, &cut_setting, &same, NULL));
    STATUS(LGRECO_CHECKSUM, lgreco_cut_create(&read, 0, 0, &no_cut));
    uint32_t found = 99;
    uint64_t ids[1];
    NULL_(lgreco_cut_remembered(NULL, 7, floats, ELEMENTS, &found));
    NULL_(lgreco_cut_remembered(above, 7, NULL, ELEMENTS, &found));
    NULL_(lgreco_cut_remembered(above, 7, floats, ELEMENTS, NULL));
    NULL_(lgreco_cut_remembered_samples(NULL, ids, 1, &room));
    NULL_(lgreco_cut_remembered_samples(above, NULL, 1, &room));
    NULL_(lgreco_cut_remembered_samples(above, ids, 1, NULL));

    // CUDA handles need a GPU, so this file passes NULL. cuda.c tests the other pointers of the CUDA calls.
    lgreco_rng_stream words = {0, 0, 0, 0};
    NULL_(lgreco_cuda_held_bytes(NULL, &steps));
    NULL_(lgreco_cuda_synchronize(NULL));
    NULL_(lgreco_cuda_check(NULL));
    NULL_(lgreco_cuda_measure(NULL, &layer, 1, NULL, &no_table));
    NULL_(lgreco_cuda_rows_bytes(NULL, &layer, 1, NULL, &steps, &steps));
    NULL_(lgreco_cuda_enqueue_rows(NULL, &layer, 1, NULL, floats, sizeof floats, floats, sizeof floats));
    NULL_(lgreco_cuda_read_rows(NULL, &layer, 1, NULL, floats, sizeof floats, &no_table));
    NULL_(lgreco_cuda_workspace_bytes(NULL, &layer, 1, NULL, 1, &steps));
    NULL_(lgreco_cuda_reserve(NULL, &layer, 1, NULL, 1));
    NULL_(lgreco_cuda_payload_len(NULL, &layer, setting.text, &length));
    NULL_(lgreco_cuda_encode(NULL, &layer, setting.text, &words, bytes, sizeof bytes, &length));
    NULL_(lgreco_cuda_decode(NULL, bytes, 48, floats, ELEMENTS));
    NULL_(lgreco_cuda_encode_to_device(NULL, &layer, setting.text, &words, bytes, sizeof bytes, &length));
    NULL_(lgreco_cuda_decode_on_device(NULL, &layer, setting.text, bytes, 48, floats, ELEMENTS));

    lgreco_cuda_bucket *no_bucket_there = NULL;
    lgreco_cuda_outcome outcome = LGRECO_CUDA_OUTCOME_INIT;
    lgreco_request asked = LGRECO_REQUEST_INIT;
    float *found_inf = NULL;
    const void *outcome_place = NULL;
    NULL_(lgreco_cuda_bucket_bytes(NULL, &layer, &setting, 1, NULL, &steps));
    NULL_(lgreco_cuda_bucket_create(NULL, &layer, &setting, 1, NULL, floats, sizeof floats, &no_bucket_there));
    NULL_(lgreco_cuda_bucket_submit(NULL, no_bucket_there, floats));
    NULL_(lgreco_cuda_bucket_next(NULL, no_bucket_there, &asked));
    NULL_(lgreco_cuda_bucket_outcome(NULL, no_bucket_there, &outcome));
    NULL_(lgreco_cuda_bucket_outcome_place(NULL, no_bucket_there, &outcome_place, &length));
    NULL_(lgreco_cuda_bucket_read_outcome(NULL, no_bucket_there, floats, sizeof floats, &outcome));
    NULL_(lgreco_cuda_bucket_found_inf(NULL, no_bucket_there, &found_inf));
    NULL_(lgreco_cuda_bucket_get_residuals(NULL, no_bucket_there, floats, ELEMENTS));
    NULL_(lgreco_cuda_bucket_set_residuals(NULL, no_bucket_there, floats, ELEMENTS));
    NULL_(lgreco_cuda_bucket_take_over(NULL, no_bucket_there, no_bucket_there));

    // A destroy call accepts NULL, and calls never return NULL as a text.
    OK(lgreco_cuda_bucket_destroy(NULL));
    OK(lgreco_context_destroy(NULL));
    OK(lgreco_table_destroy(NULL));
    OK(lgreco_plan_destroy(NULL));
    OK(lgreco_compressor_destroy(NULL));
    OK(lgreco_controller_destroy(NULL));
    OK(lgreco_cut_destroy(NULL));
    OK(lgreco_plan_task_destroy(NULL));
    OK(lgreco_cuda_destroy(NULL));
    TEXT("unknown status", lgreco_status_name(12345));
    // Empty arrays may be NULL.
    STATUS(LGRECO_LENGTH, lgreco_compressor_decode(compressor, NULL, 0, floats, ELEMENTS));
}

// If a call fails to create a handle, the caller's handle pointer becomes NULL.
static void handle_outputs(void) {
    lgreco_table *no_table = (lgreco_table *)bytes;
    lgreco_plan *no_plan = (lgreco_plan *)bytes;
    lgreco_compressor *no_compressor = (lgreco_compressor *)bytes;
    lgreco_controller *no_controller = (lgreco_controller *)bytes;
    lgreco_bucket *no_bucket = (lgreco_bucket *)bytes;
    lgreco_plan_task *no_task = (lgreco_plan_task *)bytes;
    lgreco_cut *no_cut = (lgreco_cut *)bytes;
    NULL_(lgreco_controller_take_plan_task(NULL, &no_task));
    NULL_(lgreco_table_create(NULL, &no_table));
    NULL_(lgreco_plan_solve(NULL, NULL, &no_plan));
    NULL_(lgreco_compressor_create(NULL, NULL, setting.text, NULL, &no_compressor));
    NULL_(lgreco_controller_create(NULL, NULL, &layer, 1, NULL, NULL, &no_controller));
    NULL_(lgreco_bucket_open(NULL, NULL, 0, &no_bucket));
    NULL_(lgreco_cut_create(NULL, 0, 0, &no_cut));
    CHECK(!no_table && !no_plan && !no_compressor && !no_controller && !no_bucket && !no_task && !no_cut);
}

// Tests NULL pointers inside structs.
static void null_fields(void) {
    lgreco_table *made = NULL;
    lgreco_compressor *none = NULL;
    lgreco_table_view broken = view;
    broken.ends = NULL;
    NULL_(lgreco_table_create(&broken, &made));
    broken = view;
    broken.choices = NULL;
    NULL_(lgreco_table_create(&broken, &made));
    const char *const no_name[] = {NULL}, *const no_label[] = {"a", NULL};
    broken = view;
    broken.names = no_name;
    NULL_(lgreco_table_create(&broken, &made));
    broken = view;
    broken.labels = no_label;
    NULL_(lgreco_table_create(&broken, &made));
    lgreco_layer nameless = layer;
    nameless.name = NULL;
    NULL_(lgreco_compressor_create(context, &nameless, setting.text, NULL, &none));
    nameless = layer;
    nameless.dims = NULL;
    NULL_(lgreco_compressor_create(context, &nameless, setting.text, NULL, &none));
    nameless = layer;
    nameless.values = NULL;
    double error;
    NULL_(lgreco_measure(context, &nameless, &setting, 1, 0, 0, &error, NULL));
    OK(lgreco_compressor_create(context, &nameless, setting.text, NULL, &none));  // needs no values
    OK(lgreco_compressor_destroy(&none));
    lgreco_plan_view optionless = plan_view;
    optionless.options = NULL;
    NULL_(lgreco_plan_check(&view, &optionless));
}

static void misaligned_and_overlapping(void) {
    static float room[2 * ELEMENTS];
    uint8_t *const odd = (uint8_t *)room + 2;
    memcpy(room, VALUES, sizeof VALUES);
    STATUS(LGRECO_ALIGNMENT, lgreco_compressor_encode(compressor, 0, odd, bytes, sizeof bytes, &length));
    STATUS(LGRECO_ALIGNMENT, lgreco_compressor_decode(compressor, bytes, 48, (float *)(void *)odd, ELEMENTS));
    STATUS(LGRECO_OVERLAP, lgreco_compressor_encode(compressor, 0, room, (uint8_t *)room + 28, 36, &length));
    TEXT("layer `fc1`: payload overlaps values", lgreco_message());
    STATUS(LGRECO_OVERLAP, lgreco_compressor_decode(compressor, (uint8_t *)room, 48, room, ELEMENTS));
    double errors[2] = {1.5, 2.5};
    lgreco_layer over = layer;
    over.values = errors;
    STATUS(LGRECO_OVERLAP, lgreco_measure(context, &over, &setting, 1, 0, 0, errors, NULL));
    STATUS(LGRECO_OVERLAP, lgreco_measure(context, &layer, &setting, 1, 0, 0, errors, (uint64_t *)(void *)errors));
    // Impossible lengths are refused before anything is read.
    STATUS(LGRECO_LENGTH, lgreco_compressor_set_memory(compressor, 0, VALUES, SIZE_MAX));
}

static void wrong_handles(void) {
    lgreco_plan *const table_as_plan = (lgreco_plan *)(void *)table;
    lgreco_compressor *const context_as_compressor = (lgreco_compressor *)(void *)context;
    lgreco_plan *wrong = table_as_plan;
    lgreco_table *table_made = NULL;
    STATUS(LGRECO_HANDLE, lgreco_plan_get(table_as_plan, &plan_view));
    STATUS(LGRECO_HANDLE, lgreco_plan_destroy(&wrong));
    CHECK(wrong == table_as_plan);
    STATUS(LGRECO_HANDLE, lgreco_compressor_bound(context_as_compressor, &length));
    STATUS(LGRECO_HANDLE, lgreco_plan_to_json(plan, (const lgreco_table *)(void *)plan, text, sizeof text, &length));
    TEXT("not a table handle", lgreco_message());
    STATUS(LGRECO_HANDLE, lgreco_table_measure((lgreco_context *)(void *)plan, &layer, 1, NULL, &table_made));
}

static void sizes_of_structs(void) {
    lgreco_table *made = NULL;
    // The structs are not initialised: struct_size is 0.
    lgreco_table_view no_view;
    lgreco_plan_view no_plan;
    lgreco_layer no_layer;
    memset(&no_view, 0, sizeof no_view);
    memset(&no_plan, 0, sizeof no_plan);
    memset(&no_layer, 0, sizeof no_layer);
    STATUS(LGRECO_STRUCT_SIZE, lgreco_table_create(&no_view, &made));
    TEXT("struct_size of table view is of revision 0 of the headers, but this library is of revision ",
         lgreco_message());
    STATUS(LGRECO_STRUCT_SIZE, lgreco_table_get(table, &no_view));
    STATUS(LGRECO_STRUCT_SIZE, lgreco_plan_get(plan, &no_plan));
    STATUS(LGRECO_STRUCT_SIZE, lgreco_plan_check(&view, &no_plan));
    STATUS(LGRECO_STRUCT_SIZE, lgreco_table_measure(context, &no_layer, 1, NULL, &made));
    lgreco_controller *no_controller = NULL;
    lgreco_collective no_collective;
    lgreco_report no_report;
    lgreco_request no_request;
    lgreco_metrics no_metrics;
    lgreco_decision no_decision;
    lgreco_loaded no_loaded;
    memset(&no_collective, 0, sizeof no_collective);
    memset(&no_report, 0, sizeof no_report);
    memset(&no_request, 0, sizeof no_request);
    memset(&no_metrics, 0, sizeof no_metrics);
    memset(&no_decision, 0, sizeof no_decision);
    memset(&no_loaded, 0, sizeof no_loaded);
    float own[ELEMENTS] = {0};
    void *gradients[] = {own};
    STATUS(LGRECO_STRUCT_SIZE, lgreco_controller_create(context, &no_collective, &layer, 1, NULL, NULL, &no_controller));
    STATUS(LGRECO_STRUCT_SIZE, lgreco_controller_step(controller, &collective, gradients, 1, 0.1, &no_report));
    OK(lgreco_controller_begin_step(controller, 0.1));
    STATUS(LGRECO_STRUCT_SIZE, lgreco_controller_control(controller, &no_request));
    TEXT("struct_size of request is of revision 0", lgreco_message());
    lgreco_request done = LGRECO_REQUEST_INIT;
    OK(lgreco_controller_control(controller, &done));
    STATUS(LGRECO_STRUCT_SIZE, lgreco_controller_finish_step(controller, &no_report));
    OK(lgreco_controller_finish_step(controller, NULL));
    STATUS(LGRECO_STRUCT_SIZE, lgreco_controller_metrics(controller, 0, &no_metrics));
    STATUS(LGRECO_STRUCT_SIZE, lgreco_controller_decision(controller, &no_decision));
    STATUS(LGRECO_STRUCT_SIZE, lgreco_controller_load(controller, bytes, 1, NULL, NULL, 0, &no_loaded));
    STATUS(LGRECO_STRUCT_SIZE, lgreco_controller_load_parts(controller, NULL, NULL, 0, NULL, NULL, 0, &no_loaded));

    // Passes a struct that is larger than the library's struct.
    struct {
        lgreco_layer known;
        uint64_t more;
    } larger = {layer, 0};
    lgreco_compressor *none = NULL;
    larger.known.struct_size = LGRECO_SIZE_OF(larger);
    STATUS(LGRECO_STRUCT_SIZE, lgreco_compressor_create(context, &larger.known, "dense", NULL, &none));
    TEXT("struct_size of layer is 56, expected 48", lgreco_message());
    larger.known.struct_size = LGRECO_SIZE_OF(lgreco_layer);
    OK(lgreco_compressor_create(context, &larger.known, "dense", NULL, &none));
    OK(lgreco_compressor_destroy(&none));
    struct {
        lgreco_plan_view known;
        uint64_t guard;
    } to_fill = {LGRECO_PLAN_VIEW_INIT, 7};
    OK(lgreco_plan_get(plan, &to_fill.known));
    CHECK(to_fill.guard == 7 && to_fill.known.struct_size == LGRECO_SIZE_OF(lgreco_plan_view));

    // Acts like a program that was compiled with headers of another revision, in which structs have the same sizes.
    lgreco_collective older = collective;
    older.struct_size -= (size_t)1 << 16;
    STATUS(LGRECO_STRUCT_SIZE, lgreco_controller_create(context, &older, &layer, 1, NULL, NULL, &no_controller));
    TEXT("struct_size of collective is of revision ", lgreco_message());
    STATUS(LGRECO_STRUCT_SIZE, lgreco_controller_step(controller, &older, gradients, 1, 0.1, NULL));
    lgreco_plan_view limited_plan = plan_view;
    limited_plan.limit = 3;
    STATUS(LGRECO_UNKNOWN_CONSTANT, lgreco_plan_check(&view, &limited_plan));
}

static void devices(void) {
    lgreco_context *other = (lgreco_context *)&other;
    NULL_(lgreco_cuda_create(0, NULL));
    NULL_(lgreco_cuda_create_on_stream(NULL, NULL));
    lgreco_table *no_table = NULL;
    lgreco_cuda *const context_as_cuda = (lgreco_cuda *)(void *)context;
    STATUS(LGRECO_HANDLE, lgreco_cuda_check(context_as_cuda));
    STATUS(LGRECO_HANDLE, lgreco_cuda_measure(context_as_cuda, &layer, 1, NULL, &no_table));
    no_table = (lgreco_table *)(void *)context;
    STATUS(LGRECO_HANDLE, lgreco_cuda_read_rows(context_as_cuda, &layer, 1, NULL, NULL, 0, &no_table));
    CHECK(no_table == NULL);
    const char *const unknown[] = {"gpu", "", "cpu:", "cuda:one", "cuda:-1", "CPU"};
    for (int i = 0; i < 6; i++) {
        STATUS(LGRECO_UNKNOWN_NAME, lgreco_context_create(unknown[i], &other));
        TEXT("unknown device, expected cpu, cuda, cuda:NUMBER or wgpu", lgreco_message());
        CHECK(other == NULL);
    }
    STATUS(LGRECO_TEXT, lgreco_context_create("\xff", &other));
    STATUS(LGRECO_UNAVAILABLE, lgreco_context_create("cpu:1", &other));
    TEXT("the device is not available", lgreco_message());
    OK(lgreco_context_create("cpu:0", &other));
    OK(lgreco_context_destroy(&other));
}

static void without_feedback(void) {
    lgreco_compressor *plain = NULL;
    double norm;
    uint64_t steps;
    OK(lgreco_compressor_create(context, &layer, setting.text, NULL, &plain));
    STATUS(LGRECO_FEEDBACK_RULE, lgreco_compressor_memory(plain, floats, ELEMENTS));
    TEXT("layer `fc1`: the compressor has no feedback", lgreco_message());
    STATUS(LGRECO_FEEDBACK_RULE, lgreco_compressor_set_memory(plain, 0, VALUES, ELEMENTS));
    STATUS(LGRECO_FEEDBACK_RULE, lgreco_compressor_rescale_memory(plain, 0, 2.0f));
    STATUS(LGRECO_FEEDBACK_RULE, lgreco_compressor_memory_norm(plain, &norm, &steps));
    STATUS(LGRECO_FEEDBACK_RULE, lgreco_compressor_save(plain, bytes, sizeof bytes, &length));
    STATUS(LGRECO_FEEDBACK_RULE, lgreco_compressor_load(plain, bytes, sizeof bytes));
    STATUS(LGRECO_LENGTH, lgreco_compressor_memory(compressor, floats, ELEMENTS - 1));
    STATUS(LGRECO_LENGTH, lgreco_compressor_set_memory(compressor, 0, VALUES, ELEMENTS - 1));
    OK(lgreco_compressor_destroy(&plain));
}

static void panics(void) {
    lgreco_compressor *own = NULL;
    OK(lgreco_compressor_create(NULL, &layer, "dense", NULL, &own));
    STATUS(LGRECO_PANIC, lgreco_testing_panic(own));
    TEXT("a bug in lgreco, please report it: injected", lgreco_message());
    STATUS(LGRECO_PANIC, lgreco_compressor_bound(own, &length));
    OK(lgreco_compressor_destroy(&own));
    OK(lgreco_compressor_bound(compressor, &length));  // other handles still work
}

static void versions(void) {
    CHECK(strcmp(lgreco_version(), LGRECO_VERSION) == 0);
    char numbers[40];
    snprintf(numbers, sizeof numbers, "%d.%d.%d", LGRECO_VERSION_MAJOR, LGRECO_VERSION_MINOR, LGRECO_VERSION_PATCH);
    CHECK(strcmp(numbers, LGRECO_VERSION) == 0);
    CHECK(strcmp(lgreco_status_name(LGRECO_INFEASIBLE), "LGRECO_INFEASIBLE") == 0);
}

int main(void) {
    prepare();
    null_pointers();
    handle_outputs();
    null_fields();
    misaligned_and_overlapping();
    wrong_handles();
    sizes_of_structs();
    devices();
    without_feedback();
    panics();
    versions();
    // Handles may be destroyed in any order, and twice.
    OK(lgreco_context_destroy(&context));
    OK(lgreco_compressor_encode(compressor, 1, VALUES, bytes, sizeof bytes, &length));
    OK(lgreco_compressor_destroy(&compressor));
    OK(lgreco_plan_destroy(&plan));
    OK(lgreco_table_destroy(&table));
    OK(lgreco_controller_destroy(&controller));
    OK(lgreco_controller_destroy(&controller));
    OK(lgreco_cut_destroy(&above));
    OK(lgreco_cut_destroy(&below));
    OK(lgreco_cut_destroy(&above));
    OK(lgreco_compressor_destroy(&compressor));
    OK(lgreco_plan_destroy(&plan));
    OK(lgreco_table_destroy(&table));
    OK(lgreco_context_destroy(&context));
    return report("misuse");
}
