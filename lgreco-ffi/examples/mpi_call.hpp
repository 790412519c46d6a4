// Performs requests of lgreco as non-blocking collectives of MPI.
#ifndef LGRECO_EXAMPLES_MPI_CALL_HPP
#define LGRECO_EXAMPLES_MPI_CALL_HPP

#include <lgreco_train.hpp>

#define OMPI_SKIP_MPICXX 1  // Open MPI's C++ calls, which MPI has dropped and which do not compile without warnings
#include <mpi.h>

#include <cstdint>
#include <cstdio>
#include <exception>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

inline void mpi_check(int code) {
    if (code == MPI_SUCCESS) return;
    char text[MPI_MAX_ERROR_STRING];
    int length = 0;
    MPI_Error_string(code, text, &length);
    throw std::runtime_error(std::string(text, static_cast<std::size_t>(length)));
}

inline int mpi_count(std::uint64_t count) {
    if (count > static_cast<std::uint64_t>(std::numeric_limits<int>::max()))
        throw std::length_error("more than MPI can count in one call: make buckets smaller");
    return static_cast<int>(count);
}

// Sums bf16, a type that MPI does not have.
inline MPI_Op bf16_sum() {
    static const MPI_Op sum = [] {
        MPI_Op made;
        const auto add = [](void *from, void *into, int *count, MPI_Datatype *) {
            lgreco::add_bf16(static_cast<std::uint16_t *>(into), static_cast<const std::uint16_t *>(from),
                             static_cast<std::size_t>(*count));
        };
        mpi_check(MPI_Op_create(add, 1, &made));
        return made;
    }();
    return sum;
}

// The parts of a buffer, one per rank.
struct MpiParts {
    std::vector<int> counts, offsets;

    void set(const std::uint64_t *lens, std::size_t ranks) {
        counts.resize(ranks);
        offsets.resize(ranks);
        std::uint64_t end = 0;
        for (std::size_t i = 0; i < ranks; i++) {
            counts[i] = mpi_count(lens[i]);
            offsets[i] = mpi_count(end);
            end += lens[i];
        }
    }
};

// Owns a communicator, and performs one collective at a time on it. MPI's error codes become exceptions.
class MpiCall {
public:
    // From now on, failed calls on the communicator return error codes instead of ending the process.
    explicit MpiCall(MPI_Comm own) : comm_(own) {
        mpi_check(MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN));
        mpi_check(MPI_Comm_rank(comm_, &rank_));
        mpi_check(MPI_Comm_size(comm_, &size_));
    }

    MpiCall(const MpiCall &) = delete;
    MpiCall &operator=(const MpiCall &) = delete;

    // Frees nothing after an error: other ranks may be inside a collective, and MPI_Comm_free may wait for them.
    ~MpiCall() {
        if (std::uncaught_exceptions() == 0) MPI_Comm_free(&comm_);
    }

    MPI_Comm comm() const { return comm_; }
    std::uint32_t rank() const { return static_cast<std::uint32_t>(rank_); }
    std::uint32_t size() const { return static_cast<std::uint32_t>(size_); }

    // Starts the collective that a bucket or a controller asks for. The previous collective must have ended.
    void start(const lgreco_request &asked) {
        const int count = mpi_count(asked.count), length = mpi_count(asked.length);
        switch (asked.kind) {
        case LGRECO_REQUEST_ALL_REDUCE_SUM:
            mpi_check(MPI_Iallreduce(MPI_IN_PLACE, asked.buffer, count, MPI_FLOAT, MPI_SUM, comm_, &request_));
            break;
        case LGRECO_REQUEST_ALL_REDUCE_SUM_BF16:
        case LGRECO_REQUEST_REDUCE_SCATTER_SUM_BF16:  // sums all values, not just those of this rank
            mpi_check(MPI_Iallreduce(MPI_IN_PLACE, asked.buffer, count, MPI_UINT16_T, bf16_sum(), comm_, &request_));
            break;
        case LGRECO_REQUEST_ALL_GATHER:
            mpi_check(MPI_Iallgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, asked.buffer, length, MPI_BYTE, comm_, &request_));
            break;
        case LGRECO_REQUEST_ALL_GATHER_EACH:
            received_.set(asked.lens, size());
            mpi_check(MPI_Iallgatherv(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, asked.buffer, received_.counts.data(),
                                      received_.offsets.data(), MPI_BYTE, comm_, &request_));
            break;
        case LGRECO_REQUEST_BROADCAST:
            mpi_check(MPI_Ibcast(asked.buffer, length, MPI_BYTE, static_cast<int>(asked.root), comm_, &request_));
            break;
        case LGRECO_REQUEST_ALL_TO_ALL:
            send_.set(asked.send_lens, size());
            received_.set(asked.received_lens, size());
            mpi_check(MPI_Ialltoallv(asked.send, send_.counts.data(), send_.offsets.data(), MPI_BYTE, asked.received,
                                     received_.counts.data(), received_.offsets.data(), MPI_BYTE, comm_, &request_));
            break;
        case LGRECO_REQUEST_REDUCE_SCATTER_SUM:
            // MPI writes the sums to this rank's part of the buffer. With MPI_IN_PLACE it would write them to the front
            // of the buffer.
            received_.set(asked.lens, size());
            own_.assign(static_cast<const float *>(asked.buffer), static_cast<const float *>(asked.buffer) + asked.count);
            mpi_check(MPI_Ireduce_scatter(own_.data(), static_cast<float *>(asked.buffer) + received_.offsets[rank()],
                                          received_.counts.data(), MPI_FLOAT, MPI_SUM, comm_, &request_));
            break;
        default: throw std::invalid_argument("lgreco asks for something that this trainer does not know");
        }
        sent_ += lgreco::contributed_bytes(asked, rank(), size());
    }

    // Tests whether the collective has ended, without waiting.
    bool has_ended() {
        int ended = 0;
        mpi_check(MPI_Test(&request_, &ended, MPI_STATUS_IGNORE));
        return ended != 0;
    }

    void wait() { mpi_check(MPI_Wait(&request_, MPI_STATUS_IGNORE)); }

    // Bytes that this rank has contributed to collectives.
    std::uint64_t sent() const { return sent_; }

private:
    MPI_Comm comm_;
    MPI_Request request_ = MPI_REQUEST_NULL;
    MpiParts send_, received_;  // MPI reads them until the collective has ended
    std::vector<float> own_;    // likewise
    int rank_ = 0, size_ = 1;
    std::uint64_t sent_ = 0;
};

// Runs a trainer with its arguments on MPI. Returns the exit code: 0, or 1 if `run` returns false.
template <typename Run> int mpi_main(int argc, char **argv, Run run) {
    MPI_Init(&argc, &argv);
    bool good = false;
    try {
        good = run(std::vector<std::string>(argv + 1, argv + argc));
    } catch (const std::exception &error) {
        std::fprintf(stderr, "FAILED: %s\n", error.what());
        MPI_Abort(MPI_COMM_WORLD, 2);  // otherwise the others would wait for this rank forever
    }
    MPI_Finalize();
    return good ? 0 : 1;
}

#endif // LGRECO_EXAMPLES_MPI_CALL_HPP
