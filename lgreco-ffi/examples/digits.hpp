// The model of the trainers: a multilayer perceptron with a hand-written backward pass, on 8 x 8 images of digits.
//
// For each image, the data file has 64 bytes of pixels and one byte of label. Pixels are 0 to 16, in rows from the top,
// and labels are 0 to 9.
#ifndef LGRECO_EXAMPLES_DIGITS_HPP
#define LGRECO_EXAMPLES_DIGITS_HPP

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

constexpr std::size_t pixels = 64, classes = 10;
constexpr std::size_t widths[] = {pixels, 256, 256, 128, classes};
constexpr std::size_t layers = std::size(widths) - 1;
constexpr std::size_t batch_size = 16;  // images per rank and step
constexpr float learning_rate = 0.05f, momentum = 0.9f;

struct Batch {
    std::vector<float> images;  // one image after another, pixels from -1 to 1
    std::vector<std::uint8_t> labels;

    void add(const Batch &from, std::size_t image) {
        images.insert(images.end(), &from.images[image * pixels], &from.images[image * pixels] + pixels);
        labels.push_back(from.labels[image]);
    }
};

inline const std::filesystem::path digits_file = std::filesystem::path(__FILE__).parent_path() / "../../examples/data/digits.bin";

inline Batch read_digits(const std::filesystem::path &path) {
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

    Parameter(std::string its_name, std::vector<std::size_t> its_dims) : name(std::move(its_name)), dims(std::move(its_dims)) {
        std::size_t elements = 1;
        for (const std::size_t dim : dims) elements *= dim;
        values = gradient = velocity = std::vector<float>(elements);
    }
};

// Linear layers with ReLU between them; cross-entropy of a softmax at the end.
class Network {
public:
    std::vector<Parameter> parameters;  // per layer its weight, inputs x outputs, and its bias

    Network() {
        std::mt19937 random(1);  // the same initial parameters on every rank
        for (std::size_t l = 0; l < layers; l++) {
            const std::string name = "fc" + std::to_string(l + 1);
            parameters.emplace_back(name + ".weight", std::vector<std::size_t>{widths[l], widths[l + 1]});
            const float bound = std::sqrt(6.0f / static_cast<float>(widths[l]));
            for (float &value : parameters.back().values)
                value = bound * (2.0f * static_cast<float>(random()) / static_cast<float>(random.max()) - 1.0f);
            parameters.emplace_back(name + ".bias", std::vector<std::size_t>{widths[l + 1]});
        }
    }

    // Computes the activations and returns the mean loss. The last layer's activations are probabilities.
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

    // Fraction of images whose label was the most probable in the last forward pass.
    double accuracy(const Batch &batch) const {
        std::size_t correct = 0;
        for (std::size_t image = 0; image < batch.labels.size(); image++) {
            const float *scores = &activations_[layers][image * classes];
            correct += std::max_element(scores, scores + classes) - scores == batch.labels[image];
        }
        return static_cast<double>(correct) / static_cast<double>(batch.labels.size());
    }

    // Computes the gradients of the last forward pass's mean loss. Calls `done` with each parameter whose gradient is ready.
    template <typename Done> void backward(const Batch &batch, Done done) {
        const std::size_t count = batch.labels.size();
        std::vector<float> delta = activations_[layers], below;  // gradients for the layer's outputs and inputs
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
                    if (l > 0 && x[i] <= 0) continue;  // ReLU was zero, so no gradient passes
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

// Holds out every fifth image for validation, and divides the other images among the ranks.
inline std::pair<Batch, std::vector<std::size_t>> divide(const Batch &digits, std::uint32_t rank, std::uint32_t ranks) {
    Batch held_out;
    std::vector<std::size_t> shard;
    std::size_t training = 0;
    for (std::size_t image = 0; image < digits.labels.size(); image++) {
        if (image % 5 == 0)
            held_out.add(digits, image);
        else if (training++ % ranks == rank)
            shard.push_back(image);
    }
    if (shard.empty()) throw std::runtime_error("there are fewer images to learn from than ranks");
    return {held_out, shard};
}

#endif // LGRECO_EXAMPLES_DIGITS_HPP
