// SPDX-License-Identifier: MIT
#include "engine/model_sequence.h"

#include "base/error.h"
#include "base/log.h"

namespace eaglecpp {

ModelSequence::~ModelSequence() {
    try {
        drop_cells(0);
    } catch (const std::exception & e) {  // an assertion of llama.cpp failed
        log_line(LogLevel::error, e.what());
    }
}

void ModelSequence::commit(const HiddenStates & hidden_states, const Token * tokens) {
    const int n_before = n_rows_;
    try {
        truncate(n_rows_);
        for (int at = first_at(); at < hidden_states.n_rows;) {
            d_.batch_.clear();
            for (; at < hidden_states.n_rows && d_.batch_.n_rows() < d_.target_.n_prompt_rows(); ++at) {
                add_row(tokens, hidden_states, at, false);
            }
            d_.decode(/*is_prompt=*/true);
        }
        n_rows_ += hidden_states.n_rows;
    } catch (...) {
        truncate(n_before);
        throw;
    }
}

void ModelSequence::add_commit(const Token * tokens, const HiddenStates & hidden_states) {
    truncate(n_rows_);
    const int n = hidden_states.n_rows;
    for (int at = first_at(); at < n; ++at) add_row(tokens, hidden_states, at, at + 1 == n);
    outputs_.assign(1, d_.batch_.n_rows() - 1);
    n_rows_ += n;
}

void ModelSequence::add_step(const std::vector<DraftRow> & rows) {
    const int parent = row_of(rows[0].parent);
    nodes_.resize(parent + 1);
    tokens_.resize(parent + 1);
    const Pos pos = n_rows_ + 1 + (Pos)nodes_.size();
    drop_cells(pos);
    nodes_.push_back(rows[0].node);
    tokens_.push_back(rows[0].token);
    outputs_.assign(1, d_.batch_.n_rows());
    d_.batch_.add(d_.own_token(rows[0].token), pos, range_, true, state_behind(parent));
}

std::vector<Candidate> ModelSequence::candidates(int i, int k, const std::optional<CoupledSampling> & sampling,
                                                 Pos pos) {
    if (outputs_[i] < 0) return {};
    const float * logits = d_.context_.logits(outputs_[i]);
    return sampling ? coupled_.best(logits, d_.n_known_, k, nullptr, *sampling, pos)
                    : top_k(logits, d_.n_known_, k, nullptr);
}

// Saves n rows. llama.cpp copies all cells of the sequence, so load_rows() drops the cells after row n.
void ModelSequence::save_rows(int n, std::vector<uint8_t> & out) const {
    if (n > 0) d_.cells_.save_rows(range_, out);
}

void ModelSequence::load_rows(ByteView bytes, int n) {
    truncate(0);
    if (n == 0) return;
    fail_if(!d_.cells_.load_rows(range_, bytes, n + 1), ErrorKind::context_full,
            "the drafter's cache has no room for %d rows; close a conversation or shorten the context", n);
    n_rows_ = n;
    truncate(n);
}

void ModelSequence::truncate(int n) {
    n_rows_ = std::min(n_rows_, n);
    nodes_.clear();
    tokens_.clear();
    drop_cells(n_rows_ > 0 ? n_rows_ + 1 : 0);
}

// Adds the last row even if it is already stored, because its output is needed.
void SmallModelSequence::add_commit(const Token * tokens, const HiddenStates & hidden_states) {
    int n_kept = 0;
    const int n_max = std::min(hidden_states.n_rows - 1, (int)tokens_.size());
    while (n_kept < n_max && tokens_[n_kept] == tokens[n_kept]) ++n_kept;
    n_rows_ += n_kept;
    HiddenStates rest = hidden_states;
    rest.n_rows -= n_kept;
    ModelSequence::add_commit(tokens + n_kept, rest);
}

void HeadSequence::take_states(bool is_commit) {
    const size_t first = is_commit ? 0 : 1 + nodes_.size() - outputs_.size();
    states_.resize((first + outputs_.size()) * n_state_);
    for (size_t i = 0; i < outputs_.size(); ++i) {
        if (outputs_[i] < 0) continue;
        std::copy_n(d_.context_.state(outputs_[i]), n_state_, states_.begin() + (first + i) * n_state_);
    }
}

}  // namespace eaglecpp
