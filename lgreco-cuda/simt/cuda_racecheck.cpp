// A check for data races in kernels that cuda_shim.h runs: with the kernels compiled by -fsanitize=thread this is
// linked in libtsan's place, receives every load and store, and reports two of one block that no barrier orders, and
// writes of two blocks to one byte.
#include "cuda_shim.h"
#include <unordered_map>
#include <dlfcn.h>
using cuda_shim::S;
namespace {
struct Acc {
    uint64_t ep = 0;
    uint32_t wep = 0;
    int16_t tid = -1, warp = -1;
};
struct Cell {
    Acc w, r, a;  // last plain write, plain read, atomic
    uint64_t launch = 0;
    uint32_t block = 0;
};
struct Page {
    Cell c[4096];
};
std::unordered_map<uintptr_t, Page*> pages;
uintptr_t last_k = ~0ull;
Page* last_p;
bool ordered(const Acc& a, int me, int warp) {  // did access a happen before this one?
    if (a.ep != S.block_epoch || (a.tid == me)) return true;
    return a.warp == warp && a.wep < S.warp_epoch[warp];
}
void acc(const volatile void* pv, size_t n, bool write, bool atomic, void* pc) {
    if (!S.in_kernel) return;
    uintptr_t p = (uintptr_t)pv, pool = (uintptr_t)S.pool;
    if (p >= pool && p < pool + S.pool_n * cuda_shim::STACK) return;  // a thread's own stack
    uintptr_t rs = (uintptr_t)&S;
    if (p >= rs && p < rs + sizeof S) return;
    if ((p >= (uintptr_t)S.f.data() && p < (uintptr_t)(S.f.data() + S.f.size())) || p == (uintptr_t)&threadIdx.x ||
        (p >= (uintptr_t)&threadIdx && p < (uintptr_t)(&threadIdx + 1)))
        return;
    bool shared = (p >= (uintptr_t)__start_cuda_shared && p < (uintptr_t)__stop_cuda_shared) ||
                  (p >= (uintptr_t)S.dyn.data() && p < (uintptr_t)S.dyn.data() + S.dyn.size());
    int me = int(S.cur - S.f.data()), warp = S.cur->warp;
    uint32_t blk = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
    for (size_t i = 0; i < n; ++i, ++p) {
        uintptr_t k = p >> 12;
        if (k != last_k) {
            Page*& q = pages[k];
            if (!q) q = new Page;
            last_k = k;
            last_p = q;
        }
        Cell& c = last_p->c[p & 4095];
        const char* what = nullptr;
        if (!ordered(c.w, me, warp))
            what = atomic ? "write-atomic" : write ? "write-write" : "write-read";
        else if (!atomic && !ordered(c.a, me, warp))
            what = "atomic-plain";
        else if (write && !ordered(c.r, me, warp))
            what = "read-write";
        else if (write && !shared && !atomic && c.launch == S.launch_id && c.block != blk)
            what = "write-write between blocks";
        if (what && S.err.empty()) {
            Dl_info d{};
            dladdr(pc, &d);
            char b[160];
            snprintf(b, sizeof b, "race (%s, %s memory, with thread %d) pc +0x%zx", what, shared ? "shared" : "global",
                     write && what[0] == 'r' ? c.r.tid : c.w.tid, (size_t)((char*)pc - (char*)d.dli_fbase));
            cuda_shim::fail(b, 0);
        }
        Acc a;
        a.ep = S.block_epoch;
        a.wep = S.warp_epoch[warp];
        a.tid = int16_t(me);
        a.warp = int16_t(warp);
        if (write && !atomic) {
            c.w = a;
            c.launch = S.launch_id;
            c.block = blk;
        } else {
            Acc& o = atomic ? c.a : c.r;
            // What comes after this one comes after all that this one comes after.
            if (!ordered(o, me, warp)) {
                a.tid = -2;
                if (o.warp != warp) a.warp = -2;
            }
            o = a;
        }
    }
}
}  // namespace
#define PC __builtin_return_address(0)
extern "C" {
void cuda_shim_atomic(const volatile void* p, size_t n) { acc(p, n, true, true, PC); }
#define RW(n)                                                               \
    void __tsan_read##n(void* p) { acc(p, n, false, false, PC); }           \
    void __tsan_write##n(void* p) { acc(p, n, true, false, PC); }           \
    void __tsan_unaligned_read##n(void* p) { acc(p, n, false, false, PC); } \
    void __tsan_unaligned_write##n(void* p) { acc(p, n, true, false, PC); } \
    void __tsan_volatile_read##n(void* p) { acc(p, n, false, false, PC); }  \
    void __tsan_volatile_write##n(void* p) { acc(p, n, true, false, PC); }
RW(1) RW(2) RW(4) RW(8) RW(16) void __tsan_read_range(void* p, size_t n) { acc(p, n, false, false, PC); }
void __tsan_write_range(void* p, size_t n) { acc(p, n, true, false, PC); }
void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_vptr_update(void**, void*) {}
void __tsan_vptr_read(void**) {}
}
