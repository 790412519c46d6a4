// What the test programs share: checks that count failures and go on, and a context.
#ifndef CHECK_H
#define CHECK_H

#include <lgreco.h>
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

// The call's status is `expected`.
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

// The text begins with `start`.
#define TEXT(start, text)                                                                                    \
    do {                                                                                                     \
        const char *const found_ = (text);                                                                   \
        if (strncmp(found_, start, strlen(start)) != 0) {                                                    \
            failures++;                                                                                      \
            fprintf(stderr, "%s:%d: \"%s\", expected \"%s...\"\n", __FILE__, __LINE__, found_, start);       \
        }                                                                                                    \
    } while (0)

static inline int says(const lgreco_setting *setting, const char *text) { return strcmp(setting->text, text) == 0; }

static inline lgreco_context *new_context(void) {
    lgreco_context *context = NULL;
    OK(lgreco_context_create(NULL, &context));
    return context;
}

// Numbers without a pattern, in [-1, 1), the same on every machine.
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
