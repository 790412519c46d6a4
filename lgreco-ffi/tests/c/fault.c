// Breaks the contract in ways that the library cannot detect. `fault read` states a wrong length, and `fault race` lets
// two calls write to the same memory. The sanitizers must report both, from inside the library.
#define _POSIX_C_SOURCE 200809L // barriers of threads
#include "check.h"

#include <pthread.h>

enum { ELEMENTS = 4096 };

static uint8_t payload[16 + 4 * ELEMENTS];
static size_t length;
static float decoded[ELEMENTS];
// If one thread ended before the other began, the sanitizer would not see a race. So each thread waits until both
// exist.
static pthread_barrier_t both_are_there;

static lgreco_compressor *new_compressor(void) {
    static const size_t dims[] = {ELEMENTS};
    lgreco_compressor *compressor = NULL;
    lgreco_layer layer = LGRECO_LAYER_INIT;
    layer.name = "fc1";
    layer.dims = dims;
    layer.dims_len = 1;
    OK(lgreco_compressor_create(NULL, &layer, "qsgd 4", NULL, &compressor));
    return compressor;
}

// Makes only decoding calls. Allocations would synchronise the threads, and the sanitizer would not see the race.
static void *decode(void *compressor) {
    pthread_barrier_wait(&both_are_there);
    for (int i = 0; i < 100; i++) OK(lgreco_compressor_decode(compressor, payload, length, decoded, ELEMENTS));
    return NULL;
}

int main(int argc, char **argv) {
    const int race = argc == 2 && strcmp(argv[1], "race") == 0;
    const size_t given = race ? ELEMENTS : ELEMENTS / 2;
    float *const values = malloc(given * sizeof *values);
    fill(values, given, 1);
    lgreco_compressor *compressor = new_compressor();
    OK(lgreco_compressor_encode(compressor, 0, values, payload, sizeof payload, &length));
    OK(lgreco_compressor_destroy(&compressor));
    free(values);
    if (race) {
        pthread_t threads[2];
        lgreco_compressor *compressors[2] = {new_compressor(), new_compressor()};
        CHECK(pthread_barrier_init(&both_are_there, NULL, 2) == 0);
        for (int i = 0; i < 2; i++) CHECK(pthread_create(&threads[i], NULL, decode, compressors[i]) == 0);
        for (int i = 0; i < 2; i++) CHECK(pthread_join(threads[i], NULL) == 0);
        CHECK(pthread_barrier_destroy(&both_are_there) == 0);
        for (int i = 0; i < 2; i++) OK(lgreco_compressor_destroy(&compressors[i]));
    }
    return report("fault");
}
