// Runs shaders on the CPU, for tests. The crate naga translates the shaders to the Metal Shading Language. This file
// defines the parts of Metal that the translations use. As CUDA runs threads and blocks, cuda_shim.h of lgreco-cuda
// runs invocations and workgroups.
#pragma once
#include "cuda_shim.h"
#define kernel static
#define device
#define thread
#define threadgroup
#define constant const
// Forces inlining: the race check does not see values that a call returns directly into memory.
#define METAL_INLINE inline __attribute__((always_inline))
namespace metal {
using uint = unsigned;
template <class T, int N>
struct vec;
template <class T, int... I>
struct Swizzle {
    T v[4];
    operator vec<T, sizeof...(I)>() const { return {v[I]...}; }
};
template <class T>
struct alignas(2 * sizeof(T)) vec<T, 2> {
    T& operator[](uint i) { return v[i]; }
    const T& operator[](uint i) const { return v[i]; }
    union {
        T v[2];
        struct {
            T x, y;
        };
    };
    vec() = default;
    vec(T a) : x(a), y(a) {}
    vec(T a, T b) : x(a), y(b) {}
};
template <class T>
struct alignas(4 * sizeof(T)) vec<T, 3> {
    T& operator[](uint i) { return v[i]; }
    const T& operator[](uint i) const { return v[i]; }
    union {
        T v[3];
        struct {
            T x, y, z;
        };
    };
    vec() = default;
    vec(T a, T b, T c) : x(a), y(b), z(c) {}
};
template <class T>
struct alignas(4 * sizeof(T)) vec<T, 4> {
    T& operator[](uint i) { return v[i]; }
    const T& operator[](uint i) const { return v[i]; }
    union {
        T v[4];
        struct {
            T x, y, z, w;
        };
        Swizzle<T, 0, 1> xy;
        Swizzle<T, 0, 1, 2> xyz;
        Swizzle<T, 1, 2, 3> yzw;
        Swizzle<T, 1, 2, 3, 0> yzwx;
    };
    vec() = default;
    vec(T a) : x(a), y(a), z(a), w(a) {}
    vec(T a, T b, T c, T d) : x(a), y(b), z(c), w(d) {}
    template <class U>
    explicit vec(vec<U, 4> a) : x(a.x), y(a.y), z(a.z), w(a.w) {}
    vec(T a, vec<T, 3> b) : x(a), y(b.x), z(b.y), w(b.z) {}
    vec(vec<T, 3> a, T b) : x(a.x), y(a.y), z(a.z), w(b) {}
    vec(vec<T, 2> a, vec<T, 2> b) : x(a.x), y(a.y), z(b.x), w(b.y) {}
    vec(vec<T, 2> a, T b, T c) : x(a.x), y(a.y), z(b), w(c) {}
    vec(T a, vec<T, 2> b, T c) : x(a), y(b.x), z(b.y), w(c) {}
};
using uint2 = vec<uint, 2>;
using uint3 = vec<uint, 3>;
using uint4 = vec<uint, 4>;
using float4 = vec<float, 4>;
template <class T, int N, class F>
METAL_INLINE auto each(vec<T, N> a, vec<T, N> b, F f) {
    vec<decltype(f(a.v[0], b.v[0])), N> r;
    for (int i = 0; i < N; ++i) r.v[i] = f(a.v[i], b.v[i]);
    return r;
}
// Excludes an argument from template deduction, so that a plain number can be passed.
template <class T>
struct Same {
    using type = T;
};
#define METAL_OPERATOR(op)                                                 \
    template <class T, int N>                                              \
    METAL_INLINE auto operator op(vec<T, N> a, typename Same<vec<T, N>>::type b) {      \
        return each(a, b, [](T x, T y) { return x op y; });                \
    }                                                                      \
    template <class T, int N>                                              \
    METAL_INLINE auto operator op(typename Same<T>::type a, vec<T, N> b) {              \
        return vec<T, N>(a) op b;                                          \
    }
METAL_OPERATOR(+) METAL_OPERATOR(-) METAL_OPERATOR(*) METAL_OPERATOR(/) METAL_OPERATOR(%) METAL_OPERATOR(&) METAL_OPERATOR(|)
METAL_OPERATOR(^) METAL_OPERATOR(<<) METAL_OPERATOR(>>) METAL_OPERATOR(==) METAL_OPERATOR(!=) METAL_OPERATOR(<)
template <class T, int N>
METAL_INLINE vec<T, N> operator~(vec<T, N> a) {
    return a ^ ~T();
}
template <class T>
METAL_INLINE T select(T a, typename Same<T>::type b, bool c) {
    return c ? b : a;
}
template <class T, int N>
METAL_INLINE vec<T, N> select(vec<T, N> a, typename Same<vec<T, N>>::type b, vec<bool, N> c) {
    for (int i = 0; i < N; ++i) a.v[i] = c.v[i] ? b.v[i] : a.v[i];
    return a;
}
template <int N>
bool any(vec<bool, N> a) {
    return std::any_of(a.v, a.v + N, [](bool x) { return x; });
}
template <class T, int N>
METAL_INLINE vec<T, N> min(vec<T, N> a, vec<T, N> b) {
    return each(a, b, [](T x, T y) { return std::min(x, y); });
}
inline float dot(float4 a, float4 b) { return a.x * b.x + a.y * b.y + a.z * b.z + a.w * b.w; }
using std::abs;
using std::clamp;
using std::max;
using std::min;
using std::sqrt;
inline uint clz(uint x) { return uint(__clz(int(x))); }
inline uint ctz(uint x) { return x ? uint(__builtin_ctz(x)) : 32; }
inline uint popcount(uint x) { return uint(__popc(x)); }
struct atomic_uint {
    uint value;
};
enum memory_order { memory_order_relaxed };
inline uint atomic_load_explicit(const atomic_uint* p, memory_order) {
    return cuda_shim::rmw(&const_cast<atomic_uint*>(p)->value, [](uint x) { return x; });
}
inline void atomic_store_explicit(atomic_uint* p, uint v, memory_order) { atomicExch(&p->value, v); }
inline uint atomic_fetch_add_explicit(atomic_uint* p, uint v, memory_order) { return atomicAdd(&p->value, v); }
inline uint atomic_fetch_max_explicit(atomic_uint* p, uint v, memory_order) { return atomicMax(&p->value, v); }
inline uint atomic_fetch_or_explicit(atomic_uint* p, uint v, memory_order) { return atomicOr(&p->value, v); }
inline bool atomic_compare_exchange_weak_explicit(atomic_uint* p, uint* expected, uint v, memory_order, memory_order) {
    uint found = atomicCAS(&p->value, *expected, v);
    return found == *expected || (*expected = found, false);
}
// Combines by `join` the values of a subgroup's lanes 0 to `end` - 1. A subgroup has 32 lanes.
template <class T, class F>
METAL_INLINE T of_lanes(T x, int end, F join) {
    T all{};
    for (int lane = 0; lane < 32; ++lane) {
        T other = __shfl_sync(~0u, x, lane);
        if (lane < end) all = join(all, other);
    }
    return all;
}
template <class T>
METAL_INLINE T simd_sum(T x) {
    return of_lanes(x, 32, [](T a, T b) { return a + b; });
}
template <class T>
METAL_INLINE T simd_prefix_exclusive_sum(T x) {
    return of_lanes(x, cuda_shim::lane(), [](T a, T b) { return a + b; });
}
inline uint simd_max(uint x) {
    return of_lanes(x, 32, [](uint a, uint b) { return max(a, b); });
}
// Orders only workgroup memory. No shader has a barrier for device memory, so none is implemented.
enum class mem_flags { mem_threadgroup };
inline void threadgroup_barrier(mem_flags, int line = __builtin_LINE()) { cuda_shim::sync_block(line, line); }
}  // namespace metal
template <class To, class From>
METAL_INLINE To as_type(From from) {
    static_assert(sizeof(To) == sizeof(From), "of one size");
    To to;
    memcpy(&to, &from, sizeof to);
    return to;
}

// A binding of a shader, which converts to a reference of the type that the shader declares.
struct Binding {
    char* bytes = nullptr;
    template <class T>
    operator T&() const {
        return *reinterpret_cast<T*>(bytes);
    }
};
constexpr uint32_t BINDINGS = 32;
inline Binding bound[BINDINGS];
inline uint32_t bound_bytes[BINDINGS];
struct EntryPoint {
    void (*run)(void*);
    unsigned size[3];
};

// Reads dispatches from standard input and runs each, until the input ends. A dispatch begins with six words: entry
// point, order (see cuda_shim_launch), number of workgroups in three dimensions, and number of bindings. The bindings
// follow, each with its number, its length in bytes and its bytes. After each dispatch, writes the length of the error
// text, the text (empty on success), and the bytes of all bindings to standard output.
inline int serve(const EntryPoint* entries, void (*measure)()) {
    auto take = [](void* to, size_t bytes) { return fread(to, 1, bytes, stdin) == bytes; };
    auto give = [](const void* from, size_t bytes) {
        if (fwrite(from, 1, bytes, stdout) != bytes) exit(2);
    };
    cuda_shim::device_epoch = 0;
    for (uint32_t head[6]; take(head, sizeof head);) {
        std::vector<uint32_t> numbers(head[5]);
        for (uint32_t& number : numbers) {
            uint32_t of[2];
            if (!take(of, sizeof of) || of[0] >= BINDINGS) return 2;
            number = of[0];
            bound_bytes[number] = of[1];
            // Allocates exactly the binding's length, so that the address sanitizer finds accesses beyond the end.
            bound[number].bytes = static_cast<char*>(malloc(of[1]));
            if (!take(bound[number].bytes, of[1])) return 2;
        }
        measure();
        const EntryPoint& entry = entries[head[0]];
        std::vector<uint64_t> all(uint64_t(head[2]) * head[3] * head[4]);
        for (uint64_t i = 0; i < all.size(); ++i) all[i] = i;
        cuda_shim::S.mode = int(head[1]);
        std::string error = cuda_shim::run(dim3(head[2], head[3], head[4]), dim3(entry.size[0], entry.size[1], entry.size[2]),
                                           std::move(all), entry.run, nullptr);
        uint32_t len = uint32_t(error.size());
        give(&len, sizeof len);
        give(error.data(), len);
        for (uint32_t number : numbers) {
            give(bound[number].bytes, bound_bytes[number]);
            free(bound[number].bytes);
        }
        fflush(stdout);
    }
    return 0;
}
