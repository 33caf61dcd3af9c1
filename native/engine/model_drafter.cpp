// SPDX-License-Identifier: MIT
#include "engine/model_drafter.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "gguf/keys.h"

namespace eaglecpp {

namespace {
// Draft rows of a round, and branches of a tree: what a small model's chain and its likely side branches need. Each
// branch takes one of the 256 sequence ids that llama.cpp has for all conversations.
constexpr int n_rows_most = 64, n_branches_most = 8;

ggml_backend_dev_t cpu_device() {
    return ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
}

TargetOptions model_options(const EngineOptions & options, const Target & target, Heads heads) {
    TargetOptions o = options;
    const TargetOptions & t = target.options();
    o.path = options.draft_path;
    o.is_drafter = true;
    o.n_ctx = t.n_ctx;
    o.n_threads = t.n_threads;
    o.n_threads_batch = t.n_threads_batch;
    o.n_sequences = t.n_sequences;
    o.n_draft_max = n_rows_most;
    o.n_draft_more = 0;
    o.load_heads = o.runs_heads = heads != Heads::none;
    o.n_leaves_max = std::clamp((int)llama_max_parallel_sequences() / t.n_sequences, 1, n_branches_most);
    if (o.runs_heads) o.n_leaves_max = std::min(o.n_leaves_max, t.n_leaves_max);
    // the ids are the target's
    if (heads == Heads::assistant) o.n_leaves_max = target.cells().n_ids();
    o.separate_caches = false;
    o.type_k = o.type_v = options.draft_type_kv;
    o.lora.clear();
    if (heads == Heads::in_model) return o;
    // these speak of the target's layers
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
    o.split_mode = "none";
    o.main_gpu = 0;
    for (size_t i = 0; i < ggml_backend_dev_count() && ggml_backend_dev_get(i) != device; ++i) {
        o.main_gpu += ggml_backend_dev_type(ggml_backend_dev_get(i)) != GGML_BACKEND_DEVICE_TYPE_CPU;
    }
    return o;
}

}  // namespace

class ModelSequence : public DraftSequence {
  public:
    ModelSequence(ModelDrafter & drafter, const SeqRange & range)
        : drafter_(drafter),
          cells_(drafter.model_->cells()),
          range_(range),
          n_state_(drafter.is_head() ? drafter.model_->model().n_state() : 0),
          tips_(range.count, -1) {}
    ~ModelSequence() override { drop_cells(0); }

    int n_rows() const override { return n_rows_; }

    void commit(const FeatureRows & features, const Token * tokens) override {
        const int n_before = n_rows_;
        try {
            commit_most(tokens, features, features.n_rows);
        } catch (...) {
            truncate(n_before);
            throw;
        }
    }

    // Commits the first n rows in batches of their own.
    void commit_most(const Token * tokens, const FeatureRows & features, int n) {
        truncate(n_rows_);
        int at = drafter_.is_assistant() ? n : first_at();
        TargetBatch & batch = drafter_.batch_;
        while (at < n) {
            batch.clear();
            begin_batch(n_rows_ + at + 1);
            for (; at < n && batch.n_rows() < drafter_.model_->n_prompt_rows(); ++at) {
                batch.add(drafter_.map_.for_draft(tokens[at]), n_rows_ + at + 1, range_, false, state_at(features, at));
            }
            drafter_.run(/*is_prompt=*/true, [this] { drop_batch(); });
        }
        n_rows_ += n;
    }

    // Commits as many of the n rows as are there as draft rows, and drops the other drafts; returns how many.
    int keep_drafts(const Token * tokens, int n) {
        std::vector<int> path;
        if (n_state_ > 0) n = 0;
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
            if (range_.first + i != id) cells_.branch(id, range_.first + i, first, end);
        }
        n_rows_ += (int)path.size();
        truncate(n_rows_);
        return (int)path.size();
    }

    // the rows of a batch with others: the last one with output
    void add_commit(const Token * tokens, const FeatureRows & features) {
        TargetBatch & batch = drafter_.batch_;
        const int n = features.n_rows, last = n - 1;
        begin_batch(n_rows_ + 1 + std::min(first_at(), 0));
        for (int at = drafter_.is_assistant() ? last : first_at(); at < n; ++at) {
            batch.add(drafter_.map_.for_draft(tokens[at]), n_rows_ + at + 1, range_, at == last,
                      state_at(features, at));
        }
        outputs_.assign(1, batch.n_rows() - 1);
        n_rows_ += n;
        if (drafter_.n_heads_ == 1) return;
        last_token_ = tokens[last];
        last_state_.assign(state_at(features, last), state_at(features, last) + n_state_);
    }

    // Takes the rows of the last batch out of the cache again.
    void drop_batch() { drop_cells(batch_pos_); }

    // The one row of the next head, with all that it follows: they are in the cache with the keys and values of others.
    void add_chained(const DraftRow & row) {
        outputs_.assign(1, -1);
        const int depth = (int)drafts_.size() + 1;
        drafts_.push_back({row.node, row.token, row_of(row.parent), n_rows_ + depth, -1});
        if (depth >= drafter_.n_heads_) return;
        drop_cells(n_rows_);
        is_last_lost_ = true;
        TargetBatch & batch = drafter_.batch_;
        batch.add(last_token_, n_rows_, range_, false, last_state_.data());
        for (int i = 0; i < depth; ++i) {
            batch.add(drafter_.map_.for_draft(drafts_[i].token), drafts_[i].pos, range_, i == depth - 1,
                      states_.data() + (size_t)i * n_state_);
        }
        outputs_[0] = batch.n_rows() - 1;
    }

    // No row of the last batch has an output: it was not run.
    void say_nothing() { std::fill(outputs_.begin(), outputs_.end(), -1); }

    // of draft rows
    int depth() const { return (int)drafts_.size(); }

    // Draft rows of one level. A row without a free sequence id is not run and has no output.
    void add_level(const std::vector<DraftRow> & rows) {
        if (drafter_.n_heads_ > 1) return add_chained(rows[0]);
        TargetBatch & batch = drafter_.batch_;
        if (drafter_.is_assistant()) return add_free(rows);
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
            outputs_[i] = batch.n_rows();
            batch.add(drafter_.map_.for_draft(rows[i].token), pos, std::vector<llama_seq_id>{range_.first + own[i]},
                      true, n_state_ > 0 ? states_.data() + (size_t)(1 + parent) * n_state_ : nullptr);
        }
        for (size_t i = 0; i < rows.size(); ++i) {
            if (own[i] >= 0) tips_[own[i]] = n_before + (int)i;
        }
    }

    // Draft rows of an assistant, which see the target's rows and not each other.
    void add_free(const std::vector<DraftRow> & rows) {
        outputs_.clear();
        for (const DraftRow & row : rows) {
            const int parent = row_of(row.parent);
            drafts_.push_back({row.node, row.token, parent, n_rows_, -1});
            outputs_.push_back(drafter_.batch_.n_rows());
            drafter_.batch_.add(drafter_.map_.for_draft(row.token), n_rows_, range_, true,
                                states_.data() + (size_t)(1 + parent) * n_state_);
        }
    }

    // After a batch with rows of this conversation: the states that draft rows behind them read.
    void take_commit_state() { take_states(-1); }
    void take_level_states() { take_states((int)(drafts_.size() - outputs_.size())); }

    // `first`: the draft row of the first output, -1 = the last committed row
    void take_states(int first) {
        if (n_state_ == 0) return;
        states_.resize((1 + first + outputs_.size()) * n_state_);
        for (size_t i = 0; i < outputs_.size(); ++i) {
            if (outputs_[i] < 0) continue;
            std::copy_n(drafter_.model_->state(outputs_[i]), n_state_,
                        states_.begin() + (size_t)(1 + first + i) * n_state_);
        }
    }

    std::vector<Candidate> candidates(int i, int k) override {
        if (outputs_[i] < 0) return {};
        const DraftLogits row = drafter_.logits(outputs_[i]);
        return known(top_k(row.logits, row.n, k, row.ids));
    }
    std::vector<Candidate> candidates(int i, int k, const CoupledSampling & sampling, Pos pos) override {
        if (outputs_[i] < 0) return {};
        const DraftLogits row = drafter_.logits(outputs_[i]);
        return known(coupled_.best(row.logits, row.n, k, row.ids, sampling, pos));
    }
    bool take_step(int, const DraftRow &) override { return false; }

    std::vector<uint8_t> save_rows(int n) const override {
        return n > 0 && !drafter_.is_assistant() ? cells_.save_rows(range_) : std::vector<uint8_t>();
    }
    void load_rows(const std::vector<uint8_t> & bytes, int n) override {
        truncate(0);
        if (n == 0) return;
        if (!drafter_.is_assistant() && !cells_.load_rows(range_, bytes, n + 1)) {
            fail(ErrorKind::context_full, "the drafter's cache has no room for %d rows", n);
        }
        n_rows_ = n;
        truncate(n);
    }

    void truncate(int n) override {
        is_last_lost_ = is_last_lost_ && n >= n_rows_;
        n_rows_ = std::min(n_rows_, n);
        drafts_.clear();
        std::fill(tips_.begin(), tips_.end(), -1);
        drop_cells(n_rows_ > 0 ? n_rows_ + 1 - is_last_lost_ : 0);
    }

  private:
    struct Draft {
        int node;
        Token token;
        int parent;  // the draft row before it; -1 = the last committed row
        Pos pos;
        llama_seq_id id;  // that held it when it was run; -1 = it was not
    };

    // keeps positions [0, n)
    void drop_cells(Pos n) {
        if (!drafter_.is_assistant()) cells_.truncate(range_, n);
    }

    // Rows from position `first` on follow in the batch, and before them the last committed one, if drafts by several
    // heads have left only one's keys and values of it.
    void begin_batch(Pos first) {
        batch_pos_ = first;
        if (!is_last_lost_) return;
        is_last_lost_ = false;
        batch_pos_ = n_rows_;
        drafter_.batch_.add(last_token_, n_rows_, range_, false, last_state_.data());
    }

    // the draft row of a node; -1 = the last committed row
    int row_of(int node) const {
        if (node == 0) return -1;
        const auto is_its = [&](const Draft & d) { return d.node == node; };
        const auto at = std::find_if(drafts_.begin(), drafts_.end(), is_its);
        if (at == drafts_.end()) fail(ErrorKind::value, "node %d has no draft row", node);
        return (int)(at - drafts_.begin());
    }

    // a small model's first row lies before row 0
    int first_at() const { return n_rows_ == 0 && n_state_ == 0 ? -1 : 0; }
    const float * state_at(const FeatureRows & features, int at) const {
        return n_state_ > 0 ? features.layer[0] + (size_t)at * n_state_ : nullptr;
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
            cells_.branch(source, range_.first + i, first, end);
            return i;
        }
        return -1;
    }

    static std::vector<Candidate> known(std::vector<Candidate> all) {
        const auto is_unknown = [](const Candidate & c) { return c.token < 0; };
        all.erase(std::remove_if(all.begin(), all.end(), is_unknown), all.end());
        return all;
    }

    ModelDrafter & drafter_;
    Cells & cells_;
    SeqRange range_;
    int n_state_;  // values that a head reads; 0 = a small model
    int n_rows_ = 0;
    std::vector<Draft> drafts_;
    std::vector<float> states_;  // [1 + draft row]: what rows behind it read; [0] of the last committed row
    std::vector<int> tips_;      // per id: the last draft row among its cells; -1 = none
    std::vector<int> outputs_;   // of the last call: rows of the batch
    Pos batch_pos_ = 0;          // of the first of its rows there
    // of several heads: the last committed row, and whether the cache has it for one of them only
    Token last_token_ = 0;
    std::vector<float> last_state_;
    bool is_last_lost_ = false;
    CoupledDraft coupled_;
};

static ModelSequence * own(DraftSequence * seq) {
    return static_cast<ModelSequence *>(seq);
}

ModelDrafter::ModelDrafter(const EngineOptions & options, const Target & target, Heads heads)
    : heads_(heads), target_(target) {
    const TargetOptions own = model_options(options, target, heads);
    model_ = heads == Heads::in_model ? std::make_unique<Target>(own, target) : std::make_unique<Target>(own);
    check_fit(target);
    if (heads != Heads::in_model) map_ = match_tokens(*model_, target);
    if (!is_head()) {
        model_->open_context({});
        return;
    }
    n_heads_ = count_heads(model_->model());
    model_->open_context_with_states(is_assistant() ? &target : nullptr);
}

void ModelDrafter::check_fit(const Target & target) const {
    const TargetModel & own = model_->model();
    const std::string path = own.path(), arch = own.meta(keys::architecture);
    if (!is_head() && own.has_state()) {
        fail(ErrorKind::unsupported,
             "%s cannot draft: a model of architecture '%s' keeps a state from which rejected drafts cannot be taken "
             "back; use a small model with plain attention",
             path.c_str(), arch.c_str());
    }
    if (!is_head()) return;
    const std::string expected = is_assistant() ? "gemma4" : arch, found = target.model().meta(keys::architecture);
    const int n_own = own.n_state(), n_target = target.model().n_state();
    if (found == expected && n_own == n_target) {
        if (is_assistant()) check_assistant(GgufReader(path), GgufReader(target.options().path));
        return;
    }
    fail(
        ErrorKind::mismatch,
        "%s cannot draft for %s: its heads read %d values of a '%s', the target is a '%s' that gives %d; use the heads "
        "of this very model",
        path.c_str(), target.options().path.c_str(), n_own, expected.c_str(), found.c_str(), n_target);
}

DraftTraits ModelDrafter::traits() const {
    DraftTraits t;
    if (is_head()) {
        t.n_aux = 1;
        t.n_embd_target = model_->model().n_state();
    }
    t.n_heads = n_heads_;
    t.n_draft_rows_max = n_heads_ > 1 ? n_heads_ - 1 : model_->options().n_draft_max;
    t.n_level_rows_max = n_heads_ > 1 ? 1 : is_assistant() ? n_rows_most : model_->options().n_leaves_max;
    return t;
}

bool ModelDrafter::run(bool is_prompt, const std::function<void()> & drop) {
    for (int head = n_heads_ - 1; head > 0; --head) {
        model_->select_head(head);
        model_->decode(batch_, is_prompt);
        drop();
    }
    if (n_heads_ > 1) model_->select_head(0);
    return decode(is_prompt);
}

// Rows of an assistant need cells that stay free in the target's cache, where rejected nodes may hold them.
bool ModelDrafter::decode(bool is_prompt) {
    try {
        model_->decode(batch_, is_prompt);
        return true;
    } catch (const Error & e) {
        if (!is_assistant() || e.kind != ErrorKind::context_full) throw;
        return false;
    }
}

std::unique_ptr<DraftSequence> ModelDrafter::open(int conversation) {
    const SeqRange range = (is_assistant() ? target_ : *model_).cells().seqs(conversation);
    return std::make_unique<ModelSequence>(*this, range);
}

void ModelDrafter::commit_together(const std::vector<DraftCommit> & commits) {
    std::vector<int> n_before;
    for (const DraftCommit & c : commits) n_before.push_back(c.seq->n_rows());
    try {
        std::vector<int> n_done;
        std::vector<FeatureRows> left;
        for (const DraftCommit & c : commits) {
            // the last row is run in any case: its output is what was asked for
            int n = own(c.seq)->keep_drafts(c.tokens, c.features.n_rows - 1);
            const int n_left = c.features.n_rows - n;
            FeatureRows rows = c.features.from(n, traits().n_embd_target);
            if (n_left > n_rows_most) {
                own(c.seq)->commit_most(c.tokens + n, rows, n_left - 1);
                rows = rows.from(n_left - 1, traits().n_embd_target);
                n += n_left - 1;
            }
            n_done.push_back(n);
            left.push_back(rows);
        }
        batch_.clear();
        for (size_t i = 0; i < commits.size(); ++i) {
            own(commits[i].seq)->add_commit(commits[i].tokens + n_done[i], left[i]);
        }
        const bool has_room = run(/*is_prompt=*/false, [&] {
            for (const DraftCommit & c : commits) own(c.seq)->drop_batch();
        });
        for (const DraftCommit & c : commits) {
            if (!has_room) own(c.seq)->say_nothing();
            own(c.seq)->take_commit_state();
        }
    } catch (...) {
        for (size_t i = 0; i < commits.size(); ++i) commits[i].seq->truncate(n_before[i]);
        throw;
    }
}

void ModelDrafter::extend_together(const std::vector<DraftLevel> & levels) {
    batch_.clear();
    try {
        for (const DraftLevel & level : levels) own(level.seq)->add_level(level.rows);
        if (batch_.n_rows() == 0) return;
        // conversations of a call are at the same depth
        if (n_heads_ > 1) model_->select_head(own(levels[0].seq)->depth());
        const bool has_room = decode(/*is_prompt=*/false);
        for (const DraftLevel & level : levels) {
            if (!has_room) own(level.seq)->say_nothing();
            own(level.seq)->take_level_states();
        }
    } catch (...) {
        for (const DraftLevel & level : levels) level.seq->truncate(level.seq->n_rows());
        throw;
    }
}

DraftLogits ModelDrafter::logits(int row) {
    const float * logits = model_->logits(row);
    const int n_own = model_->vocab().size();
    if (map_.to_target.empty()) return {logits, n_own, nullptr};
    masked_.assign(logits, logits + n_own);
    for (int i = 0; i < n_own; ++i) {
        if (map_.to_target[i] < 0) masked_[i] = -INFINITY;
    }
    return {masked_.data(), n_own, map_.to_target.data()};
}

std::string ModelDrafter::device_name() const {
    ggml_backend_dev_t device = model_->model().output_device();
    return ggml_backend_dev_name(device ? device : cpu_device());
}

std::vector<DraftMemoryUse> ModelDrafter::memory_use() const {
    std::vector<DraftMemoryUse> out;
    for (const MemoryUse & m : model_->memory()) {
        ggml_backend_dev_t device = m.device();
        auto known = std::find_if(out.begin(), out.end(), [&](const auto & use) { return use.device == device; });
        if (known == out.end()) known = out.insert(out.end(), {device, 0, 0, 0});
        known->weights += heads_ == Heads::in_model ? 0 : m.weights;  // the target's
        known->cache += m.cache, known->compute += m.compute;
    }
    return out;
}

}  // namespace eaglecpp
