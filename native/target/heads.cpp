// SPDX-License-Identifier: MIT
#include "target/heads.h"

#include <map>

#include "base/error.h"

namespace eaglecpp {

namespace {

struct HeadRules {
    bool has_several = false;                // llama.cpp can run several heads
    bool gives_outputs = false;              // the graph returns only the states of output rows
    bool has_equal_sizes = false;            // llama.cpp asserts that the key length equals the head width
    std::vector<const char *> tensors = {};  // tensors of a block that the graph needs and the loader does not check
};

// Architectures that were tested with tiny random heads. The rules follow llama.cpp's src/models/*.cpp.
const std::map<std::string, HeadRules> & all_rules() {
    static const std::map<std::string, HeadRules> rules = {
        {"bailingmoe3", {}},
        {"cohere2moe", {false, false, true}},
        {"deepseek2", {}},
        {"deepseek32", {}},
        {"deepseek4", {false, true}},
        {"glm-dsa", {}},
        {"glm4moe", {false, false, true}},
        {"hy_v3", {true, false, true}},
        {"mimo2", {true, true, false, {"attn_qkv.weight", "ffn_gate.weight", "ffn_up.weight", "ffn_down.weight"}}},
        {"nemotron_h_moe", {false, false, true}},
        {"qwen35", {false, false, true}},
        {"qwen35moe", {false, false, true}},
        {"qwen3next", {false, true, true}},
    };
    return rules;
}

}  // namespace

Heads heads_of(const GgufReader & file) {
    const std::string arch = file.str("general.architecture");
    if (arch == arch_assistant) return Heads::assistant;
    if (file.find_u32(arch + ".nextn_predict_layers").value_or(0) == 0) return Heads::none;
    return file.find_tensor("blk.0.attn_norm.weight") ? Heads::in_model : Heads::alone;
}

bool gives_states_of_outputs(const TargetModel & model) {
    const std::string arch = model.arch();
    const auto rules = all_rules().find(arch);
    return arch == arch_assistant || (rules != all_rules().end() && rules->second.gives_outputs);
}

std::vector<std::string> head_architectures() {
    std::vector<std::string> out;
    for (const auto & [arch, rules] : all_rules()) out.push_back(arch);
    return out;
}

void check_heads(const TargetModel & model) {
    const auto refuse_if = [&](bool is_wrong, const std::string & why) {
        fail_if(is_wrong, ErrorKind::unsupported, "%s: %s; use an EAGLE drafter, a small model or --draft text",
                model.path().c_str(), why.c_str());
    };
    const std::string arch = model.arch();
    if (arch == arch_assistant) return;
    const int n_heads = llama_model_n_layer_nextn(model.get());
    refuse_if(n_heads < 1, "the file has no heads for multi-token prediction (MTP)");
    const auto rules = all_rules().find(arch);
    refuse_if(rules == all_rules().end(), strf("eaglecpp does not support MTP heads of architecture '%s'; llama.cpp "
                                               "may run them (llama-server --spec-type draft-mtp)",
                                               arch.c_str()));
    refuse_if(n_heads > 1 && !rules->second.has_several,
              strf("the file has %d MTP heads, but llama.cpp runs only one head for architecture '%s'", n_heads,
                   arch.c_str()));
    // For vision models of this architecture, an assertion on llama.cpp's worker threads would end the process.
    refuse_if(arch == "glm4moe" && llama_model_rope_type(model.get()) == LLAMA_ROPE_TYPE_MROPE,
              "llama.cpp cannot run the MTP heads of 'glm4moe' vision models");
    std::vector<const char *> needed = {"nextn.eh_proj.weight", "nextn.enorm.weight", "nextn.hnorm.weight"};
    needed.insert(needed.end(), rules->second.tensors.begin(), rules->second.tensors.end());
    for (int i = 0; i < n_heads; ++i) {
        for (const char * name : needed) {
            const std::string tensor = strf("blk.%d.%s", model.n_layer() + i, name);
            refuse_if(model_tensors(model.get(), tensor.c_str()).empty(), "its MTP head has no tensor " + tensor);
        }
    }
    const std::string key = model.meta(arch + ".attention.key_length");
    const std::string value = model.meta(arch + ".attention.value_length");
    refuse_if(rules->second.has_equal_sizes && key != value,
              strf("its MTP heads have keys of length %s and values of length %s; expected equal lengths", key.c_str(),
                   value.c_str()));
}

}  // namespace eaglecpp
