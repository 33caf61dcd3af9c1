// SPDX-License-Identifier: MIT
#include "draft/graph.h"

#include <algorithm>

#include "base/error.h"

namespace eaglecpp {

namespace {

// Kind of the rows of a graph. EAGLE drafters use commit, extend and step; block drafters use context, block and
// rescore.
enum class Rows { commit, extend, step, context, block, rescore };

class Builder {
  public:
    // declared: null, or a list to which the builder adds the tensors that it needs. In this case the drafter's file
    // may lack these tensors.
    Builder(const DraftSpec & spec, const DraftWeights & weights, Rows rows, const GraphShape & shape,
            const GraphForm & form, DraftGraph & out, ggml_context * ctx, DraftTensors * declared)
        : s_(spec),
          w_(weights),
          rows_(rows),
          shape_(shape),
          n_rows_(shape.n_rows()),
          n_out_(shape.n_out()),
          form_(form),
          g_(out),
          ctx_(ctx),
          declared_(declared) {}

    // before: null, or the builder of the previous graph if this graph is a step. The step reads the only output row of
    // the previous graph.
    void build(const Builder * before = nullptr) {
        if (rows_ == Rows::rescore) return rescore();
        inputs();
        if (rows_ == Rows::context) {
            ggml_tensor * hidden_state = rms(fuse(), "enc.output_norm.weight");
            for (int il = 0; il < s_.n_layer; ++il) {
                store_full(il, s_.block.is_gated ? rms(hidden_state, "blk.{i}.attn_norm.weight", il) : hidden_state);
            }
            return;
        }
        ggml_tensor * x = nullptr;
        if (rows_ == Rows::block) {
            x = joined([&](size_t i, int, int n) {
                ggml_tensor * anchor = columns(g_.embd, (int)i, 1);
                return n == 1 ? anchor : ggml_concat(ctx_, anchor, columns(mask_embeddings(), 0, n - 1), 1);
            });
            x = scaled(x, s_.embd_scale);
            for (int il = 0; il < s_.n_layer; ++il) x = layer(il, x, n_rows_);
            return output_block(x);
        }
        embd_ = before ? ggml_get_rows(ctx_, w_.draft_embedding, ggml_argmax(ctx_, before->g_.logits)) : g_.embd;
        if (before) {
            x = before->fed_;
        } else if (rows_ == Rows::extend) {
            x = joined([&](size_t i, int, int) { return ggml_get_rows(ctx_, kv(i).state(), g_.parts[i].state_idx); });
        } else {
            x = s_.fuses_embedding ? g_.hidden_states : fuse();
        }
        if (s_.fuses_embedding) x = linear(ggml_concat(ctx_, scaled(embd_, s_.embd_scale), x, 0), "fc", s_.n_embd);
        for (int il = 0; il < s_.n_layer; ++il) {
            x = layer(il, x, il + 1 < s_.n_layer ? n_rows_ : n_out_);
        }
        if (x) output(x);
    }

    const std::vector<ggml_tensor *> & input_tensors() const { return inputs_; }
    const std::vector<ggml_tensor *> & output_tensors() const { return outputs_; }

  private:
    ggml_tensor * input(ggml_type type, int64_t ne0, int64_t ne1, const char * label) {
        ggml_tensor * t = ne1 > 0 ? ggml_new_tensor_2d(ctx_, type, ne0, ne1) : ggml_new_tensor_1d(ctx_, type, ne0);
        ggml_set_input(t);
        ggml_set_name(t, label);
        inputs_.push_back(t);
        return t;
    }

    const DraftKv & kv(size_t part) const { return *shape_.parts[part].kv; }

    void inputs() {
        const bool has_embd = rows_ != Rows::step && rows_ != Rows::context;
        const int64_t n_embedded = rows_ == Rows::block ? (int64_t)shape_.parts.size() : n_rows_;
        if (has_embd) {
            g_.embd = input(GGML_TYPE_F32, s_.n_embd, n_embedded, "embd");
            table(&DraftWeights::embedding, "token_embd.weight", s_.n_embd, s_.n_vocab,
                  needs_own_tables() ? Need::required : Need::optional);
        }
        g_.pos = g_.pos_out = input(GGML_TYPE_I32, n_rows_, 0, "pos");
        if (rows_ != Rows::block && n_out_ > 0 && n_out_ < n_rows_) {
            // pos_out is not a view of `pos`, because the view's offset of 4 * (n - n_out) bytes is not aligned enough
            // for a GPU's shaders.
            g_.pos_out = input(GGML_TYPE_I32, n_out_, 0, "pos_out");
            if (shape_.parts.size() > 1) g_.row_out = input(GGML_TYPE_I32, n_out_, 0, "row_out");
        }
        for (const GraphPart & p : shape_.parts) {
            DraftGraph::Part in;
            if (rows_ == Rows::extend) in.state_idx = input(GGML_TYPE_I32, p.n_rows, 0, "state_idx");
            in.slot = input(GGML_TYPE_I64, p.n_rows, 0, "slot");
            in.n_mask_rows = s_.n_layer > 1 || rows_ == Rows::block ? p.n_rows : p.n_out;
            if (form_.keeps_states(s_) && p.n_out > 0) in.state_slot = input(GGML_TYPE_I64, p.n_out, 0, "state_slot");
            g_.parts.push_back(in);
        }
        if (rows_ != Rows::commit && rows_ != Rows::context) return;
        g_.hidden_states = input(GGML_TYPE_F32, (int64_t)s_.n_aux() * s_.n_embd_target, n_rows_, "features");
        if (s_.is_parallel()) {
            table(&DraftWeights::mask_hidden_state, "mask_feature.weight", s_.n_fc_in(), 1, Need::required,
                  /*is_f32=*/true);
        }
    }

    // Returns columns [at, at + n) of a contiguous tensor [d, n_all].
    ggml_tensor * columns(ggml_tensor * x, int at, int n) {
        return n == x->ne[1] ? x : ggml_view_2d(ctx_, x, x->ne[0], n, x->nb[1], at * x->nb[1]);
    }

    // Returns the mask of a layer. Creates a mask only when a layer first uses it: a commit without output stops before
    // the last layer attends, and a mask may have no other layer.
    ggml_tensor * mask(int il, size_t part) {
        DraftGraph::Part & in = g_.parts[part];
        const bool slides = s_.slides[il], is_causal = s_.is_block() && s_.block.causal[il];
        auto & m = in.masks[slides + 2 * is_causal];
        if (!m.tensor) {
            m = {input(GGML_TYPE_F16, shape_.parts[part].n_kv, in.n_mask_rows, "mask"), slides, is_causal};
        }
        return m.tensor;
    }

    enum class Need { required, optional };

    DraftTensor & declare(const std::string & name, std::vector<int64_t> ne, Need need, bool is_f32) {
        DraftTensor & t = (*declared_)[name];
        t.ne = std::move(ne);
        t.is_required = need == Need::required;
        t.is_f32 = is_f32;
        return t;
    }

    // Returns a tensor of the file, or null if an optional tensor is missing. {i} in the name is replaced by the layer
    // il.
    ggml_tensor * weight(const char * pattern, int il, std::vector<int64_t> ne, Need need, bool is_f32) {
        const std::string name = fill(pattern, il);
        if (!declared_) return w_.find(name);
        ggml_tensor * t = ggml_new_tensor(ctx_, GGML_TYPE_F32, (int)ne.size(), ne.data());
        declare(name, std::move(ne), need, is_f32).is_on_device = true;
        return t;
    }
    ggml_tensor * values(const char * pattern, std::vector<int64_t> ne, Need need = Need::required, int il = 0) {
        return weight(pattern, il, std::move(ne), need, /*is_f32=*/true);
    }

    // Declares a tensor that the host reads row by row, to write inputs or to complete picks.
    void table(EmbeddingTable DraftWeights::* table, const char * name, int64_t n, int64_t n_rows,
               Need need = Need::required, bool is_f32 = false) {
        if (declared_) declare(name, {n, n_rows}, need, is_f32).table = table;
    }

    bool needs_own_tables() const { return s_.n_embd != s_.n_embd_target; }

    ggml_tensor * mask_embeddings() {
        if (!declared_) return w_.mask_embeddings;
        return ggml_new_tensor_2d(ctx_, GGML_TYPE_F32, s_.n_embd, s_.block.n_rows - 1);
    }

    ggml_tensor * rms(ggml_tensor * x, const char * pattern, int il = 0, Need need = Need::required) {
        ggml_tensor * norm = values(pattern, {x->ne[0]}, need, il);
        return norm ? ggml_mul(ctx_, ggml_rms_norm(ctx_, x, s_.rms_eps), norm) : x;
    }

    ggml_tensor * product(ggml_tensor * x, const char * pattern, int64_t n_out, int il = 0) {
        return ggml_mul_mat(ctx_, weight(pattern, il, {x->ne[0], n_out}, Need::required, /*is_f32=*/false), x);
    }

    // Multiplies x by a weight, and adds a bias if the file has one for this weight.
    ggml_tensor * linear(ggml_tensor * x, const std::string & pattern, int64_t n_out, int il = 0) {
        return biased(product(x, (pattern + ".weight").c_str(), n_out, il), (pattern + ".bias").c_str(), il);
    }
    ggml_tensor * biased(ggml_tensor * y, const char * pattern, int il) {
        ggml_tensor * bias = values(pattern, {y->ne[0]}, Need::optional, il);
        return bias ? ggml_add(ctx_, y, bias) : y;
    }

    // Applies the norm of queries or keys, per head.
    ggml_tensor * head_norm(ggml_tensor * x, const char * pattern, int il) {
        return s_.fuses_embedding ? x : rms(x, pattern, il, Need::optional);
    }

    ggml_tensor * scaled(ggml_tensor * x, float factor) { return factor == 1.0f ? x : ggml_scale(ctx_, x, factor); }

    // Computes GELU with tanh. ggml's own GELU looks values up in half precision, so it is not used.
    ggml_tensor * gelu(ggml_tensor * x) {
        constexpr float c = 2.0f * 0.7978845608f;
        ggml_tensor * slope = ggml_scale_bias(ctx_, ggml_sqr(ctx_, x), 0.044715f * c, c);
        return ggml_mul(ctx_, x, ggml_sigmoid(ctx_, ggml_mul(ctx_, x, slope)));
    }

    // Returns the last n columns of a contiguous tensor [d, n_rows].
    ggml_tensor * tail(ggml_tensor * x, int n) { return columns(x, (int)x->ne[1] - n, n); }

    // Returns the columns of a contiguous [d, n_rows] for the n rows that run fully.
    ggml_tensor * outputs(ggml_tensor * x, int n) {
        return n < x->ne[1] && g_.row_out ? ggml_get_rows(ctx_, x, g_.row_out) : tail(x, n);
    }

    // Fuses the hidden states of the extracted layers to [H, n_rows].
    ggml_tensor * fuse() {
        ggml_tensor * x = g_.hidden_states;
        if (s_.block.is_gated) {
            const int64_t n_hidden = s_.n_embd_target, n = x->ne[1];
            x = ggml_rms_norm(ctx_, ggml_reshape_3d(ctx_, x, n_hidden, s_.n_aux(), n), s_.rms_eps);
            x = ggml_mul(ctx_, x, values("enc.aux_norm.weight", {n_hidden, s_.n_aux()}));
            x = ggml_reshape_2d(ctx_, x, n_hidden * s_.n_aux(), n);
        }
        // The norm of the concatenated layers must come before the norms of single layers.
        if (s_.norm_before_fc) x = rms(x, "enc.output_norm.weight");
        if (!s_.fc_norm) return linear(x, "fc", s_.n_embd);
        ggml_tensor * normed = nullptr;
        for (int a = 0; a < s_.n_aux(); ++a) {
            const size_t n = s_.n_embd_target;
            ggml_tensor * part = ggml_view_2d(ctx_, x, n, x->ne[1], x->nb[1], a * n * sizeof(float));
            part = rms(part, "fc_norm.{i}.weight", a);
            normed = normed ? ggml_concat(ctx_, normed, part, 0) : part;
        }
        return linear(normed, "fc", s_.n_embd);
    }

    ggml_tensor * rope(ggml_tensor * x, ggml_tensor * pos) {
        const RopeSpec & r = s_.rope;
        ggml_tensor * freqs = values("rope_freqs.weight", {r.n_rot / 2}, Need::optional);
        return ggml_rope_ext(ctx_, x, pos, freqs, r.n_rot, r.neox ? GGML_ROPE_TYPE_NEOX : GGML_ROPE_TYPE_NORMAL,
                             r.n_ctx_orig, r.freq_base, r.freq_scale, r.ext_factor, r.attn_factor, r.beta_fast,
                             r.beta_slow);
    }

    // Reshapes [head_dim * n_heads, n] to [head_dim, n_heads, n].
    ggml_tensor * heads(ggml_tensor * x, int n_heads) {
        return ggml_reshape_3d(ctx_, x, s_.head_dim, n_heads, x->ne[1]);
    }

    // Writes the rows x [head_dim, n_head_kv, n_rows] into the key or value caches, of which each conversation has one.
    using Caches = const std::vector<ggml_tensor *> & (DraftKv::*)() const;
    void store(Caches caches, int il, ggml_tensor * x) {
        each_part([&](size_t i, int at, int n) {
            // Stores a view, because devices fuse rotation, view and copy, but not rotation, reshape and copy.
            ggml_tensor * rows = ggml_view_2d(ctx_, x, x->ne[0] * x->ne[1], n, x->nb[2], at * x->nb[2]);
            write((kv(i).*caches)()[il], rows, g_.parts[i].slot);
        });
    }

    void write(ggml_tensor * rows, ggml_tensor * x, ggml_tensor * where) {
        ggml_build_forward_expand(g_.gf, ggml_set_rows(ctx_, rows, x, where));
    }

    // Calls f(part, first row of the part, number of rows) for every conversation's part.
    template <typename F>
    void each_part(F && f, bool of_outputs = false) {
        int at = 0;
        for (size_t i = 0; i < shape_.parts.size(); ++i) {
            const int n = of_outputs ? shape_.parts[i].n_out : shape_.parts[i].n_rows;
            f(i, at, n);
            at += n;
        }
    }

    // Concatenates the results of f for all conversations. Joins results in pairs, so that each number is copied only a
    // few times.
    template <typename F>
    ggml_tensor * joined(F && f, bool of_outputs = false) {
        std::vector<ggml_tensor *> all;
        each_part([&](size_t i, int at, int n) { all.push_back(f(i, at, n)); }, of_outputs);
        for (size_t n = all.size(); n > 1; n = (n + 1) / 2) {
            for (size_t i = 0; i < n / 2; ++i) all[i] = ggml_concat(ctx_, all[2 * i], all[2 * i + 1], 1);
            if (n % 2) all[n / 2] = all[n - 1];
        }
        return all[0];
    }

    // Adds one decoder layer. Returns the output [H, n_q] of the last n_q rows, or null if n_q is 0.
    ggml_tensor * layer(int il, ggml_tensor * x, int n_q) {
        ggml_tensor * u;
        ggml_tensor * residual = x;
        if (il == 0 && !s_.fuses_embedding && !s_.is_block()) {
            ggml_tensor * hidden_state = rms(x, "blk.{i}.attn_norm_2.weight", il);
            u = ggml_concat(ctx_, rms(scaled(embd_, s_.embd_scale), "blk.{i}.attn_norm.weight", il), hidden_state, 0);
            if (s_.norm_before_residual) residual = hidden_state;
        } else {
            u = s_.has_all_norms() || il > 0 ? rms(x, "blk.{i}.attn_norm.weight", il) : x;
        }
        const Mixing mix_attn = mixing(u, "blk.{i}.attn_conv_base", "blk.{i}.attn_conv_proj.weight", il);
        u = mixed(mix_attn, u, 0);
        if (s_.has_latent()) {
            store_latent(il, u);
        } else {
            store_full(il, u);
        }
        if (n_q == 0) return nullptr;

        ggml_tensor * o = s_.has_latent() ? attend_latent(il, outputs(u, n_q)) : attend_full(il, outputs(u, n_q));
        o = s_.has_latent() ? product(o, "blk.{i}.attn_output.weight", s_.n_embd, il)
                            : linear(o, "blk.{i}.attn_output", s_.n_embd, il);
        o = mixed(mix_attn, scaled(o, s_.value_scale), 1);
        const bool has_post_norms = s_.arch == "eagle31" || s_.is_block();
        if (has_post_norms) o = rms(o, "blk.{i}.post_attention_norm.weight", il, Need::optional);
        ggml_tensor * h = ggml_add(ctx_, o, outputs(residual, n_q));
        ggml_tensor * m = rms(h, "blk.{i}.ffn_norm.weight", il);
        const Mixing mix_ffn = mixing(m, "blk.{i}.ffn_conv_base", "blk.{i}.ffn_conv_proj.weight", il);
        m = mixed(mix_ffn, m, 0);
        ggml_tensor * gate = linear(m, "blk.{i}.ffn_gate", s_.n_ff, il);
        ggml_tensor * up = linear(m, "blk.{i}.ffn_up", s_.n_ff, il);
        m = s_.uses_gelu ? ggml_mul(ctx_, gelu(gate), up) : ggml_swiglu_split(ctx_, gate, up);
        m = mixed(mix_ffn, linear(m, "blk.{i}.ffn_down", s_.n_embd, il), 1);
        if (has_post_norms) m = rms(m, "blk.{i}.post_ffw_norm.weight", il, Need::optional);
        h = ggml_add(ctx_, m, h);
        if (!s_.is_block()) return h;
        ggml_tensor * scale = values("blk.{i}.layer_output_scale.weight", {1}, Need::optional, il);
        return scale ? ggml_mul(ctx_, h, scale) : h;
    }

    // DFlash2's convolution over the rows of a block (speculators models/dflash2). The convolution's weights are the
    // sum of fixed weights and weights computed from the normed input of the sublayer. Side 0 is the sublayer's input,
    // and side 1 is its output.
    struct Mixing {
        ggml_tensor *base = nullptr, *computed = nullptr;
    };

    Mixing mixing(ggml_tensor * x, const char * base, const char * kernel, int il) {
        if (s_.block.n_taps == 0) return {};
        const int64_t n_kernel = 2 * s_.block.n_taps * (s_.n_embd / s_.block.n_group);
        return {values(base, {s_.n_embd, s_.block.n_taps, 2}, Need::required, il), product(x, kernel, n_kernel, il)};
    }

    ggml_tensor * mixed(const Mixing & mix, ggml_tensor * y, int side) {
        if (!mix.base) return y;
        const int64_t n_embd = y->ne[0], n = y->ne[1], n_group = s_.block.n_group, n_groups = n_embd / n_group;
        ggml_tensor * sum = nullptr;
        for (int tap = 0; tap < s_.block.n_taps; ++tap) {
            ggml_tensor * rows = tap == 0 ? y : shifted(y, tap);
            ggml_tensor * base = ggml_view_1d(ctx_, mix.base, n_embd, side * mix.base->nb[2] + tap * mix.base->nb[1]);
            const size_t at = (size_t)(side * s_.block.n_taps + tap) * n_groups * sizeof(float);
            ggml_tensor * computed =
                ggml_cont(ctx_, ggml_view_2d(ctx_, mix.computed, n_groups, n, mix.computed->nb[1], at));
            ggml_tensor * groups = ggml_reshape_3d(ctx_, ggml_cont(ctx_, rows), n_group, n_groups, n);
            groups = ggml_mul(ctx_, groups, ggml_reshape_3d(ctx_, computed, 1, n_groups, n));
            ggml_tensor * part = ggml_add(ctx_, ggml_mul(ctx_, rows, base), ggml_reshape_2d(ctx_, groups, n_embd, n));
            sum = sum ? ggml_add(ctx_, sum, part) : part;
        }
        return sum;
    }

    // Shifts the rows of each block by n, with zeros before the first row.
    ggml_tensor * shifted(ggml_tensor * y, int n) {
        return joined([&](size_t, int at, int n_rows) {
            ggml_tensor * none = ggml_scale(ctx_, columns(y, at, std::min(n, n_rows)), 0.0f);
            return n >= n_rows ? none : ggml_concat(ctx_, none, columns(y, at, n_rows - n), 1);
        });
    }

    // Returns the positions of the last n rows.
    ggml_tensor * positions(int64_t n) { return n == n_rows_ ? g_.pos : g_.pos_out; }

    // Swaps the dimension of heads with the dimension of rows.
    ggml_tensor * swapped(ggml_tensor * x) { return ggml_permute(ctx_, x, 0, 2, 1, 3); }

    void store_full(int il, ggml_tensor * u) {
        const int64_t n_kv = (int64_t)s_.head_dim * s_.n_head_kv;
        ggml_tensor * k = heads(linear(u, "blk.{i}.attn_k", n_kv, il), s_.n_head_kv);
        // A layer without a value matrix uses its keys as values.
        ggml_tensor * w = weight("blk.{i}.attn_v.weight", il, {u->ne[0], n_kv},
                                 s_.norms_values ? Need::optional : Need::required, false);
        ggml_tensor * v = w ? heads(biased(ggml_mul_mat(ctx_, w, u), "blk.{i}.attn_v.bias", il), s_.n_head_kv) : k;
        if (s_.norms_values) v = ggml_rms_norm(ctx_, v, s_.rms_eps);
        store(&DraftKv::k, il, rope(head_norm(k, "blk.{i}.attn_k_norm.weight", il), g_.pos));
        store(&DraftKv::v, il, v);
    }

    // Attends with separate keys and values per head. Input: u [U, n_q]; result: [head_dim * n_head, n_q].
    ggml_tensor * attend_full(int il, ggml_tensor * u) {
        const int64_t n_q = (int64_t)s_.head_dim * s_.n_head;
        ggml_tensor * q = heads(linear(u, "blk.{i}.attn_q", n_q, il), s_.n_head);
        q = rope(head_norm(q, "blk.{i}.attn_q_norm.weight", il), positions(u->ne[1]));
        ggml_tensor * y = attend(il, swapped(q));
        if (s_.block.is_gated) {
            ggml_tensor * gate = ggml_softplus(ctx_, product(u, "blk.{i}.attn_gate.weight", s_.n_head, il));
            y = ggml_mul(ctx_, y, ggml_reshape_3d(ctx_, gate, 1, s_.n_head, u->ne[1]));
        }
        return ggml_reshape_2d(ctx_, y, n_q, u->ne[1]);
    }

    // Stores the row from which all heads compute their keys and values: first the normed latent, then the rotated part
    // of the key.
    void store_latent(int il, ggml_tensor * u) {
        const int64_t n_latent = s_.latent.kv_rank, n = u->ne[1];
        ggml_tensor * row = product(u, "blk.{i}.attn_kv_a_mqa.weight", s_.head_dim, il);
        ggml_tensor * latent =
            rms(ggml_view_2d(ctx_, row, n_latent, n, row->nb[1], 0), "blk.{i}.attn_kv_a_norm.weight", il);
        ggml_tensor * rotated =
            rope(ggml_view_3d(ctx_, row, s_.latent.rope_dim, 1, n, row->nb[1], row->nb[1], n_latent * sizeof(float)),
                 g_.pos);
        latent = ggml_reshape_3d(ctx_, latent, n_latent, 1, n);
        store(&DraftKv::k, il, ggml_concat(ctx_, latent, rotated, 0));
    }

    // Attends in the absorbed form: a head's key matrix is multiplied with its query, and its value matrix with its
    // result. The rows of the cache are not multiplied, so that all heads share the cache. u [U, n_q] -> [value_dim *
    // n_head, n_q]
    ggml_tensor * attend_latent(int il, ggml_tensor * u) {
        const LatentSpec & a = s_.latent;
        const int64_t n_q = u->ne[1], n_all = (int64_t)s_.n_head * (a.nope_dim + a.rope_dim);
        ggml_tensor * q = u;
        if (a.q_rank > 0) {
            q = rms(product(q, "blk.{i}.attn_q_a.weight", a.q_rank, il), "blk.{i}.attn_q_a_norm.weight", il);
            q = product(q, "blk.{i}.attn_q_b.weight", n_all, il);
        } else {
            q = product(q, "blk.{i}.attn_q.weight", n_all, il);
        }
        q = ggml_reshape_3d(ctx_, q, a.nope_dim + a.rope_dim, s_.n_head, n_q);
        const auto part = [&](int n, int skip) {
            return ggml_view_3d(ctx_, q, n, s_.n_head, n_q, q->nb[1], q->nb[2], skip * sizeof(float));
        };
        ggml_tensor * rotated = rope(part(a.rope_dim, a.nope_dim), positions(n_q));
        // shape: [kv_rank, n_q, n_head]
        ggml_tensor * absorbed = each_head(swapped(part(a.nope_dim, 0)), "blk.{i}.attn_k_b.weight", a.kv_rank, il);
        q = ggml_concat(ctx_, absorbed, swapped(rotated), 0);
        // shape: [value_dim, n_q, n_head]
        ggml_tensor * y = each_head(swapped(attend(il, q)), "blk.{i}.attn_v_b.weight", a.value_dim, il);
        return ggml_reshape_2d(ctx_, ggml_cont(ctx_, swapped(y)), (int64_t)a.value_dim * s_.n_head, n_q);
    }

    // Multiplies x [n, n_q, n_head] by one matrix per head. Result: [n_out, n_q, n_head].
    ggml_tensor * each_head(ggml_tensor * x, const char * pattern, int64_t n_out, int il) {
        return ggml_mul_mat(ctx_, weight(pattern, il, {x->ne[0], n_out, s_.n_head}, Need::required, false), x);
    }

    // Attends with q [key_dim, n_q, n_head], separately for each conversation. Result: [value_dim, n_head, n_q].
    ggml_tensor * attend(int il, ggml_tensor * q) {
        if (shape_.parts.size() == 1) return attend(il, 0, q);
        const int64_t n_q = q->ne[1], n_head = q->ne[2];
        ggml_tensor * all = joined(
            [&](size_t i, int at, int n) {
                ggml_tensor * own = ggml_view_3d(ctx_, q, q->ne[0], n, n_head, q->nb[1], q->nb[2], at * q->nb[1]);
                return ggml_reshape_2d(ctx_, attend(il, i, own), s_.value_dim() * n_head, n);
            },
            /*of_outputs=*/n_q < n_rows_);
        return ggml_reshape_3d(ctx_, all, s_.value_dim(), n_head, n_q);
    }

    ggml_tensor * attend(int il, size_t part, ggml_tensor * q) {
        ggml_tensor * rows = tail(mask(il, part), (int)q->ne[1]);
        ggml_tensor * k = cache_view(part, kv(part).k()[il], s_.key_dim());
        ggml_tensor * v = cache_view(part, s_.has_latent() ? kv(part).k()[il] : kv(part).v()[il], s_.value_dim());
        ggml_tensor * sinks = nullptr;  // a logit per head that takes a part of the softmax without adding a value
        if (s_.is_block()) sinks = values("blk.{i}.attn_sinks.weight", {s_.n_head}, Need::optional, il);
        ggml_tensor * y;
        if (form_.flash_attn) {
            y = ggml_flash_attn_ext(ctx_, q, k, v, rows, s_.score_scale(), 0.0f, 0.0f);
            ggml_flash_attn_ext_add_sinks(y, sinks);
        } else {
            v = ggml_cont(ctx_, ggml_transpose(ctx_, v));  // a product runs over the slots of each channel
            ggml_tensor * shares = ggml_soft_max_ext(ctx_, ggml_mul_mat(ctx_, k, q), rows, s_.score_scale(), 0.0f);
            ggml_soft_max_add_sinks(shares, sinks);
            y = ggml_mul_mat(ctx_, v, shares);
            y = ggml_cont(ctx_, swapped(y));
        }
        return y;
    }

    // Returns a view of the cache [n * n_head_kv, n_slots] as [n, n_kv, n_head_kv]. With latent attention the view has
    // only the first n numbers of each row.
    ggml_tensor * cache_view(size_t part, ggml_tensor * cache, int n) {
        const size_t n_head_bytes = ggml_row_size(cache->type, n);
        const int n_kv = shape_.parts[part].n_kv;
        return ggml_view_3d(ctx_, cache, n, n_kv, s_.n_head_kv, cache->nb[1], n_head_bytes, 0);
    }

    void output(ggml_tensor * h) {
        ggml_tensor * post = s_.has_all_norms() && s_.head_norm ? rms(h, "output_norm.weight") : h;
        fed_ = s_.norm_output ? post : h;
        each_part([&](size_t i, int at, int n) { write(kv(i).state(), columns(fed_, at, n), g_.parts[i].state_slot); },
                  /*of_outputs=*/true);
        give(head(post));
    }

    ggml_tensor * head(ggml_tensor * post) {
        const Need need =
            needs_own_tables() || s_.n_draft_vocab != s_.n_vocab || s_.ties_head ? Need::required : Need::optional;
        ggml_tensor * w = w_.target_head;
        if (!w)
            w = weight(s_.ties_head ? "token_embd.weight" : "output.weight", 0, {s_.n_embd, s_.n_draft_vocab}, need,
                       false);
        ggml_tensor * logits = scaled(ggml_mul_mat(ctx_, w, post), s_.logit_scale);
        if (s_.logit_softcap == 0.0f) return logits;
        logits = ggml_scale(ctx_, logits, 1.0f / s_.logit_softcap);
        return ggml_scale(ctx_, ggml_tanh(ctx_, logits), s_.logit_softcap);
    }

    // Computes the logits of the draft positions. With a Markov head, only the logits of the first position are
    // complete, because its previous token is the anchor. The logits of all other positions lack the Markov head's
    // part. If the graph picks tokens from these logits, they are outputs; otherwise they are kept for rescore().
    void output_block(ggml_tensor * x) {
        const int first = s_.block.anchor_first ? 0 : 1;
        ggml_tensor * h = joined([&](size_t i, int at, int) { return columns(x, at + first, shape_.parts[i].n_out); });
        ggml_tensor * post = rms(h, "output_norm.weight");
        ggml_tensor * logits = head(post);
        const BlockSpec & b = s_.block;
        if (b.selector_rank > 0) {
            g_.hidden = product(post, "selector_hidden.weight", b.selector_rank);
            table(&DraftWeights::before, "selector_predecessor.weight", b.selector_rank, s_.n_vocab);
            table(&DraftWeights::after, "selector_successor.weight", b.selector_rank, s_.n_vocab);
        } else if (ggml_tensor * w =
                       weight("conf_proj.weight", 0, {s_.n_embd + b.markov_rank}, Need::optional, false)) {
            table(&DraftWeights::confidence, "conf_proj.weight", w->ne[0], 1, Need::optional);
            g_.hidden = biased(ggml_mul_mat(ctx_, ggml_view_1d(ctx_, w, s_.n_embd, 0), post), "conf_proj.bias", 0);
        }
        if (g_.hidden) {
            ggml_set_output(g_.hidden);
            ggml_build_forward_expand(g_.gf, g_.hidden);
            if (form_.n_top > 0) outputs_.push_back(g_.hidden);
        }
        if (s_.block.markov_rank == 0) return give(logits);
        if (form_.n_top > 0) return give(with_markov(logits));
        ggml_tensor * firsts = joined(
            [&](size_t i, int at, int n) {
                write(kv(i).state(), columns(logits, at, n), g_.parts[i].state_slot);
                return columns(logits, at, 1);
            },
            /*of_outputs=*/true);
        give(with_markov(firsts));
    }

    // Completes the logits of draft positions with the Markov head's part, given the token before each position.
    void rescore() {
        for (const GraphPart & p : shape_.parts) {
            g_.parts.emplace_back().state_idx = input(GGML_TYPE_I32, p.n_rows, 0, "state_idx");
        }
        give(with_markov(
            joined([&](size_t i, int, int) { return ggml_get_rows(ctx_, kv(i).state(), g_.parts[i].state_idx); })));
    }

    ggml_tensor * with_markov(ggml_tensor * logits) {
        g_.previous = input(GGML_TYPE_F32, s_.block.markov_rank, logits->ne[1], "previous");
        // The rows of W1 and W2 are scaled like the logits, as in vLLM (models/qwen3_dspark.py).
        table(&DraftWeights::before, "markov_w1.weight", s_.block.markov_rank, s_.n_vocab);
        table(&DraftWeights::after, "markov_w2.weight", s_.block.markov_rank, s_.n_draft_vocab);
        ggml_tensor * bias = product(g_.previous, "markov_w2.weight", s_.n_draft_vocab);
        return ggml_add(ctx_, logits, scaled(bias, s_.logit_scale));
    }

    void give(ggml_tensor * logits) {
        g_.logits = logits;
        ggml_set_name(g_.logits, "logits");
        ggml_set_output(g_.logits);
        ggml_build_forward_expand(g_.gf, g_.logits);
        if (form_.n_top > 0) pick();
    }

    // Picks the likeliest tokens. The host gets log-probabilities by subtracting one number per row from the logits:
    // the best token's logit minus the logarithm of its probability.
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
            outputs_.push_back(t);
        }
    }

    const DraftSpec & s_;
    const DraftWeights & w_;
    const Rows rows_;
    const GraphShape shape_;
    const int n_rows_, n_out_;
    const GraphForm form_;
    DraftGraph & g_;
    ggml_context * ctx_;
    DraftTensors * declared_;
    std::vector<ggml_tensor *> inputs_, outputs_;
    ggml_tensor * embd_ = nullptr;  // [H, n_rows] f32, token embeddings
    ggml_tensor * fed_ = nullptr;   // [H, n_out], input of draft rows
};

}  // namespace

DraftMemory::DraftMemory(ggml_backend_buffer_type_t buft) : buft_(buft), alloc_(ggml_gallocr_new(buft)) {}

size_t n_bytes_of(const ggml_backend_buffer_ptr & buffer) {
    return buffer ? ggml_backend_buffer_get_size(buffer.get()) : 0;
}

size_t DraftMemory::n_bytes() const {
    return ggml_gallocr_get_buffer_size(alloc_.get(), 0) + n_bytes_of(inputs_) + n_bytes_of(outputs_);
}

void DraftMemory::fail_without_room() {
    ++epoch_;
    fail(ErrorKind::out_of_memory, "no room for the drafter's compute buffer in %s memory",
         ggml_backend_buft_name(buft_));
}

// Allocates these tensors contiguously. Returns a byte tensor that covers all of them.
ggml_tensor * DraftMemory::place(ggml_context * ctx, const std::vector<ggml_tensor *> & tensors,
                                 ggml_backend_buffer_ptr & buffer, const char * name) {
    if (tensors.empty()) return nullptr;
    // n_align is the largest alignment that CPUs, CUDA and Vulkan require. Each tensor must be aligned separately,
    // because devices bind each tensor separately.
    const size_t n_align = std::max<size_t>(256, ggml_backend_buft_get_alignment(buft_));
    std::vector<size_t> at;
    size_t n_bytes = 0;
    for (ggml_tensor * t : tensors) {
        at.push_back(n_bytes);
        n_bytes += GGML_PAD(ggml_backend_buft_get_alloc_size(buft_, t), n_align);
    }
    if (n_bytes_of(buffer) < n_bytes) {
        ++epoch_;
        buffer.reset();
        buffer.reset(ggml_backend_buft_alloc_buffer(buft_, n_bytes));
        if (!buffer) fail_without_room();
    }
    uint8_t * base = (uint8_t *)ggml_backend_buffer_get_base(buffer.get());
    for (size_t i = 0; i < tensors.size(); ++i) ggml_backend_tensor_alloc(buffer.get(), tensors[i], base + at[i]);
    ggml_tensor * all = ggml_new_tensor_1d(ctx, GGML_TYPE_I8, (int64_t)n_bytes);
    ggml_set_name(all, name);
    ggml_backend_tensor_alloc(buffer.get(), all, base);
    return all;
}

std::pair<ggml_tensor *, ggml_tensor *> DraftMemory::allocate(ggml_context * ctx, ggml_cgraph * gf,
                                                              const std::vector<ggml_tensor *> & inputs,
                                                              const std::vector<ggml_tensor *> & outputs) {
    ggml_tensor * packed = place(ctx, inputs, inputs_, "packed");
    ggml_tensor * picked = place(ctx, outputs, outputs_, "picked");
    const size_t n_before = ggml_gallocr_get_buffer_size(alloc_.get(), 0);
    if (!ggml_gallocr_alloc_graph(alloc_.get(), gf)) {
        alloc_.reset(ggml_gallocr_new(buft_));
        fail_without_room();
    }
    if (ggml_gallocr_get_buffer_size(alloc_.get(), 0) != n_before) ++epoch_;
    return {packed, picked};
}

static std::unique_ptr<DraftGraph> composed(const DraftSpec & spec, const DraftWeights & weights,
                                            const GraphShape & shape, const GraphForm & form, DraftMemory * memory,
                                            DraftTensors * declared) {
    auto g = std::make_unique<DraftGraph>();
    const size_t n_of_layer = 96 + 96 * (size_t)spec.block.n_taps;
    const size_t n_each = 80 + (16 + n_of_layer * spec.n_layer) * shape.parts.size();
    const size_t n_nodes = 8 * spec.n_aux() + n_each * (1 + shape.n_steps + !shape.block.empty());
    const size_t n_mem = ggml_tensor_overhead() * 2 * n_nodes + ggml_graph_overhead_custom(n_nodes, false);
    g->ctx.reset(ggml_init({n_mem, nullptr, /*no_alloc=*/true}));
    g->gf = ggml_new_graph_custom(g->ctx.get(), n_nodes, false);
    std::vector<Builder> builders;
    builders.reserve(2 + shape.n_steps);
    const auto add = [&](Rows rows, const GraphShape & s, DraftGraph & out) -> Builder & {
        out.gf = g->gf;
        return builders.emplace_back(spec, weights, rows, s, form, out, g->ctx.get(), declared);
    };
    if (!shape.block.empty()) {
        g->context = std::make_unique<DraftGraph>();
        add(Rows::context, {true, shape.parts}, *g->context).build();
        add(Rows::block, {false, shape.block}, *g).build();
    } else if (spec.is_block()) {
        add(shape.commit ? Rows::context : Rows::rescore, shape, *g).build();
    } else {
        add(shape.commit ? Rows::commit : Rows::extend, shape, *g).build();
    }
    for (int i = 0; i < shape.n_steps; ++i) {
        g->steps.push_back(std::make_unique<DraftGraph>());
        const GraphShape row{false, {{shape.parts[0].kv, 1, 1, shape.parts[0].n_kv}}};
        add(Rows::step, row, *g->steps.back()).build(&builders[i]);
    }
    std::vector<ggml_tensor *> inputs, outputs;
    for (const Builder & b : builders) {
        inputs.insert(inputs.end(), b.input_tensors().begin(), b.input_tensors().end());
        outputs.insert(outputs.end(), b.output_tensors().begin(), b.output_tensors().end());
    }
    if (!memory) return g;
    std::tie(g->packed, g->picked) = memory->allocate(g->ctx.get(), g->gf, inputs, outputs);
    for (auto & step : g->steps) step->packed = g->packed;
    if (g->context) g->context->packed = g->packed;
    g->epoch = memory->epoch();
    return g;
}

std::unique_ptr<DraftGraph> build_draft_graph(const DraftSpec & spec, const DraftWeights & weights,
                                              const GraphShape & shape, const GraphForm & form, DraftMemory & memory) {
    return composed(spec, weights, shape, form, &memory, nullptr);
}

DraftTensors draft_tensors(const DraftSpec & spec) {
    const GraphForm form;
    const DraftKv kv(spec, 1, 1 + spec.block.n_rows, GGML_TYPE_F16, /*buft=*/nullptr, form.keeps_states(spec));
    GraphShape shape{true, {{&kv, 1, spec.is_block() ? 0 : 1, kv.n_slots()}}};
    if (spec.is_block()) shape.block = {{&kv, spec.block.n_rows, spec.block.n_slots(), kv.n_slots()}};
    DraftTensors out;
    composed(spec, {}, shape, form, nullptr, &out);
    return out;
}

}  // namespace eaglecpp
