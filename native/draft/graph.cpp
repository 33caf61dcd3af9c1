// SPDX-License-Identifier: MIT
#include "draft/graph.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace eaglecpp {

namespace {

class Builder {
  public:
    Builder(const DraftSpec & spec, const DraftWeights & weights, const DraftKv & kv, const GraphShape & shape,
            const GraphForm & form, DraftGraph & out)
        : s_(spec), w_(weights), kv_(kv), shape_(shape), form_(form), g_(out), ctx_(out.ctx.get()) {}

    void build() {
        inputs();
        ggml_tensor * x = shape_.commit ? fuse() : ggml_get_rows(ctx_, kv_.state(), g_.state_idx);
        name(x, "feature", 0);
        for (int il = 0; il < s_.n_layer; ++il) {
            x = layer(il, x, il + 1 < s_.n_layer ? shape_.n_rows : shape_.n_out);
        }
        if (x) output(x);
    }

    const std::vector<ggml_tensor *> & made_inputs() const { return inputs_; }

  private:
    ggml_tensor * input(ggml_type type, int64_t ne0, int64_t ne1, const char * label) {
        ggml_tensor * t = ne1 > 0 ? ggml_new_tensor_2d(ctx_, type, ne0, ne1) : ggml_new_tensor_1d(ctx_, type, ne0);
        ggml_set_input(t);
        ggml_set_name(t, label);
        inputs_.push_back(t);
        return t;
    }

    void name(ggml_tensor * t, const char * label, int il) { ggml_set_name(t, strf("%s-%d", label, il).c_str()); }

    void inputs() {
        const int n = shape_.n_rows;
        if (shape_.commit) {
            g_.features = input(GGML_TYPE_F32, (int64_t)s_.n_aux() * s_.n_embd_target, n, "features");
        } else {
            g_.state_idx = input(GGML_TYPE_I32, n, 0, "state_idx");
        }
        g_.embd = input(GGML_TYPE_F32, s_.n_embd, n, "embd");
        g_.pos = input(GGML_TYPE_I32, n, 0, "pos");
        g_.slot = input(GGML_TYPE_I64, n, 0, "slot");
        if (kv_.v_transposed())
            g_.v_place = input(GGML_TYPE_I64, (int64_t)n * s_.value_dim() * s_.n_head_kv, 0, "v_place");
        g_.n_mask_rows = s_.n_layer > 1 ? n : shape_.n_out;
        g_.pos_out = g_.pos;
        if (shape_.n_out > 0) {
            // not a view of `pos`: its offset of 4 * (n - n_out) bytes is finer than what a GPU's shaders can bind
            if (shape_.n_out < n) g_.pos_out = input(GGML_TYPE_I32, shape_.n_out, 0, "pos_out");
            g_.state_slot = input(GGML_TYPE_I64, shape_.n_out, 0, "state_slot");
        }
    }

    // The masks are made where a layer attends: a commit without output stops before the last layer does, which may be
    // the only one of its kind.
    ggml_tensor * mask(int il) {
        ggml_tensor *& m = s_.slides[il] ? g_.mask_window : g_.mask;
        if (!m) m = input(GGML_TYPE_F16, shape_.n_kv, g_.n_mask_rows, s_.slides[il] ? "mask_window" : "mask");
        return m;
    }

    ggml_tensor * rms(ggml_tensor * x, ggml_tensor * weight) {
        return ggml_mul(ctx_, ggml_rms_norm(ctx_, x, s_.rms_eps), weight);
    }

    ggml_tensor * linear(ggml_tensor * weight, ggml_tensor * bias, ggml_tensor * x) {
        ggml_tensor * y = ggml_mul_mat(ctx_, weight, x);
        return bias ? ggml_add(ctx_, y, bias) : y;
    }

    // the last n columns of a contiguous [d, n_rows]
    ggml_tensor * tail(ggml_tensor * x, int n) {
        const int64_t skip = x->ne[1] - n;
        return skip == 0 ? x : ggml_view_2d(ctx_, x, x->ne[0], n, x->nb[1], skip * x->nb[1]);
    }

    // aux features -> [H, n_rows]
    ggml_tensor * fuse() {
        ggml_tensor * x = g_.features;
        // the norm over the concatenation comes before the norms of its parts: the order of these two matters
        if (w_.input_norm) x = rms(x, w_.input_norm);
        if (!w_.fc_norm.empty()) {
            ggml_tensor * all = nullptr;
            for (size_t a = 0; a < w_.fc_norm.size(); ++a) {
                ggml_tensor * part =
                    ggml_view_2d(ctx_, x, s_.n_embd_target, x->ne[1], x->nb[1], a * s_.n_embd_target * sizeof(float));
                part = rms(part, w_.fc_norm[a]);
                all = all ? ggml_concat(ctx_, all, part, 0) : part;
            }
            x = all;
        }
        return linear(w_.fc, w_.fc_bias, x);
    }

    ggml_tensor * rope(ggml_tensor * x, ggml_tensor * pos) {
        const RopeSpec & r = s_.rope;
        return ggml_rope_ext(ctx_, x, pos, w_.rope_freqs, r.n_rot, r.neox ? GGML_ROPE_TYPE_NEOX : GGML_ROPE_TYPE_NORMAL,
                             r.n_ctx_orig, r.freq_base, r.freq_scale, r.ext_factor, r.attn_factor, r.beta_fast,
                             r.beta_slow);
    }

    // [n_in, n] -> [head_dim, n_heads, n]
    ggml_tensor * heads(ggml_tensor * weight, ggml_tensor * bias, ggml_tensor * norm, ggml_tensor * x, int n_heads) {
        ggml_tensor * y = ggml_reshape_3d(ctx_, linear(weight, bias, x), s_.head_dim, n_heads, x->ne[1]);
        return norm ? rms(y, norm) : y;
    }

    void store(ggml_tensor * cache, ggml_tensor * x) {
        // a view: devices fuse rotation, view and copy, but not rotation, reshape and copy
        ggml_tensor * rows = ggml_view_2d(ctx_, x, x->ne[0] * x->ne[1], x->ne[2], x->nb[2], 0);
        ggml_build_forward_expand(g_.gf, ggml_set_rows(ctx_, cache, rows, g_.slot));
    }

    void store_v(ggml_tensor * cache, ggml_tensor * x) {
        if (!kv_.v_transposed()) return store(cache, x);
        ggml_tensor * places = ggml_reshape_2d(ctx_, cache, 1, ggml_nelements(cache));
        ggml_tensor * values = ggml_reshape_2d(ctx_, x, 1, ggml_nelements(x));
        ggml_build_forward_expand(g_.gf, ggml_set_rows(ctx_, places, values, g_.v_place));
    }

    // one decoder layer; returns [H, n_q] for the last n_q rows, or null when n_q is 0
    ggml_tensor * layer(int il, ggml_tensor * x, int n_q) {
        const DraftLayer & l = w_.layers[il];
        ggml_tensor * u;
        ggml_tensor * residual = x;
        if (il == 0) {
            ggml_tensor * feature = rms(x, l.attn_norm_2);
            u = ggml_concat(ctx_, rms(g_.embd, l.attn_norm), feature, 0);
            if (s_.norm_before_residual) residual = feature;
        } else {
            u = rms(x, l.attn_norm);
        }
        name(u, "attn_input", il);
        if (s_.has_latent()) {
            store_latent(il, u);
        } else {
            store(kv_.k()[il], rope(heads(l.wk, l.bk, l.k_norm, u, s_.n_head_kv), g_.pos));
            store_v(kv_.v()[il], heads(l.wv, l.bv, nullptr, u, s_.n_head_kv));
        }
        if (n_q == 0) return nullptr;

        ggml_tensor * seen = s_.has_latent() ? attend_latent(il, tail(u, n_q)) : attend_full(il, tail(u, n_q));
        ggml_tensor * h = ggml_add(ctx_, linear(l.wo, l.bo, seen), tail(residual, n_q));
        ggml_tensor * m = rms(h, l.ffn_norm);
        m = ggml_swiglu_split(ctx_, linear(l.gate, l.gate_b, m), linear(l.up, l.up_b, m));
        h = ggml_add(ctx_, linear(l.down, l.down_b, m), h);
        name(h, "layer_out", il);
        return h;
    }

    // the positions of the last n rows
    ggml_tensor * positions(int64_t n) { return n == shape_.n_rows ? g_.pos : g_.pos_out; }

    // heads side by side and rows side by side change places
    ggml_tensor * swapped(ggml_tensor * x) { return ggml_permute(ctx_, x, 0, 2, 1, 3); }

    // u [U, n_q] -> [head_dim * n_head, n_q]
    ggml_tensor * attend_full(int il, ggml_tensor * u) {
        const DraftLayer & l = w_.layers[il];
        ggml_tensor * q = rope(heads(l.wq, l.bq, l.q_norm, u, s_.n_head), positions(u->ne[1]));
        name(q, "q", il);
        return ggml_reshape_2d(ctx_, attend(il, swapped(q)), s_.head_dim * s_.n_head, u->ne[1]);
    }

    // The row that all heads make their keys and values from: the normed latent, then the rotated part of the key.
    void store_latent(int il, ggml_tensor * u) {
        const DraftLayer & l = w_.layers[il];
        const int64_t n_latent = s_.latent.kv_rank, n = u->ne[1];
        ggml_tensor * row = ggml_mul_mat(ctx_, l.wkv_a, u);
        ggml_tensor * latent = rms(ggml_view_2d(ctx_, row, n_latent, n, row->nb[1], 0), l.kv_a_norm);
        ggml_tensor * rotated =
            rope(ggml_view_3d(ctx_, row, s_.latent.rope_dim, 1, n, row->nb[1], row->nb[1], n_latent * sizeof(float)),
                 g_.pos);
        store(kv_.k()[il], ggml_concat(ctx_, ggml_reshape_3d(ctx_, latent, n_latent, 1, n), rotated, 0));
        if (kv_.v_transposed()) store_v(kv_.v()[il], latent);
    }

    // The absorbed form: a head's key and value matrices are applied to its query and its result rather than to every
    // row of the cache, which all heads then share. u [U, n_q] -> [value_dim * n_head, n_q]
    ggml_tensor * attend_latent(int il, ggml_tensor * u) {
        const DraftLayer & l = w_.layers[il];
        const LatentSpec & a = s_.latent;
        const int64_t n_q = u->ne[1];
        ggml_tensor * q =
            l.wq_a ? ggml_mul_mat(ctx_, l.wq_b, rms(ggml_mul_mat(ctx_, l.wq_a, u), l.q_a_norm)) : linear(l.wq, l.bq, u);
        q = ggml_reshape_3d(ctx_, q, a.nope_dim + a.rope_dim, s_.n_head, n_q);
        const auto part = [&](int n, int skip) {
            return ggml_view_3d(ctx_, q, n, s_.n_head, n_q, q->nb[1], q->nb[2], skip * sizeof(float));
        };
        ggml_tensor * rotated = rope(part(a.rope_dim, a.nope_dim), positions(n_q));
        ggml_tensor * absorbed = ggml_mul_mat(ctx_, l.wk_b, swapped(part(a.nope_dim, 0)));  // [kv_rank, n_q, n_head]
        q = ggml_concat(ctx_, absorbed, swapped(rotated), 0);
        name(q, "q", il);
        ggml_tensor * y = ggml_mul_mat(ctx_, l.wv_b, swapped(attend(il, q)));  // [value_dim, n_q, n_head]
        return ggml_reshape_2d(ctx_, ggml_cont(ctx_, swapped(y)), (int64_t)a.value_dim * s_.n_head, n_q);
    }

    // q [key_dim, n_q, n_head] -> [value_dim, n_head, n_q]
    ggml_tensor * attend(int il, ggml_tensor * q) {
        ggml_tensor * rows = tail(mask(il), (int)q->ne[1]);
        ggml_tensor * k = cache_view(kv_.k()[il], s_.key_dim());
        ggml_tensor * y;
        if (form_.flash_attn) {
            ggml_tensor * v = cache_view(s_.has_latent() ? kv_.k()[il] : kv_.v()[il], s_.value_dim());
            y = ggml_flash_attn_ext(ctx_, q, k, v, rows, s_.score_scale(), 0.0f, 0.0f);
        } else {
            ggml_tensor * v = kv_.v()[il];
            v = ggml_view_3d(ctx_, v, shape_.n_kv, s_.value_dim(), s_.n_head_kv, v->nb[1], v->nb[1] * s_.value_dim(),
                             0);
            y = s_.has_latent() ? attend_as_one(k, v, q, rows) : attend_each(k, v, q, rows);
            y = ggml_cont(ctx_, swapped(y));
        }
        name(y, "attn_out", il);
        return y;
    }

    ggml_tensor * attend_each(ggml_tensor * k, ggml_tensor * v, ggml_tensor * q, ggml_tensor * rows) {
        return ggml_mul_mat(ctx_, v, ggml_soft_max_ext(ctx_, ggml_mul_mat(ctx_, k, q), rows, s_.score_scale(), 0.0f));
    }

    // All heads look at the same keys and values: their queries are rows of one product.
    ggml_tensor * attend_as_one(ggml_tensor * k, ggml_tensor * v, ggml_tensor * q, ggml_tensor * rows) {
        const int64_t n_q = q->ne[1], n_head = q->ne[2];
        ggml_tensor * p = ggml_mul_mat(ctx_, k, ggml_reshape_2d(ctx_, q, q->ne[0], n_q * n_head));
        p = ggml_soft_max_ext(ctx_, ggml_reshape_3d(ctx_, p, p->ne[0], n_q, n_head), rows, s_.score_scale(), 0.0f);
        ggml_tensor * y = ggml_mul_mat(ctx_, v, ggml_reshape_2d(ctx_, p, p->ne[0], n_q * n_head));
        return ggml_reshape_3d(ctx_, y, y->ne[0], n_q, n_head);
    }

    // cache [n * n_head_kv, n_slots] -> [n, n_kv, n_head_kv]; of latent attention the first n of each row
    ggml_tensor * cache_view(ggml_tensor * cache, int n) {
        const size_t n_head_bytes = ggml_row_size(cache->type, n);
        return ggml_view_3d(ctx_, cache, n, shape_.n_kv, s_.n_head_kv, cache->nb[1], n_head_bytes, 0);
    }

    void output(ggml_tensor * h) {
        ggml_tensor * post = rms(h, w_.output_norm);
        ggml_tensor * fed = s_.norm_output ? post : h;
        ggml_build_forward_expand(g_.gf, ggml_set_rows(ctx_, kv_.state(), fed, g_.state_slot));
        g_.logits = ggml_mul_mat(ctx_, w_.head, post);
        if (s_.logit_scale != 1.0f) g_.logits = ggml_scale(ctx_, g_.logits, s_.logit_scale);
        ggml_set_name(g_.logits, "logits");
        ggml_set_output(g_.logits);
        ggml_build_forward_expand(g_.gf, g_.logits);
        if (form_.n_top > 0) pick();
    }

    // A log-probability is a logit less one number for the whole row, and that number is what the best token's logit is
    // above the logarithm of its probability.
    void pick() {
        const int64_t n = g_.logits->ne[0], n_out = g_.logits->ne[1];
        const auto pick_from = [&](ggml_tensor * rows) {
            return ggml_get_rows(ctx_, ggml_reshape_3d(ctx_, rows, 1, n, n_out), g_.top_ids);
        };
        g_.top_ids = ggml_top_k(ctx_, g_.logits, (int)std::min<int64_t>(form_.n_top, n));
        g_.top_logits = pick_from(g_.logits);
        g_.top_probs = pick_from(ggml_soft_max(ctx_, g_.logits));
        for (ggml_tensor * t : {g_.top_ids, g_.top_logits, g_.top_probs}) {
            ggml_set_output(t);
            ggml_build_forward_expand(g_.gf, t);
        }
    }

    const DraftSpec & s_;
    const DraftWeights & w_;
    const DraftKv & kv_;
    const GraphShape shape_;
    const GraphForm form_;
    DraftGraph & g_;
    ggml_context * ctx_;
    std::vector<ggml_tensor *> inputs_;
};

}  // namespace

DraftMemory::DraftMemory(ggml_backend_buffer_type_t buft) : buft_(buft), alloc_(ggml_gallocr_new(buft)) {}

size_t DraftMemory::n_bytes() const {
    return ggml_gallocr_get_buffer_size(alloc_.get(), 0) + (inputs_ ? ggml_backend_buffer_get_size(inputs_.get()) : 0);
}

ggml_tensor * DraftMemory::allocate(ggml_context * ctx, ggml_cgraph * gf, const std::vector<ggml_tensor *> & inputs) {
    // what CPUs, CUDA and Vulkan want at the most; an input in the middle of the packed ones has to be bound by itself
    const size_t n_align = std::max<size_t>(256, ggml_backend_buft_get_alignment(buft_));
    std::vector<size_t> at;
    size_t n_bytes = 0;
    for (ggml_tensor * t : inputs) {
        at.push_back(n_bytes);
        n_bytes += GGML_PAD(ggml_backend_buft_get_alloc_size(buft_, t), n_align);
    }
    const auto no_room = [&] {
        ++epoch_;
        fail(ErrorKind::out_of_memory, "no room for the drafter's compute buffer in %s memory",
             ggml_backend_buft_name(buft_));
    };
    if (!inputs_ || ggml_backend_buffer_get_size(inputs_.get()) < n_bytes) {
        ++epoch_;
        inputs_.reset();
        inputs_.reset(ggml_backend_buft_alloc_buffer(buft_, n_bytes));
        if (!inputs_) no_room();
    }
    uint8_t * base = (uint8_t *)ggml_backend_buffer_get_base(inputs_.get());
    for (size_t i = 0; i < inputs.size(); ++i) ggml_backend_tensor_alloc(inputs_.get(), inputs[i], base + at[i]);
    ggml_tensor * packed = ggml_new_tensor_1d(ctx, GGML_TYPE_I8, (int64_t)n_bytes);
    ggml_set_name(packed, "packed");
    ggml_backend_tensor_alloc(inputs_.get(), packed, base);

    const size_t n_before = ggml_gallocr_get_buffer_size(alloc_.get(), 0);
    if (!ggml_gallocr_alloc_graph(alloc_.get(), gf)) {
        alloc_.reset(ggml_gallocr_new(buft_));
        no_room();
    }
    if (ggml_gallocr_get_buffer_size(alloc_.get(), 0) != n_before) ++epoch_;
    return packed;
}

std::unique_ptr<DraftGraph> build_draft_graph(const DraftSpec & spec, const DraftWeights & weights, const DraftKv & kv,
                                              const GraphShape & shape, const GraphForm & form, DraftMemory & memory) {
    auto g = std::make_unique<DraftGraph>();
    const size_t n_nodes = 80 + 8 * spec.n_aux() + 96 * (size_t)spec.n_layer;
    const size_t n_mem = ggml_tensor_overhead() * 2 * n_nodes + ggml_graph_overhead_custom(n_nodes, false);
    g->ctx.reset(ggml_init({n_mem, nullptr, /*no_alloc=*/true}));
    g->gf = ggml_new_graph_custom(g->ctx.get(), n_nodes, false);
    Builder builder(spec, weights, kv, shape, form, *g);
    builder.build();
    g->packed = memory.allocate(g->ctx.get(), g->gf, builder.made_inputs());
    g->epoch = memory.epoch();
    return g;
}

}  // namespace eaglecpp
