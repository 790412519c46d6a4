// Shared by the test programs: checks that count failures and continue, and options that may be changed.
#ifndef CHECK_H
#define CHECK_H

#include <lgreco.h>
#include <lgreco_cuda.h>
#include <lgreco_pipeline.h>
#include <lgreco_train.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int failures;

#define CHECK(condition)                                                         \
    do {                                                                         \
        if (!(condition)) {                                                      \
            failures++;                                                          \
            fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition);      \
        }                                                                        \
    } while (0)

// Checks that the call's status is `expected`.
#define STATUS(expected, call)                                                                                    \
    do {                                                                                                          \
        const lgreco_status found_ = (call);                                                                      \
        if (found_ != (expected)) {                                                                               \
            failures++;                                                                                           \
            fprintf(stderr, "%s:%d: %s, expected %s: %s\n", __FILE__, __LINE__, lgreco_status_name(found_),      \
                    lgreco_status_name(expected), #call);                                                         \
        }                                                                                                         \
    } while (0)
#define OK(call) STATUS(LGRECO_OK, call)

// Checks that the text begins with `start`.
#define TEXT(start, text)                                                                                    \
    do {                                                                                                     \
        const char *const found_ = (text);                                                                   \
        if (strncmp(found_, start, strlen(start)) != 0) {                                                    \
            failures++;                                                                                      \
            fprintf(stderr, "%s:%d: \"%s\", expected \"%s...\"\n", __FILE__, __LINE__, found_, start);       \
        }                                                                                                    \
    } while (0)

static inline int says(const lgreco_setting *setting, const char *text) { return strcmp(setting->text, text) == 0; }

// Options by name. A later value replaces an earlier value, and NULL removes the option.
typedef struct {
    int count;
    const char *names[40];
    char values[40][64];
    const lgreco_setting *fixed;  // of a controller, or NULL
    const uint64_t *shards;       // likewise
    uint32_t per_node;            // ranks per node, or 0
} Options;
#define OPTIONS {0, {NULL}, {{0}}, NULL, NULL, 0}

static inline void set(Options *options, const char *name, const char *value) {
    int at = 0;
    while (at < options->count && strcmp(options->names[at], name) != 0) at++;
    if (value == NULL && at == options->count) return;
    if (value == NULL) {
        const int last = --options->count;
        options->names[at] = options->names[last];
        memcpy(options->values[at], options->values[last], sizeof options->values[at]);
        return;
    }
    CHECK(at < 40 && strlen(value) < sizeof options->values[at]);
    options->names[at] = name;
    strcpy(options->values[at], value);
    if (at == options->count) options->count++;
}

static inline void set_number(Options *options, const char *name, double value) {
    char text[64];
    snprintf(text, sizeof text, "%.17g", value);
    set(options, name, text);
}

static inline const char *value_of(const Options *options, const char *name) {
    for (int at = 0; at < options->count; at++)
        if (strcmp(options->names[at], name) == 0) return options->values[at];
    return "";
}

// Returns the options as an array for calls. The array is valid until the options change, or until the fourth later
// call of this function.
static inline const char *const *listed(const Options *options) {
#ifdef __cplusplus
    static thread_local const char *lists[4][81];
    static thread_local int last;
#else
    static _Thread_local const char *lists[4][81];
    static _Thread_local int last;
#endif
    if (options == NULL) return NULL;
    const char **const list = lists[++last % 4];
    for (int at = 0; at < options->count; at++) {
        list[2 * at] = options->names[at];
        list[2 * at + 1] = options->values[at];
    }
    list[2 * options->count] = NULL;
    return list;
}

// Fills `values` with pseudo-random numbers in [-1, 1), the same on every machine.
static inline void fill(float *values, size_t count, uint32_t seed) {
    for (size_t i = 0; i < count; i++) {
        seed = seed * 1664525u + 1013904223u;
        values[i] = (float)(int32_t)seed / 2147483648.0f;
    }
}

static inline int report(const char *name) {
    if (failures > 0) fprintf(stderr, "%s: %d failures\n", name, failures);
    return failures > 0;
}

#endif
