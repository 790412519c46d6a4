// Tests both ends of a pipeline cut. Each end receives the messages of the other end, and every word of a codec or
// memory has an effect. Lost and repeated messages are detected, and a saved end continues bit for bit.
#include "check.h"

#include <math.h>

enum { BATCH = 3, FEATURES = 96, VALUES = BATCH * FEATURES, STEPS = 4 };

static float activations[VALUES], gradients[VALUES], received[VALUES];
static uint8_t message[4096], back[4096];
static const uint64_t IDS[BATCH] = {7, 8, 9};

typedef struct {
    lgreco_cut *above, *below;
} Ends;

// Makes options of a cut. NULL means the default codec or memory.
static Options options_of(const char *forward, const char *memory, const char *backward) {
    Options options = OPTIONS;
    set_number(&options, "batch", BATCH);
    set_number(&options, "features", FEATURES);
    set(&options, "forward", forward);
    set(&options, "forward_memory", memory);
    set(&options, "backward", backward);
    return options;
}

static lgreco_cut_setting made_of(const Options *options) {
    lgreco_cut_setting setting;
    memset(&setting, 0, sizeof setting);
    OK(lgreco_cut_setting_make(listed(options), &setting));
    return setting;
}

static lgreco_cut_setting setting_of(const char *forward, const char *memory, const char *backward) {
    const Options options = options_of(forward, memory, backward);
    return made_of(&options);
}

static Ends ends_of(const lgreco_cut_setting *setting) {
    Ends ends = {NULL, NULL};
    OK(lgreco_cut_create(setting, LGRECO_END_UPSTREAM, 1, &ends.above));
    OK(lgreco_cut_create(setting, LGRECO_END_DOWNSTREAM, 1, &ends.below));
    return ends;
}

static void destroy(Ends *ends) {
    OK(lgreco_cut_destroy(&ends->above));
    OK(lgreco_cut_destroy(&ends->below));
}

static double error_of(const float *from) {
    double sum = 0;
    for (int i = 0; i < VALUES; i++) sum += pow((double)from[i] - received[i], 2);
    return sum;
}

// The results of several steps.
typedef struct {
    size_t forward_bytes, backward_bytes;
    double forward_error, backward_error;
} Trace;

static Trace steps(Ends ends, uint32_t first, uint32_t count, float change) {
    Trace trace = {0, 0, 0, 0};
    for (uint32_t step = first; step < first + count; step++) {
        uint64_t ticket = 99, arrived = 98;
        size_t samples = 0, length = 0;
        fill(activations, VALUES, 1);
        fill(gradients, VALUES, 500 + step);
        for (int i = 0; i < VALUES; i++) activations[i] += change * (float)step * (float)(i % 5);
        OK(lgreco_cut_send_activations(ends.above, activations, LGRECO_DTYPE_F32, BATCH, IDS, message, sizeof message,
                                       &trace.forward_bytes, &ticket));
        OK(lgreco_cut_samples(ends.below, message, trace.forward_bytes, &samples));
        CHECK(samples == BATCH);
        CHECK(lgreco_cut_samples(ends.above, message, trace.forward_bytes, &samples) == LGRECO_PAYLOAD_HEADER);
        OK(lgreco_cut_receive(ends.below, message, trace.forward_bytes, received, VALUES, &arrived));
        CHECK(arrived == ticket);
        trace.forward_error = error_of(activations);
        OK(lgreco_cut_send_gradients(ends.below, ticket, gradients, LGRECO_DTYPE_F32, BATCH, back, sizeof back, &length));
        OK(lgreco_cut_receive(ends.above, back, length, received, VALUES, &arrived));
        CHECK(arrived == ticket);
        trace.backward_bytes = length;
        trace.backward_error = error_of(gradients);
        OK(lgreco_cut_commit_step(ends.above));
        OK(lgreco_cut_commit_step(ends.below));
    }
    return trace;
}

static Trace run(const char *forward, const char *memory, const char *backward) {
    const lgreco_cut_setting setting = setting_of(forward, memory, backward);
    Ends ends = ends_of(&setting);
    const Trace trace = steps(ends, 0, STEPS, 0.01f);
    destroy(&ends);
    return trace;
}

static void every_word_counts(void) {
    const Trace plain = run(NULL, NULL, NULL), same = run("min-max 4 tile 128", "none", "min-max 8");
    CHECK(memcmp(&plain, &same, sizeof plain) == 0);
    CHECK(plain.forward_error > 0 && plain.backward_error > 0 && plain.backward_bytes > plain.forward_bytes);
    CHECK(run(NULL, NULL, "min-max 4").backward_bytes == plain.forward_bytes);
    CHECK(run("min-max 5", NULL, NULL).forward_bytes > plain.forward_bytes);
    CHECK(run("min-max 4 tile 32", NULL, NULL).forward_bytes == plain.forward_bytes + 2 * 3 * 8);
    CHECK(run("min-max 4 tile batch", NULL, NULL).forward_bytes == plain.forward_bytes - 2 * 8);

    const Trace symmetric = run("symmetric 4", NULL, NULL);
    CHECK(symmetric.forward_bytes == plain.forward_bytes - 3 * 4);
    CHECK(run("symmetric 4 channels 4", NULL, NULL).forward_bytes == symmetric.forward_bytes + 4);
    CHECK(run("symmetric 4 channels 4 scale bf16", NULL, NULL).forward_bytes == symmetric.forward_bytes + 4 - 4 * 2);

    const Trace dense = run("dense", NULL, NULL);
    CHECK(dense.forward_error == 0 && dense.forward_bytes == 64 + 4 * VALUES);
    CHECK(run("dense bf16", NULL, NULL).forward_bytes == 64 + 2 * VALUES);
    CHECK(run("eden 4", NULL, NULL).forward_error > 0);
    const Trace topk = run("topk 10", NULL, NULL);
    CHECK(run("topk 20", NULL, NULL).forward_bytes > topk.forward_bytes);
    CHECK(run("topk 20", NULL, "shared-index 20").backward_bytes == 64 + BATCH * 20 * 4);

    const Trace residual = run("topk 20", "residual", NULL);
    CHECK(residual.forward_error != run("topk 20", NULL, NULL).forward_error);
    CHECK(run("topk 20", "residual gain 0.5", NULL).forward_error != residual.forward_error);
    CHECK(run("topk 20", "residual reset 1", NULL).forward_error != residual.forward_error);
    CHECK(run("topk 20", "residual int8", NULL).forward_error != residual.forward_error);
    CHECK(run("topk 20", "mixed", NULL).forward_error != residual.forward_error);
    CHECK(run("topk 20", "ef21", NULL).forward_error < residual.forward_error);

    const Trace aq = run(NULL, "samples 1024", NULL);
    CHECK(aq.forward_error < 0.1 * plain.forward_error);  // only changes are compressed
    CHECK(run(NULL, "samples 1024 f32", NULL).forward_error != aq.forward_error);
    const Trace quantised = run(NULL, "samples 1024 bits 8", NULL);
    CHECK(run(NULL, "samples 1024 bits 4", NULL).forward_error > quantised.forward_error);
    CHECK(quantised.forward_error > aq.forward_error);
    CHECK(run(NULL, "samples 1 bits 4", NULL).forward_bytes > aq.forward_bytes);  // most visits are first visits again
}

static void identified(void) {
    const lgreco_cut_setting setting = setting_of(NULL, "samples 1024", NULL);
    Ends ends = ends_of(&setting);
    steps(ends, 0, STEPS, 0.01f);
    const uint64_t no_id[BATCH] = {7, LGRECO_UNREMEMBERED, LGRECO_UNREMEMBERED}, twice[BATCH] = {7, 7, 8};
    size_t length = 0;
    uint64_t ticket = 0;
    OK(lgreco_cut_send_activations(ends.above, activations, LGRECO_DTYPE_F32, BATCH, no_id, message, sizeof message,
                                   &length, &ticket));
    STATUS(LGRECO_DUPLICATE_SAMPLE, lgreco_cut_send_activations(ends.above, activations, LGRECO_DTYPE_F32, BATCH, twice,
                                                                message, sizeof message, &length, &ticket));
    TEXT("sample 7 is in the batch twice", lgreco_message());
    STATUS(LGRECO_LENGTH, lgreco_cut_send_activations(ends.above, activations, LGRECO_DTYPE_F32, BATCH, NULL, message,
                                                      sizeof message, &length, &ticket));
    destroy(&ends);
}

static void lost_and_repeated_messages(void) {
    Options options = options_of(NULL, NULL, NULL);
    set(&options, "in_flight", "2");
    const lgreco_cut_setting setting = made_of(&options);
    Ends ends = ends_of(&setting);
    size_t length = 0, again = 0, other = 0;
    uint64_t first = 0, second = 0, ticket = 0;
    static uint8_t repeated[sizeof message], next[sizeof message];
    OK(lgreco_cut_send_activations(ends.above, activations, LGRECO_DTYPE_F32, BATCH, NULL, message, sizeof message, &length,
                                   &first));
    OK(lgreco_cut_repeat_activations(ends.above, first, activations, LGRECO_DTYPE_F32, BATCH, NULL, repeated,
                                     sizeof repeated, &again));
    CHECK(again == length && memcmp(message, repeated, length) == 0);
    OK(lgreco_cut_send_activations(ends.above, activations, LGRECO_DTYPE_F32, 2, NULL, next, sizeof next, &other, &second));
    STATUS(LGRECO_TOO_MANY_IN_FLIGHT, lgreco_cut_send_activations(ends.above, activations, LGRECO_DTYPE_F32, BATCH, NULL,
                                                                  repeated, sizeof repeated, &again, &ticket));
    STATUS(LGRECO_OUT_OF_STEP,
           lgreco_cut_receive(ends.below, next, other, received, 2 * FEATURES, &ticket));
    OK(lgreco_cut_receive(ends.below, message, length, received, VALUES, &ticket));
    STATUS(LGRECO_OUT_OF_STEP,
           lgreco_cut_receive(ends.below, message, length, received, VALUES, &ticket));
    OK(lgreco_cut_receive_repeated(ends.below, message, length, received, VALUES));
    for (size_t shorter = 0; shorter < other; shorter++) {
        uint8_t *cut = malloc(shorter + 1);
        memcpy(cut, next, shorter);
        CHECK(lgreco_cut_receive(ends.below, cut, shorter, received, 2 * FEATURES, &ticket) != LGRECO_OK);
        free(cut);
    }
    OK(lgreco_cut_receive(ends.below, next, other, received, 2 * FEATURES, &ticket));
    CHECK(ticket == second);
    size_t len = 0;
    STATUS(LGRECO_MID_STEP, lgreco_cut_save(ends.above, repeated, sizeof repeated, &len));
    STATUS(LGRECO_NOT_IN_FLIGHT, lgreco_cut_send_gradients(ends.below, 77, gradients, LGRECO_DTYPE_F32, BATCH, back,
                                                           sizeof back, &len));
    OK(lgreco_cut_forget(ends.above, first));
    OK(lgreco_cut_forget(ends.below, first));
    STATUS(LGRECO_NOT_IN_FLIGHT, lgreco_cut_forget(ends.above, first));

    // Refuses a batch that is too large, values that are not finite, and a buffer that is too short.
    size_t bound = 0;
    OK(lgreco_cut_bound(ends.above, &bound));
    STATUS(LGRECO_LENGTH, lgreco_cut_send_activations(ends.above, activations, LGRECO_DTYPE_F32, BATCH + 1, NULL, message,
                                                      sizeof message, &length, &ticket));
    STATUS(LGRECO_LENGTH, lgreco_cut_send_activations(ends.above, activations, LGRECO_DTYPE_F32, BATCH, NULL, message,
                                                      bound - 1, &length, &ticket));
    activations[5] = NAN;
    STATUS(LGRECO_NON_FINITE, lgreco_cut_send_activations(ends.above, activations, LGRECO_DTYPE_F32, BATCH, NULL, message,
                                                          bound, &length, &ticket));
    activations[5] = 0;
    STATUS(LGRECO_UNKNOWN_CONSTANT, lgreco_cut_send_activations(ends.above, activations, 9, BATCH, NULL, message, bound,
                                                                &length, &ticket));
    STATUS(LGRECO_OVERLAP, lgreco_cut_send_activations(ends.above, activations, LGRECO_DTYPE_F32, BATCH, NULL,
                                                       (uint8_t *)activations + 9, bound, &length, &ticket));
    // Calls for the upstream end are refused at the downstream end, and vice versa.
    STATUS(LGRECO_OTHER_END, lgreco_cut_send_activations(ends.below, activations, LGRECO_DTYPE_F32, BATCH, NULL, message,
                                                         bound, &length, &ticket));
    CHECK(lgreco_cut_receive(ends.above, message, length, received, VALUES, &ticket) != LGRECO_OK);
    STATUS(LGRECO_OTHER_END, lgreco_cut_send_gradients(ends.above, second, gradients, LGRECO_DTYPE_F32, 2, back,
                                                       sizeof back, &len));
    destroy(&ends);
}

static void evaluation(void) {
    const lgreco_cut_setting setting = setting_of("topk 12", "ef21", NULL);
    Ends ends = ends_of(&setting);
    steps(ends, 0, 1, 0);
    size_t plain = 0, compressed = 0, saved_len = 0, again_len = 0;
    static uint8_t before[8192], after[8192];
    OK(lgreco_cut_save(ends.above, before, sizeof before, &saved_len));
    OK(lgreco_cut_evaluate(ends.above, 0, activations, LGRECO_DTYPE_F32, BATCH, message, sizeof message, &plain));
    OK(lgreco_cut_receive_evaluation(ends.below, message, plain, received, VALUES));
    CHECK(error_of(activations) == 0);
    OK(lgreco_cut_evaluate(ends.above, 1, activations, LGRECO_DTYPE_F32, BATCH, message, sizeof message, &compressed));
    OK(lgreco_cut_receive_evaluation(ends.below, message, compressed, received, VALUES));
    CHECK(error_of(activations) > 0 && compressed < plain);
    OK(lgreco_cut_save(ends.above, after, sizeof after, &again_len));
    CHECK(saved_len == again_len && memcmp(before, after, saved_len) == 0);
    destroy(&ends);
}

static void saved_ends(void) {
    Options options = options_of(NULL, "samples 1024", NULL);
    const lgreco_cut_setting setting = made_of(&options);
    Ends ends = ends_of(&setting), restored = {NULL, NULL};
    steps(ends, 0, STEPS, 0.01f);
    lgreco_cut *const each[] = {ends.above, ends.below};
    lgreco_cut **const place[] = {&restored.above, &restored.below};
    for (uint32_t end = 0; end < 2; end++) {
        size_t length = 0;
        STATUS(LGRECO_LENGTH, lgreco_cut_save(each[end], NULL, 0, &length));
        uint8_t *saved = malloc(length);
        STATUS(LGRECO_LENGTH, lgreco_cut_save(each[end], saved, length - 1, &length));
        OK(lgreco_cut_save(each[end], saved, length, &length));
        OK(lgreco_cut_restore(&setting, end, saved, length, place[end]));
        lgreco_cut *none = NULL;
        for (size_t shorter = 0; shorter < length; shorter += 3)
            CHECK(lgreco_cut_restore(&setting, end, saved, shorter, &none) != LGRECO_OK && none == NULL);
        for (size_t bit = 0; bit < 8 * length; bit++) {
            saved[bit / 8] ^= (uint8_t)(1 << bit % 8);
            STATUS(bit < 32 ? LGRECO_SAVED_STATE : LGRECO_CHECKSUM,
                   lgreco_cut_restore(&setting, end, saved, length, &none));
            CHECK(none == NULL);
            saved[bit / 8] ^= (uint8_t)(1 << bit % 8);
        }
        CHECK(lgreco_cut_restore(&setting, 1 - end, saved, length, &none) != LGRECO_OK);
        set(&options, "cut", "5");
        const lgreco_cut_setting other = made_of(&options);
        STATUS(LGRECO_OTHER_SETTING, lgreco_cut_restore(&other, end, saved, length, &none));
        TEXT("the cut was saved under another setting: ", lgreco_message());
        free(saved);
    }
    const Trace one = steps(ends, STEPS, 2, 0.01f), two = steps(restored, STEPS, 2, 0.01f);
    CHECK(memcmp(&one, &two, sizeof one) == 0);
    destroy(&ends);
    destroy(&restored);
}

// Comparing a setting with the setting saved with the model shows whether evaluation matches training.
static void saved_settings(void) {
    const lgreco_cut_setting trained = setting_of("topk 12", "residual gain 0.5 reset 7 int8", NULL);
    lgreco_compatibility found = 99;
    const char *what = NULL;
    lgreco_cut_setting other = setting_of("topk 12", "residual gain 0.5 reset 7 int8", "min-max 8 tile 128");
    CHECK(memcmp(&other, &trained, sizeof other) == 0);
    OK(lgreco_cut_setting_compare(&other, &trained, &found, &what));
    CHECK(found == LGRECO_COMPATIBILITY_SAME && strcmp(what, "") == 0);
    other = setting_of("topk 12", "residual gain 0.5 reset 7 int8", "min-max 6");
    OK(lgreco_cut_setting_compare(&other, &trained, &found, &what));
    CHECK(found == LGRECO_COMPATIBILITY_TRAINS_DIFFERENTLY && strcmp(what, "backward codec") == 0);
    other = setting_of("topk 13", NULL, NULL);
    OK(lgreco_cut_setting_compare(&other, &trained, &found, &what));
    CHECK(found == LGRECO_COMPATIBILITY_EVALUATES_DIFFERENTLY && strcmp(what, "forward codec") == 0);

    // Every flipped bit is detected.
    for (size_t at = 0; at < sizeof other.bytes; at++) {
        for (int bit = 0; bit < 8; bit++) {
            lgreco_cut *none = (lgreco_cut *)&none;
            other = trained;
            other.bytes[at] ^= (uint8_t)(1 << bit);
            STATUS(at < 4 ? LGRECO_SAVED_STATE : LGRECO_CHECKSUM, lgreco_cut_create(&other, LGRECO_END_UPSTREAM, 0, &none));
            CHECK(none == NULL);
        }
    }
}

static void remembered(void) {
    const lgreco_cut_setting setting = setting_of(NULL, "samples 1024 f32", NULL);
    Ends ends = ends_of(&setting);
    uint64_t ids[BATCH + 1] = {99, 99, 99, 99};
    size_t count = 99;
    uint32_t found = 99;
    float row[FEATURES], other[FEATURES];
    OK(lgreco_cut_remembered_samples(ends.above, NULL, 0, &count));
    CHECK(count == 0);
    steps(ends, 0, 1, 0);
    STATUS(LGRECO_LENGTH, lgreco_cut_remembered_samples(ends.above, ids, BATCH - 1, &count));
    CHECK(count == BATCH);
    OK(lgreco_cut_remembered_samples(ends.above, ids, BATCH + 1, &count));
    CHECK(count == BATCH && memcmp(ids, IDS, sizeof IDS) == 0 && ids[BATCH] == 99);
    for (size_t i = 0; i < BATCH; i++) {
        OK(lgreco_cut_remembered(ends.above, IDS[i], row, FEATURES, &found));
        CHECK(found == 1 && memcmp(row, activations + i * FEATURES, sizeof row) == 0);  // the first visit is exact
        steps(ends, 1, 1, 0.01f);
        OK(lgreco_cut_remembered(ends.above, IDS[i], row, FEATURES, &found));
        OK(lgreco_cut_remembered(ends.below, IDS[i], other, FEATURES, &found));
        CHECK(found == 1 && memcmp(row, other, sizeof row) == 0);
        destroy(&ends);
        ends = ends_of(&setting);
        steps(ends, 0, 1, 0);
    }
    row[0] = 5;
    OK(lgreco_cut_remembered(ends.above, 1234, row, FEATURES, &found));
    CHECK(found == 0 && row[0] == 5);
    STATUS(LGRECO_LENGTH, lgreco_cut_remembered(ends.above, 7, row, FEATURES - 1, &found));
    destroy(&ends);
}

static void settings_refused(void) {
    lgreco_cut *none = (lgreco_cut *)&none;
    lgreco_cut_setting setting = setting_of(NULL, NULL, NULL), unchanged = setting;
    STATUS(LGRECO_UNKNOWN_CONSTANT, lgreco_cut_create(&setting, 2, 0, &none));
    CHECK(none == NULL);
    const struct {
        lgreco_status status;
        const char *name, *value;
    } wrong[] = {
        {LGRECO_PARAMETER, "features", "0"},         {LGRECO_PARAMETER, "batch", "-1"},
        {LGRECO_PARAMETER, "in_flight", "0"},        {LGRECO_PARAMETER, "forward", "min-max 9"},
        {LGRECO_UNKNOWN_NAME, "forward", "min-max"}, {LGRECO_UNKNOWN_NAME, "forward", "min-max 264"},
        {LGRECO_UNKNOWN_NAME, "forward", "topk 3 f64"}, {LGRECO_UNKNOWN_NAME, "backward", "tile 3"},
        {LGRECO_UNKNOWN_NAME, "forward_memory", "residual gain"}, {LGRECO_UNKNOWN_NAME, "forward_memory", "samples"},
        {LGRECO_FEEDBACK_RULE, "forward_memory", "mixed"}, {LGRECO_FEEDBACK_RULE, "backward_memory", "samples 3"},
        {LGRECO_UNKNOWN_OPTION, "bits", "4"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        Options options = options_of(NULL, NULL, NULL);
        set(&options, wrong[i].name, wrong[i].value);
        STATUS(wrong[i].status, lgreco_cut_setting_make(listed(&options), &setting));
        CHECK(memcmp(&setting, &unchanged, sizeof setting) == 0);
    }
    TEXT("a cut has no option `bits`; there are batch, features, forward, ", lgreco_message());
    // Ends of different generations refuse each other's messages.
    Ends ends = ends_of(&setting);
    lgreco_cut *later = NULL;
    size_t length = 0;
    uint64_t ticket = 0;
    OK(lgreco_cut_create(&setting, LGRECO_END_DOWNSTREAM, 2, &later));
    OK(lgreco_cut_send_activations(ends.above, activations, LGRECO_DTYPE_F32, BATCH, NULL, message, sizeof message, &length,
                                   &ticket));
    STATUS(LGRECO_OUT_OF_STEP, lgreco_cut_receive(later, message, length, received, VALUES, &ticket));
    OK(lgreco_cut_destroy(&later));
    destroy(&ends);
}

int main(void) {
    every_word_counts();
    identified();
    fill(activations, VALUES, 3);
    lost_and_repeated_messages();
    evaluation();
    saved_ends();
    saved_settings();
    remembered();
    settings_refused();
    return report("cut");
}
