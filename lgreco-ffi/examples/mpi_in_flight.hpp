// Buckets in flight over MPI: non-blocking collectives, with separate communicators per bucket.
#ifndef LGRECO_EXAMPLES_MPI_IN_FLIGHT_HPP
#define LGRECO_EXAMPLES_MPI_IN_FLIGHT_HPP

#include "mpi_groups.hpp"

#include <deque>
#include <optional>

// The buckets of a model, one per list of layers. MPI requires the same order of collectives only within a communicator.
// Since each bucket has separate communicators, ranks may advance buckets in different orders.
class MpiBuckets {
public:
    // All ranks must give the same lists of layers.
    MpiBuckets(const MpiGroups &groups, const std::vector<std::vector<std::size_t>> &buckets) {
        for (const std::vector<std::size_t> &layers : buckets) flights_.emplace_back(groups, layers);
    }

    // Starts the exchange of a bucket whose gradients are ready, and polls. The gradients must stay in place until `finish`.
    void submit(lgreco::Controller &controller, std::size_t bucket, const std::vector<void *> &gradients) {
        Flight &flight = flights_[bucket];
        flight.bucket.emplace(controller.open(flight.layers));
        flight.bucket->submit(gradients);
        advance(flight);
        poll();
    }

    // Lets MPI make progress. If a bucket's collective has ended, starts the bucket's next collective. Does not wait.
    void poll() {
        for (Flight &flight : flights_)
            if (flight.call != nullptr && flight.call->has_ended()) advance(flight);
    }

    // Waits until the gradients of all buckets are means, and returns the layers to the controller.
    void finish(lgreco::Controller &controller) {
        for (Flight &flight : flights_) {
            while (flight.call != nullptr) poll();
            if (flight.bucket) controller.close(*flight.bucket);
            flight.bucket.reset();
        }
    }

    // Bytes that this rank has contributed to collectives, except for those inside its node.
    std::uint64_t sent() const {
        std::uint64_t sent = 0;
        for (const Flight &flight : flights_) sent += flight.groups.sent();
        return sent;
    }

private:
    struct Flight {
        MpiGroups groups;
        std::vector<std::size_t> layers;
        std::optional<lgreco::Bucket> bucket;  // from `submit` to `finish`
        MpiCall *call = nullptr;               // the collective under way, or NULL

        Flight(const MpiGroups &from, std::vector<std::size_t> its_layers) : groups(from), layers(std::move(its_layers)) {}
    };

    static void advance(Flight &flight) {
        const lgreco_request asked = flight.bucket->next();
        flight.call = asked.kind == LGRECO_REQUEST_NONE ? nullptr : &flight.groups.of(asked.group);
        if (flight.call != nullptr) flight.call->start(asked);
    }

    std::deque<Flight> flights_;  // flights do not move
};

#endif // LGRECO_EXAMPLES_MPI_IN_FLIGHT_HPP
