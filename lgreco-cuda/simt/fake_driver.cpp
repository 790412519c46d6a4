// A CUDA driver for tests of what calls one: memory is the processor's, kernels run through cuda_shim.h, and everything
// is counted. What is enqueued happens when somebody waits, not before: copies read their source then, unless it is
// pageable, which the driver copies at once, and kernels run then; what fails then fails every later call. There is one
// stream as far as that goes. FAKE_CUDA_MODULES is a list LIBRARY=KERNEL;... of compiled kernels and one that a module's
// code must hold to be that library's; FAKE_CUDA_FAIL is CALL=CODE, a call that fails and how; FAKE_CUDA_VERSION the
// version of CUDA; FAKE_CUDA_CAPABILITY the device's compute capability; FAKE_CUDA_MEMORY the bytes the device has.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <string>
#include <vector>
#include <dlfcn.h>

struct Launch {  // cuda_shim_launch
    unsigned grid[3], block[3];
    size_t dynamic;
    void** params;
    size_t size, count;
    int order;
    char* error;
    size_t room;
    const uint64_t* chosen;
    size_t chosen_count;
};

// A function of a module: the kernel, the bytes of its first argument, and how many there are.
struct Function {
    int (*kernel)(const Launch*);
    size_t first, count;
};

static std::map<uint64_t, size_t> memory, locked;
static std::vector<void*> stack;
static std::deque<std::function<int()>> queue, graph;
static int retained, streams, modules, synchronised, launched, pageable, events;
// What enqueued work has failed with.
static int failed;
static bool capturing;
static void* last_stream;
static char context, own_stream;

static int outcome(const char* call) {
    const char* fail = getenv("FAKE_CUDA_FAIL");
    size_t n = strlen(call);
    return fail && strncmp(fail, call, n) == 0 && fail[n] == '=' ? atoi(fail + n + 1) : 0;
}

static int number(const char* variable, int otherwise) {
    const char* set = getenv(variable);
    return set ? atoi(set) : otherwise;
}

#define CALL(name, parameters, ...)                                         \
    extern "C" __attribute__((visibility("default"))) int name parameters { \
        if (int code = outcome(#name)) return code;                         \
        __VA_ARGS__;                                                        \
        return 0;                                                           \
    }
// A call that needs a current context.
#define IN_CONTEXT(name, parameters, ...) \
    CALL(name, parameters, if (stack.empty()) return 201; if (failed) return failed; __VA_ARGS__)
// One that frees, which does so whatever has failed.
#define FREEING(name, parameters, ...) CALL(name, parameters, if (stack.empty()) return 201; __VA_ARGS__; return failed)
// One that enqueues what comes last.
#define ENQUEUED(name, parameters, before, ...)               \
    IN_CONTEXT(name, parameters, last_stream = stream; before \
               (capturing ? graph : queue).push_back([=]() mutable -> int { __VA_ARGS__; return 0; }))

static bool within(const std::map<uint64_t, size_t>& blocks, uint64_t address, size_t bytes) {
    auto after = blocks.upper_bound(address);
    if (after == blocks.begin()) return false;
    --after;
    return address + bytes <= after->first + after->second;
}

static bool inside(uint64_t address, size_t bytes) { return within(memory, address, bytes); }

// Does what is enqueued.
static int wait() {
    for (; !queue.empty() && !failed; queue.pop_front()) failed = queue.front()();
    queue.clear();
    return failed;
}

static int allocate(uint64_t* address, size_t bytes) {
    size_t all = bytes;
    for (auto& block : memory) all += block.second;
    const char* room = getenv("FAKE_CUDA_MEMORY");
    if (room && all > strtoull(room, nullptr, 10)) return 2;
    void* block = aligned_alloc(256, (bytes + 255) / 256 * 256);
    memset(block, 0xa5, bytes);
    memory[*address = uint64_t(block)] = bytes;
    return 0;
}

static int release(uint64_t address) {
    if (!memory.erase(address)) return 1;
    free(reinterpret_cast<void*>(address));
    return 0;
}

CALL(cuDriverGetVersion, (int* version), *version = number("FAKE_CUDA_VERSION", 12040))
CALL(cuInit, (unsigned), )
CALL(cuDeviceGetCount, (int* count), *count = 1)
CALL(cuDeviceGet, (int* device, int ordinal), if (ordinal != 0) return 101; *device = 0)
CALL(cuDeviceGetName, (char* name, int room, int), {
    const char* asked = getenv("FAKE_CUDA_NAME");
    snprintf(name, room, "%s", asked ? asked : "Fake GPU");
})
CALL(cuDeviceTotalMem_v2, (size_t * bytes, int), *bytes = size_t(8) << 30)
CALL(cuDeviceGetAttribute, (int* value, int attribute, int), int capability = number("FAKE_CUDA_CAPABILITY", 80);
     *value = attribute == 115 ? 1 : attribute == 75 ? capability / 10 : capability % 10)
CALL(cuDevicePrimaryCtxRetain, (void** out, int), ++retained; *out = &context)
CALL(cuDevicePrimaryCtxRelease_v2, (int), --retained)
CALL(cuCtxPushCurrent_v2, (void* context), stack.push_back(context))
CALL(cuCtxPopCurrent_v2, (void** context), if (stack.empty()) return 201; *context = stack.back(); stack.pop_back())
CALL(cuCtxGetCurrent, (void** context), *context = stack.empty() ? nullptr : stack.back())
IN_CONTEXT(cuCtxGetDevice, (int* device), *device = 0)
IN_CONTEXT(cuStreamCreate, (void** stream, unsigned), ++streams; *stream = &own_stream)
// A trainer's context is where its stream is.
CALL(cuStreamGetCtx, (void* stream, void** context), if (!stream && stack.empty()) return 201;
     *context = stream ? stream : stack.back())
IN_CONTEXT(cuStreamIsCapturing, (void*, int* status), *status = capturing)
FREEING(cuStreamDestroy_v2, (void*), --streams)
IN_CONTEXT(cuStreamSynchronize, (void* stream), ++synchronised; last_stream = stream; return wait())
IN_CONTEXT(cuMemAllocAsync, (uint64_t * address, size_t bytes, void*), return allocate(address, bytes))
// The stream's earlier work may still use it.
FREEING(cuMemFreeAsync, (uint64_t address, void*), wait(); if (int code = release(address)) return code)
IN_CONTEXT(cuMemHostAlloc, (void** address, size_t bytes, unsigned), *address = aligned_alloc(4096, bytes);
           locked[uint64_t(*address)] = bytes)
FREEING(cuMemFreeHost, (void* address), if (!locked.erase(uint64_t(address))) return 1; free(address))
// An event is the number of what was enqueued before it, which is all done after any wait.
IN_CONTEXT(cuEventCreate, (void** event, unsigned), *event = &context; ++events)
IN_CONTEXT(cuEventRecord, (void*, void*), )
IN_CONTEXT(cuEventSynchronize, (void*), return wait())
FREEING(cuEventDestroy_v2, (void*), --events)
ENQUEUED(cuMemcpyHtoDAsync_v2, (uint64_t to, const void* from, size_t bytes, void* stream),
         if (!inside(to, bytes)) return 700; std::string copy; bool now = !within(locked, uint64_t(from), bytes);
         if (now) { copy.assign(static_cast<const char*>(from), bytes); ++pageable; }
         , memcpy(reinterpret_cast<void*>(to), now ? static_cast<const void*>(copy.data()) : from, bytes))
ENQUEUED(cuMemcpyDtoHAsync_v2, (void* to, uint64_t from, size_t bytes, void* stream), ,
         memcpy(to, reinterpret_cast<void*>(from), bytes))
ENQUEUED(cuMemcpyDtoDAsync_v2, (uint64_t to, uint64_t from, size_t bytes, void* stream),
         if (!inside(to, bytes)) return 700;, memcpy(reinterpret_cast<void*>(to), reinterpret_cast<void*>(from), bytes))
ENQUEUED(cuMemsetD8Async, (uint64_t to, unsigned char value, size_t bytes, void* stream),
         if (!inside(to, bytes)) return 700;, memset(reinterpret_cast<void*>(to), value, bytes))
ENQUEUED(cuMemsetD32Async, (uint64_t to, unsigned value, size_t words, void* stream),
         if (!inside(to, 4 * words) || to % 4 != 0) return 700;
         , for (size_t i = 0; i < words; i++) memcpy(reinterpret_cast<void*>(to + 4 * i), &value, 4))
// What is enqueued may be of the module.
FREEING(cuModuleUnload, (void*), wait(); --modules)

// The library whose kernel the code, an ELF file, names among its sections.
static void* library_of(const char* code) {
    uint64_t sections;
    uint16_t size, count;
    memcpy(&sections, code + 0x28, 8);
    memcpy(&size, code + 0x3a, 2);
    memcpy(&count, code + 0x3c, 2);
    std::string all(code, sections + uint64_t(size) * count), list = getenv("FAKE_CUDA_MODULES");
    for (size_t at = 0; at < list.size();) {
        size_t equals = list.find('=', at), end = list.find(';', at);
        std::string section = ".text." + list.substr(equals + 1, end - equals - 1);
        // With the NUL that ends a name.
        if (all.find(section.c_str(), 0, section.size() + 1) != std::string::npos)
            return dlopen(list.substr(at, equals - at).c_str(), RTLD_NOW | RTLD_LOCAL);
        at = end + 1;
    }
    return nullptr;
}

IN_CONTEXT(cuModuleLoadData, (void** module, const char* code), if (memcmp(code, "\177ELF", 4) != 0) return 200;
           *module = library_of(code); if (!*module) return 200; ++modules)
// Functions live as long as the process, as their libraries do.
IN_CONTEXT(cuModuleGetFunction, (Function * *function, void* module, const char* name),
           void* kernel = dlsym(module, (std::string("shim_") + name).c_str());
           void* arguments = dlsym(module, (std::string("shim_arguments_") + name).c_str());
           if (!kernel || !arguments) return 500;
           *function = new Function{reinterpret_cast<int (*)(const Launch*)>(kernel), 0, 0};
           reinterpret_cast<void (*)(size_t*, size_t*)>(arguments)(&(*function)->first, &(*function)->count))
ENQUEUED(
    cuLaunchKernel,
    (Function * function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared,
     void* stream, void** params, void**),
    std::vector<std::string> values; for (size_t i = 0; i < function->count; i++)
        values.emplace_back(static_cast<char*>(params[i]), i ? sizeof(void*) : function->first);
    ++launched;
    , char error[512]; std::vector<void*> places; for (auto& value : values) places.push_back(value.data());
    Launch launch = {{gx, gy, gz}, {bx, by, bz}, shared, places.data(), 0, 0, 0, error, sizeof error};
    if (function->kernel(&launch)) {
        fprintf(stderr, "fake driver: %s\n", error);
        return 719;
    })

CALL(cuGetErrorName, (int code, const char** name), *name = code == 2 ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR")
CALL(cuGetErrorString, (int code, const char** text), static char words[32];
     snprintf(words, sizeof words, "code %d", code); *text = words)

// What examples/on_device.rs does on its own.
CALL(cuCtxSetCurrent, (void* context), stack.assign(1, context))
IN_CONTEXT(cuCtxSynchronize, (), return wait())
IN_CONTEXT(cuMemAlloc_v2, (uint64_t * address, size_t bytes), return allocate(address, bytes))
FREEING(cuMemFree_v2, (uint64_t address), wait(); if (int code = release(address)) return code)
IN_CONTEXT(cuMemcpyHtoD_v2, (uint64_t to, const void* from, size_t bytes), if (!inside(to, bytes)) return 700;
           if (int code = wait()) return code; memcpy(reinterpret_cast<void*>(to), from, bytes))
IN_CONTEXT(cuMemcpyDtoH_v2, (void* to, uint64_t from, size_t bytes), if (!inside(from, bytes)) return 700;
           if (int code = wait()) return code; memcpy(to, reinterpret_cast<void*>(from), bytes))

// NVRTC asks for a table of the driver's: one that holds nothing but its own size.
CALL(cuGetExportTable, (const void** table, const void*), static size_t own = sizeof own; *table = &own)

// What there is now: allocations, contexts, streams, modules, contexts on the stack, page-locked blocks and events; waits,
// launches and uploads of pageable memory so far.
extern "C" __attribute__((visibility("default"))) void fake_cuda_state(int* state) {
    int now[9] = {int(memory.size()), retained,     streams,  modules, int(stack.size()), int(locked.size()) + events,
                  synchronised,       launched, pageable};
    memcpy(state, now, sizeof now);
}
// From now on the stream is being captured into a new graph, or not any more.
extern "C" __attribute__((visibility("default"))) void fake_cuda_capture(bool begun) {
    if (begun) graph.clear();
    capturing = begun;
}
// Enqueues all that the graph holds; how much that is.
extern "C" __attribute__((visibility("default"))) int fake_cuda_replay() {
    queue.insert(queue.end(), graph.begin(), graph.end());
    return int(graph.size());
}
// Enqueues for fake_cublas.cpp and for tests, into the graph while one is captured.
extern "C" __attribute__((visibility("default"))) void fake_cuda_enqueue(int (*call)(void*), void* argument) {
    (capturing ? graph : queue).push_back([=]() { return call(argument); });
}
extern "C" __attribute__((visibility("default"))) void* fake_cuda_last_stream() { return last_stream; }
// For fake_cublas.cpp.
extern "C" __attribute__((visibility("default"))) bool fake_cuda_inside(uint64_t address, size_t bytes) {
    return inside(address, bytes);
}
