// Runs CUDA kernels on the CPU, for tests of their logic. Each CUDA thread is a fiber. In random orders, a few blocks
// run at a time. Threads take turns. Deadlocks are reported, and shared memory starts as NaN. Not supported: grid-wide
// barriers, textures, inline PTX, and CUDA's memory model.
#pragma once
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <cmath>
#include <string>
#include <tuple>
#include <utility>
#include <vector>
#include <algorithm>
#include <sys/mman.h>
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
struct uint3 {
    unsigned x, y, z;
};
struct alignas(8) uint2 {
    unsigned x, y;
};
struct alignas(16) uint4 {
    unsigned x, y, z, w;
    // Stores all 16 bytes at once, as a GPU does.
    __attribute__((always_inline)) uint4& operator=(const uint4& other) {
        typedef unsigned Vector __attribute__((vector_size(16), may_alias));
        *reinterpret_cast<Vector*>(this) = *reinterpret_cast<const Vector*>(&other);
        return *this;
    }
};
struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned a = 1, unsigned b = 1, unsigned c = 1) : x(a), y(b), z(c) {}
};
inline uint3 threadIdx, blockIdx;
inline dim3 blockDim, gridDim;
constexpr int warpSize = 32;
#define __global__
#define __device__
#define __host__
#define __constant__ static
#define __forceinline__ inline __attribute__((always_inline))
#define __launch_bounds__(...)
#define __shared__ static __attribute__((section("cuda_shared")))  // a static variable holds the running block's copy
#define SHIM_NOSAN __attribute__((no_sanitize("thread")))
extern "C" {
extern char __start_cuda_shared[] __attribute__((weak));
extern char __stop_cuda_shared[] __attribute__((weak));
}

extern "C" {
void cuda_shim_atomic(const volatile void*, size_t) __attribute__((weak));
void cuda_shim_fence() __attribute__((weak));
}  // racecheck hooks
namespace cuda_shim {
enum St : uint8_t { READY, BLOCK, WARP, DONE };
enum Op : uint8_t { SHFL, BALLOT, SYNCWARP };
struct Fiber {
    void* sp;
    char* stack;
    uint3 tid;
    St st;
    Op op;
    uint32_t mask;
    int line;
    uint64_t in, out;
    int arg, warp, lane, vote;
};
constexpr size_t STACK = 64 << 10;
constexpr size_t RESIDENT = 3;  // blocks that run at a time
struct Block {
    uint3 at;
    std::vector<Fiber> f;
    std::vector<int> nwait, order;
    std::vector<char> shared;  // its shared memory while another block runs
    std::vector<uint32_t> warp_epoch;
    int alive = 0, at_bar = 0;
};
struct Sched : Block {  // the block that is running
    std::vector<Block> aside;
    char* pool = nullptr;
    size_t pool_n = 0;
    Fiber* cur = nullptr;
    void* main_sp = nullptr;
    int n = 0;
    void (*call)(void*) = nullptr;
    void* ctx = nullptr;
    std::string err;
    uint64_t rng = 1;
    int mode = 0;
    uint64_t switches = 0, block_epoch = 0;
    bool yield_on_atomic = false, in_kernel = false;
    uint64_t launch_id = 0;
};
inline Sched S;
// Block barriers up to this epoch order accesses to shared and global memory. Later barriers order only accesses to
// shared memory. By default, all barriers order both kinds, as in CUDA.
inline uint64_t device_epoch = ~0ull;
inline uint64_t rnd() {
    S.rng ^= S.rng << 13;
    S.rng ^= S.rng >> 7;
    S.rng ^= S.rng << 17;
    return S.rng;
}
extern "C" void cuda_shim_swap(void** save, void* load);
asm(R"(.text
.weak cuda_shim_swap
.type cuda_shim_swap,@function
cuda_shim_swap:
  pushq %rbp; pushq %rbx; pushq %r12; pushq %r13; pushq %r14; pushq %r15
  movq %rsp, (%rdi); movq %rsi, %rsp
  popq %r15; popq %r14; popq %r13; popq %r12; popq %rbx; popq %rbp
  ret
.size cuda_shim_swap, .-cuda_shim_swap
)");
SHIM_NOSAN inline void to_main() {  // fiber -> scheduler
    ++S.switches;
#if defined(__SANITIZE_ADDRESS__)
    void* fake;
    __sanitizer_start_switch_fiber(S.cur->st == DONE ? nullptr : &fake, nullptr, 0);
#endif
    Fiber* me = S.cur;
    cuda_shim_swap(&me->sp, S.main_sp);
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(fake, nullptr, nullptr);
#endif
}
SHIM_NOSAN inline void trampoline() {
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(nullptr, nullptr, nullptr);
#endif
    S.call(S.ctx);
    S.cur->st = DONE;
    --S.alive;
    to_main();
    __builtin_trap();
}
SHIM_NOSAN inline void to_fiber(Fiber& x) {  // scheduler -> fiber
    S.cur = &x;
    threadIdx = x.tid;
    S.in_kernel = true;
#if defined(__SANITIZE_ADDRESS__)
    void* fake;
    __sanitizer_start_switch_fiber(&fake, x.stack, STACK);
#endif
    cuda_shim_swap(&S.main_sp, x.sp);
#if defined(__SANITIZE_ADDRESS__)
    __sanitizer_finish_switch_fiber(fake, nullptr, nullptr);
#endif
    S.in_kernel = false;
}
SHIM_NOSAN inline void start(Fiber& x) {
#if defined(__SANITIZE_ADDRESS__)
    __asan_unpoison_memory_region(x.stack, STACK);  // for a previous fiber that left in the middle of a function
#endif
    void** p = reinterpret_cast<void**>(x.stack + STACK) - 2;
    *p = reinterpret_cast<void*>(&trampoline);
    p -= 6;
    memset(p, 0, 48);
    x.sp = p;
}
// Copies memory, including gaps between variables, without the address sanitizer's check.
inline void copy_raw(char* to, const char* from, size_t bytes) {
    asm volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(bytes)::"memory");
}
inline size_t shared_bytes() { return __start_cuda_shared ? size_t(__stop_cuda_shared - __start_cuda_shared) : 0; }
inline void poison() {
    char* to = __start_cuda_shared;
    size_t bytes = shared_bytes();
    asm volatile("rep stosb" : "+D"(to), "+c"(bytes) : "a"(0xFF) : "memory");
}
SHIM_NOSAN inline void fail(const char* what, int line) {
    if (S.err.empty()) {
        char b[256];
        snprintf(b, sizeof b, "%s at line %d, block (%u,%u,%u) thread (%u,%u,%u)", what, line, blockIdx.x, blockIdx.y,
                 blockIdx.z, threadIdx.x, threadIdx.y, threadIdx.z);
        S.err = b;
    }
}
SHIM_NOSAN inline bool complete(int warp, uint32_t m,
                                Op op) {  // completes a warp collective when all live lanes of m have arrived
    int base = warp * 32;
    uint32_t here = 0, ballot = 0;
    for (int l = 0; l < 32 && base + l < S.n; ++l)
        if (m >> l & 1) {
            Fiber& x = S.f[base + l];
            if (x.st == DONE) continue;
            if (x.st != WARP || x.mask != m || x.op != op) return false;
            here |= 1u << l;
            if (x.vote) ballot |= 1u << l;
        }
    if (op == SYNCWARP) ++S.warp_epoch[warp];
    for (int l = 0; l < 32; ++l)
        if (here >> l & 1) {
            Fiber& x = S.f[base + l];
            if (op == BALLOT)
                x.out = ballot;
            else if (op == SHFL) {
                if (here >> x.arg & 1)
                    x.out = S.f[base + x.arg].in;
                else {
                    x.out = 0x7ff7dead7fb7deadull;
                }
            }  // undefined on a GPU: poison (a NaN)
            x.st = READY;
            --S.nwait[warp];
        }
    return true;
}
SHIM_NOSAN inline Fiber& warp_op(Op op, uint32_t m, int line) {
    Fiber& x = *S.cur;
    x.op = op;
    x.mask = m;
    x.line = line;
    if (!(m >> x.lane & 1)) {
        fail("lane not in its own mask", line);
        to_main();
    }
    x.st = WARP;
    int w = ++S.nwait[x.warp];
    if (w < __builtin_popcount(m) || !complete(x.warp, m, op)) to_main();
    return x;
}
SHIM_NOSAN inline void sync_block(int line, int site) {
    Fiber& x = *S.cur;
    x.st = BLOCK;
    x.line = line;
    x.arg = site;
    ++S.at_bar;
    to_main();
}
SHIM_NOSAN inline void maybe_yield() {
    if (S.yield_on_atomic && (rnd() & 3) == 0) to_main();
}
template <class T>
SHIM_NOSAN inline T shfl(uint32_t m, T v, int src, int line) {
    static_assert(sizeof(T) <= 8, "8 bytes at most");
    Fiber& x = *S.cur;
    x.in = 0;
    memcpy(&x.in, &v, sizeof(T));
    x.arg = src;
    warp_op(SHFL, m, line);
    T r;
    memcpy(&r, &x.out, sizeof(T));
    return r;
}
SHIM_NOSAN inline unsigned ballot(uint32_t m, bool p, int line) {
    S.cur->vote = p;
    return unsigned(warp_op(BALLOT, m, line).out);
}
SHIM_NOSAN inline int lane() { return S.cur->lane; }
// Starts a block. The stacks of the block's threads begin at `pool`.
SHIM_NOSAN inline void begin(uint3 at, char* pool) {
    size_t n = size_t(S.n);
    dim3 b = blockDim;
    S.at = at;
    S.f.resize(n);
    S.order.resize(n);
    S.nwait.assign((n + 31) / 32, 0);
    S.warp_epoch.assign((n + 31) / 32, 0);
    S.alive = int(n);
    S.at_bar = 0;
    ++S.block_epoch;
    poison();  // shared memory starts undefined
    for (size_t i = 0; i < n; ++i) {
        Fiber& x = S.f[i];
        x.stack = pool + i * STACK;
        x.tid = {unsigned(i % b.x), unsigned(i / b.x % b.y), unsigned(i / b.x / b.y)};
        x.st = READY;
        x.warp = int(i / 32);
        x.lane = int(i % 32);
        S.order[i] = S.mode == 1 ? int(n - 1 - i) : int(i);
        start(x);
    }
}
// Runs every thread of the block that is not waiting, up to its next switch. Sets the error after a deadlock or a wrong
// barrier.
SHIM_NOSAN inline void turn() {
    size_t n = size_t(S.n);
    if (S.mode >= 2)
        for (size_t i = n; i > 1; --i) std::swap(S.order[i - 1], S.order[rnd() % i]);
    bool progress = false;
    for (size_t i = 0; i < n; ++i) {
        Fiber& x = S.f[S.order[i]];
        if (x.st == READY) {
            progress = true;
            to_fiber(x);
            if (!S.err.empty()) return;
        }
    }
    if (S.alive && S.at_bar == S.alive) {
        int site = -1;
        for (auto& x : S.f)
            if (x.st == BLOCK) {
                if (site < 0)
                    site = x.arg;
                else if (x.arg != site) {
                    threadIdx = x.tid;
                    return fail("__syncthreads reached at two places", x.line);
                }
                x.st = READY;
            }
        S.at_bar = 0;
        ++S.block_epoch;
        progress = true;
    }
    if (!progress)
        for (auto& x : S.f)
            if (x.st == WARP && complete(x.warp, x.mask, x.op)) {
                progress = true;
                break;
            }
    if (!progress)
        for (auto& x : S.f)
            if (x.st != DONE) {
                threadIdx = x.tid;
                return fail(x.st == BLOCK ? "deadlock: waiting in __syncthreads"
                                          : "deadlock: waiting in a warp collective",
                            x.line);
            }
}
// Switches from the running block to another.
SHIM_NOSAN inline void change(Block& other) {
    S.shared.resize(shared_bytes());
    copy_raw(S.shared.data(), __start_cuda_shared, S.shared.size());
    std::swap(static_cast<Block&>(S), other);
    copy_raw(__start_cuda_shared, S.shared.data(), S.shared.size());
    blockIdx = S.at;
}
// The order in which a grid's blocks start. In random orders, the block `mode - 2` (modulo the number of blocks) starts
// last.
inline std::vector<uint64_t> sequence(std::vector<uint64_t> all) {
    uint64_t blocks = all.size();
    if (S.mode == 1) std::reverse(all.begin(), all.end());
    if (S.mode >= 2 && blocks > 0) {
        std::swap(all[(S.mode - 2) % blocks], all[blocks - 1]);
        for (uint64_t i = blocks - 1; i > 1; --i) std::swap(all[i - 1], all[rnd() % i]);
    }
    return all;
}
// runs the chosen blocks of a grid; returns "" or an error text
SHIM_NOSAN inline std::string run(dim3 g, dim3 b, std::vector<uint64_t> chosen, void (*call)(void*), void* ctx) {
    size_t n = size_t(b.x) * b.y * b.z;
    if (n == 0 || n > 1024) return "block size";
    S.rng = 0x9E3779B97F4A7C15ull * (S.mode + 1) | 1;
    S.yield_on_atomic = S.mode >= 2;
    if (S.pool_n < RESIDENT * n) {
        if (S.pool) munmap(S.pool, S.pool_n * STACK);
        S.pool_n = RESIDENT * n;
        S.pool = static_cast<char*>(
            mmap(nullptr, S.pool_n * STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    }
    S.err.clear();
    ++S.launch_id;
    S.n = int(n);
    S.call = call;
    S.ctx = ctx;
    blockDim = b;
    gridDim = g;
    std::vector<uint64_t> blocks = sequence(std::move(chosen));
    // The race check supports only one block at a time.
    size_t resident = S.mode >= 2 && !cuda_shim_atomic ? RESIDENT : 1;
    S.aside.clear();
    size_t running = 0;
    std::vector<char*> stacks;
    for (size_t i = resident; i-- > 0;) stacks.push_back(S.pool + i * n * STACK);
    for (size_t next = 0; next < blocks.size() || running > 0;) {
        // The last block begins when all other blocks are done.
        bool may = next + 1 < blocks.size() ? running < resident : next < blocks.size() && running == 0;
        if (may) {
            if (running > 0) {
                S.aside.emplace_back();
                change(S.aside.back());
            }
            uint64_t at = blocks[next++];
            blockIdx = uint3{unsigned(at % g.x), unsigned(at / g.x % g.y), unsigned(at / g.x / g.y)};
            begin(blockIdx, stacks.back());
            stacks.pop_back();
            ++running;
            continue;
        }
        if (!S.aside.empty() && rnd() % 2 == 0) change(S.aside[rnd() % S.aside.size()]);
        turn();
        if (!S.err.empty()) return S.err;
        if (S.alive == 0) {
            stacks.push_back(S.f[0].stack);
            if (--running > 0) {
                change(S.aside.back());
                S.aside.pop_back();
            }
        }
    }
    return "";
}
template <class... A, size_t... I>
inline void unpack(void (*k)(A...), void** p, std::index_sequence<I...>) {
    k(*static_cast<std::decay_t<A>*>(p[I])...);
}
// `params` has the format of cuLaunchKernel's kernelParams. The first parameter is a struct of `size` bytes. `count` is
// the number of parameters, or 0 if the number is unknown.
template <class... A>
inline std::string launch(void (*k)(A...), dim3 g, dim3 b, std::vector<uint64_t> chosen, void** params,
                          size_t size, size_t count) {
    if (count != 0 && sizeof...(A) != count)
        return "takes " + std::to_string(sizeof...(A)) + " arguments, not " + std::to_string(count);
    size_t first = sizeof(std::tuple_element_t<0, std::tuple<std::decay_t<A>...>>);
    if (count != 0 && first != size)
        return "takes parameters of " + std::to_string(first) + " bytes, not " + std::to_string(size);
    struct C {
        void (*k)(A...);
        void** p;
    } c{k, params};
    return run(
        g, b, std::move(chosen),
        [](void* v) {
            C* c = static_cast<C*>(v);
            unpack(c->k, c->p, std::index_sequence_for<A...>{});
        },
        &c);
}
template <class T, class F>
SHIM_NOSAN inline T rmw(T* p, F f) {
    maybe_yield();
    if (cuda_shim_atomic) cuda_shim_atomic(p, sizeof(T));
    T o = *p;
    *p = f(o);
    return o;
}
}  // namespace cuda_shim
// Entry point of a kernel, for dlsym. Threads of a block and blocks of a grid run forwards (order 0), backwards (1) or
// at random (from 2 on). Orders 0 and 1 run one block after another. In random orders, threads also switch at atomics,
// and a few blocks run at a time. The last block to start is block `order - 2` (modulo the number of blocks); all other
// blocks are done by then. Returns whether the kernel failed, and the error text.
struct cuda_shim_launch {
    unsigned grid[3], block[3];
    void** params;
    size_t size, count;
    int order;
    char* error;
    size_t room;
    const uint64_t* chosen;  // indices of the blocks to run; null for all
    size_t chosen_count;
};
template <class... A>
inline void cuda_shim_arguments(void (*)(A...), size_t* first, size_t* count) {
    *first = sizeof(std::tuple_element_t<0, std::tuple<std::decay_t<A>...>>);
    *count = sizeof...(A);
}
namespace cuda_shim {
inline std::vector<uint64_t> chosen(const cuda_shim_launch* l) {
    if (l->chosen) return std::vector<uint64_t>(l->chosen, l->chosen + l->chosen_count);
    std::vector<uint64_t> all(uint64_t(l->grid[0]) * l->grid[1] * l->grid[2]);
    for (uint64_t i = 0; i < all.size(); ++i) all[i] = i;
    return all;
}
}  // namespace cuda_shim
// Exports a kernel as shim_KERNEL. The function shim_arguments_KERNEL returns the size of the kernel's first argument
// in bytes, and the number of arguments. All arguments after the first are pointers.
#define SHIM_EXPORT(kernel)                                                                                   \
    extern "C" __attribute__((visibility("default"))) void shim_arguments_##kernel(size_t* f, size_t* n) {    \
        cuda_shim_arguments(kernel, f, n);                                                                    \
    }                                                                                                         \
    extern "C" __attribute__((visibility("default"))) int shim_##kernel(const cuda_shim_launch* l) {          \
        cuda_shim::S.mode = l->order;                                                                         \
        const unsigned *g = l->grid, *b = l->block;                                                           \
        std::string e = cuda_shim::launch(kernel, dim3(g[0], g[1], g[2]), dim3(b[0], b[1], b[2]), \
                                          cuda_shim::chosen(l), l->params, l->size, l->count);                \
        snprintf(l->error, l->room, "%s", e.c_str());                                                         \
        return !e.empty();                                                                                    \
    }
#define __builtin_assume(condition) ((void)0)
#define __syncthreads() cuda_shim::sync_block(__LINE__, __COUNTER__)
#define __syncwarp(...) ((void)cuda_shim::warp_op(cuda_shim::SYNCWARP, cuda_shim_mask(__VA_ARGS__), __LINE__))
inline uint32_t cuda_shim_mask(uint32_t m = 0xffffffffu) { return m; }
#define CUDA_SHIM_W(w)                                        \
    int l = cuda_shim::lane(), s = l & ~((w)-1), e = s + (w); \
    (void)s;                                                  \
    (void)e
template <class T>
SHIM_NOSAN inline T __shfl_sync(uint32_t m, T v, int src, int w = 32, int line = __builtin_LINE()) {
    CUDA_SHIM_W(w);
    return cuda_shim::shfl(m, v, s + (src & (w - 1)), line);
}
template <class T>
SHIM_NOSAN inline T __shfl_down_sync(uint32_t m, T v, unsigned d, int w = 32, int line = __builtin_LINE()) {
    CUDA_SHIM_W(w);
    return cuda_shim::shfl(m, v, l + int(d) < e ? l + int(d) : l, line);
}
template <class T>
SHIM_NOSAN inline T __shfl_up_sync(uint32_t m, T v, unsigned d, int w = 32, int line = __builtin_LINE()) {
    CUDA_SHIM_W(w);
    return cuda_shim::shfl(m, v, l - int(d) >= s ? l - int(d) : l, line);
}
template <class T>
SHIM_NOSAN inline T __shfl_xor_sync(uint32_t m, T v, int x, int w = 32, int line = __builtin_LINE()) {
    CUDA_SHIM_W(w);
    int t = l ^ x;
    return cuda_shim::shfl(m, v, t < e ? t : l, line);
}
SHIM_NOSAN inline unsigned __ballot_sync(uint32_t m, int p, int line = __builtin_LINE()) {
    return cuda_shim::ballot(m, p != 0, line);
}
SHIM_NOSAN inline int __any_sync(uint32_t m, int p, int line = __builtin_LINE()) {
    return cuda_shim::ballot(m, p != 0, line) != 0;
}
SHIM_NOSAN inline int __all_sync(uint32_t m, int p, int line = __builtin_LINE()) {
    return cuda_shim::ballot(m, p == 0, line) == 0;
}
template <class T>
SHIM_NOSAN inline T atomicAdd(T* p, std::common_type_t<T> v) {
    return cuda_shim::rmw(p, [=](T o) { return T(o + v); });
}
template <class T>
SHIM_NOSAN inline T atomicSub(T* p, std::common_type_t<T> v) {
    return cuda_shim::rmw(p, [=](T o) { return T(o - v); });
}
template <class T>
SHIM_NOSAN inline T atomicMax(T* p, std::common_type_t<T> v) {
    return cuda_shim::rmw(p, [=](T o) { return o < v ? v : o; });
}
template <class T>
SHIM_NOSAN inline T atomicMin(T* p, std::common_type_t<T> v) {
    return cuda_shim::rmw(p, [=](T o) { return v < o ? v : o; });
}
template <class T>
SHIM_NOSAN inline T atomicOr(T* p, std::common_type_t<T> v) {
    return cuda_shim::rmw(p, [=](T o) { return T(o | v); });
}
template <class T>
SHIM_NOSAN inline T atomicAnd(T* p, std::common_type_t<T> v) {
    return cuda_shim::rmw(p, [=](T o) { return T(o & v); });
}
template <class T>
SHIM_NOSAN inline T atomicExch(T* p, std::common_type_t<T> v) {
    return cuda_shim::rmw(p, [=](T) { return v; });
}
template <class T>
SHIM_NOSAN inline T atomicCAS(T* p, std::common_type_t<T> c, std::common_type_t<T> v) {
    return cuda_shim::rmw(p, [=](T o) { return o == c ? v : o; });
}
SHIM_NOSAN inline void __threadfence() {
    if (cuda_shim_fence) cuda_shim_fence();
}
inline void __threadfence_block() {}
inline unsigned long long __umul64hi(unsigned long long x, unsigned long long y) {
    return static_cast<unsigned long long>(static_cast<unsigned __int128>(x) * y >> 64);
}
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __clz(int x) { return x ? __builtin_clz(unsigned(x)) : 32; }
inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }
inline float __int_as_float(int i) {
    float f;
    memcpy(&f, &i, 4);
    return f;
}
inline float __uint_as_float(unsigned i) {
    float f;
    memcpy(&f, &i, 4);
    return f;
}
inline unsigned __float_as_uint(float f) {
    unsigned i;
    memcpy(&i, &f, 4);
    return i;
}
inline double __longlong_as_double(long long i) {
    double f;
    memcpy(&f, &i, 8);
    return f;
}
inline long long __double_as_longlong(double f) {
    long long i;
    memcpy(&i, &f, 8);
    return i;
}
inline int __float_as_int(float f) {
    int i;
    memcpy(&i, &f, 4);
    return i;
}
template <class T>
inline T __ldg(const T* p) {
    return *p;
}
using std::max;
using std::min;
