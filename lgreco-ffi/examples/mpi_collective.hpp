// lgreco's network over MPI: all that a trainer on MPI has to write.
#ifndef LGRECO_EXAMPLES_MPI_COLLECTIVE_HPP
#define LGRECO_EXAMPLES_MPI_COLLECTIVE_HPP

#include "mpi_call.hpp"

#include <cstring>

class MpiCollective : public lgreco::Collective {
public:
    // From now on, failed calls on the communicator return error codes instead of ending the process.
    explicit MpiCollective(MPI_Comm communicator) : communicator_(communicator), call_(communicator) {
        mpi_check(MPI_Comm_set_errhandler(communicator_, MPI_ERRORS_RETURN));
        mpi_check(MPI_Comm_rank(communicator_, &rank_));
        mpi_check(MPI_Comm_size(communicator_, &size_));
    }

    std::uint32_t rank() const override { return static_cast<std::uint32_t>(rank_); }
    std::uint32_t world_size() const override { return static_cast<std::uint32_t>(size_); }

    void perform(const lgreco_request &asked) override {
        call_.start(asked);
        call_.wait();
    }

    // Bytes that this rank has contributed to collectives: gradients, the agreement before every step, and plans.
    std::uint64_t sent() const { return call_.sent(); }

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
    int rank_ = 0, size_ = 1;
};

#endif // LGRECO_EXAMPLES_MPI_COLLECTIVE_HPP
