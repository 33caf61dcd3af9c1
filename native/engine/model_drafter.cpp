// SPDX-License-Identifier: MIT
#include "engine/model_drafter.h"

#include <algorithm>

#include "base/error.h"
#include "engine/models.h"

namespace eaglecpp {

namespace {
// Draft rows of a round, and branches of a tree: what a small model's chain and its likely side branches need. Each
// branch takes one of the 256 sequence ids that llama.cpp has for all conversations.
constexpr int n_rows_max = 64, n_branches_max = 8;

// the target's, less what speaks of its layers
TargetOptions model_options(const EngineOptions & options, const Target & target, Heads heads) {
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

int n_vocab_of(const TargetModel & model) {
    return llama_vocab_n_tokens(llama_model_get_vocab(model.get()));
}

}  // namespace

class ModelSequence : public DraftSequence {
  public:
    ModelSequence(ModelDrafter & drafter, const SeqRange & range)
        : d_(drafter),
          range_(range),
          n_state_(drafter.is_head() ? drafter.model_->n_state() : 0),
          tips_(range.count, -1) {}
    ~ModelSequence() override { drop_cells(0); }

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

    // Adds draft rows of one level. A row without a free sequence id is not run and has no output.
    virtual void add_level(const std::vector<DraftRow> & rows) {
        outputs_.assign(rows.size(), -1);
        std::vector<uint8_t> is_used(range_.count, 0);
        // a first child goes on with its parent's id
        std::vector<int> own(rows.size(), -1);
        for (size_t i = 0; i < rows.size(); ++i) {
            const int parent = row_of(rows[i].parent), id = id_of(parent);
            if (id < 0 || tips_[id] != parent || is_used[id]) continue;
            own[i] = id;
            is_used[id] = 1;
        }
        const int n_before = (int)drafts_.size();
        for (size_t i = 0; i < rows.size(); ++i) {
            const int parent = row_of(rows[i].parent);
            const Pos pos = parent < 0 ? n_rows_ + 1 : drafts_[parent].pos + 1;
            if (own[i] < 0) own[i] = branch_from(parent, rows, is_used);
            drafts_.push_back({rows[i].node, rows[i].token, parent, pos, own[i] < 0 ? -1 : range_.first + own[i]});
            if (own[i] < 0) continue;
            is_used[own[i]] = 1;
            outputs_[i] = d_.batch_.n_rows();
            d_.batch_.add(d_.own_token(rows[i].token), pos, std::vector<llama_seq_id>{range_.first + own[i]}, true,
                          state_behind(parent));
        }
        for (size_t i = 0; i < rows.size(); ++i) {
            if (own[i] >= 0) tips_[own[i]] = n_before + (int)i;
        }
    }

    // No row of the last batch has an output: it was not run.
    void say_nothing() { std::fill(outputs_.begin(), outputs_.end(), -1); }

    // After a batch with rows of this conversation: the states that draft rows behind them read.
    void take_states(bool is_commit) {
        if (n_state_ == 0) return;
        const size_t first = is_commit ? 0 : 1 + drafts_.size() - outputs_.size();
        states_.resize((first + outputs_.size()) * n_state_);
        for (size_t i = 0; i < outputs_.size(); ++i) {
            if (outputs_[i] < 0) continue;
            std::copy_n(d_.context_.state(outputs_[i]), n_state_, states_.begin() + (first + i) * n_state_);
        }
    }

    std::vector<Candidate> candidates(int i, int k) override {
        if (outputs_[i] < 0) return {};
        return top_k(d_.context_.logits(outputs_[i]), d_.n_known_, k, nullptr);
    }
    std::vector<Candidate> candidates(int i, int k, const CoupledSampling & sampling, Pos pos) override {
        if (outputs_[i] < 0) return {};
        return coupled_.best(d_.context_.logits(outputs_[i]), d_.n_known_, k, nullptr, sampling, pos);
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
        drafts_.clear();
        std::fill(tips_.begin(), tips_.end(), -1);
        drop_cells(n_rows_ > 0 ? n_rows_ + 1 : 0);
    }

  protected:
    struct Draft {
        int node;
        Token token;
        int parent;  // the draft row before it; -1 = the last committed row
        Pos pos;
        llama_seq_id id;  // that held it when it was run; -1 = it was not
    };

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

    // the draft row of a node; -1 = the last committed row
    int row_of(int node) const {
        if (node == 0) return -1;
        const auto is_its = [&](const Draft & d) { return d.node == node; };
        const auto at = std::find_if(drafts_.begin(), drafts_.end(), is_its);
        if (at == drafts_.end()) fail(ErrorKind::value, "node %d has no draft row", node);
        return (int)(at - drafts_.begin());
    }

    // the id, counted from the range's first, under which `row` was run; -1 = it was not
    int id_of(int row) const { return row < 0 ? 0 : drafts_[row].id < 0 ? -1 : drafts_[row].id - range_.first; }

    // whether the cells of an id still have those of a draft row and its ancestors
    bool holds(llama_seq_id id, int row) const {
        if (id < 0) return false;
        int at = tips_[id - range_.first];
        while (at > row) at = drafts_[at].parent;
        return at == row;
    }

    // A free id that takes over the cells of `parent`; -1 = there is none. Ids whose last row is the parent of one of
    // `rows` are not free.
    int branch_from(int parent, const std::vector<DraftRow> & rows, const std::vector<uint8_t> & is_used) {
        if (parent >= 0 && !holds(drafts_[parent].id, parent)) return -1;
        const llama_seq_id source = range_.first + id_of(parent);
        const Pos first = n_rows_ + 1, end = parent < 0 ? first : drafts_[parent].pos + 1;
        for (int i = range_.count - 1; i >= 0; --i) {
            const auto needs = [&](const DraftRow & r) { return id_of(row_of(r.parent)) == i; };
            if (is_used[i] || std::any_of(rows.begin(), rows.end(), needs)) continue;
            d_.cells_.branch(source, range_.first + i, first, end);
            return i;
        }
        return -1;
    }

    // Commits as many of the n rows as are there as draft rows; returns how many.
    int keep_drafts(const Token * tokens, int n) {
        std::vector<int> path;
        for (int at = -1; (int)path.size() < n;) {
            const auto next = std::find_if(drafts_.begin(), drafts_.end(), [&](const Draft & d) {
                return d.parent == at && d.token == tokens[path.size()];
            });
            if (next == drafts_.end() || !holds(next->id, (int)(next - drafts_.begin()))) break;
            path.push_back(at = (int)(next - drafts_.begin()));
        }
        const Pos first = n_rows_ + 1, end = first + (Pos)path.size();
        const llama_seq_id id = path.empty() ? -1 : drafts_[path.back()].id;
        for (int i = 0; i < range_.count && id >= 0; ++i) {
            if (range_.first + i != id) d_.cells_.branch(id, range_.first + i, first, end);
        }
        n_rows_ += (int)path.size();
        return (int)path.size();
    }

    ModelDrafter & d_;
    SeqRange range_;
    int n_state_;  // values that a head reads; 0 = a small model
    int n_rows_ = 0;
    std::vector<Draft> drafts_;
    std::vector<float> states_;  // [1 + draft row]: what rows behind it read; [0] of the last committed row
    std::vector<int> outputs_;   // of the last call: rows of the batch
    std::vector<int> tips_;      // per id: the last draft row among its cells; -1 = none
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
            drafts_.push_back({row.node, row.token, parent, n_rows_, -1});
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
    n_own_ = n_vocab_of(*model_);
    n_known_ = std::min(n_own_, target.vocab().size());
    check_fit();
    make_context(own);
}

void ModelDrafter::make_context(const TargetOptions & options) {
    const int n_ids = (int)llama_max_parallel_sequences() / options.n_sequences;
    n_leaves_ = std::clamp(n_ids, 1, n_branches_max);
    if (is_head()) n_leaves_ = std::min(n_leaves_, options.n_leaves_max);
    if (is_assistant()) n_leaves_ = target_.cells().n_ids();  // they are the target's
    // all draft rows of a level have to be in one batch
    const int n_rows = options.n_sequences * (n_rows_max + 1);
    n_ubatch_ = std::max(options.n_ubatch, n_rows);

    llama_context_params p = Context::params(options);
    p.n_ctx = (uint32_t)options.n_sequences * (uint32_t)(options.n_ctx + n_rows_max + 1);
    p.n_batch = (uint32_t)std::max(options.n_batch, n_rows);
    p.n_ubatch = (uint32_t)n_ubatch_;
    p.n_seq_max = (uint32_t)(options.n_sequences * n_leaves_);
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
        record_states(context_.get(), gives_states_of_outputs(*model_));
    } else if (!context_.generates()) {
        refuse_generating(*model_);
    }
    CellRules rules;
    rules.n_conversations = options.n_sequences;
    rules.n_ctx = options.n_ctx;
    rules.n_draft_max = n_rows_max;
    rules.n_leaves_max = n_leaves_;
    cells_ = Cells(rules);
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
    t.n_level_rows_max = is_assistant() ? n_rows_max : n_leaves_;
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

std::vector<DraftMemoryUse> ModelDrafter::memory_use() const {
    std::vector<DraftMemoryUse> out;
    for (const MemoryUse & m : context_.memory()) {
        const size_t weights = heads_ == Heads::in_model ? 0 : m.weights;  // the target's
        out.push_back({m.device(), weights, m.cache, m.compute});
    }
    return out;
}

}  // namespace eaglecpp
