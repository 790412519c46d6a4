// Trains the network of digits.hpp, data-parallel over MPI.
//
//   mpicxx -std=c++17 -O3 mpi_trainer.cpp -llgreco -o mpi_trainer && mpirun -np 4 ./mpi_trainer [--nodes[=RANKS]] [--overlap|--time] [DIGITS]
//
// Trains the same network under every scheme of schemes.hpp. It prints loss and accuracy on images that no rank trained on,
// and the bytes that a rank sent per step. The exit code is 1 if ranks end with different parameters, or if the loss does
// not fall. It is also 1 if L-GreCo sends more than the uniform setting that its error budget is based on.
//
// With --overlap every tensor is exchanged by non-blocking collectives as soon as the backward pass has its gradient. Every
// scheme is then trained a second time by blocking calls. The exit code is also 1 if the second run has other parameters or
// payload bytes.
//
// With --nodes, gradients are summed inside nodes, uncompressed, and exchanged between nodes. A node is the ranks that share
// memory, or RANKS consecutive ranks. Only bytes between nodes are then counted.
//
// With --time it also prints the time per step.
#include "digits.hpp"
#include "mpi_in_flight.hpp"
#include "schemes.hpp"

namespace {

constexpr int steps = 200, warmup = 10, period = 50;

// The result of a run.
struct Run {
    Outcome outcome;
    std::vector<float> parameters;
    std::uint64_t payloads;  // payload bytes that this rank sent

    bool is_same(const Run &other) const {
        return payloads == other.payloads && parameters.size() == other.parameters.size() &&
               std::memcmp(parameters.data(), other.parameters.data(), parameters.size() * sizeof(float)) == 0;
    }
};

// Trains the network. With `buckets`, one per parameter, the exchange overlaps the backward pass.
Run train(MpiCollective &collective, const Batch &digits, MpiBuckets *buckets, const lgreco::Options &options, bool times = false) {
    const auto [held_out, shard] = divide(digits, collective.rank(), collective.world_size());
    Network network;
    std::vector<lgreco_layer> described;
    std::vector<void *> gradients;
    for (Parameter &parameter : network.parameters) {
        described.push_back(lgreco::layer(parameter.name.c_str(), parameter.dims));
        gradients.push_back(parameter.gradient.data());
    }
    const MpiNodes *const nodes = collective.nodes();
    lgreco::Controller controller =
        nodes == nullptr ? lgreco::Controller(collective, described, options)
                         : lgreco::Controller::on_nodes(collective, nodes->ranks_per_node(), described, options);

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
                collective.perform(asked);
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
        // The gradients are now the means over all ranks.
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

// Trains every scheme by buckets in flight, then by blocking calls.
bool compare_overlapped(MpiCollective &collective, const Batch &digits) {
    std::vector<std::vector<std::size_t>> groups;
    for (std::size_t parameter = 0; parameter < 2 * layers; parameter++) groups.push_back({parameter});
    MpiCollective blocking(MPI_COMM_WORLD, collective.nodes());
    MpiBuckets buckets(MPI_COMM_WORLD, groups, collective.nodes());
    bool same = true;
    const bool good = compare(collective, [&](const Scheme &scheme) {
        lgreco::Options options = options_of(scheme, warmup, period);
        options.set("bucket_bytes", 0);  // the same groups for blocking calls
        const Run run = train(collective, digits, &buckets, options);
        if (!run.is_same(train(blocking, digits, nullptr, options))) {
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
        std::vector<std::string> arguments(argv + 1, argv + argc);
        std::optional<MpiNodes> nodes;
        const std::string by_nodes = "--nodes";
        if (!arguments.empty() && arguments[0].compare(0, by_nodes.size(), by_nodes) == 0) {
            const std::string ranks = arguments[0].substr(by_nodes.size());
            if (!ranks.empty() && ranks[0] != '=') throw std::invalid_argument("usage: --nodes or --nodes=RANKS");
            nodes.emplace(MPI_COMM_WORLD, ranks.empty() ? 0 : std::stoi(ranks.substr(1)));
            arguments.erase(arguments.begin());
        }
        const bool overlaps = !arguments.empty() && arguments[0] == "--overlap";
        const bool times = !arguments.empty() && arguments[0] == "--time";
        const std::size_t options = overlaps || times ? 1 : 0;
        if (arguments.size() > 1 + options) throw std::invalid_argument("usage: mpi_trainer [--nodes[=RANKS]] [--overlap|--time] [DIGITS]");
        const Batch digits = read_digits(arguments.size() > options
                                             ? std::filesystem::path(arguments[options])
                                             : here / "../../examples/data/digits.bin");
        MpiCollective collective(MPI_COMM_WORLD, nodes ? &*nodes : nullptr);
        if (collective.rank() == 0)
            std::printf("digits, %u ranks, %d steps (%d of them uncompressed before the first decision)\n",
                        collective.world_size(), steps, warmup);
        good = overlaps ? compare_overlapped(collective, digits) : compare(collective, [&](const Scheme &scheme) {
            return train(collective, digits, nullptr, options_of(scheme, warmup, period), times).outcome;
        });
    } catch (const std::exception &error) {
        std::fprintf(stderr, "%s\n", error.what());
        MPI_Abort(MPI_COMM_WORLD, 2);  // otherwise the others would wait for this rank forever
    }
    MPI_Finalize();
    return good ? 0 : 1;
}
