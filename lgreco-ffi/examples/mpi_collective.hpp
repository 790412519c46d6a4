// lgreco's network over MPI: what a trainer that already runs on MPI has to write.
#ifndef LGRECO_EXAMPLES_MPI_COLLECTIVE_HPP
#define LGRECO_EXAMPLES_MPI_COLLECTIVE_HPP

#include "mpi_call.hpp"

#include <cstring>

class MpiCollective : public lgreco::Collective {
public:
    // Failed calls on the communicator come back as codes from now on, instead of ending the process.
    explicit MpiCollective(MPI_Comm communicator) : communicator_(communicator) {
        mpi_check(MPI_Comm_set_errhandler(communicator_, MPI_ERRORS_RETURN));
        mpi_check(MPI_Comm_rank(communicator_, &rank_));
        mpi_check(MPI_Comm_size(communicator_, &size_));
    }

    std::uint32_t rank() const override { return static_cast<std::uint32_t>(rank_); }
    std::uint32_t world_size() const override { return static_cast<std::uint32_t>(size_); }

    void all_reduce_sum(float *values, std::size_t count) override {
        mpi_check(MPI_Allreduce(MPI_IN_PLACE, values, mpi_count(count), MPI_FLOAT, MPI_SUM, communicator_));
        sent_ += count * sizeof *values;
    }

    void all_gather(std::uint8_t *buffer, std::size_t length) override {
        mpi_check(MPI_Allgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, buffer, mpi_count(length), MPI_BYTE, communicator_));
        sent_ += length;
    }

    void all_gather_each(const std::uint64_t *lens, std::uint8_t *buffer) override {
        parts_.set(lens, world_size());
        mpi_check(MPI_Allgatherv(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, buffer, parts_.counts.data(), parts_.offsets.data(),
                             MPI_BYTE, communicator_));
        sent_ += lens[rank()];
    }

    void broadcast(std::uint32_t root, std::uint8_t *bytes, std::size_t length) override {
        mpi_check(MPI_Bcast(bytes, mpi_count(length), MPI_BYTE, static_cast<int>(root), communicator_));
        if (root == rank()) sent_ += length;
    }

    void reduce_scatter_sum(const std::uint64_t *lens, float *values, std::size_t count) override {
        parts_.set(lens, world_size());
        const std::vector<float> own(values, values + count); // with MPI_IN_PLACE the sums would come to the front
        mpi_check(MPI_Reduce_scatter(own.data(), values + parts_.offsets[rank()], parts_.counts.data(), MPI_FLOAT, MPI_SUM,
                                     communicator_));
        sent_ += count * sizeof *values;
    }

    void all_reduce_sum_bf16(std::uint16_t *values, std::size_t count) override {
        mpi_check(MPI_Allreduce(MPI_IN_PLACE, values, mpi_count(count), MPI_UINT16_T, bf16_sum(), communicator_));
        sent_ += count * sizeof *values;
    }

    // Bytes that this rank has contributed to collective calls: gradients, agreement before every step, and plans.
    std::uint64_t sent() const { return sent_; }

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
    int rank_ = 0, size_ = 1;
    MpiParts parts_;
    std::uint64_t sent_ = 0;
};

#endif // LGRECO_EXAMPLES_MPI_COLLECTIVE_HPP
