// Tests lgreco.hpp, lgreco_train.hpp and lgreco_pipeline.hpp. Handle objects can be moved, destructors free handles,
// and failures are exceptions with code and message.
#include <lgreco_pipeline.hpp>
#include <lgreco_train.hpp>

#include "check.h"

#include <cstring>
#include <limits>
#include <thread>
#include <type_traits>

static_assert(!std::is_copy_constructible<lgreco::Compressor>::value, "two owners of one handle");
static_assert(std::is_nothrow_move_constructible<lgreco::Compressor>::value, "handles move");
static_assert(!std::is_copy_constructible<lgreco::Controller>::value, "two owners of one handle");
static_assert(std::is_nothrow_move_constructible<lgreco::Controller>::value, "handles move");
static_assert(!std::is_copy_constructible<lgreco::Bucket>::value, "two owners of one handle");
static_assert(std::is_nothrow_move_constructible<lgreco::Bucket>::value, "handles move");
static_assert(!std::is_copy_constructible<lgreco::Layers>::value, "a copy would point into the original");
static_assert(std::is_nothrow_move_constructible<lgreco::Layers>::value, "layers move");

template <typename Dims, typename = void> struct Describes : std::false_type {};
template <typename Dims>
struct Describes<Dims, std::void_t<decltype(lgreco::layer("", std::declval<Dims>()))>> : std::true_type {};
static_assert(Describes<const std::vector<std::size_t> &>::value, "dims that the caller keeps");
static_assert(!Describes<std::vector<std::size_t>>::value, "a layer would point into dims that are gone");

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

// The collectives of a single worker. All-gathers fail while `broken` is set.
class Alone : public lgreco::Collective {
public:
    bool broken = false;

    std::uint32_t rank() const override { return 0; }
    std::uint32_t world_size() const override { return 1; }
    void perform(const lgreco_request &request) override {
        if (request.kind == LGRECO_REQUEST_ALL_GATHER && broken) throw std::out_of_range("the network is down");
        if (request.kind == LGRECO_REQUEST_ALL_GATHER_EACH || request.kind == LGRECO_REQUEST_ALL_TO_ALL)
            throw lgreco::Error(LGRECO_UNAVAILABLE, "not on this network");
    }
};

static void controllers() {
    Alone alone;
    const std::vector<std::size_t> dims{64, 48};
    const std::vector<lgreco_layer> model{lgreco::layer("fc1", dims), lgreco::layer("fc2", dims)};
    lgreco::Options options{{"start_iter", 2}, {"period", 2}};
    lgreco::Controller controller(alone, model, options);
    std::vector<float> fc1(64 * 48), fc2(64 * 48);
    const std::vector<void *> gradients{fc1.data(), fc2.data()};
    const auto step = [&](lgreco::Controller &of, std::uint32_t number) {
        fill(fc1.data(), fc1.size(), number);
        fill(fc2.data(), fc2.size(), number + 1000);
        return of.step(alone, gradients, 0.1);
    };
    CHECK(step(controller, 0).bytes_out == 2 * 64 * 48 * 4);
    CHECK(step(controller, 1).switched == 0);
    CHECK(step(controller, 2).switched == 1);
    const lgreco_setting planned = controller.setting(0);
    CHECK(controller.decision().planned == 1 && strncmp(planned.text, "eden ", 5) == 0);
    CHECK(controller.metrics(1).steps == 3 && controller.metrics_json().front() == '{');

    lgreco::Controller resumed(alone, model, options);
    CHECK(resumed.resume(controller.save()).missing_len == 0);
    std::vector<std::vector<std::uint8_t>> parts;
    for (std::size_t part = 0; part < 3; part++) {
        CHECK(controller.save_part(part).first == (part == 0 ? "" : part == 1 ? "fc1" : "fc2"));
        parts.push_back(controller.save_part(part).second);
    }
    CHECK(resumed.load_parts(parts, parts).missing_len == 0 && resumed.save() == controller.save());
    CHECK(resumed.save(LGRECO_SAVE_WITHOUT_WINDOW).size() < controller.save().size());
    throws(LGRECO_LAYER_MISMATCH, "LGRECO_LAYER_MISMATCH: there is no layer 2", [&] { controller.save_part(3); });
    step(controller, 3);
    const std::vector<float> one = fc1;
    step(resumed, 3);
    CHECK(one == fc1);

    alone.broken = true;
    bool thrown = false;
    try {
        step(controller, 4);
    } catch (const std::out_of_range &error) {
        thrown = strcmp(error.what(), "the network is down") == 0;
    }
    CHECK(thrown);
    alone.broken = false;
    CHECK(step(controller, 4).step == 4);
    throws(LGRECO_LENGTH, "LGRECO_LENGTH: ", [&] { controller.step(alone, {fc1.data()}, 0.1); });
    throws(LGRECO_SAVED_STATE, "LGRECO_SAVED_STATE: ", [&] {
        std::vector<std::uint8_t> saved = controller.save();
        saved[0] ^= 1;
        controller.resume(saved);
    });
    options.set("route", "scatter_reduce");
    lgreco::Controller scatter(alone, model, options);
    step(scatter, 0);
    step(scatter, 1);
    throws(LGRECO_UNAVAILABLE, "not on this network", [&] { step(scatter, 2); });
    const std::vector<lgreco_setting> fixed{lgreco::setting("sidco 0.01"), lgreco::setting("dense")};
    lgreco::Controller variable(alone, model, {{"start_iter", 2}}, fixed);
    throws(LGRECO_LENGTH, "LGRECO_LENGTH: settings, one per layer",
           [&] { lgreco::Controller(alone, model, {}, {lgreco::setting("dense")}); });
    const lgreco::Controller node = lgreco::Controller::on_nodes(alone, 1, model, {{"start_iter", 2}});
    CHECK((node.shard(0) == std::make_pair(std::size_t{0}, dims[0] * dims[1])));
    const lgreco::Controller shard = lgreco::Controller::sharded(alone, model, {64 * 48, 64 * 48}, {{"start_iter", 2}});
    CHECK(shard.setting(0).text[0] != '\0');
    step(variable, 0);
    throws(LGRECO_UNAVAILABLE, "not on this network", [&] {
        for (std::uint32_t number = 1; number < 4; number++) step(variable, number);
    });
}

// Buckets give the same results as `step`, can be closed at any stage, and may outlive their controller.
static void buckets() {
    Alone alone;
    const std::vector<std::size_t> dims{64, 48};
    const std::vector<lgreco_layer> model{lgreco::layer("fc1", dims), lgreco::layer("fc2", dims)};
    const lgreco::Options options{{"method", "topk"}, {"start_iter", 2}, {"bucket_bytes", 0}, {"undo", true}};
    lgreco::Controller blocking(alone, model, options);
    std::unique_ptr<lgreco::Controller> controller(new lgreco::Controller(alone, model, options));
    const auto begin = [&] { controller->begin_step(alone, 0.1); };
    std::vector<float> values[4];
    for (std::uint32_t number = 0; number < 5; number++) {
        for (int i = 0; i < 4; i++) {
            values[i].resize(64 * 48);
            fill(values[i].data(), values[i].size(), number + 100 * static_cast<std::uint32_t>(i % 2));
        }
        const lgreco_report expected = blocking.step(alone, {values[0].data(), values[1].data()}, 0.1);
        begin();
        std::vector<lgreco::Bucket> flying;
        for (std::size_t layer : {1, 0}) {
            flying.push_back(controller->open({layer}));
            flying.back().submit({values[2 + layer].data()});
        }
        for (lgreco::Bucket &bucket : flying) {
            for (lgreco_request asked = bucket.next(); asked.kind != LGRECO_REQUEST_NONE; asked = bucket.next())
                alone.perform(asked);
            controller->close(bucket);
            CHECK(bucket.get() == nullptr);
        }
        CHECK(controller->finish_step().bytes_out == expected.bytes_out);
        CHECK(values[2] == values[0] && values[3] == values[1]);
    }
    CHECK(controller->save() == blocking.save());
    controller->roll_back();
    throws(LGRECO_STEP_ORDER, "LGRECO_STEP_ORDER: no step is under way", [&] { controller->abandon_step(); });
    controller->rescale_residuals(0.5f);
    CHECK(controller->metrics(0).residual_norm != blocking.metrics(0).residual_norm);
    throws(LGRECO_STEP_ORDER, "LGRECO_STEP_ORDER: no step is under way", [&] { controller->open({0}); });

    begin();
    {
        lgreco::Bucket bucket = controller->open({0, 1});
        bucket.withhold(1);
        throws(LGRECO_IN_FLIGHT, "LGRECO_IN_FLIGHT: layer `fc1`: ", [&] { controller->finish_step(); });
        throws(LGRECO_STEP_ORDER, "LGRECO_STEP_ORDER: ", [&] { blocking.close(bucket); });
        lgreco::Bucket moved = std::move(bucket);
        throws(LGRECO_NULL_POINTER, "LGRECO_NULL_POINTER: bucket is NULL", [&] { bucket.withhold(0); });
        moved.submit_failure();
        throws(LGRECO_TRAINER, "LGRECO_TRAINER: the trainer of this rank has failed", [&] {
            for (lgreco_request asked = moved.next(); asked.kind != LGRECO_REQUEST_NONE; asked = moved.next())
                alone.perform(asked);
        });
    }
    controller->finish_step();
    begin();
    const lgreco::Bucket last = controller->open({0, 1});
    controller.reset();
}

// A plan task on another thread makes the same decision as a step that plans itself. Also tests settings that the
// caller gives.
static void plan_tasks() {
    Alone alone;
    const std::vector<std::size_t> dims{64, 48};
    const std::vector<lgreco_layer> model{lgreco::layer("fc1", dims), lgreco::layer("fc2", dims)};
    const lgreco::Options options{{"start_iter", 4}, {"lead", 2}};
    lgreco::Controller blocking(alone, model, options), other(alone, model, options);
    lgreco::PlanTask task = other.take_plan_task();
    CHECK(!task);
    std::thread thread;
    std::vector<float> values[4];
    for (std::uint32_t number = 0; number < 6; number++) {
        for (int i = 0; i < 4; i++) {
            values[i].resize(64 * 48);
            fill(values[i].data(), values[i].size(), number + 100 * static_cast<std::uint32_t>(i % 2));
        }
        if (thread.joinable() && number == 4) {
            thread.join();
            other.hand_in(task);
            CHECK(!task);
        }
        const lgreco_report expected = blocking.step(alone, {values[0].data(), values[1].data()}, 0.1);
        const lgreco_report report = other.step(alone, {values[2].data(), values[3].data()}, 0.1);
        CHECK(report.switched == (number == 4) && expected.switched == report.switched);
        CHECK(values[2] == values[0] && values[3] == values[1]);
        if (number == 1) {
            task = other.take_plan_task();
            CHECK(static_cast<bool>(task));
            throws(LGRECO_STEP_ORDER, "LGRECO_STEP_ORDER: the plan task has not been run", [&] { other.hand_in(task); });
            thread = std::thread([&task] { task.run(); });
        }
    }
    CHECK(other.replan() == 6 + 10 + 2);
    throws(LGRECO_NOT_FIXED, "LGRECO_NOT_FIXED: ", [&] { other.set_settings({{"dense"}, {"dense"}}); });
    throws(LGRECO_TEXT, "LGRECO_TEXT: setting `dense ", [&] { lgreco::setting("dense" + std::string(80, ' ')); });
    lgreco_setting endless;
    std::memset(endless.text, ' ', sizeof endless.text);
    throws(LGRECO_TEXT, "LGRECO_TEXT: layer `fc2`: setting has no NUL", [&] { other.set_settings({{"dense"}, endless}); });
}

static void cuts() {
    lgreco::Options options{{"batch", 2}, {"features", 64}, {"forward_memory", "samples 1024"}};
    const lgreco_cut_setting setting = lgreco::cut_setting(options);
    lgreco::Cut above(setting, LGRECO_END_UPSTREAM, 1), below(setting, LGRECO_END_DOWNSTREAM, 1);
    std::vector<float> activations(128), received(128);
    std::vector<std::uint8_t> message;
    fill(activations.data(), activations.size(), 1);
    const std::vector<std::uint64_t> ids{7, 8};
    const std::uint64_t ticket = above.send_activations(activations.data(), 2, ids, message);
    CHECK(below.receive(message, received) == ticket);
    CHECK(received == activations);  // the first visit is not compressed
    below.send_gradients(ticket, activations.data(), 2, message);
    CHECK(above.receive(message, received) == ticket && received != activations);
    above.commit_step();
    below.commit_step();
    CHECK(below.remembered_samples() == ids);
    std::vector<float> row(64);
    CHECK(below.remembered(8, row) && !below.remembered(9, row));

    std::string what;
    CHECK(lgreco::compare(lgreco::cut_setting(options), setting, &what) == LGRECO_COMPATIBILITY_SAME && what.empty());
    options.set("forward", "min-max 5");
    CHECK(lgreco::compare(lgreco::cut_setting(options), setting, &what) == LGRECO_COMPATIBILITY_EVALUATES_DIFFERENTLY);
    CHECK(what == "forward codec");
    throws(LGRECO_UNKNOWN_OPTION, "LGRECO_UNKNOWN_OPTION: a cut has no option `bits`; there are batch, features, ",
           [] { lgreco::cut_setting({{"bits", 3}}); });
    lgreco::Cut restored = lgreco::Cut::restore(setting, LGRECO_END_UPSTREAM, above.save());
    std::vector<std::uint8_t> one, two;
    above.send_activations(activations.data(), 2, ids, one);
    restored.send_activations(activations.data(), 2, ids, two);
    CHECK(one == two);
    throws(LGRECO_LENGTH, "LGRECO_LENGTH: ids, one per sample",
           [&] { above.send_activations(activations.data(), 2, {7}, message); });
    throws(LGRECO_OTHER_END, "LGRECO_OTHER_END: ", [&] { below.send_activations(activations.data(), 2, ids, message); });
}

// A Layers object keeps its names and dims when it is moved.
static void layers() {
    lgreco::Layers added;
    std::vector<float> values(6);
    {
        const std::string name = "a name that is too long for std::string to keep it in place";
        const std::vector<std::int64_t> dims{2, 3};
        CHECK(added.add(name, dims, values.data()) == 0);
    }
    for (int i = 0; i < 100; i++) added.add("fc" + std::to_string(i), {64, 48}, nullptr, LGRECO_DTYPE_BF16);
    const lgreco::Layers moved = std::move(added);
    const std::vector<lgreco_layer> &list = moved;
    CHECK(moved.size() == 101 && list.size() == 101 && &list[7] == &moved[7]);
    TEXT("a name that is too long for std::string to keep it in place", moved[0].name);
    CHECK(moved[0].dims_len == 2 && moved[0].dims[0] == 2 && moved[0].dims[1] == 3);
    CHECK(moved[0].values == values.data() && moved[0].dtype == LGRECO_DTYPE_F32);
    TEXT("fc99", moved[100].name);
    CHECK(moved[100].dims[1] == 48 && moved[100].values == nullptr && moved[100].dtype == LGRECO_DTYPE_BF16);
    Alone alone;
    const lgreco::Controller controller(alone, moved);
    CHECK(controller.metrics(100).steps == 0);
}

static void networks() {
    // The sums are 1.5 + 2, two ties, an overflow, -0 + -0, and infinity - infinity.
    std::uint16_t sums[] = {0x3fc0, 0x3f80, 0x3f81, 0x7f7f, 0x8000, 0x7f80};
    const std::uint16_t addends[] = {0x4000, 0x3b80, 0x3b80, 0x7f7f, 0x8000, 0xff80};
    lgreco::add_bf16(sums, addends, 6);
    CHECK(sums[0] == 0x4060 && sums[1] == 0x3f80 && sums[2] == 0x3f82 && sums[3] == 0x7f80 && sums[4] == 0x8000);
    CHECK((sums[5] & 0x7f80) == 0x7f80 && (sums[5] & 0x7f) != 0);

    const std::uint64_t lens[] = {5, 0, 7};
    lgreco_request asked = LGRECO_REQUEST_INIT;
    asked.count = 12;
    asked.length = 10;
    asked.root = 2;
    asked.lens = asked.send_lens = lens;
    const std::uint64_t expected[] = {0, 48, 10, 7, 10, 12, 48, 24, 24};  // by kind, of rank 2
    for (std::uint32_t kind = 0; kind < 9; kind++) {
        asked.kind = static_cast<lgreco_request_kind>(kind);
        CHECK(lgreco::contributed_bytes(asked, 2, 3) == expected[kind]);
    }
    asked.kind = LGRECO_REQUEST_BROADCAST;
    CHECK(lgreco::contributed_bytes(asked, 1, 3) == 0);
    asked.kind = static_cast<lgreco_request_kind>(9);
    throws(LGRECO_UNKNOWN_CONSTANT, "LGRECO_UNKNOWN_CONSTANT: the request has an unknown kind",
           [&] { lgreco::contributed_bytes(asked, 0, 3); });
}

int main() {
    layers();
    networks();
    controllers();
    buckets();
    plan_tasks();
    cuts();
    std::vector<float> fc1(64 * 48), fc2(64 * 48);
    fill(fc1.data(), fc1.size(), 1);
    fill(fc2.data(), fc2.size(), 2);
    for (float &value : fc2) value *= 0.01f;
    const std::vector<std::size_t> dims{64, 48};
    const std::vector<lgreco_layer> model{lgreco::layer("fc1", dims, fc1.data()), lgreco::layer("fc2", dims, fc2.data())};

    const lgreco::Table table = lgreco::Table::measure(model);
    const lgreco::Plan plan = lgreco::Plan::solve(table.view());
    CHECK(plan.view().proven == 1 && plan.view().layers == 2);
    const lgreco::Table copy = lgreco::Table::from_json(table.to_json());
    CHECK(copy.to_json() == table.to_json());
    const lgreco::Table bare(table.view());
    CHECK(bare.view().layers == 2);
    const lgreco_setting third = table.setting(1, 2), copied = copy.setting(1, 2);
    CHECK(third.text[0] != '\0' && says(&third, copied.text));
    CHECK(plan.to_json(table).find("\"setting\": \"") != std::string::npos);
    CHECK(plan.to_json(bare).find("\"setting\"") == std::string::npos);
    throws(LGRECO_SETTING_WORD, "LGRECO_SETTING_WORD: setting: `qsdg` is unknown: is `qsgd` meant?",
           [&] { lgreco::Compressor(model[0], "qsdg 4"); });
    const lgreco::Plan again = lgreco::Plan::from_json(copy, plan.to_json(table));
    CHECK(again.view().size == plan.view().size);

    const lgreco::Options options{{"error_feedback", true}};
    std::vector<lgreco::Compressor> compressors;
    for (std::size_t layer = 0; layer < model.size(); layer++) {
        std::string setting = table.setting(layer, plan.view().options[layer]).text;
        lgreco_layer any = model[layer];
        any.values = nullptr;
        // lgreco_feedback_check without values decides like the compressor, which refuses QSGD with too few bits.
        if (lgreco_feedback_check(&any, setting.c_str(), options.list().data()) != LGRECO_OK) setting = "qsgd 4";
        compressors.emplace_back(model[layer], setting, options);
    }
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
    lgreco::Compressor restored(model[0], table.setting(0, plan.view().options[0]).text, options);
    restored.load(moved.save());
    std::vector<std::uint8_t> one, two;
    moved.encode(1, fc1.data(), one);
    restored.encode(1, fc1.data(), two);
    CHECK(one == two);
    moved.set("dense");
    CHECK(moved.bound() == 16 + 4 * fc1.size());

    fc1[5] = -std::numeric_limits<float>::infinity();
    throws(LGRECO_NON_FINITE, "LGRECO_NON_FINITE: layer `fc1`: element 5 is -inf",
           [&] { moved.encode(2, fc1.data(), payload); });
    throws(LGRECO_NON_FINITE, "LGRECO_NON_FINITE: layer `fc1`: element 5 is -inf",
           [&] { lgreco::Table::measure(model); });
    throws(LGRECO_NO_SETTINGS, "LGRECO_NO_SETTINGS", [&] { bare.setting(0, 0); });
    throws(LGRECO_JSON, "LGRECO_JSON: ", [&] { lgreco::Table::from_json("{"); });
    throws(LGRECO_UNAVAILABLE, "LGRECO_UNAVAILABLE: the device is not available", [] { lgreco::Context("cpu:1"); });
    const lgreco::Context cpu("cpu");
    fc1[5] = 0;
    CHECK(lgreco::Table::measure(model, {}, cpu).view().layers == 2);

    // Options keep the exact value of numbers of any type.
    lgreco::Options all{{"half", 0.5}, {"third", 1.0 / 3}, {"small", 1e-9f}, {"many", std::uint64_t{1} << 63}, {"yes", true},
                        {"byte", std::uint8_t{7}}, {"list", std::vector<double>{8, 2.5}}, {"less", -1}, {"text", std::string("size")}};
    all.set("less", -2).set("last", "one");
    const std::vector<const char *> list = all.list();
    const char *const expected[] = {"half", "0.5", "third", "0.33333333333333331", "small", nullptr, "many", "9223372036854775808",
                                    "yes", "true", "byte", "7", "list", "8,2.5", "less", "-2", "text", "size", "last", "one"};
    CHECK(list.size() == sizeof expected / sizeof *expected + 1 && list.back() == nullptr);
    for (std::size_t at = 0; at < sizeof expected / sizeof *expected; at++)
        if (expected[at] != nullptr) CHECK(strcmp(list[at], expected[at]) == 0);
    return report("wrappers");
}
