// Checks kernels that cuda_shim.h runs for data races. The kernels are compiled with -fsanitize=thread. This file is
// linked in place of libtsan, and so it receives every load, store, atomic and fence. The check reports two unordered
// accesses to one byte, unless both are reads or both are atomics. Accesses in one block are ordered by barriers.
// Accesses of two blocks in a launch are ordered by a release and an acquire.
//
// A release is an atomic in global memory after a fence. An acquire is an atomic that finds the release at the same
// address, followed by a fence. Different threads of a block may execute the access, the fence and the atomic, if block
// barriers lie between these operations. Warp barriers do not suffice for this. Blocks run one after another.
#include "cuda_shim.h"
#include <map>
#include <memory>
#include <unordered_map>
#include <dlfcn.h>
using cuda_shim::S;
namespace {
enum Spread : uint8_t { ONE, WARP_WIDE, BLOCK_WIDE };
// The last access of one kind by a block. `spread` says whether one thread, one warp or the whole block made unordered
// accesses.
struct Acc {
    uint32_t ep = 0, wep = 0;
    uint32_t fences = 0;  // number of fences that the thread had passed
    int16_t tid = -1;     // the last thread
    Spread spread = ONE;
};
struct Cell {
    Acc w, r, a;               // the last plain write, plain read and atomic
    Acc earlier_r, earlier_a;  // the last read and atomic before these, by another block
};
struct Page {
    Cell c[4096];
};
// The recorded accesses. If there are more than FEW_PAGES pages, a new launch drops all accesses of earlier launches.
constexpr size_t FEW_PAGES = 512;
std::unordered_map<uintptr_t, std::unique_ptr<Page>> pages;
uintptr_t last_k = ~0ull;
Page* last_p;

// The accesses that a block has released. A release covers all accesses in epochs before `before`, and each thread's
// accesses before its fence number `fences[thread]`.
struct Release {
    std::vector<uint32_t> fences;
    uint32_t before = 0;
    bool covers(const Acc& a) const { return a.ep < before || a.fences < fences[size_t(a.tid)]; }
    bool covers(const Release& other) const {
        if (other.before > before) return false;
        for (size_t i = 0; i < fences.size(); ++i)
            if (other.fences[i] > fences[i]) return false;
        return true;
    }
};
using Shared = std::shared_ptr<const Release>;
// A release that an atomic of the running block has read.
struct Seen {
    uint32_t block;
    Shared release;
    int thread;
    uint32_t ep, fences;  // the thread's state when it read the release
    bool fenced;          // whether a fence and a barrier came after
};
struct Thread {
    uint32_t fences = 0, ep = 0;  // number of fences, and the epoch of the last one
};
struct Running {
    uint32_t block = 0, ep = 0;
    std::vector<Thread> threads;
    bool has_fenced = false;  // whether a thread has fenced since the last barrier
    Shared release;           // released by the atomics of every thread
    std::vector<Seen> seen;
} now;
uint64_t launch = 0;
uint32_t first_ep = 0;                                            // first epoch of this launch
std::vector<uint32_t> block_of;                                   // the block of each epoch of this launch
std::unordered_map<uintptr_t, std::map<uint32_t, Shared>> released;  // releases by address, then by block

void pass_barrier() {
    if (!now.has_fenced) return;
    now.has_fenced = false;
    auto next = std::make_shared<Release>();
    for (const Thread& t : now.threads) {
        next->fences.push_back(t.fences);
        next->before = max(next->before, t.ep);
    }
    for (Seen& s : now.seen) s.fenced = s.fenced || s.ep < next->before || s.fences < next->fences[size_t(s.thread)];
    now.release = next;
}
// Updates the state if another block is now running, or if the block has passed a barrier.
void catch_up() {
    uint32_t ep = uint32_t(S.block_epoch);
    if (ep == now.ep) return;
    uint32_t block = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
    bool is_new = launch != S.launch_id;
    if (is_new) {
        launch = S.launch_id;
        first_ep = ep;
        block_of.clear();
        released.clear();
        if (pages.size() > FEW_PAGES) {
            pages.clear();
            last_k = ~0ull;
        }
    }
    if (is_new || block != now.block) {
        now = Running{};
        now.block = block;
        now.threads.resize(S.f.size());
    } else {
        pass_barrier();
    }
    now.ep = ep;
    block_of.resize(ep - first_ep + 1, block);
}
// The release that an atomic operation of thread `me` makes, or null.
Shared release_by(int me) {
    const Thread& t = now.threads[size_t(me)];
    if (t.ep != now.ep) return now.release;
    auto own = now.release ? std::make_shared<Release>(*now.release) : std::make_shared<Release>();
    own->fences.resize(now.threads.size());
    own->fences[size_t(me)] = t.fences;
    own->before = now.ep;
    return own;
}
// Whether thread `me` has acquired the release `s`.
bool is_acquired(const Seen& s, int me) {
    const Thread& t = now.threads[size_t(me)];
    return s.fenced || s.ep < t.ep || (s.thread == me && s.fences < t.fences);
}
void find(uint32_t block, const Shared& release, int me) {
    for (const Seen& s : now.seen)
        if (s.block == block && (s.thread == me || s.fenced) && s.release->covers(*release)) return;
    now.seen.push_back({block, release, me, now.ep, now.threads[size_t(me)].fences, false});
}
void add(std::map<uint32_t, Shared>& all, uint32_t block, const Shared& release) {
    Shared& old = all[block];
    if (!old || release->covers(*old)) {
        old = release;
    } else if (!old->covers(*release)) {
        auto both = std::make_shared<Release>(*old);
        both->before = max(both->before, release->before);
        for (size_t i = 0; i < both->fences.size(); ++i) both->fences[i] = max(both->fences[i], release->fences[i]);
        old = both;
    }
}
void acquire_and_release(uintptr_t p, int me) {
    auto there = released.find(p);
    if (there != released.end())
        for (const auto& [block, release] : there->second)
            if (block != now.block) find(block, release, me);
    if (Shared own = release_by(me)) add(released[p], now.block, own);
    for (const Seen& s : now.seen)
        if (is_acquired(s, me)) add(released[p], s.block, s.release);
}
uint32_t block_at(uint32_t ep) { return block_of[ep - first_ep]; }
bool is_of_another_block(const Acc& a) { return a.ep >= first_ep && block_at(a.ep) != now.block; }
bool ordered_between_blocks(const Acc& a, int me) {
    if (!is_of_another_block(a)) return true;
    for (const Seen& s : now.seen)
        if (s.block == block_at(a.ep) && is_acquired(s, me) && s.release->covers(a)) return true;
    return false;
}
// Whether a barrier orders an earlier access before the current access. This function treats accesses of other blocks
// as ordered.
bool is_before_barrier(const Acc& a, bool shared) {
    if (a.ep == now.ep) return false;
    return shared || a.ep < cuda_shim::device_epoch || a.ep < first_ep || is_of_another_block(a);
}
bool ordered_in_block(const Acc& a, bool shared, int me, int warp) {
    if (is_before_barrier(a, shared) || (a.spread == ONE && a.tid == me)) return true;
    return a.spread != BLOCK_WIDE && a.tid / 32 == warp && a.wep < S.warp_epoch[size_t(warp)];
}
// Records an access as the last one. If this access is unordered with the block's previous access, the record gets a
// wider `spread`, and so represents both accesses.
void remember(Acc& last, Acc& earlier, Acc a, bool shared, int me, int warp) {
    if (is_of_another_block(last))
        earlier = last;
    else if (!ordered_in_block(last, shared, me, warp))
        a.spread = last.spread == BLOCK_WIDE || last.tid / 32 != warp ? BLOCK_WIDE : WARP_WIDE;
    last = a;
}
// A data race: its kind, and the earlier of the two accesses.
struct Race {
    const char* what = nullptr;
    const char* between = "";
    Acc with;
};
Race race(const Cell& c, bool write, bool atomic, bool shared, int me, int warp) {
    const char* after_write = atomic ? "write-atomic" : write ? "write-write" : "write-read";
    const char* after_atomic = write ? "atomic-write" : "atomic-read";
    const char* after_read = atomic ? "read-atomic" : "read-write";
    if (!ordered_in_block(c.w, shared, me, warp)) return {after_write, "", c.w};
    if (!atomic && !ordered_in_block(c.a, shared, me, warp)) return {after_atomic, "", c.a};
    if (write && !ordered_in_block(c.r, shared, me, warp)) return {after_read, "", c.r};
    if (shared) return {};
    const char* blocks = " between blocks";
    if (!ordered_between_blocks(c.w, me)) return {after_write, blocks, c.w};
    for (const Acc* a : {&c.a, &c.earlier_a})
        if (!atomic && !ordered_between_blocks(*a, me)) return {after_atomic, blocks, *a};
    for (const Acc* r : {&c.r, &c.earlier_r})
        if (write && !ordered_between_blocks(*r, me)) return {after_read, blocks, *r};
    return {};
}
void report(const Race& found, bool shared, void* pc) {
    Dl_info d{};
    dladdr(pc, &d);
    char b[160];
    snprintf(b, sizeof b, "race (%s%s, %s memory, with thread %d of block %u) pc +0x%zx", found.what, found.between,
             shared ? "shared" : "global", found.with.tid, block_at(found.with.ep), (size_t)((char*)pc - (char*)d.dli_fbase));
    cuda_shim::fail(b, 0);
}
bool is_shared(uintptr_t p) {
    return p >= (uintptr_t)__start_cuda_shared && p < (uintptr_t)__stop_cuda_shared;
}
// Whether the address is neither shared nor global memory: a thread's own stack, or the shim's data.
bool is_own(uintptr_t p) {
    uintptr_t pool = (uintptr_t)S.pool, scheduler = (uintptr_t)&S, fibers = (uintptr_t)S.f.data();
    return (p >= pool && p < pool + S.pool_n * cuda_shim::STACK) || (p >= scheduler && p < scheduler + sizeof S) ||
           (p >= fibers && p < (uintptr_t)(S.f.data() + S.f.size())) ||
           (p >= (uintptr_t)&threadIdx && p < (uintptr_t)(&threadIdx + 1));
}
Cell& cell(uintptr_t p) {
    uintptr_t k = p >> 12;
    if (k != last_k) {
        std::unique_ptr<Page>& q = pages[k];
        if (!q) q = std::make_unique<Page>();
        last_k = k;
        last_p = q.get();
    }
    return last_p->c[p & 4095];
}
void acc(const volatile void* pv, size_t n, bool write, bool atomic, void* pc) {
    uintptr_t p = (uintptr_t)pv;
    if (!S.in_kernel || is_own(p)) return;
    catch_up();
    bool shared = is_shared(p);
    int me = int(S.cur - S.f.data()), warp = S.cur->warp;
    if (atomic && !shared) acquire_and_release(p, me);
    Acc a;
    a.ep = now.ep;
    a.wep = S.warp_epoch[size_t(warp)];
    a.fences = now.threads[size_t(me)].fences;
    a.tid = int16_t(me);
    for (size_t i = 0; i < n; ++i, ++p) {
        Cell& c = cell(p);
        if (S.err.empty()) {
            Race found = race(c, write, atomic, shared, me, warp);
            if (found.what) report(found, shared, pc);
        }
        if (atomic)
            remember(c.a, c.earlier_a, a, shared, me, warp);
        else if (write)
            c.w = a;
        else
            remember(c.r, c.earlier_r, a, shared, me, warp);
    }
}
}  // namespace
#define PC __builtin_return_address(0)
extern "C" {
void cuda_shim_atomic(const volatile void* p, size_t n) { acc(p, n, true, true, PC); }
void cuda_shim_fence() {
    catch_up();
    Thread& t = now.threads[size_t(S.cur - S.f.data())];
    ++t.fences;
    t.ep = now.ep;
    now.has_fenced = true;
}
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
