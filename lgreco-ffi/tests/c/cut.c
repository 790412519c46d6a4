// Both ends of a pipeline cut: what one sends the other receives, every field of a link makes a difference, lost and
// repeated messages are found, a saved end continues bit for bit.
#include "check.h"

#include <math.h>

enum { BATCH = 3, FEATURES = 96, VALUES = BATCH * FEATURES, STEPS = 4 };

static lgreco_context *context;
static float activations[VALUES], gradients[VALUES], received[VALUES];
static uint8_t message[4096], back[4096];
static const uint64_t IDS[BATCH] = {7, 8, 9};

typedef struct {
    lgreco_cut *above, *below;
} Ends;

static lgreco_cut_setting setting_of(const lgreco_link *forward, const lgreco_link *backward) {
    lgreco_cut_setting setting = LGRECO_CUT_SETTING_INIT;
    setting.forward = forward;
    setting.backward = backward;
    setting.batch = BATCH;
    setting.features = FEATURES;
    return setting;
}

static Ends ends_of(const lgreco_cut_setting *setting) {
    Ends ends = {NULL, NULL};
    OK(lgreco_cut_create(context, setting, LGRECO_END_UPSTREAM, 1, &ends.above));
    OK(lgreco_cut_create(context, setting, LGRECO_END_DOWNSTREAM, 1, &ends.below));
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

// What a number of steps leaves behind.
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

static Trace run(const lgreco_link *forward, const lgreco_link *backward) {
    const lgreco_cut_setting setting = setting_of(forward, backward);
    Ends ends = ends_of(&setting);
    const Trace trace = steps(ends, 0, STEPS, 0.01f);
    destroy(&ends);
    return trace;
}

static void every_field_counts(void) {
    const lgreco_link base = LGRECO_LINK_INIT;
    const Trace plain = run(NULL, NULL), same = run(&base, NULL);
    CHECK(memcmp(&plain, &same, sizeof plain) == 0);
    CHECK(plain.forward_error > 0 && plain.backward_error > 0 && plain.backward_bytes > plain.forward_bytes);
    CHECK(run(NULL, &base).backward_bytes == plain.forward_bytes);
    lgreco_link link = base;
    link.bits = 5;
    CHECK(run(&link, NULL).forward_bytes > plain.forward_bytes);
    link = base;
    link.tile = 32;
    CHECK(run(&link, NULL).forward_bytes == plain.forward_bytes + 2 * 3 * 8);
    link.tile = 0;
    CHECK(run(&link, NULL).forward_bytes == plain.forward_bytes - 2 * 8);

    link = base;
    link.codec = LGRECO_CODEC_SYMMETRIC;
    const Trace symmetric = run(&link, NULL);
    CHECK(symmetric.forward_bytes == plain.forward_bytes - 3 * 4);
    link.channels = 4;
    CHECK(run(&link, NULL).forward_bytes == symmetric.forward_bytes + 4);
    link.scale = LGRECO_DTYPE_BF16;
    CHECK(run(&link, NULL).forward_bytes == symmetric.forward_bytes + 4 - 4 * 2);

    link = base;
    link.codec = LGRECO_CODEC_DENSE;
    const Trace dense = run(&link, NULL);
    CHECK(dense.forward_error == 0 && dense.forward_bytes == 64 + 4 * VALUES);
    link.values = LGRECO_DTYPE_BF16;
    CHECK(run(&link, NULL).forward_bytes == 64 + 2 * VALUES);
    link = base;
    link.codec = LGRECO_CODEC_TOPK;
    link.keep = 10;
    const Trace topk = run(&link, NULL);
    link.keep = 20;
    CHECK(run(&link, NULL).forward_bytes > topk.forward_bytes);
    lgreco_link shared = base;
    shared.codec = LGRECO_CODEC_SHARED_INDEX;
    shared.keep = 20;
    CHECK(run(&link, &shared).backward_bytes == 64 + BATCH * 20 * 4);

    link.memory = LGRECO_LINK_MEMORY_RESIDUAL;
    const Trace residual = run(&link, NULL);
    CHECK(residual.forward_error != run(&(lgreco_link){LGRECO_SIZE_OF(lgreco_link), LGRECO_CODEC_TOPK, 4, 128, 0, 0, 20, 0, 0, 1, 0, 0,
                                                       1024, 1, 8}, NULL).forward_error);
    link.gain = 0.5f;
    CHECK(run(&link, NULL).forward_error != residual.forward_error);
    link.gain = 1;
    link.reset_every = 1;
    CHECK(run(&link, NULL).forward_error != residual.forward_error);
    link.reset_every = 0;
    link.storage = LGRECO_STORAGE_INT8;
    CHECK(run(&link, NULL).forward_error != residual.forward_error);
    link.storage = LGRECO_STORAGE_F32;
    link.memory = LGRECO_LINK_MEMORY_MIXED;
    CHECK(run(&link, NULL).forward_error != residual.forward_error);
    link.memory = LGRECO_LINK_MEMORY_EF21;
    CHECK(run(&link, NULL).forward_error < residual.forward_error);

    link = base;
    link.memory = LGRECO_LINK_MEMORY_SAMPLES;
    const Trace aq = run(&link, NULL);
    CHECK(aq.forward_error < 0.1 * plain.forward_error);  // only changes are compressed
    link.rows = LGRECO_ROWS_F32;
    CHECK(run(&link, NULL).forward_error != aq.forward_error);
    link.rows = LGRECO_ROWS_QUANTISED;
    const Trace quantised = run(&link, NULL);
    link.row_bits = 4;
    CHECK(run(&link, NULL).forward_error > quantised.forward_error && quantised.forward_error > aq.forward_error);
    link.capacity = 1;
    CHECK(run(&link, NULL).forward_bytes > aq.forward_bytes);  // most first visits again
}

static void identified(void) {
    lgreco_link link = LGRECO_LINK_INIT;
    link.memory = LGRECO_LINK_MEMORY_SAMPLES;
    const lgreco_cut_setting setting = setting_of(&link, NULL);
    Ends ends = ends_of(&setting);
    steps(ends, 0, STEPS, 0.01f);
    const uint64_t no_id[BATCH] = {7, LGRECO_UNREMEMBERED, LGRECO_UNREMEMBERED}, twice[BATCH] = {7, 7, 8};
    size_t length = 0;
    uint64_t ticket = 0;
    OK(lgreco_cut_send_activations(ends.above, activations, LGRECO_DTYPE_F32, BATCH, no_id, message, sizeof message,
                                   &length, &ticket));
    STATUS(LGRECO_DUPLICATE_SAMPLE, lgreco_cut_send_activations(ends.above, activations, LGRECO_DTYPE_F32, BATCH, twice,
                                                                message, sizeof message, &length, &ticket));
    TEXT("sample 7 is in the batch twice", lgreco_cut_message(ends.above));
    STATUS(LGRECO_LENGTH, lgreco_cut_send_activations(ends.above, activations, LGRECO_DTYPE_F32, BATCH, NULL, message,
                                                      sizeof message, &length, &ticket));
    destroy(&ends);
}

static void lost_and_repeated_messages(void) {
    lgreco_cut_setting setting = setting_of(NULL, NULL);
    setting.in_flight = 2;
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

    // A batch that is too large, values that are not finite, a buffer that is too short.
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
    // Calls for the other end.
    STATUS(LGRECO_OTHER_END, lgreco_cut_send_activations(ends.below, activations, LGRECO_DTYPE_F32, BATCH, NULL, message,
                                                         bound, &length, &ticket));
    CHECK(lgreco_cut_receive(ends.above, message, length, received, VALUES, &ticket) != LGRECO_OK);
    STATUS(LGRECO_OTHER_END, lgreco_cut_send_gradients(ends.above, second, gradients, LGRECO_DTYPE_F32, 2, back,
                                                       sizeof back, &len));
    destroy(&ends);
}

static void evaluation(void) {
    lgreco_link link = LGRECO_LINK_INIT;
    link.codec = LGRECO_CODEC_TOPK;
    link.keep = 12;
    link.memory = LGRECO_LINK_MEMORY_EF21;
    const lgreco_cut_setting setting = setting_of(&link, NULL);
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
    lgreco_link link = LGRECO_LINK_INIT;
    link.memory = LGRECO_LINK_MEMORY_SAMPLES;
    lgreco_cut_setting setting = setting_of(&link, NULL);
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
        OK(lgreco_cut_restore(context, &setting, end, saved, length, place[end]));
        lgreco_cut *none = NULL;
        for (size_t shorter = 0; shorter < length; shorter += 3)
            CHECK(lgreco_cut_restore(context, &setting, end, saved, shorter, &none) != LGRECO_OK && none == NULL);
        for (size_t bit = 0; bit < 8 * length; bit++) {
            saved[bit / 8] ^= (uint8_t)(1 << bit % 8);
            STATUS(bit < 32 ? LGRECO_SAVED_STATE : LGRECO_CHECKSUM,
                   lgreco_cut_restore(context, &setting, end, saved, length, &none));
            CHECK(none == NULL);
            saved[bit / 8] ^= (uint8_t)(1 << bit % 8);
        }
        CHECK(lgreco_cut_restore(context, &setting, 1 - end, saved, length, &none) != LGRECO_OK);
        lgreco_cut_setting other = setting;
        other.cut = 5;
        STATUS(LGRECO_OTHER_SETTING, lgreco_cut_restore(context, &other, end, saved, length, &none));
        TEXT("the cut was saved under another setting: ", lgreco_context_message(context));
        free(saved);
    }
    const Trace one = steps(ends, STEPS, 2, 0.01f), two = steps(restored, STEPS, 2, 0.01f);
    CHECK(memcmp(&one, &two, sizeof one) == 0);
    destroy(&ends);
    destroy(&restored);
}

// A setting saved with the model says before evaluation whether this is the model that was trained.
static void saved_settings(void) {
    lgreco_link link = LGRECO_LINK_INIT;
    link.codec = LGRECO_CODEC_TOPK;
    link.keep = 12;
    link.memory = LGRECO_LINK_MEMORY_RESIDUAL;
    link.gain = 0.5f;
    link.reset_every = 7;
    link.storage = LGRECO_STORAGE_INT8;
    const lgreco_cut_setting setting = setting_of(&link, NULL);
    uint8_t saved[LGRECO_CUT_SETTING_BYTES], again[LGRECO_CUT_SETTING_BYTES + 1];
    STATUS(LGRECO_LENGTH, lgreco_cut_setting_to_bytes(context, &setting, saved, sizeof saved - 1));
    OK(lgreco_cut_setting_to_bytes(context, &setting, saved, sizeof saved));
    lgreco_cut_setting read = LGRECO_CUT_SETTING_INIT;
    lgreco_link forward = LGRECO_LINK_INIT, backward = LGRECO_LINK_INIT;
    OK(lgreco_cut_setting_from_bytes(context, saved, sizeof saved, &read, &forward, &backward));
    CHECK(read.forward == &forward && read.backward == &backward && read.batch == BATCH && read.features == FEATURES);
    CHECK(forward.codec == LGRECO_CODEC_TOPK && forward.keep == 12 && forward.memory == LGRECO_LINK_MEMORY_RESIDUAL);
    CHECK(forward.gain == 0.5f && forward.reset_every == 7 && forward.storage == LGRECO_STORAGE_INT8);
    CHECK(backward.codec == LGRECO_CODEC_MIN_MAX && backward.bits == 8 && backward.tile == 128);
    OK(lgreco_cut_setting_to_bytes(context, &read, again, sizeof again));
    CHECK(memcmp(saved, again, sizeof saved) == 0);

    // Ends made of what was read are ends of the same cut.
    Ends ends = ends_of(&read);
    steps(ends, 0, 1, 0);
    destroy(&ends);

    lgreco_compatibility found = 99;
    const char *what = NULL;
    OK(lgreco_cut_setting_compare(context, &read, &setting, &found, &what));
    CHECK(found == LGRECO_COMPATIBILITY_SAME && strcmp(what, "") == 0);
    backward.bits = 6;
    OK(lgreco_cut_setting_compare(context, &read, &setting, &found, &what));
    CHECK(found == LGRECO_COMPATIBILITY_TRAINS_DIFFERENTLY && strcmp(what, "backward codec") == 0);
    forward.keep = 13;
    OK(lgreco_cut_setting_compare(context, &read, &setting, &found, &what));
    CHECK(found == LGRECO_COMPATIBILITY_EVALUATES_DIFFERENTLY && strcmp(what, "forward codec") == 0);

    // Any bytes may be given.
    for (size_t length = 0; length <= sizeof again; length++)
        if (length != sizeof saved)
            STATUS(LGRECO_LENGTH, lgreco_cut_setting_from_bytes(context, again, length, &read, &forward, &backward));
    for (size_t at = 0; at < sizeof saved; at++) {
        for (int bit = 0; bit < 8; bit++) {
            memcpy(again, saved, sizeof saved);
            again[at] ^= (uint8_t)(1 << bit);
            lgreco_cut_setting other = LGRECO_CUT_SETTING_INIT;
            const lgreco_status status =
                lgreco_cut_setting_from_bytes(context, again, sizeof saved, &other, &forward, &backward);
            STATUS(at < 4 ? LGRECO_SAVED_STATE : LGRECO_CHECKSUM, status);
            CHECK(other.forward == NULL && other.batch == 0);
        }
    }
    saved[0] ^= 1;
    STATUS(LGRECO_SAVED_STATE, lgreco_cut_setting_from_bytes(context, saved, sizeof saved, &read, &forward, &backward));
    lgreco_cut_setting senseless = setting;
    senseless.in_flight = 0;
    STATUS(LGRECO_PARAMETER, lgreco_cut_setting_to_bytes(context, &senseless, saved, sizeof saved));
}

static void remembered(void) {
    lgreco_link link = LGRECO_LINK_INIT;
    link.memory = LGRECO_LINK_MEMORY_SAMPLES;
    link.rows = LGRECO_ROWS_F32;
    const lgreco_cut_setting setting = setting_of(&link, NULL);
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
    lgreco_link link = LGRECO_LINK_INIT;
    lgreco_cut_setting setting = setting_of(&link, NULL);
    STATUS(LGRECO_UNKNOWN_CONSTANT, lgreco_cut_create(context, &setting, 2, 0, &none));
    CHECK(none == NULL);
    setting.features = 0;
    STATUS(LGRECO_PARAMETER, lgreco_cut_create(context, &setting, LGRECO_END_UPSTREAM, 0, &none));
    setting = setting_of(&link, NULL);
    setting.in_flight = 0;
    STATUS(LGRECO_PARAMETER, lgreco_cut_create(context, &setting, LGRECO_END_UPSTREAM, 0, &none));
    setting = setting_of(&link, NULL);
    link.bits = 264;
    STATUS(LGRECO_PARAMETER, lgreco_cut_create(context, &setting, LGRECO_END_UPSTREAM, 0, &none));
    TEXT("bits is 264", lgreco_context_message(context));
    link = (lgreco_link)LGRECO_LINK_INIT;
    link.memory = LGRECO_LINK_MEMORY_MIXED;
    STATUS(LGRECO_FEEDBACK_RULE, lgreco_cut_create(context, &setting, LGRECO_END_UPSTREAM, 0, &none));
    uint32_t *const codes[] = {&link.codec, &link.memory, &link.storage, &link.rows, &link.values, &link.scale};
    const uint32_t codecs[] = {99, 1, 1, 1, 0, 2}, memories[] = {0, 99, 1, 4, 0, 0};
    for (int i = 0; i < 6; i++) {
        link = (lgreco_link)LGRECO_LINK_INIT;
        link.codec = codecs[i];
        link.memory = memories[i];
        *codes[i] = 99;
        STATUS(LGRECO_UNKNOWN_CONSTANT, lgreco_cut_create(context, &setting, LGRECO_END_UPSTREAM, 0, &none));
    }
    // Ends of different generations do not understand each other.
    setting = setting_of(NULL, NULL);
    Ends ends = ends_of(&setting);
    lgreco_cut *later = NULL;
    size_t length = 0;
    uint64_t ticket = 0;
    OK(lgreco_cut_create(context, &setting, LGRECO_END_DOWNSTREAM, 2, &later));
    OK(lgreco_cut_send_activations(ends.above, activations, LGRECO_DTYPE_F32, BATCH, NULL, message, sizeof message, &length,
                                   &ticket));
    STATUS(LGRECO_OUT_OF_STEP, lgreco_cut_receive(later, message, length, received, VALUES, &ticket));
    OK(lgreco_cut_destroy(&later));
    destroy(&ends);
}

int main(void) {
    context = new_context();
    every_field_counts();
    identified();
    fill(activations, VALUES, 3);
    lost_and_repeated_messages();
    evaluation();
    saved_ends();
    saved_settings();
    remembered();
    settings_refused();
    lgreco_context_destroy(&context);
    return report("cut");
}
