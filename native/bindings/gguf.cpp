// SPDX-License-Identifier: MIT
#include <nanobind/stl/vector.h>

#include "bindings/bindings.h"
#include "bindings/fields.h"
#include "bindings/gil.h"
#include "draft/draft_file.h"
#include "target/file_checks.h"

namespace nb = nanobind;

namespace eaglecpp {

nb::dict draft_spec_dict(const DraftSpec & s) {
    using T = DraftSpec;
    nb::dict d;
    put_fields(d, s, FIELD(arch), FIELD(name), FIELD(n_layer), FIELD(n_ctx_train), FIELD(n_embd), FIELD(n_embd_target),
               FIELD(n_vocab), FIELD(n_draft_vocab), FIELD(n_head), FIELD(n_head_kv), FIELD(head_dim), FIELD(n_ff),
               FIELD(rms_eps), FIELD(logit_scale), FIELD(sliding_window), FIELD(target_layers), FIELD(n_layer_target),
               FIELD(fuses_embedding), FIELD(mask_token), FIELD(norm_before_residual), FIELD(norm_before_fc),
               FIELD(fc_norm), FIELD(norm_output), FIELD(head_norm), FIELD(has_embedding), FIELD(has_head),
               FIELD(n_aux));
    d["kv_rank"] = s.latent.kv_rank;
    d["rope_type"] = s.rope.neox ? "neox" : "norm";
    d["rope_freq_base"] = s.rope.freq_base;
    d["n_parallel"] = s.is_block() ? s.block.n_slots() : s.n_parallel;
    return d;
}

void bind_gguf(nb::module_ & m) {
    nb::class_<DraftFile>(m, "DraftFile")
        .def(nb::init<const std::string &>(), nb::arg("path"), nb::call_guard<GilRelease>())
        .def_prop_ro("info", [](const DraftFile & f) { return draft_spec_dict(f.spec()); })
        .def_prop_ro("d2t", [](const DraftFile & f) { return f.d2t(); });
    m.def(
        "check_lora",
        [](const std::string & path, const std::string & target) { check_lora(GgufReader(path), ModelFiles(target)); },
        nb::arg("path"), nb::arg("target"), nb::call_guard<GilRelease>());
    m.def(
        "check_projector", [](const std::string & path) { check_projector(GgufReader(path)); }, nb::arg("path"),
        nb::call_guard<GilRelease>());
}

}  // namespace eaglecpp
