// SPDX-License-Identifier: MIT
#include "target/embedder.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/error.h"
#include "base/memory.h"
#include "base/process.h"

namespace eaglecpp {

static constexpr std::array<const char *, 5> pooling_names = {"none", "mean", "cls", "last", "rank"};
static constexpr int n_rows_usual = 512;
static constexpr int n_texts_usual = 16;

// Returns the number of rows per batch. llama.cpp computes unused logits for every row. So batches have at least 32
// rows, and more only if their logits fit into 64 MiB.
static int n_rows_with_logits(int n_vocab) {
    const int64_t n_fit = (64 << 20) / (int64_t)(sizeof(float) * std::max(1, n_vocab));
    return (int)std::clamp<int64_t>(n_fit, 32, n_rows_usual);
}

static std::string file_pooling(const TargetModel & model) {
    return model.meta(model.arch() + ".pooling_type");
}

static enum llama_pooling_type pooling_of(const TargetModel & model, const std::string & name) {
    const auto found = std::find(pooling_names.begin(), pooling_names.end(), name);
    if (found != pooling_names.end()) return (enum llama_pooling_type)(found - pooling_names.begin());
    fail_if(!name.empty(), ErrorKind::value, "pooling: expected none, mean, cls, last or rank, found '%s'",
            name.c_str());
    const std::string in_file = file_pooling(model);
    if (in_file.empty() || in_file == "0") return LLAMA_POOLING_TYPE_MEAN;
    if (in_file.size() == 1 && in_file[0] >= '1' && in_file[0] <= '4')
        return (enum llama_pooling_type)(in_file[0] - '0');
    fail(ErrorKind::gguf, "%s: key '%s.pooling_type' is %s, expected 0 (none), 1 (mean), 2 (cls), 3 (last) or 4 (rank)",
         model.path().c_str(), model.arch().c_str(), in_file.c_str());
}

Embedder::Embedder(const Target & target, const std::string & pooling)
    : model_(target.weights()),
      options_(target.options()),
      reads_at_once_(target.only_embeds()),
      pooling_(pooling_of(*model_, pooling)),
      is_in_file_(!file_pooling(*model_).empty()),
      llama_pools_(pooling_ == LLAMA_POOLING_TYPE_LAST || (reads_at_once_ && pooling_ != LLAMA_POOLING_TYPE_NONE)),
      vocab_(model_->get()),
      n_values_(model_->n_state()),
      n_max_(target.n_ctx()),
      n_texts_max_(model_->has_state() ? 1 : n_texts_usual),
      n_rows_of_piece_(n_rows_with_logits(vocab_.size())) {
    if (pooling_ != LLAMA_POOLING_TYPE_RANK) return;
    fail(ErrorKind::unsupported, "%s: rerankers (pooling 'rank') are not supported; set pooling to mean, cls or last",
         model_->path().c_str());
}

const char * Embedder::pooling() const {
    return pooling_names[pooling_];
}

void Embedder::begin(std::vector<Tokens> texts) {
    check_not_forked("texts cannot be embedded");
    size_t n_longest = 0, n_rows = 0;
    std::vector<size_t> first_rows;
    for (const Tokens & text : texts) {
        if (text.empty()) fail(ErrorKind::value, "a text without tokens cannot be embedded");
        vocab_.check(text);
        n_longest = std::max(n_longest, text.size());
        first_rows.push_back(n_rows);
        n_rows += pooling_ == LLAMA_POOLING_TYPE_NONE ? text.size() : 1;
    }
    fail_if(n_longest > (size_t)n_max_, ErrorKind::context_full,
            "a text has %zu tokens, but the context holds %d; shorten it or raise n_ctx", n_longest, n_max_);
    if (reads_at_once_) check_memory(n_longest);
    texts_ = std::move(texts);
    first_rows_ = std::move(first_rows);
    next_ = 0, n_done_ = 0;
    rows_.assign(n_rows * (size_t)n_values_, 0.0f);
    if (context_.get()) llama_memory_clear(llama_get_memory(context_.get()), false);
    if (!context_.get() || (int)n_longest > n_room_) make_context((int)n_longest);
    n_rows_max_ = reads_at_once_ ? std::min(std::max(n_rows_usual, (int)n_longest), n_room_) : n_rows_of_piece_;
}

// Checks that there is memory for a text that is read in one batch. llama.cpp allocates unused logits of all rows and a
// mask of n_tokens x n_tokens. Without flash attention it also allocates scores for every head.
void Embedder::check_memory(size_t n_tokens) const {
    const uint64_t n_scores = options_.flash_attn == "off" ? (uint64_t)llama_model_n_head(model_->get()) : 1;
    const uint64_t n_needed = n_tokens * sizeof(float) * (vocab_.size() + n_values_ + n_tokens * n_scores);
    const uint64_t n_free = available_memory();
    if (n_free == 0 || n_needed <= n_free / 2) return;
    fail(ErrorKind::out_of_memory,
         "a text of %zu tokens needs %.1f GB with this model, but may use only half of the %.1f GB of free memory; "
         "lower n_ctx to cut the text",
         n_tokens, n_needed / 1e9, n_free / 1e9);
}

// Makes a context for n_tokens tokens. Its size is a power of two, so that growing texts do not recreate the context
// each time.
void Embedder::make_context(int n_tokens) {
    int n_room = n_rows_usual;
    while (n_room < n_tokens) n_room *= 2;
    // llama.cpp pads a cache to a power of two anyway. Without a cache, the context needs no more positions than the
    // model's table has.
    n_room_ = reads_at_once_ ? std::min(n_room, std::max(n_max_, n_tokens)) : n_room;
    llama_context_params p = Context::params(options_);
    p.n_ctx = (uint32_t)n_room_;
    p.n_batch = p.n_ubatch = (uint32_t)(reads_at_once_ ? n_room_ : n_rows_of_piece_);
    p.n_seq_max = (uint32_t)n_texts_max_;
    p.embeddings = true;
    // If the file names no pooling, this parameter stays unset, because llama.cpp warns about overrides.
    p.pooling_type = llama_pools_ ? pooling_ : is_in_file_ ? LLAMA_POOLING_TYPE_NONE : LLAMA_POOLING_TYPE_UNSPECIFIED;
    p.swa_full = false;
    context_.make(model_, p);
}

// Fills the next batch with as many whole texts as fit, or with one piece of a longer text.
void Embedder::fill() {
    batch_.clear();
    parts_.clear();
    while (next_ < texts_.size() && (int)parts_.size() < n_texts_max_) {
        const Tokens & text = texts_[next_];
        const int n_left = (int)text.size() - n_done_;
        if (!parts_.empty() && n_left > n_rows_max_ - batch_.n_rows()) return;
        const int n = std::min(n_left, n_rows_max_);
        const SeqRange range{(llama_seq_id)parts_.size(), 1};
        parts_.push_back({next_, n_done_, n, batch_.n_rows()});
        for (int i = 0; i < n; ++i) batch_.add(text[n_done_ + i], n_done_ + i, range, true);
        const bool is_piece = n < (int)text.size();
        n_done_ = n < n_left ? n_done_ + n : 0;
        if (n_done_ == 0) ++next_;
        if (is_piece) return;
    }
}

bool Embedder::step(int n_threads) {
    if (next_ >= texts_.size()) return false;
    if (!context_.get()) fail(ErrorKind::broken, "an earlier error ended these texts; call begin() again");
    fill();
    try {
        context_.set_n_threads(n_threads);
        context_.decode(batch_.view(model_->n_state()));
        for (const Part & part : parts_) read(part);
        if (n_done_ == 0) llama_memory_clear(llama_get_memory(context_.get()), false);
    } catch (...) {
        context_.free();  // the state of the context is unknown after an error
        throw;
    }
    return next_ < texts_.size();
}

void Embedder::read(const Part & part) {
    const int n_text = (int)texts_[part.text].size();
    const size_t n_before = pooling_ == LLAMA_POOLING_TYPE_NONE ? (size_t)part.begin : 0;
    float * out = rows_.data() + (first_rows_[part.text] + n_before) * (size_t)n_values_;
    const bool is_end = part.begin + part.n == n_text;
    const auto found = [&](const float * row) {
        if (!row) fail(ErrorKind::broken, "llama.cpp returned no vector for a text of %d tokens", n_text);
        return row;
    };
    const auto row = [&](int i) { return found(llama_get_embeddings_ith(context_.get(), part.first_row + i)); };
    const auto copy = [&](const float * row) { std::copy_n(row, n_values_, out); };
    if (llama_pools_) {
        if (is_end) copy(found(llama_get_embeddings_seq(context_.get(), (llama_seq_id)(&part - parts_.data()))));
        return;
    }
    switch (pooling_) {
        case LLAMA_POOLING_TYPE_CLS:
            if (part.begin == 0) copy(row(0));
            break;
        case LLAMA_POOLING_TYPE_NONE:
            for (int i = 0; i < part.n; ++i, out += n_values_) copy(row(i));
            break;
        default:
            for (int i = 0; i < part.n; ++i) {
                const float * values = row(i);
                for (int k = 0; k < n_values_; ++k) out[k] += values[k] / (float)n_text;
            }
    }
}

}  // namespace eaglecpp
