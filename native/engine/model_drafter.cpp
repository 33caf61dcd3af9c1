// SPDX-License-Identifier: MIT
#include "engine/model_drafter.h"

#include <algorithm>

#include "base/error.h"
#include "engine/assistant.h"
#include "engine/model_sequence.h"
#include "engine/models.h"

namespace eaglecpp {

static constexpr int n_rows_max = 64;  // maximum number of draft rows in a round

// Returns the target's options, without the options that depend on the target's layers.
static TargetOptions model_options(const EngineOptions & options, const Target & target, Heads heads) {
    TargetOptions o = target.options();
    o.path = options.draft_path;
    o.load_heads = heads != Heads::none;
    o.type_k = o.type_v = options.draft_type_kv;
    o.lora.clear();
    if (heads == Heads::in_model) return o;
    o.tensor_split.clear();
    o.override_tensor.clear();
    o.n_cpu_moe = 0;
    o.rope_freq_base = o.rope_freq_scale = 0.0f;
    if (options.draft_device == "auto") {
        if (target.model().is_cpu()) o.n_gpu_layers = 0;
        return o;
    }
    ggml_backend_dev_t device = find_device(options.draft_device, options.n_gpu_layers);
    o.n_gpu_layers = device ? -1 : 0;
    if (!device) return o;
    o.device = device;
    o.split_mode = "none";
    o.main_gpu = 0;
    return o;
}

static ModelSequence & own(DraftSequence * seq) {
    return *static_cast<ModelSequence *>(seq);
}

ModelDrafter::ModelDrafter(const EngineOptions & options, const Target & target, Heads heads)
    : heads_(heads), target_(target) {
    const TargetOptions own = model_options(options, target, heads);
    model_ = heads == Heads::in_model ? target.weights() : std::make_shared<const TargetModel>(own);
    n_own_ = llama_vocab_n_tokens(llama_model_get_vocab(model_->get()));
    n_known_ = std::min(n_own_, target.vocab().size());
    check_fit();
    make_context(own);
    vocabulary_ = DraftVocabulary(llama_model_get_vocab(model_->get()));
}

void ModelDrafter::make_context(const TargetOptions & options) {
    // All rows of a draft step must fit into one batch.
    const int n_rows = options.n_sequences * (n_rows_max + 1);
    n_ubatch_ = std::max(options.n_ubatch, n_rows);

    llama_context_params p = Context::params(options);
    p.n_ctx = (uint32_t)options.n_sequences * (uint32_t)(options.n_ctx + n_rows_max + 1);
    p.n_batch = (uint32_t)std::max(options.n_batch, n_rows);
    p.n_ubatch = (uint32_t)n_ubatch_;
    p.n_seq_max = (uint32_t)(is_assistant() ? target_.cells().n_seqs() : options.n_sequences);
    p.n_outputs_max = std::max((uint32_t)n_rows, p.n_seq_max);
    p.n_outputs_max_per_seq = n_rows_max + 1;
    p.swa_full = true;
    p.type_k = type_by_name(options.type_k);
    p.type_v = type_by_name(options.type_v);
    if (is_head()) {
        check_heads(*model_);
        check_state_functions();
        p.ctx_type = LLAMA_CONTEXT_TYPE_MTP;
        p.ctx_other = is_assistant() ? target_.context() : nullptr;
    }
    context_.make(model_, p);
    if (is_head()) {
        staging().set_states(context_.get(), true, gives_states_of_outputs(*model_));
    } else if (!context_.generates()) {
        refuse_generating(*model_);
    }
    cells_ = Cells({options.n_sequences, options.n_ctx, n_rows_max});
    cells_.attach(context_.get());
}

// Checks that each token has the same id in target and drafter. Special tokens, which fine-tunes rename, and padding at
// the end may differ.
void ModelDrafter::check_vocabulary() const {
    const llama_vocab * own = llama_model_get_vocab(model_->get());
    const llama_vocab * theirs = target_.vocab().get();
    // Returns true for tokens from the tokenizer's training, and false for tokens that were added later.
    const auto is_ordinary = [](const llama_vocab * vocab, Token t) {
        return t < llama_vocab_n_tokens(vocab) &&
               (llama_vocab_get_attr(vocab, t) & (LLAMA_TOKEN_ATTR_NORMAL | LLAMA_TOKEN_ATTR_BYTE)) != 0;
    };
    const std::string wrong = token_differences(
        target_.vocab(), n_own_, [&](Token t) { return llama_vocab_get_text(own, t); },
        [&](Token t) { return is_ordinary(own, t) || is_ordinary(theirs, t); });
    if (wrong.empty()) return;
    fail(ErrorKind::mismatch,
         "%s cannot draft for %s: a small model must have the target's vocabulary, but %s; use a small model of the "
         "same family",
         model_->path().c_str(), target_.options().path.c_str(), wrong.c_str());
}

void ModelDrafter::check_fit() const {
    const std::string path = model_->path(), arch = model_->arch();
    fail_if(heads_ == Heads::none && model_->has_state(), ErrorKind::unsupported,
            "%s cannot draft: a model of architecture '%s' keeps a recurrent state, which cannot be rolled back after "
            "rejected drafts; use a small model with plain attention",
            path.c_str(), arch.c_str());
    const std::string expected = is_assistant() ? "gemma4" : arch, found = target_.model().arch();
    const int n_reads = model_->n_state(), n_target = target_.model().n_state();
    fail_if(is_head() && (found != expected || n_reads != n_target), ErrorKind::mismatch,
            "%s cannot draft for %s: its heads read states of %d values from architecture '%s', but the target has "
            "architecture '%s' and states of %d values; use the heads made for this target",
            path.c_str(), target_.options().path.c_str(), n_reads, expected.c_str(), found.c_str(), n_target);
    if (is_assistant()) check_assistant(GgufReader(path), GgufReader(target_.options().path));
    if (heads_ != Heads::in_model) check_vocabulary();
}

Token ModelDrafter::own_token(Token token) const {
    const Token own = stand_in(token);
    return own < n_own_ ? own : std::max<Token>(0, llama_vocab_eos(llama_model_get_vocab(model_->get())));
}

DraftTraits ModelDrafter::traits() const {
    DraftTraits t;
    if (is_head()) {
        t.n_aux = 1;
        t.n_embd_target = model_->n_state();
    }
    t.n_draft_rows_max = n_rows_max;
    t.n_step_rows_max = is_assistant() ? n_rows_max : 1;
    return t;
}

DraftDescription ModelDrafter::describe() const {
    return {is_head() ? "head" : "model",
            model_->arch(),
            model_->meta("general.name"),
            model_->n_layer(),
            llama_model_n_ctx_train(model_->get()),
            model_->n_embd(),
            n_own_};
}

// Runs the batch. Returns false if the target's cache lacks free cells for the rows of an assistant: rejected nodes may
// still occupy these cells.
bool ModelDrafter::decode(bool is_prompt) {
    try {
        context_.decode(batch_.view(model_->n_state()), is_prompt, vocabulary_.chosen());
        return true;
    } catch (const Error & e) {
        if (!is_assistant() || e.kind != ErrorKind::context_full) throw;
        return false;
    }
}

std::unique_ptr<DraftSequence> ModelDrafter::open(int conversation) {
    if (is_assistant()) return std::make_unique<Assistant>(*this, target_.cells().seqs(conversation));
    if (is_head()) return std::make_unique<HeadSequence>(*this, cells_.seqs(conversation));
    return std::make_unique<SmallModelSequence>(*this, cells_.seqs(conversation));
}

void ModelDrafter::run_commits(const std::vector<DraftRequest> & commits) {
    batch_.clear();
    for (const DraftRequest & c : commits) own(c.seq).add_commit(c.tokens, c.hidden_states);
    const bool has_room = decode(/*is_prompt=*/false);
    for (const DraftRequest & c : commits) {
        if (!has_room) own(c.seq).drop_outputs();
        own(c.seq).take_states(/*is_commit=*/true);
    }
}

void ModelDrafter::extend_together(const std::vector<DraftRequest> & steps) {
    batch_.clear();
    try {
        for (const DraftRequest & step : steps) own(step.seq).add_step(step.rows);
        if (batch_.n_rows() == 0) return;
        const bool has_room = decode(/*is_prompt=*/false);
        for (const DraftRequest & step : steps) {
            if (!has_room) own(step.seq).drop_outputs();
            own(step.seq).take_states(/*is_commit=*/false);
        }
    } catch (...) {
        for (const DraftRequest & step : steps) step.seq->truncate(step.seq->n_rows());
        throw;
    }
}

std::string ModelDrafter::device_name() const {
    ggml_backend_dev_t device = model_->output_device();
    return ggml_backend_dev_name(device ? device : ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU));
}

std::vector<MemoryUse> ModelDrafter::memory_use() const {
    std::vector<MemoryUse> out = context_.memory();
    for (MemoryUse & m : out) {
        if (heads_ == Heads::in_model) m.weights = 0;  // these weights are counted as the target's weights
    }
    return out;
}

}  // namespace eaglecpp
