// SPDX-License-Identifier: MIT
// Binds a target without an engine, for research, tests and training data.
#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <memory>

#include "base/error.h"
#include "base/types.h"
#include "bindings/arrays.h"
#include "bindings/bindings.h"
#include "bindings/gil.h"
#include "engine/options.h"
#include "target/target.h"

namespace nb = nanobind;

namespace eaglecpp {

namespace {

class LowlevelTarget {
  public:
    std::atomic<bool> in_use{false};

    LowlevelTarget(const EngineOptions & options, const std::vector<int32_t> & layers)
        : opened_(opened(options, layers)), target_(*opened_), n_layers_(layers.size()) {}
    ~LowlevelTarget() {
        GilRelease release;
        opened_.reset();
    }

    Target & target() { return target_; }

    // Returns the hidden states [n_layers][n][n_embd], and the logits [n][n_vocab] or None.
    std::pair<ArrayOut, nb::object> forward(const Tokens & tokens, bool want_logits) {
        const size_t n = tokens.size();
        std::vector<float> hidden_states, logits;
        {
            GilRelease release;  // filling the arrays with zeros also takes time
            hidden_states.resize(n_layers_ * n * n_embd());
            logits.resize(want_logits ? n * n_vocab() : 0);
            clear();
            run(tokens, want_logits, [&](size_t at, size_t n_rows) {
                const HiddenStates rows = target_.hidden_states();
                for (size_t a = 0; a < n_layers_; ++a) {
                    std::copy_n(rows.layer[a], n_rows * n_embd(), &hidden_states[(a * n + at) * n_embd()]);
                }
                for (size_t i = 0; want_logits && i < n_rows; ++i) {
                    std::copy_n(target_.logits((int)i), n_vocab(), &logits[(at + i) * n_vocab()]);
                }
            });
        }
        const nb::object out = want_logits ? nb::cast(to_array(std::move(logits), {n, n_vocab()})) : nb::none();
        return {to_array(std::move(hidden_states), {n_layers_, n, n_embd()}), out};
    }

    // Decodes `tokens` after the prefix as one batch in which every row has logits, `repeats` times. Returns the
    // milliseconds of each decode. If the prefix is still in the cache, it is not decoded again. To compare two
    // programs, alternate between them.
    std::vector<double> time_rows(const Tokens & prefix, const Tokens & tokens, int repeats) {
        const size_t n_max = (size_t)target_.options().n_draft_max + 1;
        fail_if(tokens.empty() || tokens.size() > n_max, ErrorKind::value,
                "time_rows: expected 1 to %zu tokens (n_draft_max + 1), found %zu", n_max, tokens.size());
        target_.vocab().check(tokens);
        GilRelease release;
        const Pos n_prefix = (Pos)prefix.size();
        if (prefix != in_cache_ || prefix.empty()) {
            clear();
            run(prefix, false, [](size_t, size_t) {});
            in_cache_ = prefix;
        }
        batch_.clear();
        for (size_t i = 0; i < tokens.size(); ++i)
            batch_.add(tokens[i], n_prefix + (Pos)i, target_.cells().seqs(0), true);
        std::vector<double> ms;
        for (int i = 0; i < repeats; ++i) {
            const double start = now_ms();
            target_.decode(batch_);
            ms.push_back(now_ms() - start);
            if (!target_.cells().truncate(target_.cells().seqs(0), n_prefix) && n_prefix > 0) {
                in_cache_.clear();
                fail(ErrorKind::unsupported, "this target cannot roll back rows; call time_rows with an empty prefix");
            }
        }
        return ms;
    }

  private:
    static std::unique_ptr<Target> opened(const EngineOptions & options, const std::vector<int32_t> & layers) {
        GilRelease release;
        auto target = std::make_unique<Target>(options);
        target->open_context(layers);
        target->check_generates();
        return target;
    }

    void clear() {
        target_.cells().clear();
        in_cache_.clear();
    }

    // Runs the tokens in batches. After each batch, calls `read` with the batch's first row and number of rows.
    template <typename Read>
    void run(const Tokens & tokens, bool wants_logits, Read && read) {
        const int n = (int)tokens.size();
        fail_if(n > target_.n_ctx(), ErrorKind::context_full, "%d tokens exceed the context of %d", n, target_.n_ctx());
        target_.vocab().check(tokens);
        const bool has_output = wants_logits || target_.needs_all_outputs();
        // The context reserves logits for the rows of a round, not for a whole prompt.
        const int n_round = target_.options().n_draft_max + 1;
        const int n_step = wants_logits && !target_.needs_all_outputs() ? n_round : target_.n_batch();
        for (int at = 0; at < n; at += n_step) {
            batch_.clear();
            for (int i = at; i < std::min(n, at + n_step); ++i) {
                batch_.add(tokens[i], i, target_.cells().seqs(0), has_output);
            }
            target_.decode(batch_, /*is_prompt=*/true);
            read(at, batch_.n_rows());
        }
    }

    size_t n_embd() const { return (size_t)target_.model().n_embd(); }
    size_t n_vocab() const { return (size_t)target_.vocab().size(); }

    std::unique_ptr<Target> opened_;
    Target & target_;
    size_t n_layers_;
    TargetBatch batch_;
    Tokens in_cache_;  // tokens that time_rows() left in the cache
};

// A sampler without an engine, for logits from the caller.
class LowlevelSampler {
  public:
    std::atomic<bool> in_use{false};

    LowlevelSampler(const SamplingParams & params, LowlevelTarget & target)
        : sampler_(params, target.target().vocab().size(), &target.target().vocab(), target.target().n_ctx()) {}
    LowlevelSampler(const SamplingParams & params, int n_vocab) : sampler_(params, n_vocab) {}

    void accept_prompt(const Tokens & tokens) { sampler_.accept_prompt(tokens); }
    void accept(Token token) { sampler_.accept(token); }

    std::vector<bool> allowed() {
        return sampler_.grammar() ? sampler_.grammar()->allowed() : std::vector<bool>(sampler_.n_vocab(), true);
    }

    Token sample(const ArrayIn<1> & logits, Pos pos) { return sampler_.sample(checked(logits), pos); }

    std::vector<int> count(const ArrayIn<1> & logits, Pos first, int n) {
        const float * data = checked(logits);
        std::vector<int> counts(sampler_.n_vocab(), 0);
        GilRelease release;
        for (int i = 0; i < n; ++i) ++counts[sampler_.sample(data, first + i)];
        return counts;
    }

  private:
    const float * checked(const ArrayIn<1> & logits) const {
        if (logits.size() == (size_t)sampler_.n_vocab()) return logits.data();
        fail(ErrorKind::value, "logits: expected %d (one per token), found %zu", sampler_.n_vocab(), logits.size());
    }

    Sampler sampler_;
};

}  // namespace

void bind_target(nb::module_ & m) {
    nb::class_<LowlevelTarget>(m, "Target")
        .def(nb::init<const EngineOptions &, const std::vector<int32_t> &>(), nb::arg("options"), nb::arg("layers"))
        .def_prop_ro("n_embd", [](LowlevelTarget & t) { return t.target().model().n_embd(); })
        .def_prop_ro("n_layer", [](LowlevelTarget & t) { return t.target().model().n_layer(); })
        .def_prop_ro("n_vocab", [](LowlevelTarget & t) { return t.target().vocab().size(); })
        .def_prop_ro("n_ubatch", [](LowlevelTarget & t) { return t.target().options().n_ubatch; })
        .def_prop_ro("taps", [](LowlevelTarget & t) { return t.target().extraction_mode(); })
        .def("forward", &OneAtATime<&LowlevelTarget::forward>::call, nb::arg("tokens"), nb::arg("want_logits") = true)
        .def("time_rows", &OneAtATime<&LowlevelTarget::time_rows>::call, nb::arg("prefix"), nb::arg("tokens"),
             nb::arg("repeats") = 1);
    nb::class_<LowlevelSampler>(m, "Sampler")
        .def(nb::init<const SamplingParams &, LowlevelTarget &>(), nb::arg("params"), nb::arg("target"))
        .def(nb::init<const SamplingParams &, int>(), nb::arg("params"), nb::arg("n_vocab"))
        .def("accept_prompt", &OneAtATime<&LowlevelSampler::accept_prompt>::call, nb::arg("tokens"))
        .def("accept", &OneAtATime<&LowlevelSampler::accept>::call, nb::arg("token"))
        .def("allowed", &OneAtATime<&LowlevelSampler::allowed>::call)
        .def("sample", &OneAtATime<&LowlevelSampler::sample>::call, nb::arg("logits"), nb::arg("pos"))
        .def("count", &OneAtATime<&LowlevelSampler::count>::call, nb::arg("logits"), nb::arg("first"), nb::arg("n"));
}

}  // namespace eaglecpp
