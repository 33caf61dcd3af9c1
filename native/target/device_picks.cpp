// SPDX-License-Identifier: MIT
#include "target/device_picks.h"

#include "base/error.h"
#include "gguf/guard.h"

namespace eaglecpp {

// llama.cpp's greedy sampler counts the row's logits among what it gives, and all of them would be copied back; its
// top-k gives ids and logits of those alone.
static LlamaSamplerPtr make_picker(int n_top) {
    LlamaSamplerPtr chain(llama_sampler_chain_init(llama_sampler_chain_default_params()));
    if (n_top > 1) {
        llama_sampler_chain_add(chain.get(), llama_sampler_init_top_k(n_top));
        return chain;
    }
    llama_sampler * greedy = llama_sampler_init_greedy();
    static llama_sampler_i picking = [&] {
        llama_sampler_i out = *greedy->iface;
        out.backend_apply = [](llama_sampler *, ggml_context * ctx, ggml_cgraph *, llama_sampler_data * data) {
            data->sampled = ggml_argmax(ctx, ggml_reshape_1d(ctx, data->logits, ggml_nelements(data->logits)));
            data->logits = nullptr;
        };
        return out;
    }();
    greedy->iface = &picking;
    llama_sampler_chain_add(chain.get(), greedy);
    return chain;
}

// Where a device lacks the operation llama.cpp would give back neither tokens nor logits, so it is asked first, by a
// sampler that is thrown away.
bool DevicePicks::is_possible(int n_top) {
    const auto known = possible_.find(n_top);
    if (known != possible_.end()) return known->second;
    const bool is = device_ && n_top <= n_vocab_ && guarded([&] {
                        const LlamaSamplerPtr trial = make_picker(n_top);
                        return trial->iface->backend_init(trial.get(), ggml_backend_dev_buffer_type(device_), 1);
                    });
    return possible_[n_top] = is;
}

bool DevicePicks::set(const SeqRange & range, int n_top) {
    if (n_top > 0 && !is_possible(n_top)) n_top = 0;
    for (int i = 0; i < range.count; ++i) {
        const llama_seq_id id = range.first + i;
        const auto it = pickers_.find(id);
        if ((it == pickers_.end() ? 0 : it->second.n_top) == n_top) continue;
        LlamaSamplerPtr picker = n_top > 0 ? make_picker(n_top) : nullptr;
        guarded([&] { llama_set_sampler(ctx_, id, picker.get()); });
        if (n_top > 0) {
            pickers_[id] = {std::move(picker), n_top};
        } else {
            pickers_.erase(id);
        }
    }
    return n_top > 0;
}

Token DevicePicks::best(int row) const {
    const llama_token token = llama_get_sampled_token_ith(ctx_, row);
    if (token == LLAMA_TOKEN_NULL) fail(ErrorKind::broken, "llama.cpp picked no token for row %d", row);
    return token;
}

TopLogits DevicePicks::top(int row) const {
    const uint32_t n = llama_get_sampled_candidates_count_ith(ctx_, row);
    if (n == 0 || llama_get_sampled_logits_count_ith(ctx_, row) != n) {
        fail(ErrorKind::broken, "llama.cpp picked no tokens for row %d", row);
    }
    return {llama_get_sampled_candidates_ith(ctx_, row), llama_get_sampled_logits_ith(ctx_, row), (int)n};
}

}  // namespace eaglecpp
