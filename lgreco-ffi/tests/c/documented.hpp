// Declarations that the documentation's excerpts of C++ programs need to compile.
#ifndef DOCUMENTED_HPP
#define DOCUMENTED_HPP

#include <lgreco_cuda.hpp>
#include <lgreco_train.hpp>

namespace c10::cuda {
struct CUDAStream {
    void *stream() const;
};
CUDAStream getCurrentCUDAStream();
} // namespace c10::cuda

struct Tensor {
    template <typename T> T *data_ptr() const;
    std::size_t numel() const;
};

enum ncclDataType_t { ncclUint8, ncclBfloat16 };
enum ncclRedOp_t { ncclSum };
int ncclAllGather(const void *send, void *receive, std::size_t count, ncclDataType_t type, void *comm, void *stream);
int ncclAllReduce(const void *send, void *receive, std::size_t count, ncclDataType_t type, ncclRedOp_t op, void *comm, void *stream);

extern lgreco::Collective &network;
extern std::vector<lgreco_layer> layers;
extern std::vector<lgreco_setting> settings;
extern double learning_rate;
extern const std::uint32_t rank, ranks;
extern const std::uint64_t seed;
extern const std::uint32_t step;
extern lgreco::Cuda cuda;
extern Tensor gradient, mean;
extern void *memory, *comm, *stream;
// The gradients of all layers. A controller takes one pointer per layer, and a CUDA bucket a single pointer.
struct Gradients {
    operator const std::vector<void *> &() const;
    operator void *() const;
};
extern Gradients gradients;

#endif
