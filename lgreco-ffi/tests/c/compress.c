// Tests payloads, error feedback and saved states. Every option of a compressor and every word of a setting has an
// effect.
#include "check.h"

#include <math.h>

enum { ROWS = 40, COLS = 50, ELEMENTS = ROWS * COLS };

static const size_t DIMS[] = {ROWS, COLS};
static float values[ELEMENTS];

static lgreco_layer layer(void) {
    lgreco_layer layer = LGRECO_LAYER_INIT;
    layer.name = "fc1.weight";
    layer.dims = DIMS;
    layer.dims_len = 2;
    return layer;
}

static lgreco_compressor *create(const char *setting, Options options) {
    const lgreco_layer one = layer();
    lgreco_compressor *compressor = NULL;
    OK(lgreco_compressor_create(NULL, &one, setting, listed(&options), &compressor));
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

static Payload first(const char *setting, Options options, uint32_t step) {
    lgreco_compressor *compressor = create(setting, options);
    Payload payload;
    encode(compressor, step, &payload);
    lgreco_compressor_destroy(&compressor);
    return payload;
}

static int equal(const Payload *a, const Payload *b) {
    return a->length == b->length && memcmp(a->bytes, b->bytes, a->length) == 0;
}

// Compares payloads with the golden payloads in tests/golden/v0.1/payloads.json.
static void golden(void) {
    static const float from[] = {0.5f,   -1.0f, 0.0f, 0.25f, -0.0f,   3.0f,      -6.0f, 0.001f, -0.75f, 2.5f, 1.25f, -0.125f,
                                 0.0625f, -2.0f, 1.0f, 0.3125f, -0.6f, 0.2f, 1.75f, -1.5f, 0.9f, -0.05f, 0.7f, -2.25f};
    static const uint8_t topk[] = {0x4c, 1, 2, 8, 3, 0, 0, 0, 4, 0, 0, 0, 6, 0, 0, 0,
                                   0, 0, 0x40, 0x40, 0, 0, 0xc0, 0xc0, 0, 0, 0x20, 0x40, 0x19, 0x16};
    const size_t dims[] = {4, 6};
    lgreco_layer one = layer();
    one.dims = dims;
    lgreco_compressor *compressor = NULL;
    uint8_t payload[64];
    size_t length = 0;
    OK(lgreco_compressor_create(NULL, &one, "topk 3", NULL, &compressor));
    OK(lgreco_compressor_encode(compressor, 0, from, payload, sizeof payload, &length));
    CHECK(length == sizeof topk && memcmp(payload, topk, sizeof topk) == 0);
    float decoded[24];
    OK(lgreco_compressor_decode(compressor, topk, sizeof topk, decoded, 24));
    for (int i = 0; i < 24; i++) CHECK(decoded[i] == (fabsf(from[i]) >= 2.5f ? from[i] : 0.0f));
    lgreco_compressor_destroy(&compressor);
}

static void every_word_of_a_setting_counts(void) {
    const Options none = OPTIONS;
    CHECK(first("dense", none, 0).length == 16 + 4 * ELEMENTS);

    const Payload qsgd = first("qsgd 4", none, 0), nearest = first("qsgd 4 nearest", none, 0);
    CHECK(qsgd.length == 16 + 4 * 4 + ELEMENTS / 2 && !equal(&nearest, &qsgd));
    CHECK(first("qsgd 5", none, 0).length == 16 + 4 * 4 + ELEMENTS * 5 / 8);
    CHECK(first("qsgd 4 bucket 100", none, 0).length == 16 + 4 * 20 + ELEMENTS / 2);
    CHECK(first("qsgd 4 min-max", none, 0).length == 16 + 8 * 4 + ELEMENTS / 2);

    const Payload topk = first("topk 100", none, 0);
    CHECK(first("topk 101", none, 0).length > topk.length);
    CHECK(first("topk 100 bf16", none, 0).length == topk.length - 200);

    const Payload power = first("powersgd 4", none, 0), more = first("powersgd 4 iterations 3", none, 0);
    CHECK(power.length == 16 + 4 * 4 * (ROWS + COLS));
    CHECK(first("powersgd 3", none, 0).length == 16 + 4 * 3 * (ROWS + COLS));
    CHECK(more.length == power.length && !equal(&more, &power));

    CHECK(first("loco 512", none, 0).length == 16 + 4 * 4 + ELEMENTS / 2);
    CHECK(first("loco 100", none, 0).length == 16 + 4 * 20 + ELEMENTS / 2);

    // With a single worker, CLT-k sends the same bytes as TopK.
    const Payload clt = first("clt-k 100", none, 0);
    CHECK(equal(&clt, &topk));
    CHECK(first("clt-k 101", none, 0).length > clt.length);
}

static uint32_t sent(const Payload *payload) {
    return payload->bytes[4] | (uint32_t)payload->bytes[5] << 8 | (uint32_t)payload->bytes[6] << 16;
}

// Tests methods whose payload length depends on the values. The payload is shorter than its bound, and its header
// contains the number of sent elements.
static void every_word_of_variable_settings_counts(void) {
    const Options none = OPTIONS;
    const uint8_t topk = first("topk 1", none, 0).bytes[2];
    const Payload hard = first("hard-threshold 0.75", none, 0), empty = first("hard-threshold 2", none, 0);
    uint32_t reach = 0;
    for (int i = 0; i < ELEMENTS; i++) reach += fabsf(values[i]) >= 0.75f;
    CHECK(sent(&hard) == reach && hard.bytes[2] == topk);
    CHECK(empty.length == 16 && sent(&empty) == 0);
    CHECK(first("hard-threshold 0.75 f16", none, 0).length == hard.length - 2 * reach);

    const Payload sidco = first("sidco 0.01", none, 0), denser = first("sidco 0.2", none, 0);
    CHECK(sent(&sidco) >= ELEMENTS / 200 && sent(&sidco) <= ELEMENTS / 50);  // half to twice one per cent
    CHECK(sent(&denser) >= ELEMENTS / 10 && sent(&denser) <= 2 * ELEMENTS / 5);
    // For uniformly distributed values, SIDCo's three fits and an additional stage give different thresholds.
    const char *const others[] = {"sidco 0.2 gamma-pareto", "sidco 0.2 pareto", "sidco 0.2 stages 2"};
    for (int i = 0; i < 3; i++) {
        const Payload other = first(others[i], none, 0);
        CHECK(sent(&other) != sent(&denser));
    }
    CHECK(first("sidco 0.2 bf16", none, 0).length == denser.length - 2 * sent(&denser));

    const Payload ada = first("adacomp 500", none, 0), small = first("adacomp 50", none, 0);
    CHECK(ada.bytes[2] != topk && sent(&ada) > 0 && !equal(&small, &ada));
}

// Tests texts that are not settings. Other ranks or files may contain such texts.
static void texts_that_are_no_settings(void) {
    const lgreco_layer one = layer();
    lgreco_compressor *compressor = create("dense", (Options)OPTIONS), *none = NULL;
    OK(lgreco_compressor_set_setting(compressor, " qsgd 1 nearest min-max bucket 128 "));
    const struct {
        lgreco_status status;
        const char *text;
    } wrong[] = {
        {LGRECO_SETTING_WORD, "qsdg 4"},       {LGRECO_SETTING_WORD, "qsgd 4 buckt 128"}, {LGRECO_SETTING_SYNTAX, ""},
        {LGRECO_SETTING_SYNTAX, "topk 1%"},    {LGRECO_PARAMETER, "qsgd 9"},              {LGRECO_TEXT, "qsgd \xff"},
        {LGRECO_PARAMETER, "sidco nan"},       {LGRECO_PARAMETER, "sidco 0.1 stages 0"},  {LGRECO_PARAMETER, "adacomp 0"},
        {LGRECO_PARAMETER, "hard-threshold 0"}, {LGRECO_PARAMETER, "loco 0"},             {LGRECO_PARAMETER, "clt-k 0"},
        {LGRECO_PARAMETER, "topk 0 bits 4"},
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        STATUS(wrong[i].status, lgreco_compressor_create(NULL, &one, wrong[i].text, NULL, &none));
        STATUS(wrong[i].status, lgreco_compressor_set_setting(compressor, wrong[i].text));
    }
    STATUS(LGRECO_SETTING_WORD, lgreco_compressor_set_setting(compressor, "qsgd 4 buckt 128"));
    TEXT("layer `fc1.weight`: setting: `buckt` is unknown: is `bucket` meant?", lgreco_message());
    // The text has no NUL, and is as long as a lgreco_setting. No byte after the text may be read.
    char *const endless = malloc(LGRECO_SETTING_TEXT_BYTES);
    memset(endless, ' ', LGRECO_SETTING_TEXT_BYTES);
    STATUS(LGRECO_TEXT, lgreco_compressor_set_setting(compressor, endless));
    free(endless);
    lgreco_compressor_destroy(&compressor);
}

static void random_bits_are_named(void) {
    const char *const setting = "qsgd 4";
    const Options base = OPTIONS;
    const Payload one = first(setting, base, 3), again = first(setting, base, 3), next = first(setting, base, 4);
    CHECK(equal(&one, &again) && !equal(&one, &next));
    Options changed = base;
    set(&changed, "random_seed", "1099511627776");
    const Payload seed = first(setting, changed, 3);
    changed = base;
    set(&changed, "layer_index", "1");
    const Payload index = first(setting, changed, 3);
    changed = base;
    set(&changed, "rank", "1");
    const Payload rank = first(setting, changed, 3);
    CHECK(!equal(&one, &seed) && !equal(&one, &index) && !equal(&one, &rank));
    CHECK(!equal(&seed, &index) && !equal(&index, &rank));
}

static double memory_norm(lgreco_compressor *compressor, uint64_t *steps) {
    double norm = 0;
    OK(lgreco_compressor_memory_norm(compressor, &norm, steps));
    return norm;
}

// The sum of the decoded payloads and the residual is the sum of the gradients.
static void residuals(void) {
    static float sent[ELEMENTS], decoded[ELEMENTS], memory[ELEMENTS], wanted[ELEMENTS];
    Options options = OPTIONS;
    set(&options, "error_feedback", "true");
    lgreco_compressor *compressor = create("topk 50", options);
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
    TEXT("layer `fc1.weight`: element 9 is NaN", lgreco_message());
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

    // A new setting keeps the residual and may need a larger workspace.
    encode(compressor, 6, &payload);
    const double before = memory_norm(compressor, &steps);
    OK(lgreco_compressor_set_setting(compressor, "powersgd 4"));
    CHECK(before > 0 && memory_norm(compressor, &steps) == before);
    encode(compressor, 7, &payload);
    const size_t power = 16 + 4 * 4 * (ROWS + COLS);
    CHECK(payload.length == power);
    STATUS(LGRECO_PARAMETER, lgreco_compressor_set_setting(compressor, "powersgd 0"));
    encode(compressor, 8, &payload);
    CHECK(payload.length == power);
    lgreco_compressor_destroy(&compressor);
    fill(values, ELEMENTS, 1);
}

// The squared norm of the residual after three steps.
static double after(Options options) {
    lgreco_compressor *compressor = create("topk 50", options);
    Payload payload;
    uint64_t steps = 0;
    for (uint32_t step = 0; step < 3; step++) encode(compressor, step, &payload);
    const double norm = memory_norm(compressor, &steps);
    lgreco_compressor_destroy(&compressor);
    return norm;
}

static void every_option_of_feedback_counts(void) {
    Options base = OPTIONS;
    set(&base, "error_feedback", "true");
    const double classic = after(base);
    Options changed = base;
    set(&changed, "gain", "0.5");
    CHECK(after(changed) < 0.5 * classic);
    changed = base;
    set(&changed, "reset_every", "3");
    CHECK(after(changed) == 0);
    changed = base;
    set(&changed, "residual_dtype", "bfloat16");
    const double bf16 = after(changed);
    set(&changed, "residual_dtype", "int8");
    const double int8 = after(changed);
    CHECK(bf16 != classic && int8 != classic && int8 != bf16);

    const lgreco_layer one = layer();
    lgreco_compressor *compressor = NULL;
    changed = base;
    set(&changed, "gain", "1.5");
    STATUS(LGRECO_PARAMETER, lgreco_compressor_create(NULL, &one, "dense", listed(&changed), &compressor));
    const char *const names[] = {"error_feedback", "residual_dtype"};
    for (int i = 0; i < 2; i++) {
        changed = base;
        set(&changed, names[i], "5");
        STATUS(LGRECO_PARAMETER, lgreco_compressor_create(NULL, &one, "dense", listed(&changed), &compressor));
        CHECK(compressor == NULL);
    }
}

// Unsealing detects a payload that was altered in transit.
static void sealed_payloads(void) {
    uint8_t payload[3 + LGRECO_SEAL_BYTES] = {1, 2, 3};
    size_t length = 0;
    STATUS(LGRECO_LENGTH, lgreco_payload_seal(payload, 3, sizeof payload - 1, &length));
    CHECK(length == 0 && payload[3] == 0);
    OK(lgreco_payload_seal(payload, 3, sizeof payload, &length));
    CHECK(length == sizeof payload);
    OK(lgreco_payload_unseal(payload, sizeof payload, &length));
    CHECK(length == 3);
    STATUS(LGRECO_CHECKSUM, lgreco_payload_unseal(payload, sizeof payload - 1, &length));
    STATUS(LGRECO_LENGTH, lgreco_payload_unseal(payload, LGRECO_SEAL_BYTES - 1, &length));
    payload[1] ^= 4;
    STATUS(LGRECO_CHECKSUM, lgreco_payload_unseal(payload, sizeof payload, &length));
}

// With few bits, QSGD's error has a larger norm than its input, and the residual would grow until it overflows.
static void feedback_that_diverges_is_refused(void) {
    lgreco_layer wide = layer();
    const size_t dims[] = {32, 32};
    wide.dims = dims;
    Options options = OPTIONS;
    lgreco_compressor *compressor = NULL;
    set(&options, "error_feedback", "true");
    for (int bits = 1; bits <= 8; bits++) {
        char setting[20];
        snprintf(setting, sizeof setting, "qsgd %d", bits);
        const lgreco_status expected = bits < 4 ? LGRECO_NOT_CONTRACTIVE : LGRECO_OK;
        STATUS(expected, lgreco_compressor_create(NULL, &wide, setting, listed(&options), &compressor));
        STATUS(expected, lgreco_feedback_check(&wide, setting, listed(&options)));
        CHECK((compressor == NULL) == (expected != LGRECO_OK));
        if (compressor) {
            STATUS(LGRECO_NOT_CONTRACTIVE, lgreco_compressor_set_setting(compressor, "qsgd 2"));
            OK(lgreco_compressor_destroy(&compressor));
        }
    }
    STATUS(LGRECO_NOT_CONTRACTIVE, lgreco_feedback_check(&wide, "qsgd 2", listed(&options)));
    TEXT("layer `fc1.weight`: the compressor's squared error is ", lgreco_message());
    OK(lgreco_feedback_check(&wide, "qsgd 2", NULL));
    // If the layer has values, the check compresses them. QSGD sends equal values exactly, but not small values beside
    // large values.
    float flat[32 * 32];
    for (int i = 0; i < 32 * 32; i++) flat[i] = 0.1f;
    wide.values = flat;
    OK(lgreco_feedback_check(&wide, "qsgd 2", listed(&options)));
    flat[0] = flat[600] = 1.0f;
    STATUS(LGRECO_NOT_CONTRACTIVE, lgreco_feedback_check(&wide, "qsgd 2", listed(&options)));
}

static void saved_state(void) {
    const char *const setting = "qsgd 4";
    Options options = OPTIONS;
    set(&options, "error_feedback", "true");
    set(&options, "residual_dtype", "int8");
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

    // Every truncated state is refused, and leaves the residual unchanged.
    uint64_t steps = 0;
    const double norm = memory_norm(stopped, &steps);
    for (size_t shorter = 0; shorter < length; shorter += shorter < 64 ? 1 : 97)
        STATUS(shorter < 40 ? LGRECO_LENGTH : LGRECO_CHECKSUM, lgreco_compressor_load(stopped, saved, shorter));
    // Every flipped bit is detected. A wrong magic number or version gives LGRECO_SAVED_STATE.
    for (size_t bit = 0; bit < 8 * length; bit++) {
        saved[bit / 8] ^= (uint8_t)(1 << bit % 8);
        STATUS(bit < 24 ? LGRECO_SAVED_STATE : LGRECO_CHECKSUM, lgreco_compressor_load(stopped, saved, length));
        saved[bit / 8] ^= (uint8_t)(1 << bit % 8);
    }
    CHECK(memory_norm(stopped, &steps) == norm && steps == 6);

    // States with another shape or other options are refused too.
    set(&options, "gain", "0.5");
    lgreco_compressor *other = create(setting, options);
    STATUS(LGRECO_SAVED_STATE, lgreco_compressor_load(other, saved, length));
    TEXT("layer `fc1.weight`: the saved state is that of other feedback options", lgreco_message());
    lgreco_compressor_destroy(&other);
    const size_t turned[] = {COLS, ROWS};
    lgreco_layer layer_of = layer();
    layer_of.dims = turned;
    set(&options, "gain", "1.0");
    OK(lgreco_compressor_create(NULL, &layer_of, setting, listed(&options), &other));
    STATUS(LGRECO_SAVED_STATE, lgreco_compressor_load(other, saved, length));
    lgreco_compressor_destroy(&other);
    lgreco_compressor_destroy(&straight);
    lgreco_compressor_destroy(&stopped);
    free(saved);
}

static void hostile_payloads(void) {
    static float decoded[ELEMENTS];
    const Options none = OPTIONS;
    const char *const settings[] = {"dense",    "qsgd 4",   "topk 37",             "powersgd 4", "adacomp 500", "eden 4",
                                    "loco 512", "clt-k 37", "hard-threshold 0.75", "sidco 0.01"};
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++) {
        lgreco_compressor *compressor = create(settings[i], none);
        Payload payload;
        encode(compressor, 0, &payload);
        for (size_t shorter = 0; shorter < payload.length; shorter += shorter < 100 ? 1 : 61) {
            // The copy is on the heap, so that sanitizers detect reads past its end.
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
        TEXT("layer `fc1.weight`: payload: magic is 0x4d, expected 0x4c", lgreco_message());
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
        // Encoding fails if the payload does not fit the buffer, whether or not its length is known in advance.
        const size_t short_by_one = payload.length - 1;
        size_t length = 0;
        STATUS(LGRECO_LENGTH, lgreco_compressor_encode(compressor, 0, values, payload.bytes, short_by_one, &length));
        lgreco_compressor_destroy(&compressor);
    }
}

int main(void) {
    fill(values, ELEMENTS, 1);
    golden();
    every_word_of_a_setting_counts();
    every_word_of_variable_settings_counts();
    texts_that_are_no_settings();
    random_bits_are_named();
    residuals();
    every_option_of_feedback_counts();
    sealed_payloads();
    feedback_that_diverges_is_refused();
    saved_state();
    hostile_payloads();
    return report("compress");
}
