// SPDX-License-Identifier: MIT
#include "draft/draft_file.h"

#include <cmath>
#include <set>

#include "draft/graph.h"
#include "gguf/guard.h"

namespace eaglecpp {

// Upper limits of sizes in untrusted files; no real drafter reaches them. With these limits, products of sizes fit into
// 64 bits and allocations stay reasonable.
static constexpr int64_t n_layer_max = 64;
static constexpr int64_t n_width_max = 1 << 18;
static constexpr int64_t n_vocab_max = 1 << 24;
static constexpr int64_t n_aux_max = 64;
static constexpr int64_t n_parallel_max = 64;
static constexpr int64_t n_taps_max = 8;

std::string fill(std::string pattern, const std::string & value) {
    const size_t open = pattern.find('{');
    if (open == std::string::npos) return pattern;
    return pattern.replace(open, pattern.find('}') - open + 1, value);
}

std::string DraftFile::key(const char * pattern) const {
    return fill(pattern, spec_.arch);
}

void DraftFile::refuse_if(bool is_wrong, const char * pattern, const std::string & what, ErrorKind kind) const {
    if (is_wrong) fail(kind, "%s: key '%s': %s", path().c_str(), key(pattern).c_str(), what.c_str());
}

// Reads a size. Raises an error if the key is missing and `otherwise` is unset.
int DraftFile::size(const char * pattern, int64_t max, std::optional<int> otherwise) const {
    if (otherwise && !gguf_.has(key(pattern))) return *otherwise;
    const uint32_t value = gguf_.u32(key(pattern));
    refuse_if(value < 1 || value > max, pattern, strf("expected 1 to %lld, found %u", (long long)max, value));
    return (int)value;
}

float DraftFile::positive(const char * pattern, std::optional<float> otherwise) const {
    const float value = otherwise ? gguf_.find_f32(key(pattern)).value_or(*otherwise) : gguf_.f32(key(pattern));
    refuse_if(!(value > 0.0f) || !std::isfinite(value), pattern, strf("expected a positive number, found %g", value));
    return value;
}

Token DraftFile::token(const char * pattern) const {
    const uint32_t id = gguf_.u32(key(pattern));
    refuse_if(id >= (uint32_t)spec_.n_vocab, pattern,
              strf("token %u is outside the vocabulary of %d tokens", id, spec_.n_vocab));
    return (Token)id;
}

bool DraftFile::flag(const char * pattern, bool otherwise) const {
    return gguf_.find_bool(key(pattern)).value_or(otherwise);
}

std::vector<uint8_t> DraftFile::flags_of_layers(const char * pattern, bool otherwise) const {
    const std::vector<uint8_t> all(spec_.n_layer, otherwise), out = gguf_.find_bools(key(pattern)).value_or(all);
    refuse_if(out.size() != all.size(), pattern, strf("expected %zu values, found %zu", all.size(), out.size()));
    return out;
}

DraftFile::DraftFile(const std::string & path) : gguf_(path) {
    spec_.arch = gguf_.str("general.architecture");
    spec_.fuses_embedding = spec_.arch == "eagle";
    fail_if(!reads_hidden_states(spec_.arch), ErrorKind::gguf,
            "%s: key 'general.architecture' is '%s', expected a drafter ('eagle', 'eagle3', 'eagle31', 'dflash' or "
            "'dflash_ex'); convert a drafter with `eaglecpp convert`",
            path.c_str(), spec_.arch.c_str());
    spec_.name = gguf_.find_str("general.name").value_or("");
    read_sizes();
    read_rope();
    read_switches();
    if (is_block_arch(spec_.arch)) read_block();
    read_arithmetic();
    read_d2t();
    tensors_ = guarded([&] { return draft_tensors(spec_); });
    check_tensors();
    tokens_ = gguf_.find_strs("tokenizer.ggml.tokens").value_or(std::vector<std::string>{});
    token_types_ = gguf_.find_ints("tokenizer.ggml.token_type").value_or(std::vector<int32_t>{});
    fail_if(!tokens_.empty() && (int)tokens_.size() != spec_.n_vocab, ErrorKind::gguf,
            "%s: the tokenizer has %zu tokens, but the vocabulary size is %d; convert the checkpoint again",
            path.c_str(), tokens_.size(), spec_.n_vocab);
}

void DraftFile::read_sizes() {
    DraftSpec & s = spec_;
    s.n_layer = size("{arch}.block_count", n_layer_max);
    s.n_ctx_train = (int)gguf_.find_u32(key("{arch}.context_length")).value_or(0);
    s.n_embd = size("{arch}.embedding_length", n_width_max);
    const bool says_width = !is_block_arch(s.arch) || gguf_.has(key("{arch}.target_hidden_size"));
    s.n_embd_target = says_width ? size("{arch}.target_hidden_size", n_width_max) : s.n_embd;
    s.n_ff = size("{arch}.feed_forward_length", 4 * n_width_max);
    read_heads();
    s.rms_eps = positive("{arch}.attention.layer_norm_rms_epsilon");
    if (const auto n = gguf_.find_u32(key("{arch}.vocab_size"))) {
        s.n_vocab = (int)*n;
    } else if (const auto tokens = gguf_.find_strs("tokenizer.ggml.tokens")) {
        s.n_vocab = (int)tokens->size();
    }
    refuse_if(s.n_vocab < 1 || s.n_vocab > n_vocab_max, "{arch}.vocab_size",
              strf("expected 1 to %lld, found %d", (long long)n_vocab_max, s.n_vocab));
}

void DraftFile::read_heads() {
    DraftSpec & s = spec_;
    s.n_head = size("{arch}.attention.head_count", n_width_max);
    s.n_head_kv = size("{arch}.attention.head_count_kv", n_width_max, s.n_head);
    s.head_dim = size("{arch}.attention.key_length", n_width_max, s.n_embd / s.n_head);
    const int value_dim = size("{arch}.attention.value_length", n_width_max, s.head_dim);
    refuse_if(s.fuses_embedding && gguf_.has(key("{arch}.attention.kv_lora_rank")), "{arch}.attention.kv_lora_rank",
              "latent attention is not supported in EAGLE-1 and EAGLE-2 drafters", ErrorKind::unsupported);
    if (s.arch == "eagle31" && gguf_.has(key("{arch}.attention.kv_lora_rank"))) read_latent();
    fail_if(value_dim != s.value_dim(), ErrorKind::unsupported,
            "%s: expected key and value heads of equal size, found %d and %d", path().c_str(), s.head_dim, value_dim);
    fail_if(s.n_head % s.n_head_kv != 0 || s.head_dim < 2 || s.head_dim % 2 != 0 ||
                (int64_t)s.n_head * s.head_dim > 4 * n_width_max,
            ErrorKind::gguf, "%s: %d heads, %d kv heads and head size %d contradict each other", path().c_str(),
            s.n_head, s.n_head_kv, s.head_dim);
}

// Reads the settings of latent attention. The tensors for keys and values have the names and sizes of llama.cpp's
// deepseek2. Its cache also holds the latent rows.
void DraftFile::read_latent() {
    DraftSpec & s = spec_;
    LatentSpec & l = s.latent;
    l.kv_rank = size("{arch}.attention.kv_lora_rank", n_width_max);
    l.q_rank = size("{arch}.attention.q_lora_rank", n_width_max, 0);
    l.rope_dim = size("{arch}.rope.dimension_count", n_width_max);
    l.nope_dim = size("{arch}.attention.key_length_mla", n_width_max) - l.rope_dim;
    l.value_dim = size("{arch}.attention.value_length_mla", n_width_max);
    l.scale = positive("{arch}.attention.scale");
    const int64_t n_each = (int64_t)l.nope_dim + l.rope_dim + l.value_dim;
    fail_if(
        s.n_head_kv != 1 || s.head_dim != l.kv_rank + l.rope_dim || l.nope_dim < 1 ||
            s.n_head * n_each > 8 * n_width_max,
        ErrorKind::gguf,
        "%s: latent attention has rank %d, %d rotated values, %d kv heads, rows of %d and keys of %d values; expected "
        "1 kv head, rows of %d values and keys longer than their rotated part; convert the checkpoint again",
        path().c_str(), l.kv_rank, l.rope_dim, s.n_head_kv, s.head_dim, l.nope_dim + l.rope_dim,
        l.kv_rank + l.rope_dim);
}

void DraftFile::read_rope() {
    RopeSpec & r = spec_.rope;
    const DraftSpec & s = spec_;
    r.n_rot = (int)gguf_.find_u32(key("{arch}.rope.dimension_count")).value_or(s.head_dim);
    refuse_if(r.n_rot < 2 || r.n_rot > s.head_dim || r.n_rot % 2 != 0, "{arch}.rope.dimension_count",
              strf("expected an even number up to %d, found %d", s.head_dim, r.n_rot));
    const std::string type = gguf_.find_str(key("{arch}.rope.type")).value_or(is_block_arch(s.arch) ? "neox" : "norm");
    refuse_if(type != "norm" && type != "neox", "{arch}.rope.type", "expected 'norm' or 'neox', found '" + type + "'");
    r.neox = type == "neox";
    refuse_if(r.neox && s.has_latent(), "{arch}.rope.type", "expected 'norm' with latent attention, found 'neox'",
              ErrorKind::unsupported);
    r.freq_base = positive("{arch}.rope.freq_base", 10000.0f);
    const std::string scaling = gguf_.find_str(key("{arch}.rope.scaling.type")).value_or("none");
    const float factor = positive("{arch}.rope.scaling.factor", 1.0f);
    refuse_if(scaling != "none" && scaling != "linear" && scaling != "yarn", "{arch}.rope.scaling.type",
              "expected none, linear or yarn, found '" + scaling + "'", ErrorKind::unsupported);
    if (scaling != "none") r.freq_scale = 1.0f / factor;
    r.ext_factor = gguf_.find_f32(key("{arch}.rope.scaling.yarn_ext_factor")).value_or(scaling == "yarn" ? 1.0f : 0.0f);
    r.attn_factor = gguf_.find_f32(key("{arch}.rope.scaling.attn_factor")).value_or(1.0f);
    r.beta_fast = gguf_.find_f32(key("{arch}.rope.scaling.yarn_beta_fast")).value_or(32.0f);
    r.beta_slow = gguf_.find_f32(key("{arch}.rope.scaling.yarn_beta_slow")).value_or(1.0f);
    r.n_ctx_orig = (int)gguf_.find_u32(key("{arch}.rope.scaling.original_context_length")).value_or(s.n_ctx_train);
}

void DraftFile::read_switches() {
    DraftSpec & s = spec_;
    // Required keys. If a key were missing, the drafts would be wrong without any error.
    std::vector<const char *> required;
    if (s.arch == "dflash_ex") required = {"{arch}.block_size", "{arch}.sample_from_anchor", "{arch}.draft_vocab_size"};
    if (s.arch == "eagle" || s.arch == "eagle31")
        required = {"{arch}.norm_output", "{arch}.draft_vocab_size", "{arch}.rope.type"};
    if (s.arch == "eagle31") required.push_back("{arch}.fc_norm");
    for (const char * pattern : required) {
        fail_if(!gguf_.has(key(pattern)), ErrorKind::gguf, "%s: key '%s' is missing; convert the checkpoint again",
                path().c_str(), key(pattern).c_str());
    }
    s.norm_before_residual = flag("{arch}.norm_before_residual");
    s.norm_before_fc = flag("{arch}.norm_before_fc");
    s.fc_norm = flag("{arch}.fc_norm");
    s.norm_output = flag("{arch}.norm_output");
    if (s.arch == "eagle31") s.head_norm = flag("{arch}.head_norm", true);
    fail_if(s.norm_output && !s.head_norm, ErrorKind::gguf,
            "%s: key '%s' is false, but key '%s' is true; convert the checkpoint again", path().c_str(),
            key("{arch}.head_norm").c_str(), key("{arch}.norm_output").c_str());
    s.logit_scale = gguf_.find_f32(key("{arch}.logit_scale")).value_or(1.0f);
    s.has_embedding = gguf_.find_tensor("token_embd.weight") != nullptr;
    s.has_head = gguf_.find_tensor("output.weight") != nullptr;
    s.n_layer_target = (int)gguf_.find_u32("eaglecpp.target.block_count").value_or(0);

    s.held_out_rates = gguf_.find_floats("eaglecpp.held_out_rates").value_or(std::vector<float>());
    for (float rate : s.held_out_rates) {
        refuse_if(!(rate >= 0.0f && rate <= 1.0f), "eaglecpp.held_out_rates",
                  strf("expected rates from 0 to 1, found %g", rate));
    }

    const auto layers = gguf_.find_ints(key("{arch}.target_layers"));
    refuse_if(!layers || layers->empty() || (int64_t)layers->size() > n_aux_max, "{arch}.target_layers",
              strf("expected 1 to %lld layer ids, found %zu", (long long)n_aux_max, layers ? layers->size() : 0));
    s.target_layers = *layers;
    check_fused_embedding();
    const int64_t n_max = s.n_layer_target > 0 ? (int64_t)s.n_layer_target + s.fuses_embedding : 4096;
    for (int32_t id : s.target_layers) {
        refuse_if(id < 0 || id > n_max, "{arch}.target_layers",
                  strf("layer id %d is outside the target's %d layers", id, s.n_layer_target));
    }
    s.sliding_window = (int)gguf_.find_u32(key("{arch}.attention.sliding_window")).value_or(0);
    s.slides = flags_of_layers("{arch}.attention.sliding_window_pattern", s.sliding_window > 0);
    const TensorInfo * d2t = gguf_.find_tensor("d2t");
    s.n_draft_vocab = d2t ? (int)std::min<int64_t>(d2t->ne[0], n_vocab_max) : s.n_vocab;
    const int n_in_file = (int)gguf_.find_u32(key("{arch}.draft_vocab_size")).value_or(s.n_draft_vocab);
    refuse_if(n_in_file != s.n_draft_vocab, "{arch}.draft_vocab_size",
              strf("the value is %d, but tensor 'd2t' has %d entries", n_in_file, s.n_draft_vocab));
}

// Reads the settings of a block drafter, with llama.cpp's keys, tensors and defaults (src/models/dflash.cpp).
void DraftFile::read_block() {
    DraftSpec & s = spec_;
    BlockSpec & b = s.block;
    const auto rank = [&](const char * tensor) {
        const TensorInfo * t = gguf_.find_tensor(tensor);
        return t ? (int)std::min<int64_t>(t->ne[0], n_width_max) : 0;
    };
    for (const char * norm : {"{arch}.norm_before_fc", "{arch}.fc_norm", "{arch}.norm_before_residual"}) {
        refuse_if(flag(norm), norm, "expected false in a block drafter, found true", ErrorKind::unsupported);
    }
    b.markov_rank = rank("markov_w1.weight");
    b.n_rows =
        gguf_.has(key("{arch}.block_size")) || b.markov_rank > 0 ? size("{arch}.block_size", n_parallel_max) : 16;
    b.anchor_first = flag("{arch}.sample_from_anchor", b.markov_rank > 0);
    b.says_slots =
        gguf_.has(key("{arch}.sample_from_anchor")) || b.markov_rank > 0 || rank("selector_hidden.weight") > 0;
    b.says_window = gguf_.has(key("{arch}.attention.sliding_window")) || gguf_.has("eaglecpp.converter_version");
    b.is_gated = gguf_.find_tensor(fill("blk.{i}.attn_gate.weight", 0)) != nullptr;
    refuse_if(b.n_slots() < 1, "{arch}.block_size", strf("expected 2 or more rows, found %d", b.n_rows));
    b.causal = flags_of_layers("{arch}.attention.causal_pattern", flag("{arch}.attention.causal", b.is_gated));
    s.mask_token = token("tokenizer.ggml.mask_token_id");
    if (rank("selector_hidden.weight") > 0) {
        b.selector_rank = size("{arch}.selector_rank", n_width_max);
        b.selector_top_k = size("{arch}.selector_top_k", 1024);
        refuse_if(b.markov_rank > 0 || b.anchor_first || b.selector_top_k > s.n_draft_vocab, "{arch}.selector_top_k",
                  strf("a selector excludes sample_from_anchor and Markov heads; expected up to %d tokens, found %d",
                       s.n_draft_vocab, b.selector_top_k));
    }
    if (gguf_.find_tensor(fill("blk.{i}.attn_conv_base", 0))) {
        b.n_taps = size("{arch}.conv_kernel_size", n_taps_max);
        b.n_group = size("{arch}.conv_group_size", s.n_embd);
        refuse_if(s.n_embd % b.n_group != 0 || b.n_taps > b.n_rows, "{arch}.conv_group_size",
                  strf("group size %d and %d convolution taps do not match width %d and %d rows", b.n_group, b.n_taps,
                       s.n_embd, b.n_rows));
    }
    s.ties_head = !s.has_head && s.has_embedding && s.n_draft_vocab == s.n_vocab && !flag("{arch}.target_head");
    s.has_head = s.has_head || s.ties_head;
}

// Reads the settings in which some drafters differ from Llama. The defaults are Llama's values. llama.cpp reads none of
// these keys for `eagle3`.
void DraftFile::read_arithmetic() {
    DraftSpec & s = spec_;
    s.attn_scale = 1.0f / std::sqrt((float)s.head_dim);
    if (s.arch != "eagle31" && !s.is_block()) return;
    s.attn_scale = positive("{arch}.attention.scale", s.attn_scale);
    s.embd_scale = positive("{arch}.embedding_scale", 1.0f);
    if (gguf_.has(key("{arch}.final_logit_softcapping"))) s.logit_softcap = positive("{arch}.final_logit_softcapping");
    s.norms_values = flag("{arch}.attention.value_norm");
    const std::string activation = gguf_.find_str(key("{arch}.hidden_activation")).value_or("silu");
    refuse_if(activation != "silu" && activation != "gelu" && activation != "gelu_pytorch_tanh",
              "{arch}.hidden_activation", "expected silu, gelu or gelu_pytorch_tanh, found '" + activation + "'",
              ErrorKind::unsupported);
    s.uses_gelu = activation != "silu";
    s.value_scale = positive("{arch}.attention.value_scale", 1.0f);
    if (s.is_block()) return;
    if (gguf_.has(key("{arch}.mask_token_id")) || gguf_.has(key("{arch}.parallel_depth"))) {
        s.n_parallel = size("{arch}.parallel_depth", n_parallel_max);
        s.mask_token = token("{arch}.mask_token_id");
    }
    refuse_if(s.norms_values && s.has_latent(), "{arch}.attention.value_norm",
              "expected false with latent attention, found true", ErrorKind::unsupported);
}

// Checks the settings that are fixed for EAGLE-1 and EAGLE-2. Errors name the file's keys.
void DraftFile::check_fused_embedding() const {
    const DraftSpec & s = spec_;
    if (!s.fuses_embedding) return;
    fail_if(s.n_embd != s.n_embd_target, ErrorKind::gguf,
            "%s: key '%s' is %d and key '%s' is %d; both must be equal in an EAGLE-1 or EAGLE-2 drafter",
            path().c_str(), key("{arch}.embedding_length").c_str(), s.n_embd, key("{arch}.target_hidden_size").c_str(),
            s.n_embd_target);
    const int64_t id = (int64_t)s.n_layer_target + 1;
    refuse_if(s.n_aux() != 1 || (s.n_layer_target > 0 && s.target_layers[0] != id), "{arch}.target_layers",
              strf("expected only layer id %lld, the output of the target's final norm", (long long)id));
}

void DraftFile::check_tensors() const {
    std::string wrong;
    const auto complain = [&](const std::string & text) { wrong += (wrong.empty() ? "" : "; ") + text; };
    const auto shape = [](const int64_t * ne, size_t n) {
        std::string text = "[";
        for (size_t i = 0; i < n; ++i) text += (i ? ", " : "") + std::to_string(ne[i]);
        return text + "]";
    };
    for (const auto & t : gguf_.tensors()) {
        if (t.name == "d2t") continue;  // read_d2t() checks this tensor
        const auto it = tensors_.find(t.name);
        if (it == tensors_.end()) {
            complain("unknown tensor '" + t.name + "'");
            continue;
        }
        const DraftTensor & w = it->second;
        bool same = true;
        for (size_t i = 0; i < GGML_MAX_DIMS; ++i) same = same && t.ne[i] == (i < w.ne.size() ? w.ne[i] : 1);
        if (!same) {
            size_t n_dims = GGML_MAX_DIMS;
            while (n_dims > w.ne.size() && t.ne[n_dims - 1] == 1) --n_dims;
            complain("tensor '" + t.name + "' has shape " + shape(t.ne.data(), n_dims) + ", expected " +
                     shape(w.ne.data(), w.ne.size()));
        }
        if (w.is_f32 ? t.type != GGML_TYPE_F32 : !is_weight_type(t.type)) {
            complain("tensor '" + t.name + "' has type " + ggml_type_name(t.type) + ", expected " +
                     (w.is_f32 ? "f32" : "a float or quantised type of weights"));
        }
    }
    for (const auto & [name, w] : tensors_) {
        if (w.is_required && !gguf_.find_tensor(name)) complain("missing tensor '" + name + "'");
    }
    fail_if(!wrong.empty(), ErrorKind::gguf,
            "%s: the tensors do not match the file's keys: %s; convert the checkpoint again", path().c_str(),
            wrong.c_str());
}

void DraftFile::read_d2t() {
    const TensorInfo * t = gguf_.find_tensor("d2t");
    const int n = spec_.n_draft_vocab;
    d2t_.resize(n);
    if (!t) {
        for (int i = 0; i < n; ++i) d2t_[i] = i;
        return;
    }
    fail_if(t->type != GGML_TYPE_I64 || n < 1 || t->ne[0] != n || t->n_bytes != (uint64_t)n * sizeof(int64_t) ||
                n > spec_.n_vocab,
            ErrorKind::gguf, "%s: tensor 'd2t': expected up to %d i64 values, found %lld values of type %s",
            path().c_str(), spec_.n_vocab, (long long)t->ne[0], ggml_type_name(t->type));
    std::vector<int64_t> ids(n);
    gguf_.read(*t, 0, ids.data(), t->n_bytes);
    std::set<int64_t> seen;
    for (int i = 0; i < n; ++i) {
        fail_if(ids[i] < 0 || ids[i] >= spec_.n_vocab || !seen.insert(ids[i]).second, ErrorKind::gguf,
                "%s: tensor 'd2t': entry %d is %lld, expected distinct target ids below %d", path().c_str(), i,
                (long long)ids[i], spec_.n_vocab);
        d2t_[i] = (Token)ids[i];
    }
}

}  // namespace eaglecpp
