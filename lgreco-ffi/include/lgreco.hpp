// lgreco for C++17. Destructors free handles, failures are exceptions, and options are written {{"period", 500},
// {"method", "topk"}}. This file has layers, error tables, plans and compressors. lgreco_train.hpp has controllers,
// lgreco_cuda.hpp gradients on an NVIDIA GPU, and lgreco_pipeline.hpp cuts between pipeline stages.
//
// Everything in this header is inline, and programs link the same library as C programs. The structs come from
// lgreco.h. docs/src/reference/c-contract.md states the rules for handles, threads and memory.
#ifndef LGRECO_HPP
#define LGRECO_HPP

#include "lgreco_train.h"

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <locale>
#include <memory>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace lgreco {

// The exception that a failed call throws.
class Error : public std::runtime_error {
public:
    Error(lgreco_status status, const std::string &message) : std::runtime_error(message), status_(status) {}

    // The permanent status code, such as LGRECO_INFEASIBLE.
    lgreco_status status() const noexcept { return status_; }

private:
    lgreco_status status_;
};

// Throws an Error unless `status` is LGRECO_OK. The exception's text is `message`, by default the message of the
// thread's last failed call.
inline void check(lgreco_status status, const char *message = lgreco_message()) {
    if (status == LGRECO_OK) return;
    throw Error(status, std::string(lgreco_status_name(status)) + ": " + message);
}

// Options by name, such as {{"period", 500}, {"method", "topk"}}. lgreco.h lists names and values.
class Options {
public:
    // The value of an option: text, a number, several numbers, or a bool.
    class Value {
    public:
        Value(const char *text) : text_(text) {}
        Value(std::string text) : text_(std::move(text)) {}
        Value(bool truth) : text_(truth ? "true" : "false") {}
        template <typename Number, typename = std::enable_if_t<std::is_arithmetic_v<Number>>> Value(Number number) {
            std::ostringstream text;
            text.imbue(std::locale::classic());
            text.precision(17);
            text << +number;
            text_ = text.str();
        }
        // Several numbers, separated by commas.
        template <typename Number> Value(const std::vector<Number> &numbers) {
            for (const Number &number : numbers) text_ += (text_.empty() ? "" : ",") + Value(number).text_;
        }

        const std::string &text() const noexcept { return text_; }

    private:
        std::string text_;
    };

    Options() = default;
    Options(std::initializer_list<std::pair<std::string, Value>> given) {
        for (const auto &[name, value] : given) texts_.emplace_back(name, value.text());
    }

    // Sets an option, or replaces its earlier value.
    Options &set(const std::string &name, const Value &value) {
        for (auto &[known, text] : texts_)
            if (known == name) {
                text = value.text();
                return *this;
            }
        texts_.emplace_back(name, value.text());
        return *this;
    }

    // Returns the options as an array for calls of lgreco.h. The array is valid until the options change or are
    // destroyed.
    std::vector<const char *> list() const {
        std::vector<const char *> list;
        for (const auto &[name, text] : texts_) {
            list.push_back(name.c_str());
            list.push_back(text.c_str());
        }
        list.push_back(nullptr);
        return list;
    }

private:
    std::vector<std::pair<std::string, std::string>> texts_;
};

inline lgreco_table_view table_view() { return LGRECO_TABLE_VIEW_INIT; }

// Makes a struct from a setting's text, such as "qsgd 4", for arrays of settings. Throws an Error with LGRECO_TEXT if
// the text is too long for the struct.
inline lgreco_setting setting(const std::string &text) {
    lgreco_setting setting = {};
    if (text.size() >= sizeof setting.text) check(LGRECO_TEXT, ("setting `" + text + "` is longer than 63 bytes").c_str());
    text.copy(setting.text, sizeof setting.text);
    return setting;
}

// Describes a tensor of the model. The caller owns name, dims and values, which must outlive the struct.
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

// Deleted: temporary `dims` would be destroyed before the caller uses the struct.
lgreco_layer layer(const char *name, std::vector<std::size_t> &&dims, const void *values = nullptr,
                   lgreco_dtype dtype = LGRECO_DTYPE_F32) = delete;

// The layers of a model, with their names and dims. A Layers object converts to the vector that calls take. It can be
// moved, but not copied.
class Layers {
public:
    Layers() = default;
    Layers(Layers &&) noexcept = default;
    Layers &operator=(Layers &&) noexcept = default;

    // Copies name and dims, and returns the layer's index. `dims` is any range of numbers, or a list such as {64, 48}. The
    // caller owns the values.
    template <typename Dims = std::initializer_list<std::size_t>>
    std::size_t add(std::string name, const Dims &dims, const void *values = nullptr, lgreco_dtype dtype = LGRECO_DTYPE_F32) {
        owned_.push_back(std::make_unique<Owned>(Owned{std::move(name), std::vector<std::size_t>(dims.begin(), dims.end())}));
        layers_.push_back(layer(owned_.back()->name.c_str(), owned_.back()->dims, values, dtype));
        return layers_.size() - 1;
    }

    std::size_t size() const noexcept { return layers_.size(); }
    const lgreco_layer &operator[](std::size_t index) const noexcept { return layers_[index]; }
    operator const std::vector<lgreco_layer> &() const noexcept { return layers_; }

private:
    struct Owned {
        std::string name;
        std::vector<std::size_t> dims;
    };

    std::vector<std::unique_ptr<Owned>> owned_;  // `layers_` points to them
    std::vector<lgreco_layer> layers_;
};

namespace detail {

template <typename T, lgreco_status (*destroy)(T **)> struct Destroy {
    void operator()(T *handle) const noexcept { destroy(&handle); }
};

template <typename T, lgreco_status (*destroy)(T **)> using Handle = std::unique_ptr<T, Destroy<T, destroy>>;

// Returns the text that a call writes, after asking the call for its length.
template <typename Write> std::string text(Write write) {
    std::size_t length = 0;
    const lgreco_status status = write(static_cast<char *>(nullptr), std::size_t{0}, &length);
    if (status != LGRECO_LENGTH) check(status);
    std::string text(length + 1, '\0');
    check(write(text.data(), text.size(), &length));
    text.resize(length);
    return text;
}

// Returns the array of numbers that a call writes, after asking the call for its length.
template <typename T = std::uint8_t, typename Write> std::vector<T> written(Write write) {
    std::size_t length = 0;
    const lgreco_status status = write(static_cast<T *>(nullptr), std::size_t{0}, &length);
    if (status != LGRECO_LENGTH) check(status);
    std::vector<T> values(length);
    check(write(values.data(), values.size(), &length));
    return values;
}

} // namespace detail

// A device: "cpu", "cuda", "cuda:1" or "wgpu". Calls without a context run on the CPU.
class Context {
public:
    explicit Context(const std::string &device) {
        lgreco_context *made = nullptr;
        check(lgreco_context_create(device.c_str(), &made));
        handle_.reset(made);
    }

    operator const lgreco_context *() const noexcept { return handle_.get(); }

private:
    detail::Handle<lgreco_context, lgreco_context_destroy> handle_;
};

// An error table: the errors and sizes of every layer's options.
class Table {
public:
    // Takes ownership of a table that a call of lgreco.h has made.
    explicit Table(lgreco_table *made) : handle_(made) {}

    // Makes a table by copying `view`.
    explicit Table(const lgreco_table_view &view) {
        make([&](lgreco_table **made) { return lgreco_table_create(&view, made); });
    }

    static Table measure(const std::vector<lgreco_layer> &layers, const Options &options = {},
                         const lgreco_context *context = nullptr) {
        Table table;
        table.make([&](lgreco_table **made) {
            return lgreco_table_measure(context, layers.data(), layers.size(), options.list().data(), made);
        });
        return table;
    }

    static Table from_json(std::string_view json) {
        Table table;
        table.make([&](lgreco_table **made) { return lgreco_table_from_json(json.data(), json.size(), made); });
        return table;
    }

    std::string to_json() const {
        return detail::text([this](char *json, std::size_t capacity, std::size_t *length) {
            return lgreco_table_to_json(get(), json, capacity, length);
        });
    }

    // Returns the table as arrays, which are valid until the table is destroyed.
    lgreco_table_view view() const {
        lgreco_table_view view = table_view();
        check(lgreco_table_get(get(), &view));
        return view;
    }

    // Returns the compressor setting of an option. The library must have measured the table, in this run or before it
    // was written to a file.
    lgreco_setting setting(std::size_t layer, std::uint32_t option) const {
        lgreco_setting setting = {};
        check(lgreco_table_setting(get(), layer, option, &setting));
        return setting;
    }

    lgreco_table *get() const noexcept { return handle_.get(); }

private:
    Table() = default;

    template <typename Make> void make(Make call) {
        lgreco_table *made = nullptr;
        check(call(&made));
        handle_.reset(made);
    }

    detail::Handle<lgreco_table, lgreco_table_destroy> handle_;
};

// A verified plan: one option per layer.
class Plan {
public:
    static Plan solve(const lgreco_table_view &table, const Options &options = {}) {
        lgreco_plan *made = nullptr;
        check(lgreco_plan_solve(&table, options.list().data(), &made));
        return Plan(made);
    }

    static Plan from_json(const Table &table, std::string_view json) {
        lgreco_plan *made = nullptr;
        check(lgreco_plan_from_json(table.get(), json.data(), json.size(), &made));
        return Plan(made);
    }

    std::string to_json(const Table &table) const {
        return detail::text([&](char *json, std::size_t capacity, std::size_t *length) {
            return lgreco_plan_to_json(get(), table.get(), json, capacity, length);
        });
    }

    // Returns the plan as arrays, which are valid until the plan is destroyed.
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

// The compressor of one layer on one worker. The setting is a text, such as "qsgd 4" or the `text` of a lgreco_setting.
class Compressor {
public:
    Compressor(const lgreco_layer &layer, const std::string &setting, const Options &options = {},
               const lgreco_context *context = nullptr) {
        lgreco_compressor *made = nullptr;
        check(lgreco_compressor_create(context, &layer, setting.c_str(), options.list().data(), &made));
        handle_.reset(made);
    }

    void set(const std::string &setting) { check(lgreco_compressor_set_setting(get(), setting.c_str())); }

    // Returns the largest number of bytes that `encode` writes.
    std::size_t bound() const {
        std::size_t bytes = 0;
        check(lgreco_compressor_bound(get(), &bytes));
        return bytes;
    }

    // Compresses into `payload` and resizes it to the payload's length. Does not allocate if `payload` has capacity for
    // `bound` bytes.
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
        return detail::written([this](std::uint8_t *saved, std::size_t capacity, std::size_t *length) {
            return lgreco_compressor_save(get(), saved, capacity, length);
        });
    }

    void load(const std::vector<std::uint8_t> &saved) {
        check(lgreco_compressor_load(get(), saved.data(), saved.size()));
    }

    lgreco_compressor *get() const noexcept { return handle_.get(); }

private:
    detail::Handle<lgreco_compressor, lgreco_compressor_destroy> handle_;
};

} // namespace lgreco

#endif // LGRECO_HPP
