// SPDX-License-Identifier: MIT
#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include "bindings/bindings.h"
#include "bindings/fields.h"
#include "engine/options.h"

namespace nb = nanobind;

namespace eaglecpp {

void bind_options(nb::module_ & m) {
    {
        using T = EngineOptions;
        nb::class_<T> c(m, "EngineOptions");
        c.def(nb::init<>()).def_rw("target_path", &T::path);
        def_fields(c, FIELD(draft_path), FIELD(n_ctx), FIELD(n_batch), FIELD(n_ubatch), FIELD(n_threads),
                   FIELD(n_threads_batch), FIELD(n_gpu_layers), FIELD(main_gpu), FIELD(split_mode), FIELD(tensor_split),
                   FIELD(n_cpu_moe), FIELD(override_tensor), FIELD(flash_attn), FIELD(type_k), FIELD(type_v),
                   FIELD(use_mmap), FIELD(use_mlock), FIELD(offload_kqv), FIELD(rope_freq_base), FIELD(rope_freq_scale),
                   FIELD(repack), FIELD(kernels), FIELD(n_sequences), FIELD(separate_caches), FIELD(n_draft_max),
                   FIELD(n_draft_more), FIELD(n_leaves_max), FIELD(draft_device), FIELD(draft_type_kv),
                   FIELD(draft_window), FIELD(text_drafts), FIELD(exact), FIELD(lora));
    }
    {
        using T = SamplingParams;
        nb::class_<T> c(m, "SamplingParams");
        c.def(nb::init<>());
        def_fields(c, FIELD(rng), FIELD(seed), FIELD(temperature), FIELD(dynatemp_range), FIELD(dynatemp_exponent),
                   FIELD(top_k), FIELD(top_p), FIELD(min_p), FIELD(typical_p), FIELD(top_n_sigma),
                   FIELD(xtc_probability), FIELD(xtc_threshold), FIELD(min_keep), FIELD(infill), FIELD(repeat_last_n),
                   FIELD(repeat_penalty), FIELD(frequency_penalty), FIELD(presence_penalty), FIELD(dry_multiplier),
                   FIELD(dry_base), FIELD(dry_allowed_length), FIELD(dry_penalty_last_n), FIELD(dry_sequence_breakers),
                   FIELD(mirostat), FIELD(mirostat_tau), FIELD(mirostat_eta), FIELD(grammar), FIELD(logit_bias));
    }
    nb::class_<Strategy>(m, "Strategy")
        .def(nb::new_(&Strategy::make), nb::arg("kind") = "off", nb::arg("k") = 1, nb::arg("depth") = 0,
             nb::arg("nodes") = 0)
        .def_prop_ro("kind", &Strategy::kind_name)
        .def_ro("k", &Strategy::k)
        .def_ro("depth", &Strategy::depth)
        .def_ro("nodes", &Strategy::nodes);
    {
        using T = GenerateParams;
        nb::class_<T> c(m, "GenerateParams");
        c.def(nb::init<>());
        def_fields(c, FIELD(sampling), FIELD(strategy), FIELD(max_tokens), FIELD(n_probs), FIELD(ignore_eos),
                   FIELD(cache_prompt), FIELD(exact), FIELD(draft_window), FIELD(log_plan), FIELD(synth_rates));
    }
}

}  // namespace eaglecpp
