// The functions of NCCL and of the CUDA driver that nccl_trainer.cpp calls. Both libraries are loaded at run time, so
// the compiler needs neither.
#ifndef LGRECO_EXAMPLES_NCCL_HPP
#define LGRECO_EXAMPLES_NCCL_HPP

#include <dlfcn.h>

#include <cstddef>
#include <cstdint>
#include <exception>
#include <stdexcept>
#include <string>

// A shared library that is never unloaded.
class Library {
public:
    explicit Library(const char *name) : name_(name), library_(dlopen(name, RTLD_NOW | RTLD_GLOBAL)) {
        if (library_ == nullptr) throw std::runtime_error(std::string(name) + " does not load: " + dlerror());
    }

    template <typename Function> Function find(const char *function) const {
        void *const found = dlsym(library_, function);
        if (found == nullptr) throw std::runtime_error(name_ + " has no " + function);
        return reinterpret_cast<Function>(found);
    }

private:
    std::string name_;
    void *library_;
};

using Stream = void *;
using Event = void *;

// A GPU in its primary context, which stays current on this thread. Rank r of a machine uses GPU r, modulo the number
// of GPUs.
class Driver {
public:
    explicit Driver(std::uint32_t rank_on_machine) : library_("libcuda.so.1") {
        int devices = 0, device = 0;
        void *context = nullptr;
        call<unsigned>("cuInit", 0);
        call<int *>("cuDeviceGetCount", &devices);
        if (devices == 0) throw std::runtime_error("there is no GPU");
        call<int *, int>("cuDeviceGet", &device, static_cast<int>(rank_on_machine) % devices);
        call<void **, int>("cuDevicePrimaryCtxRetain", &context, device);
        call<void *>("cuCtxSetCurrent", context);
    }

    Stream stream() const {
        Stream made = nullptr;
        call<Stream *, unsigned>("cuStreamCreate", &made, 1);  // does not wait for the default stream
        return made;
    }

    void *allocate(std::size_t bytes) const {
        std::uint64_t address = 0;
        call<std::uint64_t *, std::size_t>("cuMemAlloc_v2", &address, bytes);
        return reinterpret_cast<void *>(address);
    }

    // Allocates page-locked host memory, so that copies run while the host does other work.
    void *allocate_locked(std::size_t bytes) const {
        void *memory = nullptr;
        call<void **, std::size_t, unsigned>("cuMemHostAlloc", &memory, bytes, 0);
        return memory;
    }

    void upload(void *to, const void *from, std::size_t bytes, Stream stream) const {
        call<std::uint64_t, const void *, std::size_t, Stream>("cuMemcpyHtoDAsync_v2", reinterpret_cast<std::uint64_t>(to),
                                                               from, bytes, stream);
    }

    void download(void *to, const void *from, std::size_t bytes, Stream stream) const {
        call<void *, std::uint64_t, std::size_t, Stream>("cuMemcpyDtoHAsync_v2", to, reinterpret_cast<std::uint64_t>(from),
                                                         bytes, stream);
    }

    void wait(Stream stream) const { call<Stream>("cuStreamSynchronize", stream); }

    // Makes an event, which marks a position in a stream.
    Event event() const {
        Event made = nullptr;
        call<Event *, unsigned>("cuEventCreate", &made, 2);  // without timing
        return made;
    }

    void record(Event event, Stream stream) const { call<Event, Stream>("cuEventRecord", event, stream); }

    // Waits for the work that was enqueued before the event, but not for later work.
    void wait_for(Event event) const { call<Event>("cuEventSynchronize", event); }

private:
    template <typename... Arguments> void call(const char *function, Arguments... arguments) const {
        const int code = library_.find<int (*)(Arguments...)>(function)(arguments...);
        if (code != 0) throw std::runtime_error(std::string(function) + " fails with code " + std::to_string(code));
    }

    Library library_;
};

// The communicator of all ranks.
class Nccl {
public:
    struct Id { char internal[128]; };  // ncclUniqueId

    // Makes NCCL's id of the group, which rank 0 sends to the other ranks.
    Id id() const {
        Id made{};
        call<Id *>("ncclGetUniqueId", &made);
        return made;
    }

    void join(std::uint32_t ranks, const Id &id, std::uint32_t rank) {
        call<void **, int, Id, int>("ncclCommInitRank", &communicator_, static_cast<int>(ranks), id, static_cast<int>(rank));
        ranks_ = ranks;
        rank_ = rank;
    }

    std::uint32_t rank() const { return rank_; }
    std::uint32_t ranks() const { return ranks_; }

    // Gathers `bytes` of every rank; this rank's bytes are already in place.
    void all_gather(void *buffer, std::size_t bytes, Stream stream) const {
        call<const void *, void *, std::size_t, int, void *, Stream>(
            "ncclAllGather", static_cast<char *>(buffer) + rank_ * bytes, buffer, bytes, bytes_, communicator_, stream);
    }

    void all_reduce_sum(void *buffer, std::size_t count, bool bf16, Stream stream) const {
        call<const void *, void *, std::size_t, int, int, void *, Stream>(
            "ncclAllReduce", buffer, buffer, count, bf16 ? bf16_ : f32_, sum_, communicator_, stream);
    }

    // Frees nothing after an error: other ranks may be inside a collective, and ncclCommDestroy would wait for them.
    ~Nccl() {
        if (communicator_ != nullptr && std::uncaught_exceptions() == 0) library_.find<int (*)(void *)>("ncclCommDestroy")(communicator_);
    }

private:
    static constexpr int bytes_ = 1, f32_ = 7, bf16_ = 9, sum_ = 0;  // ncclUint8, ncclFloat32, ncclBfloat16, ncclSum

    template <typename... Arguments> void call(const char *function, Arguments... arguments) const {
        const int code = library_.find<int (*)(Arguments...)>(function)(arguments...);
        if (code == 0) return;
        const auto text = library_.find<const char *(*)(int)>("ncclGetErrorString");
        throw std::runtime_error(std::string(function) + ": " + text(code));
    }

    Library library_{"libnccl.so.2"};
    void *communicator_ = nullptr;
    std::uint32_t rank_ = 0, ranks_ = 1;
};

#endif // LGRECO_EXAMPLES_NCCL_HPP
