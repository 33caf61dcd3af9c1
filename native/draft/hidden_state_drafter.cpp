// SPDX-License-Identifier: MIT
#include "draft/hidden_state_drafter.h"

#include <algorithm>

#include "base/error.h"
#include "base/process.h"
#include "draft/hidden_state_sequence.h"
#include "ggml_hook/hook.h"

namespace eaglecpp {

namespace {

// Number of tokens that a graph picks for a row (llama.cpp's default top-k is 40). With a Markov head more tokens are
// picked, because the head can make unlikely tokens likely (docs/research/gpu.md).
constexpr int n_top = 64, n_top_markov = 128;
// Memory that stays free on a device after token embeddings are uploaded.
constexpr size_t embedding_margin = (size_t)512 << 20;
// Number of rows of a draft step for which memory is reserved in advance. Wider steps allocate memory when they run.
constexpr int n_reserved_rows = 16;
// Maximum number of graphs that are kept for each conversation, and for several conversations together. A generation
// needs about five graphs. If chains are drafted in one graph, it needs several times as many.
constexpr int n_graphs_max = 64;
// Upper limits of the sizes, which no machine can store. The padded sum of both limits fits into an int.
constexpr int n_ctx_max = 1 << 30, n_draft_rows_limit = 1 << 20;

DrafterOptions checked(const DrafterOptions & options) {
    check_not_forked("the drafter cannot be loaded");
    fail_if(options.n_ctx < 1 || options.n_ctx > n_ctx_max || options.n_draft_rows_max < 1 ||
                options.n_draft_rows_max > n_draft_rows_limit,
            ErrorKind::value, "drafter: expected n_ctx from 1 to %d and n_draft_rows_max from 1 to %d, found %d and %d",
            n_ctx_max, n_draft_rows_limit, options.n_ctx, options.n_draft_rows_max);
    DrafterOptions out = options;
    if (out.device && ggml_backend_dev_type(out.device) != GGML_BACKEND_DEVICE_TYPE_CPU) out.is_remote = true;
    return out;
}

}  // namespace

HiddenStateDrafter::HiddenStateDrafter(const DraftFile & file, const DrafterOptions & options)
    : spec_(file.spec()),
      options_(checked(options)),
      d2t_(file.d2t()),
      path_(file.path()),
      device_(options.device, options.n_threads, options.use_kernels),
      weights_(DraftWeights::load(file, device_.buft(), device_.use_kernels(), options_.is_remote)),
      memory_(device_.buft()),
      graphs_(n_graphs_max * (options_.n_sequences + 1)) {}

DraftTraits HiddenStateDrafter::traits() const {
    DraftTraits t;
    t.n_aux = spec_.n_aux();
    t.n_embd_target = spec_.n_embd_target;
    t.n_draft_rows_max = t.n_step_rows_max = options_.n_draft_rows_max;
    t.n_block_rows = spec_.block.n_rows;
    t.can_narrow = spec_.sliding_window == 0;
    t.depth_max = spec_.is_block() ? spec_.block.n_slots() : spec_.n_parallel;
    t.is_parallel = t.depth_max > 0 && !spec_.block.is_conditional();
    t.held_out_rates = spec_.held_out_rates;
    return t;
}

std::unique_ptr<DraftSequence> HiddenStateDrafter::open(int) {
    return std::make_unique<HiddenStateSequence>(*this);
}

void HiddenStateDrafter::set_n_threads(int n_threads) {
    if (n_threads == options_.n_threads) return;
    options_.n_threads = n_threads;
    device_.set_n_threads(n_threads);
}

void HiddenStateDrafter::check_table(const char * what, int64_t n_embd, int64_t n_found, int n_rows) const {
    if (n_embd == spec_.n_embd && n_found == n_rows) return;
    fail(ErrorKind::mismatch,
         "%s has no %s, and the target's does not fit: expected shape [%d, %d], found [%lld, %lld]", path_.c_str(),
         what, n_rows, spec_.n_embd, (long long)n_found, (long long)n_embd);
}

void HiddenStateDrafter::set_embedding(EmbeddingTable table) {
    check_table("token embedding", table.n_embd(), table.n_rows(), spec_.n_vocab);
    weights_.embedding = std::move(table);
}

void HiddenStateDrafter::share_head(const ggml_tensor * head, const ggml_tensor * to_copy) {
    check_table("output head", head->ne[0], head->ne[1], spec_.n_draft_vocab);
    if (ggml_backend_supports_buft(device_.backend(), ggml_backend_buffer_get_type(head->buffer))) {
        weights_.target_head = const_cast<ggml_tensor *>(head);
        return;
    }
    fail_if(!to_copy, ErrorKind::unsupported,
            "%s uses the target's output head, which was repacked for the CPU and cannot be copied to %s; use "
            "repack='off' or draft_device='cpu'",
            path_.c_str(), device_name().c_str());
    weights_.target_head = head_.make(device_.buft(), to_copy->type, to_copy->ne[0], to_copy->ne[1]);
    if (!weights_.target_head) fail(ErrorKind::out_of_memory, "no room for a copy of the target's output head");
    ggml_backend_tensor_copy(to_copy, weights_.target_head);
}

const DraftGraph & HiddenStateDrafter::next_graph(const GraphShape & shape) {
    ++n_runs_;
    const auto * known = graphs_.find(shape);
    if (known && (*known)->epoch == memory_.epoch()) return **known;
    device_.wait();
    const auto & graph = graphs_.keep(shape, build_draft_graph(spec_, weights_, shape, form_, memory_));
    kernels::name_graph(graph->gf);
    return *graph;
}

std::unique_ptr<DraftKv> HiddenStateDrafter::make_kv(ggml_backend_buffer_type_t buft) const {
    return std::make_unique<DraftKv>(spec_, options_.n_ctx, options_.n_draft_rows_max, options_.type_kv, buft,
                                     form_.keeps_states(spec_));
}

std::unique_ptr<DraftKv> HiddenStateDrafter::take_kv() {
    if (idle_kv_.empty()) return make_kv(device_.buft());
    std::unique_ptr<DraftKv> kv = std::move(idle_kv_.back());
    idle_kv_.pop_back();
    kv->clear();
    return kv;
}

void HiddenStateDrafter::give_kv(std::unique_ptr<DraftKv> kv) {
    device_.wait();
    const auto is_its = [&](const GraphPart & p) { return p.kv == kv.get(); };
    graphs_.forget_if([&](const GraphShape & s) { return std::any_of(s.parts.begin(), s.parts.end(), is_its); });
    if (options_.is_remote) idle_kv_.push_back(std::move(kv));
}

// Returns one shape for each kind of graph. Each shape has n_together conversations of n_rows rows each.
std::vector<GraphShape> HiddenStateDrafter::shapes(const DraftKv & kv, const GraphForm & form, int n_rows,
                                                   int n_step_rows, int n_together) const {
    const int n_kv = kv.n_slots(), n_slots = spec_.block.n_slots();
    const GraphPart prompt{&kv, n_rows, 0, n_kv}, last{&kv, n_rows, spec_.is_block() ? 0 : 1, n_kv};
    GraphShape commit{true, std::vector<GraphPart>(n_together, last)};
    if (spec_.is_block()) commit.block.assign(n_together, {&kv, spec_.block.n_rows, n_slots, n_kv});
    std::vector<GraphShape> out{{true, {prompt}}, commit};
    const GraphPart step{&kv, n_step_rows, n_step_rows, n_kv};
    if (form.keeps_states(spec_)) out.push_back({false, std::vector<GraphPart>(n_together, step)});
    return out;
}

bool HiddenStateDrafter::supports(const GraphForm & form, std::string & missing, int n_steps) {
    const DraftKv kv(spec_, 256, 1 + spec_.block.n_rows, options_.type_kv, device_.buft(), form.keeps_states(spec_));
    // Checks graphs for two conversations, because several conversations need more kinds of operations than one.
    std::vector<GraphShape> all = shapes(kv, form, 8, 8, 2);
    if (n_steps > 0) all = {{true, {{&kv, 8, 1, kv.n_slots()}}, n_steps}};
    return std::all_of(all.begin(), all.end(), [&](const GraphShape & shape) {
        return device_.supports(*build_draft_graph(spec_, weights_, shape, form, memory_), missing);
    });
}

void HiddenStateDrafter::reserve() {
    if (!options_.is_remote) return;
    std::vector<std::unique_ptr<DraftKv>> all;
    for (int i = 0; i < options_.n_sequences; ++i) all.push_back(take_kv());
    for (const GraphShape & shape : shapes(*all[0], form_, n_commit_chunk, n_reserved_rows, 1)) {
        build_draft_graph(spec_, weights_, shape, form_, memory_);
    }
    for (auto & kv : all) give_kv(std::move(kv));
}

std::vector<MemoryUse> HiddenStateDrafter::memory_use() const {
    MemoryUse own{device_.get(), 0, options_.n_sequences * make_kv(nullptr)->n_bytes(), memory_.n_bytes()};
    own.weights = n_bytes_of(weights_.buffer) + n_bytes_of(weights_.packed_buffer) + n_bytes_of(head_.buffer) +
                  n_bytes_of(embedded_.buffer);
    const size_t n_host = weights_.embedding.n_bytes() + weights_.before.n_bytes() + weights_.after.n_bytes();
    if (device_.is_cpu()) {
        own.weights += n_host;
        return {own};
    }
    return {own, {ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU), n_host, 0, 0}};
}

void HiddenStateDrafter::finish() {
    const bool has_head = spec_.has_head || weights_.target_head;
    fail_if(weights_.embedding.empty() || !has_head, ErrorKind::mismatch, "%s has no %s; pass the target's",
            path_.c_str(), has_head ? "token embedding" : "output head");
    if (spec_.is_block()) bring_mask();
    std::string missing;
    form_ = {options_.flash_attn && supports({true, 0}, missing), 0};
    if (!form_.flash_attn && !supports(form_, missing)) {
        fail(ErrorKind::unsupported,
             "device '%s' does not support %s, which this drafter needs; use draft_device='cpu'", device_name().c_str(),
             missing.c_str());
    }
    if (!options_.is_remote) return;
    // If the device cannot pick tokens, whole rows are copied back to the host.
    GraphForm better = form_;
    const BlockSpec & b = spec_.block;
    better.n_top = b.selector_rank > 0 ? b.selector_top_k : b.markov_rank > 0 ? n_top_markov : n_top;
    if (supports(better, missing)) form_ = better;
    if (form_.n_top > 0 && !spec_.is_parallel() && !spec_.is_block()) bring_embedding();
}

// Uploads the embedding of the mask token, which is the input of all rows of a block except the first. One upload
// serves all blocks.
void HiddenStateDrafter::bring_mask() {
    const int n = spec_.block.n_rows - 1;
    if (n == 0) return;
    weights_.mask_embeddings = embedded_.make(device_.buft(), GGML_TYPE_F32, spec_.n_embd, n);
    if (!weights_.mask_embeddings) fail(ErrorKind::out_of_memory, "no room for the drafter's %d mask rows", n);
    std::vector<float> rows((size_t)n * spec_.n_embd);
    for (int i = 0; i < n; ++i) weights_.embedding.row(spec_.mask_token, &rows[(size_t)i * spec_.n_embd]);
    ggml_backend_tensor_set(weights_.mask_embeddings, rows.data(), 0, rows.size() * sizeof(float));
}

// Uploads the embeddings of the draft vocabulary as stored. The upload only avoids waits for the host, so it is skipped
// if memory is short.
void HiddenStateDrafter::bring_embedding() {
    const EmbeddingTable & table = weights_.embedding;
    const size_t n_row = table.n_row_bytes();
    size_t n_free, n_total;
    ggml_backend_dev_memory(device_.get(), &n_free, &n_total);
    if (n_free < 2 * n_row * spec_.n_draft_vocab + embedding_margin) return;
    weights_.draft_embedding = embedded_.make(device_.buft(), table.type(), spec_.n_embd, spec_.n_draft_vocab);
    if (!weights_.draft_embedding) return;
    std::string missing;
    if (!supports(form_, missing, /*n_steps=*/1)) {
        weights_.draft_embedding = nullptr;
        embedded_.buffer.reset();
        return;
    }
    std::vector<uint8_t> bytes(n_row * spec_.n_draft_vocab);
    for (int i = 0; i < spec_.n_draft_vocab; ++i) {
        std::copy_n(table.stored_row(d2t_[i]), n_row, bytes.data() + i * n_row);
    }
    ggml_backend_tensor_set(weights_.draft_embedding, bytes.data(), 0, bytes.size());
}

}  // namespace eaglecpp
