// A simulated CUDA driver for tests. Memory is the CPU's, kernels run through cuda_shim.h, and calls are counted.
// Kernels and copies run in the order that FAKE_CUDA_ORDER chooses. After enqueued work has failed in a context, every
// later call in this context fails.
//
// Every device has a primary context, and every thread a stack of contexts. Memory, streams, events and modules belong
// to the context that was current when they were created. Use of another context's memory returns error 201. Use of
// another context's handle, or of a destroyed handle, returns error 400. Any thread may make calls; one mutex orders
// them.
//
// Every stream has a queue. An operation may run once all earlier operations of its queue have run. An operation also
// waits for operations that events or the rules of the null stream order before this operation. CUDA allows every order
// that keeps these rules, so a correct program works in every such order. Only waits run enqueued work. Calls that free
// memory, destroy a stream or unload a module run no enqueued work. A copy from pageable memory reads that memory
// before the call returns, and writes the device's memory later. FAKE_CUDA_ORDER is one of:
//   latest       An operation runs only when something waits for it. A wait for the whole context runs its streams one
//                after another, the oldest first (the null stream is the oldest). This is the default.
//   others       As `latest`, but each wait first runs all other streams as far as possible, the newest first.
//   earliest     An operation runs when it is enqueued.
//   random:SEED  Each call runs some operations of random streams.
// The values latest, others and earliest together cover both orders of any two unordered operations.
//
// A capture is global, as with torch.cuda.graph. During a capture, calls of any thread that synchronise, load or
// allocate immediately return error 900 and invalidate the capture.
//
// Further variables:
// - FAKE_CUDA_MODULES is a list LIBRARY=KERNEL;... of libraries of compiled kernels. The driver runs a module by the
//   library whose KERNEL the module contains.
// - FAKE_CUDA_FAIL is CALL=CODE: the driver call CALL fails with the error CODE.
// - FAKE_CUDA_VERSION is the version of CUDA, FAKE_CUDA_CAPABILITY the devices' compute capability.
// - FAKE_CUDA_MEMORY is the number of bytes of each device, FAKE_CUDA_DEVICES the number of devices.
// - FAKE_CUDA_POOLS is 1 (the default) if devices have memory pools.
// - FAKE_CUDA_EVENT makes waits for events wrong: `none` waits for nothing, `last` for the last recorded event.
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>
#include <dlfcn.h>

struct Launch {  // cuda_shim_launch
    unsigned grid[3], block[3];
    void** params;
    size_t size, count;
    int order;
    char* error;
    size_t room;
    const uint64_t* chosen;
    size_t chosen_count;
};

enum {
    INVALID_VALUE = 1,
    OUT_OF_MEMORY = 2,
    INVALID_DEVICE = 101,
    INVALID_IMAGE = 200,
    INVALID_CONTEXT = 201,
    INVALID_HANDLE = 400,
    ILLEGAL_STATE = 401,
    NOT_FOUND = 500,
    NOT_READY = 600,
    ILLEGAL_ADDRESS = 700,
    CONTEXT_IS_DESTROYED = 709,
    LAUNCH_FAILED = 719,
    NOT_SUPPORTED = 801,
    CAPTURE_UNSUPPORTED = 900,
    CAPTURE_INVALIDATED = 901,
    CAPTURE_ISOLATION = 905,
    CAPTURE_IMPLICIT = 906,
    CAPTURED_EVENT = 907
};

enum Order { LATEST, OTHERS, EARLIEST, RANDOM };

struct Stream;

// A device's primary context.
struct Context {
    int device, retained;
    // The error code of failed enqueued work, or 0.
    int failed;
    std::shared_ptr<Stream> null_stream;
};

// A position in a stream: the first `position` operations have run.
struct Point {
    std::shared_ptr<Stream> stream;
    uint64_t position;
};

struct Operation {
    std::function<int()> work;
    // Points of other streams that must be reached before this operation runs.
    std::vector<Point> after;
};

// The captured operations of a stream, or an executable graph.
using Graph = std::vector<std::function<int()>>;

enum Capture { NONE, ACTIVE, INVALIDATED };  // CUstreamCaptureStatus

struct Stream {
    Context* context;
    // Whether operations are ordered with operations of the null stream.
    bool blocking;
    std::deque<Operation> queue;
    // Number of operations done so far.
    uint64_t done;
    // Points of the events that the next operation waits for.
    std::vector<Point> awaited;
    Capture capture;
    // Operations captured so far.
    Graph graph;
    // Whether the handle was destroyed. The stream lives until its queue is empty.
    bool destroyed;
};

struct Event {
    Context* context;
    // The recorded point of a stream, or empty if the event was never recorded.
    Point at;
    bool captured;
    // Time at which the stream reached the event, in nanoseconds.
    std::shared_ptr<int64_t> reached;
};

struct Module {
    Context* context;
    void* library;
};

// A function of a module: the kernel, the size of its first argument in bytes, and the number of arguments.
struct Function {
    Context* context;
    std::weak_ptr<Module> module;
    int (*kernel)(const Launch*);
    size_t first, count;
};

struct Block {
    size_t bytes;
    Context* context;
};

// Memory that was freed while enqueued operations might still use it. The memory is kept until these operations have
// run.
struct Freed {
    void* memory;
    std::vector<Point> after;
};

using Blocks = std::map<uint64_t, Block>;
// Objects that the driver has created, in the order of creation.
template <typename Thing>
using Made = std::vector<std::shared_ptr<Thing>>;

static std::mutex mutex;
static Blocks memory, locked;
static std::map<int, Context> contexts;
static thread_local std::vector<void*> stack;
static Made<Stream> streams;  // including the null streams
static Made<Event> events;
static Made<Module> modules;
static Made<Graph> graphs;
// Neither functions nor the libraries that contain them are ever freed.
static Made<Function> functions;
static std::vector<Freed> freed;
static int synchronised, launched, pageable;
static void* last_stream;
static std::shared_ptr<Event> last_recorded;

static int outcome(const char* call) {
    const char* fail = getenv("FAKE_CUDA_FAIL");
    size_t n = strlen(call);
    return fail && strncmp(fail, call, n) == 0 && fail[n] == '=' ? atoi(fail + n + 1) : 0;
}

static int number(const char* variable, int otherwise) {
    const char* set = getenv(variable);
    return set ? atoi(set) : otherwise;
}

template <typename Thing>
static std::shared_ptr<Thing> find(const Made<Thing>& all, const void* handle) {
    for (auto& thing : all)
        if (thing.get() == handle) return thing;
    return nullptr;
}

template <typename Thing>
static Thing* keep(Made<Thing>& all, Thing made) {
    all.push_back(std::make_shared<Thing>(std::move(made)));
    return all.back().get();
}

template <typename Thing>
static int forget(Made<Thing>& all, const void* handle) {
    auto gone = std::remove_if(all.begin(), all.end(), [&](auto& thing) { return thing.get() == handle; });
    if (gone == all.end()) return INVALID_HANDLE;
    all.erase(gone, all.end());
    return 0;
}

static Context* known(const void* handle) {
    for (auto& own : contexts)
        if (&own.second == handle) return &own.second;
    return nullptr;
}

// The context that is current on this thread.
static int current(Context** context) {
    *context = stack.empty() ? nullptr : known(stack.back());
    if (!*context) return INVALID_CONTEXT;
    return (*context)->retained ? 0 : CONTEXT_IS_DESTROYED;
}

// The stream of a handle. A null handle means the null stream of the current context.
static std::shared_ptr<Stream> stream_of(const void* handle, const Context* here) {
    auto found = handle ? find(streams, handle) : here->null_stream;
    return found && !found->destroyed ? found : nullptr;
}

static bool is_null_stream(const std::shared_ptr<Stream>& stream) { return stream->context->null_stream == stream; }

// Whether the rules of the null stream order the operations of these two streams.
static bool implicitly_ordered(const std::shared_ptr<Stream>& one, const std::shared_ptr<Stream>& other) {
    return one != other && one->context == other->context && (is_null_stream(one) || is_null_stream(other)) &&
           one->blocking && other->blocking;
}

// The block that contains the address range, or nullptr.
static const Block* block_of(const Blocks& blocks, uint64_t address, size_t bytes) {
    auto after = blocks.upper_bound(address);
    if (after == blocks.begin()) return nullptr;
    --after;
    return address + bytes <= after->first + after->second.bytes ? &after->second : nullptr;
}

// Returns error 201 for another context's memory. Unknown addresses are accepted, because tests may use their own
// memory.
static int foreign(uint64_t address, const Context* context) {
    const Block* block = block_of(memory, address, 1);
    return block && block->context != context ? INVALID_CONTEXT : 0;
}

// Returns 0 if the context may write to this memory.
static int writable(uint64_t address, size_t bytes, const Context* context) {
    if (int code = foreign(address, context)) return code;
    return block_of(memory, address, bytes) ? 0 : ILLEGAL_ADDRESS;
}

static Point end_of(const std::shared_ptr<Stream>& stream) { return {stream, stream->done + stream->queue.size()}; }

// Runs all operations before a point. After a failure, later operations in the same context are skipped.
static void run(const Point& to) {
    for (; to.stream->done < to.position; ++to.stream->done) {
        Operation& next = to.stream->queue.front();
        for (auto& before : next.after) run(before);
        int& failed = to.stream->context->failed;
        if (!failed) failed = next.work();
        to.stream->queue.pop_front();
    }
}

static uint64_t random_seed, random_state;

static Order order() {
    const char* asked = getenv("FAKE_CUDA_ORDER");
    if (!asked || strcmp(asked, "latest") == 0) return LATEST;
    if (strcmp(asked, "others") == 0) return OTHERS;
    if (strcmp(asked, "earliest") == 0) return EARLIEST;
    if (strncmp(asked, "random:", 7) == 0) {
        uint64_t seed = strtoull(asked + 7, nullptr, 10) + 1;
        if (seed != random_seed) random_seed = random_state = seed;
        return RANDOM;
    }
    fprintf(stderr, "fake driver: FAKE_CUDA_ORDER=%s is none of latest, others, earliest, random:SEED\n", asked);
    abort();
}

// A random number below `end`, by splitmix64.
static size_t random_below(size_t end) {
    uint64_t x = random_state += 0x9e3779b97f4a7c15;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
    x = (x ^ x >> 27) * 0x94d049bb133111eb;
    return (x ^ x >> 31) % end;
}

// Runs one operation of a random stream, in `context` or, if that is null, in any context. Returns false if no
// operation is left.
static bool run_any(const Context* context) {
    Made<Stream> waiting;
    for (auto& stream : streams)
        if (!stream->queue.empty() && (!context || stream->context == context)) waiting.push_back(stream);
    if (waiting.empty()) return false;
    auto& chosen = waiting[random_below(waiting.size())];
    run({chosen, chosen->done + 1});
    return true;
}

static void run_some() {
    for (size_t left = random_below(4); left && run_any(nullptr); --left) {}
}

// Frees memory and destroyed streams that no remaining operation needs.
static void give_up() {
    auto is_past = [](const Point& point) { return point.stream->done >= point.position; };
    auto gone = std::stable_partition(freed.begin(), freed.end(), [&](auto& block) {
        return !std::all_of(block.after.begin(), block.after.end(), is_past);
    });
    std::for_each(gone, freed.end(), [](auto& block) { free(block.memory); });
    freed.erase(gone, freed.end());
    auto is_done = [](auto& stream) { return stream->destroyed && stream->queue.empty(); };
    streams.erase(std::remove_if(streams.begin(), streams.end(), is_done), streams.end());
}

static int wait(const Point& to) {
    Made<Stream> others;
    if (order() == OTHERS) others.assign(streams.rbegin(), streams.rend());
    if (order() == RANDOM) run_some();
    for (auto& other : others)
        if (other != to.stream) run(end_of(other));
    run(to);
    give_up();
    return to.stream->context->failed;
}

// Waits for all streams of a context.
static int wait_for_all(Context* context) {
    Made<Stream> all = streams;
    if (order() == OTHERS) std::reverse(all.begin(), all.end());
    while (order() == RANDOM && run_any(context)) {}
    for (auto& stream : all)
        if (stream->context == context) run(end_of(stream));
    give_up();
    return context->failed;
}

static int enqueue(const std::shared_ptr<Stream>& to, std::function<int()> work) {
    if (to->capture == INVALIDATED) return CAPTURE_INVALIDATED;
    if (to->capture) {
        to->graph.push_back(std::move(work));
        return 0;
    }
    Operation made{std::move(work), to->awaited};
    for (auto& other : streams) {
        if (!implicitly_ordered(to, other)) continue;
        if (other->capture) {
            other->capture = INVALIDATED;
            return CAPTURE_IMPLICIT;
        }
        made.after.push_back(end_of(other));
    }
    to->awaited.clear();
    to->queue.push_back(std::move(made));
    if (order() == EARLIEST) run(end_of(to));
    if (order() == RANDOM) run_some();
    return 0;
}

// Returns 900 while any stream is captured, and invalidates the capture.
static int unless_capturing() {
    int code = 0;
    for (auto& stream : streams)
        if (stream->capture) {
            stream->capture = INVALIDATED;
            code = CAPTURE_UNSUPPORTED;
        }
    return code;
}

static int synchronise(const std::shared_ptr<Stream>& stream) {
    if (!stream) return INVALID_HANDLE;
    if (stream->capture) return unless_capturing();
    return wait(end_of(stream));
}

static int wait_for(std::shared_ptr<Event> event) {
    if (!event) return INVALID_HANDLE;
    if (int code = unless_capturing()) return code;
    if (event->captured) return CAPTURED_EVENT;
    const char* mistake = getenv("FAKE_CUDA_EVENT");
    if (mistake && strcmp(mistake, "none") == 0) return 0;
    if (mistake) event = last_recorded;
    return event->at.stream ? wait(event->at) : 0;
}

static int64_t now() {
    auto since = std::chrono::steady_clock::now().time_since_epoch();
    return std::chrono::duration_cast<std::chrono::nanoseconds>(since).count();
}

static int record(const std::shared_ptr<Event>& event, const std::shared_ptr<Stream>& stream) {
    if (!event || !stream || event->context != stream->context) return INVALID_HANDLE;
    event->captured = stream->capture;
    if (stream->capture) return 0;
    auto reached = event->reached = std::make_shared<int64_t>(0);
    if (int code = enqueue(stream, [=] { return *reached = now(), 0; })) return code;
    event->at = end_of(stream);
    last_recorded = event;
    return 0;
}

// Makes later operations in the stream wait for the event.
static int come_after(const std::shared_ptr<Stream>& stream, const std::shared_ptr<Event>& event) {
    if (!event || !stream) return INVALID_HANDLE;
    if (stream->capture) return event->captured ? 0 : CAPTURE_ISOLATION;
    // After a wait for a captured event, a real driver would capture this stream, too.
    if (event->captured) return NOT_SUPPORTED;
    if (event->at.stream) stream->awaited.push_back(event->at);
    return 0;
}

static int allocate(uint64_t* address, size_t bytes, Context* context) {
    size_t all = bytes;
    for (auto& block : memory)
        if (block.second.context == context) all += block.second.bytes;
    const char* room = getenv("FAKE_CUDA_MEMORY");
    if (room && all > strtoull(room, nullptr, 10)) return OUT_OF_MEMORY;
    void* block = aligned_alloc(256, (bytes + 255) / 256 * 256);
    memset(block, 0xa5, bytes);
    memory[*address = uint64_t(block)] = {bytes, context};
    return 0;
}

// Frees memory that enqueued operations in the streams `users` may still use.
static int release(uint64_t address, const Context* context, const Made<Stream>& users) {
    if (int code = foreign(address, context)) return code;
    if (!memory.erase(address)) return INVALID_VALUE;
    Freed block{reinterpret_cast<void*>(address), {}};
    for (auto& stream : users)
        if (stream->context == context) block.after.push_back(end_of(stream));
    freed.push_back(block);
    give_up();
    return 0;
}

static Context* retain(int device) {
    Context& context = contexts[device];
    if (!context.null_stream) {
        context.device = device;
        keep(streams, Stream{&context, true, {}, 0, {}, NONE, {}, false});
        context.null_stream = streams.back();
    }
    // Modules that were loaded before the context was last destroyed are lost.
    auto is_lost = [&](auto& module) { return module->context == &context; };
    if (!context.retained) modules.erase(std::remove_if(modules.begin(), modules.end(), is_lost), modules.end());
    ++context.retained;
    return &context;
}

static bool is_device(int device) { return device >= 0 && device < number("FAKE_CUDA_DEVICES", 1); }

#define CALL(name, parameters, ...)                                         \
    extern "C" __attribute__((visibility("default"))) int name parameters { \
        std::lock_guard<std::mutex> guard(mutex);                           \
        if (int code = outcome(#name)) return code;                         \
        __VA_ARGS__;                                                        \
        return 0;                                                           \
    }
// Defines a driver call that frees an object in the current context, even if the context has failed.
#define FREEING(name, parameters, ...) \
    CALL(name, parameters, Context* here; if (int code = current(&here)) return code; __VA_ARGS__; return here->failed)
// Defines a driver call that needs a current context.
#define IN_CONTEXT(name, parameters, ...) FREEING(name, parameters, if (here->failed) return here->failed; __VA_ARGS__)
// Defines a driver call that is not allowed while any stream is captured.
#define UNCAPTURED(name, parameters, ...) \
    IN_CONTEXT(name, parameters, if (int code = unless_capturing()) return code; __VA_ARGS__)
// Defines a driver call that enqueues the macro's last argument as an operation.
#define ENQUEUED(name, parameters, before, ...)                                                                   \
    IN_CONTEXT(name, parameters, auto to_stream = stream_of(stream, here); if (!to_stream) return INVALID_HANDLE; \
               Context* owner = to_stream->context; last_stream = stream;                                         \
               before return enqueue(to_stream, [=]() mutable -> int {                                            \
                   __VA_ARGS__;                                                                                   \
                   return 0;                                                                                      \
               }))

CALL(cuDriverGetVersion, (int* version), *version = number("FAKE_CUDA_VERSION", 12040))
CALL(cuInit, (unsigned), )
CALL(cuDeviceGetCount, (int* count), *count = number("FAKE_CUDA_DEVICES", 1))
CALL(cuDeviceGet, (int* device, int ordinal), if (!is_device(ordinal)) return INVALID_DEVICE; *device = ordinal)
CALL(cuDeviceGetName, (char* name, int room, int), {
    const char* asked = getenv("FAKE_CUDA_NAME");
    snprintf(name, room, "%s", asked ? asked : "Fake GPU");
})
CALL(cuDeviceTotalMem_v2, (size_t* bytes, int), *bytes = size_t(8) << 30)
CALL(cuDeviceGetAttribute, (int* value, int attribute, int), int capability = number("FAKE_CUDA_CAPABILITY", 80);
     *value = attribute == 115  ? number("FAKE_CUDA_POOLS", 1)
              : attribute == 75 ? capability / 10
                                : capability % 10)
CALL(cuDevicePrimaryCtxRetain, (void** out, int device), if (!is_device(device)) return INVALID_DEVICE;
     *out = retain(device))
CALL(cuDevicePrimaryCtxRelease_v2, (int device), Context& context = contexts[device];
     if (!context.retained) return INVALID_CONTEXT; --context.retained)
CALL(cuCtxPushCurrent_v2, (void* context), Context* pushed = known(context);
     if (!pushed || !pushed->retained) return INVALID_CONTEXT; stack.push_back(context))
CALL(cuCtxPopCurrent_v2, (void** context), if (stack.empty()) return INVALID_CONTEXT; *context = stack.back();
     stack.pop_back())
CALL(cuCtxGetCurrent, (void** context), *context = stack.empty() ? nullptr : stack.back())
IN_CONTEXT(cuCtxGetDevice, (int* device), *device = here->device)
IN_CONTEXT(cuStreamCreate, (void** stream, unsigned flags),
           *stream = keep(streams, Stream{here, flags == 0, {}, 0, {}, NONE, {}, false}))
CALL(cuStreamGetCtx, (void* stream, void** context), Context* here; int code = current(&here);
     if (!stream && code) return code; auto found = stream_of(stream, here); if (!found) return INVALID_HANDLE;
     *context = found->context)
IN_CONTEXT(cuStreamIsCapturing, (void* stream, int* status), auto found = stream_of(stream, here);
           if (!found) return INVALID_HANDLE; *status = found->capture)
// Enqueued operations still run after this call.
FREEING(cuStreamDestroy_v2, (void* stream), auto found = stream ? stream_of(stream, here) : nullptr;
        if (!found) return INVALID_HANDLE; found->destroyed = true; give_up())
IN_CONTEXT(cuStreamSynchronize, (void* stream), ++synchronised; last_stream = stream;
           return synchronise(stream_of(stream, here)))
IN_CONTEXT(cuStreamWaitEvent, (void* stream, void* event, unsigned),
           return come_after(stream_of(stream, here), find(events, event)))
IN_CONTEXT(cuMemAllocAsync, (uint64_t* address, size_t bytes, void* stream), auto found = stream_of(stream, here);
           if (!found) return INVALID_HANDLE; if (found->capture) return NOT_SUPPORTED;
           return allocate(address, bytes, found->context))
// Earlier work in the stream may still use the memory. Freeing older memory during a capture invalidates the capture.
FREEING(cuMemFreeAsync, (uint64_t address, void* stream), auto found = stream_of(stream, here);
        if (!found) return INVALID_HANDLE; if (found->capture) return found->capture = INVALIDATED, INVALID_VALUE;
        if (int code = release(address, found->context, {found})) return code)
UNCAPTURED(cuMemHostAlloc, (void** address, size_t bytes, unsigned), *address = aligned_alloc(4096, bytes);
           locked[uint64_t(*address)] = {bytes, here})
FREEING(cuMemFreeHost, (void* address), if (!locked.erase(uint64_t(address))) return INVALID_VALUE; free(address))
IN_CONTEXT(cuEventCreate, (void** event, unsigned), *event = keep(events, Event{here, {}, false, nullptr}))
IN_CONTEXT(cuEventRecord, (void* event, void* stream), return record(find(events, event), stream_of(stream, here)))
IN_CONTEXT(cuEventSynchronize, (void* event), return wait_for(find(events, event)))
// The streams must have reached both events.
IN_CONTEXT(cuEventElapsedTime, (float* milliseconds, void* start, void* end), auto from = find(events, start);
           auto to = find(events, end); if (!from || !to || !from->reached || !to->reached) return INVALID_HANDLE;
           if (!*from->reached || !*to->reached) return NOT_READY;
           *milliseconds = float(*to->reached - *from->reached) / 1e6f)
// Each query advances the stream by one operation.
UNCAPTURED(cuEventQuery, (void* event), auto found = find(events, event); if (!found) return INVALID_HANDLE;
           if (found->captured) return CAPTURED_EVENT; Point at = found->at;
           if (!at.stream || at.stream->done >= at.position) return 0; run({at.stream, at.stream->done + 1});
           return NOT_READY)
FREEING(cuEventDestroy_v2, (void* event), if (int code = forget(events, event)) return code)
ENQUEUED(
    cuMemcpyHtoDAsync_v2, (uint64_t to, const void* from, size_t bytes, void* stream),
    if (int code = writable(to, bytes, owner)) return code;
    std::string copy; bool now = !block_of(locked, uint64_t(from), bytes);
    if (now) {
        copy.assign(static_cast<const char*>(from), bytes);
        ++pageable;
    },
    memcpy(reinterpret_cast<void*>(to), now ? static_cast<const void*>(copy.data()) : from, bytes))
ENQUEUED(cuMemcpyDtoHAsync_v2, (void* to, uint64_t from, size_t bytes, void* stream),
         if (int code = foreign(from, owner)) return code;
         , memcpy(to, reinterpret_cast<void*>(from), bytes))
ENQUEUED(cuMemcpyDtoDAsync_v2, (uint64_t to, uint64_t from, size_t bytes, void* stream),
         if (int code = writable(to, bytes, owner)) return code;
         if (int code = foreign(from, owner)) return code;
         , memcpy(reinterpret_cast<void*>(to), reinterpret_cast<void*>(from), bytes))
ENQUEUED(cuMemsetD8Async, (uint64_t to, unsigned char value, size_t bytes, void* stream),
         if (int code = writable(to, bytes, owner)) return code;
         , memset(reinterpret_cast<void*>(to), value, bytes))
ENQUEUED(cuMemsetD32Async, (uint64_t to, unsigned value, size_t words, void* stream),
         if (int code = writable(to, 4 * words, owner)) return code;
         if (to % 4 != 0) return ILLEGAL_ADDRESS;
         , for (size_t i = 0; i < words; i++) memcpy(reinterpret_cast<void*>(to + 4 * i), &value, 4))
IN_CONTEXT(cuOccupancyMaxActiveBlocksPerMultiprocessor, (int* blocks, void*, int, size_t), *blocks = 4)
// No enqueued operation may still need the module.
FREEING(cuModuleUnload, (void* module), auto found = find(modules, module);
        if (!found || found->context != here) return INVALID_HANDLE; forget(modules, module))

// Finds the library whose kernel the code contains. The code is an ELF file with a section for each kernel.
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
        // The search includes the NUL at the end of the name.
        if (all.find(section.c_str(), 0, section.size() + 1) != std::string::npos)
            return dlopen(list.substr(at, equals - at).c_str(), RTLD_NOW | RTLD_LOCAL);
        at = end + 1;
    }
    return nullptr;
}

UNCAPTURED(cuModuleLoadData, (void** module, const char* code),
           if (memcmp(code, "\177ELF", 4) != 0) return INVALID_IMAGE;
           void* library = library_of(code); if (!library) return INVALID_IMAGE;
           *module = keep(modules, Module{here, library}))
IN_CONTEXT(cuModuleGetFunction, (void** function, void* module, const char* name), auto found = find(modules, module);
           if (!found || found->context != here) return INVALID_HANDLE;
           void* kernel = dlsym(found->library, (std::string("shim_") + name).c_str());
           void* arguments = dlsym(found->library, (std::string("shim_arguments_") + name).c_str());
           if (!kernel || !arguments) return NOT_FOUND;
           Function made{here, found, reinterpret_cast<int (*)(const Launch*)>(kernel), 0, 0};
           reinterpret_cast<void (*)(size_t*, size_t*)>(arguments)(&made.first, &made.count);
           *function = keep(functions, made))
ENQUEUED(
    cuLaunchKernel,
    (void* function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned,
     void* stream, void** params, void**),
    auto called = find(functions, function);
    if (!called || called->context != here || owner != here || called->module.expired()) return INVALID_HANDLE;
    std::vector<std::string> values;
    for (size_t i = 0; i < called->count; i++)
        values.emplace_back(static_cast<char*>(params[i]), i ? sizeof(void*) : called->first);
    ++launched;, char error[512]; std::vector<void*> places; for (auto& value : values) places.push_back(value.data());
    Launch launch = {{gx, gy, gz}, {bx, by, bz}, places.data(), 0, 0, 0, error, sizeof error};
    if (called->module.expired()) {
        fprintf(stderr, "fake driver: a kernel's module was unloaded before the kernel ran\n");
        return LAUNCH_FAILED;
    }
    if (called->kernel(&launch)) {
        fprintf(stderr, "fake driver: %s\n", error);
        return LAUNCH_FAILED;
    })

// Codes from 1000 on stand for errors of a newer driver, which have no text here.
CALL(cuGetErrorName, (int code, const char** name), *name = nullptr; if (code >= 1000) return INVALID_VALUE;
     *name = code == OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR")
// The text lives as long as the thread.
CALL(cuGetErrorString, (int code, const char** text), *text = nullptr; if (code >= 1000) return INVALID_VALUE; static thread_local char words[32];
     snprintf(words, sizeof words, "code %d", code); *text = words)

// Calls that examples/on_device makes directly.
CALL(cuCtxSetCurrent, (void* context), if (context && !known(context)) return INVALID_CONTEXT;
     if (!stack.empty()) stack.pop_back(); if (context) stack.push_back(context))
UNCAPTURED(cuCtxSynchronize, (), ++synchronised; return wait_for_all(here))
UNCAPTURED(cuMemAlloc_v2, (uint64_t* address, size_t bytes), return allocate(address, bytes, here))
// A real driver usually waits for the device here, but does not promise to.
FREEING(cuMemFree_v2, (uint64_t address), if (int code = unless_capturing()) return code; ++synchronised;
        if (int code = release(address, here, streams)) return code)
// Copies in the null stream after waiting for earlier work in that stream. The call reads the host memory before it
// returns, and writes the device's memory later.
UNCAPTURED(cuMemcpyHtoD_v2, (uint64_t to, const void* from, size_t bytes),
           if (int code = writable(to, bytes, here)) return code;
           if (int code = wait(end_of(here->null_stream))) return code;
           std::string copy(static_cast<const char*>(from), bytes); if (int code = enqueue(here->null_stream, [=] {
               return memcpy(reinterpret_cast<void*>(to), copy.data(), bytes), 0;
           })) return code;
           if (block_of(locked, uint64_t(from), bytes)) return wait(end_of(here->null_stream)))
UNCAPTURED(cuMemcpyDtoH_v2, (void* to, uint64_t from, size_t bytes), if (int code = foreign(from, here)) return code;
           if (!block_of(memory, from, bytes)) return ILLEGAL_ADDRESS;
           if (int code = enqueue(here->null_stream,
                                  [=] { return memcpy(to, reinterpret_cast<void*>(from), bytes), 0; })) return code;
           return wait(end_of(here->null_stream)))

// Calls of trainers that capture their steps. The null stream cannot be captured.
IN_CONTEXT(cuStreamBeginCapture_v2, (void* stream, int), auto found = find(streams, stream);
           if (!found) return CAPTURE_UNSUPPORTED; if (found->capture) return ILLEGAL_STATE; found->graph.clear();
           found->capture = ACTIVE)
IN_CONTEXT(cuStreamEndCapture, (void* stream, void** graph), *graph = nullptr; auto found = find(streams, stream);
           if (!found || !found->capture) return ILLEGAL_STATE; bool invalid = found->capture == INVALIDATED;
           found->capture = NONE; if (invalid) return CAPTURE_INVALIDATED; *graph = keep(graphs, found->graph))
CALL(cuGraphGetNodes, (void* graph, void** nodes, size_t* count), auto found = find(graphs, graph);
     if (!found) return INVALID_VALUE; if (nodes) return NOT_SUPPORTED; *count = found->size())
CALL(cuGraphInstantiateWithFlags, (void** executable, void* graph, unsigned long long),
     auto found = find(graphs, graph); if (!found) return INVALID_VALUE; *executable = keep(graphs, Graph(*found)))
CALL(cuGraphDestroy, (void* graph), return forget(graphs, graph))
CALL(cuGraphExecDestroy, (void* executable), return forget(graphs, executable))
IN_CONTEXT(cuGraphLaunch, (void* executable, void* stream), auto found = find(graphs, executable);
           auto to = stream_of(stream, here); if (!found || !to) return INVALID_HANDLE;
           for (auto& work : *found) if (int code = enqueue(to, work)) return code)

#define OWN extern "C" __attribute__((visibility("default")))

// Current numbers of allocations, retained contexts, streams, modules, contexts on this thread's stack, page-locked
// blocks and events. After these come three counts: waits for streams and devices, launches, and uploads from pageable
// memory.
OWN void fake_cuda_state(int* state) {
    std::lock_guard<std::mutex> guard(mutex);
    int retained = 0;
    for (auto& context : contexts) retained += context.second.retained;
    auto there = std::count_if(streams.begin(), streams.end(), [](auto& stream) { return !stream->destroyed; });
    int now[9] = {int(memory.size()),  retained,          int(there) - int(contexts.size()),
                  int(modules.size()), int(stack.size()), int(locked.size() + events.size()),
                  synchronised,        launched,          pageable};
    memcpy(state, now, sizeof now);
}
// Enqueues a host function in a stream. fake_nccl.cpp and tests use this function.
OWN int fake_cuda_enqueue(int (*call)(void*), void* argument, void* stream) {
    std::lock_guard<std::mutex> guard(mutex);
    Context* here;
    if (int code = current(&here)) return code;
    auto found = stream_of(stream, here);
    return found ? enqueue(found, [=] { return call(argument); }) : INVALID_HANDLE;
}
OWN void* fake_cuda_last_stream() {
    std::lock_guard<std::mutex> guard(mutex);
    return last_stream;
}
