// The functions of the CUDA driver that tests use. lgreco and the tests load the same library: a real driver, or
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
    int (*give_back)(uint64_t);
    int (*lock)(void **, size_t, unsigned);
    int (*unlock)(void *);
    int (*event)(void **, unsigned);
    int (*record)(void *, void *);
    int (*wait)(void *);
    int (*forget)(void *);
    // `last_stream` returns the stream of the last call, and `state` returns nine counts. With a real driver, both are
    // NULL.
    void *(*last_stream)(void);
    void (*state)(int *);
} driver;

// Indices of some counts of the fake driver. ALLOCATIONS is the number of current allocations on the device. WAITS
// counts waits for streams and devices, LAUNCHES kernel launches, and UPLOADS uploads of pageable memory.
enum { ALLOCATIONS = 0, WAITS = 6, LAUNCHES = 7, UPLOADS = 8, NUMBERS = 9 };

// The trainer's stream.
static void *stream;

static void load(void *library, const char *name, void *place) {
    void *const found = dlsym(library, name);
    memcpy(place, &found, sizeof found);
}

// Whether the machine has a driver. If so, prints that tests without a driver are skipped.
static int has_driver(void) {
    const int found = dlopen("libcuda.so.1", RTLD_NOW) != NULL;
    if (found) fprintf(stderr, "SKIP: what is said without a driver: there is one\n");
    return found;
}

// Makes the primary context of the first device, but does not make it current.
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
    load(library, "cuMemFree_v2", &driver.give_back);
    load(library, "cuMemHostAlloc", &driver.lock);
    load(library, "cuMemFreeHost", &driver.unlock);
    load(library, "cuEventCreate", &driver.event);
    load(library, "cuEventRecord", &driver.record);
    load(library, "cuEventSynchronize", &driver.wait);
    load(library, "cuEventDestroy_v2", &driver.forget);
    load(library, "fake_cuda_last_stream", &driver.last_stream);
    load(library, "fake_cuda_state", &driver.state);
    int device = 0;
    CHECK(driver.init(0) == 0 && driver.device(&device, 0) == 0 && driver.retain(&context, device) == 0);
    return context;
}

// Copies to device memory, and waits for the stream.
static void to_device(void *to, const void *from, size_t bytes) {
    CHECK(driver.to_device((uint64_t)(uintptr_t)to, from, bytes, stream) == 0 && driver.synchronize(stream) == 0);
}

// Allocates `bytes` of device memory. If `from` is not NULL, copies `from` to this memory.
static void *on_device(const void *from, size_t bytes) {
    uint64_t address = 0;
    CHECK(driver.allocate(&address, bytes) == 0);
    if (from != NULL) to_device((void *)(uintptr_t)address, from, bytes);
    return (void *)(uintptr_t)address;
}

// Copies to host memory, and waits for the stream.
static void to_host(void *to, const void *from, size_t bytes) {
    CHECK(driver.to_host(to, (uint64_t)(uintptr_t)from, bytes, stream) == 0 && driver.synchronize(stream) == 0);
}

// Frees device memory. The call waits for the device.
static void give_back(void *memory) { CHECK(driver.give_back((uint64_t)(uintptr_t)memory) == 0); }

// An enqueued copy from device memory to page-locked memory. All bytes are 0xee until the copy arrives. `event` follows
// the copy in the stream.
typedef struct {
    uint8_t *bytes;
    size_t length;
    void *event;
} copied;

// Enqueues a copy without waiting for its end.
static copied enqueue_copy(const void *from, size_t bytes) {
    copied copy = {NULL, bytes, NULL};
    void *memory = NULL;
    CHECK(driver.lock(&memory, bytes, 0) == 0 && driver.event(&copy.event, 0) == 0);
    copy.bytes = (uint8_t *)memory;
    memset(copy.bytes, 0xee, bytes);
    CHECK(driver.to_host(copy.bytes, (uint64_t)(uintptr_t)from, bytes, stream) == 0);
    CHECK(driver.record(copy.event, stream) == 0);
    return copy;
}

// Whether the copy has not arrived yet. The fake driver does enqueued work only when a call waits for that work. With a
// GPU the result is always 1.
static int is_on_its_way(const copied *copy) {
    for (size_t i = 0; i < copy->length && driver.state != NULL; i++)
        if (copy->bytes[i] != 0xee) return 0;
    return 1;
}

// Waits for this copy only.
static void wait_for(const copied *copy) { CHECK(driver.wait(copy->event) == 0); }

static void let_go(const copied *copy) {
    CHECK(driver.unlock(copy->bytes) == 0 && driver.forget(copy->event) == 0);
}

// Whether the fake driver has counted launches since `before`, but no waits, allocations or uploads of pageable memory.
// With a GPU the result is always 1.
static int only_launched(const int *before) {
    int now[NUMBERS] = {0};
    if (driver.state == NULL) return 1;
    driver.state(now);
    return now[WAITS] == before[WAITS] && now[ALLOCATIONS] == before[ALLOCATIONS] && now[UPLOADS] == before[UPLOADS] &&
           now[LAUNCHES] > before[LAUNCHES];
}

#endif
