// lgreco_cuda.h for C++17: gradients, residuals and payloads in the memory of an NVIDIA GPU, on a trainer's stream. Pointers are
// the device's unless something else is said; what is enqueued and what is done, and how long memory has to stay, stands in
// lgreco_cuda.h.
#ifndef LGRECO_CUDA_HPP
#define LGRECO_CUDA_HPP

#include "lgreco.hpp"
#include "lgreco_cuda.h"

namespace lgreco {

class CudaBucket;

// Bytes of device memory that Cuda::enqueue_rows takes.
struct CudaRowsBytes {
    std::uint64_t workspace = 0, results = 0;
};

// Some bytes of device memory, to be copied.
struct CudaPlace {
    const void *address = nullptr;
    std::size_t bytes = 0;
};

// A CUDA device with a stream.
class Cuda {
public:
    // In the device's primary context, PyTorch's, on a stream of its own.
    explicit Cuda(std::uint32_t ordinal = 0) {
        lgreco_cuda *made = nullptr;
        lgreco::check(lgreco_cuda_create(ordinal, &made));
        handle_.reset(made);
    }

    // In the current CUDA context, on a stream of it, which must outlive the handle; NULL is the default stream.
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

    // `measure` without its wait: `workspace` is aligned to 256, a copy of `results` is for read_rows.
    void enqueue_rows(const std::vector<lgreco_layer> &layers, void *workspace, std::uint64_t workspace_bytes, void *results,
                      std::uint64_t results_bytes, const Options &options = {}) {
        check(lgreco_cuda_enqueue_rows(get(), layers.data(), layers.size(), options.list().data(), workspace, workspace_bytes, results,
                                       results_bytes));
    }

    // The table of such a copy in host memory, for the same layers and options. Waits only where a gradient is not finite or very large.
    Table read_rows(const std::vector<lgreco_layer> &layers, const void *copy, std::size_t copy_bytes,
                    const Options &options = {}) {
        lgreco_table *made = nullptr;
        check(lgreco_cuda_read_rows(get(), layers.data(), layers.size(), options.list().data(), copy, copy_bytes, &made));
        return Table(made);
    }

    // Bytes of device memory that `calls`, a sum of LGRECO_CUDA_..., work in.
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

    // Into host memory; makes `payload` as long as the payload.
    void encode(const lgreco_layer &layer, const std::string &setting, const lgreco_rng_stream &rng,
                std::vector<std::uint8_t> &payload) {
        std::size_t length = 0;
        payload.resize(payload_len(layer, setting));
        check(lgreco_cuda_encode(get(), &layer, setting.c_str(), &rng, payload.data(), payload.size(), &length));
        payload.resize(length);
    }

    // From host memory.
    void decode(const std::vector<std::uint8_t> &payload, float *values, std::size_t values_len) {
        check(lgreco_cuda_decode(get(), payload.data(), payload.size(), values, values_len));
    }

    // Returns the payload's length. The gradient stays in its place, unwritten, until check().
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

    // Throws what encode_to_device and decode_on_device could not know, of the first call at fault; what came out of
    // those after it is not to be used either.
    void check() { check(lgreco_cuda_check(get())); }

    void synchronize() { check(lgreco_cuda_synchronize(get())); }

    // Bytes of device memory for a bucket; `settings` are one per layer.
    std::uint64_t bucket_bytes(const std::vector<lgreco_layer> &layers, const std::vector<lgreco_setting> &settings,
                               const Options &options) const {
        std::uint64_t bytes = 0;
        one_each(layers, settings);
        check(lgreco_cuda_bucket_bytes(get(), layers.data(), settings.data(), layers.size(), options.list().data(), &bytes));
        return bytes;
    }

    // In `memory`, which outlives what is enqueued with the bucket.
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

// Layers that are exchanged together in the device's memory. Every call takes the device that made it.
class CudaBucket {
public:
    // `gradients` of all layers, one after the other; the means take their place.
    void submit(Cuda &cuda, void *gradients) { check(lgreco_cuda_bucket_submit(cuda.get(), get(), gradients)); }

    // The collective to enqueue next on the device's stream; LGRECO_REQUEST_NONE when there is none.
    lgreco_request next(Cuda &cuda) {
        lgreco_request asked = LGRECO_REQUEST_INIT;
        check(lgreco_cuda_bucket_next(cuda.get(), get(), &asked));
        return asked;
    }

    // Waits for the stream.
    lgreco_cuda_outcome outcome(Cuda &cuda) const {
        lgreco_cuda_outcome outcome = LGRECO_CUDA_OUTCOME_INIT;
        check(lgreco_cuda_bucket_outcome(cuda.get(), get(), &outcome));
        return outcome;
    }

    // What a copy that is enqueued behind a step brings to read_outcome.
    CudaPlace outcome_place(Cuda &cuda) const {
        CudaPlace place;
        check(lgreco_cuda_bucket_outcome_place(cuda.get(), get(), &place.address, &place.bytes));
        return place;
    }

    // Of such a copy in host memory. Waits for nothing.
    lgreco_cuda_outcome read_outcome(Cuda &cuda, const void *copy, std::size_t copy_bytes) const {
        lgreco_cuda_outcome outcome = LGRECO_CUDA_OUTCOME_INIT;
        check(lgreco_cuda_bucket_read_outcome(cuda.get(), get(), copy, copy_bytes, &outcome));
        return outcome;
    }

    // Where on the device 1 is written after a step that has failed on some rank, else 0.
    float *found_inf(Cuda &cuda) const {
        float *address = nullptr;
        check(lgreco_cuda_bucket_found_inf(cuda.get(), get(), &address));
        return address;
    }

    // To and from host memory, as many as all layers have elements, between two steps.
    void get_residuals(Cuda &cuda, std::vector<float> &values) const {
        check(lgreco_cuda_bucket_get_residuals(cuda.get(), get(), values.data(), values.size()));
    }
    void set_residuals(Cuda &cuda, const std::vector<float> &values) {
        check(lgreco_cuda_bucket_set_residuals(cuda.get(), get(), values.data(), values.size()));
    }

    // Goes on from the residuals and steps of a bucket with other settings.
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
