// SPDX-License-Identifier: MIT
// Binds a drafter without an engine, for teacher-forced forward passes on numpy arrays.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "bindings/arrays.h"
#include "bindings/bindings.h"
#include "bindings/gil.h"
#include "draft/hidden_state_sequence.h"
#include "engine/options.h"
#include "target/llama_bridge.h"
#include "target/target.h"

namespace nb = nanobind;

namespace eaglecpp {

namespace {

class LowlevelDrafter {
  public:
    std::atomic<bool> in_use{false};

    LowlevelDrafter(const std::string & path, const std::optional<EngineOptions> & overrides,
                    const std::optional<ArrayIn<2>> & embedding, const std::optional<ArrayIn<2>> & head) {
        llama_start();
        const EngineOptions options = overrides.value_or(EngineOptions{});
        const DraftFile file(path);
        DrafterOptions d;
        d.device = find_device(options.draft_device, options.n_gpu_layers);
        d.n_threads = options.n_threads > 0 ? options.n_threads : n_physical_cores();
        d.n_ctx = options.n_ctx > 0 ? options.n_ctx : 4096;
        d.n_draft_rows_max = (int)std::clamp<int64_t>(2 * (int64_t)options.n_draft_max, 128, INT32_MAX);
        d.type_kv = type_by_name(options.draft_type_kv);
        d.use_kernels = options.kernels != "off";
        d.flash_attn = options.flash_attn != "off";
        drafter_ = std::make_unique<HiddenStateDrafter>(file, d);
        if (embedding) {
            std::vector<uint8_t> bytes(embedding->nbytes());
            std::memcpy(bytes.data(), embedding->data(), bytes.size());
            drafter_->set_embedding(
                EmbeddingTable(std::move(bytes), GGML_TYPE_F32, (int)embedding->shape(1), (int)embedding->shape(0)));
        }
        if (head) share_head(*head);
        drafter_->finish();
        drafter_->reserve();
        sequence_ = std::make_unique<HiddenStateSequence>(*drafter_);
        sequence_->window = options.draft_window;
    }

    nb::dict info() const {
        nb::dict d = draft_spec_dict(drafter_->spec());
        d["device"] = drafter_->device_name();
        d["flash_attn"] = drafter_->flash_attn();
        return d;
    }

    void truncate(int n_rows) { sequence_->truncate(n_rows); }
    int n_rows() { return sequence_->n_rows(); }

    // Returns the distributions of the next n_ahead + 1 tokens. The drafter must be parallel.
    ArrayOut commit_ahead(const ArrayIn<3> & hidden_states, const Tokens & tokens, int n_ahead) {
        fail_if(n_ahead > 0 && drafter_->spec().block.is_conditional(), ErrorKind::value,
                "the drafts of this drafter depend on the previous tokens; call block() and pass these tokens");
        commit_with_output(hidden_states, tokens, n_ahead);
        return to_array(logits(1 + n_ahead), {1 + (size_t)n_ahead, (size_t)drafter_->spec().n_draft_vocab});
    }

    // Returns the k likeliest tokens of each position after these rows. Each token comes with its log-probability and
    // the confidence of its position. The drafter must be a block drafter. The result may depend on `behind`, the
    // tokens after the anchor.
    std::vector<std::vector<std::tuple<Token, float, float>>> block(const ArrayIn<3> & hidden_states,
                                                                    const Tokens & tokens, const Tokens & behind,
                                                                    int k) {
        const int n_ahead = (int)behind.size();
        commit_with_output(hidden_states, tokens, n_ahead);
        std::vector<std::vector<std::tuple<Token, float, float>>> out;
        for (int i = 0; i <= n_ahead; ++i) {
            const bool is_parallel = drafter_->traits().is_parallel;
            if (i > 0 && !is_parallel) extend_by({{i, behind[i - 1], i - 1}});
            auto & slot = out.emplace_back();
            for (const Candidate & c : sequence_->candidates(is_parallel ? i : 0, k))
                slot.emplace_back(c.token, c.logp, c.confidence);
        }
        return out;
    }

    std::pair<ArrayOut, ArrayOut> commit(const ArrayIn<3> & hidden_states, const Tokens & tokens) {
        const DraftSpec & s = drafter_->spec();
        check_states();
        commit_with_output(hidden_states, tokens, 0);
        return {to_array(logits(1), {(size_t)s.n_draft_vocab}), to_array(states(1, 0), {(size_t)s.n_embd})};
    }

    void append(const ArrayIn<3> & hidden_states, const Tokens & tokens) {
        const HiddenStates rows = rows_of(hidden_states, tokens);
        GilRelease release;
        sequence_->commit(rows, tokens.data());
    }

    // Runs draft rows. states[i] replaces the state of row i's parent. Rows with the same parent must have equal
    // states.
    std::pair<ArrayOut, ArrayOut> extend(const ArrayIn<2> & states, const Tokens & tokens,
                                         const std::vector<int32_t> & parents) {
        const DraftSpec & s = drafter_->spec();
        const size_t n = tokens.size();
        require(states.shape(0), (int)n, "states (one per token)");
        require(states.shape(1), s.n_embd, "state width");
        require(parents.size(), (int)n, "parents (one per token)");
        check_states();
        // Row i is node i + 1. The state of this node also has index i + 1.
        const int first = sequence_->n_draft_rows();
        std::vector<DraftRow> rows;
        for (size_t i = 0; i < n; ++i) {
            fail_if(parents[i] < -1 || parents[i] >= first, ErrorKind::value, "row %d is no earlier row", parents[i]);
            rows.push_back({first + (int)i + 1, tokens[i], parents[i] + 1});
            ggml_tensor * all = sequence_->kv().state();
            ggml_backend_tensor_set(all, states.data() + i * s.n_embd, (parents[i] + 1) * all->nb[1], all->nb[1]);
        }
        {
            GilRelease release;
            extend_by(rows);
        }
        return {to_array(logits((int)n), {n, (size_t)s.n_draft_vocab}),
                to_array(this->states((int)n, first + 1), {n, (size_t)s.n_embd})};
    }

    std::pair<ArrayOut, ArrayOut> kv(int layer) {
        const DraftSpec & s = drafter_->spec();
        fail_if(layer < 0 || layer >= s.n_layer, ErrorKind::value, "kv: expected a layer from 0 to %d, found %d", layer,
                s.n_layer - 1);
        const size_t n = (size_t)sequence_->n_rows();
        const auto read = [&](const ggml_tensor * t, int n_head_values) {
            const size_t n_row = (size_t)n_head_values * s.n_head_kv;
            std::vector<uint8_t> raw(n * t->nb[1]);
            ggml_backend_tensor_get(t, raw.data(), 0, raw.size());
            const EmbeddingTable rows(std::move(raw), t->type, (int)t->ne[0], (int)n);
            std::vector<float> row(t->ne[0]), out;
            for (size_t i = 0; i < n; ++i) {
                rows.row((int)i, row.data());
                out.insert(out.end(), row.begin(), row.begin() + n_row);
            }
            return to_array(std::move(out), {n, (size_t)s.n_head_kv, (size_t)n_head_values});
        };
        const DraftKv & kv = sequence_->kv();
        return {read(kv.k()[layer], s.key_dim()), read((s.has_latent() ? kv.k() : kv.v())[layer], s.value_dim())};
    }

  private:
    static void require(size_t found, int expected, const char * what) {
        if (found != (size_t)expected) fail(ErrorKind::value, "%s: expected %d, found %zu", what, expected, found);
    }

    HiddenStates rows_of(const ArrayIn<3> & hidden_states, const Tokens & tokens) const {
        const DraftSpec & s = drafter_->spec();
        require(hidden_states.shape(0), s.n_aux(), "extracted layers");
        require(hidden_states.shape(1), (int)tokens.size(), "rows (one per token)");
        require(hidden_states.shape(2), s.n_embd_target, "hidden state width");
        if (tokens.empty()) fail(ErrorKind::value, "commit: expected one or more rows, found none");
        HiddenStates rows;
        rows.n_rows = (int)tokens.size();
        for (int a = 0; a < s.n_aux(); ++a) {
            rows.layer.push_back(hidden_states.data() + (size_t)a * tokens.size() * s.n_embd_target);
        }
        return rows;
    }

    void commit_with_output(const ArrayIn<3> & hidden_states, const Tokens & tokens, int n_ahead) {
        const HiddenStates rows = rows_of(hidden_states, tokens);
        GilRelease release;
        drafter_->commit_together({{sequence_.get(), rows, tokens.data(), n_ahead}});
    }

    void extend_by(const std::vector<DraftRow> & rows) {
        drafter_->extend_together({DraftRequest::step(sequence_.get(), rows)});
    }

    void share_head(const ArrayIn<2> & head) {
        ggml_tensor * t = head_.make(drafter_->device().buft(), GGML_TYPE_F32, head.shape(1), head.shape(0));
        if (!t) fail(ErrorKind::out_of_memory, "no room for the output head on the drafter's device");
        ggml_backend_tensor_set(t, head.data(), 0, ggml_nbytes(t));
        drafter_->share_head(t, t);
    }

    // Returns the logits of the first n output rows.
    std::vector<float> logits(int n) const {
        const size_t n_vocab = drafter_->spec().n_draft_vocab;
        std::vector<float> out(n * n_vocab);
        for (int i = 0; i < n; ++i) std::copy_n(sequence_->logits(i), n_vocab, &out[i * n_vocab]);
        return out;
    }

    std::vector<float> states(int n, int first) const {
        const ggml_tensor * all = sequence_->kv().state();
        std::vector<float> out(n * all->ne[0]);
        ggml_backend_tensor_get(all, out.data(), first * all->nb[1], n * all->nb[1]);
        return out;
    }

    void check_states() const {
        if (drafter_->spec().is_block()) fail(ErrorKind::value, "block drafters do not read states; call block()");
    }

    OwnMatrix head_;  // declared before the drafter, which uses this matrix
    std::unique_ptr<HiddenStateDrafter> drafter_;
    std::unique_ptr<HiddenStateSequence> sequence_;
};

}  // namespace

void bind_drafter(nb::module_ & m) {
    nb::class_<LowlevelDrafter>(m, "Drafter")
        .def(nb::init<const std::string &, const std::optional<EngineOptions> &, const std::optional<ArrayIn<2>> &,
                      const std::optional<ArrayIn<2>> &>(),
             nb::arg("path"), nb::arg("options") = nb::none(), nb::arg("embedding") = nb::none(),
             nb::arg("head") = nb::none())
        .def_prop_ro("info", &LowlevelDrafter::info)
        .def_prop_ro("n_rows", &OneAtATime<&LowlevelDrafter::n_rows>::call)
        .def("reset", [](LowlevelDrafter & d) { OneAtATime<&LowlevelDrafter::truncate>::call(d, 0); })
        .def("truncate", &OneAtATime<&LowlevelDrafter::truncate>::call, nb::arg("n_rows"))
        .def("commit", &OneAtATime<&LowlevelDrafter::commit>::call, nb::arg("features"), nb::arg("tokens"))
        .def("commit_ahead", &OneAtATime<&LowlevelDrafter::commit_ahead>::call, nb::arg("features"), nb::arg("tokens"),
             nb::arg("n_ahead"))
        .def("block", &OneAtATime<&LowlevelDrafter::block>::call, nb::arg("features"), nb::arg("tokens"),
             nb::arg("behind"), nb::arg("k"))
        .def("append", &OneAtATime<&LowlevelDrafter::append>::call, nb::arg("features"), nb::arg("tokens"))
        .def("extend", &OneAtATime<&LowlevelDrafter::extend>::call, nb::arg("states"), nb::arg("tokens"),
             nb::arg("parents"))
        .def("kv", &OneAtATime<&LowlevelDrafter::kv>::call, nb::arg("layer"));
}

}  // namespace eaglecpp
