// Data-parallel training over MPI: a multilayer perceptron, its backward pass written out, on 8 x 8 images of digits.
//
//   mpicxx -std=c++17 -O3 mpi_trainer.cpp -llgreco -o mpi_trainer && mpirun -np 4 ./mpi_trainer [--overlap|--time] [DIGITS]
//
// Trains the same network under every scheme of schemes.hpp and prints loss and accuracy on images nobody trained on,
// and the bytes a rank sent per step. Exit code 1 when ranks end with different parameters, when the loss does not fall,
// or when L-GreCo sends more than the uniform setting its error budget comes from.
//
// With --overlap every tensor is exchanged as soon as the backward pass has its gradient, by non-blocking collectives,
// while the pass goes on. Every scheme is then trained a second time by blocking calls: exit code 1 when that ends with
// other parameters or has sent other payloads, too.
//
// With --time it also says how long a step took.
//
// DIGITS: per image 64 bytes of ink (rows from the top, 0 to 16) and one byte of label (0 to 9).
#include "mpi_in_flight.hpp"
#include "schemes.hpp"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>

namespace {

constexpr std::size_t pixels = 64, classes = 10;
constexpr std::size_t widths[] = {pixels, 256, 256, 128, classes};
constexpr std::size_t layers = std::size(widths) - 1;
constexpr std::size_t batch_size = 16;  // images per rank and step
constexpr int steps = 200, warmup = 10, period = 50;
constexpr float learning_rate = 0.05f, momentum = 0.9f;

struct Batch {
    std::vector<float> images;  // pixels after pixels, -1 to 1
    std::vector<std::uint8_t> labels;

    void add(const Batch &from, std::size_t image) {
        images.insert(images.end(), &from.images[image * pixels], &from.images[image * pixels] + pixels);
        labels.push_back(from.labels[image]);
    }
};

Batch read_digits(const std::filesystem::path &path) {
    std::ifstream file(path, std::ios::binary);
    const std::vector<char> bytes{std::istreambuf_iterator<char>(file), {}};
    if (bytes.empty() || bytes.size() % (pixels + 1) != 0)
        throw std::runtime_error(path.string() + ": cannot be read, or is no file of images of 64 bytes and a label");
    Batch digits;
    for (std::size_t i = 0; i < bytes.size(); i++) {
        const auto byte = static_cast<std::uint8_t>(bytes[i]);
        const bool is_label = i % (pixels + 1) == pixels;
        if (byte > (is_label ? 9 : 16))
            throw std::runtime_error(path.string() + ": byte " + std::to_string(i) + " is neither ink nor a label");
        if (is_label)
            digits.labels.push_back(byte);
        else
            digits.images.push_back(byte / 8.0f - 1.0f);
    }
    return digits;
}

struct Parameter {
    std::string name;
    std::vector<std::size_t> dims;
    std::vector<float> values, gradient, velocity;

    Parameter(std::string its_name, std::vector<std::size_t> its_dims)
        : name(std::move(its_name)), dims(std::move(its_dims)) {
        std::size_t elements = 1;
        for (const std::size_t dim : dims) elements *= dim;
        values.resize(elements);
        gradient.resize(elements);
        velocity.resize(elements);
    }
};

// Linear layers with ReLU between them; cross-entropy of a softmax at the end.
class Network {
public:
    std::vector<Parameter> parameters;  // per layer its weight, inputs x outputs, and its bias

    Network() {
        std::mt19937 random(1);  // the same start on every rank
        for (std::size_t l = 0; l < layers; l++) {
            const std::string name = "fc" + std::to_string(l + 1);
            parameters.emplace_back(name + ".weight", std::vector<std::size_t>{widths[l], widths[l + 1]});
            const float bound = std::sqrt(6.0f / static_cast<float>(widths[l]));
            for (float &value : parameters.back().values)
                value = bound * (2.0f * static_cast<float>(random()) / static_cast<float>(random.max()) - 1.0f);
            parameters.emplace_back(name + ".bias", std::vector<std::size_t>{widths[l + 1]});
        }
    }

    // Fills the activations, of the last layer probabilities; returns the mean loss.
    double forward(const Batch &batch) {
        const std::size_t count = batch.labels.size();
        activations_[0] = batch.images;
        for (std::size_t l = 0; l < layers; l++) {
            const std::size_t inputs = widths[l], outputs = widths[l + 1];
            const float *weight = parameters[2 * l].values.data();
            const std::vector<float> &bias = parameters[2 * l + 1].values;
            activations_[l + 1].resize(count * outputs);
            for (std::size_t image = 0; image < count; image++) {
                const float *x = &activations_[l][image * inputs];
                float *y = &activations_[l + 1][image * outputs];
                std::copy(bias.begin(), bias.end(), y);
                for (std::size_t i = 0; i < inputs; i++)
                    for (std::size_t o = 0; o < outputs; o++) y[o] += x[i] * weight[i * outputs + o];
                if (l + 1 < layers)
                    for (std::size_t o = 0; o < outputs; o++) y[o] = std::max(y[o], 0.0f);
            }
        }
        double loss = 0;
        for (std::size_t image = 0; image < count; image++) {
            float *scores = &activations_[layers][image * classes];
            const float top = *std::max_element(scores, scores + classes);
            float sum = 0;
            for (std::size_t c = 0; c < classes; c++) sum += scores[c] = std::exp(scores[c] - top);
            for (std::size_t c = 0; c < classes; c++) scores[c] /= sum;
            loss -= std::log(std::max(scores[batch.labels[image]], 1e-30f)) / static_cast<double>(count);
        }
        return loss;
    }

    // Share of images whose label was the most probable at the last forward pass.
    double accuracy(const Batch &batch) const {
        std::size_t correct = 0;
        for (std::size_t image = 0; image < batch.labels.size(); image++) {
            const float *scores = &activations_[layers][image * classes];
            correct += std::max_element(scores, scores + classes) - scores == batch.labels[image];
        }
        return static_cast<double>(correct) / static_cast<double>(batch.labels.size());
    }

    // The gradients of the mean loss of the last forward pass; `done` is told which parameter's is there.
    template <typename Done> void backward(const Batch &batch, Done done) {
        const std::size_t count = batch.labels.size();
        std::vector<float> delta = activations_[layers], below;  // by the layer's outputs, by its inputs
        for (std::size_t image = 0; image < count; image++) delta[image * classes + batch.labels[image]] -= 1;
        for (float &value : delta) value /= static_cast<float>(count);
        for (std::size_t l = layers; l-- > 0;) {
            const std::size_t inputs = widths[l], outputs = widths[l + 1];
            const float *weight = parameters[2 * l].values.data();
            std::vector<float> &weight_gradient = parameters[2 * l].gradient;
            std::vector<float> &bias_gradient = parameters[2 * l + 1].gradient;
            std::fill(weight_gradient.begin(), weight_gradient.end(), 0.0f);
            std::fill(bias_gradient.begin(), bias_gradient.end(), 0.0f);
            below.assign(count * inputs, 0.0f);
            for (std::size_t image = 0; image < count; image++) {
                const float *x = &activations_[l][image * inputs], *d = &delta[image * outputs];
                for (std::size_t o = 0; o < outputs; o++) bias_gradient[o] += d[o];
                for (std::size_t i = 0; i < inputs; i++) {
                    if (l > 0 && x[i] <= 0) continue;  // ReLU was off: no gradient in, none below
                    float sum = 0;
                    for (std::size_t o = 0; o < outputs; o++) {
                        weight_gradient[i * outputs + o] += x[i] * d[o];
                        sum += weight[i * outputs + o] * d[o];
                    }
                    below[image * inputs + i] = sum;
                }
            }
            delta.swap(below);
            done(2 * l + 1);
            done(2 * l);
        }
    }

    void descend() {
        for (Parameter &parameter : parameters)
            for (std::size_t i = 0; i < parameter.values.size(); i++) {
                parameter.velocity[i] = momentum * parameter.velocity[i] + parameter.gradient[i];
                parameter.values[i] -= learning_rate * parameter.velocity[i];
            }
    }

private:
    std::vector<float> activations_[layers + 1];
};

// What a run leaves behind.
struct Run {
    Outcome outcome;
    std::vector<float> parameters;
    std::uint64_t payloads;  // bytes of them that this rank sent

    bool is_same(const Run &other) const {
        return payloads == other.payloads && parameters.size() == other.parameters.size() &&
               std::memcmp(parameters.data(), other.parameters.data(), parameters.size() * sizeof(float)) == 0;
    }
};

// MPI_Allreduce may add in another order than MPI_Iallreduce; this adds as buckets in flight do.
class SameSums : public MpiCollective {
public:
    explicit SameSums(MPI_Comm communicator) : MpiCollective(communicator), call_(communicator) {}

    void all_reduce_sum(float *values, std::size_t count) override {
        reduce(LGRECO_REQUEST_ALL_REDUCE_SUM, values, count);
    }
    void all_reduce_sum_bf16(std::uint16_t *values, std::size_t count) override {
        reduce(LGRECO_REQUEST_ALL_REDUCE_SUM_BF16, values, count);
    }

private:
    void reduce(lgreco_request_kind kind, void *values, std::size_t count) {
        lgreco_request asked = lgreco::request();
        asked.kind = kind;
        asked.buffer = values;
        asked.count = count;
        call_.start(asked);
        call_.wait();
    }

    MpiCall call_;
};

// With `buckets`, one per parameter, the exchange overlaps the backward pass.
Run train(const Scheme &scheme, MpiCollective &collective, const Batch &digits, MpiBuckets *buckets,
          const lgreco_controller_options &options, bool times = false) {
    Batch held_out;                  // every fifth image
    std::vector<std::size_t> shard;  // what this rank learns from; no two share an image
    std::size_t training = 0;
    for (std::size_t image = 0; image < digits.labels.size(); image++) {
        if (image % 5 == 0)
            held_out.add(digits, image);
        else if (training++ % collective.world_size() == collective.rank())
            shard.push_back(image);
    }
    if (shard.empty()) throw std::runtime_error("there are fewer images to learn from than ranks");

    Network network;
    std::vector<lgreco_layer> described;
    std::vector<void *> gradients;
    for (Parameter &parameter : network.parameters) {
        described.push_back(lgreco::layer(parameter.name.c_str(), parameter.dims));
        gradients.push_back(parameter.gradient.data());
    }
    lgreco::Controller controller = controller_of(scheme, collective, described, warmup, period, options);

    Run run{};
    Outcome &outcome = run.outcome;
    outcome.loss_before = network.forward(held_out);
    std::mt19937 random(100 + collective.rank());
    const auto sent = [&] { return collective.sent() + (buckets != nullptr ? buckets->sent() : 0); };
    const std::uint64_t sent_before = sent();
    const double began = MPI_Wtime();
    for (int step = 0; step < steps; step++) {
        Batch batch;
        for (std::size_t i = 0; i < batch_size; i++) batch.add(digits, shard[random() % shard.size()]);
        network.forward(batch);
        if (buckets != nullptr) {
            controller.begin_step(learning_rate);
            for (auto asked = controller.control(); asked.kind != LGRECO_REQUEST_NONE; asked = controller.control())
                lgreco::perform(collective, asked);
            network.backward(batch, [&](std::size_t parameter) {
                buckets->submit(controller, parameter, {gradients[parameter]});
                buckets->poll();
            });
            buckets->finish(controller);
            run.payloads += controller.finish_step().bytes_out;
        } else {
            network.backward(batch, [](std::size_t) {});
            run.payloads += controller.step(collective, gradients, learning_rate).bytes_out;
        }
        // Now they are the mean of all ranks' gradients.
        network.descend();
    }
    if (times) outcome.seconds = (MPI_Wtime() - began) / steps;
    outcome.bytes = static_cast<double>(sent() - sent_before) / steps;
    outcome.loss = network.forward(held_out);
    outcome.accuracy = network.accuracy(held_out);
    for (const Parameter &parameter : network.parameters)
        run.parameters.insert(run.parameters.end(), parameter.values.begin(), parameter.values.end());
    outcome.same = collective.same_everywhere(run.parameters.data(), run.parameters.size());
    return run;
}

// Every scheme by buckets in flight, then by blocking calls.
bool compare_overlapped(MpiCollective &collective, const Batch &digits) {
    std::vector<std::vector<std::size_t>> groups;
    for (std::size_t parameter = 0; parameter < 2 * layers; parameter++) groups.push_back({parameter});
    lgreco_controller_options options = lgreco::controller_options();
    options.bucket_bytes = 0;  // the same groups for blocking calls
    SameSums blocking(MPI_COMM_WORLD);
    MpiBuckets buckets(MPI_COMM_WORLD, groups);
    bool same = true;
    const bool good = compare(collective, [&](const Scheme &scheme) {
        const Run run = train(scheme, collective, digits, &buckets, options);
        if (!run.is_same(train(scheme, blocking, digits, nullptr, options))) {
            std::fprintf(stderr, "FAILED: %s: rank %u ends with other parameters or payloads than by blocking calls\n",
                         scheme.name, collective.rank());
            same = false;
        }
        return run.outcome;
    });
    return good && same;
}

} // namespace

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    bool good = false;
    try {
        const auto here = std::filesystem::path(__FILE__).parent_path();
        const std::vector<std::string> arguments(argv + 1, argv + argc);
        const bool overlaps = !arguments.empty() && arguments[0] == "--overlap";
        const bool times = !arguments.empty() && arguments[0] == "--time";
        const std::size_t options = overlaps || times ? 1 : 0;
        if (arguments.size() > 1 + options) throw std::invalid_argument("usage: mpi_trainer [--overlap|--time] [DIGITS]");
        const Batch digits = read_digits(arguments.size() > options
                                             ? std::filesystem::path(arguments[options])
                                             : here / "../../lgreco-cli/examples/data/digits.bin");
        MpiCollective collective(MPI_COMM_WORLD);
        if (collective.rank() == 0)
            std::printf("digits, %u ranks, %d steps (%d of them uncompressed before the first decision)\n",
                        collective.world_size(), steps, warmup);
        good = overlaps ? compare_overlapped(collective, digits) : compare(collective, [&](const Scheme &scheme) {
            return train(scheme, collective, digits, nullptr, lgreco::controller_options(), times).outcome;
        });
    } catch (const std::exception &error) {
        std::fprintf(stderr, "%s\n", error.what());
        MPI_Abort(MPI_COMM_WORLD, 2);  // or the others would wait for this rank for ever
    }
    MPI_Finalize();
    return good ? 0 : 1;
}
