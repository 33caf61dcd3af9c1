// SPDX-License-Identifier: MIT
#include "target/target.h"

#include <algorithm>
#include <fstream>
#include <set>
#include <thread>

#ifdef __linux__
#include <sched.h>
#endif

#include "base/cgroup.h"
#include "base/error.h"
#include "base/process.h"
#include "gguf/guard.h"
#include "kernels/attention.h"

namespace eaglecpp {

// Minimum number of rows for which ggml's CPU attention works in tiles. Our kernel has no such tiles.
static constexpr int n_rows_tiled = 64;
// Maximum number of cells of all conversations. No machine has memory for more, and all positions and padded sizes fit
// into 32 bits.
static constexpr int64_t n_cells_max = 1 << 30;
// Number of prompt rows that share batches with generating conversations. It is n_batch / slice_share, but at least
// n_shared_min and at most n_shared_max.
static constexpr int slice_share = 4, n_shared_min = 16, n_shared_max = 128;

int n_physical_cores() {
    int n_logical = std::max(1u, std::thread::hardware_concurrency());
    std::set<std::string> cores;
#ifdef __linux__
    cpu_set_t allowed;
    if (sched_getaffinity(0, sizeof(allowed), &allowed) != 0) CPU_ZERO(&allowed);
    for (int i = 0; i < CPU_SETSIZE; ++i) {
        if (!CPU_ISSET(i, &allowed)) continue;
        std::ifstream f("/sys/devices/system/cpu/cpu" + std::to_string(i) + "/topology/thread_siblings_list");
        std::string siblings;
        // Without /sys, as in a chroot, each allowed CPU counts as a core.
        cores.insert(std::getline(f, siblings) ? siblings : std::to_string(i));
    }
#endif
    if (!cores.empty()) n_logical = (int)cores.size();
    // The CPU quota limits the number of threads. If it stops one thread, all other threads wait for this thread.
    return std::max(1, (int)std::min((double)n_logical, cgroup_cpus()));
}

static void check_range(const char * name, int64_t found, int64_t low, int64_t high) {
    fail_if(found < low || found > high, ErrorKind::value, "%s: expected %lld to %lld, found %lld", name,
            (long long)low, (long long)high, (long long)found);
}

// Checks the options before anything is loaded, and returns them.
static TargetOptions checked(TargetOptions options) {
    check_not_forked("the target cannot be loaded");
    check_range("n_sequences", options.n_sequences, 1, (int64_t)llama_max_parallel_sequences());
    check_range("n_draft_max", options.n_draft_max, 0, 1024);
    check_range("n_draft_more", options.n_draft_more, 0, 1024);
    check_range("n_leaves_max", options.n_leaves_max, 1, INT32_MAX);
    check_range("n_ctx", options.n_ctx, -1, n_cells_max);
    check_range("n_threads", options.n_threads, 0, GGML_MAX_N_THREADS);
    check_range("n_threads_batch", options.n_threads_batch, 0, GGML_MAX_N_THREADS);
    llama_start();
    return options;
}

Target::Target(TargetOptions options)
    : options_(checked(std::move(options))),
      model_(std::make_shared<const TargetModel>(options_)),
      vocab_(model_->get()) {
    if (options_.drafts_forms) {
        const int n_max = std::max(0, options_.n_ubatch / options_.n_sequences - 2);
        options_.n_draft_max = model_->has_state() ? 0 : std::min(options_.n_draft_max, n_max);
    }
    // n_draft_more is used only without a recurrent state, because every draft node would need a copy of the state. It
    // is used only for a single conversation, because every draft node needs logits in each conversation.
    if (!model_->has_state() && options_.n_sequences == 1 && options_.n_draft_max > 0) {
        options_.n_draft_max += options_.n_draft_more;
    }
    if (options_.n_threads == 0) options_.n_threads = n_physical_cores();
    if (options_.n_threads_batch == 0) options_.n_threads_batch = options_.n_threads;
    const int n_ctx_train = llama_model_n_ctx_train(model_->get());
    if (options_.n_ctx < 0) options_.n_ctx = n_ctx_train;
    if (options_.n_ctx <= 0) options_.n_ctx = n_ctx_train > 0 ? std::min(n_ctx_train, 4096) : 4096;
    const int64_t n_cells = options_.n_sequences * ((int64_t)options_.n_ctx + options_.n_draft_max + 1);
    fail_if(n_cells > n_cells_max, ErrorKind::value,
            "n_sequences %d, n_ctx %d and n_draft_max %d need %lld cells in llama.cpp's cache, but the limit is %lld; "
            "lower n_ctx or n_sequences",
            options_.n_sequences, options_.n_ctx, options_.n_draft_max, (long long)n_cells, (long long)n_cells_max);
    options_.n_batch = std::max(1, std::min(options_.n_batch, options_.n_ctx));
    n_slice_ = options_.n_batch;
    // A tree must fit into one ubatch, because in llama.cpp a node only sees cells of earlier ubatches and of its own
    // ubatch. Prompt rows that share a batch with trees of any size must fit into the same ubatch.
    const int n_rows_max = options_.n_sequences * (options_.n_draft_max + 1) + n_shared_rows();
    options_.n_batch = std::max(options_.n_batch, n_rows_max);
    const int n_ubatch = std::max(1, std::min(options_.n_ubatch, n_slice_));
    options_.n_ubatch = std::max(n_ubatch, n_rows_max);
    // A GPU runs the whole slice as one batch, unless a tree needs larger batches than prompts have.
    n_prompt_rows_ = model_->is_cpu() || options_.n_ubatch > n_ubatch ? n_ubatch : n_slice_;
    // A tree of n nodes has up to n leaves, so more ids would only cost memory.
    options_.n_leaves_max =
        model_->supports_trees() ? std::min(options_.n_leaves_max, std::max(1, options_.n_draft_max)) : 1;
    choose_attention();
    fail_if(options_.separate_caches && options_.n_leaves_max > 1, ErrorKind::value,
            "separate_caches: the leaves of a tree need a shared cache; expected n_leaves_max 1, found %d",
            options_.n_leaves_max);
    set_cells();
}

void Target::set_cells() {
    const int n_window = model_->has_state() ? 0 : llama_model_n_swa(model_->get());
    // llama.cpp reuses cells that have only one id and that a window has passed. Without more ids, rows would lose
    // their order.
    const bool keeps_passed = n_window > 0 && options_.n_sequences > 1 && shares_batches() &&
                              4 * (size_t)options_.n_sequences <= llama_max_parallel_sequences();
    cells_ = Cells({options_.n_sequences, options_.n_ctx, options_.n_draft_max,
                    std::max(options_.n_leaves_max, keeps_passed ? 2 : 1), shares_batches(), adds_in_order_,
                    model_->has_state(), copies_states_, n_window});
    fail_if((size_t)cells_.n_seqs() > llama_max_parallel_sequences(), ErrorKind::value,
            "n_sequences %d: a conversation needs %d sequence ids, llama.cpp allows %zu; lower n_sequences",
            options_.n_sequences, cells_.n_ids(), llama_max_parallel_sequences());
}

// Chooses the attention. On the CPU a row must have the same bits in a batch of any size, or drafting would change the
// text. Our kernel ensures this for the cache types that it reads, and so does ggml's reference version of flash
// attention. In plain attention, ggml adds the values of one row in another order than those of several rows. F32
// caches keep the difference small: over F16 caches, only the product of one row also rounds the query.
void Target::choose_attention() {
    bool has_kernel = model_->is_cpu() && model_->uses_kernels();
    for (const std::string & type : {options_.type_k, options_.type_v}) {
        has_kernel = has_kernel && kernels::attention_type_fits(type == "auto" ? GGML_TYPE_F16 : type_by_name(type));
    }
    const bool has_exact = !model_->is_cpu() || has_kernel || has_reference_kernels();
    is_fused_ = options_.flash_attn == "on" || (options_.flash_attn == "auto" && has_exact);
    adds_in_order_ = is_fused_ && model_->is_cpu() && (has_kernel || has_reference_kernels());
    needs_reference_ = is_fused_ && !has_kernel && has_reference_kernels();
    has_own_attention_ = is_fused_ && has_kernel;
    for (std::string * type : {&options_.type_k, &options_.type_v}) {
        if (*type == "auto") *type = model_->is_cpu() && !is_fused_ ? "f32" : "f16";
    }
}

llama_context_params Target::context_params() const {
    llama_context_params p = Context::params(options_);
    const int n_round = options_.n_draft_max + 1;
    // If a conversation has filled its context, its draft nodes need additional cells.
    p.n_ctx = (uint32_t)options_.n_sequences * (uint32_t)(options_.n_ctx + n_round);
    p.n_batch = (uint32_t)options_.n_batch;
    p.n_ubatch = (uint32_t)options_.n_ubatch;
    p.n_seq_max = (uint32_t)cells_.n_seqs();
    p.n_outputs_max =
        (uint32_t)(extracted_layers_->needs_all_outputs() ? options_.n_batch : options_.n_sequences * n_round);
    p.n_outputs_max_per_seq = (uint32_t)n_round;  // rows of a tree that one id sees; used only by samplers on devices
    // llama.cpp reserves an output for every sequence id, including unused ids.
    p.n_outputs_max = std::max(p.n_outputs_max, p.n_seq_max);
    p.kv_unified = !options_.separate_caches;
    p.swa_full = true;
    p.flash_attn_type = !is_fused_                                      ? LLAMA_FLASH_ATTN_TYPE_DISABLED
                        : options_.flash_attn == "on" || adds_in_order_ ? LLAMA_FLASH_ATTN_TYPE_ENABLED
                                                                        : LLAMA_FLASH_ATTN_TYPE_AUTO;
    p.type_k = type_by_name(options_.type_k);
    p.type_v = type_by_name(options_.type_v);
    // Number of snapshots of a recurrent state for rolling back. Other architectures ignore this number.
    if (model_->has_state()) p.n_rs_seq = (uint32_t)options_.n_draft_max;
    return p;
}

void Target::make_context() {
    llama_context_params p = context_params();
    extracted_layers_->configure(p);
    context_.make(model_, p);
}

void Target::open_context(const std::vector<int32_t> & layers, bool reads_states) {
    extracted_layers_ = std::make_unique<ExtractedLayers>(*model_, layers, reads_states);
    make_context();
    if (!context_.generates()) {
        only_embeds_ = true;
        // In most embedding models, a position is a row of a table, so the size of the table limits the context.
        const int n_ctx_train = llama_model_n_ctx_train(model_->get());
        if (n_ctx_train > 0) options_.n_ctx = std::min(options_.n_ctx, n_ctx_train);
        context_.free();
        return;
    }
    for (const ggml_tensor * table : model_tensors(model_->get(), "position_embd.weight")) {
        if (options_.n_ctx <= table->ne[1]) continue;
        fail(ErrorKind::value, "%s: n_ctx is %d, but this model has only %lld positions; lower n_ctx",
             options_.path.c_str(), options_.n_ctx, (long long)table->ne[1]);
    }
    // Whether llama.cpp keeps past states of this architecture is known only after the context is open.
    if (model_->has_state() && options_.n_draft_max > 0 && llama_n_rs_seq(context()) == 0) {
        fail_if(options_.separate_caches, ErrorKind::unsupported,
                "%s: drafts for architecture '%s' are not possible with separate_caches, because they need copies of "
                "the recurrent state in a unified cache; open the model without separate_caches or without drafts",
                options_.path.c_str(), model_->arch().c_str());
        copies_states_ = true;
        set_cells();
        make_context();
    }
    guarded([&] { extracted_layers_->attach(context()); });
    cells_.attach(context());
    // If the very last layer is extracted, every prompt row needs an output, and devices cannot pick tokens.
    ggml_backend_dev_t device = extracted_layers_->needs_all_outputs() ? nullptr : model_->output_device();
    // On an RPC server, each row's picks would need a round trip over the network.
    picks_ = DevicePicks(device && is_on_server(device) ? nullptr : device, vocab_.size());
    picks_.attach(context());
    if (extracted_layers_->mode() == ExtractedLayers::Mode::cb_eval) {
        // This trial run finds out now whether the graph names its layers. Without it, the error would come in the
        // middle of a text.
        TargetBatch probe;
        probe.add(0, 0, cells_.seqs(0), true);
        decode(probe);
        hidden_states();
        cells_.clear();
    }
}

int Target::n_shared_rows() const {
    if (options_.n_sequences == 1 || !shares_batches()) return 0;
    return std::clamp(n_slice_ / slice_share, n_shared_min, n_shared_max);
}

bool Target::prepare_prompt(const SeqRange & range, int n_rows) {
    if (!is_fused_ || has_own_attention_ || n_rows < n_rows_tiled) return true;
    return cells_.close_gaps_before(range);
}

void Target::decode(TargetBatch & batch, bool is_prompt) {
    const llama_batch rows = batch.view(model_->n_state());
    extracted_layers_->begin(batch.n_rows());
    if (needs_reference_) {
        set_reference_kernels(context(), !is_prompt || batch.n_rows() < n_rows_tiled);
    }
    cells_.prepare(rows);
    if (llama_get_causal_attn(context()) != batch.is_causal()) llama_set_causal_attn(context(), batch.is_causal());
    context_.decode(rows, is_prompt);
}

HiddenStates Target::hidden_states() {
    context_.check_results();
    return extracted_layers_->read(context());
}

}  // namespace eaglecpp
