// SPDX-License-Identifier: MIT
#include "target/target.h"

#include <algorithm>
#include <climits>
#include <cstring>
#include <fstream>
#include <numeric>
#include <set>
#include <thread>

#include "base/error.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/process.h"
#include "gguf/guard.h"
#include "gguf/keys.h"
#include "gguf/reader.h"
#include "kernels/attention.h"
#include "kernels/hook.h"
#include "target/amx.h"
#include "target/offload.h"
#include "target/rpc_relay.h"

namespace eaglecpp {

// rows from which ggml's attention on the CPU works in tiles, where ours is not used
static constexpr int n_rows_tiled = 64;
// Cells of all conversations together. More than any machine holds, and few enough that what is computed from them
// (positions, padded sizes) stays within 32 bits.
static constexpr int64_t n_cells_max = 1 << 30;
// Cells that rejected nodes may hold when all others are taken: closing the gaps that they leave copies the whole
// cache, so it should not be needed every few rounds.
static constexpr int n_held_most = 128;
// Held cells that are looked through for nothing before gaps are closed, where no more rows are in use.
static constexpr int n_gaps_least = 1024;
// of a slice, where prompts share batches with conversations that generate
static constexpr int slice_share = 4, n_shared_least = 16, n_shared_most = 128;

// all files of a model that was split; only the file itself where its name does not follow llama.cpp's pattern
static std::vector<std::string> shards(const GgufReader & first) {
    const int n = (int)std::min<uint32_t>(first.find_u32("split.count").value_or(1), UINT16_MAX);  // its type there
    std::vector<char> prefix(first.path().size() + 1), path(first.path().size() + 16);
    if (n <= 1 || llama_split_prefix(prefix.data(), prefix.size(), first.path().c_str(), 0, n) <= 0) {
        return {first.path()};
    }
    std::vector<std::string> all;
    for (int i = 0; i < n; ++i) {
        llama_split_path(path.data(), path.size(), prefix.data(), i, n);
        all.emplace_back(path.data());
    }
    return all;
}

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

Target::Target(TargetOptions options) : options_(std::move(options)) {
    check_not_forked("the target cannot be loaded");
    check_range("n_sequences", options_.n_sequences, 1, (int64_t)llama_max_parallel_sequences());
    check_range("n_draft_max", options_.n_draft_max, 0, 1024);
    check_range("n_leaves_max", options_.n_leaves_max, 1, INT32_MAX);
    check_range("n_ctx", options_.n_ctx, -1, n_cells_max);
    check_range("n_threads", options_.n_threads, INT32_MIN, GGML_MAX_N_THREADS);
    check_range("n_threads_batch", options_.n_threads_batch, INT32_MIN, GGML_MAX_N_THREADS);
    llama_start();
    load_model();
    check_range("n_draft_more", options_.n_draft_more, 0, 1024);
    // each draft of a recurrent state takes a copy of it, each conversation's takes logits
    if (!has_state() && options_.n_sequences == 1 && options_.n_draft_max > 0) {
        options_.n_draft_max += options_.n_draft_more;
    }
    if (options_.n_threads <= 0) options_.n_threads = n_physical_cores();
    if (options_.n_threads_batch <= 0) options_.n_threads_batch = options_.n_threads;
    const int n_ctx_train = llama_model_n_ctx_train(model_.get());
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
    n_prompt_rows_ = is_cpu() || options_.n_ubatch > n_ubatch ? n_ubatch : n_slice_;
    // a tree of n nodes has n leaves at most; an id that none can take would only cost
    options_.n_leaves_max = supports_trees() ? std::min(options_.n_leaves_max, std::max(1, options_.n_draft_max)) : 1;
    choose_attention();
    if (options_.separate_caches && options_.n_leaves_max > 1) {
        fail(ErrorKind::value, "separate_caches: expected n_leaves_max 1, found %d; the leaves of a tree share cells",
             options_.n_leaves_max);
    }
    if ((size_t)options_.n_sequences * n_ids() > llama_max_parallel_sequences()) {
        fail(ErrorKind::value, "n_sequences %d times n_leaves_max %d: llama.cpp allows %zu sequence ids",
             options_.n_sequences, options_.n_leaves_max, llama_max_parallel_sequences());
    }
    load_lora();
}

// A matrix of a type that ggml only computes with internally makes it call a function that is not there.
static void check_weight_types(const GgufReader & file) {
    for (const TensorInfo & t : file.tensors()) {
        const auto ends_with = [&](const std::string & end) {
            return t.name.size() >= end.size() && t.name.compare(t.name.size() - end.size(), end.size(), end) == 0;
        };
        // a table of expert numbers, the one weight of integers that llama.cpp reads
        const bool is_table = ends_with("_tid2eid.weight") && t.type == GGML_TYPE_I32;
        if ((!ends_with(".weight") && !ends_with(".bias")) || is_table || is_weight_type(t.type)) continue;
        fail(ErrorKind::gguf,
             "%s: tensor '%s' has type %s, which ggml cannot compute with; expected a float or quantised type such as "
             "f16 or q8_0: convert the model again",
             file.path().c_str(), t.name.c_str(), ggml_type_name(t.type));
    }
}

// Embeddings count: they may be the output's, too.
static bool has_float_matrices(const GgufReader & file) {
    return std::any_of(file.tensors().begin(), file.tensors().end(),
                       [](const TensorInfo & t) { return t.ne[1] > 1 && !ggml_is_quantized(t.type); });
}

llama_model_params Target::model_params() const {
    llama_model_params p = llama_model_default_params();
    p.n_gpu_layers = options_.n_gpu_layers;
    p.main_gpu = options_.main_gpu;
    p.split_mode = options_.split_mode == "none"  ? LLAMA_SPLIT_MODE_NONE
                   : options_.split_mode == "row" ? LLAMA_SPLIT_MODE_ROW
                                                  : LLAMA_SPLIT_MODE_LAYER;
    if (!split_.empty()) p.tensor_split = split_.data();
    if (!overrides_.empty()) p.tensor_buft_overrides = overrides_.data();
    p.load_mode = options_.use_mlock ? (options_.use_mmap ? LLAMA_LOAD_MODE_MMAP_MLOCK : LLAMA_LOAD_MODE_MLOCK)
                                     : (options_.use_mmap ? LLAMA_LOAD_MODE_MMAP : LLAMA_LOAD_MODE_NONE);
    p.use_extra_bufts = use_repack_ || use_kernels_;
    if (!devices_.empty()) p.devices = const_cast<ggml_backend_dev_t *>(devices_.data());
    return p;
}

// Where weights go, in the form that llama.cpp borrows.
void Target::set_places() {
    const std::string & mode = options_.split_mode;
    if (mode != "layer" && mode != "row" && mode != "none") {
        fail(ErrorKind::value, "split_mode: '%s' is not one of layer, row, none", mode.c_str());
    }
    if (options_.tensor_split.size() > llama_max_devices()) {
        fail(ErrorKind::value, "tensor_split: %zu shares, llama.cpp knows at most %zu devices",
             options_.tensor_split.size(), llama_max_devices());
    }
    if (!options_.tensor_split.empty()) {
        split_ = options_.tensor_split;
        split_.resize(llama_max_devices(), 0.0f);
    }
    // experts of layers that are not there would only be looked for
    const int n_cpu_moe = std::min(options_.n_cpu_moe, (int)llama_max_tensor_buft_overrides());
    places_ = tensor_places(n_cpu_moe, options_.override_tensor);
    for (const TensorPlace & place : places_) overrides_.push_back({place.pattern.c_str(), place.buffer});
    if (!overrides_.empty()) overrides_.push_back({nullptr, nullptr});
}

// All that ggml knows but those of servers that are gone; llama.cpp's own order.
static std::vector<ggml_backend_dev_t> devices_without(const std::set<std::string> & lost) {
    std::vector<ggml_backend_dev_t> servers, gpus, integrated;
    for (size_t i = 0; i < ggml_backend_dev_count(); ++i) {
        ggml_backend_dev_t dev = ggml_backend_dev_get(i);
        if (lost.count(ggml_backend_dev_description(dev))) continue;
        if (ggml_backend_dev_type(dev) == GGML_BACKEND_DEVICE_TYPE_GPU) {
            (is_on_server(dev) ? servers : gpus).push_back(dev);
        }
        if (ggml_backend_dev_type(dev) == GGML_BACKEND_DEVICE_TYPE_IGPU) integrated.push_back(dev);
    }
    std::vector<ggml_backend_dev_t> out = servers;
    const auto & local = gpus.empty() ? integrated : gpus;
    out.insert(out.end(), local.begin(), local.end());
    out.push_back(nullptr);
    return out;
}

// What came back from a lost server is not true (rpc_relay.h).
void Target::check_servers() const {
    for (const LostServer & server : lost_rpc_servers()) {
        if (lost_before_.count(server.relay)) continue;
        fail(ErrorKind::broken,
             "RPC server %s was lost: %s. What it held of the model is gone: start it again and open the engine anew, "
             "or leave the server out",
             server.endpoint.c_str(), server.why.c_str());
    }
}

void Target::load_model() {
    const GgufReader header(options_.path);
    const std::string arch = header.str(keys::architecture);
    if (arch == keys::arch_eagle || arch == keys::arch_eagle3 || arch == keys::arch_eagle31) {
        fail(ErrorKind::unsupported,
             "%s is an EAGLE drafter, not a target; give the target first and this file as "
             "the draft",
             options_.path.c_str());
    }
    if (options_.repack == "auto") {
        const AmxState amx = probe_amx();
        use_repack_ = !amx.claimed || amx.works;
    } else {
        use_repack_ = options_.repack == "on";
    }
    use_kernels_ = options_.kernels != "off" && kernels::status().is_active;
    for (const LostServer & server : lost_rpc_servers()) lost_before_.insert(server.relay);
    if (!lost_before_.empty()) devices_ = devices_without(lost_before_);
    set_places();
    const llama_model_params p = model_params();

    const std::vector<std::string> files = shards(header);
    const auto look_at = [&](const GgufReader & reader) {
        check_weight_types(reader);
        has_float_matrices_ = has_float_matrices_ || has_float_matrices(reader);
    };
    // reading a header takes as long as its vocabulary does
    for (const std::string & file : files) file == header.path() ? look_at(header) : look_at(GgufReader(file));
    ErrorTrail trail;
    try {
        const kernels::LoadScope placement(use_kernels_, use_repack_, options_.use_mmap && !options_.use_mlock);
        guarded([&] { model_.reset(llama_model_load_from_file(options_.path.c_str(), p)); });
    } catch (const Error & e) {
        fail(ErrorKind::gguf, "%s: llama.cpp could not load this target: %s", options_.path.c_str(), e.what());
    } catch (const std::bad_alloc &) {
        // found out below
    }
    check_servers();
    if (!model_) {
        const std::string why = trail.text();
        if (load_without_memory(p)) {
            fail(ErrorKind::out_of_memory, "%s: not enough memory to load the target%s", options_.path.c_str(),
                 why.c_str());
        }
        fail(ErrorKind::gguf, "%s: llama.cpp could not load this target%s", options_.path.c_str(), why.c_str());
    }
    if (use_kernels_ && options_.use_mmap && !options_.use_mlock) {
        for (const std::string & file : files) forget_file_pages(file);
    }
    if (!llama_model_has_decoder(model_.get()) || llama_model_has_encoder(model_.get()) ||
        llama_model_is_diffusion(model_.get())) {
        fail(ErrorKind::unsupported, "%s: architecture '%s' does not generate text token by token",
             options_.path.c_str(), arch.c_str());
    }
}

// llama.cpp says that it failed, and why only in words for people. Whether memory was what it lacked shows when the
// same is done again with nothing allocated: then it succeeds. Null when it does not.
LlamaModelPtr Target::load_without_memory(llama_model_params p) const {
    p.no_alloc = true;
    p.load_mode = LLAMA_LOAD_MODE_NONE;
    const kernels::LoadScope placement(use_kernels_, use_repack_);
    try {
        return guarded([&] { return LlamaModelPtr(llama_model_load_from_file(options_.path.c_str(), p)); });
    } catch (const std::exception &) {
        return nullptr;
    }
}

void Target::load_lora() {
    for (const auto & lora : options_.lora) {
        const char * path = lora.first.c_str();
        ErrorTrail trail;
        llama_adapter_lora * adapter = guarded([&] { return llama_adapter_lora_init(model_.get(), path); });
        if (!adapter) fail(ErrorKind::gguf, "%s: not a LoRA adapter for this target%s", path, trail.text().c_str());
        lora_.push_back({adapter, lora.second});
    }
}

// On the CPU a row must give the same bits in a batch of any size, or drafting would change the text. Our own kernel
// does, for the types of caches it reads; else fused attention in ggml's reference form. Without either only the plain
// one does, over F32 caches: over halves the product of one row rounds the query, that of several does not, and an
// 8-bit target makes a hundredth of a logit of it.
void Target::choose_attention() {
    bool has_kernel = is_cpu() && use_kernels_;
    for (const std::string & type : {options_.type_k, options_.type_v}) {
        has_kernel = has_kernel && kernels::attention_type_fits(type == "auto" ? GGML_TYPE_F16 : type_by_name(type));
    }
    const bool has_exact = !is_cpu() || has_kernel || has_reference_kernels();
    is_fused_ = options_.flash_attn == "on" || (options_.flash_attn == "auto" && has_exact);
    adds_in_order_ = is_fused_ && is_cpu() && (has_kernel || has_reference_kernels());
    needs_reference_ = is_fused_ && !has_kernel && has_reference_kernels();
    has_own_attention_ = is_fused_ && has_kernel;
    for (std::string * type : {&options_.type_k, &options_.type_v}) {
        if (*type == "auto") *type = is_cpu() && !is_fused_ ? "f32" : "f16";
    }
}

llama_context_params Target::context_params() const {
    llama_context_params p = llama_context_default_params();
    const int n_round = options_.n_draft_max + 1;
    // draft nodes of a full conversation need cells of their own
    p.n_ctx = (uint32_t)options_.n_sequences * (uint32_t)(options_.n_ctx + n_round);
    p.n_batch = (uint32_t)options_.n_batch;
    p.n_ubatch = (uint32_t)options_.n_ubatch;
    p.n_seq_max = (uint32_t)(options_.n_sequences * n_ids());
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
    p.no_perf = true;
    // snapshots for rolling back recurrent states; ignored by other architectures
    if (has_state()) {
        p.n_rs_seq = (uint32_t)options_.n_draft_max;
    }
    return p;
}

// Keys and values of plain attention in host memory: a lower bound of what the context takes.
void Target::check_memory(const llama_context_params & p) const {
    const bool on_gpu = llama_supports_gpu_offload() && options_.n_gpu_layers != 0 && options_.offload_kqv;
    const uint64_t available = available_memory();
    if (on_gpu || available == 0 || has_state()) return;
    const int n_head = std::max(1, llama_model_n_head(model_.get()));
    const uint64_t n_row = (uint64_t)llama_model_n_head_kv(model_.get()) * (n_embd() / n_head);
    const uint64_t n_cell = n_layer() * (ggml_row_size(p.type_k, n_row) + ggml_row_size(p.type_v, n_row));
    if (p.n_ctx <= available / std::max<uint64_t>(n_cell, 1)) return;
    fail(ErrorKind::out_of_memory,
         "%s: a context of %d tokens needs %.1f GiB for keys and values, %.1f GiB are "
         "available; try a smaller n_ctx, or type_k and type_v q8_0",
         options_.path.c_str(), options_.n_ctx, p.n_ctx * (double)n_cell / (1 << 30), available / (double)(1 << 30));
}

void Target::open_context(const std::vector<int32_t> & layers) {
    n_held_.assign(options_.n_sequences, 0);
    taps_ = std::make_unique<Taps>(model_.get(), layers, options_.taps);
    llama_context_params p = context_params();
    taps_->configure(p);
    check_memory(p);
    ErrorTrail trail;
    try {
        guarded([&] { ctx_.reset(llama_init_from_model(model_.get(), p)); });
    } catch (const std::bad_alloc &) {
        // found out below
    }
    check_servers();
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
    if (llama_supports_gpu_offload() && options_.n_gpu_layers != 0) note_device();
    guarded([&] { taps_->attach(ctx_.get()); });
    if (!lora_.empty()) {
        std::vector<llama_adapter_lora *> adapters;
        std::vector<float> scales;
        for (const auto & [adapter, scale] : lora_) {
            adapters.push_back(adapter);
            scales.push_back(scale);
        }
        if (llama_set_adapters_lora(ctx_.get(), adapters.data(), adapters.size(), scales.data()) != 0) {
            fail(ErrorKind::unsupported, "llama.cpp refused the LoRA adapters");
        }
    }
    if (taps_->mode() == Taps::Mode::cb_eval) {
        // finds out now, not in the middle of a text, whether the graph names its layers
        TargetBatch probe;
        probe.add(0, 0, seqs(0), true);
        decode(probe);
        features();
        clear();
    }
}

// As load_without_memory, of a context.
bool Target::opens_without_memory(llama_context_params p) const {
    const LlamaModelPtr model = load_without_memory(model_params());
    p.cb_eval = nullptr;
    try {
        return model && guarded([&] { return LlamaContextPtr(llama_init_from_model(model.get(), p)) != nullptr; });
    } catch (const std::exception &) {
        return false;
    }
}

std::string Target::meta(const char * key) const {
    const int n = llama_model_meta_val_str(model_.get(), key, nullptr, 0);
    if (n < 0) return "";
    std::string value(n + 1, '\0');
    llama_model_meta_val_str(model_.get(), key, value.data(), value.size());
    value.resize(n);
    return value;
}

std::vector<std::pair<std::string, std::string>> Target::metadata() const {
    std::vector<std::pair<std::string, std::string>> out;
    for (int i = 0; i < llama_model_meta_count(model_.get()); ++i) {
        const int n = llama_model_meta_key_by_index(model_.get(), i, nullptr, 0);
        if (n < 0) continue;
        std::string key(n + 1, '\0');
        llama_model_meta_key_by_index(model_.get(), i, key.data(), key.size());
        key.resize(n);
        out.push_back({key, meta(key.c_str())});
    }
    return out;
}

const ggml_tensor * Target::embedding() const {
    for (const ggml_tensor * t : model_tensors(model_.get(), "token_embd.weight")) {
        if (has_plain_rows(t)) return t;
    }
    return nullptr;
}

const ggml_tensor * Target::head() const {
    const auto own = model_tensors(model_.get(), "output.weight");
    if (!own.empty()) return own.front();
    // of tied embeddings that llama.cpp keeps twice, the copy that is not looked up in serves the product
    const ggml_tensor * rows = embedding();
    for (const ggml_tensor * t : model_tensors(model_.get(), "token_embd.weight")) {
        if (t != rows) return t;
    }
    return rows;
}

const ggml_tensor * Target::head_to_copy() const {
    const ggml_tensor * used = head();
    if (!used || has_plain_rows(used)) return used;
    ggml_backend_dev_t device = ggml_backend_buft_get_device(ggml_backend_buffer_get_type(used->buffer));
    if (device && ggml_backend_dev_type(device) != GGML_BACKEND_DEVICE_TYPE_CPU) return used;
    return model_tensors(model_.get(), "output.weight").empty() ? embedding() : nullptr;
}

bool Target::is_cpu() const {
    return !llama_supports_gpu_offload() || options_.n_gpu_layers == 0;
}

bool Target::has_state() const {
    return llama_model_is_recurrent(model_.get()) || llama_model_is_hybrid(model_.get());
}

// llama.cpp's MiniMax-M3 finds the blocks of its sparse attention by cell, which only a cache of one sequence id
// allows; with the several ids of a tree its graph silently falls back to dense attention (src/models/minimax-m3.cpp).
static bool has_block_attention(const llama_model * model) {
    char arch[32] = "";
    llama_model_meta_val_str(model, "general.architecture", arch, sizeof(arch));
    return std::strcmp(arch, "minimax-m3") == 0;
}

const char * Target::chains_only() const {
    if (has_state()) return "this target keeps a recurrent state, which cannot be verified as a tree";
    if (has_block_attention(model_.get())) {
        return "this target's sparse attention works on one sequence id only; the several of a tree would turn it off";
    }
    return "";
}

const char * Target::never_exact() const {
    if (has_block_attention(model_.get())) {
        return "this target's sparse attention gathers blocks for one row and masks them for several";
    }
    return "";
}

bool Target::can_roll_back() const {
    return !has_state() || (ctx_ && llama_n_rs_seq(ctx_.get()) > 0);
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
    // cells of other conversations shift the tiles as well, by what they have drafted
    if (!are_others_empty(range)) return false;
    return n_held() == 0 || close_gaps();  // what another one left, too
}

// By way of a copy of the whole cache, which llama.cpp writes back cell after cell: it has no other means to move them.
// A copy of one conversation would lack what its sliding windows have passed, which is needed when it goes back.
bool Target::close_gaps() {
    const size_t n_bytes = llama_state_get_size(ctx_.get());
    if (available_memory() > 0 && n_bytes > available_memory() / 2) return false;
    std::vector<uint8_t> state;
    try {
        state.resize(n_bytes);
    } catch (const std::bad_alloc &) {
        return false;
    }
    free_held();
    const size_t n_written = llama_state_get_data(ctx_.get(), state.data(), n_bytes);
    if (n_written == 0) return false;
    if (llama_state_set_data(ctx_.get(), state.data(), n_written) != n_written) {
        fail(ErrorKind::broken, "llama.cpp did not take back the %zu bytes of its own cache", n_written);
    }
    return true;
}

std::vector<Token> Target::tokenize(const std::string & text, bool add_special, bool parse_special) const {
    std::vector<Token> out(text.size() + 8);
    int n = llama_tokenize(vocab(), text.data(), (int32_t)text.size(), out.data(), (int32_t)out.size(), add_special,
                           parse_special);
    if (n == INT32_MIN) fail(ErrorKind::value, "the text is too long to tokenise in one piece");
    if (n < 0) {
        out.resize(-n);
        n = llama_tokenize(vocab(), text.data(), (int32_t)text.size(), out.data(), (int32_t)out.size(), add_special,
                           parse_special);
    }
    out.resize(std::max(n, 0));
    return out;
}

std::string Target::detokenize(const Tokens & tokens, bool remove_special, bool special) const {
    std::string out(tokens.size() * 8 + 16, '\0');
    int n = llama_detokenize(vocab(), tokens.data(), (int32_t)tokens.size(), out.data(), (int32_t)out.size(),
                             remove_special, special);
    if (n < 0) {
        out.resize(-n);
        n = llama_detokenize(vocab(), tokens.data(), (int32_t)tokens.size(), out.data(), (int32_t)out.size(),
                             remove_special, special);
    }
    out.resize(std::max(n, 0));
    return out;
}

std::string Target::piece(Token token, bool special) const {
    if (token < 0 || token >= n_vocab()) {
        fail(ErrorKind::value, "token id %d is outside the vocabulary of %d", token, n_vocab());
    }
    std::string out(32, '\0');
    int n = llama_token_to_piece(vocab(), token, out.data(), (int32_t)out.size(), 0, special);
    if (n < 0) {
        out.resize(-n);
        n = llama_token_to_piece(vocab(), token, out.data(), (int32_t)out.size(), 0, special);
    }
    out.resize(std::max(n, 0));
    return out;
}

void Target::decode(TargetBatch & batch, bool is_prompt) {
    check_not_forked("the target cannot run");
    if (std::max(options_.n_threads, options_.n_threads_batch) > 1) note_helper_threads();
    llama_batch rows;
    batch.view(rows);
    taps_->begin(batch.n_rows());
    if (needs_reference_) {
        set_reference_kernels(ctx_.get(), !is_prompt || batch.n_rows() < n_rows_tiled);
    }
    if (holds_rejected() && batch.n_rows() > n_free_cells() && !close_gaps()) {
        free_held();
        ++n_order_lost_;
    }
    close_wide_gaps();
    is_shared_ = false;
    const int n_each = n_ids();
    for (int i = 1; i < batch.n_rows() && !is_shared_; ++i) {
        is_shared_ = rows.seq_id[i][0] / n_each != rows.seq_id[0][0] / n_each;
    }
    // more conversations than there are ids to hold cells with
    if (is_shared_ && adds_in_order_ && shares_batches() && !holds_rejected()) ++n_order_lost_;
    const kernels::ComputeScope scope(use_kernels_);
    const NoOffloadScope stay(!is_prompt && !is_cpu());
    ErrorTrail trail;
    int32_t rc = 0;
    try {
        guarded([&] {
            rc = llama_decode(ctx_.get(), rows);
            if (rc == 0) llama_synchronize(ctx_.get());
        });
    } catch (const std::bad_alloc &) {
        rc = -2;
    }
    check_servers();
    if (rc == 0) return;
    const std::string why = trail.text();
    if (rc == 1) fail(ErrorKind::context_full, "no free cell for %d rows in the target's cache", batch.n_rows());
    if (rc == -2) fail(ErrorKind::out_of_memory, "the target's compute buffer does not fit%s", why.c_str());
    fail(ErrorKind::broken, "llama_decode failed with code %d on %d rows%s", rc, batch.n_rows(), why.c_str());
}

const float * Target::logits(int row) const {
    const float * p = llama_get_logits_ith(ctx_.get(), row);
    if (!p) fail(ErrorKind::broken, "llama.cpp has no logits for row %d", row);
    return p;
}

ggml_backend_dev_t Target::output_device() const {
    const ggml_tensor * used = head();
    ggml_backend_dev_t device =
        used ? ggml_backend_buft_get_device(ggml_backend_buffer_get_type(used->buffer)) : nullptr;
    return device && ggml_backend_dev_type(device) != GGML_BACKEND_DEVICE_TYPE_CPU ? device : nullptr;
}

// llama.cpp's greedy sampler counts the row's logits among what it gives, and all of them would be copied back; its
// top-k gives ids and logits of those alone.
static LlamaSamplerPtr make_picker(int n_top) {
    LlamaSamplerPtr chain(llama_sampler_chain_init(llama_sampler_chain_default_params()));
    if (n_top > 1) {
        llama_sampler_chain_add(chain.get(), llama_sampler_init_top_k(n_top));
        return chain;
    }
    llama_sampler * greedy = llama_sampler_init_greedy();
    static llama_sampler_i picking = [&] {
        llama_sampler_i out = *greedy->iface;
        out.backend_apply = [](llama_sampler *, ggml_context * ctx, ggml_cgraph *, llama_sampler_data * data) {
            data->sampled = ggml_argmax(ctx, ggml_reshape_1d(ctx, data->logits, ggml_nelements(data->logits)));
            data->logits = nullptr;
        };
        return out;
    }();
    greedy->iface = &picking;
    llama_sampler_chain_add(chain.get(), greedy);
    return chain;
}

// Where a device lacks the operation llama.cpp would give back neither tokens nor logits, so it is asked first, by a
// sampler that is thrown away.
bool Target::can_pick(int n_top) {
    const auto known = can_pick_.find(n_top);
    if (known != can_pick_.end()) return known->second;
    ggml_backend_dev_t device = output_device();
    // a tap at the very last layer asks for the output of every row of a prompt
    const bool can = device && n_top <= n_vocab() && !taps_->needs_all_outputs() && guarded([&] {
                         const LlamaSamplerPtr trial = make_picker(n_top);
                         return trial->iface->backend_init(trial.get(), ggml_backend_dev_buffer_type(device), 1);
                     });
    return can_pick_[n_top] = can;
}

// llama.cpp's samplers on devices, one for each sequence id that a row may carry.
bool Target::pick_on_device(const SeqRange & range, int n_top) {
    if (n_top > 0 && !can_pick(n_top)) n_top = 0;
    for (int i = 0; i < range.count; ++i) {
        const llama_seq_id id = range.first + i;
        const auto it = pickers_.find(id);
        if ((it == pickers_.end() ? 0 : it->second.n_top) == n_top) continue;
        LlamaSamplerPtr picker = n_top > 0 ? make_picker(n_top) : nullptr;
        guarded([&] { llama_set_sampler(ctx_.get(), id, picker.get()); });
        if (n_top > 0) {
            pickers_[id] = {std::move(picker), n_top};
        } else {
            pickers_.erase(id);
        }
    }
    return n_top > 0;
}

Token Target::picked(int row) const {
    const llama_token token = llama_get_sampled_token_ith(ctx_.get(), row);
    if (token == LLAMA_TOKEN_NULL) fail(ErrorKind::broken, "llama.cpp picked no token for row %d", row);
    return token;
}

TopLogits Target::picked_top(int row) const {
    const uint32_t n = llama_get_sampled_candidates_count_ith(ctx_.get(), row);
    if (n == 0 || llama_get_sampled_logits_count_ith(ctx_.get(), row) != n) {
        fail(ErrorKind::broken, "llama.cpp picked no tokens for row %d", row);
    }
    return {llama_get_sampled_candidates_ith(ctx_.get(), row), llama_get_sampled_logits_ith(ctx_.get(), row), (int)n};
}

FeatureRows Target::features() {
    return taps_->read(ctx_.get());
}

SeqRange Target::seqs(int conversation) const {
    const llama_seq_id first = conversation * n_ids();
    return {first, options_.n_leaves_max, holds_rejected() ? first + options_.n_leaves_max : -1};
}

bool Target::truncate(const SeqRange & range, Pos n) {
    llama_memory_t mem = llama_get_memory(ctx_.get());
    // Held cells stay, those of later positions, too: one may lie before a cell that is kept, and what comes next would
    // fill it. So would other conversations fill what this one gives up now.
    if (range.held >= 0 && are_others_empty(range)) {
        if (n == 0) free_held();
    } else if (range.held >= 0) {
        hold_from(range, n);
    }
    bool ok = true;
    for (int i = 0; i < range.count; ++i) ok = llama_memory_seq_rm(mem, range.first + i, n, -1) && ok;
    if (ok) return true;
    for (int i = 0; i < range.count; ++i) llama_memory_seq_rm(mem, range.first + i, -1, -1);
    return false;
}

void Target::copy_prefix(const SeqRange & source, const SeqRange & range, Pos n) {
    llama_memory_t mem = llama_get_memory(ctx_.get());
    for (int i = 0; i < range.count; ++i) llama_memory_seq_cp(mem, source.first, range.first + i, 0, n);
}

void Target::keep_path(const SeqRange & range, const DraftTree & tree, int node, Pos pos) {
    llama_memory_t mem = llama_get_memory(ctx_.get());
    const Pos end = pos + tree.depth[node] + 1;
    const std::vector<int32_t> leaves = tree.leaves();
    const std::vector<int> leaf = leaf_of_seq((int)leaves.size(), range);
    const std::vector<int32_t> accepted = tree.path(node);

    // first position at which an id's own path leaves the accepted one
    std::vector<Pos> fork(range.count);
    int winner = -1;
    for (int i = 0; i < range.count; ++i) {
        const std::vector<int32_t> own = tree.path(leaves[leaf[i]]);
        size_t n_same = 0;
        while (n_same < own.size() && n_same < accepted.size() && own[n_same] == accepted[n_same]) ++n_same;
        fork[i] = pos + (Pos)n_same;
        if (fork[i] == end && winner < 0) winner = i;
    }
    if (range.held >= 0) hold_rejected(range, tree, accepted, pos);
    const bool is_exact = tree.depth.back() == tree.depth[node] && tree.is_chain();
    if (!is_exact) {
        for (int i = 0; i < range.count; ++i) llama_memory_seq_rm(mem, range.first + i, fork[i], -1);
    }
    for (int i = 0; i < range.count; ++i) {
        if (fork[i] < end) llama_memory_seq_cp(mem, range.first + winner, range.first + i, fork[i], end);
    }
}

// Where a conversation is alone and has chains only, what goes lies behind what stays.
bool Target::holds_rejected() const {
    if (!adds_in_order_ || !shares_batches()) return false;
    const size_t n_ids = (size_t)options_.n_sequences * (options_.n_leaves_max + 1);
    return options_.n_leaves_max > 1 || (options_.n_sequences > 1 && n_ids <= llama_max_parallel_sequences());
}

bool Target::are_others_empty(const SeqRange & range) const {
    llama_memory_t mem = llama_get_memory(ctx_.get());
    for (int i = 0; i < options_.n_sequences; ++i) {
        const llama_seq_id other = seqs(i).first;
        if (other != range.first && llama_memory_seq_pos_max(mem, other) >= 0) return false;
    }
    return true;
}

// Rows from position n on are about to go: their cells stay occupied.
void Target::hold_from(const SeqRange & range, Pos n) {
    llama_memory_t mem = llama_get_memory(ctx_.get());
    Pos end = n;
    for (int i = 0; i < range.count; ++i) {
        end = std::max(end, llama_memory_seq_pos_max(mem, range.first + i) + 1);
        llama_memory_seq_cp(mem, range.first + i, range.held, n, -1);
    }
    n_held_[range.first / n_ids()] += end - n;
}

// A cell that a rejected node leaves free before an accepted one would be filled by a later row, and attention, which
// adds in the order of the cells, would round differently than without the tree. Such cells stay occupied until the
// cache is full; then its gaps are closed. Where other conversations have rows behind it in the batch, every rejected
// node leaves such a cell.
void Target::hold_rejected(const SeqRange & range, const DraftTree & tree, const std::vector<int32_t> & accepted,
                           Pos pos) {
    llama_memory_t mem = llama_get_memory(ctx_.get());
    const std::vector<int32_t> leaves = tree.leaves();
    const bool has_room = n_unused_cells() >= n_unused_least();
    std::vector<uint8_t> is_done(tree.size(), 0);
    for (int32_t node : accepted) is_done[node] = 1;
    for (size_t i = 0; i < leaves.size(); ++i) {
        int from = INT_MAX, to = 0;  // depths; what is held of a path lies side by side
        for (int32_t node = leaves[i]; !is_done[node]; node = tree.parent[node]) {
            is_done[node] = 1;
            if (node > accepted.back() && !is_shared_) continue;
            from = std::min(from, (int)tree.depth[node]);
            to = std::max(to, tree.depth[node] + 1);
        }
        if (from >= to) continue;
        if (!has_room) {
            ++n_order_lost_;
            return;
        }
        llama_memory_seq_cp(mem, range.first + (llama_seq_id)i, range.held, pos + from, pos + to);
        n_held_[range.first / n_ids()] += to - from;
    }
}

int Target::n_held() const {
    return std::accumulate(n_held_.begin(), n_held_.end(), 0);
}

// What is held is looked through with every row. Where there is no memory to close the gaps, it waits.
void Target::close_wide_gaps() {
    if (options_.n_sequences == 1 || !holds_rejected() || n_held() <= n_held_most_) return;
    const int n_used = (int)llama_n_ctx(ctx_.get()) - n_unused_cells();
    if (n_held_most_ > 0 && !close_gaps()) {
        n_held_most_ = 2 * n_held();
    } else {
        n_held_most_ = std::max(n_gaps_least, n_used);
    }
}

void Target::free_held() {
    llama_memory_t mem = llama_get_memory(ctx_.get());
    for (int i = 0; i < options_.n_sequences; ++i) llama_memory_seq_rm(mem, seqs(i).held, -1, -1);
    n_held_.assign(options_.n_sequences, 0);
}

bool Target::has_room_for_trees() const {
    return n_unused_cells() >= n_unused_least() + options_.n_sequences * (options_.n_draft_max + 1);
}

// that hold no token of a conversation, at least
int Target::n_unused_cells() const {
    llama_memory_t mem = llama_get_memory(ctx_.get());
    int n = (int)llama_n_ctx(ctx_.get());
    for (int i = 0; i < options_.n_sequences; ++i) n -= llama_memory_seq_pos_max(mem, seqs(i).first) + 1;
    return n;
}

int Target::n_unused_least() const {
    return std::min(n_held_most, options_.n_ctx / 8);
}

int Target::n_free_cells() const {
    return n_unused_cells() - n_held();
}

void Target::clear() {
    n_held_.assign(options_.n_sequences, 0);
    llama_memory_clear(llama_get_memory(ctx_.get()), false);
}

}  // namespace eaglecpp
