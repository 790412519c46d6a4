// Measures, plans, compresses and decodes the gradients of a LibTorch model on an NVIDIA GPU, in place, on PyTorch's
// current stream. The exit code is 0 if payloads in host and device memory decode to the same values, 1 if they differ
// or a call fails, and 2 without a GPU.
#include <c10/cuda/CUDAStream.h>
#include <torch/torch.h>

#include <lgreco_cuda.hpp>

#include <cstdio>
#include <string>

namespace {

// The gradients of a model, with the layers that point to them.
struct Model {
    std::vector<torch::Tensor> gradients;
    lgreco::Layers layers;
};

// Computes the gradients of a small model by one backward pass on random data.
Model backward() {
    torch::manual_seed(1);
    torch::nn::Sequential network(torch::nn::Linear(256, 512), torch::nn::ReLU(), torch::nn::Linear(512, 128));
    network->to(torch::kCUDA);
    const torch::Tensor inputs = torch::randn({64, 256}, torch::kCUDA), targets = torch::randn({64, 128}, torch::kCUDA);
    torch::mse_loss(network->forward(inputs), targets).backward();
    Model model;
    for (const auto &parameter : network->named_parameters()) {
        const torch::Tensor gradient = parameter->grad().contiguous();  // lgreco reads row-major arrays
        model.gradients.push_back(gradient);
        model.layers.add(parameter.key(), gradient.sizes(), gradient.data_ptr<float>());
    }
    return model;
}

bool compress() {
    const auto [gradients, layers] = backward();
    lgreco::Cuda cuda = lgreco::Cuda::on_stream(c10::cuda::getCurrentCUDAStream().stream());
    cuda.reserve(layers, LGRECO_CUDA_MEASURE | LGRECO_CUDA_ENCODE | LGRECO_CUDA_DECODE |
                            LGRECO_CUDA_ENCODE_TO_DEVICE | LGRECO_CUDA_DECODE_ON_DEVICE);
    const lgreco::Table table = cuda.measure(layers);
    const lgreco::Plan plan = lgreco::Plan::solve(table.view());
    const lgreco_table_view view = table.view();
    std::printf("%zu of %zu layers are compressed, to %llu bits; workspace %llu bytes\n", view.layers, layers.size(),
                static_cast<unsigned long long>(plan.view().size), static_cast<unsigned long long>(cuda.held_bytes()));

    bool same = true;
    for (std::size_t l = 0; l < view.layers; l++) {
        const std::size_t index = view.model_layers[l];
        const torch::Tensor &gradient = gradients[index];
        const auto elements = static_cast<std::size_t>(gradient.numel());
        const std::string setting = table.setting(l, plan.view().options[l]).text;
        const lgreco_rng_stream words{/*seed*/ 0, /*step*/ 0, static_cast<std::uint32_t>(index), /*rank*/ 0};

        // Encodes to host memory, for payloads that travel by MPI or sockets.
        torch::Tensor decoded = torch::empty_like(gradient);
        std::vector<std::uint8_t> payload;
        cuda.encode(layers[index], setting, words, payload);
        cuda.decode(payload, decoded.data_ptr<float>(), elements);

        // Encodes to device memory, for payloads that travel by NCCL. Of the calls below, only `check` waits for the
        // GPU.
        const auto bytes = static_cast<std::int64_t>(cuda.payload_len(layers[index], setting));
        torch::Tensor sent = torch::empty({bytes}, gradient.options().dtype(torch::kByte));
        torch::Tensor received = torch::empty_like(gradient);
        const std::size_t length = cuda.encode_to_device(layers[index], setting, words, sent.data_ptr<std::uint8_t>(),
                                                         static_cast<std::size_t>(bytes));
        cuda.decode_on_device(layers[index], setting, sent.data_ptr<std::uint8_t>(), length,
                              received.data_ptr<float>(), elements);
        cuda.check();

        const bool equal = torch::equal(decoded, received);
        const double error = ((gradient - decoded).norm() / gradient.norm()).item<double>();
        std::printf("%-10s %zu bytes instead of %zu, relative error %.3f, %s\n", view.names[l], payload.size(),
                    4 * elements, error, equal ? "the same both ways" : "NOT the same both ways");
        same &= equal;
    }
    return same;
}

} // namespace

int main() {
    try {
        if (!torch::cuda::is_available()) {
            std::printf("LibTorch %s finds no CUDA device: there is nothing to compress on\n", TORCH_VERSION);
            return 2;
        }
        return compress() ? 0 : 1;
    } catch (const std::exception &error) {
        std::fprintf(stderr, "%s\n", error.what());
        return 1;
    }
}
