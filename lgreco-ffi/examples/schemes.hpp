// The compression schemes that the MPI and LibTorch trainers compare. Also prints the table of results, and checks
// them.
#ifndef LGRECO_EXAMPLES_SCHEMES_HPP
#define LGRECO_EXAMPLES_SCHEMES_HPP

#include "mpi_collective.hpp"

#include <cstdio>
#include <string_view>

struct Scheme {
    const char *name;
    std::string_view policy;
    const char *method;
    double parameter;  // bits, density or rank of the uniform setting, which L-GreCo's error budget is based on
    const char *reduce_dtype = "float32";  // of sums of factors and of uncompressed layers
};

// The first scheme is uncompressed. For each method, the uniform scheme comes before L-GreCo.
constexpr Scheme schemes[] = {
    {"uncompressed", "uncompressed", "qsgd", 4},
    {"QSGD 4 bits, uniform", "uniform", "qsgd", 4},
    {"QSGD, L-GreCo", "lgreco", "qsgd", 4},
    {"TopK 10 %, uniform", "uniform", "topk", 0.1},
    {"TopK, L-GreCo", "lgreco", "topk", 0.1},
    {"PowerSGD rank 4, uniform", "uniform", "powersgd", 4},
    {"PowerSGD, L-GreCo", "lgreco", "powersgd", 4},
    {"PowerSGD, L-GreCo, bf16", "lgreco", "powersgd", 4, "bfloat16"},
};

// Options of a training run. The controller decides on settings after `warmup` steps, and then every `period` steps. As
// in the paper, plans have the fewest bytes within the error of the uniform setting.
inline lgreco::Options options_of(const Scheme &scheme, int warmup, int period) {
    return {{"policy", std::string(scheme.policy)}, {"method", scheme.method},   {"default", scheme.parameter},
            {"metric", "l2"},                       {"budget", "error"},         {"reduce_dtype", scheme.reduce_dtype},
            {"start_iter", warmup},                 {"period", period}};
}

// The results of a run. All fields except `bytes` and `seconds` are the same on every rank.
struct Outcome {
    double loss_before, loss, accuracy;  // on data that no rank trained on
    double bytes;                        // that this rank sent per step
    bool same;                           // all ranks ended with the same parameters, bit for bit
    double seconds;                      // per step, of this rank; 0 if not measured
};

// Runs `train` under every scheme. Rank 0 prints the results. Returns whether all checks passed.
template <typename Train> bool compare(const MpiCollective &collective, Train train) {
    const bool speaks = collective.rank() == 0;
    if (speaks) std::printf("%-26s %8s %9s %11s %7s\n", "", "loss", "accuracy", "bytes/step", "fewer");
    bool good = true;
    const auto must = [&](bool holds, const char *what) {
        if (!holds && speaks) std::fprintf(stderr, "FAILED: %s\n", what);
        good = good && holds;
    };
    double uncompressed = 0, uniform = 0;
    for (const Scheme &scheme : schemes) {
        const Outcome run = train(scheme);
        if (scheme.policy == "uncompressed") uncompressed = run.bytes;
        if (scheme.policy == "uniform") uniform = run.bytes;
        if (speaks)
            std::printf("%-26s %8.4f %7.1f %% %11.0f %6.2fx", scheme.name, run.loss, 100 * run.accuracy, run.bytes,
                        uncompressed / run.bytes);
        if (speaks && run.seconds > 0) std::printf(" %8.1f ms/step", 1e3 * run.seconds);
        if (speaks) std::printf("\n");
        std::fflush(stdout);
        must(run.same, "the ranks' parameters differ");
        must(run.loss < run.loss_before, "the loss did not fall");
        must(scheme.policy != "lgreco" || run.bytes <= uniform, "L-GreCo sent more than uniform");
    }
    return good;
}

#endif // LGRECO_EXAMPLES_SCHEMES_HPP
