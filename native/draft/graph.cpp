// SPDX-License-Identifier: MIT
#include "draft/graph.h"

#include <algorithm>

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
        ggml_tensor * x = shape_.commit ? g_.features : ggml_get_rows(ctx_, kv_.state(), g_.state_idx);
        if (s_.fuses_embedding) {
            x = linear(w_.fc, w_.fc_bias, ggml_concat(ctx_, scaled(g_.embd, s_.embd_scale), x, 0));
        } else if (shape_.commit) {
            x = fuse();
        }
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
            g_.v_place = input(GGML_TYPE_I64, (int64_t)n * s_.head_dim * s_.n_head_kv, 0, "v_place");
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

    ggml_tensor * scaled(ggml_tensor * x, float factor) { return factor == 1.0f ? x : ggml_scale(ctx_, x, factor); }

    // GELU with tanh, written out: ggml's own looks it up in half precision
    ggml_tensor * gelu(ggml_tensor * x) {
        constexpr float c = 2.0f * 0.7978845608f;
        ggml_tensor * slope = ggml_scale_bias(ctx_, ggml_sqr(ctx_, x), 0.044715f * c, c);
        return ggml_mul(ctx_, x, ggml_sigmoid(ctx_, ggml_mul(ctx_, x, slope)));
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
        if (!l.attn_norm) {
            u = x;
        } else if (il == 0 && !s_.fuses_embedding) {
            ggml_tensor * feature = rms(x, l.attn_norm_2);
            u = ggml_concat(ctx_, rms(scaled(g_.embd, s_.embd_scale), l.attn_norm), feature, 0);
            if (s_.norm_before_residual) residual = feature;
        } else {
            u = rms(x, l.attn_norm);
        }
        name(u, "attn_input", il);
        ggml_tensor * k = heads(l.wk, l.bk, nullptr, u, s_.n_head_kv);
        ggml_tensor * v = l.wv ? heads(l.wv, l.bv, nullptr, u, s_.n_head_kv) : k;
        if (s_.norms_values) v = ggml_rms_norm(ctx_, v, s_.rms_eps);
        store(kv_.k()[il], rope(l.k_norm ? rms(k, l.k_norm) : k, g_.pos));
        store_v(kv_.v()[il], v);
        if (n_q == 0) return nullptr;

        ggml_tensor * pos = n_q == shape_.n_rows ? g_.pos : g_.pos_out;
        ggml_tensor * q = rope(heads(l.wq, l.bq, l.q_norm, tail(u, n_q), s_.n_head), pos);
        name(q, "q", il);
        ggml_tensor * o = linear(l.wo, l.bo, attend(il, q));
        if (l.post_attn_norm) o = rms(o, l.post_attn_norm);
        ggml_tensor * h = ggml_add(ctx_, o, tail(residual, n_q));
        ggml_tensor * m = rms(h, l.ffn_norm);
        ggml_tensor * gate = linear(l.gate, l.gate_b, m);
        ggml_tensor * up = linear(l.up, l.up_b, m);
        m = linear(l.down, l.down_b, s_.uses_gelu ? ggml_mul(ctx_, gelu(gate), up) : ggml_swiglu_split(ctx_, gate, up));
        if (l.post_ffn_norm) m = rms(m, l.post_ffn_norm);
        h = ggml_add(ctx_, m, h);
        name(h, "layer_out", il);
        return h;
    }

    // q [head_dim, n_head, n_q] -> [head_dim * n_head, n_q]
    ggml_tensor * attend(int il, ggml_tensor * q) {
        const int64_t n_q = q->ne[2];
        const float scale = s_.attn_scale;
        ggml_tensor * rows = tail(mask(il), (int)n_q);
        ggml_tensor * k = cache_view(kv_.k()[il]);
        q = ggml_permute(ctx_, q, 0, 2, 1, 3);  // [head_dim, n_q, n_head]
        ggml_tensor * y;
        if (form_.flash_attn) {
            y = ggml_flash_attn_ext(ctx_, q, k, cache_view(kv_.v()[il]), rows, scale, 0.0f,
                                    0.0f);  // [head_dim, n_head, n_q]
        } else {
            ggml_tensor * p = ggml_soft_max_ext(ctx_, ggml_mul_mat(ctx_, k, q), rows, scale, 0.0f);
            ggml_tensor * v = kv_.v()[il];
            v = ggml_view_3d(ctx_, v, shape_.n_kv, s_.head_dim, s_.n_head_kv, v->nb[1], v->nb[1] * s_.head_dim, 0);
            y = ggml_cont(ctx_, ggml_permute(ctx_, ggml_mul_mat(ctx_, v, p), 0, 2, 1, 3));
        }
        name(y, "attn_out", il);
        return ggml_reshape_2d(ctx_, y, s_.head_dim * s_.n_head, n_q);
    }

    // cache [head_dim * n_head_kv, n_slots] -> [head_dim, n_kv, n_head_kv]
    ggml_tensor * cache_view(ggml_tensor * cache) {
        const size_t n_head_bytes = ggml_row_size(cache->type, s_.head_dim);
        return ggml_view_3d(ctx_, cache, s_.head_dim, shape_.n_kv, s_.n_head_kv, cache->nb[1], n_head_bytes, 0);
    }

    void output(ggml_tensor * h) {
        ggml_tensor * post = w_.output_norm ? rms(h, w_.output_norm) : h;
        ggml_tensor * fed = s_.norm_output ? post : h;
        ggml_build_forward_expand(g_.gf, ggml_set_rows(ctx_, kv_.state(), fed, g_.state_slot));
        g_.logits = ggml_mul_mat(ctx_, w_.head, post);
        g_.logits = scaled(g_.logits, s_.logit_scale);
        if (s_.logit_softcap > 0.0f) {
            g_.logits = ggml_scale(ctx_, g_.logits, 1.0f / s_.logit_softcap);
            g_.logits = ggml_scale(ctx_, ggml_tanh(ctx_, g_.logits), s_.logit_softcap);
        }
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
    const size_t n_nodes = 80 + 8 * spec.n_aux() + 64 * (size_t)spec.n_layer;
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
