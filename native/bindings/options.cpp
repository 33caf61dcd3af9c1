// SPDX-License-Identifier: MIT
#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include "bindings/bindings.h"
#include "engine/options.h"

namespace nb = nanobind;

namespace eaglecpp {

void bind_options(nb::module_ & m) {
    {
        using T = EngineOptions;
        nb::class_<T>(m, "EngineOptions")
            .def(nb::init<>())
            .def_rw("target_path", &T::path)
            .def_rw("draft_path", &T::draft_path)
            .def_rw("n_ctx", &T::n_ctx)
            .def_rw("n_batch", &T::n_batch)
            .def_rw("n_ubatch", &T::n_ubatch)
            .def_rw("n_threads", &T::n_threads)
            .def_rw("n_threads_batch", &T::n_threads_batch)
            .def_rw("n_gpu_layers", &T::n_gpu_layers)
            .def_rw("main_gpu", &T::main_gpu)
            .def_rw("split_mode", &T::split_mode)
            .def_rw("tensor_split", &T::tensor_split)
            .def_rw("n_cpu_moe", &T::n_cpu_moe)
            .def_rw("override_tensor", &T::override_tensor)
            .def_rw("flash_attn", &T::flash_attn)
            .def_rw("type_k", &T::type_k)
            .def_rw("type_v", &T::type_v)
            .def_rw("use_mmap", &T::use_mmap)
            .def_rw("use_mlock", &T::use_mlock)
            .def_rw("offload_kqv", &T::offload_kqv)
            .def_rw("rope_freq_base", &T::rope_freq_base)
            .def_rw("rope_freq_scale", &T::rope_freq_scale)
            .def_rw("taps", &T::taps)
            .def_rw("repack", &T::repack)
            .def_rw("kernels", &T::kernels)
            .def_rw("n_sequences", &T::n_sequences)
            .def_rw("separate_caches", &T::separate_caches)
            .def_rw("n_draft_max", &T::n_draft_max)
            .def_rw("n_draft_more", &T::n_draft_more)
            .def_rw("n_leaves_max", &T::n_leaves_max)
            .def_rw("draft_device", &T::draft_device)
            .def_rw("draft_type_kv", &T::draft_type_kv)
            .def_rw("text_drafts", &T::text_drafts)
            .def_rw("text_memory", &T::text_memory)
            .def_rw("exact", &T::exact)
            .def_rw("lora", &T::lora)
            .def("cancel", [](T & options) { *options.is_cancelled = true; });
    }
    {
        using T = SamplingParams;
        nb::class_<T>(m, "SamplingParams")
            .def(nb::init<>())
            .def_rw("rng", &T::rng)
            .def_rw("seed", &T::seed)
            .def_rw("temperature", &T::temperature)
            .def_rw("dynatemp_range", &T::dynatemp_range)
            .def_rw("dynatemp_exponent", &T::dynatemp_exponent)
            .def_rw("top_k", &T::top_k)
            .def_rw("top_p", &T::top_p)
            .def_rw("min_p", &T::min_p)
            .def_rw("typical_p", &T::typical_p)
            .def_rw("top_n_sigma", &T::top_n_sigma)
            .def_rw("xtc_probability", &T::xtc_probability)
            .def_rw("xtc_threshold", &T::xtc_threshold)
            .def_rw("min_keep", &T::min_keep)
            .def_rw("infill", &T::infill)
            .def_rw("repeat_last_n", &T::repeat_last_n)
            .def_rw("repeat_penalty", &T::repeat_penalty)
            .def_rw("frequency_penalty", &T::frequency_penalty)
            .def_rw("presence_penalty", &T::presence_penalty)
            .def_rw("dry_multiplier", &T::dry_multiplier)
            .def_rw("dry_base", &T::dry_base)
            .def_rw("dry_allowed_length", &T::dry_allowed_length)
            .def_rw("dry_penalty_last_n", &T::dry_penalty_last_n)
            .def_rw("dry_sequence_breakers", &T::dry_sequence_breakers)
            .def_rw("mirostat", &T::mirostat)
            .def_rw("mirostat_tau", &T::mirostat_tau)
            .def_rw("mirostat_eta", &T::mirostat_eta)
            .def_rw("grammar", &T::grammar)
            .def_rw("logit_bias", &T::logit_bias);
    }
    nb::class_<Strategy>(m, "Strategy")
        .def(
            "__init__",
            [](Strategy * self, const std::string & kind, int k, int depth, int nodes) {
                new (self) Strategy(Strategy::make(kind, k, depth, nodes));
            },
            nb::arg("kind") = "off", nb::arg("k") = 1, nb::arg("depth") = 0, nb::arg("nodes") = 0)
        .def_prop_ro("kind", &Strategy::kind_name)
        .def_ro("k", &Strategy::k)
        .def_ro("depth", &Strategy::depth)
        .def_ro("nodes", &Strategy::nodes);
    {
        using T = GenerateParams;
        nb::class_<T>(m, "GenerateParams")
            .def(nb::init<>())
            .def_rw("sampling", &T::sampling)
            .def_rw("strategy", &T::strategy)
            .def_rw("max_tokens", &T::max_tokens)
            .def_rw("n_probs", &T::n_probs)
            .def_rw("ignore_eos", &T::ignore_eos)
            .def_rw("cache_prompt", &T::cache_prompt)
            .def_rw("exact", &T::exact)
            .def_rw("log_plan", &T::log_plan)
            .def_rw("synth_rates", &T::synth_rates);
    }
}

}  // namespace eaglecpp
