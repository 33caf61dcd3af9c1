// SPDX-License-Identifier: MIT
// The target alone, for study, tests and training data.
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

class StudyTarget {
  public:
    StudyTarget(const EngineOptions & options, const std::vector<int32_t> & layers)
        : opened_(opened(options, layers)), target_(*opened_), n_layers_(layers.size()) {}
    ~StudyTarget() {
        GilRelease release;
        opened_.reset();
    }

    Target & target() { return target_; }

    std::pair<ArrayOut, nb::object> forward(const Tokens & tokens, bool want_logits) {
        const size_t n = tokens.size(), n_vocab = (size_t)target_.vocab().size();
        std::vector<float> features, logits;
        {
            GilRelease release;
            // filling these with zeros takes a while, and other threads have targets of their own
            features.resize(n_layers_ * n * target_.model().n_embd());
            if (want_logits) logits.resize(n * n_vocab);
            clear();
            run(tokens, want_logits, features, logits);
        }
        nb::object out = nb::none();
        if (want_logits) out = nb::cast(to_array(std::move(logits), {n, n_vocab}));
        return {to_array(std::move(features), {n_layers_, n, (size_t)target_.model().n_embd()}), out};
    }

    std::pair<ArrayOut, ArrayOut> forward_tree(const Tokens & prefix, const Tokens & tokens,
                                               const std::vector<int32_t> & parents) {
        if (tokens.empty() || tokens.size() != parents.size() || parents[0] != -1) {
            fail(ErrorKind::value, "tokens and parents must have one entry per node, parents[0] must be -1");
        }
        DraftTree tree(tokens[0]);
        for (size_t i = 1; i < tokens.size(); ++i) tree.add(tokens[i], parents[i], 0.0f);
        std::vector<float> unused, features(n_layers_ * tokens.size() * target_.model().n_embd());
        std::vector<float> logits(tokens.size() * target_.vocab().size());
        {
            GilRelease release;
            clear();
            std::vector<float> prefix_features(n_layers_ * prefix.size() * target_.model().n_embd());
            if (!prefix.empty()) run(prefix, false, prefix_features, unused);
            batch_.clear();
            batch_.add_tree(tree, (Pos)prefix.size(), target_.cells().seqs(0));
            target_.decode(batch_);
            copy(0, (int)tokens.size(), (int)tokens.size(), true, features, logits);
        }
        return {to_array(std::move(features), {n_layers_, tokens.size(), (size_t)target_.model().n_embd()}),
                to_array(std::move(logits), {tokens.size(), (size_t)target_.vocab().size()})};
    }

    // Milliseconds of each decode of `tokens`, all with logits, behind the prefix. A prefix that stands in the cache is
    // not run again: whoever compares two programs asks in turns.
    std::vector<double> time_rows(const Tokens & prefix, const Tokens & tokens, int repeats) {
        const size_t n_max = (size_t)target_.options().n_draft_max + 1;
        if (tokens.empty() || tokens.size() > n_max) {
            fail(ErrorKind::value, "%zu rows; expected 1 to %zu, n_draft_max + 1", tokens.size(), n_max);
        }
        target_.vocab().check(tokens);
        GilRelease release;
        const Pos n_prefix = (Pos)prefix.size();
        if (prefix != in_cache_ || prefix.empty()) {
            clear();
            std::vector<float> unused, features(n_layers_ * prefix.size() * target_.model().n_embd());
            if (n_prefix > 0) run(prefix, false, features, unused);
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
                fail(ErrorKind::unsupported, "this target cannot take rows back: time them without a prefix");
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

    void run(const Tokens & tokens, bool want_logits, std::vector<float> & features, std::vector<float> & logits) {
        const int n = (int)tokens.size();
        if (n > target_.n_ctx()) {
            fail(ErrorKind::context_full, "%d tokens do not fit a context of %d", n, target_.n_ctx());
        }
        target_.vocab().check(tokens);
        // the context reserves logits for a round, not for a whole prompt
        const int n_round = target_.options().n_draft_max + 1;
        const int n_step = want_logits && !target_.needs_all_outputs() ? n_round : target_.n_batch();
        for (int at = 0; at < n; at += n_step) {
            const int n_rows = std::min(n_step, n - at);
            batch_.clear();
            for (int i = 0; i < n_rows; ++i) {
                batch_.add(tokens[at + i], at + i, target_.cells().seqs(0), want_logits || target_.needs_all_outputs());
            }
            target_.decode(batch_, /*is_prompt=*/true);
            copy(at, n_rows, n, want_logits, features, logits);
        }
    }

    // rows of the last decode into their place among n
    void copy(int at, int n_rows, int n, bool want_logits, std::vector<float> & features, std::vector<float> & logits) {
        const size_t n_embd = (size_t)target_.model().n_embd(), n_vocab = (size_t)target_.vocab().size();
        const FeatureRows rows = target_.features();
        for (size_t a = 0; a < n_layers_; ++a) {
            std::copy_n(rows.layer[a], n_rows * n_embd, &features[(a * n + at) * n_embd]);
        }
        for (int i = 0; want_logits && i < n_rows; ++i) {
            std::copy_n(target_.logits(i), n_vocab, &logits[(size_t)(at + i) * n_vocab]);
        }
    }

    std::unique_ptr<Target> opened_;
    Target & target_;
    size_t n_layers_;
    TargetBatch batch_;
    Tokens in_cache_;  // what time_rows left there
};

// The sampler alone, on logits of the caller's making.
class StudySampler {
  public:
    StudySampler(const SamplingParams & params, StudyTarget & target)
        : sampler_(params, target.target().vocab(), target.target().n_ctx()) {}
    StudySampler(const SamplingParams & params, int n_vocab) : sampler_(params, n_vocab) {}

    void accept_prompt(const Tokens & tokens) { sampler_.accept_prompt(tokens); }
    void accept(Token token) { sampler_.accept(token); }

    std::vector<bool> allowed() { return sampler_.grammar_mask(); }

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
        fail(ErrorKind::value, "logits: expected %d, one per token, found %zu", sampler_.n_vocab(), logits.size());
    }

    Sampler sampler_;
};

}  // namespace

void bind_target(nb::module_ & m) {
    nb::class_<StudyTarget>(m, "Target")
        .def(nb::init<const EngineOptions &, const std::vector<int32_t> &>(), nb::arg("options"), nb::arg("layers"))
        .def_prop_ro("n_embd", [](StudyTarget & t) { return t.target().model().n_embd(); })
        .def_prop_ro("n_layer", [](StudyTarget & t) { return t.target().model().n_layer(); })
        .def_prop_ro("n_vocab", [](StudyTarget & t) { return t.target().vocab().size(); })
        .def_prop_ro("n_ubatch", [](StudyTarget & t) { return t.target().options().n_ubatch; })
        .def_prop_ro("taps", [](StudyTarget & t) { return t.target().taps_mode(); })
        .def(
            "tokenize",
            [](StudyTarget & t, const nb::bytes & bytes, bool add_special, bool parse_special) {
                const std::string text(bytes.c_str(), bytes.size());
                GilRelease release;
                return t.target().vocab().tokenize(text, add_special, parse_special);
            },
            nb::arg("text"), nb::arg("add_special"), nb::arg("parse_special"))
        .def("forward", &StudyTarget::forward, nb::arg("tokens"), nb::arg("want_logits") = true)
        .def("forward_tree", &StudyTarget::forward_tree, nb::arg("prefix"), nb::arg("tokens"), nb::arg("parents"))
        .def("time_rows", &StudyTarget::time_rows, nb::arg("prefix"), nb::arg("tokens"), nb::arg("repeats") = 1);
    nb::class_<StudySampler>(m, "Sampler")
        .def(nb::init<const SamplingParams &, StudyTarget &>(), nb::arg("params"), nb::arg("target"))
        .def(nb::init<const SamplingParams &, int>(), nb::arg("params"), nb::arg("n_vocab"))
        .def("accept_prompt", &StudySampler::accept_prompt, nb::arg("tokens"))
        .def("accept", &StudySampler::accept, nb::arg("token"))
        .def("allowed", &StudySampler::allowed)
        .def("sample", &StudySampler::sample, nb::arg("logits"), nb::arg("pos"))
        .def("count", &StudySampler::count, nb::arg("logits"), nb::arg("first"), nb::arg("n"));
}

}  // namespace eaglecpp
