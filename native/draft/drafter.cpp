// SPDX-License-Identifier: MIT
#include "draft/drafter.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "algo/topk.h"
#include "base/error.h"
#include "base/process.h"
#include "kernels/hook.h"

namespace eaglecpp {

namespace {
// Rows of one commit graph: large enough for efficient matrix products, small enough that features and activations
// of an 8B-class drafter stay within some 20 MiB.
constexpr int n_commit_chunk = 128;
// Graph shapes kept; a generation needs a handful.
constexpr size_t n_graphs_max = 32;
// Where graphs have few sizes: sizes of the cache between a length and its double.
constexpr int n_kv_steps = 4;
// Tokens that a graph picks for a row: llama.cpp's default top-k is 40.
constexpr int n_top = 64;
// Rows of a draft level that memory is set aside for; wider ones get theirs when they come.
constexpr int n_reserved_rows = 16;
// More than any machine holds; their sum, padded, is still an int.
constexpr int n_ctx_max = 1 << 30, n_draft_rows_limit = 1 << 20;
constexpr ggml_fp16_t f16_zero = 0x0000;
constexpr ggml_fp16_t f16_minus_inf = 0xFC00;
}  // namespace

DraftSequence::DraftSequence(Drafter & drafter) : drafter_(drafter), kv_(drafter.take_kv()) {}

DraftSequence::~DraftSequence() {
    if (kv_) drafter_.give_kv(std::move(kv_));
}

// Devices prepare a graph anew whenever its size changes, and their rows are nearly free: few sizes then. Three rows
// are what most commits have; their features are dearer to send than a graph more is to keep.
int DraftSequence::n_padded(int n_rows) const {
    if (!drafter_.is_remote() || n_rows == 3) return n_rows;
    int n = 1;
    while (n < n_rows) n *= 2;
    return n;
}

int DraftSequence::n_slots_read(int n_used) const {
    return std::min(DraftKv::pad(n_used, drafter_.is_remote() ? n_kv_steps : 0), kv_->n_slots());
}

DraftGraph & DraftGraphs::get(Drafter & drafter, const GraphShape & shape) {
    auto it = graphs_.find(shape);
    if (it == graphs_.end() || it->second.graph->epoch != drafter.memory().epoch()) {
        drafter.wait();
        if (it != graphs_.end()) graphs_.erase(it);
        if (graphs_.size() >= n_graphs_max) {
            graphs_.erase(std::min_element(graphs_.begin(), graphs_.end(), [](const auto & a, const auto & b) {
                return a.second.used < b.second.used;
            }));
        }
        auto built = build_draft_graph(drafter.spec(), drafter.weights(), shape, drafter.form(), drafter.memory());
        drafter.count_graph();
        it = graphs_.emplace(shape, Kept{std::move(built)}).first;
    }
    it->second.used = ++n_uses_;
    return *it->second.graph;
}

void DraftGraphs::forget(const DraftKv * kv) {
    for (auto it = graphs_.begin(); it != graphs_.end();) {
        const auto & parts = it->first.parts;
        const bool has = std::any_of(parts.begin(), parts.end(), [&](const GraphPart & p) { return p.kv == kv; });
        it = has ? graphs_.erase(it) : std::next(it);
    }
}

void DraftSequence::commit(const FeatureRows & features, const Token * tokens, bool want_output, int n_ahead) {
    check_room(features.n_rows);
    truncate(kv_->n_rows);
    const int n_target = drafter_.spec().n_embd_target;
    const int n_before = kv_->n_rows;
    try {
        for (int at = 0; at < features.n_rows; at += n_commit_chunk) {
            FeatureRows part = features.from(at, n_target);
            const bool is_last = part.n_rows <= n_commit_chunk;
            part.n_rows = std::min(part.n_rows, n_commit_chunk);
            std::vector<Call> calls{commit_call(part, tokens + at, want_output && is_last, is_last ? n_ahead : 0)};
            run(calls);
        }
    } catch (...) {
        kv_->n_rows = n_before;  // the caller still holds the features of all rows
        throw;
    }
}

void DraftSequence::check_room(int n_rows) const {
    if (kv_->n_rows + n_rows <= kv_->n_ctx()) return;
    fail(ErrorKind::context_full, "the drafter's cache holds %d rows, %d are needed", kv_->n_ctx(),
         kv_->n_rows + n_rows);
}

// More rows than one graph takes: then all but the last of each go alone, as rows of a prompt do.
void DraftSequence::commit_together(const std::vector<DraftCommit> & commits) {
    if (commits.empty()) return;
    int n_rows = 0;
    std::vector<int> n_before;
    for (const DraftCommit & c : commits) {
        c.seq->check_room(c.features.n_rows);
        n_before.push_back(c.seq->n_rows());
        n_rows += c.features.n_rows;
    }
    try {
        std::vector<Call> calls;
        for (const DraftCommit & c : commits) {
            c.seq->truncate(c.seq->n_rows());
            FeatureRows rows = c.features;
            const int n_alone = n_rows > n_commit_chunk ? rows.n_rows - 1 : 0;
            if (n_alone > 0) {
                rows.n_rows = n_alone;
                c.seq->commit(rows, c.tokens, false);
                rows = c.features.from(n_alone, c.seq->drafter_.spec().n_embd_target);
            }
            calls.push_back(c.seq->commit_call(rows, c.tokens + n_alone, true, c.n_ahead));
        }
        run(calls);
    } catch (...) {
        for (size_t i = 0; i < commits.size(); ++i) commits[i].seq->kv_->n_rows = n_before[i];
        throw;
    }
}

DraftSequence::Call DraftSequence::commit_call(const FeatureRows & features, const Token * tokens, bool want_output,
                                               int n_ahead) {
    const bool can_mask = drafter_.spec().is_parallel() && want_output;
    if (n_ahead < 0 || n_ahead > (can_mask ? kv_->n_draft_rows_max() : 0)) {
        fail(ErrorKind::value, "%d masked rows behind a commit, expected 0 to %d", n_ahead,
             can_mask ? kv_->n_draft_rows_max() : 0);
    }
    const int n = features.n_rows + n_ahead;
    Call call{};
    call.seq = this;
    call.tokens = tokens;
    call.features = features;
    for (int i = 0; i < n; ++i) call.pos.push_back(kv_->n_rows + i);
    call.first_slot = kv_->n_rows;
    call.n_out = want_output ? 1 + n_ahead : 0;
    call.n_ahead = n_ahead;
    call.is_commit = true;
    // a single layer that only writes K/V reads no cache: one shape serves every context length
    const bool reads_kv = want_output || drafter_.spec().n_layer > 1;
    call.part = {kv_.get(), n_padded(n), call.n_out, reads_kv ? n_slots_read(kv_->n_rows + n) : 0};
    return call;
}

int DraftSequence::extend(const std::vector<DraftRow> & rows) {
    const int first = n_draft_rows();
    extend_together({{this, rows}});
    return first;
}

void DraftSequence::extend_together(const std::vector<DraftLevel> & levels) {
    std::vector<std::vector<Token>> tokens(levels.size());
    std::vector<Call> calls;
    try {
        for (size_t i = 0; i < levels.size(); ++i)
            calls.push_back(levels[i].seq->extend_call(levels[i].rows, tokens[i]));
        if (!calls.empty()) run(calls);
    } catch (...) {
        for (const Call & call : calls) {
            DraftSequence & s = *call.seq;
            s.parents_.resize(s.parents_.size() - call.n());
            s.positions_.resize(s.parents_.size());
        }
        throw;
    }
}

DraftSequence::Call DraftSequence::extend_call(const std::vector<DraftRow> & rows, std::vector<Token> & tokens) {
    const int n = (int)rows.size();
    const int first = n_draft_rows();
    if (drafter_.spec().is_parallel()) {
        fail(ErrorKind::value, "a parallel drafter gives all its tokens with the commit: no draft rows follow");
    }
    if (first + n > kv_->n_draft_rows_max()) {
        fail(ErrorKind::value, "%d draft rows in one round, the limit is %d", first + n, kv_->n_draft_rows_max());
    }
    Call call{};
    call.seq = this;
    for (int i = 0; i < n; ++i) {
        const int parent = rows[i].parent;
        if (parent < -1 || parent >= first) fail(ErrorKind::value, "draft row %d has no parent row %d", i, parent);
        tokens.push_back(rows[i].token);
        call.pos.push_back(parent < 0 ? kv_->n_rows : positions_[parent] + 1);
        call.feeds.push_back(1 + parent);
    }
    for (int i = 0; i < n; ++i) {
        parents_.push_back(rows[i].parent);
        positions_.push_back(call.pos[i]);
    }
    call.tokens = tokens.data();
    call.first_slot = kv_->n_rows + first;
    call.first_state = 1 + first;
    call.n_out = n;
    const int n_all = n_padded(n);
    call.part = {kv_.get(), n_all, n_all, n_slots_read(call.first_slot + n)};
    return call;
}

// Where the bytes of an input go: into the tensor itself where the host can write it, else to where they are sent from.
template <typename T>
static T * input(Drafter & drafter, const DraftGraph & g, const ggml_tensor * t) {
    const size_t at = (const uint8_t *)t->data - (const uint8_t *)g.packed->data;
    return (T *)(drafter.staging(g) + at);
}

void DraftSequence::run(std::vector<Call> & calls) {
    check_not_forked("the drafter cannot run");
    Drafter & drafter = calls[0].seq->drafter_;
    if (drafter.options().n_threads > 1) note_helper_threads();
    GraphShape shape{calls[0].is_commit, {}};
    for (const Call & call : calls) shape.parts.push_back(call.part);
    drafter.count_run();  // what the run before left may go with its graph
    DraftGraph & g = (calls.size() == 1 ? calls[0].seq->graphs_ : drafter.joint_graphs()).get(drafter, shape);
    drafter.wait();
    int at = 0, at_out = 0;
    for (size_t i = 0; i < calls.size(); ++i) {
        calls[i].seq->fill(g, calls[i], g.parts[i], at, at_out);
        at += calls[i].part.n_rows;
        at_out += calls[i].part.n_out;
    }
    drafter.start(g);
    Landed landed;
    if (g.top_ids) {
        static_assert(sizeof(int32_t) == sizeof(float), "ids, logits and probabilities side by side");
        landed.n = ggml_nelements(g.top_ids);
        uint8_t * landing = drafter.landing(3 * landed.n * sizeof(float));
        landed.ids = (const int32_t *)landing;
        landed.numbers = (const float *)landing + landed.n;
        for (const ggml_tensor * t : {g.top_ids, g.top_logits, g.top_probs}) {
            ggml_backend_tensor_get_async(drafter.backend(), t, landing, 0, landed.n * sizeof(float));
            landing += landed.n * sizeof(float);
        }
    }
    // the host's other work need not wait for a prompt's rows
    if (at_out > 0 || !drafter.is_remote()) drafter.wait();
    at_out = 0;
    for (Call & call : calls) {
        if (call.is_commit) call.seq->kv_->n_rows += call.features.n_rows;
        call.seq->take_outputs(g, call, at_out, landed);
        at_out += call.part.n_out;
    }
}

// Rows that only fill the graph come first: only the last rows of a commit run fully. They write where nobody reads.
void DraftSequence::fill(DraftGraph & g, const Call & call, const DraftGraph::Part & in, int first_row, int first_out) {
    const DraftSpec & s = drafter_.spec();
    const int n_all = call.part.n_rows, n = call.n(), n_idle = call.n_idle(), n_out = call.part.n_out;
    if (g.features) {
        const size_t n_part = s.n_embd_target, n_row = n_part * s.n_aux();
        float * dst = input<float>(drafter_, g, g.features) + first_row * n_row;
        std::fill_n(dst, n_idle * n_row, 0.0f);
        const int n_true = n - call.n_ahead;
        for (int i = 0; i < n_true; ++i) {
            for (int a = 0; a < s.n_aux(); ++a) {
                std::copy_n(call.features.layer[a] + i * n_part, n_part, dst + (n_idle + i) * n_row + a * n_part);
            }
        }
        for (int i = n_true; i < n; ++i) {
            std::copy_n(drafter_.weights().mask_feature.data(), n_row, dst + (n_idle + i) * n_row);
        }
    }
    if (in.state_idx) {
        int32_t * feeds = input<int32_t>(drafter_, g, in.state_idx);
        std::fill_n(feeds, n_idle, 0);
        std::copy(call.feeds.begin(), call.feeds.end(), feeds + n_idle);
    }
    // zeros of every type are finite
    const size_t n_embd_row = ggml_row_size(g.embd->type, s.n_embd);
    uint8_t * embd = input<uint8_t>(drafter_, g, g.embd) + first_row * n_embd_row;
    std::fill_n(embd, n_idle * n_embd_row, (uint8_t)0);
    for (int i = 0; i < n; ++i) {
        const Token token = i < n - call.n_ahead ? call.tokens[i] : s.mask_token;
        uint8_t * row = embd + (n_idle + i) * n_embd_row;
        if (g.embd_row) {
            std::copy_n(drafter_.weights().embedding.stored_row(token), n_embd_row, row);
        } else {
            drafter_.weights().embedding.row(token, (float *)row);
        }
    }
    if (g.embd_row) {
        int32_t * numbers = input<int32_t>(drafter_, g, g.embd_row) + first_row;
        std::iota(numbers, numbers + n_all, first_row);
    }
    int32_t * positions = input<int32_t>(drafter_, g, g.pos) + first_row;
    std::fill_n(positions, n_idle, 0);
    std::copy(call.pos.begin(), call.pos.end(), positions + n_idle);
    if (g.pos_out != g.pos) {
        std::copy_n(positions + n_all - n_out, n_out, input<int32_t>(drafter_, g, g.pos_out) + first_out);
    }
    for (int i = 0; g.row_out && i < n_out; ++i) {
        input<int32_t>(drafter_, g, g.row_out)[first_out + i] = first_row + n_all - n_out + i;
    }
    int64_t * slots = input<int64_t>(drafter_, g, in.slot);
    std::fill_n(slots, n_idle, kv_->idle_slot());
    std::iota(slots + n_idle, slots + n_all, (int64_t)call.first_slot);
    if (in.v_place) {
        const size_t n_row = (size_t)s.value_dim() * s.n_head_kv;
        int64_t * places = input<int64_t>(drafter_, g, in.v_place);
        for (int i = 0; i < n_all; ++i) {
            for (size_t c = 0; c < n_row; ++c) places[i * n_row + c] = (int64_t)c * kv_->n_slots() + slots[i];
        }
    }
    if (in.state_slot) {
        int64_t * states = input<int64_t>(drafter_, g, in.state_slot);
        std::fill_n(states, n_out - call.n_out, kv_->idle_state());
        std::iota(states + n_out - call.n_out, states + n_out, (int64_t)call.first_state);
    }
    if (in.mask) fill_mask(g, call, in.mask, in.n_mask_rows, 0);
    if (in.mask_window) fill_mask(g, call, in.mask_window, in.n_mask_rows, s.sliding_window);
}

void DraftSequence::take_outputs(const DraftGraph & g, const Call & call, int first_out, const Landed & landed) {
    run_ = drafter_.n_runs();
    first_out_ = first_out + call.part.n_out - call.n_out;
    n_out_ = call.n_out;
    logits_.clear();
    picked_.clear();
    logits_tensor_ = g.logits;
    n_logits_ = g.logits ? g.logits->ne[0] : 0;
    if (n_out_ == 0) return;
    if (g.top_ids) {
        read_picked(landed, g.top_ids->ne[0]);
    } else {
        logits(0);
    }
}

void DraftSequence::read_picked(const Landed & landed, size_t n_each) {
    for (int r = first_out_; r < first_out_ + n_out_; ++r) {
        Picked p;
        float best_prob = 0.0f;
        for (size_t i = r * n_each; i < (r + 1) * n_each; ++i) {
            p.tokens.emplace_back(landed.ids[i], landed.numbers[i]);
            best_prob = std::max(best_prob, landed.numbers[landed.n + i]);
        }
        std::sort(p.tokens.begin(), p.tokens.end(), [](const auto & a, const auto & b) {
            return a.second != b.second ? a.second > b.second : a.first < b.first;
        });
        p.log_sum_exp = p.tokens[0].second - std::log(best_prob);
        picked_.push_back(std::move(p));
    }
}

// A row sees the slots of positions up to its own: committed rows directly, draft rows only along its own parents.
// `window` > 0 hides positions that lie `window` or more behind. A row that only fills the graph sees one slot: without
// any its numbers would be none, and others might read them under their masks.
void DraftSequence::fill_mask(const DraftGraph & g, const Call & call, ggml_tensor * mask, int n_mask_rows,
                              int window) {
    const size_t n_kv = mask->ne[0];
    const int n = call.n();
    const int n_idle = std::max(0, n_mask_rows - n);
    const int first_draft = (int)parents_.size() - n;  // of this call's rows
    ggml_fp16_t * rows = input<ggml_fp16_t>(drafter_, g, mask);
    std::fill_n(rows, n_kv * n_mask_rows, f16_minus_inf);
    for (int r = 0; r < n_mask_rows; ++r) {
        ggml_fp16_t * row = rows + r * n_kv;
        if (r < n_idle) {
            row[call.first_slot] = f16_zero;
            continue;
        }
        const int i = n - n_mask_rows + r;
        const int low = window > 0 ? std::max(0, call.pos[i] - window + 1) : 0;
        const int n_seen = call.is_commit ? call.pos[i] + 1 : kv_->n_rows;
        for (int p = low; p < n_seen; ++p) row[p] = f16_zero;
        if (call.is_commit) continue;
        for (int d = first_draft + i; d >= 0 && positions_[d] >= low; d = parents_[d]) {
            row[kv_->n_rows + d] = f16_zero;
        }
    }
}

const float * DraftSequence::logits(int i) {
    if (logits_.empty()) {
        if (!logits_tensor_ || run_ != drafter_.n_runs()) fail(ErrorKind::broken, "these draft logits are gone");
        logits_.resize((size_t)n_out_ * n_logits_);
        ggml_backend_tensor_get(logits_tensor_, logits_.data(), (size_t)first_out_ * n_logits_ * sizeof(float),
                                logits_.size() * sizeof(float));
    }
    return logits_.data() + (size_t)i * n_logits_;
}

std::vector<Candidate> DraftSequence::candidates(int i, int k) {
    const Token * ids = drafter_.d2t().data();
    if (picked_.empty() || (size_t)k > picked_[i].tokens.size()) return top_k(logits(i), (int)n_logits_, k, ids);
    std::vector<Candidate> out;
    const Picked & p = picked_[i];
    for (int j = 0; j < k; ++j) {
        const auto & [index, logit] = p.tokens[j];
        out.push_back({ids ? ids[index] : index, logit - p.log_sum_exp});
    }
    return out;
}

// Everything that these cuts can leave was picked.
bool DraftSequence::covers(const Picked & picked, const CoupledSampling & sampling) const {
    if (picked.tokens.size() == n_logits_) return true;
    return sampling.top_k > 0 && (size_t)sampling.top_k <= picked.tokens.size();
}

std::vector<Candidate> DraftSequence::candidates(int i, int k, const CoupledSampling & sampling, Pos pos) {
    const Token * ids = drafter_.d2t().data();
    const float * row = nullptr;
    if (!picked_.empty() && covers(picked_[i], sampling)) {
        scattered_.assign(n_logits_, -INFINITY);
        for (const auto & [index, logit] : picked_[i].tokens) scattered_[index] = logit;
        row = scattered_.data();
    } else {
        row = logits(i);
    }
    return coupled_.best(row, (int)n_logits_, k, ids, sampling, pos);
}

void DraftSequence::get_state(int row, float * dst) const {
    const size_t n = drafter_.spec().n_embd * sizeof(float);
    ggml_backend_tensor_get(kv_->state(), dst, (1 + row) * n, n);
}

void DraftSequence::set_state(int row, const float * src) {
    const size_t n = drafter_.spec().n_embd * sizeof(float);
    ggml_backend_tensor_set(kv_->state(), src, (1 + row) * n, n);
}

std::vector<uint8_t> DraftSequence::save_rows(int n) const {
    drafter_.wait();
    return kv_->save_rows(n);
}

void DraftSequence::load_rows(const std::vector<uint8_t> & bytes, int n) {
    drafter_.wait();
    truncate(0);
    kv_->load_rows(bytes, n);
}

void DraftSequence::truncate(int n_rows) {
    kv_->n_rows = std::min(kv_->n_rows, n_rows);
    parents_.clear();
    positions_.clear();
}

size_t DraftSequence::n_bytes() const {
    size_t n = kv_->n_bytes();
    return n + drafter_.memory().n_bytes();
}

static void set_n_threads(ggml_backend_t backend, int n_threads) {
    ggml_backend_reg_t reg = ggml_backend_dev_backend_reg(ggml_backend_get_device(backend));
    const auto set = (ggml_backend_set_n_threads_t)ggml_backend_reg_get_proc_address(reg, "ggml_backend_set_n_threads");
    if (set) set(backend, n_threads);
}

Drafter::Drafter(const DraftFile & file, const DrafterOptions & options)
    : spec_(file.spec()), options_(options), d2t_(file.d2t()), path_(file.path()) {
    check_not_forked("the drafter cannot be loaded");
    if (options_.n_ctx < 1 || options_.n_ctx > n_ctx_max || options_.n_draft_rows_max < 1 ||
        options_.n_draft_rows_max > n_draft_rows_limit) {
        fail(ErrorKind::value, "a drafter for %d tokens and %d draft rows: expected 1 to %d and 1 to %d",
             options_.n_ctx, options_.n_draft_rows_max, n_ctx_max, n_draft_rows_limit);
    }
    if (!options_.device) options_.device = ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
    if (!options_.device) fail(ErrorKind::unsupported, "ggml was built without a CPU backend");
    if (ggml_backend_dev_type(options_.device) != GGML_BACKEND_DEVICE_TYPE_CPU) note_device();
    backend_.reset(ggml_backend_dev_init(options_.device, nullptr));
    if (!backend_) {
        fail(ErrorKind::unsupported, "device '%s' could not be started for the drafter",
             ggml_backend_dev_name(options_.device));
    }
    eaglecpp::set_n_threads(backend_.get(), options_.n_threads);
    buft_ = ggml_backend_get_default_buffer_type(backend_.get());
    options_.is_remote = options_.is_remote || !is_on_cpu();
    memory_ = std::make_unique<DraftMemory>(buft_);
    options_.use_kernels = options_.use_kernels && is_on_cpu() && kernels::status().is_active;
    weights_ = DraftWeights::load(file, buft_, options_.use_kernels);
}

void Drafter::set_n_threads(int n_threads) {
    if (n_threads == options_.n_threads) return;
    options_.n_threads = n_threads;
    eaglecpp::set_n_threads(backend_.get(), n_threads);
}

std::string Drafter::device_name() const {
    return ggml_backend_dev_name(options_.device);
}

static void check_table(const std::string & path, const char * what, const ggml_tensor * t, int n_embd, int n_rows) {
    if (t->ne[0] != n_embd || t->ne[1] != n_rows) {
        fail(ErrorKind::mismatch, "%s has no %s of its own and the target's is [%lld, %lld], expected [%d, %d]",
             path.c_str(), what, (long long)t->ne[1], (long long)t->ne[0], n_rows, n_embd);
    }
}

void Drafter::share_embedding(const ggml_tensor * table) {
    check_table(path_, "token embedding", table, spec_.n_embd, spec_.n_vocab);
    weights_.embedding = EmbeddingTable::from_tensor(table);
}

void Drafter::set_embedding(EmbeddingTable table) {
    weights_.embedding = std::move(table);
}

void Drafter::share_head(const ggml_tensor * head, const ggml_tensor * to_copy) {
    check_table(path_, "output head", head, spec_.n_embd, spec_.n_draft_vocab);
    if (ggml_backend_supports_buft(backend_.get(), ggml_backend_buffer_get_type(head->buffer))) {
        weights_.head = const_cast<ggml_tensor *>(head);
        return;
    }
    if (!to_copy) {
        fail(ErrorKind::unsupported,
             "%s uses the target's output head, which was repacked for the CPU and cannot be "
             "copied to %s; use repack='off' or draft_device='cpu'",
             path_.c_str(), device_name().c_str());
    }
    head_ctx_.reset(ggml_init({2 * ggml_tensor_overhead(), nullptr, /*no_alloc=*/true}));
    weights_.head = ggml_dup_tensor(head_ctx_.get(), to_copy);
    head_buffer_.reset(ggml_backend_alloc_ctx_tensors_from_buft(head_ctx_.get(), buft_));
    if (!head_buffer_) fail(ErrorKind::out_of_memory, "no room for a copy of the target's output head");
    ggml_backend_tensor_copy(to_copy, weights_.head);
}

uint8_t * Drafter::staging(const DraftGraph & g) {
    if (ggml_backend_buffer_is_host(g.packed->buffer)) return (uint8_t *)g.packed->data;
    return staging_.at_least(ggml_nbytes(g.packed), options_.device);
}

uint8_t * Drafter::landing(size_t n) {
    return landing_.at_least(n, options_.device);
}

uint8_t * Drafter::HostMemory::at_least(size_t n, ggml_backend_dev_t device) {
    if (!pinned_ || ggml_backend_buffer_get_size(pinned_.get()) < n) {
        if (unpinned_.size() >= n) return unpinned_.data();
        ggml_backend_buffer_type_t host = ggml_backend_dev_host_buffer_type(device);
        pinned_.reset(host ? ggml_backend_buft_alloc_buffer(host, n) : nullptr);
    }
    if (pinned_) return (uint8_t *)ggml_backend_buffer_get_base(pinned_.get());
    unpinned_.resize(n);
    return unpinned_.data();
}

void Drafter::start(const DraftGraph & g) {
    if (!ggml_backend_buffer_is_host(g.packed->buffer)) {
        ggml_backend_tensor_set_async(backend_.get(), g.packed, staging(g), 0, ggml_nbytes(g.packed));
    }
    const kernels::ComputeScope scope(options_.use_kernels);
    is_running_ = true;
    const ggml_status status = ggml_backend_graph_compute_async(backend_.get(), g.gf);
    if (status == GGML_STATUS_SUCCESS) return;
    wait();
    fail(status == GGML_STATUS_ALLOC_FAILED ? ErrorKind::out_of_memory : ErrorKind::broken,
         "the drafter's graph failed on %s: %s", device_name().c_str(), ggml_status_to_string(status));
}

void Drafter::wait() {
    if (!is_running_) return;
    is_running_ = false;
    ggml_backend_synchronize(backend_.get());
}

std::unique_ptr<DraftKv> Drafter::take_kv() {
    if (idle_kv_.empty()) {
        return std::make_unique<DraftKv>(spec_, options_.n_ctx, options_.n_draft_rows_max, options_.type_kv,
                                         /*v_transposed=*/!form_.flash_attn, buft_);
    }
    std::unique_ptr<DraftKv> kv = std::move(idle_kv_.back());
    idle_kv_.pop_back();
    kv->clear();
    return kv;
}

void Drafter::give_kv(std::unique_ptr<DraftKv> kv) {
    wait();
    joint_graphs_.forget(kv.get());
    if (options_.is_remote) idle_kv_.push_back(std::move(kv));
}

bool Drafter::supports(const GraphForm & form, std::string & missing) {
    const DraftKv kv(spec_, 256, 1, options_.type_kv, /*v_transposed=*/!form.flash_attn, buft_);
    // of two conversations: there are more operations for several
    const GraphPart commit{&kv, 8, 1, 256}, extend{&kv, 8, 8, 256};
    for (const GraphShape & shape : {GraphShape{true, {commit, commit}}, GraphShape{false, {extend, extend}}}) {
        const auto g = build_draft_graph(spec_, weights_, shape, form, *memory_);
        for (int i = 0; i < ggml_graph_n_nodes(g->gf); ++i) {
            const ggml_tensor * node = ggml_graph_node(g->gf, i);
            if (!ggml_backend_supports_op(backend_.get(), node)) {
                missing = strf("%s (%s)", ggml_op_desc(node), node->name);
                return false;
            }
        }
    }
    return true;
}

void Drafter::reserve(int n_sequences) {
    if (!options_.is_remote) return;
    std::vector<std::unique_ptr<DraftKv>> all;
    for (int i = 0; i < n_sequences; ++i) all.push_back(take_kv());
    const DraftKv * kv = all[0].get();
    const GraphPart commit{kv, n_commit_chunk, 1, kv->n_slots()};
    const GraphPart extend{kv, n_reserved_rows, n_reserved_rows, kv->n_slots()};
    for (const GraphShape & shape : {GraphShape{true, {commit}}, GraphShape{false, {extend}}}) {
        build_draft_graph(spec_, weights_, shape, form_, *memory_);
    }
    for (auto & kv : all) give_kv(std::move(kv));
}

static size_t n_bytes_of(const ggml_backend_buffer_ptr & buffer) {
    return buffer ? ggml_backend_buffer_get_size(buffer.get()) : 0;
}

Drafter::Memory Drafter::memory_use() const {
    Memory m{};
    m.weights = n_bytes_of(weights_.buffer) + n_bytes_of(weights_.packed_buffer) + n_bytes_of(head_buffer_);
    m.compute = memory_->n_bytes();
    m.host = weights_.embedding.n_bytes();
    m.cache = DraftKv::n_bytes_for(spec_, options_.n_ctx, options_.n_draft_rows_max, options_.type_kv,
                                   /*v_transposed=*/!form_.flash_attn);
    return m;
}

void Drafter::finish() {
    if (weights_.embedding.empty() || !weights_.head) {
        fail(ErrorKind::mismatch, "%s has no %s of its own and none of a target was given", path_.c_str(),
             weights_.head ? "token embedding" : "output head");
    }
    std::string missing;
    form_ = {options_.flash_attn && supports({true, 0}, missing), 0};
    if (!form_.flash_attn && !supports(form_, missing)) {
        fail(ErrorKind::unsupported, "device '%s' does not implement %s for this drafter; use draft_device='cpu'",
             device_name().c_str(), missing.c_str());
    }
    if (!options_.is_remote) return;
    // rows come back whole where the device cannot pick
    GraphForm better = form_;
    better.n_top = n_top;
    if (supports(better, missing)) form_ = better;
    // token embeddings go there as F32 where it cannot read their type
    better = form_;
    better.type_embd = weights_.embedding.type();
    if (supports(better, missing)) form_ = better;
}

}  // namespace eaglecpp
