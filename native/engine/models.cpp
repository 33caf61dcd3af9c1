// SPDX-License-Identifier: MIT
#include "engine/models.h"

#include <algorithm>
#include <cstring>
#include <filesystem>

#include "base/error.h"
#include "base/log.h"
#include "engine/draft_place.h"
#include "engine/model_drafter.h"
#include "target/heads.h"

namespace eaglecpp {

static void check(const EngineOptions & options) {
    if (options.text_drafts != "auto" && options.text_drafts != "on" && options.text_drafts != "off") {
        fail(ErrorKind::value, "text_drafts: '%s' is not one of auto, on, off", options.text_drafts.c_str());
    }
    if (options.text_memory < 0 || options.text_memory > 1 << 20) {
        fail(ErrorKind::value, "text_memory: expected 0 to %d, found %d", 1 << 20, options.text_memory);
    }
}

std::string token_differences(const Vocabulary & target, int n, const std::function<const char *(Token)> & text,
                              const std::function<bool(Token)> & is_compared) {
    int n_differ = 0;
    std::string first;
    for (Token t = 0; t < std::max(n, target.size()); ++t) {
        if (!is_compared(t)) continue;
        const char * ours = t < n ? text(t) : "";
        const char * theirs = t < target.size() ? llama_vocab_get_text(target.get(), t) : "";
        if (std::strcmp(ours, theirs) == 0 || n_differ++ > 0) continue;
        first = strf("the first is %d: drafter '%s', target '%s'", t, ours, theirs);
    }
    return n_differ == 0 ? "" : strf("%d tokens differ, %s", n_differ, first.c_str());
}

// Normal tokens must agree: the drafter was trained on them. Padding, control and added tokens are renamed by
// fine-tunes and by converters, which does no harm.
static std::string normal_differences(const DraftFile & draft, const Target & target) {
    constexpr int type_normal = 1;
    const auto & tokens = draft.tokens();
    const auto & types = draft.token_types();
    const auto is_normal = [&](Token t) {
        return t < (int)tokens.size() && (types.empty() || types[t] == type_normal);
    };
    return token_differences(target.vocab(), (int)tokens.size(), [&](Token t) { return tokens[t].c_str(); }, is_normal);
}

// Checks, once at load, that a drafter belongs to its target. A wrong pair would decode correctly but slowly, with
// nothing to show why. Error(mismatch) naming both sides and everything that differs.
static void check_fit(const DraftFile & draft, const Target & target) {
    const DraftSpec & s = draft.spec();
    std::string wrong;
    const auto differ = [&](const char * what, int drafter, int found) {
        if (drafter != found) wrong += strf("; %s: drafter %d, target %d", what, drafter, found);
    };
    differ("hidden size", s.n_embd_target, target.model().n_embd());
    differ("vocabulary size", s.n_vocab, target.vocab().size());
    if (s.n_layer_target > 0) differ("number of blocks", s.n_layer_target, target.model().n_layer());
    const int32_t highest = *std::max_element(s.target_layers.begin(), s.target_layers.end());
    if (s.fuses_embedding) {
        differ("layer id after the final norm", s.target_layers[0], target.model().n_layer() + 1);
    } else if (highest > target.model().n_layer()) {
        wrong += strf("; layer id %d: the target has only %d blocks", highest, target.model().n_layer());
    }
    if (s.n_vocab == target.vocab().size()) {
        const std::string tokens = normal_differences(draft, target);
        if (!tokens.empty()) wrong += "; tokenizer: " + tokens;
    }
    if (wrong.empty()) return;
    fail(ErrorKind::mismatch,
         "the drafter %s was not made for the target %s%s; use the drafter of this very model, or "
         "convert one made for it with `eaglecpp convert`",
         draft.path().c_str(), target.options().path.c_str(), wrong.c_str());
}

static bool is_same_file(const std::string & a, const std::string & b) {
    std::error_code ignored;
    return std::filesystem::equivalent(a, b, ignored);
}

Models open_models(const EngineOptions & options) {
    check(options);
    Models out;
    const bool has_drafter = !options.draft_path.empty();
    Heads heads = Heads::none;
    if (has_drafter && is_same_file(options.draft_path, options.path)) {
        heads = Heads::in_model;
    } else if (has_drafter) {
        const GgufReader file(options.draft_path);
        const std::string arch = file.str("general.architecture");
        if (reads_features(arch)) {
            out.draft_file = std::make_unique<DraftFile>(options.draft_path);
        } else {
            // a small model of the target's family, or heads
            heads = heads_of(file);
            if (heads == Heads::in_model) heads = Heads::none;  // a small model, which brings its own
        }
    }
    out.drafts_text = options.text_drafts == "on" || (options.text_drafts == "auto" && has_drafter);
    TargetOptions target_options = options;
    target_options.load_heads = heads == Heads::in_model;
    if (!has_drafter && !out.drafts_text) target_options.n_draft_max = 0, target_options.n_leaves_max = 1;
    out.target = std::make_unique<Target>(target_options);
    if (out.draft_file) check_fit(*out.draft_file, *out.target);
    if (out.draft_file && !out.draft_file->spec().block.says_slots) {
        log_line(
            LogLevel::warning,
            strf("%s does not say whether its first draft comes from the anchor's slot; read as llama.cpp does, it "
                 "does not. If little is accepted: `eaglecpp convert %s --target %s` finds out, and its file says",
                 options.draft_path.c_str(), options.draft_path.c_str(), options.path.c_str()));
    }
    if (heads == Heads::in_model) check_heads(out.target->model());
    const std::vector<int32_t> no_layers;
    out.target->open_context(out.draft_file ? out.draft_file->spec().target_layers : no_layers, heads != Heads::none);
    if (has_drafter) out.target->check_generates();
    if (out.target->only_embeds()) out.drafts_text = false;
    if (out.draft_file) {
        PlacedDrafter placed = place_drafter(options, *out.draft_file, *out.target);
        out.drafter = std::move(placed.drafter);
        out.why_placed = std::move(placed.why);
    } else if (has_drafter) {
        out.drafter = std::make_unique<ModelDrafter>(options, *out.target, heads);
    }
    if (out.drafter) out.draft_traits = out.drafter->traits();
    return out;
}

}  // namespace eaglecpp
