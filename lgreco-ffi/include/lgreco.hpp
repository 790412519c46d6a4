// lgreco for C++17: the calls of lgreco.h with handles that free themselves and failures that are exceptions.
//
// Everything here is inline; programs link the same library as C programs. Structs are those of lgreco.h. What holds for
// handles, threads and memory stands in lgreco-ffi/README.md.
#ifndef LGRECO_HPP
#define LGRECO_HPP

#include "lgreco.h"

#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace lgreco {

// A call that failed.
class Error : public std::runtime_error {
public:
    Error(lgreco_status status, const std::string &message) : std::runtime_error(message), status_(status) {}

    // The permanent code, such as LGRECO_INFEASIBLE.
    lgreco_status status() const noexcept { return status_; }

private:
    lgreco_status status_;
};

// Throws an Error unless `status` is LGRECO_OK; `message` says more than the status does, or is NULL or empty.
inline void check(lgreco_status status, const char *message = nullptr) {
    if (status == LGRECO_OK) return;
    std::string text = lgreco_status_name(status);
    if (message != nullptr && *message != '\0') text = text + ": " + message;
    throw Error(status, text);
}

// Structs at their defaults.
inline lgreco_context_options context_options() { return LGRECO_CONTEXT_OPTIONS_INIT; }
inline lgreco_search_options search_options() { return LGRECO_SEARCH_OPTIONS_INIT; }
inline lgreco_table_view table_view() { return LGRECO_TABLE_VIEW_INIT; }
inline lgreco_plan_options plan_options() { return LGRECO_PLAN_OPTIONS_INIT; }
inline lgreco_compressor_options compressor_options() { return LGRECO_COMPRESSOR_OPTIONS_INIT; }
inline lgreco_link link() { return LGRECO_LINK_INIT; }
inline lgreco_cut_setting cut_setting() { return LGRECO_CUT_SETTING_INIT; }
inline lgreco_controller_options controller_options() { return LGRECO_CONTROLLER_OPTIONS_INIT; }
inline lgreco_request request() { return LGRECO_REQUEST_INIT; }

// A setting such as "qsgd 4" as a struct, for arrays of them. Throws LGRECO_TEXT for a text that does not fit.
inline lgreco_setting setting(const std::string &text) {
    lgreco_setting setting = {};
    if (text.size() >= sizeof setting.text) check(LGRECO_TEXT, ("setting `" + text + "` is longer than 63 bytes").c_str());
    text.copy(setting.text, sizeof setting.text);
    return setting;
}

// A tensor of the model; name, dims and values stay the caller's and must outlive the struct.
inline lgreco_layer layer(const char *name, const std::vector<std::size_t> &dims, const void *values = nullptr,
                          lgreco_dtype dtype = LGRECO_DTYPE_F32) {
    lgreco_layer layer = LGRECO_LAYER_INIT;
    layer.name = name;
    layer.dims = dims.data();
    layer.dims_len = dims.size();
    layer.values = values;
    layer.dtype = dtype;
    return layer;
}

// Dims that are gone before the struct is used.
lgreco_layer layer(const char *name, std::vector<std::size_t> &&dims, const void *values = nullptr,
                   lgreco_dtype dtype = LGRECO_DTYPE_F32) = delete;

namespace detail {

template <typename T, lgreco_status (*destroy)(T **)> struct Destroy {
    void operator()(T *handle) const noexcept { destroy(&handle); }
};

template <typename T, lgreco_status (*destroy)(T **)> using Handle = std::unique_ptr<T, Destroy<T, destroy>>;

// Text of a length that only the call knows.
template <typename Write> std::string text(Write write) {
    std::size_t length = 0;
    const lgreco_status status = write(static_cast<char *>(nullptr), std::size_t{0}, &length);
    if (status != LGRECO_LENGTH) check(status);
    std::string text(length + 1, '\0');
    check(write(text.data(), text.size(), &length));
    text.resize(length);
    return text;
}

} // namespace detail

// A device.
class Context {
public:
    explicit Context(const lgreco_context_options &options = context_options()) {
        lgreco_context *made = nullptr;
        char reason[512] = "";
        lgreco_context_options told = options;
        if (told.message == nullptr) {
            told.message = reason;
            told.message_capacity = sizeof reason;
        }
        if (told.message_capacity > 0) told.message[0] = '\0';
        lgreco::check(lgreco_context_create(&told, &made), told.message_capacity > 0 ? told.message : nullptr);
        handle_.reset(made);
    }

    lgreco_context *get() const noexcept { return handle_.get(); }

    // Throws an Error with the context's message unless `status` is LGRECO_OK.
    void check(lgreco_status status) const { lgreco::check(status, lgreco_context_message(get())); }

private:
    detail::Handle<lgreco_context, lgreco_context_destroy> handle_;
};

// An error table.
class Table {
public:
    // Takes over a table that a call of lgreco.h has made.
    explicit Table(lgreco_table *made) : handle_(made) {}

    // Copies `view`.
    Table(const Context &context, const lgreco_table_view &view) {
        make(context, [&](lgreco_table **made) { return lgreco_table_create(context.get(), &view, made); });
    }

    static Table measure(const Context &context, const std::vector<lgreco_layer> &layers,
                         const lgreco_search_options &options = search_options()) {
        Table table;
        table.make(context, [&](lgreco_table **made) {
            return lgreco_table_measure(context.get(), layers.data(), layers.size(), &options, made);
        });
        return table;
    }

    static Table from_json(const Context &context, std::string_view json) {
        Table table;
        table.make(context, [&](lgreco_table **made) {
            return lgreco_table_from_json(context.get(), json.data(), json.size(), made);
        });
        return table;
    }

    std::string to_json() const {
        return detail::text([this](char *json, std::size_t capacity, std::size_t *length) {
            return lgreco_table_to_json(get(), json, capacity, length);
        });
    }

    // Valid as long as the table.
    lgreco_table_view view() const {
        lgreco_table_view view = table_view();
        check(lgreco_table_get(get(), &view));
        return view;
    }

    // The compressor behind an option of a table that was measured, now or before it was written to a file.
    lgreco_setting setting(std::size_t layer, std::uint32_t option) const {
        lgreco_setting setting = {};
        check(lgreco_table_setting(get(), layer, option, &setting));
        return setting;
    }

    lgreco_table *get() const noexcept { return handle_.get(); }

private:
    Table() = default;

    template <typename Make> void make(const Context &context, Make call) {
        lgreco_table *made = nullptr;
        context.check(call(&made));
        handle_.reset(made);
    }

    detail::Handle<lgreco_table, lgreco_table_destroy> handle_;
};

// One option per layer.
class Plan {
public:
    static Plan solve(const Context &context, const lgreco_table_view &table,
                      const lgreco_plan_options &options = plan_options()) {
        lgreco_plan *made = nullptr;
        context.check(lgreco_plan_solve(context.get(), &table, &options, &made));
        return Plan(made);
    }

    static Plan from_json(const Context &context, const Table &table, std::string_view json) {
        lgreco_plan *made = nullptr;
        context.check(lgreco_plan_from_json(context.get(), table.get(), json.data(), json.size(), &made));
        return Plan(made);
    }

    std::string to_json(const Table &table) const {
        return detail::text([&](char *json, std::size_t capacity, std::size_t *length) {
            return lgreco_plan_to_json(get(), table.get(), json, capacity, length);
        });
    }

    // Valid as long as the plan.
    lgreco_plan_view view() const {
        lgreco_plan_view view = LGRECO_PLAN_VIEW_INIT;
        check(lgreco_plan_get(get(), &view));
        return view;
    }

    lgreco_plan *get() const noexcept { return handle_.get(); }

private:
    explicit Plan(lgreco_plan *made) : handle_(made) {}

    detail::Handle<lgreco_plan, lgreco_plan_destroy> handle_;
};

// The compressor of one layer on one worker. Its setting is text, such as "qsgd 4" or the `text` of a lgreco_setting.
class Compressor {
public:
    Compressor(const Context &context, const lgreco_layer &layer, const std::string &setting,
               const lgreco_compressor_options &options = compressor_options()) {
        lgreco_compressor *made = nullptr;
        context.check(lgreco_compressor_create(context.get(), &layer, setting.c_str(), &options, &made));
        handle_.reset(made);
    }

    void set(const std::string &setting) { check(lgreco_compressor_set_setting(get(), setting.c_str())); }

    // Most bytes that encode writes.
    std::size_t bound() const {
        std::size_t bytes = 0;
        check(lgreco_compressor_bound(get(), &bytes));
        return bytes;
    }

    // Compresses into `payload`, which it makes as long as the payload; does not allocate once it had room for `bound`.
    void encode(std::uint32_t step, const void *values, std::vector<std::uint8_t> &payload) {
        std::size_t length = 0;
        payload.resize(bound());
        check(lgreco_compressor_encode(get(), step, values, payload.data(), payload.size(), &length));
        payload.resize(length);
    }

    void decode(const std::vector<std::uint8_t> &payload, std::vector<float> &values) const {
        check(lgreco_compressor_decode(get(), payload.data(), payload.size(), values.data(), values.size()));
    }

    std::vector<std::uint8_t> save() const {
        std::size_t length = 0;
        const lgreco_status status = lgreco_compressor_save(get(), nullptr, 0, &length);
        if (status != LGRECO_LENGTH) check(status);
        std::vector<std::uint8_t> saved(length);
        check(lgreco_compressor_save(get(), saved.data(), saved.size(), &length));
        return saved;
    }

    void load(const std::vector<std::uint8_t> &saved) {
        check(lgreco_compressor_load(get(), saved.data(), saved.size()));
    }

    lgreco_compressor *get() const noexcept { return handle_.get(); }

private:
    void check(lgreco_status status) const { lgreco::check(status, lgreco_compressor_message(get())); }

    detail::Handle<lgreco_compressor, lgreco_compressor_destroy> handle_;
};

// The network, to be derived from.
class Collective {
public:
    virtual ~Collective() = default;

    virtual std::uint32_t rank() const = 0;
    virtual std::uint32_t world_size() const = 0;
    // Performs what a controller or a bucket asks for, and waits until it is done. An exception comes out of the Controller's call
    // that made it.
    virtual void perform(const lgreco_request &request) = 0;

protected:
    Collective() = default;
    Collective(const Collective &) = default;
    Collective &operator=(const Collective &) = default;
};

namespace detail {

// A collective during one call, and what it threw.
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

// Layers on loan from a controller for one exchange. Destroying it gives them back, unless another thread is using the
// controller at that moment (Controller::close throws then): the layers are in flight for ever.
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

    // The layer has no gradient on this rank in this step.
    void withhold(std::size_t layer) { check(lgreco_bucket_withhold(get(), layer)); }
    // The collective number `index`, from 0, that next() will ask for, without its memory.
    lgreco_request round(std::size_t index) const {
        lgreco_request announced = LGRECO_REQUEST_INIT;
        check(lgreco_bucket_round(get(), index, &announced));
        return announced;
    }

    // Takes the gradients, one pointer per layer, and keeps the pointers until they are means.
    void submit(const std::vector<void *> &gradients) {
        check(lgreco_bucket_submit(get(), gradients.data(), gradients.size()));
    }

    // The next collective to perform, once the one before is done; LGRECO_REQUEST_NONE when the gradients are means.
    lgreco_request next() {
        lgreco_request asked = request();
        check(lgreco_bucket_next(get(), &asked));
        return asked;
    }

    lgreco_bucket *get() const noexcept { return handle_; }

private:
    friend class Controller;

    Bucket(const std::shared_ptr<lgreco_controller> &controller, lgreco_bucket *lent)
        : controller_(controller), handle_(lent) {}

    void check(lgreco_status status) const { lgreco::check(status, lgreco_bucket_message(get())); }

    std::weak_ptr<lgreco_controller> controller_;  // which may go first
    lgreco_bucket *handle_;
};

// The work of a controller's next decision, which any thread may run once; dropped, it is there to be taken again.
class PlanTask {
public:
    // Measures and plans. What fails is told to all ranks when the task is handed in all the same.
    void run() { check(lgreco_plan_task_run(get())); }

    // Whether there is work, or none is wanted.
    explicit operator bool() const noexcept { return handle_ != nullptr; }

    lgreco_plan_task *get() const noexcept { return handle_.get(); }

private:
    friend class Controller;

    explicit PlanTask(lgreco_plan_task *taken) : handle_(taken) {}

    void check(lgreco_status status) const { lgreco::check(status, lgreco_plan_task_message(get())); }

    detail::Handle<lgreco_plan_task, lgreco_plan_task_destroy> handle_;
};

// One worker's end of the training loop.
class Controller {
public:
    Controller(Controller &&) noexcept = default;
    Controller &operator=(Controller &&) noexcept = default;

    Controller(const Context &context, Collective &collective, const std::vector<lgreco_layer> &layers,
               const lgreco_controller_options &options = controller_options()) {
        detail::Calls calls{collective};
        const lgreco_collective callback = calls.callback();
        lgreco_controller *made = nullptr;
        context.check(lgreco_controller_create(context.get(), &callback, layers.data(), layers.size(), &options, &made));
        handle_.reset(made, detail::Destroy<lgreco_controller, lgreco_controller_destroy>());
    }

    // Replaces gradients, one pointer per layer, by their means.
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

    // Begins a step of which the caller performs the collectives.
    void begin_step(double learning_rate) {
        check(lgreco_controller_begin_step(get(), learning_rate));
    }

    // The next collective to perform before buckets are opened; LGRECO_REQUEST_NONE when there is none left.
    lgreco_request control() {
        lgreco_request asked = request();
        check(lgreco_controller_control(get(), &asked));
        return asked;
    }

    // Lends layers, by their index, for one exchange.
    Bucket open(const std::vector<std::size_t> &layers) {
        lgreco_bucket *lent = nullptr;
        check(lgreco_bucket_open(get(), layers.data(), layers.size(), &lent));
        return Bucket(handle_, lent);
    }

    // Takes a bucket back, wherever it is.
    void close(Bucket &bucket) { check(lgreco_bucket_close(get(), &bucket.handle_)); }

    // Ends the step, of which all buckets have been closed.
    lgreco_report finish_step() {
        lgreco_report report = LGRECO_REPORT_INIT;
        check(lgreco_controller_finish_step(get(), &report));
        return report;
    }

    // The work of the next decision, for any thread, between the step before its `lead` and its own; else an empty one.
    PlanTask take_plan_task() {
        lgreco_plan_task *taken = nullptr;
        check(lgreco_controller_take_plan_task(get(), &taken));
        return PlanTask(taken);
    }

    // Takes what became of a task that has been run.
    void hand_in(PlanTask &task) {
        lgreco_plan_task *run = task.handle_.release();
        const lgreco_status status = lgreco_controller_hand_in(get(), &run);
        task.handle_.reset(run);
        check(status);
    }

    // Asks for a decision before the schedule's next; the step at which it is due, UINT64_MAX for none. All ranks ask.
    std::uint64_t replan() {
        std::uint64_t due = 0;
        check(lgreco_controller_replan(get(), &due));
        return due;
    }

    // Other settings for LGRECO_POLICY_FIXED, from the next step on, or from the end of the warm-up. All ranks give them.
    void set_settings(const std::vector<lgreco_setting> &settings) {
        check(lgreco_controller_set_settings(get(), settings.data(), settings.size()));
    }

    // The last step's means have not been applied: residuals are again what they were before it.
    void roll_back() { check(lgreco_controller_roll_back(get())); }

    // The network has failed in the middle of a step, whose buckets are closed: residuals are again what they were before it.
    void abandon_step() { check(lgreco_controller_abandon_step(get())); }

    // Gradients are from now on so many times what they were.
    void rescale_residuals(float factor) { check(lgreco_controller_rescale_residuals(get(), factor)); }

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
        return written([this, contents](std::uint8_t *saved, std::size_t capacity, std::size_t *length) {
            return lgreco_controller_save(get(), contents, saved, capacity, length);
        });
    }

    // Part 0, without a name, is what belongs to no layer; part 1 + l is layer l.
    std::pair<std::string, std::vector<std::uint8_t>>
    save_part(std::size_t part, lgreco_save_contents contents = LGRECO_SAVE_EVERYTHING) const {
        const char *name = nullptr;
        const auto call = [this, part, contents, &name](std::uint8_t *saved, std::size_t capacity, std::size_t *length) {
            return lgreco_controller_save_part(get(), part, contents, &name, saved, capacity, length);
        };
        std::vector<std::uint8_t> saved = written(call);
        return {name == nullptr ? "" : name, std::move(saved)};
    }

    // The names in the result are valid until the next load.
    lgreco_loaded load(const std::vector<std::uint8_t> &plan, const std::vector<std::vector<std::uint8_t>> &residuals) {
        const Parts parts(residuals);
        lgreco_loaded loaded = LGRECO_LOADED_INIT;
        check(lgreco_controller_load(get(), plan.data(), plan.size(), parts.pointers.data(), parts.lens.data(),
                                     parts.lens.size(), &loaded));
        return loaded;
    }

    // Likewise, from parts in any order.
    lgreco_loaded load_parts(const std::vector<std::vector<std::uint8_t>> &plan,
                             const std::vector<std::vector<std::uint8_t>> &residuals) {
        const Parts of_plan(plan), parts(residuals);
        lgreco_loaded loaded = LGRECO_LOADED_INIT;
        check(lgreco_controller_load_parts(get(), of_plan.pointers.data(), of_plan.lens.data(), of_plan.lens.size(),
                                           parts.pointers.data(), parts.lens.data(), parts.lens.size(), &loaded));
        return loaded;
    }

    // Continues where this rank's state was saved.
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

    // Bytes of a length that only the call knows.
    template <typename Call> std::vector<std::uint8_t> written(Call call) const {
        std::size_t length = 0;
        const lgreco_status status = call(nullptr, 0, &length);
        if (status != LGRECO_LENGTH) check(status);
        std::vector<std::uint8_t> saved(length);
        check(call(saved.data(), saved.size(), &length));
        return saved;
    }

    void check(lgreco_status status) const { lgreco::check(status, lgreco_controller_message(get())); }

    std::shared_ptr<lgreco_controller> handle_;
};

// A cut's setting in bytes, to be saved with the model.
inline std::vector<std::uint8_t> to_bytes(const Context &context, const lgreco_cut_setting &setting) {
    std::vector<std::uint8_t> bytes(LGRECO_CUT_SETTING_BYTES);
    context.check(lgreco_cut_setting_to_bytes(context.get(), &setting, bytes.data(), bytes.size()));
    return bytes;
}

// A cut's setting read from bytes, with the links it points to.
class CutSetting {
public:
    CutSetting(const Context &context, const std::vector<std::uint8_t> &bytes) : links_(std::make_unique<Links>()) {
        context.check(lgreco_cut_setting_from_bytes(context.get(), bytes.data(), bytes.size(), &setting_,
                                                    &links_->forward, &links_->backward));
    }

    const lgreco_cut_setting &get() const noexcept { return setting_; }

private:
    struct Links {
        lgreco_link forward = LGRECO_LINK_INIT, backward = LGRECO_LINK_INIT;
    };

    std::unique_ptr<Links> links_;
    lgreco_cut_setting setting_ = LGRECO_CUT_SETTING_INIT;
};

// What running with `setting` means for a model trained with `trained`; `what` receives the first field that differs.
inline lgreco_compatibility compare(const Context &context, const lgreco_cut_setting &setting,
                                    const lgreco_cut_setting &trained, std::string *what = nullptr) {
    lgreco_compatibility found = LGRECO_COMPATIBILITY_SAME;
    const char *text = "";
    context.check(lgreco_cut_setting_compare(context.get(), &setting, &trained, &found, &text));
    if (what != nullptr) *what = text;
    return found;
}

// One end of a cut between two pipeline stages.
class Cut {
public:
    Cut(const Context &context, const lgreco_cut_setting &setting, lgreco_end end, std::uint32_t generation) {
        lgreco_cut *made = nullptr;
        context.check(lgreco_cut_create(context.get(), &setting, end, generation, &made));
        handle_.reset(made);
    }

    static Cut restore(const Context &context, const lgreco_cut_setting &setting, lgreco_end end,
                       const std::vector<std::uint8_t> &saved) {
        lgreco_cut *made = nullptr;
        context.check(lgreco_cut_restore(context.get(), &setting, end, saved.data(), saved.size(), &made));
        return Cut(made);
    }

    // Upstream. Returns the micro-batch's ticket; `ids` is empty or has one id per sample.
    std::uint64_t send_activations(const float *values, std::size_t samples, const std::vector<std::uint64_t> &ids,
                                   std::vector<std::uint8_t> &message) {
        if (!ids.empty() && ids.size() != samples) lgreco::check(LGRECO_LENGTH, "ids, one per sample");
        std::size_t length = 0;
        std::uint64_t ticket = 0;
        message.resize(bound());
        check(lgreco_cut_send_activations(get(), values, LGRECO_DTYPE_F32, samples, ids.empty() ? nullptr : ids.data(),
                                          message.data(), message.size(), &length, &ticket));
        message.resize(length);
        return ticket;
    }

    // The other end's message. `values` has its samples times the features; returns the ticket.
    std::uint64_t receive(const std::vector<std::uint8_t> &message, std::vector<float> &values) {
        std::uint64_t ticket = 0;
        check(lgreco_cut_receive(get(), message.data(), message.size(), values.data(), values.size(), &ticket));
        return ticket;
    }

    // Downstream.
    void send_gradients(std::uint64_t ticket, const float *values, std::size_t samples,
                        std::vector<std::uint8_t> &message) {
        std::size_t length = 0;
        message.resize(bound());
        check(lgreco_cut_send_gradients(get(), ticket, values, LGRECO_DTYPE_F32, samples, message.data(), message.size(),
                                        &length));
        message.resize(length);
    }

    void commit_step() { check(lgreco_cut_commit_step(get())); }

    // AQ-SGD: reads what is remembered of a sample into `values`, one per feature; false when nothing is.
    bool remembered(std::uint64_t sample, std::vector<float> &values) const {
        std::uint32_t found = 0;
        check(lgreco_cut_remembered(get(), sample, values.data(), values.size(), &found));
        return found != 0;
    }

    // AQ-SGD: the samples remembered, least recently updated first.
    std::vector<std::uint64_t> remembered_samples() const {
        std::size_t count = 0;
        const lgreco_status status = lgreco_cut_remembered_samples(get(), nullptr, 0, &count);
        if (status != LGRECO_LENGTH) check(status);
        std::vector<std::uint64_t> samples(count);
        check(lgreco_cut_remembered_samples(get(), samples.data(), samples.size(), &count));
        return samples;
    }

    std::vector<std::uint8_t> save() const {
        std::size_t length = 0;
        const lgreco_status status = lgreco_cut_save(get(), nullptr, 0, &length);
        if (status != LGRECO_LENGTH) check(status);
        std::vector<std::uint8_t> saved(length);
        check(lgreco_cut_save(get(), saved.data(), saved.size(), &length));
        return saved;
    }

    // Most bytes of a message that this end writes.
    std::size_t bound() const {
        std::size_t bytes = 0;
        check(lgreco_cut_bound(get(), &bytes));
        return bytes;
    }

    lgreco_cut *get() const noexcept { return handle_.get(); }

private:
    explicit Cut(lgreco_cut *made) : handle_(made) {}

    void check(lgreco_status status) const { lgreco::check(status, lgreco_cut_message(get())); }

    detail::Handle<lgreco_cut, lgreco_cut_destroy> handle_;
};

} // namespace lgreco

#endif // LGRECO_HPP
