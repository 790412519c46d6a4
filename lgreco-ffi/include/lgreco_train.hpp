// Controllers of lgreco.h and lgreco_train.h for C++17. A training step is one call, or consists of buckets that are
// exchanged during the backward pass.
#ifndef LGRECO_TRAIN_HPP
#define LGRECO_TRAIN_HPP

#include "lgreco.hpp"

#include <cstring>
#include <exception>

namespace lgreco {

// The network between workers. Programs derive a class from it and implement the collectives.
class Collective {
public:
    virtual ~Collective() = default;

    virtual std::uint32_t rank() const = 0;
    virtual std::uint32_t world_size() const = 0;
    // Performs the collective that a controller or a bucket asks for, and waits until it is done. The Controller
    // rethrows any exception that this function throws.
    virtual void perform(const lgreco_request &request) = 0;

protected:
    Collective() = default;
    Collective(const Collective &) = default;
    Collective &operator=(const Collective &) = default;
};

// Returns the number of bytes that a worker passes to a collective. The number of bytes sent also depends on the
// network's algorithm. `rank` is the worker's rank in the request's group, and `workers` is the group's size. Throws an
// Error with LGRECO_UNKNOWN_CONSTANT for an unknown kind.
inline std::uint64_t contributed_bytes(const lgreco_request &request, std::uint32_t rank, std::uint32_t workers) {
    switch (request.kind) {
    case LGRECO_REQUEST_NONE: return 0;
    case LGRECO_REQUEST_ALL_REDUCE_SUM:
    case LGRECO_REQUEST_REDUCE_SCATTER_SUM: return request.count * sizeof(float);
    case LGRECO_REQUEST_ALL_REDUCE_SUM_BF16:
    case LGRECO_REQUEST_REDUCE_SCATTER_SUM_BF16: return request.count * sizeof(std::uint16_t);
    case LGRECO_REQUEST_ALL_GATHER: return request.length;
    case LGRECO_REQUEST_ALL_GATHER_EACH: return request.lens[rank];
    case LGRECO_REQUEST_BROADCAST: return request.root == rank ? request.length : 0;
    case LGRECO_REQUEST_ALL_TO_ALL: {
        std::uint64_t bytes = 0;
        for (std::uint32_t worker = 0; worker < workers; worker++) bytes += request.send_lens[worker];
        return bytes;
    }
    }
    throw Error(LGRECO_UNKNOWN_CONSTANT, "LGRECO_UNKNOWN_CONSTANT: the request has an unknown kind");
}

// Adds `count` bf16 values to `sums`, for networks that cannot sum bf16, such as MPI. Sums are rounded to nearest, ties
// to even; NaN stays NaN. A bf16 is the upper half of an f32.
inline void add_bf16(std::uint16_t *sums, const std::uint16_t *addends, std::size_t count) noexcept {
    const auto widened = [](std::uint16_t half) {
        const std::uint32_t bits = static_cast<std::uint32_t>(half) << 16;
        float value;
        std::memcpy(&value, &bits, sizeof value);
        return value;
    };
    for (std::size_t i = 0; i < count; i++) {
        const float sum = widened(sums[i]) + widened(addends[i]);
        std::uint32_t bits;
        std::memcpy(&bits, &sum, sizeof bits);
        const bool is_nan = sum != sum;
        sums[i] = static_cast<std::uint16_t>((is_nan ? bits | 0x400000 : bits + 0x7fff + (bits >> 16 & 1)) >> 16);
    }
}

namespace detail {

// The collective of one library call, with the exception that it threw, if any.
struct Calls {
    Collective &collective;
    std::exception_ptr thrown = nullptr;

    lgreco_collective callback() {
        lgreco_collective callback = LGRECO_COLLECTIVE_INIT;
        callback.rank = collective.rank();
        callback.world_size = collective.world_size();
        callback.user = this;
        callback.perform = [](void *user, const lgreco_request *request) -> std::int32_t {
            Calls &calls = *static_cast<Calls *>(user);
            try {
                calls.collective.perform(*request);
                return 0;
            } catch (...) {
                calls.thrown = std::current_exception();
                return 1;
            }
        };
        return callback;
    }
};

} // namespace detail

// Layers that a controller lends for one exchange. The destructor returns the layers to the controller. If another
// thread uses the controller at that time, the destructor fails silently, and the layers stay in flight.
// Controller::close throws in this case.
class Bucket {
public:
    Bucket(Bucket &&other) noexcept
        : controller_(std::move(other.controller_)), handle_(std::exchange(other.handle_, nullptr)) {}

    Bucket &operator=(Bucket &&other) noexcept {
        std::swap(controller_, other.controller_);
        std::swap(handle_, other.handle_);
        return *this;
    }

    ~Bucket() { lgreco_bucket_close(controller_.lock().get(), &handle_); }

    // Declares that the layer has no gradient on this rank in this step.
    void withhold(std::size_t layer) { check(lgreco_bucket_withhold(get(), layer)); }
    // Returns the kind and size of a collective before next() asks for it. `index` counts from 0.
    lgreco_request round(std::size_t index) const {
        lgreco_request announced = LGRECO_REQUEST_INIT;
        check(lgreco_bucket_round(get(), index, &announced));
        return announced;
    }

    // Submits the gradients, one pointer per layer. The bucket uses them until next() returns LGRECO_REQUEST_NONE or
    // throws, or the bucket is closed.
    void submit(const std::vector<void *> &gradients) {
        check(lgreco_bucket_submit(get(), gradients.data(), gradients.size()));
    }

    // Reports that this rank has no gradients because its backward pass failed; next() then throws on every rank.
    void submit_failure() { check(lgreco_bucket_submit_failure(get())); }

    // Returns the next collective to perform. Call it when the previous collective is done. Returns LGRECO_REQUEST_NONE
    // when the gradients are means.
    lgreco_request next() {
        lgreco_request asked = LGRECO_REQUEST_INIT;
        check(lgreco_bucket_next(get(), &asked));
        return asked;
    }

    lgreco_bucket *get() const noexcept { return handle_; }

private:
    friend class Controller;

    Bucket(const std::shared_ptr<lgreco_controller> &controller, lgreco_bucket *lent)
        : controller_(controller), handle_(lent) {}

    std::weak_ptr<lgreco_controller> controller_;  // the controller may be destroyed first
    lgreco_bucket *handle_;
};

// The work of a controller's next decision, which any thread may run once. If a task is destroyed before it was handed
// in, take_plan_task returns a new one.
class PlanTask {
public:
    // Measures and plans. If `run` fails and the caller hands the task in nevertheless, the step of the decision fails
    // on all ranks.
    void run() { check(lgreco_plan_task_run(get())); }

    // Whether the object holds a task. False if the controller had no task.
    explicit operator bool() const noexcept { return handle_ != nullptr; }

    lgreco_plan_task *get() const noexcept { return handle_.get(); }

private:
    friend class Controller;

    explicit PlanTask(lgreco_plan_task *taken) : handle_(taken) {}

    detail::Handle<lgreco_plan_task, lgreco_plan_task_destroy> handle_;
};

// Compresses and exchanges the gradients of one worker.
class Controller {
public:
    Controller(Controller &&) noexcept = default;
    Controller &operator=(Controller &&) noexcept = default;

    // `settings`, one per layer, replace the policy from step `start_iter` on.
    Controller(Collective &collective, const std::vector<lgreco_layer> &layers, const Options &options = {},
               const std::vector<lgreco_setting> &settings = {}, const lgreco_context *context = nullptr) {
        const lgreco_setting *const fixed = one_each(layers, settings);
        make(collective, [&](const lgreco_collective *callback, lgreco_controller **made) {
            return lgreco_controller_create(context, callback, layers.data(), layers.size(), fixed, options.list().data(),
                                            made);
        });
    }

    // Makes the controller of a rank that keeps a shard of each layer. For each layer, `shards` has the end of every
    // rank's shard.
    static Controller sharded(Collective &collective, const std::vector<lgreco_layer> &layers,
                              const std::vector<std::uint64_t> &shards, const Options &options = {},
                              const std::vector<lgreco_setting> &settings = {},
                              const lgreco_context *context = nullptr) {
        if (shards.size() != layers.size() * collective.world_size())
            lgreco::check(LGRECO_LENGTH, "shards, as many per layer as there are workers");
        const lgreco_setting *const fixed = one_each(layers, settings);
        Controller controller;
        controller.make(collective, [&](const lgreco_collective *callback, lgreco_controller **made) {
            return lgreco_controller_create_sharded(context, callback, layers.data(), layers.size(), shards.data(), fixed,
                                                    options.list().data(), made);
        });
        return controller;
    }

    // Makes the controller of a worker on nodes of `ranks_per_node` workers each. Each request names the group that
    // performs it.
    static Controller on_nodes(Collective &collective, std::uint32_t ranks_per_node, const std::vector<lgreco_layer> &layers,
                               const Options &options = {}, const std::vector<lgreco_setting> &settings = {},
                               const lgreco_context *context = nullptr) {
        const lgreco_setting *const fixed = one_each(layers, settings);
        Controller controller;
        controller.make(collective, [&](const lgreco_collective *callback, lgreco_controller **made) {
            return lgreco_controller_create_on_nodes(context, callback, ranks_per_node, layers.data(), layers.size(), fixed,
                                                     options.list().data(), made);
        });
        return controller;
    }

    // Performs a step: replaces gradients, one pointer per layer, by their means.
    lgreco_report step(Collective &collective, const std::vector<void *> &gradients, double learning_rate) {
        detail::Calls calls{collective};
        const lgreco_collective callback = calls.callback();
        lgreco_report report = LGRECO_REPORT_INIT;
        const lgreco_status status = lgreco_controller_step(get(), &callback, gradients.data(), gradients.size(),
                                                            learning_rate, &report);
        if (calls.thrown) std::rethrow_exception(calls.thrown);
        check(status);
        return report;
    }

    // Begins a step whose collectives the caller performs.
    void begin_step(double learning_rate) {
        check(lgreco_controller_begin_step(get(), learning_rate));
    }

    // Begins a step and performs its control requests, after which buckets may be opened. If a collective throws, call
    // abandon_step.
    void begin_step(Collective &collective, double learning_rate) {
        begin_step(learning_rate);
        for (lgreco_request asked = control(); asked.kind != LGRECO_REQUEST_NONE; asked = control()) collective.perform(asked);
    }

    // Returns the next collective to perform before buckets are opened, or LGRECO_REQUEST_NONE when none is left.
    lgreco_request control() {
        lgreco_request asked = LGRECO_REQUEST_INIT;
        check(lgreco_controller_control(get(), &asked));
        return asked;
    }

    // Lends layers, by index, for one exchange.
    Bucket open(const std::vector<std::size_t> &layers) {
        lgreco_bucket *lent = nullptr;
        check(lgreco_bucket_open(get(), layers.data(), layers.size(), &lent));
        return Bucket(handle_, lent);
    }

    // Returns a bucket's layers to the controller, at any stage of its exchange.
    void close(Bucket &bucket) { check(lgreco_bucket_close(get(), &bucket.handle_)); }

    // Ends the step, after all its buckets were closed.
    lgreco_report finish_step() {
        lgreco_report report = LGRECO_REPORT_INIT;
        check(lgreco_controller_finish_step(get(), &report));
        return report;
    }

    // Takes the work of the next decision, for any thread. The task is available from the end of step `decision - lead
    // - 1` until the decision. At other times the returned task is empty.
    PlanTask take_plan_task() {
        lgreco_plan_task *taken = nullptr;
        check(lgreco_controller_take_plan_task(get(), &taken));
        return PlanTask(taken);
    }

    // Hands the result of a finished task to the controller.
    void hand_in(PlanTask &task) {
        lgreco_plan_task *run = task.handle_.release();
        const lgreco_status status = lgreco_controller_hand_in(get(), &run);
        task.handle_.reset(run);
        check(status);
    }

    // Asks for a decision earlier than the scheduled one. All ranks must make this call. Returns the step at which the
    // decision is due, or UINT64_MAX for none.
    std::uint64_t replan() {
        std::uint64_t due = 0;
        check(lgreco_controller_replan(get(), &due));
        return due;
    }

    // Gives new settings to a controller that was made with settings. All ranks must make this call. The settings apply
    // from the next step on, or from the end of the warm-up.
    void set_settings(const std::vector<lgreco_setting> &settings) {
        check(lgreco_controller_set_settings(get(), settings.data(), settings.size()));
    }

    // Undoes the last step's changes of the residuals. Call it if the step's means were not applied.
    void roll_back() { check(lgreco_controller_roll_back(get())); }

    // Abandons a step in which a collective failed. Close the step's buckets first. With the option `undo`, residuals
    // return to their values before the step.
    void abandon_step() { check(lgreco_controller_abandon_step(get())); }

    // Multiplies all residuals by `factor`. Call it when the loss scale changes by this factor.
    void rescale_residuals(float factor) { check(lgreco_controller_rescale_residuals(get(), factor)); }

    // Returns the first element of a layer that this rank exchanges with its peers, and the number of such elements.
    std::pair<std::size_t, std::size_t> shard(std::size_t layer) const {
        std::pair<std::size_t, std::size_t> shard;
        check(lgreco_controller_shard(get(), layer, &shard.first, &shard.second));
        return shard;
    }

    lgreco_setting setting(std::size_t layer) const {
        lgreco_setting setting = {};
        check(lgreco_controller_setting(get(), layer, &setting));
        return setting;
    }

    lgreco_metrics metrics(std::size_t layer) const {
        lgreco_metrics metrics = LGRECO_METRICS_INIT;
        check(lgreco_controller_metrics(get(), layer, &metrics));
        return metrics;
    }

    lgreco_decision decision() const {
        lgreco_decision decision = LGRECO_DECISION_INIT;
        check(lgreco_controller_decision(get(), &decision));
        return decision;
    }

    std::string metrics_json() const {
        return detail::text([this](char *json, std::size_t capacity, std::size_t *length) {
            return lgreco_controller_metrics_json(get(), json, capacity, length);
        });
    }

    std::vector<std::uint8_t> save(lgreco_save_contents contents = LGRECO_SAVE_EVERYTHING) const {
        return detail::written([this, contents](std::uint8_t *saved, std::size_t capacity, std::size_t *length) {
            return lgreco_controller_save(get(), contents, saved, capacity, length);
        });
    }

    // Saves one part of the state, and returns its name and bytes. Part 0 belongs to no layer and has no name. Part 1 +
    // l belongs to layer l.
    std::pair<std::string, std::vector<std::uint8_t>>
    save_part(std::size_t part, lgreco_save_contents contents = LGRECO_SAVE_EVERYTHING) const {
        const char *name = nullptr;
        const auto call = [this, part, contents, &name](std::uint8_t *saved, std::size_t capacity, std::size_t *length) {
            return lgreco_controller_save_part(get(), part, contents, &name, saved, capacity, length);
        };
        std::vector<std::uint8_t> saved = detail::written(call);
        return {name == nullptr ? "" : name, std::move(saved)};
    }

    // Loads saved states. The layer names in the result are valid until the next load.
    lgreco_loaded load(const std::vector<std::uint8_t> &plan, const std::vector<std::vector<std::uint8_t>> &residuals) {
        const Parts parts(residuals);
        lgreco_loaded loaded = LGRECO_LOADED_INIT;
        check(lgreco_controller_load(get(), plan.data(), plan.size(), parts.pointers.data(), parts.lens.data(),
                                     parts.lens.size(), &loaded));
        return loaded;
    }

    // Loads saved states from their parts, in any order.
    lgreco_loaded load_parts(const std::vector<std::vector<std::uint8_t>> &plan,
                             const std::vector<std::vector<std::uint8_t>> &residuals) {
        const Parts of_plan(plan), parts(residuals);
        lgreco_loaded loaded = LGRECO_LOADED_INIT;
        check(lgreco_controller_load_parts(get(), of_plan.pointers.data(), of_plan.lens.data(), of_plan.lens.size(),
                                           parts.pointers.data(), parts.lens.data(), parts.lens.size(), &loaded));
        return loaded;
    }

    // Continues from this rank's own saved state.
    lgreco_loaded resume(const std::vector<std::uint8_t> &saved) { return load(saved, {saved}); }

    lgreco_controller *get() const noexcept { return handle_.get(); }

private:
    struct Parts {
        explicit Parts(const std::vector<std::vector<std::uint8_t>> &parts) {
            for (const auto &part : parts) {
                pointers.push_back(part.data());
                lens.push_back(part.size());
            }
        }
        std::vector<const std::uint8_t *> pointers;
        std::vector<std::size_t> lens;
    };

    Controller() = default;

    static const lgreco_setting *one_each(const std::vector<lgreco_layer> &layers,
                                          const std::vector<lgreco_setting> &settings) {
        if (!settings.empty() && settings.size() != layers.size()) lgreco::check(LGRECO_LENGTH, "settings, one per layer");
        return settings.empty() ? nullptr : settings.data();
    }

    template <typename Make> void make(Collective &collective, Make call) {
        detail::Calls calls{collective};
        const lgreco_collective callback = calls.callback();
        lgreco_controller *made = nullptr;
        check(call(&callback, &made));
        handle_.reset(made, detail::Destroy<lgreco_controller, lgreco_controller_destroy>());
    }

    std::shared_ptr<lgreco_controller> handle_;
};

} // namespace lgreco

#endif // LGRECO_TRAIN_HPP
