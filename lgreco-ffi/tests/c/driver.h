// The part of CUDA's driver interface that tests use, from the library that lgreco loads too: of a GPU, or
// lgreco-cuda/simt/fake_driver.cpp.
#ifndef DRIVER_H
#define DRIVER_H

#include "check.h"

#include <dlfcn.h>

// The functions of cuda.h, without its types.
static struct {
    int (*init)(unsigned);
    int (*device)(int *, int);
    int (*retain)(void **, int);
    int (*push)(void *);
    int (*stream)(void **, unsigned);
    int (*allocate)(uint64_t *, size_t);
    int (*to_device)(uint64_t, const void *, size_t, void *);
    int (*to_host)(void *, uint64_t, size_t, void *);
    int (*synchronize)(void *);
    // Of the fake alone, else NULL: the stream of the last call; allocations first among seven numbers.
    void *(*last_stream)(void);
    void (*state)(int *);
} driver;

// The trainer's stream.
static void *stream;

static void load(void *library, const char *name, void *place) {
    void *const found = dlsym(library, name);
    memcpy(place, &found, sizeof found);
}

// Whether there is a driver, said aloud, for tests of its lack.
static int has_driver(void) {
    const int found = dlopen("libcuda.so.1", RTLD_NOW) != NULL;
    if (found) fprintf(stderr, "SKIP: what is said without a driver: there is one\n");
    return found;
}

// Makes the first device's primary context, but not yet current.
static void *primary_context(void) {
    void *const library = dlopen("libcuda.so.1", RTLD_NOW), *context = NULL;
    if (library == NULL) {
        fprintf(stderr, "%s\n", dlerror());
        exit(1);
    }
    load(library, "cuInit", &driver.init);
    load(library, "cuDeviceGet", &driver.device);
    load(library, "cuDevicePrimaryCtxRetain", &driver.retain);
    load(library, "cuCtxPushCurrent_v2", &driver.push);
    load(library, "cuStreamCreate", &driver.stream);
    load(library, "cuMemAlloc_v2", &driver.allocate);
    load(library, "cuMemcpyHtoDAsync_v2", &driver.to_device);
    load(library, "cuMemcpyDtoHAsync_v2", &driver.to_host);
    load(library, "cuStreamSynchronize", &driver.synchronize);
    load(library, "fake_cuda_last_stream", &driver.last_stream);
    load(library, "fake_cuda_state", &driver.state);
    int device = 0;
    CHECK(driver.init(0) == 0 && driver.device(&device, 0) == 0 && driver.retain(&context, device) == 0);
    return context;
}

// Waits for the stream.
static void to_device(void *to, const void *from, size_t bytes) {
    CHECK(driver.to_device((uint64_t)(uintptr_t)to, from, bytes, stream) == 0 && driver.synchronize(stream) == 0);
}

// `bytes` of device memory, with what `from` holds, if it is not NULL.
static void *on_device(const void *from, size_t bytes) {
    uint64_t address = 0;
    CHECK(driver.allocate(&address, bytes) == 0);
    if (from != NULL) to_device((void *)(uintptr_t)address, from, bytes);
    return (void *)(uintptr_t)address;
}

// Waits for the stream.
static void to_host(void *to, const void *from, size_t bytes) {
    CHECK(driver.to_host(to, (uint64_t)(uintptr_t)from, bytes, stream) == 0 && driver.synchronize(stream) == 0);
}

#endif
