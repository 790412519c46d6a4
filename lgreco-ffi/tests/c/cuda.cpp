// lgreco_cuda.hpp: from gradients on the device to a table, a plan, payloads and back. As cuda.c.
#include <lgreco_cuda.hpp>

#include "driver.h"

#include <type_traits>

static_assert(!std::is_copy_constructible<lgreco::Cuda>::value, "two owners of one handle");
static_assert(std::is_nothrow_move_constructible<lgreco::Cuda>::value, "handles move");

template <typename Call> static void throws(lgreco_status status, const char *text, Call call) {
    try {
        call();
    } catch (const lgreco::Error &error) {
        CHECK(error.status() == status);
        TEXT(text, error.what());
        return;
    }
    std::fprintf(stderr, "no exception: %s\n", text);
    failures++;
}

static void works(const lgreco::Context &context) {
    constexpr std::size_t elements = 64 * 48;
    std::vector<float> host(elements), decoded(elements), expected(elements), zeros(elements);
    fill(host.data(), elements, 3);
    const std::vector<std::size_t> dims{64, 48};
    const void *const gradient = on_device(host.data(), 4 * elements);
    float *const values = static_cast<float *>(on_device(nullptr, 4 * elements));
    float *const residual = static_cast<float *>(on_device(zeros.data(), 4 * elements));
    std::uint8_t *const sent = static_cast<std::uint8_t *>(on_device(nullptr, 4 * elements));
    const std::vector<lgreco_layer> model{lgreco::layer("fc1", dims, gradient)};

    lgreco::Cuda cuda = lgreco::Cuda::on_stream(context, stream);
    const lgreco_cuda_calls calls = LGRECO_CUDA_MEASURE | LGRECO_CUDA_ENCODE | LGRECO_CUDA_DECODE;
    cuda.reserve(model, calls);
    CHECK(cuda.held_bytes() == cuda.workspace_bytes(model, calls));
    const lgreco::Table table = cuda.measure(model);
    const lgreco::Plan plan = lgreco::Plan::solve(context, table.view());
    const lgreco_setting setting = table.setting(0, plan.view().options[0]);
    const lgreco_rng_stream words{1, 2, 0, 3, 0};

    std::vector<std::uint8_t> payload, same;
    cuda.encode(model[0], setting, words, payload);
    lgreco_compressor_options options = lgreco::compressor_options();
    options.seed = 1;
    options.rank = 3;
    lgreco::Compressor compressor(context, lgreco::layer("fc1", dims), setting, options);
    compressor.encode(2, host.data(), same);
    CHECK(payload == same && payload.size() == cuda.payload_len(model[0], setting));
    compressor.decode(payload, expected);
    cuda.decode(payload, values, elements);
    to_host(decoded.data(), values, 4 * elements);
    CHECK(decoded == expected);

    cuda.encode_with_feedback(model[0], setting, words, 1, LGRECO_STORAGE_F32, residual, 4 * elements, same);
    CHECK(payload == same);  // nothing was remembered before
    const std::size_t length = cuda.encode_to_device(model[0], setting, words, sent, 4 * elements);
    cuda.decode_on_device(model[0], setting, sent, length, values, elements);
    cuda.check();
    cuda.synchronize();
    to_host(decoded.data(), values, 4 * elements);
    CHECK(length == payload.size() && decoded == expected);
    throws(LGRECO_LENGTH, "LGRECO_LENGTH: layer `fc1`: ",
           [&] { cuda.decode_on_device(model[0], setting, sent, length, values, 5); });
    lgreco::Cuda of_its_own(context);
    of_its_own = std::move(cuda);
    of_its_own.decode(payload, values, elements);
}

int main(int argc, char **argv) {
    const lgreco::Context context;
    if (argc > 1 && strcmp(argv[1], "missing") == 0) {
        if (!has_driver())
            throws(LGRECO_UNAVAILABLE, "LGRECO_UNAVAILABLE: no NVIDIA driver", [&] { lgreco::Cuda cuda(context); });
        return report("cuda, C++, missing");
    }
    void *const cuda_context = primary_context();
    CHECK(driver.push(cuda_context) == 0 && driver.stream(&stream, 0) == 0);
    works(context);
    return report("cuda, C++");
}
