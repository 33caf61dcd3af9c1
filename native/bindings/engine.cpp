// SPDX-License-Identifier: MIT
#include <nanobind/stl/array.h>
#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <chrono>
#include <climits>
#include <map>
#include <memory>
#include <optional>
#include <utility>

#include "base/error.h"
#include "base/memory.h"
#include "base/process.h"
#include "bindings/arrays.h"
#include "bindings/bindings.h"
#include "bindings/fields.h"
#include "bindings/gil.h"
#include "engine/engine.h"
#include "gguf/guard.h"
#include "target/embedder.h"

namespace nb = nanobind;

namespace eaglecpp {

namespace {

constexpr int n_rows_reported = 64;
constexpr int n_depths_reported = 12;

// Returns the planner's statistics as plain dicts, for `eaglecpp bench` and tests.
nb::dict planner_report(const Engine & engine, int sequence) {
    const Planner & planner = engine.planner();
    const CostTable & costs = planner.costs();
    nb::dict d;
    d["plain_ms"] = costs.knows_target_only() ? nb::cast(costs.target_only()) : nb::none();
    d["host_ms"] = costs.host();
    d["change_ms"] = costs.change_ms();
    d["plain_host_ms"] = costs.target_only_host();
    d["verify"] = costs.verify_points(n_rows_reported);
    d["commit"] = costs.commit_points(n_rows_reported);
    d["level"] = costs.step_points(planner.options().width);
    d["labels"] = planner.acceptance().n_labels();
    nb::list chances;
    for (int depth = 1; depth <= n_depths_reported; ++depth) {
        chances.append(engine.sequence(sequence).plan.text.chances.of(depth)[0]);
    }
    d["chances"] = chances;
    return d;
}

// Calls a Python function from a thread without the GIL, at most every `every_ms` milliseconds, and returns false if
// the function returned False. A Reporter does not own the function.
struct Reporter {
    nb::handle function;
    int every_ms = 0;
    std::chrono::steady_clock::time_point next{};

    bool operator()() {
        const auto now = std::chrono::steady_clock::now();
        if (now < next) return true;
        next = now + std::chrono::milliseconds(every_ms);
        const nb::gil_scoped_acquire gil;
        return !function().is(nb::handle(Py_False));
    }
};

// Owns the engine, so that close() can free it while Python still has the handle. A call that releases the GIL keeps
// the engine alive with its own shared pointer, because another thread may close the engine during the call.
class EngineHandle {
  public:
    EngineHandle(EngineOptions options, nb::object on_progress) : on_progress_(std::move(on_progress)) {
        if (!on_progress_.is_none()) options.on_progress = Reporter{on_progress_, 50};
        GilRelease release;
        guarded([&] { engine_ = std::make_shared<Engine>(options); });
    }
    ~EngineHandle() { free(); }

    Engine & get() const {
        if (!engine_) fail(ErrorKind::value, "the engine is closed");
        return *engine_;
    }
    std::shared_ptr<Engine> share() const {
        get();
        return engine_;
    }
    const Target & target() const { return get().target(); }

    void close() {
        if (!engine_) return;
        engine_->retire();
        free();
    }

  private:
    // A forked child does not free the engine, because a GPU driver would wait for the parent's threads.
    void free() {
        std::shared_ptr<Engine> last = std::move(engine_);
        if (!last) return;
        if (lost_by_fork()) {
            (void)new std::shared_ptr<Engine>(std::move(last));
            return;
        }
        GilRelease release;
        last.reset();
    }

    nb::object on_progress_;
    std::shared_ptr<Engine> engine_;
};

// Runs a function without the GIL, for functions that compute or wait.
template <typename F>
auto released(const EngineHandle & e, F && f) {
    const auto engine = e.share();
    GilRelease release;
    return guarded([&] { return f(*engine); });
}
template <auto method, typename... Args>
auto released(const EngineHandle & e, const Args &... args) {
    return released(e, [&](Engine & engine) { return (engine.*method)(args...); });
}

nb::bytes to_bytes(const std::string & s) {
    return nb::bytes(s.data(), s.size());
}

nb::dict metadata(const EngineHandle & e) {
    nb::dict d;
    for (const auto & [key, value] : e.target().model().metadata()) d[nb::cast(key)] = value;
    return d;
}

std::string chat_template(const EngineHandle & e, const std::string & name) {
    const char * t = llama_model_chat_template(e.target().model().get(), name.empty() ? nullptr : name.c_str());
    return t ? t : "";
}

// Returns the ids of the infill tokens of the vocabulary, under llama.cpp's names.
nb::dict fim_tokens(const EngineHandle & e) {
    const llama_vocab * vocab = e.target().vocab().get();
    nb::dict d;
    const std::pair<const char *, Token> all[] = {{"pre", llama_vocab_fim_pre(vocab)},
                                                  {"suf", llama_vocab_fim_suf(vocab)},
                                                  {"mid", llama_vocab_fim_mid(vocab)},
                                                  {"rep", llama_vocab_fim_rep(vocab)},
                                                  {"sep", llama_vocab_fim_sep(vocab)}};
    for (const auto & [name, token] : all) {
        if (token >= 0) d[name] = token;
    }
    return d;
}

nb::object draft_info(const EngineHandle & e) {
    const Drafter * d = e.get().drafter();
    if (!d) return nb::none();
    const DraftDescription known = d->describe();
    nb::dict info;
    if (const DraftFile * file = e.get().models().draft_file.get()) {
        info = draft_spec_dict(file->spec());
    } else {
        using T = DraftDescription;
        put_fields(info, known, FIELD(arch), FIELD(name), FIELD(n_layer), FIELD(n_ctx_train), FIELD(n_embd),
                   FIELD(n_vocab), "n_draft_vocab", &T::n_vocab);
        info["target_layers"] = nb::list();
        info["has_head"] = true;
    }
    info["kind"] = known.kind;
    info["device"] = d->device_name();
    return info;
}

nb::dict device_info(const EngineHandle & e) {
    nb::dict d;
    nb::list target;
    for (size_t i = 0; i < ggml_backend_dev_count(); ++i) target.append(ggml_backend_dev_name(ggml_backend_dev_get(i)));
    d["target"] = target;
    d["draft"] = e.get().drafter() ? nb::cast(e.get().drafter()->device_name()) : nb::none();
    d["draft_why"] = e.get().models().why_placed;
    d["taps"] = e.target().extraction_mode();
    d["repack"] = e.target().model().uses_repack();
    d["kernels"] = e.target().model().uses_kernels();
    d["n_threads"] = e.target().options().n_threads;
    return d;
}

// Returns the bytes of weights, caches and compute buffers of target and drafter on each device, for all conversations
// together. Host memory counts as the CPU's memory, even if it serves another device.
nb::list memory_plan(const EngineHandle & e) {
    constexpr const char * names[] = {"target_weights", "target_cache",  "target_compute", "draft_weights",
                                      "draft_cache",    "draft_compute", "free",           "total"};
    std::map<ggml_backend_dev_t, std::array<size_t, 8>> plan;
    const auto add = [&](const std::vector<MemoryUse> & all, int first) {
        for (const MemoryUse & m : all) {
            auto & bytes = plan[m.device];
            bytes[first] += m.weights, bytes[first + 1] += m.cache, bytes[first + 2] += m.compute;
        }
    };
    add(e.target().memory(), 0);
    if (const Drafter * d = e.get().drafter()) add(d->memory_use(), 3);
    {
        // Querying devices on RPC servers uses the network.
        GilRelease release;
        for (auto & [device, bytes] : plan) ggml_backend_dev_memory(device, &bytes[6], &bytes[7]);
    }
    nb::list out;
    for (auto & [device, bytes] : plan) {
        // llama.cpp reports the CPU's whole memory as free.
        if (device == ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU)) bytes[6] = available_memory();
        nb::dict d;
        d["device"] = ggml_backend_dev_name(device);
        for (size_t i = 0; i < bytes.size(); ++i) d[names[i]] = bytes[i];
        out.append(d);
    }
    return out;
}

void measure_exact(const EngineHandle & e, const nb::callable & go_on) {
    Progress progress(Reporter{go_on});
    released(e, [&](Engine & engine) { engine.measure_exact_rows(progress); });
    progress.rethrow();
}

nb::dict exact_state(const EngineHandle & e) {
    const ExactRows & rows = e.get().exact_rows();
    using T = ExactRows;
    nb::dict d;
    put_fields(d, rows, FIELD(alone), "decodes", &T::n_decodes, FIELD(ms));
    d["points"] = rows.counts.points();
    d["rows"] = rows.counts.to_string();
    d["is_complete"] = rows.counts.is_complete;
    return d;
}

nb::object known(double value) {
    return value > 0.0 ? nb::cast(value) : nb::none();
}

nb::dict plan_dict(const PlanSummary & p) {
    using T = PlanSummary;
    nb::dict d;
    put_fields(d, p, "why", &T::explain, "reason", &T::reason, "rounds", &T::n_rounds, "drafted_rounds", &T::n_drafted,
               "probes", &T::n_probes, "nodes", &T::n_nodes, FIELD(depth), "expected_tokens", &T::n_tokens_expected);
    d["expected_cost"] = known(p.cost_expected());
    d["speedup"] = known(p.speedup());
    return d;
}

nb::dict timings(const EngineHandle & e, int id) {
    const Sequence & s = e.get().sequence(id);
    using T = Stats;
    nb::dict d;
    put_fields(d, s.stats, "prompt_n", &T::n_prompt, FIELD(prompt_ms), "reused_n", &T::n_reused, "predicted_n",
               &T::n_predicted, FIELD(predicted_ms), "draft_n", &T::n_draft, "draft_n_accepted", &T::n_accepted,
               "text_draft_n", &T::n_text, "text_draft_n_accepted", &T::n_text_accepted, "rounds", &T::n_rounds,
               FIELD(draft_ms), FIELD(verify_ms), FIELD(tried_per_depth), FIELD(accepted_per_depth));
    d["host_ms"] = s.stats.predicted_ms - s.stats.draft_ms - s.stats.verify_ms;
    d["exact"] = s.is_exact();
    d["cut"] = s.plan.exact.cut;
    d["plan"] = plan_dict(s.plan_summary);
    d["plan_log"] = s.plan_log;
    return d;
}

nb::object image_ids(const std::shared_ptr<const Image> & image) {
    return image ? nb::cast(std::make_pair(image->first, image->n_rows)) : nb::none();
}

nb::object add_image(const EngineHandle & e, const std::string & key, const ArrayIn<2> & rows, bool is_whole,
                     int n_columns) {
    const int n_values = e.target().model().n_embd_inp();
    fail_if(
        rows.shape(0) == 0 || rows.shape(0) > (size_t)e.target().n_ctx() || rows.shape(1) != (size_t)n_values ||
            n_columns < 0 || n_columns > (int)rows.shape(0),
        ErrorKind::value,
        "image: expected 1 to %d rows of %d values and 0 to %zu columns, found %zu rows of %zu values and %d columns",
        e.target().n_ctx(), n_values, rows.shape(0), rows.shape(0), rows.shape(1), n_columns);
    std::vector<float> values(rows.data(), rows.data() + rows.size());
    return guarded([&] {
        return image_ids(e.get().images().add(key, (int)rows.shape(0), is_whole, n_columns, std::move(values)));
    });
}

// A sampler that is made before its generation starts. It keeps the engine alive, because it reads the engine's
// vocabulary.
struct MadeSampler {
    std::shared_ptr<Engine> engine;
    std::unique_ptr<Sampler> sampler;
};

MadeSampler make_sampler(const EngineHandle & e, const GenerateParams & params) {
    return {e.share(), released<&Engine::make_sampler>(e, params)};
}

int begin(const EngineHandle & e, int id, const Tokens & prompt, const GenerateParams & params, MadeSampler * holder) {
    std::unique_ptr<Sampler> sampler;
    if (holder) {
        fail_if(holder->engine != e.share() || !holder->sampler, ErrorKind::value,
                "this sampler was already used or belongs to another engine; make a new sampler for each generation");
        sampler = std::move(holder->sampler);
        holder->engine.reset();
    }
    return released(e, [&](Engine & engine) { return engine.begin(id, prompt, params, std::move(sampler)); });
}

std::optional<Tokens> tokenize(const EngineHandle & e, const nb::bytes & bytes, bool add_special, bool parse_special,
                               int n_max) {
    const std::string text(bytes.c_str(), bytes.size());
    return released(e, [&](const Engine & engine) {
        return engine.target().vocab().tokenize(text, add_special, parse_special, n_max);
    });
}

nb::bytes detokenize(const EngineHandle & e, const Tokens & tokens, bool remove_special, bool special) {
    return to_bytes(released(e, [&](const Engine & engine) {
        engine.target().vocab().check(tokens);
        return engine.target().vocab().detokenize(tokens, remove_special, special);
    }));
}

// An embedder for Python. It keeps the target's weights alive, but not the engine.
class EmbedderHandle {
  public:
    std::atomic<bool> in_use{false};

    EmbedderHandle(const EngineHandle & e, const std::string & pooling)
        : embedder_(std::in_place, e.target(), pooling) {}
    ~EmbedderHandle() {
        GilRelease release;
        embedder_.reset();
    }
    const Embedder & get() const { return *embedder_; }

    void begin(std::vector<Tokens> texts) {
        GilRelease release;
        embedder_->begin(std::move(texts));
    }
    bool step(int n_threads) {
        GilRelease release;
        return embedder_->step(n_threads);
    }
    ArrayOut take() {
        std::vector<float> rows = embedder_->take();
        const size_t n_values = (size_t)embedder_->n_values();
        const size_t n_rows = rows.size() / n_values;
        return to_array(std::move(rows), {n_rows, n_values});
    }

  private:
    std::optional<Embedder> embedder_;
};

void bind_embedder(nb::module_ & m) {
    using E = EmbedderHandle;
    nb::class_<E>(m, "Embedder")
        .def(nb::init<const EngineHandle &, const std::string &>(), nb::arg("engine"), nb::arg("pooling"))
        .def_prop_ro("pooling", [](const E & e) { return e.get().pooling(); })
        .def_prop_ro("n_values", [](const E & e) { return e.get().n_values(); })
        .def_prop_ro("n_max", [](const E & e) { return e.get().n_max(); })
        .def("begin", &OneAtATime<&E::begin>::call, nb::arg("texts"))
        .def("step", &OneAtATime<&E::step>::call, nb::arg("n_threads"))
        .def("take", &OneAtATime<&E::take>::call);
}

// Returns the bytes of a saved conversation without copying.
nb::object blob(nb::handle self) {
    std::vector<uint8_t> & bytes = nb::cast<SavedSequence &>(self).bytes;
    const nb::object array = nb::cast(ArrayOf<uint8_t>(bytes.data(), {bytes.size()}, self), nb::rv_policy::reference);
    return nb::steal(PyMemoryView_FromObject(array.ptr()));
}

void bind_results(nb::module_ & m) {
    nb::class_<MadeSampler>(m, "MadeSampler");
    using S = SavedSequence;
    nb::class_<S>(m, "SavedSequence")
        .def(nb::init<size_t>(), nb::arg("n_bytes"))
        .def("seal", &S::seal, nb::call_guard<GilRelease>())
        .def("check", &S::check, nb::arg("known") = Tokens(), nb::call_guard<GilRelease>())
        .def_prop_ro("tokens", &S::tokens)
        .def_prop_ro("ends", &S::ends)
        .def_prop_ro("n_past", [](const S & s) { return s.header().n_past; })
        .def_prop_ro("blob", &blob)
        .def_prop_ro("n_bytes", [](const S & s) { return s.bytes.size(); });
    nb::class_<TokenLogprobs>(m, "TokenLogprobs")
        .def_ro("logprob", &TokenLogprobs::logprob)
        .def_prop_ro("top", [](const TokenLogprobs & t) {
            std::vector<std::pair<Token, float>> out;
            for (const Candidate & c : t.top) out.push_back({c.token, c.logp});
            return out;
        });
    using T = StepResult;
    nb::class_<T> step_result(m, "StepResult");
    def_fields(step_result, FIELD(sequence), FIELD(phase), FIELD(n_prompt_done), FIELD(n_prompt), FIELD(tokens),
               FIELD(accepted), FIELD(logprobs), FIELD(finish));
    step_result.def_prop_ro("error",
                            [](const StepResult & r) { return r.error ? exception_of(*r.error) : nb::none(); });
}

}  // namespace

void bind_engine(nb::module_ & m) {
    bind_results(m);
    bind_embedder(m);
    using E = EngineHandle;
    nb::class_<E>(m, "Engine")
        .def(nb::init<EngineOptions, nb::object>(), nb::arg("options"), nb::arg("on_progress") = nb::none())
        .def_prop_ro("n_ctx", [](const E & e) { return e.target().n_ctx(); })
        .def_prop_ro("n_ctx_train", [](const E & e) { return llama_model_n_ctx_train(e.target().model().get()); })
        .def_prop_ro("n_vocab", [](const E & e) { return e.target().vocab().size(); })
        .def_prop_ro("n_embd", [](const E & e) { return e.target().model().n_embd(); })
        .def_prop_ro("n_layer", [](const E & e) { return e.target().model().n_layer(); })
        .def_prop_ro("n_params", [](const E & e) { return llama_model_n_params(e.target().model().get()); })
        .def_prop_ro("bos", [](const E & e) { return llama_vocab_bos(e.target().vocab().get()); })
        .def_prop_ro("eos", [](const E & e) { return llama_vocab_eos(e.target().vocab().get()); })
        .def_prop_ro("nl", [](const E & e) { return llama_vocab_nl(e.target().vocab().get()); })
        .def_prop_ro("sep", [](const E & e) { return llama_vocab_sep(e.target().vocab().get()); })
        .def_prop_ro("add_eos", [](const E & e) { return llama_vocab_get_add_eos(e.target().vocab().get()); })
        .def_prop_ro("only_embeds", [](const E & e) { return e.target().only_embeds(); })
        .def("check_generates", [](const E & e) { e.target().check_generates(); })
        .def_prop_ro("add_bos", [](const E & e) { return llama_vocab_get_add_bos(e.target().vocab().get()); })
        .def_prop_ro("n_threads_now", [](const E & e) { return e.get().n_threads(); })
        .def_prop_ro("n_shared_rows", [](const E & e) { return e.target().n_shared_rows(); })
        .def_prop_ro("n_draft_max", [](const E & e) { return e.target().options().n_draft_max; })
        .def_prop_ro("chains_only", [](const E & e) { return e.target().model().chains_only(); })
        .def_prop_ro("never_exact", [](const E & e) { return e.target().model().never_exact(); })
        .def_prop_ro("keeps_order", [](const E & e) { return e.target().keeps_order(); })
        .def("measure_exact_rows", &measure_exact, nb::arg("go_on"))
        .def_prop_ro("drafts_forms_alone", [](const E & e) { return e.get().models().drafts_forms_alone(); })
        .def(
            "set_exact_rows",
            [](const E & e, const std::vector<std::pair<int, bool>> & points, std::vector<uint64_t> alone,
               bool is_complete) {
                ExactRows rows{RowCounts(is_complete), std::move(alone)};
                for (const auto & [n, is_exact] : points) rows.counts.set(n, is_exact);
                e.get().set_exact_rows(rows);
            },
            nb::arg("points"), nb::arg("alone") = std::vector<uint64_t>(), nb::arg("is_complete") = true)
        .def_prop_ro("exact_state", &exact_state)
        .def("metadata", &metadata)
        .def("fim_tokens", &fim_tokens)
        .def("chat_template", &chat_template, nb::arg("name") = "")
        .def("draft_info", &draft_info)
        .def("device_info", &device_info)
        .def("memory_plan", &memory_plan)
        .def("tokenize", &tokenize, nb::arg("text"), nb::arg("add_special"), nb::arg("parse_special"),
             nb::arg("n_max") = INT_MAX)
        .def("detokenize", &detokenize, nb::arg("tokens"), nb::arg("remove_special"), nb::arg("special"))
        .def(
            "token_to_piece",
            [](const E & e, Token token, bool special) {
                return to_bytes(guarded([&] { return e.target().vocab().piece(token, special); }));
            },
            nb::arg("token"), nb::arg("special"))
        .def(
            "is_eog",
            [](const E & e, Token token) {
                return token >= 0 && token < e.target().vocab().size() && e.target().vocab().is_eog(token);
            },
            nb::arg("token"))
        .def(
            "find_image", [](const E & e, const std::string & key) { return image_ids(e.get().images().find(key)); },
            nb::arg("key"))
        .def(
            "image_id", [](const E & e, const std::string & key, int n) { return e.get().images().first_id(key, n); },
            nb::arg("key"), nb::arg("n_rows"))
        .def(
            "image_name",
            [](const E & e, Token token) {
                const std::optional<Images::Name> name = e.get().images().name(token);
                return name ? nb::cast(std::make_pair(name->key, name->n_rows)) : nb::none();
            },
            nb::arg("token"))
        .def(
            "has_image", [](const E & e, Token token) { return (bool)e.get().images().find(token); }, nb::arg("token"))
        .def("add_image", &add_image, nb::arg("key"), nb::arg("rows"), nb::arg("is_whole"), nb::arg("n_columns") = 0)
        .def("open_sequence", &released<&Engine::open_sequence>)
        .def("close_sequence", &released<&Engine::close_sequence, int>, nb::arg("sequence"))
        .def("make_sampler", &make_sampler, nb::arg("params"))
        .def("begin", &begin, nb::arg("sequence"), nb::arg("prompt"), nb::arg("params"),
             nb::arg("sampler").none() = nb::none())
        .def("step", &released<&Engine::step, std::vector<int>, double>, nb::arg("sequences"), nb::arg("for_ms") = 0.0)
        .def("end", &released<&Engine::end, int, int>, nb::arg("sequence"), nb::arg("n_taken") = -1)
        .def(
            "tokens", [](const E & e, int id) { return e.get().sequence(id).tokens; }, nb::arg("sequence"))
        .def_prop_ro("can_save", [](const E & e) { return e.get().can_save(); })
        .def("save", &released<&Engine::save, int>, nb::arg("sequence"))
        .def("restore", &released<&Engine::restore, int, SavedSequence>, nb::arg("sequence"), nb::arg("saved"))
        .def("timings", &timings, nb::arg("sequence"))
        .def("clear", &released<&Engine::clear, int>, nb::arg("sequence"))
        .def("planner_state",
             [](const E & e) {
                 const Planner & p = e.get().planner();
                 return std::pair(p.costs().state(), p.acceptance().state());
             })
        .def(
            "load_planner",
            [](const E & e, const LearnedState & costs, const LearnedState & acceptance) {
                Planner & p = e.get().planner();
                return p.costs().set_state(costs) && p.acceptance().set_state(acceptance);
            },
            nb::arg("costs"), nb::arg("acceptance"))
        .def(
            "planner_report", [](const E & e, int id) { return planner_report(e.get(), id); }, nb::arg("sequence"))
        .def("close", &E::close);
}

}  // namespace eaglecpp
