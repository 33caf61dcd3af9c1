// SPDX-License-Identifier: MIT
#include "target/file_checks.h"

#include <cmath>
#include <cstring>

#include "base/error.h"
#include "gguf/keys.h"

namespace eaglecpp {

static constexpr const char * name_router = ".ffn_gate_inp.weight";

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

// Where both kinds of feed-forward layers are optional, llama.cpp takes the router for a sign of the experts.
static void check_experts(const GgufReader & file, const TensorInfo & router) {
    const std::string block = router.name.substr(0, router.name.size() - std::strlen(name_router) + 1);
    const auto has = [&](const char * name) { return file.find_tensor(block + name) != nullptr; };
    const bool has_in = has("ffn_up_exps.weight") || has("ffn_gate_up_exps.weight") || has("ffn_gate_exps.weight");
    if (has_in && has("ffn_down_exps.weight")) return;
    fail(ErrorKind::gguf, "%s: tensor '%s' chooses among experts, but there is no '%s%s': convert the model again",
         file.path().c_str(), router.name.c_str(), block.c_str(),
         has_in ? "ffn_down_exps.weight" : "ffn_up_exps.weight");
}

void check_weights(const GgufReader & header, const GgufReader & file) {
    const uint32_t n_experts = header.find_u32(header.str(keys::architecture) + ".expert_count").value_or(0);
    const bool is_split = header.find_u32("split.count").value_or(1) > 1;  // a block may lie in two files
    for (const TensorInfo & t : file.tensors()) {
        if (ends_with(t.name, name_router) && !is_split) check_experts(file, t);
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
