// A cuBLAS for tests of what calls one, beside fake_driver.cpp, which enqueues them: products as NVIDIA documents them, of
// matrices in column-major order with leading dimensions, in plain f32 sums on the processor. FAKE_CUBLAS_FAIL is CALL=CODE, a call
// that fails and how.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>

enum { NOT_INITIALIZED = 1, INVALID_VALUE = 7, EXECUTION_FAILED = 13 };
enum { OP_N = 0, OP_T = 1, PEDANTIC_MATH = 2 };

struct Handle {
    void* stream;
    void* workspace;
    int math_mode;
    bool alive;
};

static int handles, products;
static void* last_stream;

static void* driver(const char* name) {
    static void* library = dlopen("libcuda.so.1", RTLD_NOW);
    return dlsym(library, name);
}

static bool in_context() {
    void* context = nullptr;
    reinterpret_cast<int (*)(void**)>(driver("cuCtxGetCurrent"))(&context);
    return context != nullptr;
}

// Whether all columns of a matrix are in memory of the device.
static bool inside(const void* start, int rows, int columns, int leading) {
    auto check = reinterpret_cast<bool (*)(uint64_t, size_t)>(driver("fake_cuda_inside"));
    size_t values = size_t(leading) * (columns - 1) + rows;
    return check(reinterpret_cast<uint64_t>(start), sizeof(float) * values);
}

static int outcome(const char* call) {
    const char* fail = getenv("FAKE_CUBLAS_FAIL");
    size_t n = strlen(call);
    return fail && strncmp(fail, call, n) == 0 && fail[n] == '=' ? atoi(fail + n + 1) : 0;
}

#define CALL(name, parameters, ...)                                         \
    extern "C" __attribute__((visibility("default"))) int name parameters { \
        if (int code = outcome(#name)) return code;                         \
        if (!in_context()) return NOT_INITIALIZED;                          \
        __VA_ARGS__;                                                        \
        return 0;                                                           \
    }
// A call with a handle.
#define WITH(name, parameters, ...) \
    CALL(name, parameters, if (!handle || !handle->alive) return NOT_INITIALIZED; __VA_ARGS__)

CALL(cublasCreate_v2, (Handle * *handle), *handle = new Handle{nullptr, nullptr, 0, true}; ++handles)
// Handles stay, so that one that is used afterwards is noticed.
WITH(cublasDestroy_v2, (Handle * handle), handle->alive = false; --handles)
WITH(cublasSetMathMode, (Handle * handle, int mode), handle->math_mode = mode)
WITH(cublasSetStream_v2, (Handle * handle, void* stream), handle->stream = stream; handle->workspace = nullptr)
WITH(cublasSetWorkspace_v2, (Handle * handle, void* workspace, size_t bytes),
     if (reinterpret_cast<uint64_t>(workspace) % 256 != 0 || bytes % 4 != 0) return INVALID_VALUE;
     if (!inside(workspace, int(bytes / 4), 1, 1)) return INVALID_VALUE; handle->workspace = workspace)

static int multiply(Handle* handle, int of_a, int of_b, int m, int n, int k, const float* alpha, const float* a,
                    int lda, const float* b, int ldb, const float* beta, float* c, int ldc) {
    if (m < 0 || n < 0 || k < 0 || of_a < OP_N || of_a > OP_T || of_b < OP_N || of_b > OP_T) return INVALID_VALUE;
    int a_rows = of_a == OP_N ? m : k, a_columns = of_a == OP_N ? k : m;
    int b_rows = of_b == OP_N ? k : n, b_columns = of_b == OP_N ? n : k;
    if (lda < std::max(1, a_rows) || ldb < std::max(1, b_rows) || ldc < std::max(1, m)) return INVALID_VALUE;
    // What the crate promises: nothing allocated, no TF32.
    if (!handle->workspace || handle->math_mode != PEDANTIC_MATH) return EXECUTION_FAILED;
    if (!inside(a, a_rows, a_columns, lda) || !inside(b, b_rows, b_columns, ldb) || !inside(c, m, n, ldc))
        return EXECUTION_FAILED;
    auto product = [=, scale = *alpha, keep = *beta]() {
        for (size_t j = 0; j < size_t(n); j++) {
            for (size_t i = 0; i < size_t(m); i++) {
                float sum = 0.0f;
                for (size_t l = 0; l < size_t(k); l++) {
                    float left = of_a == OP_N ? a[l * lda + i] : a[i * lda + l];
                    float right = of_b == OP_N ? b[j * ldb + l] : b[l * ldb + j];
                    sum += left * right;
                }
                float& to = c[j * ldc + i];
                // Where beta is 0, what was there is not read.
                to = scale * sum + (keep == 0.0f ? 0.0f : keep * to);
            }
        }
    };
    using Product = decltype(product);
    auto enqueue = reinterpret_cast<int (*)(int (*)(void*), void*, void*)>(driver("fake_cuda_enqueue"));
    int code = enqueue(
        [](void* argument) {
            (*static_cast<Product*>(argument))();
            delete static_cast<Product*>(argument);
            return 0;
        },
        new Product(product), handle->stream);
    if (code) return EXECUTION_FAILED;
    ++products;
    last_stream = handle->stream;
    return 0;
}

WITH(cublasSgemm_v2,
     (Handle * handle, int of_a, int of_b, int m, int n, int k, const float* alpha, const float* a, int lda,
      const float* b, int ldb, const float* beta, float* c, int ldc),
     return multiply(handle, of_a, of_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc))

extern "C" __attribute__((visibility("default"))) const char* cublasGetStatusString(int code) {
    static char words[32];
    snprintf(words, sizeof words, "status %d", code);
    return words;
}

// Handles there are, products so far.
extern "C" __attribute__((visibility("default"))) void fake_cublas_state(int* state) {
    state[0] = handles;
    state[1] = products;
}
extern "C" __attribute__((visibility("default"))) void* fake_cublas_last_stream() { return last_stream; }
