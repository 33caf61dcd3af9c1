// SPDX-License-Identifier: MIT
#include "draft/drafter.h"

#include <algorithm>

#include "algo/topk.h"
#include "base/error.h"
#include "base/process.h"
#include "kernels/hook.h"

namespace eaglecpp {

namespace {
// Rows of one commit graph: large enough for efficient matrix products, small enough that features and activations
// of an 8B-class drafter stay within some 20 MiB.
constexpr int n_commit_chunk = 128;
// Graph shapes kept per sequence; a generation needs a handful.
constexpr size_t n_graphs_max = 32;
// More than any machine holds; their sum, padded, is still an int.
constexpr int n_ctx_max = 1 << 30, n_draft_rows_limit = 1 << 20;
constexpr ggml_fp16_t f16_zero = 0x0000;
constexpr ggml_fp16_t f16_minus_inf = 0xFC00;
}  // namespace

DraftSequence::DraftSequence(Drafter & drafter)
    : drafter_(drafter),
      kv_(drafter.spec(), drafter.options().n_ctx, drafter.options().n_draft_rows_max, drafter.options().type_kv,
          /*v_transposed=*/!drafter.flash_attn(), drafter.buft()) {}

DraftGraph & DraftSequence::graph(const GraphShape & shape) {
    auto it = graphs_.find(shape);
    if (it != graphs_.end()) return *it->second;
    if (graphs_.size() >= n_graphs_max) {
        // the context has grown past the shapes of earlier lengths
        for (auto g = graphs_.begin(); g != graphs_.end();) {
            g = g->first.n_kv != shape.n_kv ? graphs_.erase(g) : std::next(g);
        }
        if (graphs_.size() >= n_graphs_max) graphs_.clear();
    }
    auto built =
        build_draft_graph(drafter_.spec(), drafter_.weights(), kv_, shape, drafter_.flash_attn(), drafter_.buft());
    return *(graphs_[shape] = std::move(built));
}

void DraftSequence::commit(const FeatureRows & features, const Token * tokens, bool want_output) {
    truncate(kv_.n_rows);
    if (kv_.n_rows + features.n_rows > kv_.n_ctx()) {
        fail(ErrorKind::context_full, "the drafter's cache holds %d rows, %d are needed", kv_.n_ctx(),
             kv_.n_rows + features.n_rows);
    }
    const int n_target = drafter_.spec().n_embd_target;
    const int n_before = kv_.n_rows;
    try {
        for (int at = 0; at < features.n_rows; at += n_commit_chunk) {
            FeatureRows part = features.from(at, n_target);
            const bool is_last = part.n_rows <= n_commit_chunk;
            part.n_rows = std::min(part.n_rows, n_commit_chunk);
            commit_chunk(part, tokens + at, want_output && is_last);
        }
    } catch (...) {
        kv_.n_rows = n_before;  // the caller still holds the features of all rows
        throw;
    }
}

void DraftSequence::commit_chunk(const FeatureRows & features, const Token * tokens, bool want_output) {
    const DraftSpec & s = drafter_.spec();
    const int n = features.n_rows;
    // a single layer that only writes K/V reads no cache: one shape serves every context length
    const bool reads_kv = want_output || s.n_layer > 1;
    const int n_kv = reads_kv ? DraftKv::pad(kv_.n_rows + n) : 0;
    DraftGraph & g = graph({/*commit=*/true, n, want_output ? 1 : 0, n_kv});

    const size_t n_part = s.n_embd_target * sizeof(float);
    for (int a = 0; a < s.n_aux(); ++a) {
        ggml_backend_tensor_set_2d(g.features, features.layer[a], a * n_part, n_part, n, g.features->nb[1], n_part);
    }
    std::vector<int32_t> pos(n);
    for (int i = 0; i < n; ++i) pos[i] = kv_.n_rows + i;
    if (want_output) {
        const int64_t slot = 0;
        ggml_backend_tensor_set(g.state_slot, &slot, 0, sizeof(slot));
    }
    slots_.assign(pos.begin(), pos.end());
    run(g, tokens, pos, want_output ? 1 : 0);
    kv_.n_rows += n;
}

int DraftSequence::extend(const std::vector<DraftRow> & rows) {
    const int n = (int)rows.size();
    const int first = n_draft_rows();
    if (first + n > kv_.n_draft_rows_max()) {
        fail(ErrorKind::value, "%d draft rows in one round, the limit is %d", first + n, kv_.n_draft_rows_max());
    }
    std::vector<int32_t> pos(n), state_idx(n);
    std::vector<Token> tokens(n);
    for (int i = 0; i < n; ++i) {
        const int parent = rows[i].parent;
        if (parent < -1 || parent >= first) fail(ErrorKind::value, "draft row %d has no parent row %d", i, parent);
        tokens[i] = rows[i].token;
        state_idx[i] = 1 + parent;
        pos[i] = parent < 0 ? kv_.n_rows : positions_[parent] + 1;
    }
    DraftGraph & g = graph({/*commit=*/false, n, n, DraftKv::pad(kv_.n_rows + first + n)});
    std::vector<int64_t> state_slots(n);
    slots_.resize(n);
    for (int i = 0; i < n; ++i) {
        slots_[i] = kv_.n_rows + first + i;
        state_slots[i] = 1 + first + i;
        parents_.push_back(rows[i].parent);
        positions_.push_back(pos[i]);
    }
    ggml_backend_tensor_set(g.state_idx, state_idx.data(), 0, n * sizeof(int32_t));
    ggml_backend_tensor_set(g.state_slot, state_slots.data(), 0, n * sizeof(int64_t));
    run(g, tokens.data(), pos, n);
    return first;
}

void DraftSequence::run(DraftGraph & g, const Token * tokens, const std::vector<int32_t> & pos, int n_out) {
    check_not_forked("the drafter cannot run");
    if (drafter_.options().n_threads > 1) note_helper_threads();
    const int n = (int)pos.size();
    const int n_embd = drafter_.spec().n_embd;
    embd_.resize((size_t)n * n_embd);
    for (int i = 0; i < n; ++i) drafter_.weights().embedding.row(tokens[i], &embd_[(size_t)i * n_embd]);
    ggml_backend_tensor_set(g.embd, embd_.data(), 0, embd_.size() * sizeof(float));
    ggml_backend_tensor_set(g.pos, pos.data(), 0, n * sizeof(int32_t));
    if (g.pos_out != g.pos) {
        ggml_backend_tensor_set(g.pos_out, pos.data() + n - n_out, 0, n_out * sizeof(int32_t));
    }
    ggml_backend_tensor_set(g.slot, slots_.data(), 0, n * sizeof(int64_t));
    if (g.v_place) {
        const size_t n_row = (size_t)drafter_.spec().head_dim * drafter_.spec().n_head_kv;
        v_places_.resize(n * n_row);
        for (int i = 0; i < n; ++i) {
            for (size_t c = 0; c < n_row; ++c) v_places_[i * n_row + c] = (int64_t)c * kv_.n_slots() + slots_[i];
        }
        ggml_backend_tensor_set(g.v_place, v_places_.data(), 0, v_places_.size() * sizeof(int64_t));
    }
    if (g.mask) fill_mask(g.mask, (int)g.mask->ne[0], g.n_mask_rows, pos, 0);
    if (g.mask_window) {
        fill_mask(g.mask_window, (int)g.mask_window->ne[0], g.n_mask_rows, pos, drafter_.spec().sliding_window);
    }
    const kernels::ComputeScope scope(drafter_.options().use_kernels);
    const ggml_status status = ggml_backend_graph_compute(drafter_.backend(), g.gf);
    if (status != GGML_STATUS_SUCCESS) {
        fail(status == GGML_STATUS_ALLOC_FAILED ? ErrorKind::out_of_memory : ErrorKind::broken,
             "the drafter's graph failed on %s: %s", drafter_.device_name().c_str(), ggml_status_to_string(status));
    }
    if (n_out > 0) {
        n_logits_ = g.logits->ne[0];
        logits_.resize(n_logits_ * n_out);
        ggml_backend_tensor_get(g.logits, logits_.data(), 0, logits_.size() * sizeof(float));
    }
}

// A row sees the slots of positions up to its own: committed rows directly, draft rows only along its own parents.
// `window` > 0 hides positions that lie `window` or more behind.
void DraftSequence::fill_mask(ggml_tensor * mask, int n_kv, int n_mask_rows, const std::vector<int32_t> & pos,
                              int window) {
    const int n = (int)pos.size();
    const bool is_draft = !parents_.empty();           // an extend; a commit has dropped the draft rows
    const int first_draft = (int)parents_.size() - n;  // of this call's rows
    mask_.assign((size_t)n_kv * n_mask_rows, f16_minus_inf);
    for (int r = 0; r < n_mask_rows; ++r) {
        const int i = n - n_mask_rows + r;
        ggml_fp16_t * row = &mask_[(size_t)r * n_kv];
        const int low = window > 0 ? std::max(0, pos[i] - window + 1) : 0;
        const int n_seen = is_draft ? kv_.n_rows : pos[i] + 1;
        for (int p = low; p < n_seen; ++p) row[p] = f16_zero;
        if (!is_draft) continue;
        for (int d = first_draft + i; d >= 0 && positions_[d] >= low; d = parents_[d]) {
            row[kv_.n_rows + d] = f16_zero;
        }
    }
    ggml_backend_tensor_set(mask, mask_.data(), 0, mask_.size() * sizeof(ggml_fp16_t));
}

std::vector<Candidate> DraftSequence::candidates(int i, int k) const {
    return top_k(logits(i), (int)n_logits_, k, drafter_.d2t().data());
}

std::vector<Candidate> DraftSequence::candidates(int i, int k, const CoupledSampling & sampling, Pos pos) {
    return coupled_.best(logits(i), (int)n_logits_, k, drafter_.d2t().data(), sampling, pos);
}

void DraftSequence::get_state(int row, float * dst) const {
    const size_t n = drafter_.spec().n_embd * sizeof(float);
    ggml_backend_tensor_get(kv_.state(), dst, (1 + row) * n, n);
}

void DraftSequence::set_state(int row, const float * src) {
    const size_t n = drafter_.spec().n_embd * sizeof(float);
    ggml_backend_tensor_set(kv_.state(), src, (1 + row) * n, n);
}

void DraftSequence::truncate(int n_rows) {
    kv_.n_rows = std::min(kv_.n_rows, n_rows);
    parents_.clear();
    positions_.clear();
}

size_t DraftSequence::n_bytes() const {
    size_t n = kv_.n_bytes();
    for (const auto & [shape, g] : graphs_) n += g->n_bytes();
    return n;
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

bool Drafter::supports(bool flash_attn, std::string & missing) const {
    const DraftKv kv(spec_, 256, 1, options_.type_kv, /*v_transposed=*/!flash_attn, buft_);
    for (const GraphShape & shape : {GraphShape{true, 8, 1, 256}, GraphShape{false, 8, 8, 256}}) {
        const auto g = build_draft_graph(spec_, weights_, kv, shape, flash_attn, buft_);
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

void Drafter::finish() {
    if (weights_.embedding.empty() || !weights_.head) {
        fail(ErrorKind::mismatch, "%s has no %s of its own and none of a target was given", path_.c_str(),
             weights_.head ? "token embedding" : "output head");
    }
    std::string missing;
    flash_attn_ = options_.flash_attn && supports(true, missing);
    if (!flash_attn_ && !supports(false, missing)) {
        fail(ErrorKind::unsupported, "device '%s' does not implement %s for this drafter; use draft_device='cpu'",
             device_name().c_str(), missing.c_str());
    }
}

}  // namespace eaglecpp
