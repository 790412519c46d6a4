// lgreco.hpp: handles move and free themselves, failures are exceptions with code and message.
#include <lgreco.hpp>

#include "check.h"

#include <limits>
#include <type_traits>

static_assert(!std::is_copy_constructible<lgreco::Compressor>::value, "two owners of one handle");
static_assert(std::is_nothrow_move_constructible<lgreco::Compressor>::value, "handles move");

template <typename Call> static void throws(lgreco_status status, const std::string &text, Call call) {
    try {
        call();
    } catch (const lgreco::Error &error) {
        CHECK(error.status() == status);
        TEXT(text.c_str(), error.what());
        return;
    }
    std::fprintf(stderr, "no exception: %s\n", text.c_str());
    failures++;
}

int main() {
    const lgreco::Context context;
    std::vector<float> fc1(64 * 48), fc2(64 * 48);
    fill(fc1.data(), fc1.size(), 1);
    fill(fc2.data(), fc2.size(), 2);
    for (float &value : fc2) value *= 0.01f;
    const std::vector<std::size_t> dims{64, 48};
    const std::vector<lgreco_layer> model{lgreco::layer("fc1", dims, fc1.data()), lgreco::layer("fc2", dims, fc2.data())};

    const lgreco::Table table = lgreco::Table::measure(context, model);
    const lgreco::Plan plan = lgreco::Plan::solve(context, table.view());
    CHECK(plan.view().proven == 1 && plan.view().layers == 2);
    const lgreco::Table copy = lgreco::Table::from_json(context, table.to_json());
    CHECK(copy.to_json() == table.to_json());
    CHECK(lgreco::Table(context, table.view()).view().layers == 2);
    const lgreco::Plan again = lgreco::Plan::from_json(context, copy, plan.to_json(table));
    CHECK(again.view().size == plan.view().size);

    lgreco_compressor_options options = lgreco::compressor_options();
    options.feedback = LGRECO_FEEDBACK_RESIDUAL;
    std::vector<lgreco::Compressor> compressors;
    for (std::size_t layer = 0; layer < model.size(); layer++)
        compressors.emplace_back(context, model[layer], table.setting(layer, plan.view().options[layer]), options);
    std::vector<std::uint8_t> payload;
    std::vector<float> decoded(fc1.size());
    compressors[0].encode(0, fc1.data(), payload);
    CHECK(payload.size() == compressors[0].bound());
    compressors[0].decode(payload, decoded);
    double error = 0, norm = 0;
    for (std::size_t i = 0; i < decoded.size(); i++) {
        error += (decoded[i] - fc1[i]) * (decoded[i] - fc1[i]);
        norm += fc1[i] * fc1[i];
    }
    CHECK(error > 0 && error < norm);

    lgreco::Compressor moved = std::move(compressors[0]);
    CHECK(compressors[0].get() == nullptr);
    lgreco::Compressor restored(context, model[0], table.setting(0, plan.view().options[0]), options);
    restored.load(moved.save());
    std::vector<std::uint8_t> one, two;
    moved.encode(1, fc1.data(), one);
    restored.encode(1, fc1.data(), two);
    CHECK(one == two);
    lgreco_setting dense = lgreco::setting();
    moved.set(dense);
    CHECK(moved.bound() == 16 + 4 * fc1.size());

    fc1[5] = -std::numeric_limits<float>::infinity();
    throws(LGRECO_NON_FINITE, "LGRECO_NON_FINITE: layer `fc1`: element 5 is -inf",
           [&] { moved.encode(2, fc1.data(), payload); });
    throws(LGRECO_NON_FINITE, "LGRECO_NON_FINITE: layer `fc1`: element 5 is -inf",
           [&] { lgreco::Table::measure(context, model); });
    throws(LGRECO_NO_SETTINGS, "LGRECO_NO_SETTINGS", [&] { copy.setting(0, 0); });
    throws(LGRECO_FEEDBACK_RULE, "LGRECO_FEEDBACK_RULE: layer `fc1`: ", [&] { moved.receive(payload, decoded); });
    throws(LGRECO_JSON, "LGRECO_JSON: ", [&] { lgreco::Table::from_json(context, "{"); });
    throws(LGRECO_UNAVAILABLE, "LGRECO_UNAVAILABLE", [] {
        lgreco_context_options cuda = lgreco::context_options();
        cuda.device = LGRECO_DEVICE_CUDA;
        lgreco::Context none(cuda);
    });
    return report("wrappers");
}
