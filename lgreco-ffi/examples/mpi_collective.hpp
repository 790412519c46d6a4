// lgreco's network over MPI: what a trainer that already runs on MPI has to write.
#ifndef LGRECO_EXAMPLES_MPI_COLLECTIVE_HPP
#define LGRECO_EXAMPLES_MPI_COLLECTIVE_HPP

#include <lgreco.hpp>

#define OMPI_SKIP_MPICXX 1  // Open MPI's C++ calls, which MPI has dropped and which do not compile without warnings
#include <mpi.h>

#include <cstring>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

class MpiCollective : public lgreco::Collective {
public:
    // Failed calls on the communicator come back as codes from now on, instead of ending the process.
    explicit MpiCollective(MPI_Comm communicator) : communicator_(communicator) {
        check(MPI_Comm_set_errhandler(communicator_, MPI_ERRORS_RETURN));
        check(MPI_Comm_rank(communicator_, &rank_));
        check(MPI_Comm_size(communicator_, &size_));
        counts_.resize(world_size());
        offsets_.resize(world_size());
    }

    std::uint32_t rank() const override { return static_cast<std::uint32_t>(rank_); }
    std::uint32_t world_size() const override { return static_cast<std::uint32_t>(size_); }

    void all_reduce_sum(float *values, std::size_t count) override {
        check(MPI_Allreduce(MPI_IN_PLACE, values, int_of(count), MPI_FLOAT, MPI_SUM, communicator_));
        sent_ += count * sizeof *values;
    }

    void all_gather(std::uint8_t *buffer, std::size_t length) override {
        check(MPI_Allgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, buffer, int_of(length), MPI_BYTE, communicator_));
        sent_ += length;
    }

    void all_gather_each(const std::uint64_t *lens, std::uint8_t *buffer) override {
        std::uint64_t end = 0;
        for (std::size_t i = 0; i < counts_.size(); i++) {
            counts_[i] = int_of(lens[i]);
            offsets_[i] = int_of(end);
            end += lens[i];
        }
        check(MPI_Allgatherv(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, buffer, counts_.data(), offsets_.data(), MPI_BYTE,
                             communicator_));
        sent_ += lens[rank()];
    }

    void broadcast(std::uint32_t root, std::uint8_t *bytes, std::size_t length) override {
        check(MPI_Bcast(bytes, int_of(length), MPI_BYTE, static_cast<int>(root), communicator_));
        if (root == rank()) sent_ += length;
    }

    // Bytes that this rank has contributed to collective calls: gradients, agreement before every step, and plans.
    std::uint64_t sent() const { return sent_; }

    // Whether all ranks hold the same bits in `values`.
    bool same_everywhere(const float *values, std::size_t count) const {
        std::vector<float> first(values, values + count);
        check(MPI_Bcast(first.data(), int_of(count), MPI_FLOAT, 0, communicator_));
        int same = std::memcmp(first.data(), values, count * sizeof *values) == 0;
        check(MPI_Allreduce(MPI_IN_PLACE, &same, 1, MPI_INT, MPI_LAND, communicator_));
        return same != 0;
    }

private:
    static void check(int code) {
        if (code == MPI_SUCCESS) return;
        char text[MPI_MAX_ERROR_STRING];
        int length = 0;
        MPI_Error_string(code, text, &length);
        throw std::runtime_error(std::string(text, static_cast<std::size_t>(length)));
    }

    static int int_of(std::uint64_t count) {
        if (count > static_cast<std::uint64_t>(std::numeric_limits<int>::max()))
            throw std::length_error("more than MPI can count in one call: set bucket_bytes lower");
        return static_cast<int>(count);
    }

    MPI_Comm communicator_;
    int rank_ = 0, size_ = 1;
    std::vector<int> counts_, offsets_;
    std::uint64_t sent_ = 0;
};

#endif // LGRECO_EXAMPLES_MPI_COLLECTIVE_HPP
