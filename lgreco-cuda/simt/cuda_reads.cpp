// Counts what kernels that cuda_shim.h runs load: with the kernels compiled by -fsanitize=thread this is linked in libtsan's
// place and receives every load. What is watched is told by `cuda_shim_watch`.
#include "cuda_shim.h"
namespace {
uintptr_t watched;
size_t watched_bytes;
uint32_t* counts;  // of each byte
void count(const void* p, size_t n) {
    uintptr_t at = uintptr_t(p) - watched;
    if (!cuda_shim::S.in_kernel || at >= watched_bytes) return;
    for (size_t i = 0; i < n && at + i < watched_bytes; ++i) ++counts[at + i];
}
}  // namespace
extern "C" {
// From now on; nothing where there are no bytes.
__attribute__((visibility("default"))) void cuda_shim_watch(const void* p, size_t bytes, uint32_t* of_bytes) {
    watched = uintptr_t(p);
    watched_bytes = bytes;
    counts = of_bytes;
}
#define RW(n)                                                   \
    void __tsan_read##n(void* p) { count(p, n); }               \
    void __tsan_write##n(void*) {}                              \
    void __tsan_unaligned_read##n(void* p) { count(p, n); }     \
    void __tsan_unaligned_write##n(void*) {}                    \
    void __tsan_volatile_read##n(void* p) { count(p, n); }      \
    void __tsan_volatile_write##n(void*) {}
RW(1) RW(2) RW(4) RW(8) RW(16) void __tsan_read_range(void* p, size_t n) { count(p, n); }
void __tsan_write_range(void*, size_t) {}
void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_vptr_update(void**, void*) {}
void __tsan_vptr_read(void**) {}
}
