// Trains the network of digits.hpp, data-parallel over MPI.
//
//   mpicxx -std=c++17 -O3 mpi_trainer.cpp -llgreco -o mpi_trainer && mpirun -np 4 ./mpi_trainer [--nodes[=RANKS]] [--overlap] [--time] [DIGITS]
//
// The program trains the same network under every scheme of schemes.hpp. The program prints loss and accuracy on
// held-out images, and the bytes that a rank sent per step. The exit code is 1 if ranks end with different parameters,
// or if the loss does not fall. The exit code is also 1 if L-GreCo sends more bytes than the uniform setting, from
// which its error budget is derived.
//
// With --overlap, the exchange of each tensor starts as soon as the backward pass has the tensor's gradient. The
// collectives are non-blocking. Every scheme is then trained a second time by blocking calls. The exit code is also 1
// if the two runs end with different parameters or numbers of payload bytes.
//
// With --nodes, gradients are summed inside nodes, uncompressed, and exchanged between nodes. A node is the ranks that share
// memory, or RANKS consecutive ranks. The program then counts only bytes between nodes.
//
// With --time the program also prints the time per step.
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
        return payloads == other.payloads &&
               std::memcmp(parameters.data(), other.parameters.data(), parameters.size() * sizeof(float)) == 0;
    }
};

// Trains the network. With `buckets`, one per parameter, the exchange overlaps the backward pass.
Run train(MpiCollective &collective, const Batch &digits, MpiBuckets *buckets, const lgreco::Options &options) {
    const auto [held_out, shard] = divide(digits, collective.rank(), collective.world_size());
    Network network;
    lgreco::Layers described;
    std::vector<void *> gradients;
    for (Parameter &parameter : network.parameters) {
        described.add(parameter.name, parameter.dims);
        gradients.push_back(parameter.gradient.data());
    }
    const std::uint32_t per_node = collective.groups().per_node();
    lgreco::Controller controller = per_node == 1 ? lgreco::Controller(collective, described, options)
                                                  : lgreco::Controller::on_nodes(collective, per_node, described, options);

    Run run{};
    Outcome &outcome = run.outcome;
    outcome.loss_before = network.forward(held_out);
    std::mt19937 random(100 + collective.rank());
    const auto sent = [&] { return collective.groups().sent() + (buckets != nullptr ? buckets->sent() : 0); };
    const std::uint64_t sent_before = sent();
    const double began = MPI_Wtime();
    for (int step = 0; step < steps; step++) {
        Batch batch;
        for (std::size_t i = 0; i < batch_size; i++) batch.add(digits, shard[random() % shard.size()]);
        network.forward(batch);
        if (buckets != nullptr) {
            controller.begin_step(collective, learning_rate);
            network.backward(batch, [&](std::size_t p) { buckets->submit(controller, p, {gradients[p]}); });
            buckets->finish(controller);
            run.payloads += controller.finish_step().bytes_out;
        } else {
            network.backward(batch, [](std::size_t) {});
            run.payloads += controller.step(collective, gradients, learning_rate).bytes_out;
        }
        // The gradients are now the means over all ranks.
        network.descend();
    }
    outcome.seconds = (MPI_Wtime() - began) / steps;
    outcome.bytes = static_cast<double>(sent() - sent_before) / steps;
    outcome.loss = network.forward(held_out);
    outcome.accuracy = network.accuracy(held_out);
    for (const Parameter &parameter : network.parameters)
        run.parameters.insert(run.parameters.end(), parameter.values.begin(), parameter.values.end());
    outcome.same = collective.same_everywhere(run.parameters.data(), run.parameters.size());
    return run;
}

// Trains every scheme. With --overlap, trains each scheme twice: with buckets in flight, then with blocking calls and
// the same buckets.
bool run(const std::vector<std::string> &arguments) {
    std::uint32_t per_node = 1;
    bool overlaps = false, times = false;
    std::filesystem::path file = digits_file;
    for (const std::string &argument : arguments) {
        if (argument == "--nodes") per_node = 0;
        else if (argument.compare(0, 8, "--nodes=") == 0) per_node = static_cast<std::uint32_t>(std::stoul(argument.substr(8)));
        else if (argument == "--overlap") overlaps = true;
        else if (argument == "--time") times = true;
        else if (argument[0] != '-') file = argument;
        else throw std::invalid_argument("usage: mpi_trainer [--nodes[=RANKS]] [--overlap] [--time] [DIGITS]");
    }
    const Batch digits = read_digits(file);
    MpiCollective collective(MPI_COMM_WORLD, per_node);
    if (collective.rank() == 0)
        std::printf("digits, %u ranks, %d steps (%d of them uncompressed before the first decision)\n",
                    collective.world_size(), steps, warmup);
    std::vector<std::vector<std::size_t>> each;
    for (std::size_t parameter = 0; parameter < 2 * layers; parameter++) each.push_back({parameter});
    MpiBuckets buckets(collective.groups(), each);
    bool same = true;
    const bool good = compare(collective, [&](const Scheme &scheme) {
        lgreco::Options options = options_of(scheme, warmup, period);
        if (overlaps) options.set("bucket_bytes", 0);
        Run run = train(collective, digits, overlaps ? &buckets : nullptr, options);
        if (overlaps && !run.is_same(train(collective, digits, nullptr, options))) {
            std::fprintf(stderr, "FAILED: %s: rank %u ends with other parameters or payloads than by blocking calls\n",
                         scheme.name, collective.rank());
            same = false;
        }
        if (!times) run.outcome.seconds = 0;
        return run.outcome;
    });
    return good && same;
}

} // namespace

int main(int argc, char **argv) { return mpi_main(argc, argv, run); }
