// SPDX-License-Identifier: MIT
#include "target/scoring.h"

#include <algorithm>

#include "algo/topk.h"
#include "base/error.h"

namespace eaglecpp {

// of one decode, in llama.cpp's output buffer
static constexpr int64_t n_bytes_logits = 64 << 20;
static constexpr int64_t n_rows_least = 16, n_rows_most = 128;

std::vector<float> score(const Target & target, const Tokens & tokens) {
    const int n_vocab = target.vocab().size();
    for (Token t : tokens) {
        if (t < 0 || t >= n_vocab) fail(ErrorKind::value, "token %d is outside the vocabulary of %d", t, n_vocab);
    }
    const int n = std::max(0, (int)tokens.size() - 1);  // what follows the last one nobody asks
    std::vector<float> out;
    if (n == 0) return out;
    if ((int)tokens.size() > target.n_ctx()) {
        fail(ErrorKind::context_full, "%zu tokens do not fit a context of %d", tokens.size(), target.n_ctx());
    }
    TargetOptions options = target.options();
    options.n_sequences = 1;
    options.separate_caches = false;
    options.may_only_embed = false;
    options.n_leaves_max = 1;
    options.n_draft_more = 0;
    // rows with logits of one decode, less the root; a recurrent state is kept once for each
    const int64_t n_rows_fit = n_bytes_logits / (int64_t)(sizeof(float) * n_vocab);
    const int64_t n_rows_each = target.model().has_state() ? n_rows_least : n_rows_most;
    options.n_draft_max = (int)std::clamp(n_rows_fit, n_rows_least, n_rows_each) - 1;
    Target scorer(options, target);
    scorer.open_context({});
    const SeqRange range = scorer.cells().seqs(0);
    TargetBatch batch;
    for (int at = 0; at < n; at += options.n_draft_max + 1) {
        const int n_rows = std::min(options.n_draft_max + 1, n - at);
        batch.clear();
        for (int i = at; i < at + n_rows; ++i) batch.add(tokens[i], i, range, true);
        scorer.decode(batch, /*is_prompt=*/true);
        for (int i = 0; i < n_rows; ++i) {
            const float * logits = scorer.logits(i);
            out.push_back(logits[tokens[at + i + 1]] - log_sum_exp(logits, n_vocab));
        }
    }
    return out;
}

}  // namespace eaglecpp
