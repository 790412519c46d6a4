// The compression schemes that both trainers compare, their table, and what must hold for it.
#ifndef LGRECO_EXAMPLES_SCHEMES_HPP
#define LGRECO_EXAMPLES_SCHEMES_HPP

#include "mpi_collective.hpp"

#include <cstdio>

struct Scheme {
    const char *name;
    lgreco_policy policy;
    const char *methods;
    double parameter;  // bits, density or rank of the uniform setting; also L-GreCo's error budget
    lgreco_dtype reduce_dtype = LGRECO_DTYPE_F32;  // of factors and uncompressed layers on the network
};

// Uncompressed first, then every uniform scheme with those of L-GreCo behind it.
constexpr Scheme schemes[] = {
    {"uncompressed", LGRECO_POLICY_UNCOMPRESSED, "qsgd", 4},
    {"QSGD 4 bits, uniform", LGRECO_POLICY_UNIFORM, "qsgd", 4},
    {"QSGD, L-GreCo", LGRECO_POLICY_L_GRECO, "qsgd", 4},
    {"TopK 10 %, uniform", LGRECO_POLICY_UNIFORM, "topk", 0.1},
    {"TopK, L-GreCo", LGRECO_POLICY_L_GRECO, "topk", 0.1},
    {"PowerSGD rank 4, uniform", LGRECO_POLICY_UNIFORM, "powersgd", 4},
    {"PowerSGD, L-GreCo", LGRECO_POLICY_L_GRECO, "powersgd", 4},
    {"PowerSGD, L-GreCo, bf16", LGRECO_POLICY_L_GRECO, "powersgd", 4, LGRECO_DTYPE_BF16},
};

// The controller of one training run, with the first decision after `warmup` steps and another after every `period`.
inline lgreco::Controller controller_of(const Scheme &scheme, MpiCollective &collective,
                                        const std::vector<lgreco_layer> &layers, std::uint64_t warmup,
                                        std::uint64_t period,
                                        lgreco_controller_options options = lgreco::controller_options()) {
    lgreco_search_options search = lgreco::search_options();
    search.methods = scheme.methods;
    search.parameter = scheme.parameter;
    lgreco_plan_options plan = lgreco::plan_options();
    search.metric = LGRECO_METRIC_L2;  // the paper's, and the error of the uniform setting in as few bytes as possible
    plan.limit = LGRECO_LIMIT_ERROR;
    search.reduce_dtype = scheme.reduce_dtype;
    options.search = &search;
    options.plan = &plan;
    options.policy = scheme.policy;
    options.warmup = warmup;
    options.period = period;
    return lgreco::Controller(lgreco::Context(), collective, layers, options);
}

// How a run ended, the same on every rank but for `bytes`.
struct Outcome {
    double loss_before, loss, accuracy;  // on data nobody trained on
    double bytes;                        // that this rank sent per step
    bool same;                           // all ranks ended with the same parameters, bit for bit
    double seconds;                      // per step, of this rank; 0 where nobody looked at a clock
};

// Runs `train` under every scheme; rank 0 prints. Returns whether all went as it must.
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
        if (scheme.policy == LGRECO_POLICY_UNCOMPRESSED) uncompressed = run.bytes;
        if (scheme.policy == LGRECO_POLICY_UNIFORM) uniform = run.bytes;
        if (speaks)
            std::printf("%-26s %8.4f %7.1f %% %11.0f %6.2fx", scheme.name, run.loss, 100 * run.accuracy, run.bytes,
                        uncompressed / run.bytes);
        if (speaks && run.seconds > 0) std::printf(" %8.1f ms/step", 1e3 * run.seconds);
        if (speaks) std::printf("\n");
        std::fflush(stdout);
        must(run.same, "the ranks' parameters differ");
        must(run.loss < run.loss_before, "the loss did not fall");
        must(scheme.policy != LGRECO_POLICY_L_GRECO || run.bytes <= uniform, "L-GreCo sent more than uniform");
    }
    return good;
}

#endif // LGRECO_EXAMPLES_SCHEMES_HPP
