// SPDX-License-Identifier: MIT
#include "engine/models.h"

#include <algorithm>
#include <cstring>
#include <filesystem>

#include "base/error.h"
#include "base/log.h"
#include "draft/hidden_state_drafter.h"
#include "engine/model_drafter.h"
#include "kernels/attention.h"
#include "target/heads.h"

namespace eaglecpp {

std::string token_differences(const Vocabulary & target, int n, const std::function<const char *(Token)> & text,
                              const std::function<bool(Token)> & is_compared) {
    int n_differ = 0;
    std::string first;
    for (Token t = 0; t < std::max(n, target.size()); ++t) {
        if (!is_compared(t)) continue;
        const char * ours = t < n ? text(t) : "";
        const char * theirs = t < target.size() ? llama_vocab_get_text(target.get(), t) : "";
        if (std::strcmp(ours, theirs) == 0 || n_differ++ > 0) continue;
        first = strf("the first is token %d: drafter '%s', target '%s'", t, ours, theirs);
    }
    return n_differ == 0 ? "" : strf("tokens differ (%d), %s", n_differ, first.c_str());
}

// Describes differences of normal tokens, on which the drafter was trained. Padding, control tokens and added tokens
// are ignored, because fine-tunes and converters rename them without harm.
static std::string normal_differences(const DraftFile & draft, const Target & target) {
    constexpr int type_normal = 1;
    const auto & tokens = draft.tokens();
    const auto & types = draft.token_types();
    const auto is_normal = [&](Token t) {
        return t < (int)tokens.size() && (types.empty() || types[t] == type_normal);
    };
    return token_differences(target.vocab(), (int)tokens.size(), [&](Token t) { return tokens[t].c_str(); }, is_normal);
}

// Checks that a drafter belongs to its target. A wrong pair would give correct text, but slowly and without an error.
// Raises an Error(mismatch) that names both files and all differences.
static void check_fit(const DraftFile & draft, const Target & target) {
    const DraftSpec & s = draft.spec();
    std::string wrong;
    const auto differ = [&](const char * what, int drafter, int found) {
        if (drafter != found) wrong += strf("; %s: drafter %d, target %d", what, drafter, found);
    };
    differ("hidden size", s.n_embd_target, target.model().n_embd());
    differ("vocabulary size", s.n_vocab, target.vocab().size());
    if (s.n_layer_target > 0) differ("number of layers", s.n_layer_target, target.model().n_layer());
    const int32_t highest = *std::max_element(s.target_layers.begin(), s.target_layers.end());
    if (s.fuses_embedding) {
        differ("id of the final norm's output", s.target_layers[0], target.model().n_layer() + 1);
    } else if (highest > target.model().n_layer()) {
        wrong += strf("; layer id %d: the target has only %d layers", highest, target.model().n_layer());
    }
    if (s.n_vocab == target.vocab().size()) {
        const std::string tokens = normal_differences(draft, target);
        if (!tokens.empty()) wrong += "; tokenizer: " + tokens;
    }
    if (wrong.empty()) return;
    fail(ErrorKind::mismatch,
         "the drafter %s was not made for the target %s%s; use a drafter made for this model, or "
         "convert one with `eaglecpp convert`",
         draft.path().c_str(), target.options().path.c_str(), wrong.c_str());
}

// Memory that stays free on a device, for its backend and for other programs such as the display server.
static constexpr size_t n_margin = 256 << 20;

// Returns the target's output device if it is a single local GPU. Otherwise returns the first local GPU, or null if
// there is none. RPC devices are excluded, because a drafter's round has many short waits, for which a network is too
// slow.
static ggml_backend_dev_t best_device(const Target & target) {
    const ggml_backend_dev_t dev = target.model().output_device();
    const bool is_one = dev && ggml_backend_dev_type(dev) != GGML_BACKEND_DEVICE_TYPE_META;
    if (is_one && !is_on_server(dev)) return dev;
    for (ggml_backend_dev_t gpu : list_gpus()) {
        if (!is_on_server(gpu)) return gpu;
    }
    return nullptr;
}

static std::unique_ptr<HiddenStateDrafter> load_drafter(const EngineOptions & options, const DraftFile & file,
                                                        const Target & target, DrafterOptions d) {
    // On the CPU, ggml's flash attention takes several times as long as separate operations for the few rows of a draft
    // step. Our kernel takes less time than separate operations (not measured for latent attention). In a drafter of
    // several layers, all rows of a commit attend, and separate operations would allocate scores for all of them.
    const bool is_cpu = !d.device || ggml_backend_dev_type(d.device) == GGML_BACKEND_DEVICE_TYPE_CPU;
    const bool has_kernel = d.use_kernels && kernels::attention_type_fits(d.type_kv) && !file.spec().has_latent();
    const bool is_fused = !is_cpu || has_kernel || file.spec().n_layer > 1;
    d.flash_attn = options.flash_attn == "on" || (options.flash_attn == "auto" && is_fused);
    auto drafter = std::make_unique<HiddenStateDrafter>(file, d);
    const DraftSpec & s = drafter->spec();
    if (!s.has_embedding) {
        const ggml_tensor * table = target.model().embedding();
        fail_if(!table, ErrorKind::unsupported,
                "%s has no token embedding, and the host cannot read the target's token embedding; use repack='off' or "
                "a drafter with its own embedding",
                options.draft_path.c_str());
        drafter->set_embedding(EmbeddingTable(table));
    }
    if (!s.has_head && target.model().head()) drafter->share_head(target.model().head(), target.model().head_to_copy());
    drafter->finish();
    drafter->reserve();
    return drafter;
}

// Loads the drafter on the device in the options, ready to use. "auto" selects the best device, or the CPU if that
// device lacks memory. On a GPU, this also allocates the memory of the drafter's conversations.
static void place_drafter(const EngineOptions & options, Models & models) {
    const Target & target = *models.target;
    DrafterOptions d;
    d.n_threads = target.options().n_threads;
    d.n_ctx = target.n_ctx();
    d.n_sequences = target.options().n_sequences;
    d.n_draft_rows_max = std::max(128, 2 * options.n_draft_max);
    d.type_kv = type_by_name(options.draft_type_kv);
    d.use_kernels = target.model().uses_kernels();
    const bool is_free = options.draft_device == "auto" && !target.model().is_cpu();
    d.device = is_free ? best_device(target) : find_device(options.draft_device, options.n_gpu_layers);
    const auto load = [&] { return load_drafter(options, *models.draft_file, target, d); };
    if (!is_free || !d.device) {
        models.drafter = load();
        return;
    }
    const char * name = ggml_backend_dev_name(d.device);
    std::string why = strf("the drafter runs on the CPU, because with it less than %.2f GB would stay free on %s",
                           n_margin / 1e9, name);
    try {
        models.drafter = load();
        size_t n_free = 0, n_total = 0;
        ggml_backend_dev_memory(d.device, &n_free, &n_total);
        if (n_total == 0 || n_free >= n_margin) return;
        models.drafter.reset();
    } catch (const Error & e) {
        if (e.kind != ErrorKind::out_of_memory) throw;
        why = strf("the drafter runs on the CPU, because it does not fit on %s (%s)", name, e.what());
    }
    models.why_placed = why + ". To make room, use fewer GPU layers (-ngl), a shorter context or a smaller drafter";
    log_line(LogLevel::warning, models.why_placed);
    d.device = nullptr;
    models.drafter = load();
}

// Warns of values that the drafter's file lacks and that had to be guessed.
static void warn_of_guesses(const EngineOptions & options, const DraftSpec & spec, const Target & target) {
    const std::string & path = options.draft_path;
    const std::string finds_out =
        strf(" If few drafts are accepted, run `eaglecpp convert %s --target %s`, which tests both variants",
             path.c_str(), options.path.c_str());
    const auto warn_if = [&](bool is_guessed, const std::string & what) {
        if (is_guessed) log_line(LogLevel::warning, path + what);
    };
    warn_if(!spec.block.says_slots,
            " does not set sample_from_anchor, so the first draft is read from the position after the anchor, as in "
            "llama.cpp." +
                finds_out);
    warn_if(
        !spec.block.says_window && options.draft_window == 0,
        " does not set a sliding window, so its layers attend to the whole text. If few drafts are accepted in long "
        "texts, set draft_window to the window of its training (512 for Laguna), or convert its checkpoint, which "
        "contains the window");
    const ggml_tensor * head = target.model().head();
    warn_if(spec.ties_head && head && !strcmp(head->name, "output.weight"),
            " has no output head, so its embeddings are used as the head, as in llama.cpp. llama.cpp's converter drops "
            "the head of DeepSpec's drafters." +
                finds_out);
}

static bool is_same_file(const std::string & a, const std::string & b) {
    std::error_code ignored;
    return std::filesystem::equivalent(a, b, ignored);
}

Models open_models(const EngineOptions & options) {
    fail_if(options.text_drafts != "auto" && options.text_drafts != "on" && options.text_drafts != "off",
            ErrorKind::value, "text_drafts: expected auto, on or off, found '%s'", options.text_drafts.c_str());
    Models out;
    const bool has_drafter = !options.draft_path.empty();
    Heads heads = Heads::none;
    if (has_drafter && is_same_file(options.draft_path, options.path)) {
        heads = Heads::in_model;
    } else if (has_drafter) {
        const GgufReader file(options.draft_path);
        const std::string arch = file.str("general.architecture");
        if (reads_hidden_states(arch)) {
            out.draft_file = std::make_unique<DraftFile>(options.draft_path);
        } else {
            // The drafter is a small model of the target's family, or a file that contains only heads.
            heads = heads_of(file);
            if (heads == Heads::in_model) heads = Heads::none;  // the file is a small model that also has heads
        }
    }
    out.drafts_text = options.text_drafts == "on" || (options.text_drafts == "auto" && has_drafter);
    fail_if(heads != Heads::none && options.split_mode == "tensor", ErrorKind::unsupported,
            "split_mode 'tensor': llama.cpp can run MTP heads and assistants only on whole layers; use split_mode "
            "'layer', an EAGLE drafter or a block drafter");
    TargetOptions target_options = options;
    target_options.load_heads = heads == Heads::in_model;
    if (!has_drafter && !out.drafts_text) {
        target_options.n_leaves_max = 1;
        target_options.drafts_forms = true;
        if (options.text_drafts == "off") target_options.n_draft_max = 0;
    }
    out.target = std::make_unique<Target>(target_options);
    if (out.draft_file) {
        check_fit(*out.draft_file, *out.target);
        warn_of_guesses(options, out.draft_file->spec(), *out.target);
    }
    if (heads == Heads::in_model) check_heads(out.target->model());
    const auto layers = out.draft_file ? out.draft_file->spec().target_layers : std::vector<int32_t>();
    out.target->open_context(layers, heads != Heads::none);
    if (has_drafter) out.target->check_generates();
    if (out.target->only_embeds()) out.drafts_text = false;
    out.drafts_forms = options.text_drafts != "off" && out.target->options().n_draft_max > 0;
    if (out.draft_file) {
        place_drafter(options, out);
    } else if (has_drafter) {
        out.drafter = std::make_unique<ModelDrafter>(options, *out.target, heads);
    }
    if (out.drafter) out.draft_traits = out.drafter->traits();
    return out;
}

}  // namespace eaglecpp
