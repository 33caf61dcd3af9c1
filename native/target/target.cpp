// SPDX-License-Identifier: MIT
#include "target/target.h"

#include <algorithm>
#include <climits>
#include <fstream>
#include <set>
#include <thread>

#include "base/error.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/process.h"
#include "gguf/guard.h"
#include "kernels/attention.h"
#include "target/heads.h"
#include "target/llama_start.h"
#include "target/offload.h"

namespace eaglecpp {

// rows from which ggml's attention on the CPU works in tiles, where ours is not used
static constexpr int n_rows_tiled = 64;
// Cells of all conversations together. More than any machine holds, and few enough that what is computed from them
// (positions, padded sizes) stays within 32 bits.
static constexpr int64_t n_cells_max = 1 << 30;
// of a slice, where prompts share batches with conversations that generate
static constexpr int slice_share = 4, n_shared_least = 16, n_shared_most = 128;

int n_physical_cores() {
    const int n_logical = std::max(1u, std::thread::hardware_concurrency());
    std::set<std::string> cores;
    for (int i = 0; i < n_logical; ++i) {
        std::ifstream f("/sys/devices/system/cpu/cpu" + std::to_string(i) + "/topology/thread_siblings_list");
        std::string siblings;
        if (std::getline(f, siblings)) cores.insert(siblings);
    }
    return cores.empty() ? n_logical : (int)cores.size();
}

ggml_type type_by_name(const std::string & name) {
    for (int i = 0; i < GGML_TYPE_COUNT; ++i) {
        const char * n = ggml_type_name((ggml_type)i);
        if (n && name == n) return (ggml_type)i;
    }
    fail(ErrorKind::value, "'%s' is not a ggml type; expected one like f16, q8_0, q4_0", name.c_str());
}

static void check_range(const char * name, int64_t found, int64_t low, int64_t high) {
    if (found < low || found > high) {
        fail(ErrorKind::value, "%s: expected %lld to %lld, found %lld", name, (long long)low, (long long)high,
             (long long)found);
    }
}

// before anything is loaded
static TargetOptions checked(TargetOptions options) {
    check_not_forked("the target cannot be loaded");
    check_range("n_sequences", options.n_sequences, 1, (int64_t)llama_max_parallel_sequences());
    check_range("n_draft_max", options.n_draft_max, 0, 1024);
    check_range("n_draft_more", options.n_draft_more, 0, 1024);
    check_range("n_leaves_max", options.n_leaves_max, 1, INT32_MAX);
    check_range("n_ctx", options.n_ctx, -1, n_cells_max);
    check_range("n_threads", options.n_threads, INT32_MIN, GGML_MAX_N_THREADS);
    check_range("n_threads_batch", options.n_threads_batch, INT32_MIN, GGML_MAX_N_THREADS);
    llama_start();
    return options;
}

Target::Target(TargetOptions options) : Target(std::move(options), nullptr) {}

Target::Target(TargetOptions options, const Target & other) : Target(std::move(options), other.model_) {}

Target::Target(TargetOptions options, std::shared_ptr<const TargetModel> model)
    : options_(checked(std::move(options))),
      model_(model ? std::move(model) : std::make_shared<const TargetModel>(options_)),
      vocab_(model_->get()) {
    // each draft of a recurrent state takes a copy of it, each conversation's takes logits
    if (!has_state() && options_.n_sequences == 1 && options_.n_draft_max > 0) {
        options_.n_draft_max += options_.n_draft_more;
    }
    if (options_.n_threads <= 0) options_.n_threads = n_physical_cores();
    if (options_.n_threads_batch <= 0) options_.n_threads_batch = options_.n_threads;
    const int n_ctx_train = llama_model_n_ctx_train(model_->get());
    if (options_.n_ctx < 0) options_.n_ctx = n_ctx_train;
    if (options_.n_ctx <= 0) options_.n_ctx = n_ctx_train > 0 ? std::min(n_ctx_train, 4096) : 4096;
    const int64_t n_cells = options_.n_sequences * ((int64_t)options_.n_ctx + options_.n_draft_max + 1);
    if (n_cells > n_cells_max) {
        fail(ErrorKind::value,
             "n_sequences %d times n_ctx %d with n_draft_max %d: llama.cpp's cache would need %lld cells, at most %lld "
             "are "
             "possible; lower n_ctx or n_sequences",
             options_.n_sequences, options_.n_ctx, options_.n_draft_max, (long long)n_cells, (long long)n_cells_max);
    }
    options_.n_batch = std::max(1, std::min(options_.n_batch, options_.n_ctx));
    n_slice_ = options_.n_batch;
    // Trees must fit one ubatch: llama.cpp shows a node only cells of earlier ubatches and of its own. So that prompts
    // beside them are read however large they are, these fit, too.
    const int n_rows_max = options_.n_sequences * (options_.n_draft_max + 1) + n_shared_rows();
    options_.n_batch = std::max(options_.n_batch, n_rows_max);
    const int n_ubatch = std::max(1, std::min(options_.n_ubatch, n_slice_));
    options_.n_ubatch = std::max(n_ubatch, n_rows_max);
    // a GPU is given the whole slice to queue, unless a tree needs larger batches than prompts have
    n_prompt_rows_ = model_->is_cpu() || options_.n_ubatch > n_ubatch ? n_ubatch : n_slice_;
    // a tree of n nodes has n leaves at most; an id that none can take would only cost
    options_.n_leaves_max = supports_trees() ? std::min(options_.n_leaves_max, std::max(1, options_.n_draft_max)) : 1;
    choose_attention();
    if (options_.separate_caches && options_.n_leaves_max > 1) {
        fail(ErrorKind::value, "separate_caches: expected n_leaves_max 1, found %d; the leaves of a tree share cells",
             options_.n_leaves_max);
    }
    set_cells();
}

void Target::set_cells() {
    cells_ = Cells({options_.n_sequences, options_.n_ctx, options_.n_draft_max, options_.n_leaves_max, shares_batches(),
                    adds_in_order_, copies_states_});
    if ((size_t)options_.n_sequences * cells_.n_ids() > llama_max_parallel_sequences()) {
        fail(ErrorKind::value, "n_sequences %d with %d sequence ids each: llama.cpp allows %zu", options_.n_sequences,
             cells_.n_ids(), llama_max_parallel_sequences());
    }
}

// On the CPU a row must give the same bits in a batch of any size, or drafting would change the text. Our own kernel
// does, for the types of caches it reads; else fused attention in ggml's reference form. Without either only the plain
// one does, over F32 caches: over halves the product of one row rounds the query, that of several does not, and an
// 8-bit target makes a hundredth of a logit of it.
void Target::choose_attention() {
    bool has_kernel = model_->is_cpu() && model_->uses_kernels();
    for (const std::string & type : {options_.type_k, options_.type_v}) {
        has_kernel = has_kernel && kernels::attention_type_fits(type == "auto" ? GGML_TYPE_F16 : type_by_name(type));
    }
    const bool has_exact = !model_->is_cpu() || has_kernel || has_reference_kernels();
    is_fused_ = options_.flash_attn == "on" || (options_.flash_attn == "auto" && has_exact);
    adds_in_order_ = is_fused_ && model_->is_cpu() && !options_.is_drafter && (has_kernel || has_reference_kernels());
    needs_reference_ = is_fused_ && !has_kernel && has_reference_kernels();
    has_own_attention_ = is_fused_ && has_kernel;
    for (std::string * type : {&options_.type_k, &options_.type_v}) {
        if (*type == "auto") *type = model_->is_cpu() && !is_fused_ ? "f32" : "f16";
    }
}

llama_context_params Target::context_params() const {
    llama_context_params p = llama_context_default_params();
    const int n_round = options_.n_draft_max + 1;
    // draft nodes of a full conversation need cells of their own
    p.n_ctx = (uint32_t)options_.n_sequences * (uint32_t)(options_.n_ctx + n_round);
    p.n_batch = (uint32_t)options_.n_batch;
    p.n_ubatch = (uint32_t)options_.n_ubatch;
    p.n_seq_max = (uint32_t)(options_.n_sequences * cells_.n_ids());
    p.n_outputs_max = (uint32_t)(taps_->needs_all_outputs() ? options_.n_batch : options_.n_sequences * n_round);
    p.n_outputs_max_per_seq = (uint32_t)n_round;  // rows of a tree that one id sees; only samplers on devices ask
    // llama.cpp reserves an output for every id, used or not
    p.n_outputs_max = std::max(p.n_outputs_max, p.n_seq_max);
    p.n_threads = options_.n_threads;
    p.n_threads_batch = options_.n_threads_batch;
    p.kv_unified = !options_.separate_caches;
    p.swa_full = true;
    p.flash_attn_type = !is_fused_                                      ? LLAMA_FLASH_ATTN_TYPE_DISABLED
                        : options_.flash_attn == "on" || adds_in_order_ ? LLAMA_FLASH_ATTN_TYPE_ENABLED
                                                                        : LLAMA_FLASH_ATTN_TYPE_AUTO;
    p.type_k = type_by_name(options_.type_k);
    p.type_v = type_by_name(options_.type_v);
    p.offload_kqv = options_.offload_kqv;
    // a GPU that holds no layer would still be sent every batch of 32 rows and more, weights included
    p.op_offload = p.op_offload && options_.n_gpu_layers != 0;
    p.rope_freq_base = options_.rope_freq_base;
    p.rope_freq_scale = options_.rope_freq_scale;
    if (options_.runs_heads) p.ctx_type = LLAMA_CONTEXT_TYPE_MTP;
    p.ctx_other = ctx_other_;
    p.no_perf = true;
    // snapshots for rolling back recurrent states; ignored by other architectures
    if (has_state()) {
        p.n_rs_seq = (uint32_t)options_.n_draft_max;
    }
    return p;
}

void Target::make_context() {
    llama_context_params p = context_params();
    taps_->configure(p);
    if (!options_.runs_heads) model_->check_memory(p);
    ErrorTrail trail;
    try {
        guarded([&] { ctx_.reset(llama_init_from_model(model_->get(), p)); });
    } catch (const std::bad_alloc &) {
        // found out below
    }
    model_->check_servers();
    if (!ctx_) {
        const std::string why = trail.text();
        if (opens_without_memory(p)) {
            fail(ErrorKind::out_of_memory, "%s: no room for a context of %d tokens%s; try a smaller n_ctx",
                 options_.path.c_str(), options_.n_ctx, why.c_str());
        }
        fail(ErrorKind::unsupported,
             "%s: llama.cpp refused these options for this target (n_ctx %d, n_sequences %d, flash_attn %s, type_k %s, "
             "type_v %s)%s",
             options_.path.c_str(), options_.n_ctx, options_.n_sequences, options_.flash_attn.c_str(),
             options_.type_k.c_str(), options_.type_v.c_str(), why.c_str());
    }
}

void Target::open_context(const std::vector<int32_t> & layers) {
    open(std::make_unique<Taps>(model_->get(), layers, options_.taps));
}

void Target::open_context_with_states(const Target * other) {
    ctx_other_ = other ? other->ctx_.get() : nullptr;
    open(Taps::of_states(model_->get(), options_.runs_heads && gives_states_of_outputs(*model_)));
}

void Target::open(std::unique_ptr<Taps> taps) {
    taps_ = std::move(taps);
    make_context();
    if (!llama_get_memory(ctx_.get()) || !llama_get_causal_attn(ctx_.get())) {
        only_embeds_ = true;
        if (!options_.may_only_embed) check_generates();
        // positions are rows of a table, mostly
        const int n_ctx_train = llama_model_n_ctx_train(model_->get());
        if (n_ctx_train > 0) options_.n_ctx = std::min(options_.n_ctx, n_ctx_train);
        ctx_.reset();
        return;
    }
    // only a context tells whether llama.cpp keeps this state's past
    if (has_state() && options_.n_draft_max > 0 && llama_n_rs_seq(ctx_.get()) == 0) {
        if (options_.separate_caches) {
            fail(ErrorKind::unsupported,
                 "%s: separate_caches: llama.cpp cannot take back rejected drafts from the state of this architecture "
                 "('%s'), and its copies need one cache for all; open it without separate_caches, or without drafts",
                 options_.path.c_str(), model_->meta("general.architecture").c_str());
        }
        copies_states_ = true;
        set_cells();
        ctx_.reset();
        make_context();
    }
    if (model_->uses_kernels()) {
        for (ggml_backend_t backend : cpu_backends(ctx_.get())) kernels::fuse_graphs_of(backend);
    }
    if (!model_->is_cpu()) note_device();
    guarded([&] { taps_->attach(ctx_.get()); });
    cells_.attach(ctx_.get());
    // a tap at the very last layer asks for the output of every row of a prompt
    const bool has_picks = !options_.is_drafter && !taps_->needs_all_outputs();
    picks_ = DevicePicks(has_picks ? model_->output_device() : nullptr, vocab_.size(),
                         keeps_rows_in_order() ? options_.n_ubatch : 0, taps_.get());
    picks_.attach(ctx_.get());
    model_->attach_lora(ctx_.get());
    if (taps_->mode() == Taps::Mode::cb_eval) {
        // finds out now, not in the middle of a text, whether the graph names its layers
        TargetBatch probe;
        probe.add(0, 0, cells_.seqs(0), true);
        decode(probe);
        features();
        cells_.clear();
    }
}

void Target::check_generates() const {
    if (!only_embeds_) return;
    fail(ErrorKind::unsupported,
         "%s is an embedding model (architecture '%s'): it turns texts into vectors and generates none; ask for "
         "embeddings",
         options_.path.substr(options_.path.find_last_of("/\\") + 1).c_str(),
         model_->meta("general.architecture").c_str());
}

// As TargetModel::load_without_memory, of a context.
bool Target::opens_without_memory(llama_context_params p) const {
    const LlamaModelPtr model = model_->load_without_memory();
    p.cb_eval = nullptr;
    try {
        return model && guarded([&] { return LlamaContextPtr(llama_init_from_model(model.get(), p)) != nullptr; });
    } catch (const std::exception &) {
        return false;
    }
}

void Target::set_n_threads(int n_threads) {
    if (llama_n_threads(ctx_.get()) == n_threads && llama_n_threads_batch(ctx_.get()) == n_threads) return;
    llama_set_n_threads(ctx_.get(), n_threads, n_threads);
}

int Target::n_shared_rows() const {
    if (options_.n_sequences == 1 || !shares_batches()) return 0;
    return std::clamp(n_slice_ / slice_share, n_shared_least, n_shared_most);
}

bool Target::prepare_prompt(const SeqRange & range, int n_rows) {
    if (!is_fused_ || has_own_attention_ || n_rows < n_rows_tiled) return true;
    return cells_.close_gaps_before(range);
}

void Target::set_causal(bool is_causal) {
    llama_set_causal_attn(ctx_.get(), is_causal);
}

void Target::decode(TargetBatch & batch, bool is_prompt, const std::function<void()> & meanwhile) {
    check_not_forked("the target cannot run");
    if (std::max(options_.n_threads, options_.n_threads_batch) > 1) note_helper_threads();
    llama_batch rows;
    batch.view(rows, model_->n_state());
    taps_->begin(batch.n_rows());
    picks_.begin(rows);
    if (needs_reference_) {
        set_reference_kernels(ctx_.get(), !is_prompt || batch.n_rows() < n_rows_tiled);
    }
    cells_.prepare(rows);
    has_results_ = false;
    late_logits_.begin(batch.n_rows());
    const kernels::ComputeScope scope(model_->uses_kernels(), &late_logits_);
    const NoOffloadScope stay(!is_prompt && !model_->is_cpu());
    ErrorTrail trail;
    int32_t rc = 0;
    try {
        guarded([&] {
            rc = llama_decode(ctx_.get(), rows);
            if (rc == 0 && meanwhile && !model_->is_cpu()) meanwhile();
            if (rc == 0) llama_synchronize(ctx_.get());
        });
    } catch (const std::bad_alloc &) {
        rc = -2;
    }
    model_->check_servers();
    has_results_ = rc == 0;
    if (has_results_) return;
    const std::string why = trail.text();
    if (rc == 1) fail(ErrorKind::context_full, "no free cell for %d rows in the target's cache", batch.n_rows());
    if (rc == -2) fail(ErrorKind::out_of_memory, "the target's compute buffer does not fit%s", why.c_str());
    fail(ErrorKind::broken, "llama_decode failed with code %d on %d rows%s", rc, batch.n_rows(), why.c_str());
}

// llama.cpp would still hand out what earlier decodes left in its buffers, where late logits are not.
void Target::check_results() const {
    if (!has_results_) fail(ErrorKind::broken, "no logits or features: the last decode failed, or there was none");
}

const float * Target::logits(int row) const {
    check_results();
    const float * p = llama_get_logits_ith(ctx_.get(), row);
    if (!p) fail(ErrorKind::broken, "llama.cpp has no logits for row %d", row);
    return late_logits_.find(p);
}

const float * Target::state(int row) const {
    check_results();
    const float * p = recorded_state(ctx_.get(), row);
    if (!p) fail(ErrorKind::broken, "llama.cpp has no state of row %d", row);
    return p;
}

FeatureRows Target::features() {
    check_results();
    return taps_->read(ctx_.get(), picks_.was_one_graph());
}

}  // namespace eaglecpp
