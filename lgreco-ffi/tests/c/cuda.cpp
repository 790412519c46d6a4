// Tests lgreco_cuda.hpp, from gradients on the device to a table, a plan, payloads and back. Needs the same devices as
// cuda.c.
#include <lgreco_cuda.hpp>

#include "driver.h"

#include <cmath>
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

// Reads results from host copies without waiting. The table must equal `expected`. Of the two steps, the first has
// failed.
static void later(lgreco::Cuda &cuda, const std::vector<lgreco_layer> &model, const lgreco::Table &expected,
                  const lgreco_setting &setting) {
    const lgreco::CudaRowsBytes room = cuda.rows_bytes(model);
    void *const workspace = on_device(nullptr, room.workspace), *const results = on_device(nullptr, room.results);
    cuda.enqueue_rows(model, workspace, room.workspace, results, room.results);  // allocates host memory for tables
    cuda.synchronize();
    int before[NUMBERS] = {};
    if (driver.state != nullptr) driver.state(before);
    cuda.enqueue_rows(model, workspace, room.workspace, results, room.results);
    const copied rows = enqueue_copy(results, room.results);
    CHECK(only_launched(before) && is_on_its_way(&rows));
    wait_for(&rows);
    const lgreco::Table table = cuda.read_rows(model, rows.bytes, rows.length);
    CHECK(only_launched(before));
    const lgreco_table_view a = expected.view(), b = table.view();
    CHECK(a.layers == 1 && b.layers == 1 && a.ends[0] == b.ends[0]);
    CHECK(memcmp(a.choices, b.choices, a.ends[0] * sizeof *a.choices) == 0);
    throws(LGRECO_LENGTH, "LGRECO_LENGTH: ", [&] { cuda.read_rows(model, rows.bytes, rows.length - 8); });
    throws(LGRECO_LENGTH, "LGRECO_LENGTH: bytes of the rows' workspace",
           [&] { cuda.enqueue_rows(model, workspace, room.workspace - 1, results, room.results); });
    throws(LGRECO_EMPTY_TABLE, "LGRECO_EMPTY_TABLE: ", [&] { cuda.rows_bytes({}); });

    constexpr std::size_t elements = 64 * 48;
    std::vector<float> spoilt(elements), good(elements);
    fill(spoilt.data(), elements, 4);
    fill(good.data(), elements, 5);
    spoilt[17] = INFINITY;
    const std::vector<lgreco_setting> settings{setting};
    const lgreco::Options options;
    const std::uint64_t bytes = cuda.bucket_bytes(model, settings, options);
    lgreco::CudaBucket bucket = cuda.bucket(model, settings, options, on_device(nullptr, bytes), bytes);
    void *const steps[] = {on_device(spoilt.data(), 4 * elements), on_device(good.data(), 4 * elements)};
    const lgreco::CudaPlace place = bucket.outcome_place(cuda);
    std::vector<copied> copies;
    if (driver.state != nullptr) driver.state(before);
    for (void *const step : steps) {
        bucket.submit(cuda, step);
        while (bucket.next(cuda).kind != LGRECO_REQUEST_NONE) {}
        copies.push_back(enqueue_copy(place.address, place.bytes));
    }
    CHECK(only_launched(before));
    wait_for(&copies[0]);
    CHECK(is_on_its_way(&copies[1]));
    const lgreco_cuda_outcome first = bucket.read_outcome(cuda, copies[0].bytes, place.bytes);
    CHECK(first.step == 1 && first.has_failed == 1 && first.fault == LGRECO_NON_FINITE && first.element == 17);
    wait_for(&copies[1]);
    const lgreco_cuda_outcome second = bucket.read_outcome(cuda, copies[1].bytes, place.bytes);
    CHECK(second.step == 2 && second.failed == 1 && second.has_failed == 0 && second.fault == LGRECO_OK);
    CHECK(only_launched(before));
    throws(LGRECO_LENGTH, "LGRECO_LENGTH: bytes of an exchange's outcome",
           [&] { bucket.read_outcome(cuda, copies[0].bytes, place.bytes - 1); });
    for (void *const memory : {workspace, results}) give_back(memory);
    let_go(&rows);
    for (const copied &copy : copies) let_go(&copy);
}

static void works() {
    constexpr std::size_t elements = 64 * 48;
    std::vector<float> host(elements), decoded(elements), expected(elements);
    fill(host.data(), elements, 3);
    const std::vector<std::size_t> dims{64, 48};
    const void *const gradient = on_device(host.data(), 4 * elements);
    float *const values = static_cast<float *>(on_device(nullptr, 4 * elements));
    std::uint8_t *const sent = static_cast<std::uint8_t *>(on_device(nullptr, 4 * elements));
    const std::vector<lgreco_layer> model{lgreco::layer("fc1", dims, gradient)};

    lgreco::Cuda cuda = lgreco::Cuda::on_stream(stream);
    const lgreco_cuda_calls calls = LGRECO_CUDA_MEASURE | LGRECO_CUDA_ENCODE | LGRECO_CUDA_DECODE;
    cuda.reserve(model, calls);
    CHECK(cuda.held_bytes() == cuda.workspace_bytes(model, calls));
    const lgreco::Table table = cuda.measure(model);
    const lgreco::Plan plan = lgreco::Plan::solve(table.view());
    const lgreco_setting chosen = table.setting(0, plan.view().options[0]);
    const std::string setting = chosen.text;
    const lgreco_rng_stream words{1, 2, 0, 3};

    std::vector<std::uint8_t> payload, same;
    cuda.encode(model[0], setting, words, payload);
    const lgreco_layer described = lgreco::layer("fc1", dims);
    lgreco::Compressor compressor(described, setting, {{"random_seed", 1}, {"rank", 3}});
    compressor.encode(2, host.data(), same);
    CHECK(payload == same && payload.size() == cuda.payload_len(model[0], setting));
    compressor.decode(payload, expected);
    cuda.decode(payload, values, elements);
    to_host(decoded.data(), values, 4 * elements);
    CHECK(decoded == expected);

    const std::size_t length = cuda.encode_to_device(model[0], setting, words, sent, 4 * elements);
    cuda.decode_on_device(model[0], setting, sent, length, values, elements);
    cuda.check();
    cuda.synchronize();
    to_host(decoded.data(), values, 4 * elements);
    CHECK(length == payload.size() && decoded == expected);
    throws(LGRECO_LENGTH, "LGRECO_LENGTH: layer `fc1`: ",
           [&] { cuda.decode_on_device(model[0], setting, sent, length, values, 5); });
    later(cuda, model, table, chosen);
    lgreco::Cuda of_its_own;
    of_its_own = std::move(cuda);
    of_its_own.decode(payload, values, elements);
}

int main(int argc, char **argv) {
    if (argc > 1 && strcmp(argv[1], "missing") == 0) {
        if (!has_driver())
            throws(LGRECO_UNAVAILABLE, "LGRECO_UNAVAILABLE: no NVIDIA driver", [&] { lgreco::Cuda cuda; });
        return report("cuda, C++, missing");
    }
    void *const cuda_context = primary_context();
    CHECK(driver.push(cuda_context) == 0 && driver.stream(&stream, 0) == 0);
    works();
    return report("cuda, C++");
}
