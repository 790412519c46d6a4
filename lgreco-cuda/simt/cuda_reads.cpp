// Counts the loads and stores of kernels that cuda_shim.h runs. The kernels are compiled with -fsanitize=thread. This
// file is linked in place of libtsan, and so it receives every load and store. `cuda_shim_watch` and
// `cuda_shim_watch_stores` set the watched memory.
#include "cuda_shim.h"
#include <map>
#include <set>
namespace {
uintptr_t watched;
size_t watched_bytes;
uint32_t* counts;  // loads of each byte
void count(const void* p, size_t n) {
    uintptr_t at = uintptr_t(p) - watched;
    if (!cuda_shim::S.in_kernel || at >= watched_bytes) return;
    for (size_t i = 0; i < n && at + i < watched_bytes; ++i) ++counts[at + i];
}
// A request is one store instruction of a warp: each lane's n-th store at one place of the code.
struct Stores {
    uintptr_t first = 0;
    size_t bytes = 0;
    std::map<std::tuple<uint64_t, unsigned, unsigned, uintptr_t>, uint64_t> times;  // by launch, block, thread and place
    std::map<std::tuple<uint64_t, unsigned, unsigned, uintptr_t, uint64_t>, std::set<uintptr_t>> sectors;
    uint64_t stored = 0;
} stores;
void store(const void* p, size_t n, const void* place) {
    uintptr_t at = uintptr_t(p) - stores.first;
    if (!cuda_shim::S.in_kernel || at >= stores.bytes) return;
    auto code = uintptr_t(place);
    uint64_t launch = cuda_shim::S.launch_id;
    uint64_t time = stores.times[{launch, blockIdx.x, threadIdx.x, code}]++;
    auto& sectors = stores.sectors[{launch, blockIdx.x, threadIdx.x / 32, code, time}];
    for (uintptr_t sector = uintptr_t(p) / 32; sector <= (uintptr_t(p) + n - 1) / 32; ++sector) sectors.insert(sector);
    stores.stored += n;
}
}  // namespace
extern "C" {
// Starts counting stores to this memory.
__attribute__((visibility("default"))) void cuda_shim_watch_stores(const void* p, size_t bytes) {
    stores = Stores();
    stores.first = uintptr_t(p);
    stores.bytes = bytes;
}
// Returns the number of stored bytes, and the number of 32-byte sectors that all store requests touch.
__attribute__((visibility("default"))) void cuda_shim_stores(uint64_t* found) {
    found[0] = stores.stored;
    found[1] = 0;
    for (auto& request : stores.sectors) found[1] += request.second.size();
}
// Starts counting loads from this memory. A length of 0 bytes stops the counting.
__attribute__((visibility("default"))) void cuda_shim_watch(const void* p, size_t bytes, uint32_t* of_bytes) {
    watched = uintptr_t(p);
    watched_bytes = bytes;
    counts = of_bytes;
}
#define RW(n)                                                   \
    void __tsan_read##n(void* p) { count(p, n); }               \
    void __tsan_write##n(void* p) { store(p, n, __builtin_return_address(0)); } \
    void __tsan_unaligned_read##n(void* p) { count(p, n); }     \
    void __tsan_unaligned_write##n(void* p) { store(p, n, __builtin_return_address(0)); } \
    void __tsan_volatile_read##n(void* p) { count(p, n); }      \
    void __tsan_volatile_write##n(void* p) { store(p, n, __builtin_return_address(0)); }
RW(1) RW(2) RW(4) RW(8) RW(16) void __tsan_read_range(void* p, size_t n) { count(p, n); }
void __tsan_write_range(void* p, size_t n) { store(p, n, __builtin_return_address(0)); }
void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_vptr_update(void**, void*) {}
void __tsan_vptr_read(void**) {}
}
