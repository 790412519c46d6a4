// Trains a small transformer on the text of a novel with LibTorch, data-parallel over MPI.
//
//   run [FOLDER] builds and starts the trainer. To start an existing build: mpirun -np 4 trainer [TEXT]
//
// Autograd computes the gradients, lgreco exchanges them in place, and Adam applies the means. Schemes, printed table
// and exit code are the same as in ../mpi_trainer.cpp. Accuracy is the fraction of correctly predicted characters. TEXT
// is any file of bytes.
#include "schemes.hpp"

#include <torch/torch.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <tuple>

namespace {

constexpr std::int64_t context = 64, width = 96, heads = 4, depth = 2;
constexpr std::int64_t windows = 4;  // of `context` characters, per rank and step
constexpr int steps = 300, warmup = 15, period = 75;
constexpr double learning_rate = 2e-3;

struct Text {
    torch::Tensor training, held_out;  // characters by number; the last tenth is held out
    std::int64_t vocabulary;
};

Text read_text(const std::filesystem::path &path) {
    std::ifstream file(path, std::ios::binary);
    const std::vector<char> bytes{std::istreambuf_iterator<char>(file), {}};
    if (bytes.size() < 100 * context) throw std::runtime_error(path.string() + ": cannot be read, or is too short");
    std::array<std::int64_t, 256> number;
    number.fill(-1);
    std::vector<std::int64_t> characters;
    std::int64_t vocabulary = 0;
    for (const char byte : bytes) {
        std::int64_t &its = number[static_cast<unsigned char>(byte)];
        if (its < 0) its = vocabulary++;
        characters.push_back(its);
    }
    const torch::Tensor all = torch::tensor(characters);
    const std::int64_t end = all.size(0) / 10 * 9;
    return {all.slice(0, 0, end), all.slice(0, end), vocabulary};
}

// Returns one window of input characters per start, and the character after each input. Both tensors have the shape
// context x starts.
std::pair<torch::Tensor, torch::Tensor> windows_at(const torch::Tensor &text, const torch::Tensor &starts) {
    const torch::Tensor at = starts.unsqueeze(0) + torch::arange(context).unsqueeze(1);
    return {text.index({at}), text.index({at + 1})};
}

struct TransformerImpl : torch::nn::Module {
    torch::nn::Embedding characters, positions;
    torch::nn::TransformerEncoder encoder;
    torch::nn::Linear output;
    torch::Tensor mask = torch::nn::TransformerImpl::generate_square_subsequent_mask(context);

    explicit TransformerImpl(std::int64_t vocabulary)
        : characters(vocabulary, width), positions(context, width),
          encoder(torch::nn::TransformerEncoderOptions(
              torch::nn::TransformerEncoderLayerOptions(width, heads).dim_feedforward(4 * width).dropout(0), depth)),
          output(width, vocabulary) {
        register_module("characters", characters);
        register_module("positions", positions);
        register_module("encoder", encoder);
        register_module("output", output);
    }

    // Returns the scores of the next character, in the shape context x windows x vocabulary.
    torch::Tensor forward(const torch::Tensor &inputs) {
        const torch::Tensor x = characters(inputs) + positions(torch::arange(context)).unsqueeze(1);
        return output(encoder(x, mask));
    }
};
TORCH_MODULE(Transformer);

torch::Tensor loss_of(const torch::Tensor &scores, const torch::Tensor &targets) {
    return torch::nn::functional::cross_entropy(scores.flatten(0, 1), targets.flatten());
}

// Returns loss and accuracy on windows spread over the held-out text.
std::pair<double, double> validate(Transformer &model, const torch::Tensor &held_out) {
    const torch::NoGradGuard no_grad;
    const auto [inputs, targets] = windows_at(held_out, torch::arange(0, held_out.size(0) - context, 4 * context));
    const torch::Tensor scores = model(inputs);
    const torch::Tensor right = scores.argmax(2).eq(targets).to(torch::kDouble).mean();
    return {loss_of(scores, targets).item<double>(), right.item<double>()};
}

Outcome train(const Scheme &scheme, MpiCollective &collective, const Text &text) {
    torch::manual_seed(1);  // the same initial parameters on every rank
    Transformer model(text.vocabulary);
    torch::optim::Adam optimiser(model->parameters(), torch::optim::AdamOptions(learning_rate));

    const auto parameters = model->named_parameters();
    lgreco::Layers layers;
    for (const auto &parameter : parameters) layers.add(parameter.key(), parameter->sizes());
    lgreco::Controller controller(collective, layers, options_of(scheme, warmup, period));

    // Each rank trains on a separate part of the text.
    const std::int64_t part = text.training.size(0) / collective.world_size();
    const torch::Tensor own = text.training.slice(0, part * collective.rank(), part * (collective.rank() + 1));
    torch::manual_seed(100 + collective.rank());

    Outcome outcome{};
    outcome.loss_before = validate(model, text.held_out).first;
    const std::uint64_t sent_before = collective.groups().sent();
    for (int step = 0; step < steps; step++) {
        const auto [inputs, targets] = windows_at(own, torch::randint(part - context, {windows}, torch::kLong));
        optimiser.zero_grad();
        loss_of(model(inputs), targets).backward();
        std::vector<void *> gradients;
        for (const auto &parameter : parameters) {
            torch::Tensor &gradient = parameter->mutable_grad();
            gradient = gradient.contiguous();  // lgreco reads and writes row-major arrays
            gradients.push_back(gradient.data_ptr<float>());
        }
        controller.step(collective, gradients, learning_rate);  // the gradients are now the means over all ranks
        optimiser.step();
    }
    outcome.bytes = static_cast<double>(collective.groups().sent() - sent_before) / steps;
    std::tie(outcome.loss, outcome.accuracy) = validate(model, text.held_out);
    const torch::Tensor values = torch::nn::utils::parameters_to_vector(model->parameters());
    outcome.same = collective.same_everywhere(values.data_ptr<float>(), static_cast<std::size_t>(values.numel()));
    return outcome;
}

bool run(const std::vector<std::string> &arguments) {
    torch::set_num_threads(1);  // per rank
    const auto here = std::filesystem::path(__FILE__).parent_path();
    const Text text = read_text(arguments.empty() ? here / "../../../examples/data/eighty_days.txt"
                                                  : std::filesystem::path(arguments[0]));
    MpiCollective collective(MPI_COMM_WORLD);
    if (collective.rank() == 0)
        std::printf("transformer, LibTorch %s, %u ranks, %d steps (%d of them uncompressed before the first decision)\n",
                    TORCH_VERSION, collective.world_size(), steps, warmup);
    return compare(collective, [&](const Scheme &scheme) { return train(scheme, collective, text); });
}

} // namespace

int main(int argc, char **argv) { return mpi_main(argc, argv, run); }
