// SPDX-License-Identifier: MIT
#include <nanobind/stl/vector.h>

#include "bindings/bindings.h"
#include "bindings/gil.h"
#include "gguf/draft_file.h"
#include "target/file_checks.h"

namespace nb = nanobind;

namespace eaglecpp {

nb::dict draft_spec_dict(const DraftSpec & s) {
    nb::dict d;
    d["arch"] = s.arch;
    d["name"] = s.name;
    d["n_layer"] = s.n_layer;
    d["n_ctx_train"] = s.n_ctx_train;
    d["n_embd"] = s.n_embd;
    d["n_embd_target"] = s.n_embd_target;
    d["n_aux"] = s.n_aux();
    d["n_vocab"] = s.n_vocab;
    d["n_draft_vocab"] = s.n_draft_vocab;
    d["n_head"] = s.n_head;
    d["n_head_kv"] = s.n_head_kv;
    d["head_dim"] = s.head_dim;
    d["kv_rank"] = s.latent.kv_rank;
    d["n_ff"] = s.n_ff;
    d["rms_eps"] = s.rms_eps;
    d["logit_scale"] = s.logit_scale;
    d["rope_type"] = s.rope.neox ? "neox" : "norm";
    d["rope_freq_base"] = s.rope.freq_base;
    d["sliding_window"] = s.sliding_window;
    d["target_layers"] = s.target_layers;
    d["n_layer_target"] = s.n_layer_target;
    d["fuses_embedding"] = s.fuses_embedding;
    d["n_parallel"] = s.is_block() ? s.block.n_slots() : s.n_parallel;
    d["mask_token"] = s.mask_token;
    d["norm_before_residual"] = s.norm_before_residual;
    d["norm_before_fc"] = s.norm_before_fc;
    d["fc_norm"] = s.fc_norm;
    d["norm_output"] = s.norm_output;
    d["head_norm"] = s.head_norm;
    d["has_embedding"] = s.has_embedding;
    d["has_head"] = s.has_head;
    return d;
}

static nb::list tensor_list(const DraftFile & file) {
    nb::list out;
    for (const TensorInfo & t : file.gguf().tensors()) {
        int n_dims = GGML_MAX_DIMS;
        while (n_dims > 1 && t.ne[n_dims - 1] == 1) --n_dims;
        nb::list shape;
        for (int i = n_dims - 1; i >= 0; --i) shape.append(t.ne[i]);
        nb::dict d;
        d["name"] = t.name;
        d["type"] = ggml_type_name(t.type);
        d["shape"] = shape;
        d["n_bytes"] = t.n_bytes;
        out.append(d);
    }
    return out;
}

void bind_gguf(nb::module_ & m) {
    nb::class_<DraftFile>(m, "DraftFile")
        .def(nb::init<const std::string &>(), nb::arg("path"), nb::call_guard<GilRelease>())
        .def_prop_ro("info", [](const DraftFile & f) { return draft_spec_dict(f.spec()); })
        .def_prop_ro("d2t", [](const DraftFile & f) { return f.d2t(); })
        .def_prop_ro("tensors", &tensor_list);
    m.def(
        "check_lora",
        [](const std::string & path, const std::string & target) { check_lora(GgufReader(path), ModelFiles(target)); },
        nb::arg("path"), nb::arg("target"), nb::call_guard<GilRelease>());
    m.def(
        "check_projector", [](const std::string & path) { check_projector(GgufReader(path)); }, nb::arg("path"),
        nb::call_guard<GilRelease>());
}

}  // namespace eaglecpp
