// lgreco_cuda.h for C++17: gradients, residuals and payloads in the memory of an NVIDIA GPU, on a trainer's stream.
// Pointers are device pointers unless the call says otherwise. lgreco_cuda.h says which calls only enqueue work, and how
// long memory must stay valid.
#ifndef LGRECO_CUDA_HPP
#define LGRECO_CUDA_HPP

#include "lgreco.hpp"
#include "lgreco_cuda.h"

namespace lgreco {

class CudaBucket;

// Bytes of device memory that Cuda::enqueue_rows needs.
struct CudaRowsBytes {
    std::uint64_t workspace = 0, results = 0;
};

// A range of device memory to copy.
struct CudaPlace {
    const void *address = nullptr;
    std::size_t bytes = 0;
};

// A CUDA device with a stream.
class Cuda {
public:
    // Uses a new stream in the device's primary context, which PyTorch uses too.
    explicit Cuda(std::uint32_t ordinal = 0) {
        lgreco_cuda *made = nullptr;
        lgreco::check(lgreco_cuda_create(ordinal, &made));
        handle_.reset(made);
    }

    // Uses an existing stream and its CUDA context, which must outlive the handle. NULL is the default stream of the
    // current context.
    static Cuda on_stream(void *stream) {
        lgreco_cuda *made = nullptr;
        lgreco::check(lgreco_cuda_create_on_stream(stream, &made));
        return Cuda(made);
    }

    Table measure(const std::vector<lgreco_layer> &layers, const Options &options = {}) {
        lgreco_table *made = nullptr;
        check(lgreco_cuda_measure(get(), layers.data(), layers.size(), options.list().data(), &made));
        return Table(made);
    }

    CudaRowsBytes rows_bytes(const std::vector<lgreco_layer> &layers,
                             const Options &options = {}) const {
        CudaRowsBytes bytes;
        check(lgreco_cuda_rows_bytes(get(), layers.data(), layers.size(), options.list().data(), &bytes.workspace, &bytes.results));
        return bytes;
    }

    // Enqueues the work of `measure`, without waiting for the results. `workspace` is aligned to 256 bytes. Pass a host
    // copy of `results` to read_rows.
    void enqueue_rows(const std::vector<lgreco_layer> &layers, void *workspace, std::uint64_t workspace_bytes, void *results,
                      std::uint64_t results_bytes, const Options &options = {}) {
        check(lgreco_cuda_enqueue_rows(get(), layers.data(), layers.size(), options.list().data(), workspace, workspace_bytes, results,
                                       results_bytes));
    }

    // Makes the table from a host copy of the `results` of enqueue_rows, for the same layers and options. Waits only if
    // a gradient is not finite or very large.
    Table read_rows(const std::vector<lgreco_layer> &layers, const void *copy, std::size_t copy_bytes,
                    const Options &options = {}) {
        lgreco_table *made = nullptr;
        check(lgreco_cuda_read_rows(get(), layers.data(), layers.size(), options.list().data(), copy, copy_bytes, &made));
        return Table(made);
    }

    // Returns the bytes of device memory that these kinds of calls need. `calls` is a sum of LGRECO_CUDA_... constants.
    std::uint64_t workspace_bytes(const std::vector<lgreco_layer> &layers, lgreco_cuda_calls calls,
                                  const Options &options = {}) const {
        std::uint64_t bytes = 0;
        check(lgreco_cuda_workspace_bytes(get(), layers.data(), layers.size(), options.list().data(), calls, &bytes));
        return bytes;
    }

    void reserve(const std::vector<lgreco_layer> &layers, lgreco_cuda_calls calls,
                 const Options &options = {}) {
        check(lgreco_cuda_reserve(get(), layers.data(), layers.size(), options.list().data(), calls));
    }

    std::uint64_t held_bytes() const {
        std::uint64_t bytes = 0;
        check(lgreco_cuda_held_bytes(get(), &bytes));
        return bytes;
    }

    std::size_t payload_len(const lgreco_layer &layer, const std::string &setting) const {
        std::size_t bytes = 0;
        check(lgreco_cuda_payload_len(get(), &layer, setting.c_str(), &bytes));
        return bytes;
    }

    // Encodes into host memory, and resizes `payload` to the payload's length.
    void encode(const lgreco_layer &layer, const std::string &setting, const lgreco_rng_stream &rng,
                std::vector<std::uint8_t> &payload) {
        std::size_t length = 0;
        payload.resize(payload_len(layer, setting));
        check(lgreco_cuda_encode(get(), &layer, setting.c_str(), &rng, payload.data(), payload.size(), &length));
        payload.resize(length);
    }

    // Decodes a payload in host memory.
    void decode(const std::vector<std::uint8_t> &payload, float *values, std::size_t values_len) {
        check(lgreco_cuda_decode(get(), payload.data(), payload.size(), values, values_len));
    }

    // Encodes into device memory and returns the payload's length. Work that the caller enqueues later may overwrite
    // the gradient.
    std::size_t encode_to_device(const lgreco_layer &layer, const std::string &setting,
                                 const lgreco_rng_stream &rng, std::uint8_t *payload, std::size_t capacity) {
        std::size_t length = 0;
        check(lgreco_cuda_encode_to_device(get(), &layer, setting.c_str(), &rng, payload, capacity, &length));
        return length;
    }

    void decode_on_device(const lgreco_layer &layer, const std::string &setting, const std::uint8_t *payload,
                          std::size_t length, float *values, std::size_t values_len) {
        check(lgreco_cuda_decode_on_device(get(), &layer, setting.c_str(), payload, length, values, values_len));
    }

    // Throws the first failure of encode_to_device and decode_on_device since the last check. Do not use the results of
    // the failed call or of later calls.
    void check() { check(lgreco_cuda_check(get())); }

    void synchronize() { check(lgreco_cuda_synchronize(get())); }

    // Bytes of device memory for a bucket; `settings` has one setting per layer.
    std::uint64_t bucket_bytes(const std::vector<lgreco_layer> &layers, const std::vector<lgreco_setting> &settings,
                               const Options &options) const {
        std::uint64_t bytes = 0;
        one_each(layers, settings);
        check(lgreco_cuda_bucket_bytes(get(), layers.data(), settings.data(), layers.size(), options.list().data(), &bytes));
        return bytes;
    }

    // Makes a bucket in `memory`, which must stay valid until all work enqueued with the bucket is done.
    CudaBucket bucket(const std::vector<lgreco_layer> &layers, const std::vector<lgreco_setting> &settings,
                      const Options &options, void *memory, std::uint64_t bytes);

    lgreco_cuda *get() const noexcept { return handle_.get(); }

private:
    explicit Cuda(lgreco_cuda *made) : handle_(made) {}

    static void check(lgreco_status status) { lgreco::check(status); }

    static void one_each(const std::vector<lgreco_layer> &layers, const std::vector<lgreco_setting> &settings) {
        if (layers.size() != settings.size()) throw std::invalid_argument("there are not as many settings as layers");
    }

    detail::Handle<lgreco_cuda, lgreco_cuda_destroy> handle_;
};

// Layers that are exchanged together in the device's memory. Every member function takes the Cuda object that made the
// bucket.
class CudaBucket {
public:
    // Submits the gradients of all layers, which lie one after the other. The means replace them.
    void submit(Cuda &cuda, void *gradients) { check(lgreco_cuda_bucket_submit(cuda.get(), get(), gradients)); }

    // Returns the next collective to enqueue on the device's stream, or LGRECO_REQUEST_NONE when none is left.
    lgreco_request next(Cuda &cuda) {
        lgreco_request asked = LGRECO_REQUEST_INIT;
        check(lgreco_cuda_bucket_next(cuda.get(), get(), &asked));
        return asked;
    }

    // Returns the outcome of the steps so far. Waits for the stream.
    lgreco_cuda_outcome outcome(Cuda &cuda) const {
        lgreco_cuda_outcome outcome = LGRECO_CUDA_OUTCOME_INIT;
        check(lgreco_cuda_bucket_outcome(cuda.get(), get(), &outcome));
        return outcome;
    }

    // Returns the device memory that holds a step's outcome. After the step, enqueue a copy of this memory to the host,
    // and pass the copy to read_outcome.
    CudaPlace outcome_place(Cuda &cuda) const {
        CudaPlace place;
        check(lgreco_cuda_bucket_outcome_place(cuda.get(), get(), &place.address, &place.bytes));
        return place;
    }

    // Reads the outcome from a host copy. Never waits.
    lgreco_cuda_outcome read_outcome(Cuda &cuda, const void *copy, std::size_t copy_bytes) const {
        lgreco_cuda_outcome outcome = LGRECO_CUDA_OUTCOME_INIT;
        check(lgreco_cuda_bucket_read_outcome(cuda.get(), get(), copy, copy_bytes, &outcome));
        return outcome;
    }

    // Returns the device address of a flag: 1 if the last step failed on some rank, else 0.
    float *found_inf(Cuda &cuda) const {
        float *address = nullptr;
        check(lgreco_cuda_bucket_found_inf(cuda.get(), get(), &address));
        return address;
    }

    // get_residuals and set_residuals copy the residuals of all layers to and from host memory. Call them between two
    // steps.
    void get_residuals(Cuda &cuda, std::vector<float> &values) const {
        check(lgreco_cuda_bucket_get_residuals(cuda.get(), get(), values.data(), values.size()));
    }
    void set_residuals(Cuda &cuda, const std::vector<float> &values) {
        check(lgreco_cuda_bucket_set_residuals(cuda.get(), get(), values.data(), values.size()));
    }

    // Takes over the residuals and the step count of a bucket with other settings.
    void take_over(Cuda &cuda, const CudaBucket &from) {
        check(lgreco_cuda_bucket_take_over(cuda.get(), get(), from.get()));
    }

    lgreco_cuda_bucket *get() const noexcept { return handle_.get(); }

private:
    friend class Cuda;

    explicit CudaBucket(lgreco_cuda_bucket *made) : handle_(made) {}

    detail::Handle<lgreco_cuda_bucket, lgreco_cuda_bucket_destroy> handle_;
};

inline CudaBucket Cuda::bucket(const std::vector<lgreco_layer> &layers, const std::vector<lgreco_setting> &settings,
                               const Options &options, void *memory, std::uint64_t bytes) {
    lgreco_cuda_bucket *made = nullptr;
    one_each(layers, settings);
    check(lgreco_cuda_bucket_create(get(), layers.data(), settings.data(), layers.size(), options.list().data(), memory, bytes, &made));
    return CudaBucket(made);
}

} // namespace lgreco

#endif // LGRECO_CUDA_HPP
