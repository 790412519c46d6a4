// The cuts between pipeline stages of lgreco_pipeline.h, for C++17.
#ifndef LGRECO_PIPELINE_HPP
#define LGRECO_PIPELINE_HPP

#include "lgreco.hpp"
#include "lgreco_pipeline.h"

namespace lgreco {

// Makes the setting of a cut from options such as {{"batch", 8}, {"features", 4096}, {"forward", "topk 400"}}. Both
// ends of a cut need the same setting. Save the setting with the model.
inline lgreco_cut_setting cut_setting(const Options &options) {
    lgreco_cut_setting setting = {};
    check(lgreco_cut_setting_make(options.list().data(), &setting));
    return setting;
}

// Returns whether a model that was trained with the setting `trained` may run with `setting`. `what` receives the name
// of the first field that differs.
inline lgreco_compatibility compare(const lgreco_cut_setting &setting, const lgreco_cut_setting &trained,
                                    std::string *what = nullptr) {
    lgreco_compatibility found = LGRECO_COMPATIBILITY_SAME;
    const char *text = "";
    check(lgreco_cut_setting_compare(&setting, &trained, &found, &text));
    if (what != nullptr) *what = text;
    return found;
}

// One end of a cut between two pipeline stages.
class Cut {
public:
    Cut(const lgreco_cut_setting &setting, lgreco_end end, std::uint32_t generation) {
        lgreco_cut *made = nullptr;
        check(lgreco_cut_create(&setting, end, generation, &made));
        handle_.reset(made);
    }

    static Cut restore(const lgreco_cut_setting &setting, lgreco_end end, const std::vector<std::uint8_t> &saved) {
        lgreco_cut *made = nullptr;
        check(lgreco_cut_restore(&setting, end, saved.data(), saved.size(), &made));
        return Cut(made);
    }

    // At the upstream end: returns the micro-batch's ticket. `ids` is empty or has one id per sample.
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

    // Decodes the other end's message into `values`, which has one element per sample and feature. Returns the
    // micro-batch's ticket.
    std::uint64_t receive(const std::vector<std::uint8_t> &message, std::vector<float> &values) {
        std::uint64_t ticket = 0;
        check(lgreco_cut_receive(get(), message.data(), message.size(), values.data(), values.size(), &ticket));
        return ticket;
    }

    // At the downstream end: sends the gradients of a micro-batch back.
    void send_gradients(std::uint64_t ticket, const float *values, std::size_t samples,
                        std::vector<std::uint8_t> &message) {
        std::size_t length = 0;
        message.resize(bound());
        check(lgreco_cut_send_gradients(get(), ticket, values, LGRECO_DTYPE_F32, samples, message.data(), message.size(),
                                        &length));
        message.resize(length);
    }

    void commit_step() { check(lgreco_cut_commit_step(get())); }

    // For AQ-SGD: reads the remembered values of a sample, one per feature. Returns false for an unknown sample.
    bool remembered(std::uint64_t sample, std::vector<float> &values) const {
        std::uint32_t found = 0;
        check(lgreco_cut_remembered(get(), sample, values.data(), values.size(), &found));
        return found != 0;
    }

    // For AQ-SGD: returns the ids of the remembered samples, least recently updated first.
    std::vector<std::uint64_t> remembered_samples() const {
        return detail::written<std::uint64_t>([this](std::uint64_t *samples, std::size_t capacity, std::size_t *count) {
            return lgreco_cut_remembered_samples(get(), samples, capacity, count);
        });
    }

    std::vector<std::uint8_t> save() const {
        return detail::written([this](std::uint8_t *saved, std::size_t capacity, std::size_t *length) {
            return lgreco_cut_save(get(), saved, capacity, length);
        });
    }

    // Returns the largest length, in bytes, of a message that this end writes.
    std::size_t bound() const {
        std::size_t bytes = 0;
        check(lgreco_cut_bound(get(), &bytes));
        return bytes;
    }

    lgreco_cut *get() const noexcept { return handle_.get(); }

private:
    explicit Cut(lgreco_cut *made) : handle_(made) {}

    detail::Handle<lgreco_cut, lgreco_cut_destroy> handle_;
};

} // namespace lgreco

#endif // LGRECO_PIPELINE_HPP
