// Trains the network of digits.hpp, data-parallel over NCCL, one GPU per rank, started by MPI.
//
//   mpicxx -std=c++17 -O3 nccl_trainer.cpp -llgreco -ldl -o nccl_trainer && mpirun -np 2 ./nccl_trainer [DIGITS]
//
// Needs lgreco with the feature `cuda`; the driver and libnccl.so.2 are loaded at start. Two buckets of layers are in
// flight at a time, each on a separate stream. Gradients are compressed, exchanged and averaged in the GPUs' memory, and a
// step waits for the GPU only at its end. The host reads a step's outcome when it enqueues the next step. The network
// itself is computed on the host, because the example has no kernels for it.
//
// The program trains under several settings. The program prints loss and accuracy on held-out images, and the bytes
// that a rank sent per step. The exit code is 1 if ranks end with different parameters, if the loss does not fall, or
// if a step has failed.
#include "digits.hpp"
#include "mpi_collective.hpp"
#include "nccl.hpp"

#include <lgreco_cuda.hpp>

#include <cstdio>
#include <memory>
#include <string>

namespace {

constexpr int steps = 120;

struct Scheme {
    const char *name;
    const char *setting;  // of weights, NULL for TopK with a tenth of the elements; biases are sent uncompressed
    const char *sums;     // the type in which NCCL sums
};

constexpr Scheme schemes[] = {
    {"uncompressed", "dense", "float32"},
    {"uncompressed, in bf16", "dense", "bfloat16"},
    {"QSGD 4 bits", "qsgd 4", "float32"},
    {"TopK 10 %", nullptr, "float32"},
    {"PowerSGD rank 4", "powersgd 4", "float32"},
};

lgreco_setting setting_of(const Scheme &scheme, const Parameter &parameter) {
    if (parameter.dims.size() <= 1) return {"dense"};
    if (scheme.setting == nullptr) return lgreco::setting("topk " + std::to_string(parameter.gradient.size() / 10));
    return lgreco::setting(scheme.setting);
}

// Consecutive parameters whose gradients lie one after the other in the device's memory.
class Bucket {
public:
    Bucket(const Driver &driver, std::vector<Parameter *> parameters, const Scheme &scheme,
           std::uint32_t first, std::uint32_t rank, std::uint32_t ranks)
        : driver_(driver), stream_(driver.stream()), cuda_(lgreco::Cuda::on_stream(stream_)),
          parameters_(std::move(parameters)) {
        lgreco::Layers layers;
        std::vector<lgreco_setting> settings;
        std::vector<std::uint32_t> indices;
        for (const Parameter *parameter : parameters_) {
            layers.add(parameter->name, parameter->dims);
            settings.push_back(setting_of(scheme, *parameter));
            indices.push_back(first++);
            elements_ += parameter->gradient.size();
        }
        const lgreco::Options options{{"world_size", ranks}, {"rank", rank}, {"random_seed", 1}, {"indices", indices},
                                      {"reduce_dtype", scheme.sums}};
        const std::uint64_t bytes = cuda_.bucket_bytes(layers, settings, options);
        bucket_ = std::make_unique<lgreco::CudaBucket>(cuda_.bucket(layers, settings, options, driver.allocate(bytes), bytes));
        gradients_ = driver.allocate(elements_ * sizeof(float));
        staged_ = static_cast<float *>(driver.allocate_locked(elements_ * sizeof(float)));
        outcome_ = bucket_->outcome_place(cuda_);
        for (Told &told : told_) told = {driver.allocate_locked(outcome_.bytes), driver.event()};
    }

    // Enqueues the gradients' copies and the work before the first collective.
    void submit() {
        float *to = staged_;
        for (const Parameter *parameter : parameters_)
            to = std::copy(parameter->gradient.begin(), parameter->gradient.end(), to);
        driver_.upload(gradients_, staged_, elements_ * sizeof(float), stream_);
        bucket_->submit(cuda_, gradients_);
    }

    // Enqueues the next collective. If none is left, enqueues the copy of the outcome and returns false.
    bool advance(const Nccl &nccl, std::uint64_t &sent) {
        const lgreco_request asked = bucket_->next(cuda_);
        const bool bf16 = asked.kind == LGRECO_REQUEST_ALL_REDUCE_SUM_BF16;
        switch (asked.kind) {
        case LGRECO_REQUEST_NONE: tell(); return false;
        case LGRECO_REQUEST_ALL_GATHER: nccl.all_gather(asked.buffer, asked.length, stream_); break;
        case LGRECO_REQUEST_ALL_REDUCE_SUM:
        case LGRECO_REQUEST_ALL_REDUCE_SUM_BF16: nccl.all_reduce_sum(asked.buffer, asked.count, bf16, stream_); break;
        default: throw std::logic_error("lgreco asks for a collective that no bucket on a device needs");
        }
        sent += lgreco::contributed_bytes(asked, nccl.rank(), nccl.ranks());
        return true;
    }

    // Waits for the means.
    void finish() {
        driver_.download(staged_, gradients_, elements_ * sizeof(float), stream_);
        driver_.wait(stream_);
        const float *from = staged_;
        for (Parameter *parameter : parameters_) {
            std::copy_n(from, parameter->gradient.size(), parameter->gradient.begin());
            from += parameter->gradient.size();
        }
    }

    // Number of enqueued steps that have failed.
    std::uint32_t failed() {
        if (steps_ > 0) read(told_[(steps_ - 1) % 2]);
        return failed_;
    }

private:
    // A copy of a step's outcome in page-locked memory, with an event that follows the copy.
    struct Told {
        void *copy = nullptr;
        Event there = nullptr;
    };

    // Enqueues the copy of this step's outcome. Reads the previous step's outcome, without waiting for this step.
    void tell() {
        const Told &now = told_[steps_ % 2];
        driver_.download(now.copy, outcome_.address, outcome_.bytes, stream_);
        driver_.record(now.there, stream_);
        if (steps_++ > 0) read(told_[steps_ % 2]);
    }

    void read(const Told &told) {
        driver_.wait_for(told.there);
        const lgreco_cuda_outcome outcome = bucket_->read_outcome(cuda_, told.copy, outcome_.bytes);
        failed_ = outcome.failed;
        if (outcome.fault != LGRECO_OK)
            std::fprintf(stderr, "step %u: layer %s, element %zu: %s\n", outcome.step - 1,
                         parameters_[outcome.layer]->name.c_str(), outcome.element, lgreco_status_name(outcome.fault));
    }

    const Driver &driver_;
    Stream stream_;
    lgreco::Cuda cuda_;
    std::vector<Parameter *> parameters_;
    std::size_t elements_ = 0;
    std::unique_ptr<lgreco::CudaBucket> bucket_;
    void *gradients_;
    float *staged_;
    lgreco::CudaPlace outcome_;
    Told told_[2];
    std::size_t steps_ = 0;
    std::uint32_t failed_ = 0;
};

bool train(const Scheme &scheme, const Driver &driver, const Nccl &nccl, MpiCollective &mpi, const Batch &digits) {
    const std::uint32_t rank = mpi.rank(), ranks = mpi.world_size();
    const auto [held_out, shard] = divide(digits, rank, ranks);
    Network network;
    // The last layers come first, because the backward pass has their gradients first.
    std::vector<std::unique_ptr<Bucket>> buckets;
    const std::size_t all = network.parameters.size(), half = all / 2 / 2 * 2;
    for (const auto &[from, to] : {std::pair{half, all}, std::pair{std::size_t{0}, half}}) {
        std::vector<Parameter *> parameters;
        for (std::size_t p = from; p < to; p++) parameters.push_back(&network.parameters[p]);
        buckets.push_back(std::make_unique<Bucket>(driver, std::move(parameters), scheme,
                                                   static_cast<std::uint32_t>(from), rank, ranks));
    }
    const double before = network.forward(held_out);
    std::mt19937 random(100 + rank);
    std::uint64_t sent = 0;
    for (int step = 0; step < steps; step++) {
        Batch batch;
        for (std::size_t i = 0; i < batch_size; i++) batch.add(digits, shard[random() % shard.size()]);
        network.forward(batch);
        std::size_t left = all;
        network.backward(batch, [&](std::size_t) {
            left--;
            if (left == half) buckets[0]->submit();
            if (left == 0) buckets[1]->submit();
        });
        // Enqueue one collective of each bucket in turn, in the same order on all ranks.
        std::vector<Bucket *> flying;
        for (const auto &bucket : buckets) flying.push_back(bucket.get());
        while (!flying.empty())
            for (std::size_t i = 0; i < flying.size();) {
                if (flying[i]->advance(nccl, sent))
                    i++;
                else
                    flying.erase(flying.begin() + static_cast<std::ptrdiff_t>(i));
            }
        for (const auto &bucket : buckets) bucket->finish();
        network.descend();
    }
    const double loss = network.forward(held_out);
    if (rank == 0)
        std::printf("%-26s %8.4f %7.1f %% %11.0f\n", scheme.name, loss, 100 * network.accuracy(held_out),
                    static_cast<double>(sent) / steps);
    bool good = loss < before;
    std::vector<float> values;
    for (const Parameter &parameter : network.parameters)
        values.insert(values.end(), parameter.values.begin(), parameter.values.end());
    for (const auto &bucket : buckets) good = good && bucket->failed() == 0;
    if (!good) std::fprintf(stderr, "FAILED: %s: a step has failed on rank %u, or the loss did not fall\n", scheme.name, rank);
    const bool same = mpi.same_everywhere(values.data(), values.size());
    if (!same && rank == 0) std::fprintf(stderr, "FAILED: %s: the ranks' parameters differ\n", scheme.name);
    return good && same;
}

bool run(const std::vector<std::string> &arguments) {
    const Batch digits = read_digits(arguments.empty() ? digits_file : std::filesystem::path(arguments[0]));
    MpiCollective mpi(MPI_COMM_WORLD);
    const MpiCall machine(mpi_split_machines(MPI_COMM_WORLD));  // its ranks have a GPU each
    const Driver driver(machine.rank());
    Nccl nccl;
    Nccl::Id id{};
    if (mpi.rank() == 0) id = nccl.id();
    mpi_check(MPI_Bcast(&id, sizeof id, MPI_BYTE, 0, MPI_COMM_WORLD));
    nccl.join(mpi.world_size(), id, mpi.rank());
    if (mpi.rank() == 0)
        std::printf("digits, %u ranks, %d steps\n%-26s %8s %9s %11s\n", mpi.world_size(), steps, "", "loss", "accuracy",
                    "bytes/step");
    bool good = true;
    for (const Scheme &scheme : schemes) good = train(scheme, driver, nccl, mpi, digits) && good;
    return good;
}

} // namespace

int main(int argc, char **argv) { return mpi_main(argc, argv, run); }
