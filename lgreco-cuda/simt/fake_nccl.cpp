// A simulated NCCL for tests: collectives over MPI, enqueued in the given stream of the simulated driver
// (fake_driver.cpp). Memory is the CPU's. The collectives of a communicator run in the order of the calls, even in
// different streams.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <dlfcn.h>
#include <functional>
#include <memory>

#define OMPI_SKIP_MPICXX 1
#include <mpi.h>

namespace {

// State of a rank's communicator.
struct Communicator {
    MPI_Comm ranks;
    int rank;
    MPI_Op sum_of_bf16;
    // Event that is recorded after the last collective.
    void* event;
};

// Calls a function of the driver.
template <typename... Arguments>
int driver(const char* name, Arguments... arguments) {
    const auto function = reinterpret_cast<int (*)(Arguments...)>(dlsym(RTLD_DEFAULT, name));
    return function == nullptr ? 1 : function(arguments...);
}

int perform(void* argument) {
    const std::unique_ptr<std::function<int()>> work(static_cast<std::function<int()>*>(argument));
    return (*work)() ? 700 : 0;
}

// Enqueues a collective after the communicator's earlier collectives.
int enqueue(const Communicator* own, void* stream, std::function<int()> work) {
    if (driver("cuStreamWaitEvent", stream, own->event, 0u)) return 1;
    auto kept = std::make_unique<std::function<int()>>(std::move(work));
    if (driver("fake_cuda_enqueue", &perform, static_cast<void*>(kept.get()), stream)) return 1;
    kept.release();
    return driver("cuEventRecord", own->event, stream) ? 1 : 0;
}

float widened(std::uint16_t bf16) {
    const std::uint32_t bits = std::uint32_t(bf16) << 16;
    float value;
    std::memcpy(&value, &bits, sizeof value);
    return value;
}

// Rounds to the nearest bf16, ties to even.
std::uint16_t rounded(float value) {
    std::uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    if (value != value) return std::uint16_t(bits >> 16 | 0x40);
    return std::uint16_t((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

void add_bf16(void* from, void* to, int* count, MPI_Datatype*) {
    const auto* terms = static_cast<const std::uint16_t*>(from);
    auto* sums = static_cast<std::uint16_t*>(to);
    for (int i = 0; i < *count; i++) sums[i] = rounded(widened(sums[i]) + widened(terms[i]));
}

}  // namespace

struct Id {
    char internal[128];
};

#define EXPORTED extern "C" __attribute__((visibility("default")))

EXPORTED int ncclGetUniqueId(Id* id) {
    std::memset(id, 7, sizeof *id);
    return 0;
}

EXPORTED int ncclCommInitRank(void** communicator, int ranks, Id id, int rank) {
    int there = 0;
    MPI_Comm own;
    if (id.internal[127] != 7 || MPI_Comm_dup(MPI_COMM_WORLD, &own) != 0) return 4;
    MPI_Comm_size(own, &there);
    if (there != ranks) return 4;
    auto made = std::make_unique<Communicator>(Communicator{own, rank, MPI_OP_NULL, nullptr});
    MPI_Op_create(add_bf16, 1, &made->sum_of_bf16);
    if (driver("cuEventCreate", &made->event, 0u)) return 1;
    *communicator = made.release();
    return 0;
}

EXPORTED int ncclCommDestroy(void* communicator) {
    auto* own = static_cast<Communicator*>(communicator);
    driver("cuEventDestroy_v2", own->event);
    MPI_Op_free(&own->sum_of_bf16);
    MPI_Comm_free(&own->ranks);
    delete own;
    return 0;
}

EXPORTED const char* ncclGetErrorString(int code) { return code == 4 ? "invalid argument" : "no driver"; }

// Supports only an in-place all-gather of bytes.
EXPORTED int ncclAllGather(const void* send, void* received, size_t count, int type, void* communicator, void* stream) {
    const auto* own = static_cast<Communicator*>(communicator);
    if (type != 1 || send != static_cast<char*>(received) + size_t(own->rank) * count) return 4;
    return enqueue(own, stream, [=] {
        return MPI_Allgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, received, int(count), MPI_BYTE, own->ranks);
    });
}

// Supports only in-place sums of f32 and of bf16.
EXPORTED int ncclAllReduce(const void* send, void* received, size_t count, int type, int sum, void* communicator,
                           void* stream) {
    const auto* own = static_cast<Communicator*>(communicator);
    if ((type != 7 && type != 9) || sum != 0 || send != received) return 4;
    return enqueue(own, stream, [=] {
        const bool bf16 = type == 9;
        return MPI_Allreduce(MPI_IN_PLACE, received, int(count), bf16 ? MPI_UINT16_T : MPI_FLOAT,
                             bf16 ? own->sum_of_bf16 : MPI_SUM, own->ranks);
    });
}
