// SPDX-License-Identifier: MIT
// What every graph of every kind of drafter must keep, whatever the backend: inputs have memory, and no operation reads
// from an address that a GPU's shaders cannot bind.
#include "draft/graph.h"

#include <ggml-cpu.h>

#include <algorithm>
#include <utility>

#include "../check.h"
#include "base/error.h"

using namespace eaglecpp;

// Vulkan's minStorageBufferOffsetAlignment is at most this
static constexpr size_t n_align = 256;

// sizes whose rows are multiples of n_align, as those of real drafters are
static DraftSpec make_spec(std::vector<uint8_t> slides, bool fc_norm, int kv_rank = 0) {
    DraftSpec s;
    s.n_layer = (int)slides.size();
    s.n_embd = s.n_embd_target = s.n_ff = 64;
    s.n_vocab = s.n_draft_vocab = 32;
    s.n_head = 2;
    s.n_head_kv = 1;
    s.head_dim = s.rope.n_rot = 64;
    if (kv_rank > 0) {
        s.latent = {/*q_rank=*/64,   kv_rank,           /*nope_dim=*/64,
                    /*rope_dim=*/64, /*value_dim=*/128, /*scale=*/0.1f};
        s.head_dim = kv_rank + s.latent.rope_dim;
    }
    s.rms_eps = 1e-5f;
    s.target_layers = {1, 2, 3};
    s.fc_norm = fc_norm;
    s.sliding_window = 8;
    s.slides = std::move(slides);
    return s;
}

static DraftWeights make_weights(const DraftSpec & s, ggml_backend_buffer_type_t buft) {
    DraftWeights w;
    w.ctx.reset(ggml_init({ggml_tensor_overhead() * 64, nullptr, /*no_alloc=*/true}));
    const auto tensor = [&](const std::string & name, int64_t ne0, int64_t ne1 = 1, int64_t ne2 = 1) {
        return ggml_set_name(ggml_new_tensor_3d(w.ctx.get(), GGML_TYPE_F32, ne0, ne1, ne2), name.c_str());
    };
    const int n_q = s.n_head * s.head_dim, n_kv = s.n_head_kv * s.head_dim;
    tensor("fc.weight", (int64_t)s.n_aux() * s.n_embd_target, s.n_embd);
    for (int i = 0; s.fc_norm && i < s.n_aux(); ++i) tensor(fill("fc_norm.{i}.weight", i), s.n_embd_target);
    tensor("output_norm.weight", s.n_embd);
    w.head = tensor("output.weight", s.n_embd, s.n_draft_vocab);
    for (int i = 0; i < s.n_layer; ++i) {
        const int n_in = i == 0 ? 2 * s.n_embd : s.n_embd;
        for (const char * norm :
             {"blk.{i}.attn_norm.weight", "blk.{i}.attn_norm_2.weight", "blk.{i}.ffn_norm.weight"}) {
            tensor(fill(norm, i), s.n_embd);
        }
        if (s.has_latent()) {
            const LatentSpec & a = s.latent;
            tensor(fill("blk.{i}.attn_q_a.weight", i), n_in, a.q_rank);
            tensor(fill("blk.{i}.attn_q_a_norm.weight", i), a.q_rank);
            tensor(fill("blk.{i}.attn_q_b.weight", i), a.q_rank, s.n_head * (a.nope_dim + a.rope_dim));
            tensor(fill("blk.{i}.attn_kv_a_mqa.weight", i), n_in, a.kv_rank + a.rope_dim);
            tensor(fill("blk.{i}.attn_kv_a_norm.weight", i), a.kv_rank);
            tensor(fill("blk.{i}.attn_k_b.weight", i), a.nope_dim, a.kv_rank, s.n_head);
            tensor(fill("blk.{i}.attn_v_b.weight", i), a.kv_rank, a.value_dim, s.n_head);
            tensor(fill("blk.{i}.attn_output.weight", i), s.n_head * a.value_dim, s.n_embd);
        } else {
            tensor(fill("blk.{i}.attn_q.weight", i), n_in, n_q);
            for (const char * kv : {"blk.{i}.attn_k.weight", "blk.{i}.attn_v.weight"}) tensor(fill(kv, i), n_in, n_kv);
            tensor(fill("blk.{i}.attn_output.weight", i), n_q, s.n_embd);
        }
        for (const char * in : {"blk.{i}.ffn_gate.weight", "blk.{i}.ffn_up.weight"})
            tensor(fill(in, i), s.n_embd, s.n_ff);
        tensor(fill("blk.{i}.ffn_down.weight", i), s.n_ff, s.n_embd);
    }
    w.buffer.reset(ggml_backend_alloc_ctx_tensors_from_buft(w.ctx.get(), buft));
    return w;
}

// `n_out` < 0: every row of each conversation
static void check_graph(const DraftSpec & spec, bool commit, const std::vector<int> & n_rows, int n_out, int n_kv,
                        bool flash_attn, int n_top) {
    ggml_backend_buffer_type_t buft = ggml_backend_cpu_buffer_type();
    const DraftWeights weights = make_weights(spec, buft);
    const DraftKv kv(spec, 256, 64, GGML_TYPE_F16, buft);
    DraftMemory memory(buft);
    GraphShape shape{commit, {}};
    for (int n : n_rows) shape.parts.push_back({&kv, n, n_out < 0 ? n : n_out, n_kv});
    const auto g = build_draft_graph(spec, weights, shape, {flash_attn, n_top}, memory);
    std::string pattern;
    for (uint8_t v : spec.slides) pattern += v ? 's' : 'f';
    const std::string what = strf("layers %s, %s of %d rows of %zu, %d out, %s%s", pattern.c_str(),
                                  commit ? "commit" : "extend", shape.n_rows(), n_rows.size(), shape.n_out(),
                                  flash_attn ? "fused" : "explicit", spec.has_latent() ? ", latent" : "");
    std::vector<const ggml_tensor *> inputs = {g->embd, g->pos, g->pos_out, g->row_out};
    inputs.push_back(g->features);
    for (const DraftGraph::Part & p : g->parts) {
        inputs.insert(inputs.end(), {p.state_idx, p.slot, p.state_slot});
        for (const auto & mask : p.masks) inputs.push_back(mask.tensor);
    }
    for (const ggml_tensor * t : inputs) {
        if (!t) continue;
        CHECK_MSG(t->buffer != nullptr && t->data != nullptr, what + ": no memory for input " + t->name);
        const size_t at = (const uint8_t *)t->data - (const uint8_t *)g->packed->data;
        CHECK_MSG(at % n_align == 0 && at + ggml_nbytes(t) <= ggml_nbytes(g->packed), what + ": not packed " + t->name);
    }
    CHECK_MSG((g->top_ids != nullptr) == (n_top > 0 && shape.n_out() > 0), what + ": picks");
    // nobody fills a mask that no layer reads
    const bool is_last_idle = shape.n_out() == 0;
    const auto attends = [&](uint8_t kind) {
        return std::count(spec.slides.begin(), spec.slides.end() - (is_last_idle ? 1 : 0), kind) > 0;
    };
    for (const DraftGraph::Part & p : g->parts) {
        for (int kind : {0, 1}) {
            CHECK_MSG((p.masks[kind].tensor != nullptr) == attends(kind),
                      what + strf(": mask of layers of kind %d", kind));
        }
    }
    for (int i = 0; i < ggml_graph_n_nodes(g->gf); ++i) {
        const ggml_tensor * node = ggml_graph_node(g->gf, i);
        for (const ggml_tensor * src : node->src) {
            if (!src || src->op != GGML_OP_VIEW) continue;
            CHECK_MSG(src->view_offs % n_align == 0, what + strf(": %s (%s) reads %s at offset %zu", node->name,
                                                                 ggml_op_desc(node), src->name, src->view_offs));
        }
    }
}

// What a position costs: with latent attention one row for keys and values of all heads.
static void a_latent_cache_is_small() {
    ggml_backend_buffer_type_t buft = ggml_backend_cpu_buffer_type();
    const DraftSpec spec = make_spec({0}, false, 128);
    const double n_bytes = (double)DraftKv::n_bytes_for(spec, 8000, 64, GGML_TYPE_F16);
    CHECK(n_bytes / DraftKv::pad(8000 + 64 + 1) < 2 * (128 + 64) + 8);
    const DraftKv kv(spec, 8000, 64, GGML_TYPE_F16, buft);
    CHECK(kv.v().empty());
}

// Graphs share one memory; only growing takes it from those before.
static void memory_is_shared_until_it_grows() {
    ggml_backend_buffer_type_t buft = ggml_backend_cpu_buffer_type();
    const DraftSpec spec = make_spec({0}, false);
    const DraftWeights weights = make_weights(spec, buft);
    const DraftKv kv(spec, 256, 64, GGML_TYPE_F16, buft);
    DraftMemory memory(buft);
    const auto build = [&](int n_rows) {
        return build_draft_graph(spec, weights, {/*commit=*/false, {{&kv, n_rows, n_rows, 256}}}, {false, 8}, memory);
    };
    const auto large = build(8);
    const size_t n_bytes = memory.n_bytes();
    const auto small = build(2);
    CHECK(small->epoch == memory.epoch() && large->epoch == memory.epoch());
    CHECK(memory.n_bytes() == n_bytes);
    const auto larger = build(32);
    CHECK(larger->epoch == memory.epoch() && large->epoch != memory.epoch());
    CHECK(memory.n_bytes() > n_bytes);
}

int main() {
    memory_is_shared_until_it_grows();
    a_latent_cache_is_small();
    const std::vector<std::vector<uint8_t>> patterns = {{0}, {1}, {0, 0}, {1, 1}, {0, 1}, {1, 0}, {1, 0, 1}, {0, 0, 1}};
    // of one conversation and of several
    const std::vector<std::vector<int>> sizes = {{1}, {2}, {3}, {7}, {8}, {1, 1}, {3, 1, 2}, {1, 2, 1, 5, 1}};
    for (const auto & slides : patterns) {
        for (const auto & [fc_norm, kv_rank] : {std::pair{false, 0}, {true, 0}, {true, 128}}) {
            const DraftSpec spec = make_spec(slides, fc_norm, kv_rank);
            for (bool flash_attn : {false, true}) {
                for (const std::vector<int> & n_rows : sizes) {
                    for (int n_top : {0, 8}) {
                        for (int n_out : {0, 1}) {
                            const bool reads_kv = n_out > 0 || spec.n_layer > 1;
                            check_graph(spec, /*commit=*/true, n_rows, n_out, reads_kv ? 256 : 0, flash_attn, n_top);
                        }
                        check_graph(spec, /*commit=*/false, n_rows, -1, 256, flash_attn, n_top);
                    }
                }
            }
        }
    }
    return test::result();
}
