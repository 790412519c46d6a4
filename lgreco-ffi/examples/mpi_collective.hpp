// lgreco's network over MPI: all that a trainer on MPI has to write.
#ifndef LGRECO_EXAMPLES_MPI_COLLECTIVE_HPP
#define LGRECO_EXAMPLES_MPI_COLLECTIVE_HPP

#include "mpi_nodes.hpp"

#include <cstring>
#include <optional>

class MpiCollective : public lgreco::Collective {
public:
    // From now on, failed calls on the communicator return error codes instead of ending the process. With `nodes`, which must
    // outlive this object, collectives inside nodes and between them are performed in their groups.
    explicit MpiCollective(MPI_Comm communicator, const MpiNodes *nodes = nullptr)
        : communicator_(communicator), call_(communicator), nodes_(nodes) {
        mpi_check(MPI_Comm_set_errhandler(communicator_, MPI_ERRORS_RETURN));
        mpi_check(MPI_Comm_rank(communicator_, &rank_));
        mpi_check(MPI_Comm_size(communicator_, &size_));
        if (nodes_ == nullptr) return;
        node_.emplace(nodes_->node());
        peers_.emplace(nodes_->peers());
    }

    std::uint32_t rank() const override { return nodes_ == nullptr ? static_cast<std::uint32_t>(rank_) : nodes_->rank(); }
    std::uint32_t world_size() const override { return static_cast<std::uint32_t>(size_); }

    const MpiNodes *nodes() const { return nodes_; }

    void perform(const lgreco_request &asked) override {
        MpiCall &call = asked.group == LGRECO_GROUP_NODE ? *node_ : asked.group == LGRECO_GROUP_PEERS ? *peers_ : call_;
        call.start(asked);
        call.wait();
    }

    // Bytes that this rank has contributed to collectives: gradients, the agreement before every step, and plans. On nodes, only
    // collectives between nodes count.
    std::uint64_t sent() const { return peers_ ? peers_->sent() : call_.sent(); }

    // Whether all ranks hold the same bits in `values`.
    bool same_everywhere(const float *values, std::size_t count) const {
        std::vector<float> first(values, values + count);
        mpi_check(MPI_Bcast(first.data(), mpi_count(count), MPI_FLOAT, 0, communicator_));
        int same = std::memcmp(first.data(), values, count * sizeof *values) == 0;
        mpi_check(MPI_Allreduce(MPI_IN_PLACE, &same, 1, MPI_INT, MPI_LAND, communicator_));
        return same != 0;
    }

private:
    MPI_Comm communicator_;
    MpiCall call_;
    const MpiNodes *nodes_;
    std::optional<MpiCall> node_, peers_;
    int rank_ = 0, size_ = 1;
};

#endif // LGRECO_EXAMPLES_MPI_COLLECTIVE_HPP
