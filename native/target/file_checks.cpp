// SPDX-License-Identifier: MIT
#include "target/file_checks.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <stdexcept>

#include "base/error.h"
#include "gguf/guard.h"

namespace eaglecpp {

// Opens all files of a split model. Opens only this file if its name does not follow llama.cpp's pattern.
ModelFiles::ModelFiles(const std::string & path) {
    parts_.emplace_back(path);
    // llama.cpp reads this number as a uint16.
    const int n = (int)std::min<uint32_t>(header().find_u32("split.count").value_or(1), UINT16_MAX);
    std::vector<char> prefix(path.size() + 1), part(path.size() + 16);
    if (n <= 1 || llama_split_prefix(prefix.data(), prefix.size(), path.c_str(), 0, n) <= 0) return;
    for (int i = 1; i < n; ++i) {
        llama_split_path(part.data(), part.size(), prefix.data(), i, n);
        parts_.emplace_back(part.data());
    }
}

const TensorInfo * ModelFiles::find_tensor(const std::string & name) const {
    for (const GgufReader & part : parts_) {
        if (const TensorInfo * found = part.find_tensor(name)) return found;
    }
    return nullptr;
}

[[noreturn]] static void refuse(const GgufReader & file, const std::string & why) {
    fail(ErrorKind::gguf, "%s: %s; convert the model again", file.path().c_str(), why.c_str());
}

static bool ends_with(const std::string & text, const std::string & end) {
    return text.size() >= end.size() && text.compare(text.size() - end.size(), end.size(), end) == 0;
}

// Checks the numbers that ggml uses as indices into tables with one entry per expert. ggml does not check them.
static void check_expert_numbers(const GgufReader & file, const TensorInfo & table, uint32_t n_experts) {
    std::vector<int32_t> numbers(table.n_bytes / sizeof(int32_t));
    file.read(table, 0, numbers.data(), numbers.size() * sizeof(int32_t));
    for (const int32_t number : numbers) {
        if (number >= 0 && (uint32_t)number < n_experts) continue;
        refuse(file, strf("tensor '%s' contains expert %d, but the model has %u experts", table.name.c_str(), number,
                          n_experts));
    }
}

// Rules for tensors that llama.cpp's loader treats as optional, although its graph needs them in blocks with certain
// other tensors. `tests/architectures/run.py --mutations` found these tensors by removing each kind of tensor from a
// model of each architecture.
struct Companion {
    std::vector<const char *> archs;   // architectures of this rule; empty = all
    std::vector<const char *> where;   // the rule applies to blocks with all of these tensors
    std::vector<const char *> needed;  // such a block needs at least one of these tensors
};

static const std::vector<Companion> & companions() {
    static const std::vector<Companion> all = {
        {{}, {"ffn_gate_inp.weight"}, {"ffn_up_exps.weight", "ffn_gate_up_exps.weight"}},
        {{}, {"ffn_gate_inp.weight"}, {"ffn_down_exps.weight"}},
        {{"qwen35", "qwen35moe"}, {"ssm_out.weight"}, {"attn_qkv.weight"}},
        {{"qwen35", "qwen35moe"}, {"ssm_out.weight"}, {"attn_gate.weight"}},
        {{"qwen3next"}, {"ssm_out.weight"}, {"attn_qkv.weight", "ssm_in.weight"}},  // old files have ssm_in.weight
        {{"qwen3next"}, {"ssm_out.weight", "attn_qkv.weight"}, {"attn_gate.weight"}},
        {{"nemotron_h", "nemotron_h_moe", "granitehybrid", "falcon-h1"}, {"ssm_conv1d.weight"}, {"ssm_conv1d.bias"}},
        {{"glm-dsa"}, {"indexer.k_norm.weight"}, {"indexer.attn_q_b.weight"}},
        {{"glm-dsa"}, {"indexer.attn_q_b.weight"}, {"indexer.attn_k.weight"}},
        {{"glm-dsa"}, {"indexer.attn_k.weight"}, {"indexer.proj.weight"}},
        {{"glm-dsa"}, {"indexer.proj.weight"}, {"indexer.attn_q_b.weight"}},
    };
    return all;
}

static void check_companions(const ModelFiles & model, const std::string & arch, const TensorInfo & tensor) {
    for (const Companion & one : companions()) {
        const bool is_its = std::any_of(one.archs.begin(), one.archs.end(), [&](const char * a) { return arch == a; });
        if (!one.archs.empty() && !is_its) continue;
        if (!ends_with(tensor.name, std::string(".") + one.where[0])) continue;
        const std::string block = tensor.name.substr(0, tensor.name.size() - std::strlen(one.where[0]));
        const auto is_there = [&](const char * name) { return model.find_tensor(block + name) != nullptr; };
        if (!std::all_of(one.where.begin(), one.where.end(), is_there)) continue;
        if (std::any_of(one.needed.begin(), one.needed.end(), is_there)) continue;
        refuse(model.header(),
               strf("tensor '%s' needs '%s%s', which is missing", tensor.name.c_str(), block.c_str(), one.needed[0]));
    }
}

// Checks the type of a weight tensor. For a matrix of a type that ggml uses only internally, ggml would call a missing
// function.
static void check_type(const GgufReader & file, const TensorInfo & tensor) {
    if (is_weight_type(tensor.type)) return;
    refuse(file, strf("tensor '%s' has type %s, which ggml cannot compute with; expected a type such as f16 or q8_0",
                      tensor.name.c_str(), ggml_type_name(tensor.type)));
}

// Returns true for tensors that llama.cpp adds, scales by, convolves or rotates with (see its table of tensors in
// src/llama-arch.cpp). ggml's CPU backend supports these operations only in F32.
static bool is_added(const std::string & arch, const std::string & name) {
    // glm5-next only looks up rows of this tensor.
    if (arch == "glm5-next" && ends_with(name, ".indexer_compressor_ape.weight")) return true;
    for (const char * part : {"norm", "sinks", "exp_probs", "lerp", "conv1d", "shortconv.conv.", "rope_f", "z_l_init",
                              "ffn.act", "time_mix_a0.", "time_mix_v0.", "time_mix_w0.", "time_mix_decay.",
                              "time_mix_first.", "time_mix_k_a.", "time_mix_k_k.", "time_mix_r_k.", "time_mix_ln."}) {
        if (name.find(part) != std::string::npos) return true;
    }
    const std::string stem = ends_with(name, ".weight") ? name.substr(0, name.size() - 7) : name;
    for (const char * end : {"_base", "_scale", "_score"}) {
        if (ends_with(stem, end)) return true;
    }
    for (const char * end : {".bias", ".scale", ".gamma", ".ssm_a", ".ssm_d"}) {
        if (ends_with(name, end)) return true;
    }
    return false;
}

void check_weights(const ModelFiles & model) {
    const std::string arch = model.header().str("general.architecture");
    const uint32_t n_experts = model.header().find_u32(arch + ".expert_count").value_or(0);
    for (const GgufReader & file : model.parts()) {
        for (const TensorInfo & t : file.tensors()) {
            check_companions(model, arch, t);
            if (ends_with(t.name, "_tid2eid.weight") && t.type == GGML_TYPE_I32) {
                check_expert_numbers(file, t, n_experts);
                continue;
            }
            check_type(file, t);
            if (t.type == GGML_TYPE_F32 || !is_added(arch, t.name)) continue;
            refuse(file, strf("tensor '%s' has type %s, expected f32", t.name.c_str(), ggml_type_name(t.type)));
        }
    }
}

void check_projector(const GgufReader & projector) {
    for (const TensorInfo & t : projector.tensors()) check_type(projector, t);
}

static std::string shape_of(const TensorInfo & t) {
    std::string out = std::to_string(t.ne[0]);
    for (int i = 1; i < GGML_MAX_DIMS; ++i) out += (i < 2 || t.ne[i] > 1) ? " x " + std::to_string(t.ne[i]) : "";
    return out;
}

// Checks the LoRA factors of one matrix. Factors of embeddings are transposed, because embeddings are looked up by row.
static void check_factors(const GgufReader & lora, const ModelFiles & target, const std::string & name,
                          const TensorInfo & a, const TensorInfo & b) {
    const TensorInfo * weight = target.find_tensor(name);
    const auto refuse = [&](const TensorInfo & factor, const std::string & why) {
        fail(ErrorKind::mismatch, "%s was not made for the target %s: tensor '%s' (%s) %s", lora.path().c_str(),
             target.header().path().c_str(), factor.name.c_str(), shape_of(factor).c_str(), why.c_str());
    };
    if (!weight) refuse(a, "is for a tensor that the target does not have");
    const bool is_embedding = ends_with(name, "token_embd.weight");
    if (is_embedding && !target.find_tensor("output.weight")) {
        refuse(a, "is for embeddings that are also the target's output, which llama.cpp cannot adapt");
    }
    const int64_t n_in = is_embedding ? a.ne[1] : a.ne[0], n_out = b.ne[1];
    const int64_t in_target = weight->ne[is_embedding], out_target = weight->ne[!is_embedding];
    const std::string has = ", but the target's tensor has ";
    if (n_in != in_target) refuse(a, strf("is for %lld inputs", (long long)n_in) + has + std::to_string(in_target));
    if (n_out != out_target)
        refuse(b, strf("is for %lld outputs", (long long)n_out) + has + std::to_string(out_target));
    if (is_embedding ? a.ne[0] != b.ne[0] : a.ne[1] != b.ne[0]) refuse(b, "has another rank than " + shape_of(a));
    for (const TensorInfo * factor : {&a, &b}) {
        if (factor->ne[2] != weight->ne[2] || factor->ne[3] != 1) {
            refuse(*factor, "has other experts than the target's tensor " + shape_of(*weight));
        }
    }
}

void check_lora(const GgufReader & lora, const ModelFiles & target) {
    const char * path = lora.path().c_str();
    const std::string kind = lora.find_str("general.type").value_or("model");
    fail_if(kind != "adapter" || lora.find_str("adapter.type").value_or("") != "lora", ErrorKind::mismatch,
            "%s: expected a LoRA (general.type adapter, adapter.type lora), found general.type %s", path, kind.c_str());
    const std::string arch = lora.str("general.architecture"), expected = target.header().str("general.architecture");
    fail_if(arch != expected, ErrorKind::mismatch, "%s was made for architecture '%s', but the target %s is '%s'", path,
            arch.c_str(), target.header().path().c_str(), expected.c_str());
    const float alpha = lora.find_f32("adapter.lora.alpha").value_or(0.0f);
    fail_if(!std::isfinite(alpha), ErrorKind::gguf, "%s: key 'adapter.lora.alpha' is %g, expected a finite number",
            path, alpha);
    for (const TensorInfo & t : lora.tensors()) {
        if (ends_with(t.name, "_norm.weight")) continue;  // llama.cpp ignores factors of norms
        const size_t dot = t.name.rfind('.');
        const std::string name = t.name.substr(0, dot), side = dot == std::string::npos ? "" : t.name.substr(dot + 1);
        fail_if(side != "lora_a" && side != "lora_b", ErrorKind::gguf,
                "%s: tensor '%s': expected names that end in .lora_a or .lora_b", path, t.name.c_str());
        check_type(lora, t);
        const TensorInfo * other = lora.find_tensor(name + (side == "lora_a" ? ".lora_b" : ".lora_a"));
        fail_if(!other, ErrorKind::gguf, "%s: tensor '%s' has no matching '%s'", path, t.name.c_str(),
                side == "lora_a" ? "lora_b" : "lora_a");
        if (side == "lora_a") check_factors(lora, target, name, t, *other);
    }
}

// Checks the number of rotated dimensions of one kind of layer. head_size is 0 if it is unknown because the first
// layers have no attention.
static void check_rotated(const GgufReader & file, const std::string & key, uint32_t n, uint32_t head_size) {
    if (head_size == 0 || (n > 0 && n % 2 == 0 && n <= head_size)) return;
    refuse(file, strf("key '%s' is %u, expected an even number from 2 to the head size %u", key.c_str(), n, head_size));
}

// Checks the sections of a rotary embedding, which divide a position's angle between text, height, width and a fourth
// dimension. ggml divides by their sum.
static void check_sections(const GgufReader & file, const std::string & key) {
    const auto values = file.find_ints(key);
    const std::vector<int32_t> sections = values.value_or(std::vector<int32_t>(4, 0));
    int64_t sum = 0;
    bool is_sane = sections.size() == 4;
    for (size_t i = 0; i < sections.size() && is_sane; ++i) {
        is_sane = sections[i] >= 0 && sections[i] <= UINT16_MAX;
        if (i < 3) sum += sections[i];
    }
    if (is_sane && sum > 0) return;
    std::string found = values ? "" : "nothing";
    for (const int32_t section : sections) {
        if (values) found += (found.empty() ? "" : ", ") + std::to_string(section);
    }
    refuse(file, "key '" + key + "' is " + found + ", expected four sizes up to 65535, one of the first three above 0");
}

// Sizes of the cached keys and values of one attention layer.
struct LayerHeads {
    int64_t n_kv, key, value;
};

static LayerHeads heads_of_layer(const GgufReader & header, const llama_model * model, int layer) {
    const std::string attention = header.str("general.architecture") + ".attention.";
    const int64_t n_head = header.find_of_layer(attention + "head_count", layer).value_or(0);
    const int64_t usual = llama_model_n_embd(model) / std::max<int64_t>(1, n_head);
    const auto length = [&](const char * name) {
        const int64_t plain = header.find_u32(attention + name).value_or((uint32_t)usual);
        return std::min<int64_t>(plain, header.find_u32(attention + name + "_swa").value_or((uint32_t)plain));
    };
    const bool is_latent = header.has(attention + "key_length_mla") && header.has(attention + "value_length_mla");
    return {header.find_of_layer(attention + "head_count_kv", layer).value_or(n_head), length("key_length"),
            is_latent ? 0 : length("value_length")};
}

CellSize cell_size(const GgufReader & header, const llama_model * model) {
    CellSize out;
    const std::string shared = header.str("general.architecture") + ".attention.shared_kv_layers";
    const int n_own = llama_model_n_layer(model) - (int)header.find_u32(shared).value_or(0);
    for (int il = 0; il < n_own; ++il) {
        const LayerHeads heads = heads_of_layer(header, model, il);
        out.keys += (double)heads.n_kv * heads.key;
        out.values += (double)heads.n_kv * heads.value;
    }
    return out;
}

// Checks the length of keys. llama.cpp would allocate a cache for keys of any stated length before it notices that the
// keys have another length.
static void check_key_length(const ModelFiles & files, const llama_model * model) {
    const GgufReader & header = files.header();
    const std::string key = header.str("general.architecture") + ".attention.key_length";
    if (!header.has(key) || llama_model_is_recurrent(model) || llama_model_is_hybrid(model)) return;
    for (int il = 0; il < llama_model_n_layer(model); ++il) {
        const TensorInfo * t = files.find_tensor("blk." + std::to_string(il) + ".attn_k.weight");
        const int64_t n_kv = heads_of_layer(header, model, il).n_kv;
        if (!t || n_kv == 0) continue;
        const uint32_t length = header.u32(key), window = header.find_u32(key + "_swa").value_or(length);
        if (t->ne[1] == n_kv * length || t->ne[1] == n_kv * window) continue;
        refuse(header, strf("key '%s' is %u, but tensor '%s' has %lld values for %lld key heads", key.c_str(), length,
                            t->name.c_str(), (long long)t->ne[1], (long long)n_kv));
    }
}

// Checks the tokens that the tokenizer needs. A SentencePiece vocabulary maps unknown text to byte tokens. Without byte
// tokens, llama.cpp throws.
static void check_tokenizer(const GgufReader & header, const llama_model * model) {
    const llama_vocab * vocab = llama_model_get_vocab(model);
    if (llama_vocab_type(vocab) != LLAMA_VOCAB_TYPE_SPM || !header.has("tokenizer.ggml.merges")) return;
    llama_token tokens[16];
    try {
        guarded([&] { llama_tokenize(vocab, " a", 2, tokens, 16, false, false); });
    } catch (const std::out_of_range &) {
        refuse(header, "key 'tokenizer.ggml.model' is 'llama', but the vocabulary has merges and no byte tokens");
    }
}

void check_settings(const ModelFiles & files, const llama_model * model) {
    const GgufReader & header = files.header();
    const std::string arch = header.str("general.architecture");
    check_tokenizer(header, model);
    check_key_length(files, model);
    for (const char * name : {"attention.layer_norm_epsilon", "attention.layer_norm_rms_epsilon",
                              "attention.group_norm_epsilon", "hyper_connection.epsilon"}) {
        const std::string key = arch + "." + name;
        const float epsilon = header.find_f32(key).value_or(0.0f);
        if (std::isfinite(epsilon) && epsilon >= 0.0f) continue;
        refuse(header, strf("key '%s' is %g, expected 0 or more", key.c_str(), epsilon));
    }
    const llama_rope_type rope = llama_model_rope_type(model);
    if (rope == LLAMA_ROPE_TYPE_NONE) return;
    const uint32_t n_head = (uint32_t)llama_model_n_head(model);
    uint32_t head_size = n_head > 0 ? (uint32_t)llama_model_n_embd(model) / n_head : 0, n_rotated = 0;
    const std::string count = arch + ".rope.dimension_count", length = arch + ".attention.key_length";
    // Layers with a sliding window inherit missing values from the layers without a window.
    for (const std::string window : {"", "_swa"}) {
        head_size = header.find_u32(length + window).value_or(head_size);
        n_rotated = header.find_u32(count + window).value_or(window.empty() ? head_size : n_rotated);
        check_rotated(header, count + window, n_rotated, head_size);
    }
    const bool has_sections =
        rope == LLAMA_ROPE_TYPE_MROPE || rope == LLAMA_ROPE_TYPE_IMROPE || rope == LLAMA_ROPE_TYPE_VISION;
    if (has_sections) check_sections(header, arch + ".rope.dimension_sections");
}

}  // namespace eaglecpp
