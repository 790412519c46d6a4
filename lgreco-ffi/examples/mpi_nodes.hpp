// The two groups of a rank whose node has several ranks: the ranks of its node, and its peers on other nodes.
#ifndef LGRECO_EXAMPLES_MPI_NODES_HPP
#define LGRECO_EXAMPLES_MPI_NODES_HPP

#include "mpi_call.hpp"

class MpiNodes {
public:
    // All ranks of the communicator must call it. If `ranks_per_node` is 0, a node is the ranks that share memory.
    MpiNodes(MPI_Comm communicator, int ranks_per_node) {
        int rank = 0, size = 1, least = 0;
        mpi_check(MPI_Comm_rank(communicator, &rank));
        if (ranks_per_node > 0)
            mpi_check(MPI_Comm_split(communicator, rank / ranks_per_node, rank, &node_));
        else
            mpi_check(MPI_Comm_split_type(communicator, MPI_COMM_TYPE_SHARED, rank, MPI_INFO_NULL, &node_));
        mpi_check(MPI_Comm_size(node_, &size));
        mpi_check(MPI_Comm_rank(node_, &local_));
        mpi_check(MPI_Comm_split(communicator, local_, rank, &peers_));
        mpi_check(MPI_Comm_rank(peers_, &number_));
        ranks_per_node_ = size;
        mpi_check(MPI_Allreduce(&size, &least, 1, MPI_INT, MPI_MIN, communicator));
        mpi_check(MPI_Allreduce(MPI_IN_PLACE, &size, 1, MPI_INT, MPI_MAX, communicator));
        if (least != size) throw std::invalid_argument("two levels need the same number of ranks on each node");
        for (MPI_Comm own : {node_, peers_}) mpi_check(MPI_Comm_set_errhandler(own, MPI_ERRORS_RETURN));
    }

    MpiNodes(const MpiNodes &) = delete;
    MpiNodes &operator=(const MpiNodes &) = delete;

    ~MpiNodes() {
        MPI_Comm_free(&node_);
        MPI_Comm_free(&peers_);
    }

    MPI_Comm node() const { return node_; }
    MPI_Comm peers() const { return peers_; }
    std::uint32_t ranks_per_node() const { return static_cast<std::uint32_t>(ranks_per_node_); }
    // This rank's number, counted node by node, as lgreco does.
    std::uint32_t rank() const { return static_cast<std::uint32_t>(number_ * ranks_per_node_ + local_); }

private:
    MPI_Comm node_ = MPI_COMM_NULL, peers_ = MPI_COMM_NULL;
    int ranks_per_node_ = 1, local_ = 0, number_ = 0;
};

#endif // LGRECO_EXAMPLES_MPI_NODES_HPP
