// SPDX-License-Identifier: MIT
#include "engine/model_drafter.h"

#include <algorithm>

#include "base/error.h"
#include "base/log.h"
#include "engine/models.h"

namespace eaglecpp {

static constexpr int n_rows_max = 64;  // draft rows of a round

// the target's, less what speaks of its layers
static TargetOptions model_options(const EngineOptions & options, const Target & target, Heads heads) {
    TargetOptions o = target.options();
    o.path = options.draft_path;
    o.load_heads = heads != Heads::none;
    o.type_k = o.type_v = options.draft_type_kv;
    o.lora.clear();
    if (heads == Heads::in_model) return o;
    o.tensor_split.clear();
    o.override_tensor.clear();
    o.n_cpu_moe = 0;
    o.rope_freq_base = o.rope_freq_scale = 0.0f;
    if (options.draft_device == "auto") {
        if (target.model().is_cpu()) o.n_gpu_layers = 0;
        return o;
    }
    ggml_backend_dev_t device = find_device(options.draft_device, options.n_gpu_layers);
    o.n_gpu_layers = device ? -1 : 0;
    if (!device) return o;
    o.device = device;
    o.split_mode = "none";
    o.main_gpu = 0;
    return o;
}

class ModelSequence : public DraftSequence {
  public:
    ModelSequence(ModelDrafter & drafter, const SeqRange & range)
        : d_(drafter), range_(range), n_state_(drafter.is_head() ? drafter.model_->n_state() : 0) {}
    ~ModelSequence() override {
        try {
            drop_cells(0);
        } catch (const std::exception & e) {  // an assertion of llama.cpp
            log_line(LogLevel::error, e.what());
        }
    }

    int n_rows() const override { return n_rows_; }

    void commit(const FeatureRows & features, const Token * tokens) override {
        const int n_before = n_rows_;
        try {
            truncate(n_rows_);
            for (int at = first_at(); at < features.n_rows;) {
                d_.batch_.clear();
                for (; at < features.n_rows && d_.batch_.n_rows() < d_.target_.n_prompt_rows(); ++at) {
                    add_row(tokens, features, at, false);
                }
                d_.decode(/*is_prompt=*/true);
            }
            n_rows_ += features.n_rows;
        } catch (...) {
            truncate(n_before);
            throw;
        }
    }

    // Adds the rows of a commit to a batch with others, the last one with output. A small model's that are there as
    // draft rows are not run again, but the last one in any case: its output was asked for.
    virtual void add_commit(const Token * tokens, const FeatureRows & features) {
        const int n_kept = n_state_ > 0 ? 0 : keep_drafts(tokens, features.n_rows - 1);
        const int n = features.n_rows - n_kept;
        truncate(n_rows_);
        for (int at = first_at(); at < n; ++at) add_row(tokens + n_kept, features, at, at + 1 == n);
        outputs_.assign(1, d_.batch_.n_rows() - 1);
        n_rows_ += n;
    }

    // Adds the draft row of a level, and drops those behind its parent.
    virtual void add_level(const std::vector<DraftRow> & rows) {
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

    // No row of the last batch has an output: it was not run.
    void say_nothing() { std::fill(outputs_.begin(), outputs_.end(), -1); }

    // After a batch with rows of this conversation: the states that draft rows behind them read.
    void take_states(bool is_commit) {
        if (n_state_ == 0) return;
        const size_t first = is_commit ? 0 : 1 + nodes_.size() - outputs_.size();
        states_.resize((first + outputs_.size()) * n_state_);
        for (size_t i = 0; i < outputs_.size(); ++i) {
            if (outputs_[i] < 0) continue;
            std::copy_n(d_.context_.state(outputs_[i]), n_state_, states_.begin() + (first + i) * n_state_);
        }
    }

    std::vector<Candidate> candidates(int i, int k, const std::optional<CoupledSampling> & sampling, Pos pos) override {
        if (outputs_[i] < 0) return {};
        const float * logits = d_.context_.logits(outputs_[i]);
        return sampling ? coupled_.best(logits, d_.n_known_, k, nullptr, *sampling, pos)
                        : top_k(logits, d_.n_known_, k, nullptr);
    }
    bool take_step(int, const DraftRow &) override { return false; }

    // llama.cpp copies all of a conversation's cells; load_rows() drops those beyond its n
    std::vector<uint8_t> save_rows(int n) const override {
        return n > 0 ? d_.cells_.save_rows(range_) : std::vector<uint8_t>();
    }
    void load_rows(const std::vector<uint8_t> & bytes, int n) override {
        truncate(0);
        if (n == 0) return;
        if (!d_.cells_.load_rows(range_, bytes, n + 1)) {
            fail(ErrorKind::context_full, "the drafter's cache has no room for %d rows", n);
        }
        n_rows_ = n;
        truncate(n);
    }
    // llama.cpp checks the rest
    bool fits(const std::vector<uint8_t> & bytes, int n) const override { return bytes.empty() == (n == 0); }

    void truncate(int n) override {
        n_rows_ = std::min(n_rows_, n);
        nodes_.clear();
        tokens_.clear();
        drop_cells(n_rows_ > 0 ? n_rows_ + 1 : 0);
    }

  protected:
    // of a commit, the first that is run: a small model's first row lies before row 0
    int first_at() const { return n_state_ == 0 && n_rows_ == 0 ? -1 : 0; }

    // row `at` of a commit, and the state that a head reads beside its token
    void add_row(const Token * tokens, const FeatureRows & features, int at, bool has_output) {
        const float * state = n_state_ > 0 ? features.layer[0] + (size_t)at * n_state_ : nullptr;
        d_.batch_.add(d_.own_token(tokens[at]), n_rows_ + at + 1, range_, has_output, state);
    }
    // an assistant's ids are those of the target's cells
    void drop_cells(Pos from) {
        if (!d_.is_assistant()) d_.cells_.truncate(range_, from);
    }
    // what a draft row behind `parent` reads
    const float * state_behind(int parent) const {
        return n_state_ > 0 ? states_.data() + (size_t)(1 + parent) * n_state_ : nullptr;
    }

    // Commits as many of the n rows as are there as draft rows; returns how many.
    int keep_drafts(const Token * tokens, int n) {
        int n_kept = 0;
        while (n_kept < std::min(n, (int)tokens_.size()) && tokens_[n_kept] == tokens[n_kept]) ++n_kept;
        n_rows_ += n_kept;
        return n_kept;
    }

    ModelDrafter & d_;
    SeqRange range_;
    int n_state_;  // values that a head reads; 0 = a small model
    int n_rows_ = 0;
    // of the draft rows: each lies behind the one before it, an assistant's behind any, which never keeps them
    Tokens tokens_;
    std::vector<float> states_;  // [1 + draft row]: what rows behind it read; [0] of the last committed row
    std::vector<int> outputs_;   // of the last call: rows of the batch
    CoupledDraft coupled_;
};

class Assistant : public ModelSequence {
  public:
    using ModelSequence::ModelSequence;

    void commit(const FeatureRows & features, const Token *) override {
        truncate(n_rows_);
        n_rows_ += features.n_rows;
    }

    void add_commit(const Token * tokens, const FeatureRows & features) override {
        commit(features, tokens);
        const int last = features.n_rows - 1;
        outputs_.assign(1, d_.batch_.n_rows());
        d_.batch_.add(d_.own_token(tokens[last]), n_rows_, range_, true, features.layer[0] + (size_t)last * n_state_);
    }

    // they see the target's rows and not each other
    void add_level(const std::vector<DraftRow> & rows) override {
        outputs_.clear();
        for (const DraftRow & row : rows) {
            const int parent = row_of(row.parent);
            nodes_.push_back(row.node);
            outputs_.push_back(d_.batch_.n_rows());
            d_.batch_.add(d_.own_token(row.token), n_rows_, range_, true, state_behind(parent));
        }
    }

    std::vector<uint8_t> save_rows(int) const override { return {}; }
    void load_rows(const std::vector<uint8_t> &, int n) override {
        truncate(0);
        n_rows_ = n;
    }
    bool fits(const std::vector<uint8_t> & bytes, int) const override { return bytes.empty(); }
};

static ModelSequence & own(DraftSequence * seq) {
    return *static_cast<ModelSequence *>(seq);
}

ModelDrafter::ModelDrafter(const EngineOptions & options, const Target & target, Heads heads)
    : heads_(heads), target_(target) {
    const TargetOptions own = model_options(options, target, heads);
    model_ = heads == Heads::in_model ? target.weights() : std::make_shared<const TargetModel>(own);
    n_own_ = llama_vocab_n_tokens(llama_model_get_vocab(model_->get()));
    n_known_ = std::min(n_own_, target.vocab().size());
    check_fit();
    make_context(own);
}

void ModelDrafter::make_context(const TargetOptions & options) {
    // all draft rows of a level have to be in one batch
    const int n_rows = options.n_sequences * (n_rows_max + 1);
    n_ubatch_ = std::max(options.n_ubatch, n_rows);

    llama_context_params p = Context::params(options);
    p.n_ctx = (uint32_t)options.n_sequences * (uint32_t)(options.n_ctx + n_rows_max + 1);
    p.n_batch = (uint32_t)std::max(options.n_batch, n_rows);
    p.n_ubatch = (uint32_t)n_ubatch_;
    p.n_seq_max = (uint32_t)(options.n_sequences * (is_assistant() ? target_.cells().n_ids() : 1));
    p.n_outputs_max = std::max((uint32_t)n_rows, p.n_seq_max);
    p.n_outputs_max_per_seq = n_rows_max + 1;
    p.swa_full = true;
    p.type_k = type_by_name(options.type_k);
    p.type_v = type_by_name(options.type_v);
    if (is_head()) {
        check_heads(*model_);
        check_state_functions();
        p.ctx_type = LLAMA_CONTEXT_TYPE_MTP;
        p.ctx_other = is_assistant() ? target_.context() : nullptr;
    }
    context_.make(model_, p);
    if (is_head()) {
        staging().set_states(context_.get(), true, gives_states_of_outputs(*model_));
    } else if (!context_.generates()) {
        refuse_generating(*model_);
    }
    cells_ = Cells({options.n_sequences, options.n_ctx, n_rows_max});
    cells_.attach(context_.get());
}

// Both must have been made with one vocabulary: the same token has the same id. Special tokens, which fine-tunes
// rename, and padding at the end may differ.
void ModelDrafter::check_vocabulary() const {
    const llama_vocab * own = llama_model_get_vocab(model_->get());
    const llama_vocab * theirs = target_.vocab().get();
    // made by training the tokenizer, not added by hand
    const auto is_ordinary = [](const llama_vocab * vocab, Token t) {
        return t < llama_vocab_n_tokens(vocab) &&
               (llama_vocab_get_attr(vocab, t) & (LLAMA_TOKEN_ATTR_NORMAL | LLAMA_TOKEN_ATTR_BYTE)) != 0;
    };
    const std::string wrong = token_differences(
        target_.vocab(), n_own_, [&](Token t) { return llama_vocab_get_text(own, t); },
        [&](Token t) { return is_ordinary(own, t) || is_ordinary(theirs, t); });
    if (wrong.empty()) return;
    fail(ErrorKind::mismatch,
         "%s cannot draft for %s: a small model must have the target's vocabulary, but %s; use a small model of the "
         "same family",
         model_->path().c_str(), target_.options().path.c_str(), wrong.c_str());
}

void ModelDrafter::check_fit() const {
    const std::string path = model_->path(), arch = model_->meta("general.architecture");
    if (heads_ == Heads::none && model_->has_state()) {
        fail(ErrorKind::unsupported,
             "%s cannot draft: a model of architecture '%s' keeps a state from which rejected drafts cannot be taken "
             "back; use a small model with plain attention",
             path.c_str(), arch.c_str());
    }
    const std::string expected = is_assistant() ? "gemma4" : arch, found = target_.model().meta("general.architecture");
    const int n_reads = model_->n_state(), n_target = target_.model().n_state();
    if (is_head() && (found != expected || n_reads != n_target)) {
        fail(ErrorKind::mismatch,
             "%s cannot draft for %s: its heads read %d values of a '%s', the target is a '%s' that gives %d; use the "
             "heads of this very model",
             path.c_str(), target_.options().path.c_str(), n_reads, expected.c_str(), found.c_str(), n_target);
    }
    if (is_assistant()) check_assistant(GgufReader(path), GgufReader(target_.options().path));
    if (heads_ != Heads::in_model) check_vocabulary();
}

Token ModelDrafter::own_token(Token token) const {
    const Token own = stand_in(token);
    return own < n_own_ ? own : std::max<Token>(0, llama_vocab_eos(llama_model_get_vocab(model_->get())));
}

DraftTraits ModelDrafter::traits() const {
    DraftTraits t;
    if (is_head()) {
        t.n_aux = 1;
        t.n_embd_target = model_->n_state();
    }
    t.n_draft_rows_max = n_rows_max;
    t.n_level_rows_max = is_assistant() ? n_rows_max : 1;
    return t;
}

DraftDescription ModelDrafter::describe() const {
    return {is_head() ? "head" : "model",
            model_->meta("general.architecture"),
            model_->meta("general.name"),
            model_->n_layer(),
            llama_model_n_ctx_train(model_->get()),
            model_->n_embd(),
            n_own_};
}

// Rows of an assistant need cells that stay free in the target's cache, where rejected nodes may hold them.
bool ModelDrafter::decode(bool is_prompt) {
    try {
        context_.decode(batch_.view(model_->n_state()), is_prompt);
        return true;
    } catch (const Error & e) {
        if (!is_assistant() || e.kind != ErrorKind::context_full) throw;
        return false;
    }
}

std::unique_ptr<DraftSequence> ModelDrafter::open(int conversation) {
    if (is_assistant()) return std::make_unique<Assistant>(*this, target_.cells().seqs(conversation));
    return std::make_unique<ModelSequence>(*this, cells_.seqs(conversation));
}

void ModelDrafter::run_commits(const std::vector<DraftCommit> & commits) {
    batch_.clear();
    for (const DraftCommit & c : commits) own(c.seq).add_commit(c.tokens, c.features);
    const bool has_room = decode(/*is_prompt=*/false);
    for (const DraftCommit & c : commits) {
        if (!has_room) own(c.seq).say_nothing();
        own(c.seq).take_states(/*is_commit=*/true);
    }
}

void ModelDrafter::extend_together(const std::vector<DraftLevel> & levels) {
    batch_.clear();
    try {
        for (const DraftLevel & level : levels) own(level.seq).add_level(level.rows);
        if (batch_.n_rows() == 0) return;
        const bool has_room = decode(/*is_prompt=*/false);
        for (const DraftLevel & level : levels) {
            if (!has_room) own(level.seq).say_nothing();
            own(level.seq).take_states(/*is_commit=*/false);
        }
    } catch (...) {
        for (const DraftLevel & level : levels) level.seq->truncate(level.seq->n_rows());
        throw;
    }
}

std::string ModelDrafter::device_name() const {
    ggml_backend_dev_t device = model_->output_device();
    return ggml_backend_dev_name(device ? device : ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU));
}

std::vector<MemoryUse> ModelDrafter::memory_use() const {
    std::vector<MemoryUse> out = context_.memory();
    for (MemoryUse & m : out) {
        if (heads_ == Heads::in_model) m.weights = 0;  // the target's
    }
    return out;
}

}  // namespace eaglecpp
