// The groups of ranks that perform lgreco's collectives: all ranks, the ranks of a node, and a rank's peers on other nodes.
#ifndef LGRECO_EXAMPLES_MPI_GROUPS_HPP
#define LGRECO_EXAMPLES_MPI_GROUPS_HPP

#include "mpi_call.hpp"

// Returns the communicator of the ranks that give the same color.
inline MPI_Comm mpi_split(MPI_Comm communicator, std::uint32_t color) {
    MPI_Comm made;
    mpi_check(MPI_Comm_split(communicator, static_cast<int>(color), 0, &made));
    return made;
}

// Returns the communicator of the ranks that share memory with this rank.
inline MPI_Comm mpi_split_machines(MPI_Comm communicator) {
    MPI_Comm made;
    mpi_check(MPI_Comm_split_type(communicator, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &made));
    return made;
}

class MpiGroups {
public:
    // A node has `per_node` consecutive ranks. If `per_node` is 0, a node is all ranks that share memory. All ranks
    // must call this constructor together.
    MpiGroups(MPI_Comm communicator, std::uint32_t per_node)
        : all_(mpi_split(communicator, 0)),
          node_(per_node == 0 ? mpi_split_machines(communicator) : mpi_split(communicator, all_.rank() / per_node)),
          peers_(mpi_split(communicator, node_.rank())) {
        if (node_.size() * peers_.size() != all_.size())
            throw std::invalid_argument("two levels need the same number of ranks on each node");
    }

    // A copy has its own communicators. Copying is collective: all ranks must copy at the same point.
    explicit MpiGroups(const MpiGroups &from)
        : all_(mpi_split(from.all_.comm(), 0)), node_(mpi_split(from.node_.comm(), 0)),
          peers_(mpi_split(from.peers_.comm(), 0)) {}

    // Performs the collectives of a group.
    MpiCall &of(lgreco_group group) {
        return group == LGRECO_GROUP_NODE ? node_ : group == LGRECO_GROUP_PEERS ? peers_ : all_;
    }

    std::uint32_t per_node() const { return node_.size(); }
    // The number of this rank in lgreco's order, which counts ranks node by node.
    std::uint32_t rank() const { return peers_.rank() * node_.size() + node_.rank(); }
    std::uint32_t size() const { return all_.size(); }

    // Bytes that this rank has contributed to collectives, except for those inside its node.
    std::uint64_t sent() const { return all_.sent() + peers_.sent(); }

private:
    MpiCall all_, node_, peers_;
};

#endif // LGRECO_EXAMPLES_MPI_GROUPS_HPP
