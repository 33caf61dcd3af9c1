// SPDX-License-Identifier: MIT
#include "target/extracted_layers.h"

#include <ggml-backend.h>

#include <algorithm>

#include "base/error.h"
#include "target/llama_bridge.h"

namespace eaglecpp {

ExtractedLayers::ExtractedLayers(const TargetModel & model, std::vector<int32_t> layers, bool reads_states)
    : layers_(std::move(layers)), n_embd_(model.n_embd()) {
    if (reads_states) check_state_functions();
    if (reads_states) mode_ = Mode::states;
    if (layers_.empty()) return;
    const int n_layer = model.n_layer();
    for (int32_t k : layers_) {
        fail_if(k < 0 || k > n_layer + 1, ErrorKind::mismatch,
                "the drafter reads layer id %d, but the target has %d layers", k, n_layer);
    }
    const std::string arch = model.arch();
    needs_all_outputs_ = *std::max_element(layers_.begin(), layers_.end()) >= n_layer;
    const bool can_record =
        records_layer_inputs(arch) && staging().set_layer_input && staging().get_layer_input && !needs_all_outputs_;
    mode_ = can_record ? Mode::layer_inp : Mode::cb_eval;
    if (mode_ == Mode::cb_eval) {
        for (int32_t k : layers_) {
            fail_if(k == 0, ErrorKind::unsupported,
                    "layer id 0 (the token embeddings) of architecture '%s' cannot be read", arch.c_str());
            names_.push_back(k > n_layer ? "result_norm" : "l_out-" + std::to_string(k - 1));
        }
        rows_.resize(layers_.size());
    }
}

void ExtractedLayers::configure(llama_context_params & params) {
    if (mode_ != Mode::cb_eval) return;
    params.cb_eval = on_eval;
    params.cb_eval_user_data = this;
}

void ExtractedLayers::attach(llama_context * ctx) {
    if (mode_ == Mode::states) staging().set_states(ctx, true, /*of_outputs=*/false);
    if (mode_ != Mode::layer_inp) return;
    for (int32_t k : layers_) staging().set_layer_input(ctx, (uint32_t)k, true);
}

void ExtractedLayers::begin(int n_rows) {
    n_rows_ = n_rows;
    for (auto & r : rows_) r.clear();
}

bool ExtractedLayers::on_eval(ggml_tensor * t, bool ask, void * self) {
    auto * extracted = (ExtractedLayers *)self;
    for (size_t i = 0; i < extracted->names_.size(); ++i) {
        if (extracted->names_[i] == t->name) return ask ? true : extracted->copy(t, i);
    }
    return !ask;  // before a tensor: false skips the tensor; after a tensor: true continues
}

bool ExtractedLayers::copy(ggml_tensor * t, size_t layer) {
    if (t->type != GGML_TYPE_F32 || t->ne[0] != n_embd_) return true;  // continues; read() reports the missing rows
    auto & rows = rows_[layer];
    const size_t at = rows.size();
    rows.resize(at + (size_t)ggml_nelements(t));
    ggml_backend_tensor_get(t, rows.data() + at, 0, ggml_nbytes(t));
    return true;
}

HiddenStates ExtractedLayers::read(llama_context * ctx) {
    HiddenStates out;
    out.n_rows = n_rows_;
    if (mode_ == Mode::states) {
        const float * states = staging().get_states(ctx);
        if (!states) fail(ErrorKind::unsupported, "llama.cpp recorded no states for the heads of this architecture");
        out.layer.push_back(states);
    }
    for (size_t i = 0; i < layers_.size(); ++i) {
        if (mode_ == Mode::layer_inp) {
            const float * p = staging().get_layer_input(ctx, (uint32_t)layers_[i]);
            if (!p) fail(ErrorKind::unsupported, "llama.cpp recorded no input of block %d", layers_[i]);
            out.layer.push_back(p);
            continue;
        }
        const size_t n_found = rows_[i].size() / n_embd_;
        fail_if(n_found != (size_t)n_rows_, ErrorKind::unsupported,
                "the target's graph computed only %zu of %d rows of tensor '%s', so this layer cannot be extracted",
                n_found, n_rows_, names_[i].c_str());
        out.layer.push_back(rows_[i].data());
    }
    return out;
}

}  // namespace eaglecpp
