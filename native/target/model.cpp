// SPDX-License-Identifier: MIT
#include "target/model.h"

#include <algorithm>
#include <map>

#include "base/error.h"
#include "base/log.h"
#include "base/memory.h"
#include "ggml_hook/hook.h"
#include "gguf/guard.h"
#include "gguf/reader.h"
#include "target/amx.h"

namespace eaglecpp {

void TargetModel::check_servers() const {
    for (const LostServer & server : lost_rpc_servers()) {
        if (!servers_.count(server.relay)) continue;
        fail(ErrorKind::broken,
             "RPC server %s was lost: %s. Its part of the model is missing. Start the server and open the engine "
             "again, or open the engine without this server",
             server.endpoint.c_str(), server.why.c_str());
    }
}

// Sets the parameters for devices and memory. They point to memory of this object.
void TargetModel::set_params(const TargetOptions & options) {
    static const std::map<std::string, llama_split_mode> modes = {{"none", LLAMA_SPLIT_MODE_NONE},
                                                                  {"layer", LLAMA_SPLIT_MODE_LAYER},
                                                                  {"row", LLAMA_SPLIT_MODE_ROW},
                                                                  {"tensor", LLAMA_SPLIT_MODE_TENSOR}};
    const auto mode = modes.find(options.split_mode);
    fail_if(mode == modes.end(), ErrorKind::value, "split_mode: expected layer, row, tensor or none, found '%s'",
            options.split_mode.c_str());
    fail_if(options.tensor_split.size() > llama_max_devices(), ErrorKind::value,
            "tensor_split: found %zu shares, but llama.cpp supports %zu devices", options.tensor_split.size(),
            llama_max_devices());
    if (!options.tensor_split.empty()) {
        split_ = options.tensor_split;
        split_.resize(llama_max_devices(), 0.0f);
    }
    // A number above llama_max_tensor_buft_overrides() would only add patterns for layers that do not exist.
    const int n_cpu_moe = std::min(options.n_cpu_moe, (int)llama_max_tensor_buft_overrides());
    places_ = tensor_places(n_cpu_moe, options.override_tensor);
    for (const TensorPlace & place : places_) overrides_.push_back({place.pattern.c_str(), place.buffer});
    if (!overrides_.empty()) overrides_.push_back({nullptr, nullptr});

    params_ = llama_model_default_params();
    params_.n_gpu_layers = options.n_gpu_layers;
    params_.main_gpu = options.main_gpu;
    params_.load_mtp = options.load_heads;
    params_.split_mode = mode->second;
    if (!split_.empty()) params_.tensor_split = split_.data();
    if (!overrides_.empty()) params_.tensor_buft_overrides = overrides_.data();
    params_.load_mode = options.use_mlock ? (options.use_mmap ? LLAMA_LOAD_MODE_MMAP_MLOCK : LLAMA_LOAD_MODE_MLOCK)
                                          : (options.use_mmap ? LLAMA_LOAD_MODE_MMAP : LLAMA_LOAD_MODE_NONE);
    params_.use_extra_bufts = use_repack_ || use_kernels_;
    if (!devices_.empty()) params_.devices = devices_.data();
}

TargetModel::TargetModel(const TargetOptions & options) : path_(options.path) {
    const ModelFiles files(path_);
    const GgufReader & header = files.header();
    arch_ = header.str("general.architecture");
    fail_if(reads_hidden_states(arch_), ErrorKind::unsupported,
            "%s is a drafter, not a target; pass it as the drafter of a target", path_.c_str());
    if (options.repack == "auto") {
        const AmxState amx = probe_amx();
        use_repack_ = !amx.claimed || amx.works;
    } else {
        use_repack_ = options.repack == "on";
    }
    use_kernels_ = options.kernels != "off" && kernels::status().is_active;
    std::set<std::string> lost;
    for (const LostServer & server : lost_rpc_servers()) lost.insert(server.relay);
    const std::vector<ggml_backend_dev_t> gpus = list_gpus(lost);
    for (ggml_backend_dev_t dev : gpus) {
        if (is_on_server(dev)) servers_.insert(ggml_backend_dev_description(dev));
    }
    if (!lost.empty() || options.split_mode == "tensor") devices_ = gpus;
    if (options.device) devices_ = {options.device};
    if (!lost.empty() || !devices_.empty()) devices_.push_back(nullptr);
    set_params(options);

    check_weights(files);
    for (const auto & lora : options.lora) check_lora(GgufReader(lora.first), files);
    for (const GgufReader & file : files.parts()) {
        for (const TensorInfo & t : file.tensors()) {
            has_float_matrices_ = has_float_matrices_ || (t.ne[1] > 1 && !ggml_is_quantized(t.type));
        }
    }
    Progress progress(options.on_progress);
    params_.progress_callback = [](float, void * data) { return static_cast<Progress *>(data)->go_on(); };
    params_.progress_callback_user_data = &progress;
    ErrorTrail trail;
    try {
        const kernels::LoadScope placement(use_kernels_, use_repack_);
        guarded([&] { model_.reset(llama_model_load_from_file(path_.c_str(), params_)); });
    } catch (const Error & e) {
        fail(ErrorKind::gguf, "%s: llama.cpp could not load this target: %s", path_.c_str(), e.what());
    } catch (const std::bad_alloc & e) {
        log_line(LogLevel::error, e.what());
    }
    progress.rethrow();
    check_servers();
    if (!model_) {
        const std::string why = trail.text();
        fail_if(is_lack_of_memory(why), ErrorKind::out_of_memory, "%s: not enough memory to load the target%s",
                path_.c_str(), why.c_str());
        fail(ErrorKind::gguf, "%s: llama.cpp could not load this target%s", path_.c_str(), why.c_str());
    }
    if (options.split_mode == "tensor") check_parts(model_.get(), devices_.size() - 1);
    check_settings(files, model_.get());
    cell_size_ = cell_size(header, model_.get());
    if (use_kernels_ && options.use_mmap && !options.use_mlock) {
        for (const GgufReader & file : files.parts()) forget_file_pages(file.path());
    }
    fail_if(!llama_model_has_decoder(model_.get()) || llama_model_has_encoder(model_.get()) ||
                llama_model_is_diffusion(model_.get()),
            ErrorKind::unsupported, "%s: architecture '%s' does not generate text token by token", path_.c_str(),
            arch_.c_str());
    load_lora(options);
}

void TargetModel::check_memory(const llama_context_params & p) const {
    const uint64_t available = available_memory();
    if ((!is_cpu() && p.offload_kqv) || available == 0 || has_state()) return;
    const auto n_bytes = [](double n, ggml_type type) { return n * ggml_type_size(type) / ggml_blck_size(type); };
    const double n_cell = n_bytes(cell_size_.keys, p.type_k) + n_bytes(cell_size_.values, p.type_v);
    if (p.n_ctx * n_cell <= (double)available) return;
    fail(ErrorKind::out_of_memory,
         "%s: a context of %u tokens needs %.1f GB for keys and values, but %.1f GB are "
         "available; try a smaller n_ctx, or type_k and type_v q8_0",
         path_.c_str(), p.n_ctx, p.n_ctx * n_cell / 1e9, available / 1e9);
}

void TargetModel::load_lora(const TargetOptions & options) {
    for (const auto & lora : options.lora) {
        const char * path = lora.first.c_str();
        ErrorTrail trail;
        llama_adapter_lora * adapter = guarded([&] { return llama_adapter_lora_init(model_.get(), path); });
        if (!adapter) fail(ErrorKind::gguf, "%s is not a LoRA adapter for this target%s", path, trail.text().c_str());
        lora_.push_back(adapter);
        lora_scales_.push_back(lora.second);
    }
}

void TargetModel::attach_lora(llama_context * ctx) const {
    if (lora_.empty()) return;
    auto adapters = lora_;
    auto scales = lora_scales_;
    fail_if(llama_set_adapters_lora(ctx, adapters.data(), adapters.size(), scales.data()) != 0, ErrorKind::unsupported,
            "llama.cpp rejected the LoRA adapters; open the engine without them");
}

// Returns the text that `call` writes into a buffer, or "" if there is no text. `call` receives the buffer and its
// size, and returns the text's length.
template <typename Call>
static std::string text_of_meta(Call && call) {
    const int n = call(nullptr, 0);
    if (n < 0) return "";
    std::string text(n + 1, '\0');
    call(text.data(), text.size());
    text.resize(n);
    return text;
}

std::string TargetModel::meta(const std::string & key) const {
    return text_of_meta([&](char * to, size_t n) { return llama_model_meta_val_str(get(), key.c_str(), to, n); });
}

std::vector<std::pair<std::string, std::string>> TargetModel::metadata() const {
    std::vector<std::pair<std::string, std::string>> out;
    for (int i = 0; i < llama_model_meta_count(get()); ++i) {
        const std::string key =
            text_of_meta([&](char * to, size_t n) { return llama_model_meta_key_by_index(get(), i, to, n); });
        if (!key.empty()) out.push_back({key, meta(key)});
    }
    return out;
}

const ggml_tensor * TargetModel::embedding() const {
    for (const ggml_tensor * t : model_tensors(model_.get(), "token_embd.weight")) {
        if (has_plain_rows(t)) return t;
    }
    return nullptr;
}

const ggml_tensor * TargetModel::head() const {
    const auto own = model_tensors(model_.get(), "output.weight");
    if (!own.empty()) return own.front();
    // If llama.cpp stores tied embeddings twice, the head is the copy that is not used to look up tokens.
    const ggml_tensor * rows = embedding();
    for (const ggml_tensor * t : model_tensors(model_.get(), "token_embd.weight")) {
        if (t != rows) return t;
    }
    return rows;
}

const ggml_tensor * TargetModel::head_to_copy() const {
    const ggml_tensor * used = head();
    if (!used || has_plain_rows(used)) return used;
    if (output_device()) return used;
    return model_tensors(model_.get(), "output.weight").empty() ? embedding() : nullptr;
}

ggml_backend_dev_t TargetModel::output_device() const {
    const ggml_tensor * used = head();
    ggml_backend_dev_t device =
        used ? ggml_backend_buft_get_device(ggml_backend_buffer_get_type(used->buffer)) : nullptr;
    return device && ggml_backend_dev_type(device) != GGML_BACKEND_DEVICE_TYPE_CPU ? device : nullptr;
}

// llama_supports_gpu_offload() is not used here, because it also returns true for builds with RPC support but no
// server.
bool TargetModel::is_cpu() const {
    return !find_device("auto", params_.n_gpu_layers);
}

bool TargetModel::has_state() const {
    return llama_model_is_recurrent(model_.get()) || llama_model_is_hybrid(model_.get());
}

// Returns true for llama.cpp's MiniMax-M3. It finds the blocks of its sparse attention by cell, which works only with
// one sequence id. With the several ids of a tree, its graph silently uses dense attention (src/models/minimax-m3.cpp).
static bool has_block_attention(const TargetModel & model) {
    return model.arch() == "minimax-m3";
}

const char * TargetModel::chains_only() const {
    if (has_state()) return "this target has a recurrent state, which cannot verify a tree";
    if (has_block_attention(*this)) {
        return "this target's sparse attention needs a single sequence id, but a tree has several";
    }
    return "";
}

const char * TargetModel::never_exact() const {
    if (has_block_attention(*this)) {
        return "this target's sparse attention computes one row differently from several rows";
    }
    return "";
}

}  // namespace eaglecpp
