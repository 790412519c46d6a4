// Buckets in flight over MPI: non-blocking collectives, with one communicator per bucket.
#ifndef LGRECO_EXAMPLES_MPI_IN_FLIGHT_HPP
#define LGRECO_EXAMPLES_MPI_IN_FLIGHT_HPP

#include "mpi_nodes.hpp"

#include <optional>

// The buckets of a model, one per group of layers. MPI requires the same order of collectives only within a communicator.
// Since each bucket has separate communicators, ranks may advance buckets in different orders.
class MpiBuckets {
public:
    // All ranks must give the same groups.
    MpiBuckets(MPI_Comm communicator, const std::vector<std::vector<std::size_t>> &groups, const MpiNodes *nodes = nullptr) {
        for (const std::vector<std::size_t> &layers : groups) {
            if (nodes == nullptr)
                flights_.emplace_back(duplicate(communicator), layers);
            else
                flights_.emplace_back(duplicate(nodes->peers()), layers, duplicate(nodes->node()));
        }
    }

    MpiBuckets(const MpiBuckets &) = delete;
    MpiBuckets &operator=(const MpiBuckets &) = delete;

    ~MpiBuckets() {
        for (MPI_Comm &own : communicators_) MPI_Comm_free(&own);
    }

    // Starts the exchange of a group whose gradients are ready; they must stay in place until `finish`.
    void submit(lgreco::Controller &controller, std::size_t group, const std::vector<void *> &gradients) {
        Flight &flight = flights_[group];
        flight.bucket.emplace(controller.open(flight.layers));
        flight.bucket->submit(gradients);
        advance(flight);
    }

    // Lets MPI make progress, and starts the next collective of each bucket whose last one has ended; does not wait.
    void poll() {
        for (Flight &flight : flights_)
            if (flight.flying && flight.last->has_ended()) advance(flight);
    }

    // Waits until the gradients of all groups are means, and returns the layers to the controller.
    void finish(lgreco::Controller &controller) {
        for (Flight &flight : flights_)
            while (flight.flying) poll();
        for (Flight &flight : flights_) {
            if (flight.bucket) controller.close(*flight.bucket);
            flight.bucket.reset();
        }
    }

    // Bytes that this rank has contributed to collectives.
    std::uint64_t sent() const {
        std::uint64_t sent = 0;
        for (const Flight &flight : flights_) sent += flight.call.sent();
        return sent;
    }

private:
    struct Flight {
        std::vector<std::size_t> layers;
        std::optional<lgreco::Bucket> bucket;  // from `submit` to `finish`
        MpiCall call;                          // among all ranks, or peers
        std::optional<MpiCall> node;
        MpiCall *last = nullptr;  // which is under way
        bool flying = false;

        Flight(MPI_Comm communicator, std::vector<std::size_t> its_layers, MPI_Comm of_node = MPI_COMM_NULL)
            : layers(std::move(its_layers)), call(communicator) {
            if (of_node != MPI_COMM_NULL) node.emplace(of_node);
        }
    };

    MPI_Comm duplicate(MPI_Comm communicator) {
        MPI_Comm own;
        mpi_check(MPI_Comm_dup(communicator, &own));
        mpi_check(MPI_Comm_set_errhandler(own, MPI_ERRORS_RETURN));
        communicators_.push_back(own);
        return own;
    }

    static void advance(Flight &flight) {
        const lgreco_request asked = flight.bucket->next();
        flight.flying = asked.kind != LGRECO_REQUEST_NONE;
        if (!flight.flying) return;
        flight.last = asked.group == LGRECO_GROUP_NODE ? &*flight.node : &flight.call;
        flight.last->start(asked);
    }

    std::vector<MPI_Comm> communicators_;
    std::vector<Flight> flights_;
};

#endif // LGRECO_EXAMPLES_MPI_IN_FLIGHT_HPP
