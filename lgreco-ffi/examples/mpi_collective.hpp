// Implements lgreco's collectives on MPI. A trainer on MPI needs no other network code.
#ifndef LGRECO_EXAMPLES_MPI_COLLECTIVE_HPP
#define LGRECO_EXAMPLES_MPI_COLLECTIVE_HPP

#include "mpi_groups.hpp"

#include <cstring>

class MpiCollective : public lgreco::Collective {
public:
    // `per_node` is the number of ranks per node. With 0, a node consists of all ranks that share memory.
    explicit MpiCollective(MPI_Comm communicator, std::uint32_t per_node = 1) : groups_(communicator, per_node) {}

    std::uint32_t rank() const override { return groups_.rank(); }
    std::uint32_t world_size() const override { return groups_.size(); }

    void perform(const lgreco_request &asked) override {
        groups_.of(asked.group).start(asked);
        groups_.of(asked.group).wait();
    }

    const MpiGroups &groups() const { return groups_; }

    // Whether all ranks hold the same bits in `values`.
    bool same_everywhere(const float *values, std::size_t count) {
        const MPI_Comm all = groups_.of(LGRECO_GROUP_ALL).comm();
        std::vector<float> first(values, values + count);
        mpi_check(MPI_Bcast(first.data(), mpi_count(count), MPI_FLOAT, 0, all));
        int same = std::memcmp(first.data(), values, count * sizeof *values) == 0;
        mpi_check(MPI_Allreduce(MPI_IN_PLACE, &same, 1, MPI_INT, MPI_LAND, all));
        return same != 0;
    }

private:
    MpiGroups groups_;
};

#endif // LGRECO_EXAMPLES_MPI_COLLECTIVE_HPP
