// Payloads, feedback and saved state; every option of a compressor and of a setting makes a difference.
#include "check.h"

#include <math.h>

enum { ROWS = 40, COLS = 50, ELEMENTS = ROWS * COLS };

static const size_t DIMS[] = {ROWS, COLS};
static float values[ELEMENTS];
static lgreco_context *context;

static lgreco_layer layer(void) {
    lgreco_layer layer = LGRECO_LAYER_INIT;
    layer.name = "fc1.weight";
    layer.dims = DIMS;
    layer.dims_len = 2;
    return layer;
}

static lgreco_compressor *create(lgreco_setting setting, lgreco_compressor_options options) {
    const lgreco_layer one = layer();
    lgreco_compressor *compressor = NULL;
    OK(lgreco_compressor_create(context, &one, &setting, &options, &compressor));
    return compressor;
}

typedef struct {
    size_t length;
    uint8_t bytes[20000];
} Payload;

static void encode(lgreco_compressor *compressor, uint32_t step, Payload *payload) {
    size_t bound = 0;
    OK(lgreco_compressor_bound(compressor, &bound));
    CHECK(bound <= sizeof payload->bytes);
    memset(payload->bytes, 0xa5, sizeof payload->bytes);
    OK(lgreco_compressor_encode(compressor, step, values, payload->bytes, bound, &payload->length));
    CHECK(payload->length <= bound && payload->bytes[bound] == 0xa5);
}

static Payload first(lgreco_setting setting, lgreco_compressor_options options, uint32_t step) {
    lgreco_compressor *compressor = create(setting, options);
    Payload payload;
    encode(compressor, step, &payload);
    lgreco_compressor_destroy(&compressor);
    return payload;
}

static int equal(const Payload *a, const Payload *b) {
    return a->length == b->length && memcmp(a->bytes, b->bytes, a->length) == 0;
}

// Golden payloads of tests/golden/v0.1/payloads.json.
static void golden(void) {
    static const float from[] = {0.5f,   -1.0f, 0.0f, 0.25f, -0.0f,   3.0f,      -6.0f, 0.001f, -0.75f, 2.5f, 1.25f, -0.125f,
                                 0.0625f, -2.0f, 1.0f, 0.3125f, -0.6f, 0.2f, 1.75f, -1.5f, 0.9f, -0.05f, 0.7f, -2.25f};
    static const uint8_t topk[] = {0x4c, 1, 2, 8, 3, 0, 0, 0, 4, 0, 0, 0, 6, 0, 0, 0,
                                   0, 0, 0x40, 0x40, 0, 0, 0xc0, 0xc0, 0, 0, 0x20, 0x40, 0x19, 0x16};
    const size_t dims[] = {4, 6};
    lgreco_layer one = layer();
    one.dims = dims;
    lgreco_setting setting = LGRECO_SETTING_INIT;
    setting.method = LGRECO_METHOD_TOPK;
    setting.keep = 3;
    lgreco_compressor *compressor = NULL;
    uint8_t payload[64];
    size_t length = 0;
    OK(lgreco_compressor_create(context, &one, &setting, NULL, &compressor));
    OK(lgreco_compressor_encode(compressor, 0, from, payload, sizeof payload, &length));
    CHECK(length == sizeof topk && memcmp(payload, topk, sizeof topk) == 0);
    float decoded[24];
    OK(lgreco_compressor_decode(compressor, topk, sizeof topk, decoded, 24));
    for (int i = 0; i < 24; i++) CHECK(decoded[i] == (fabsf(from[i]) >= 2.5f ? from[i] : 0.0f));
    lgreco_compressor_destroy(&compressor);
}

static void every_field_of_a_setting_counts(void) {
    const lgreco_compressor_options none = LGRECO_COMPRESSOR_OPTIONS_INIT;
    lgreco_setting base = LGRECO_SETTING_INIT;
    const Payload dense = first(base, none, 0);
    CHECK(dense.length == 16 + 4 * ELEMENTS);

    base.method = LGRECO_METHOD_QSGD;
    const Payload qsgd = first(base, none, 0);
    CHECK(qsgd.length == 16 + 4 * 4 + ELEMENTS / 2);
    lgreco_setting changed = base;
    changed.bits = 5;
    CHECK(first(changed, none, 0).length == 16 + 4 * 4 + ELEMENTS * 5 / 8);
    changed = base;
    changed.bucket = 100;
    CHECK(first(changed, none, 0).length == 16 + 4 * 20 + ELEMENTS / 2);
    changed = base;
    changed.scale = LGRECO_SCALE_MIN_MAX;
    CHECK(first(changed, none, 0).length == 16 + 8 * 4 + ELEMENTS / 2);
    changed = base;
    changed.rounding = LGRECO_ROUNDING_NEAREST;
    const Payload nearest = first(changed, none, 0);
    CHECK(!equal(&nearest, &qsgd));
    // Fields of other methods do not matter.
    changed = base;
    changed.keep = changed.rank = changed.iterations = 7;
    changed.values = LGRECO_DTYPE_F16;
    const Payload same = first(changed, none, 0);
    CHECK(equal(&same, &qsgd));

    base.method = LGRECO_METHOD_TOPK;
    base.keep = 100;
    const Payload topk = first(base, none, 0);
    changed = base;
    changed.keep = 101;
    CHECK(first(changed, none, 0).length > topk.length);
    changed = base;
    changed.values = LGRECO_DTYPE_BF16;
    CHECK(first(changed, none, 0).length == topk.length - 200);

    base.method = LGRECO_METHOD_POWERSGD;
    const Payload power = first(base, none, 0);
    CHECK(power.length == 16 + 4 * 4 * (ROWS + COLS));
    changed = base;
    changed.rank = 3;
    CHECK(first(changed, none, 0).length == 16 + 4 * 3 * (ROWS + COLS));
    changed = base;
    changed.iterations = 3;
    const Payload more = first(changed, none, 0);
    CHECK(more.length == power.length && !equal(&more, &power));

    base.method = LGRECO_METHOD_LOCO;
    const Payload loco = first(base, none, 0);
    CHECK(loco.length == 16 + 4 * 4 + ELEMENTS / 2);
    changed = base;
    changed.group = 100;
    CHECK(first(changed, none, 0).length == 16 + 4 * 20 + ELEMENTS / 2);

    // TopK's payload, for a worker by itself the same bytes.
    base.method = LGRECO_METHOD_CLT_K;
    const Payload clt = first(base, none, 0);
    CHECK(equal(&clt, &topk));
    changed = base;
    changed.keep = 101;
    CHECK(first(changed, none, 0).length > clt.length);
}

static uint32_t sent(const Payload *payload) {
    return payload->bytes[4] | (uint32_t)payload->bytes[5] << 8 | (uint32_t)payload->bytes[6] << 16;
}

// Payloads whose length the values decide are shorter than their bound, and their header tells how many elements they hold.
static void every_field_of_variable_settings_counts(void) {
    const lgreco_compressor_options none = LGRECO_COMPRESSOR_OPTIONS_INIT;
    lgreco_setting base = LGRECO_SETTING_INIT, changed;
    base.method = LGRECO_METHOD_HARD_THRESHOLD;
    base.lambda = 0.75f;
    const Payload hard = first(base, none, 0);
    uint32_t reach = 0;
    for (int i = 0; i < ELEMENTS; i++) reach += fabsf(values[i]) >= 0.75f;
    CHECK(sent(&hard) == reach && hard.bytes[2] == LGRECO_METHOD_TOPK);
    changed = base;
    changed.lambda = 2;
    const Payload empty = first(changed, none, 0);
    CHECK(empty.length == 16 && sent(&empty) == 0);
    changed = base;
    changed.values = LGRECO_DTYPE_F16;
    CHECK(first(changed, none, 0).length == hard.length - 2 * reach);

    base.method = LGRECO_METHOD_SIDCO;
    const Payload sidco = first(base, none, 0);
    CHECK(sent(&sidco) >= ELEMENTS / 200 && sent(&sidco) <= ELEMENTS / 50);  // half to twice one per cent
    changed = base;
    changed.density = 0.2;
    const Payload denser = first(changed, none, 0);
    CHECK(sent(&denser) >= ELEMENTS / 10 && sent(&denser) <= 2 * ELEMENTS / 5);
    // Where the values are even, the three fits and further stages estimate differently.
    for (uint32_t fit = LGRECO_SIDCO_FIT_GAMMA_PARETO; fit <= LGRECO_SIDCO_FIT_PARETO; fit++) {
        lgreco_setting other = changed;
        other.fit = fit;
        const Payload fitted = first(other, none, 0);
        CHECK(sent(&fitted) != sent(&denser));
    }
    lgreco_setting staged = changed;
    staged.stages = 2;
    const Payload second = first(staged, none, 0);
    CHECK(sent(&second) != sent(&denser));
    changed.values = LGRECO_DTYPE_BF16;
    CHECK(first(changed, none, 0).length == denser.length - 2 * sent(&denser));

    base.method = LGRECO_METHOD_ADACOMP;
    const Payload ada = first(base, none, 0);
    CHECK(ada.bytes[2] == LGRECO_METHOD_ADACOMP && sent(&ada) > 0);
    changed = base;
    changed.bin = 50;
    const Payload small = first(changed, none, 0);
    CHECK(!equal(&small, &ada));

    // Fields of other methods are not looked at; their own are.
    lgreco_compressor *compressor = NULL;
    const lgreco_layer one = layer();
    const uint32_t methods[] = {LGRECO_METHOD_HARD_THRESHOLD, LGRECO_METHOD_SIDCO, LGRECO_METHOD_SIDCO,
                                LGRECO_METHOD_ADACOMP,        LGRECO_METHOD_LOCO,  LGRECO_METHOD_CLT_K,
                                LGRECO_METHOD_QUANTISED_TOPK};
    for (int i = 0; i < 7; i++) {
        lgreco_setting wrong = LGRECO_SETTING_INIT;
        wrong.method = methods[i];
        if (i == 1) wrong.density = NAN;
        wrong.stages = i != 2;
        wrong.bin = wrong.group = wrong.keep = 0;
        STATUS(LGRECO_PARAMETER, lgreco_compressor_create(context, &one, &wrong, NULL, &compressor));
    }
    changed = (lgreco_setting)LGRECO_SETTING_INIT;
    changed.method = LGRECO_METHOD_SIDCO;
    changed.fit = 3;
    STATUS(LGRECO_UNKNOWN_CONSTANT, lgreco_compressor_create(context, &one, &changed, NULL, &compressor));
    TEXT("fit is 3, which is none of its constants", lgreco_context_message(context));
    changed.method = 7;
    STATUS(LGRECO_UNKNOWN_CONSTANT, lgreco_compressor_create(context, &one, &changed, NULL, &compressor));
}

static void random_bits_are_named(void) {
    lgreco_setting setting = LGRECO_SETTING_INIT;
    setting.method = LGRECO_METHOD_QSGD;
    const lgreco_compressor_options base = LGRECO_COMPRESSOR_OPTIONS_INIT;
    const Payload one = first(setting, base, 3), again = first(setting, base, 3), next = first(setting, base, 4);
    CHECK(equal(&one, &again) && !equal(&one, &next));
    lgreco_compressor_options changed = base;
    changed.seed = (uint64_t)1 << 40;
    const Payload seed = first(setting, changed, 3);
    changed = base;
    changed.layer_index = 1;
    const Payload index = first(setting, changed, 3);
    changed = base;
    changed.rank = 1;
    const Payload rank = first(setting, changed, 3);
    CHECK(!equal(&one, &seed) && !equal(&one, &index) && !equal(&one, &rank));
    CHECK(!equal(&seed, &index) && !equal(&index, &rank));
}

static double memory_norm(lgreco_compressor *compressor, uint64_t *steps) {
    double norm = 0;
    OK(lgreco_compressor_memory_norm(compressor, &norm, steps));
    return norm;
}

// What is sent and what is remembered are together all there was.
static void residuals(void) {
    static float sent[ELEMENTS], decoded[ELEMENTS], memory[ELEMENTS], wanted[ELEMENTS];
    lgreco_setting setting = LGRECO_SETTING_INIT;
    setting.method = LGRECO_METHOD_TOPK;
    setting.keep = 50;
    lgreco_compressor_options options = LGRECO_COMPRESSOR_OPTIONS_INIT;
    options.feedback = LGRECO_FEEDBACK_RESIDUAL;
    lgreco_compressor *compressor = create(setting, options);
    Payload payload;
    memset(sent, 0, sizeof sent);
    memset(wanted, 0, sizeof wanted);
    for (uint32_t step = 0; step < 5; step++) {
        fill(values, ELEMENTS, step);
        encode(compressor, step, &payload);
        OK(lgreco_compressor_decode(compressor, payload.bytes, payload.length, decoded, ELEMENTS));
        for (int i = 0; i < ELEMENTS; i++) sent[i] += decoded[i], wanted[i] += values[i];
    }
    OK(lgreco_compressor_memory(compressor, memory, ELEMENTS));
    double worst = 0, norm = 0;
    for (int i = 0; i < ELEMENTS; i++) {
        worst = fmax(worst, fabs((double)sent[i] + memory[i] - wanted[i]));
        norm += pow(memory[i], 2);
    }
    uint64_t steps = 0;
    CHECK(worst < 1e-5 && fabs(memory_norm(compressor, &steps) - norm) < 1e-9 * norm && steps == 5);

    // A refused gradient changes nothing.
    values[9] = NAN;
    size_t length = 12345;
    STATUS(LGRECO_NON_FINITE,
           lgreco_compressor_encode(compressor, 5, values, payload.bytes, sizeof payload.bytes, &length));
    TEXT("layer `fc1.weight`: element 9 is NaN", lgreco_compressor_message(compressor));
    CHECK(length == 12345 && memory_norm(compressor, &steps) > 0 && steps == 5);
    values[9] = 0;

    OK(lgreco_compressor_rescale_memory(compressor, 5, 2.0f));
    CHECK(fabs(memory_norm(compressor, &steps) - 4 * norm) < 1e-9 * norm);
    STATUS(LGRECO_PARAMETER, lgreco_compressor_rescale_memory(compressor, 5, 0.0f));
    memset(memory, 0, sizeof memory);
    OK(lgreco_compressor_set_memory(compressor, 5, memory, ELEMENTS));
    CHECK(memory_norm(compressor, &steps) == 0);
    memory[3] = INFINITY;
    STATUS(LGRECO_OVERFLOW, lgreco_compressor_set_memory(compressor, 5, memory, ELEMENTS));
    CHECK(memory_norm(compressor, &steps) == 0);

    // A new setting keeps the memory and may need a larger workspace.
    encode(compressor, 6, &payload);
    const double before = memory_norm(compressor, &steps);
    setting.method = LGRECO_METHOD_POWERSGD;
    OK(lgreco_compressor_set_setting(compressor, &setting));
    CHECK(before > 0 && memory_norm(compressor, &steps) == before);
    encode(compressor, 7, &payload);
    CHECK(payload.bytes[2] == LGRECO_METHOD_POWERSGD);
    setting.rank = 0;
    STATUS(LGRECO_PARAMETER, lgreco_compressor_set_setting(compressor, &setting));
    encode(compressor, 8, &payload);
    CHECK(payload.bytes[2] == LGRECO_METHOD_POWERSGD);
    lgreco_compressor_destroy(&compressor);
    fill(values, ELEMENTS, 1);
}

// The squared norm of the memory after three steps.
static double after(lgreco_compressor_options options) {
    lgreco_setting setting = LGRECO_SETTING_INIT;
    setting.method = LGRECO_METHOD_TOPK;
    setting.keep = 50;
    lgreco_compressor *compressor = create(setting, options);
    Payload payload;
    uint64_t steps = 0;
    for (uint32_t step = 0; step < 3; step++) encode(compressor, step, &payload);
    const double norm = memory_norm(compressor, &steps);
    lgreco_compressor_destroy(&compressor);
    return norm;
}

static void every_option_of_feedback_counts(void) {
    lgreco_compressor_options base = LGRECO_COMPRESSOR_OPTIONS_INIT;
    base.feedback = LGRECO_FEEDBACK_RESIDUAL;
    const double classic = after(base);
    lgreco_compressor_options changed = base;
    changed.gain = 0.5f;
    CHECK(after(changed) < 0.5 * classic);
    changed = base;
    changed.reset_every = 3;
    CHECK(after(changed) == 0);
    changed = base;
    changed.storage = LGRECO_STORAGE_BF16;
    const double bf16 = after(changed);
    changed.storage = LGRECO_STORAGE_INT8;
    const double int8 = after(changed);
    CHECK(bf16 != classic && int8 != classic && int8 != bf16);

    const lgreco_layer one = layer();
    lgreco_setting setting = LGRECO_SETTING_INIT;
    lgreco_compressor *compressor = NULL;
    changed = base;
    changed.gain = 1.5f;
    STATUS(LGRECO_PARAMETER, lgreco_compressor_create(context, &one, &setting, &changed, &compressor));
    uint32_t *const codes[] = {&changed.feedback, &changed.storage};
    for (int i = 0; i < 2; i++) {
        changed = base;
        *codes[i] = 5;
        STATUS(LGRECO_UNKNOWN_CONSTANT, lgreco_compressor_create(context, &one, &setting, &changed, &compressor));
        CHECK(compressor == NULL);
    }
}

// What changes on the way is refused before it is decoded.
static void sealed_payloads(void) {
    uint8_t payload[3 + LGRECO_SEAL_BYTES] = {1, 2, 3};
    size_t length = 0;
    STATUS(LGRECO_LENGTH, lgreco_payload_seal(context, payload, 3, sizeof payload - 1, &length));
    CHECK(length == 0 && payload[3] == 0);
    OK(lgreco_payload_seal(context, payload, 3, sizeof payload, &length));
    CHECK(length == sizeof payload);
    OK(lgreco_payload_unseal(context, payload, sizeof payload, &length));
    CHECK(length == 3);
    STATUS(LGRECO_CHECKSUM, lgreco_payload_unseal(context, payload, sizeof payload - 1, &length));
    STATUS(LGRECO_LENGTH, lgreco_payload_unseal(context, payload, LGRECO_SEAL_BYTES - 1, &length));
    payload[1] ^= 4;
    STATUS(LGRECO_CHECKSUM, lgreco_payload_unseal(context, payload, sizeof payload, &length));
}

// Files have settings as text, and ranks that compress by hand send them to one another.
static void settings_as_text(void) {
    char text[LGRECO_SETTING_TEXT_BYTES];
    size_t length = 0;
    lgreco_setting setting = LGRECO_SETTING_INIT, read = LGRECO_SETTING_INIT;
    const char *const texts[] = {"dense", "qsgd 4", "qsgd 1 bucket 128 min-max nearest", "topk 786 f16",
                                 "powersgd 4 iterations 2", "clt-k 100", "hard-threshold 0.75 bf16", "adacomp 50",
                                 "loco 256", "sidco 0.01 gamma-pareto stages 3"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        OK(lgreco_setting_from_text(context, texts[i], &read));
        OK(lgreco_setting_to_text(context, &read, text, sizeof text, &length));
        TEXT(texts[i], text);
        CHECK(length == strlen(text));
    }
    OK(lgreco_setting_from_text(context, " qsgd 1 nearest min-max bucket 128 ", &setting));
    CHECK(setting.method == LGRECO_METHOD_QSGD && setting.bits == 1 && setting.bucket == 128);
    CHECK(setting.scale == LGRECO_SCALE_MIN_MAX && setting.rounding == LGRECO_ROUNDING_NEAREST);
    STATUS(LGRECO_LENGTH, lgreco_setting_to_text(context, &setting, text, strlen(texts[2]), &length));
    CHECK(length == strlen(texts[2]));
    STATUS(LGRECO_LENGTH, lgreco_setting_to_text(context, &setting, NULL, 0, &length));

    STATUS(LGRECO_SETTING_WORD, lgreco_setting_from_text(context, "qsgd 4 buckt 128", &read));
    TEXT("setting: `buckt` is unknown: is `bucket` meant?", lgreco_context_message(context));
    STATUS(LGRECO_SETTING_SYNTAX, lgreco_setting_from_text(context, "topk 1%", &read));
    STATUS(LGRECO_SETTING_SYNTAX, lgreco_setting_from_text(context, "", &read));
    STATUS(LGRECO_PARAMETER, lgreco_setting_from_text(context, "qsgd 9", &read));
    STATUS(LGRECO_TEXT, lgreco_setting_from_text(context, "qsgd \xff", &read));
    // A failed call leaves the struct as it was.
    CHECK(read.method == LGRECO_METHOD_SIDCO && read.stages == 3);
    setting.bits = 9;
    STATUS(LGRECO_PARAMETER, lgreco_setting_to_text(context, &setting, text, sizeof text, &length));
    setting.method = 77;
    STATUS(LGRECO_UNKNOWN_CONSTANT, lgreco_setting_to_text(context, &setting, text, sizeof text, &length));
}

// With few bits QSGD adds more error than it is given, and what is remembered would grow until it overflows.
static void feedback_that_diverges_is_refused(void) {
    lgreco_layer wide = layer();
    const size_t dims[] = {32, 32};
    wide.dims = dims;
    lgreco_setting setting = LGRECO_SETTING_INIT;
    lgreco_compressor_options options = LGRECO_COMPRESSOR_OPTIONS_INIT;
    lgreco_compressor *compressor = NULL;
    setting.method = LGRECO_METHOD_QSGD;
    options.feedback = LGRECO_FEEDBACK_RESIDUAL;
    for (setting.bits = 1; setting.bits <= 8; setting.bits++) {
        const lgreco_status expected = setting.bits < 4 ? LGRECO_NOT_CONTRACTIVE : LGRECO_OK;
        STATUS(expected, lgreco_compressor_create(context, &wide, &setting, &options, &compressor));
        STATUS(expected, lgreco_feedback_check(context, &wide, &setting, &options));
        CHECK((compressor == NULL) == (expected != LGRECO_OK));
        if (compressor) {
            lgreco_setting two_bits = setting;
            two_bits.bits = 2;
            STATUS(LGRECO_NOT_CONTRACTIVE, lgreco_compressor_set_setting(compressor, &two_bits));
            OK(lgreco_compressor_destroy(&compressor));
        }
    }
    setting.bits = 2;
    STATUS(LGRECO_NOT_CONTRACTIVE, lgreco_feedback_check(context, &wide, &setting, &options));
    TEXT("layer `fc1.weight`: the compressor's squared error is ", lgreco_context_message(context));
    OK(lgreco_feedback_check(context, &wide, &setting, NULL));
    // Of values, what they say: equal ones are sent exactly, one among small ones is not.
    float flat[32 * 32];
    for (int i = 0; i < 32 * 32; i++) flat[i] = 0.1f;
    wide.values = flat;
    OK(lgreco_feedback_check(context, &wide, &setting, &options));
    flat[0] = flat[600] = 1.0f;
    STATUS(LGRECO_NOT_CONTRACTIVE, lgreco_feedback_check(context, &wide, &setting, &options));
}

static void saved_state(void) {
    lgreco_setting setting = LGRECO_SETTING_INIT;
    setting.method = LGRECO_METHOD_QSGD;
    setting.bits = 4;
    lgreco_compressor_options options = LGRECO_COMPRESSOR_OPTIONS_INIT;
    options.feedback = LGRECO_FEEDBACK_RESIDUAL;
    options.storage = LGRECO_STORAGE_INT8;
    lgreco_compressor *straight = create(setting, options), *stopped = create(setting, options);
    Payload one, two;
    for (uint32_t step = 0; step < 3; step++) {
        encode(straight, step, &one);
        encode(stopped, step, &two);
    }
    size_t length = 0;
    STATUS(LGRECO_LENGTH, lgreco_compressor_save(stopped, NULL, 0, &length));
    uint8_t *saved = malloc(length);
    STATUS(LGRECO_LENGTH, lgreco_compressor_save(stopped, saved, length - 1, &length));
    OK(lgreco_compressor_save(stopped, saved, length, &length));
    lgreco_compressor_destroy(&stopped);
    stopped = create(setting, options);
    OK(lgreco_compressor_load(stopped, saved, length));
    for (uint32_t step = 3; step < 6; step++) {
        encode(straight, step, &one);
        encode(stopped, step, &two);
        CHECK(equal(&one, &two));
    }

    // Every truncation is refused, and leaves the memory alone.
    uint64_t steps = 0;
    const double norm = memory_norm(stopped, &steps);
    for (size_t shorter = 0; shorter < length; shorter += shorter < 64 ? 1 : 97)
        STATUS(shorter < 40 ? LGRECO_LENGTH : LGRECO_CHECKSUM, lgreco_compressor_load(stopped, saved, shorter));
    // So is every flipped bit: in the magic and the version as no state of this version.
    for (size_t bit = 0; bit < 8 * length; bit++) {
        saved[bit / 8] ^= (uint8_t)(1 << bit % 8);
        STATUS(bit < 24 ? LGRECO_SAVED_STATE : LGRECO_CHECKSUM, lgreco_compressor_load(stopped, saved, length));
        saved[bit / 8] ^= (uint8_t)(1 << bit % 8);
    }
    CHECK(memory_norm(stopped, &steps) == norm && steps == 6);

    // Nor does the state of another layer or other options fit.
    options.gain = 0.5f;
    lgreco_compressor *other = create(setting, options);
    STATUS(LGRECO_SAVED_STATE, lgreco_compressor_load(other, saved, length));
    TEXT("layer `fc1.weight`: the saved state is that of other feedback options", lgreco_compressor_message(other));
    lgreco_compressor_destroy(&other);
    const size_t turned[] = {COLS, ROWS};
    lgreco_layer layer_of = layer();
    layer_of.dims = turned;
    options.gain = 1.0f;
    OK(lgreco_compressor_create(context, &layer_of, &setting, &options, &other));
    STATUS(LGRECO_SAVED_STATE, lgreco_compressor_load(other, saved, length));
    lgreco_compressor_destroy(&other);
    lgreco_compressor_destroy(&straight);
    lgreco_compressor_destroy(&stopped);
    free(saved);
}

static void hostile_payloads(void) {
    static float decoded[ELEMENTS];
    lgreco_setting setting = LGRECO_SETTING_INIT;
    const lgreco_compressor_options none = LGRECO_COMPRESSOR_OPTIONS_INIT;
    const uint32_t methods[] = {LGRECO_METHOD_DENSE, LGRECO_METHOD_QSGD,  LGRECO_METHOD_TOPK,
                                LGRECO_METHOD_POWERSGD, LGRECO_METHOD_ADACOMP, LGRECO_METHOD_LOCO,
                                LGRECO_METHOD_CLT_K, LGRECO_METHOD_HARD_THRESHOLD, LGRECO_METHOD_SIDCO};
    for (size_t i = 0; i < sizeof methods / sizeof *methods; i++) {
        setting.method = methods[i];
        setting.keep = 37;
        setting.lambda = 0.75f;
        lgreco_compressor *compressor = create(setting, none);
        Payload payload;
        encode(compressor, 0, &payload);
        for (size_t shorter = 0; shorter < payload.length; shorter += shorter < 100 ? 1 : 61) {
            // On the heap, so that reading past the end is found.
            uint8_t *cut = malloc(shorter + 1);
            memcpy(cut, payload.bytes, shorter);
            const lgreco_status status = lgreco_compressor_decode(compressor, cut, shorter, decoded, ELEMENTS);
            CHECK(status == LGRECO_LENGTH || status == LGRECO_PAYLOAD_BODY);
            free(cut);
        }
        for (size_t at = 0; at < payload.length; at += at < 64 ? 1 : 131) {
            Payload flipped = payload;
            flipped.bytes[at] ^= 0xff;
            lgreco_compressor_decode(compressor, flipped.bytes, flipped.length, decoded, ELEMENTS);
        }
        payload.bytes[0] = 'M';
        STATUS(LGRECO_PAYLOAD_HEADER,
               lgreco_compressor_decode(compressor, payload.bytes, payload.length, decoded, ELEMENTS));
        TEXT("layer `fc1.weight`: payload: magic is 0x4d, expected 0x4c", lgreco_compressor_message(compressor));
        payload.bytes[0] = 'L';
        const uint8_t method = payload.bytes[2];
        payload.bytes[2] = 99;
        STATUS(LGRECO_PAYLOAD_FIELD,
               lgreco_compressor_decode(compressor, payload.bytes, payload.length, decoded, ELEMENTS));
        payload.bytes[2] = method;
        payload.bytes[8] ^= 1;  // another number of rows
        STATUS(LGRECO_PAYLOAD_BODY,
               lgreco_compressor_decode(compressor, payload.bytes, payload.length, decoded, ELEMENTS));
        payload.bytes[8] ^= 1;
        STATUS(LGRECO_LENGTH,
               lgreco_compressor_decode(compressor, payload.bytes, payload.length, decoded, ELEMENTS - 1));
        // What does not fit is refused, whether or not the length was known before.
        const size_t short_by_one = payload.length - 1;
        size_t length = 0;
        STATUS(LGRECO_LENGTH, lgreco_compressor_encode(compressor, 0, values, payload.bytes, short_by_one, &length));
        lgreco_compressor_destroy(&compressor);
    }
}

int main(void) {
    context = new_context();
    fill(values, ELEMENTS, 1);
    golden();
    every_field_of_a_setting_counts();
    every_field_of_variable_settings_counts();
    random_bits_are_named();
    residuals();
    every_option_of_feedback_counts();
    sealed_payloads();
    settings_as_text();
    feedback_that_diverges_is_refused();
    saved_state();
    hostile_payloads();
    lgreco_context_destroy(&context);
    return report("compress");
}
