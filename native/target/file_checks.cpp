// SPDX-License-Identifier: MIT
#include "target/file_checks.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "base/error.h"
#include "gguf/keys.h"

namespace eaglecpp {

static bool ends_with(const std::string & text, const std::string & end) {
    return text.size() >= end.size() && text.compare(text.size() - end.size(), end.size(), end) == 0;
}

// ggml sorts rows by these numbers into tables of as many places as there are experts, unchecked.
static void check_expert_numbers(const GgufReader & file, const TensorInfo & table, uint32_t n_experts) {
    std::vector<int32_t> numbers(table.n_bytes / sizeof(int32_t));
    file.read(table, 0, numbers.data(), numbers.size() * sizeof(int32_t));
    for (const int32_t number : numbers) {
        if (number >= 0 && (uint32_t)number < n_experts) continue;
        fail(ErrorKind::gguf, "%s: tensor '%s' names expert %d, expected one of %u: convert the model again",
             file.path().c_str(), table.name.c_str(), number, n_experts);
    }
}

// Tensors that llama.cpp's loader takes for optional and its graph does not, in blocks that have another one. Found by
// taking tensors out of files, one at a time.
struct Companion {
    std::vector<const char *> archs;   // empty = all
    std::vector<const char *> where;   // a block has these
    std::vector<const char *> needed;  // one of these
};

static const std::vector<Companion> & companions() {
    static const std::vector<Companion> all = {
        {{}, {"ffn_gate_inp.weight"}, {"ffn_up_exps.weight", "ffn_gate_up_exps.weight"}},
        {{}, {"ffn_gate_inp.weight"}, {"ffn_down_exps.weight"}},
        {{"qwen35", "qwen35moe"}, {"ssm_out.weight"}, {"attn_qkv.weight"}},
        {{"qwen35", "qwen35moe"}, {"ssm_out.weight"}, {"attn_gate.weight"}},
        {{"qwen3next"}, {"ssm_out.weight"}, {"attn_qkv.weight", "ssm_in.weight"}},  // the latter in old files
        {{"qwen3next"}, {"ssm_out.weight", "attn_qkv.weight"}, {"attn_gate.weight"}},
        {{"nemotron_h", "nemotron_h_moe"}, {"ssm_conv1d.weight"}, {"ssm_conv1d.bias"}},
    };
    return all;
}

static void check_companions(const GgufReader & file, const std::string & arch, const TensorInfo & tensor) {
    for (const Companion & one : companions()) {
        const bool is_its = std::any_of(one.archs.begin(), one.archs.end(), [&](const char * a) { return arch == a; });
        if (!one.archs.empty() && !is_its) continue;
        if (!ends_with(tensor.name, std::string(".") + one.where[0])) continue;
        const std::string block = tensor.name.substr(0, tensor.name.size() - std::strlen(one.where[0]));
        const auto is_there = [&](const char * name) { return file.find_tensor(block + name) != nullptr; };
        if (!std::all_of(one.where.begin(), one.where.end(), is_there)) continue;
        if (std::any_of(one.needed.begin(), one.needed.end(), is_there)) continue;
        fail(ErrorKind::gguf, "%s: tensor '%s' needs '%s%s' beside it, which is not there: convert the model again",
             file.path().c_str(), tensor.name.c_str(), block.c_str(), one.needed[0]);
    }
}

void check_weights(const GgufReader & header, const GgufReader & file) {
    const std::string arch = header.str(keys::architecture);
    const uint32_t n_experts = header.find_u32(arch + ".expert_count").value_or(0);
    const bool is_split = header.find_u32("split.count").value_or(1) > 1;  // a block may lie in two files
    for (const TensorInfo & t : file.tensors()) {
        if (!is_split) check_companions(file, arch, t);
        if (ends_with(t.name, "_tid2eid.weight") && t.type == GGML_TYPE_I32) {
            check_expert_numbers(file, t, n_experts);
            continue;
        }
        // A matrix of a type that ggml only computes with internally makes it call a function that is not there.
        if ((!ends_with(t.name, ".weight") && !ends_with(t.name, ".bias")) || is_weight_type(t.type)) continue;
        fail(ErrorKind::gguf,
             "%s: tensor '%s' has type %s, which ggml cannot compute with; expected a float or quantised type such as "
             "f16 or q8_0: convert the model again",
             file.path().c_str(), t.name.c_str(), ggml_type_name(t.type));
    }
}

// Of one kind of layer; head_size is 0 where layers without attention come first and no size follows from them.
static void check_rotated(const GgufReader & file, const std::string & key, uint32_t n, uint32_t head_size) {
    if (head_size == 0 || (n > 0 && n % 2 == 0 && n <= head_size)) return;
    fail(ErrorKind::gguf,
         "%s: key '%s' is %u, expected an even number from 2 to the head's %u: convert the model again",
         file.path().c_str(), key.c_str(), n, head_size);
}

// The sections divide a position's angle among text, height, width and one more; ggml divides by their sum.
static void check_sections(const GgufReader & file, const std::string & key) {
    const auto given = file.find_ints(key);
    const std::vector<int32_t> sections = given.value_or(std::vector<int32_t>(4, 0));
    int64_t sum = 0;
    bool is_sane = sections.size() == 4;
    for (size_t i = 0; i < sections.size() && is_sane; ++i) {
        is_sane = sections[i] >= 0 && sections[i] <= UINT16_MAX;
        if (i < 3) sum += sections[i];
    }
    if (is_sane && sum > 0) return;
    std::string found = given ? "" : "nothing";
    for (const int32_t section : sections) {
        if (given) found += (found.empty() ? "" : ", ") + std::to_string(section);
    }
    fail(ErrorKind::gguf,
         "%s: key '%s' is %s, expected four sizes up to 65535, one of the first three not 0: convert the model again",
         file.path().c_str(), key.c_str(), found.c_str());
}

void check_settings(const GgufReader & header, const llama_model * model) {
    const std::string arch = header.str(keys::architecture);
    for (const char * name : {"attention.layer_norm_epsilon", "attention.layer_norm_rms_epsilon",
                              "attention.group_norm_epsilon", "hyper_connection.epsilon"}) {
        const std::string key = arch + "." + name;
        const float epsilon = header.find_f32(key).value_or(0.0f);
        if (std::isfinite(epsilon) && epsilon >= 0.0f) continue;
        fail(ErrorKind::gguf, "%s: key '%s' is %g, expected 0 or more: convert the model again", header.path().c_str(),
             key.c_str(), epsilon);
    }
    const llama_rope_type rope = llama_model_rope_type(model);
    if (rope == LLAMA_ROPE_TYPE_NONE) return;
    const uint32_t n_head = (uint32_t)llama_model_n_head(model);
    uint32_t head_size = n_head > 0 ? (uint32_t)llama_model_n_embd(model) / n_head : 0, n_rotated = 0;
    const std::string count = arch + ".rope.dimension_count", length = arch + ".attention.key_length";
    // what layers with a window do not say of themselves, they take from the others
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
