// SPDX-License-Identifier: MIT
#include "target/context.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "base/process.h"
#include "ggml_hook/hook.h"
#include "ggml_hook/offload.h"
#include "gguf/guard.h"

namespace eaglecpp {

ggml_type type_by_name(const std::string & name) {
    for (int i = 0; i < GGML_TYPE_COUNT; ++i) {
        const char * n = ggml_type_name((ggml_type)i);
        if (n && name == n) return (ggml_type)i;
    }
    fail(ErrorKind::value, "cache type: expected a ggml type such as f16, q8_0 or q4_0, found '%s'", name.c_str());
}

void refuse_generating(const TargetModel & model) {
    fail(ErrorKind::unsupported,
         "%s is an embedding model (architecture '%s'): it computes vectors and cannot generate; request "
         "embeddings",
         model.path().substr(model.path().find_last_of("/\\") + 1).c_str(), model.arch().c_str());
}

llama_context_params Context::params(const TargetOptions & options) {
    llama_context_params p = llama_context_default_params();
    p.n_threads = options.n_threads;
    p.n_threads_batch = options.n_threads_batch;
    p.flash_attn_type = options.flash_attn == "on"    ? LLAMA_FLASH_ATTN_TYPE_ENABLED
                        : options.flash_attn == "off" ? LLAMA_FLASH_ATTN_TYPE_DISABLED
                                                      : LLAMA_FLASH_ATTN_TYPE_AUTO;
    p.kv_unified = true;
    p.offload_kqv = options.offload_kqv;
    // Without this condition, ggml would send every batch of 32 or more rows, together with the weights, to a GPU even
    // if no layer is on the GPU.
    p.op_offload = p.op_offload && options.n_gpu_layers != 0;
    p.rope_freq_base = options.rope_freq_base;
    p.rope_freq_scale = options.rope_freq_scale;
    p.no_perf = true;
    return p;
}

void Context::make(std::shared_ptr<const TargetModel> model, const llama_context_params & params) {
    ctx_.reset();
    model_ = std::move(model);
    if (params.ctx_type != LLAMA_CONTEXT_TYPE_MTP) model_->check_memory(params);
    ErrorTrail trail;
    try {
        guarded([&] { ctx_.reset(llama_init_from_model(model_->get(), params)); });
    } catch (const std::bad_alloc & e) {
        log_line(LogLevel::error, e.what());
    }
    model_->check_servers();
    if (!ctx_) {
        const std::string why = trail.text();
        fail_if(is_lack_of_memory(why), ErrorKind::out_of_memory,
                "%s: no room for a context of %u tokens%s; try a smaller n_ctx", model_->path().c_str(), params.n_ctx,
                why.c_str());
        fail(ErrorKind::unsupported,
             "%s: llama.cpp rejected these options for this model (n_ctx %u, n_sequences %u, flash_attn %s, type_k %s, "
             "type_v %s)%s",
             model_->path().c_str(), params.n_ctx, params.n_seq_max, llama_flash_attn_type_name(params.flash_attn_type),
             ggml_type_name(params.type_k), ggml_type_name(params.type_v), why.c_str());
    }
    // Embedders read vectors within the graph, so their graphs are not fused.
    const bool fuses = model_->uses_kernels() && !params.embeddings;
    for (ggml_backend_t backend : cpu_backends(get())) kernels::take_graphs_of(backend, fuses);
    if (!model_->is_cpu()) note_device();
    model_->attach_lora(get());
}

void Context::set_n_threads(int n_threads) {
    if (llama_n_threads(get()) == n_threads && llama_n_threads_batch(get()) == n_threads) return;
    llama_set_n_threads(get(), n_threads, n_threads);
}

void Context::decode(const llama_batch & rows, bool is_prompt, const kernels::ChosenGroups * chosen) {
    check_not_forked("the model cannot run");
    if (std::max(llama_n_threads(get()), llama_n_threads_batch(get())) > 1) note_helper_threads();
    has_results_ = false;
    const kernels::ComputeScope scope(model_->uses_kernels(), chosen);
    const NoOffloadScope stay(!is_prompt && !model_->is_cpu());
    ErrorTrail trail;
    int32_t rc = 0;
    try {
        const AbortGuard guard;
        rc = llama_decode(get(), rows);
        if (rc == 0) llama_synchronize(get());
    } catch (const std::bad_alloc &) {
        fail(ErrorKind::broken, "the host ran out of memory inside llama.cpp; open the engine again");
    }
    model_->check_servers();
    has_results_ = rc == 0;
    if (has_results_) return;
    const std::string why = trail.text();
    fail_if(rc == 1, ErrorKind::context_full,
            "the cache has no free cells for %d rows; raise n_ctx or close a conversation", rows.n_tokens);
    fail_if(rc == -2, ErrorKind::out_of_memory, "no room for the compute buffer of %d rows%s", rows.n_tokens,
            why.c_str());
    fail(ErrorKind::broken, "llama_decode failed with code %d on %d rows%s", rc, rows.n_tokens, why.c_str());
}

// Raises an error after a failed decode. Without this check, llama.cpp would return the results of an earlier decode.
void Context::check_results() const {
    if (!has_results_)
        fail(ErrorKind::broken, "no logits or hidden states, because the last decode failed or no decode has run");
}

const float * Context::logits(int row) const {
    check_results();
    const float * p = llama_get_logits_ith(get(), row);
    if (!p) fail(ErrorKind::broken, "llama.cpp has no logits for row %d", row);
    return p;
}

const float * Context::state(int row) const {
    check_results();
    const float * p = staging().get_state(get(), row);
    if (!p) fail(ErrorKind::broken, "llama.cpp has no state for row %d", row);
    return p;
}

}  // namespace eaglecpp
