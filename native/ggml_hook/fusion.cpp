// SPDX-License-Identifier: MIT
#include "ggml_hook/fusion.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "kernels/attention.h"
#include "kernels/product_ops.h"

namespace eaglecpp::kernels {

const char step_tag = 0;

namespace {

// --- memory ---------------------------------------------------------------------------------------------------------

bool overlap(const ggml_tensor * a, const ggml_tensor * b) {
    const char *x = (const char *)a->data, *y = (const char *)b->data;
    return x < y + ggml_nbytes(b) && y < x + ggml_nbytes(a);
}

// Returns true if a and b share no memory, or if row i of tensor a is row i of tensor b. In both cases a thread may
// write rows of one tensor while other threads read other rows of the other tensor. dim_a and dim_b are the dimensions
// along which rows are counted.
bool keep_apart(const ggml_tensor * a, int dim_a, const ggml_tensor * b, int dim_b) {
    if (!overlap(a, b)) return true;
    return a->data == b->data && a->nb[dim_a] == b->nb[dim_b] && ggml_nbytes(a) == ggml_nbytes(b);
}

bool is_written_or_read(const ggml_tensor * node, const ggml_tensor * memory) {
    if (overlap(node, memory)) return true;
    for (const ggml_tensor * s : node->src) {
        if (s && s->data && overlap(s, memory)) return true;
    }
    return false;
}

// --- what fits ------------------------------------------------------------------------------------------------------

bool has_plain_rows(const ggml_tensor * t) {
    return t && t->type == GGML_TYPE_F32 && t->nb[0] == sizeof(float);
}

bool is_plain_sum(const ggml_tensor * t) {
    return t->op == GGML_OP_ADD && has_plain_rows(t) && has_plain_rows(t->src[0]) && has_plain_rows(t->src[1]) &&
           ggml_are_same_shape(t->src[0], t->src[1]);
}

// Returns true if `t` multiplies the result of `norm` by one row of weights.
bool is_scaling(const ggml_tensor * t, const ggml_tensor * norm) {
    if (t->op != GGML_OP_MUL || (t->src[0] != norm && t->src[1] != norm)) return false;
    const ggml_tensor * w = t->src[0] == norm ? t->src[1] : t->src[0];
    return has_plain_rows(t) && has_plain_rows(w) && w->ne[0] == norm->ne[0] && ggml_nrows(w) == 1 &&
           ggml_are_same_shape(t, norm);
}

bool is_ours_to_norm(const ggml_tensor * t) {
    return t->op == GGML_OP_RMS_NORM && has_plain_rows(t) && has_plain_rows(t->src[0]);
}

bool is_ours_to_gate(const ggml_tensor * t) {
    if (t->op != GGML_OP_GLU || !t->src[1]) return false;
    if (t->op_params[0] != GGML_GLU_OP_SWIGLU && t->op_params[0] != GGML_GLU_OP_GEGLU) return false;
    for (const ggml_tensor * s : {(const ggml_tensor *)t->src[0], (const ggml_tensor *)t->src[1]}) {
        if (!has_plain_rows(s) || !ggml_are_same_shape(s, t) || !keep_apart(s, 1, t, 1)) return false;
    }
    return has_plain_rows(t);
}

float rope_number(const ggml_tensor * t, int i) {
    float x;
    std::memcpy(&x, t->op_params + i, sizeof x);
    return x;
}

// Returns the sections of a head, or null if there are none. Each section rotates by a separate position (text, row,
// column and so on).
const int32_t * rope_sections(const ggml_tensor * t) {
    const int mode = t->op_params[2];
    return mode == GGML_ROPE_TYPE_MROPE || mode == GGML_ROPE_TYPE_IMROPE ? t->op_params + 11 : nullptr;
}

bool is_ours_to_rotate(const ggml_tensor * t) {
    if (t->op != GGML_OP_ROPE || !has_plain_rows(t) || !has_plain_rows(t->src[0])) return false;
    const int n_dims = t->op_params[1], mode = t->op_params[2], n_offset = t->op_params[15];
    const int32_t * sections = rope_sections(t);
    if ((mode != GGML_ROPE_TYPE_NORMAL && mode != GGML_ROPE_TYPE_NEOX && !sections) || n_offset != 0) return false;
    if (n_dims <= 0 || n_dims % 2 != 0 || n_dims > t->ne[0] || t->ne[3] != 1) return false;
    if (sections) {  // untrusted values, and section_of() divides by their sum
        const auto [lowest, highest] = std::minmax_element(sections, sections + GGML_MROPE_SECTIONS);
        if (*lowest < 0 || *highest <= 0 || *highest > n_dims) return false;
    }
    const ggml_tensor *positions = t->src[1], *factors = t->src[2];
    const int64_t n_positions = t->ne[2] * (sections ? GGML_MROPE_SECTIONS : 1);
    if (!positions || positions->type != GGML_TYPE_I32 || positions->ne[0] < n_positions) return false;
    return !factors || (factors->type == GGML_TYPE_F32 && factors->ne[0] >= n_dims / 2);
}

// Returns true if `t` stores one row of keys or values per token in an F16 cache.
bool is_plain_store(const ggml_tensor * t) {
    if (t->op != GGML_OP_SET_ROWS || t->type != GGML_TYPE_F16 || t->nb[0] != sizeof(uint16_t)) return false;
    const ggml_tensor *rows = t->src[0], *cells = t->src[1];
    return has_plain_rows(rows) && ggml_is_matrix(rows) && ggml_is_matrix(t) && t->ne[0] == rows->ne[0] &&
           cells->type == GGML_TYPE_I64 && ggml_is_vector(cells) && cells->nb[0] == sizeof(int64_t) &&
           cells->ne[0] == rows->ne[1];
}

// --- rows -----------------------------------------------------------------------------------------------------------

// Returns which of the token's several positions rotates the i-th pair.
int section_of(const int32_t * sections, bool is_interleaved, int i) {
    i %= std::accumulate(sections, sections + GGML_MROPE_SECTIONS, 0);
    if (is_interleaved) return i < 3 * sections[i % 3] ? i % 3 : 3;
    int k = 0;
    for (; k < 3 && i >= sections[k]; ++k) i -= sections[k];
    return k;
}

// Computes the angles as ggml does (ggml-cpu/ops.cpp: ggml_rope_cache_init, ggml_mrope_cache_init), including YaRN.
void fill_angles(const ggml_tensor * rope, int64_t token, float * out) {
    const int n_dims = rope->op_params[1], n_ctx_orig = rope->op_params[4];
    const float base = rope_number(rope, 5), freq_scale = rope_number(rope, 6), ext_factor = rope_number(rope, 7);
    const float attn_factor = rope_number(rope, 8);
    const float * factors = rope->src[2] ? (const float *)rope->src[2]->data : nullptr;
    float ends[2];
    ggml_rope_yarn_corr_dims(n_dims, n_ctx_orig, base, rope_number(rope, 9), rope_number(rope, 10), ends);
    const float theta_scale = std::pow(base, -2.0f / (float)n_dims);
    const int32_t *sections = rope_sections(rope), *positions = (const int32_t *)rope->src[1]->data + token;
    float thetas[GGML_MROPE_SECTIONS] = {};
    for (int k = 0; k < (sections ? GGML_MROPE_SECTIONS : 1); ++k) thetas[k] = (float)positions[k * rope->ne[2]];
    for (int i = 0; i < n_dims; i += 2) {
        const int section = sections ? section_of(sections, rope->op_params[2] == GGML_ROPE_TYPE_IMROPE, i / 2) : 0;
        const float far = thetas[section] / (factors ? factors[i / 2] : 1.0f), near = freq_scale * far;
        float angle = near, size = attn_factor;
        if (ext_factor != 0.0f) {
            const float y = ((float)(i / 2) - ends[0]) / std::max(0.001f, ends[1] - ends[0]);
            const float mix = (1.0f - std::min(1.0f, std::max(0.0f, y))) * ext_factor;
            angle = near * (1.0f - mix) + far * mix;
            size *= 1.0f + 0.1f * std::log(1.0f / freq_scale);
        }
        out[i] = std::cos(angle) * size;
        out[i + 1] = std::sin(angle) * size;
        for (float & theta : thetas) theta *= theta_scale;
    }
}

void rotate(const KernelTable & table, const ggml_tensor * rope, const Angles & angles, int64_t token) {
    const ggml_tensor * x = rope->src[0];
    const int n_dims = rope->op_params[1];
    const bool is_halves = rope->op_params[2] != GGML_ROPE_TYPE_NORMAL;
    for (int64_t head = 0; head < rope->ne[1]; ++head) {
        const float * from = (const float *)((const char *)x->data + head * x->nb[1] + token * x->nb[2]);
        float * to = (float *)((char *)rope->data + head * rope->nb[1] + token * rope->nb[2]);
        table.rotate_row(from, n_dims, is_halves, &angles.values[token * n_dims], to);
        if (from != to) std::copy(from + n_dims, from + rope->ne[0], to + n_dims);
    }
}

void store(const KernelTable & table, const ggml_tensor * op, int64_t token) {
    const int64_t cell = ((const int64_t *)op->src[1]->data)[token];
    if (cell < 0 || cell >= op->ne[1]) return;  // the cell does not exist
    table.halve_row(row_of<const float>(op->src[0], token), op->ne[0], row_of<uint16_t>(op, cell));
}

void compute_norm(const KernelTable & table, const Step & step, int64_t row) {
    const ggml_tensor *sum = step.sum, *norm = step.norm, *scaled = step.scaled;
    float eps;
    std::memcpy(&eps, norm->op_params, sizeof eps);
    const ggml_tensor * weights = !scaled ? nullptr : scaled->src[0] == norm ? scaled->src[1] : scaled->src[0];
    if (sum) {
        table.add_rows(row_of<const float>(sum->src[0], row), row_of<const float>(sum->src[1], row), sum->ne[0],
                       row_of<float>(sum, row));
    }
    const bool keeps_norm = !scaled || norm->data != scaled->data;
    table.norm_row(row_of<const float>(norm->src[0], row), norm->ne[0], eps,
                   weights ? (const float *)weights->data : nullptr, keeps_norm ? row_of<float>(norm, row) : nullptr,
                   scaled ? row_of<float>(scaled, row) : nullptr);
}

}  // namespace

// --- a step ---------------------------------------------------------------------------------------------------------

bool Step::is_step(const ggml_tensor * node) {
    return node->extra && *(const void * const *)node->extra == &step_tag;
}

// Each type of weights needs its own rounded rows, and memory for them.
size_t Step::work_size(const KernelTable & table, int n_threads) const {
    return products.empty() ? 0 : products.size() * product_work_size(table, n_threads, products[0]);
}

void Step::compute(const KernelTable & table, const ComputeParams & params) const {
    if (!ropes.empty() || !stores.empty()) {
        const int64_t n_tokens = ropes.empty() ? stores[0]->src[0]->ne[1] : ropes[0]->ne[2];
        const auto [first, end] = share(n_tokens, params.ith, params.nth);
        for (int64_t i = first; i < end; ++i) {
            if (fills_angles) fill_angles(angles->rope, i, &angles->values[i * angles->rope->op_params[1]]);
            for (const ggml_tensor * r : ropes) rotate(table, r, *angles, i);
            for (const ggml_tensor * s : stores) store(table, s, i);
        }
        return;
    }
    // Products with the same type of weights are adjacent. begins[k] is the index of the first product of the k-th
    // type.
    int begins[max_nodes + 1], n_types = 0;
    for (int k = 0; k < (int)products.size(); ++k) {
        if (k == 0 || products[k]->src[0]->type != products[k - 1]->src[0]->type) begins[n_types++] = k;
    }
    begins[n_types] = (int)products.size();
    const size_t n_each = products.empty() ? 0 : rounded_size(table, products[0]);
    uint8_t * const rounded = rounded_rows(params);
    const auto round = [&](int64_t row) {
        for (int k = 0; k < n_types; ++k)
            round_part(table, products[begins[k]], row, 0, products[0]->src[0]->ne[0], rounded + k * n_each);
    };
    if (gate) {
        // Threads share the parts of a row, because a gate may have only one row.
        constexpr int64_t n_part = 32;
        const int64_t n_in = gate->ne[0], n_parts = (n_in + n_part - 1) / n_part;
        auto [at, end] = share(n_parts * ggml_nrows(gate), params.ith, params.nth);
        for (int64_t next; at < end; at = next) {
            const int64_t row = at / n_parts, i = at % n_parts * n_part;
            next = std::min(end, (row + 1) * n_parts);
            const int64_t n = std::min(n_in - i, (next - at) * n_part);
            table.gate_row(ggml_get_glu_op(gate), row_of<const float>(gate->src[0], row) + i,
                           row_of<const float>(gate->src[1], row) + i, n, row_of<float>(gate, row) + i);
            if (!products.empty()) round_part(table, products[0], row, i, n, rounded);
        }
    } else {
        const int64_t n_rows = ggml_nrows(norm ? norm : products[0]->src[1]);
        const auto [first, end] = share(n_rows, params.ith, params.nth);
        for (int64_t i = first; i < end; ++i) {
            if (norm) compute_norm(table, *this, i);
            round(i);
        }
    }
    if (products.empty()) return;
    barrier(params);
    if (attention) table.fetch_cells(params, attention);
    for (int k = 0; k < n_types; ++k) {
        for (int j = begins[k]; j < begins[k + 1]; ++j) {
            multiply_rounded(table, params, products[j], rounded + k * n_each);
        }
    }
}

// --- finding steps --------------------------------------------------------------------------------------------------

void Fusion::find(ggml_cgraph * graph, IsPacked is_packed) {
    *this = {};
    is_packed_ = is_packed;
    const int n = ggml_graph_n_nodes(graph);
    nodes_.reserve(n);
    for (int i = 0; i < n; ++i) {
        ggml_tensor * t = ggml_graph_node(graph, i);
        const bool is_empty = t->op == GGML_OP_NONE || t->op == GGML_OP_RESHAPE || t->op == GGML_OP_VIEW ||
                              t->op == GGML_OP_PERMUTE || t->op == GGML_OP_TRANSPOSE;
        if (!is_empty && (t->flags & GGML_TENSOR_FLAG_COMPUTE) && ggml_nelements(t) > 0) nodes_.push_back(t);
    }
    is_taken_.assign(nodes_.size(), false);
    for (size_t i = 0; i < nodes_.size();) {
        ggml_tensor * t = nodes_[i];
        if (is_taken_[i]) {
            ++i;
        } else if (attention_fits(t)) {
            if (last_products_) last_products_->attention = t;
            last_products_ = nullptr;
            ++i;
        } else if (is_ours_to_norm(t)) {
            i = find_norm(i);
        } else if (is_ours_to_gate(t)) {
            i = find_gate(i);
        } else if (is_ours_to_rotate(t)) {
            i = find_ropes(i);
        } else {
            if (t->op == GGML_OP_MUL_MAT && is_packed_(t)) {
                Step step;
                find_products(i, step);
                if (step.products.size() > 1) leaders_.push_back({t, &steps_.emplace_back(step)});
            }
            ++i;
        }
    }
    for (size_t i = 0; i < nodes_.size(); ++i) {
        if (is_taken_[i]) taken_.push_back(nodes_[i]);
    }
    // Frees the memory, because many graphs are kept in memory and most of them never run again.
    std::vector<ggml_tensor *>().swap(nodes_);
    std::vector<bool>().swap(is_taken_);
}

Fusion::Marks::Marks(const Fusion & fusion) : fusion_(fusion) {
    for (ggml_tensor * t : fusion_.taken_) t->flags &= ~GGML_TENSOR_FLAG_COMPUTE;
    for (const auto & [node, step] : fusion_.leaders_) node->extra = (void *)step;
}

Fusion::Marks::~Marks() {
    for (ggml_tensor * t : fusion_.taken_) t->flags |= GGML_TENSOR_FLAG_COMPUTE;
    for (const auto & [node, step] : fusion_.leaders_) node->extra = nullptr;
}

// Groups a norm with the nodes before and after it. If the multiplication after the norm cannot join the step, ggml
// computes both nodes. Returns the index of the next node to look at.
size_t Fusion::find_norm(size_t i) {
    ggml_tensor * norm = nodes_[i];
    ggml_tensor * next = i + 1 < nodes_.size() ? nodes_[i + 1] : nullptr;
    const bool is_used = next && next->op == GGML_OP_MUL && (next->src[0] == norm || next->src[1] == norm);
    if (is_used && !(is_scaling(next, norm) && keep_apart(norm->src[0], 1, next, 1))) return i + 1;
    Step & step = steps_.emplace_back();
    step.norm = norm;
    if (is_used) step.scaled = next;
    ggml_tensor * result = is_used ? next : norm;
    const size_t behind = i + (is_used ? 2 : 1);
    if (i > 0 && !is_taken_[i - 1] && nodes_[i - 1] == norm->src[0] && is_plain_sum(nodes_[i - 1])) {
        ggml_tensor * sum = nodes_[i - 1];
        const auto is_apart = [&](const ggml_tensor * read) {
            return keep_apart(read, 1, sum, 1) && keep_apart(read, 1, norm, 1) && keep_apart(read, 1, result, 1);
        };
        if (is_apart(sum->src[0]) && is_apart(sum->src[1])) {
            step.sum = sum;
            is_taken_[i - 1] = true;
        }
    }
    if (behind < nodes_.size() && is_packed_(nodes_[behind]) && nodes_[behind]->op == GGML_OP_MUL_MAT &&
        nodes_[behind]->src[1] == result) {
        find_products(behind, step);
        last_products_ = &step;
        is_taken_[i] = is_taken_[behind - 1] = true;
        leaders_.push_back({nodes_[behind], &step});
        return behind + 1;
    }
    if (is_used) is_taken_[i] = true;
    leaders_.push_back({result, &step});
    return behind;
}

size_t Fusion::find_gate(size_t i) {
    Step & step = steps_.emplace_back();
    step.gate = nodes_[i];
    ggml_tensor * next = i + 1 < nodes_.size() ? nodes_[i + 1] : nullptr;
    if (!next || next->op != GGML_OP_MUL_MAT || next->src[1] != step.gate || !is_packed_(next)) {
        leaders_.push_back({step.gate, &step});
        return i + 1;
    }
    step.products.push_back(next);
    is_taken_[i] = true;
    leaders_.push_back({next, &step});
    return i + 2;
}

// Returns true if node j may be computed before all nodes between it and node i.
bool Fusion::can_move(size_t i, size_t j) const {
    const ggml_tensor * p = nodes_[j];
    for (size_t k = i + 1; k < j; ++k) {
        if (is_taken_[k]) continue;
        if (is_written_or_read(nodes_[k], p) || overlap(nodes_[k], p->src[1])) return false;
    }
    return true;
}

// Adds later products of the same operand to the step of the first product.
void Fusion::find_products(size_t i, Step & step) {
    constexpr size_t n_ahead = 8;
    ggml_tensor * first = nodes_[i];
    step.products.push_back(first);
    for (size_t j = i + 1; j < std::min(nodes_.size(), i + 1 + n_ahead); ++j) {
        ggml_tensor * p = nodes_[j];
        if (step.products.size() == Step::max_nodes) break;
        if (is_taken_[j] || p->op != GGML_OP_MUL_MAT || p->src[1] != first->src[1] || !is_packed_(p)) continue;
        if (overlap(p, first->src[1]) || !can_move(i, j)) continue;
        step.products.push_back(p);
        is_taken_[j] = true;
    }
}

// Groups a rotation with later rotations and stores of the same tokens.
size_t Fusion::find_ropes(size_t i) {
    Step & step = steps_.emplace_back();
    step.angles = known_angles(nodes_[i]);
    step.fills_angles = !step.angles;
    if (step.fills_angles) {
        const size_t n = (size_t)nodes_[i]->ne[2] * nodes_[i]->op_params[1];
        step.angles = &angles_.emplace_back(Angles{nodes_[i], std::vector<float>(n)});
    }
    step.ropes.push_back(nodes_[i]);
    const int64_t n_tokens = nodes_[i]->ne[2];
    size_t last_at = i;
    // Returns true if the next node can join the step. `dim` is the dimension of the node's tokens.
    const auto is_apart = [&](const ggml_tensor * to, int dim) {
        const ggml_tensor * from = to->src[0];
        const auto is_apart_from = [&](const ggml_tensor * other, int other_dim) {
            return keep_apart(other, other_dim, from, dim) && keep_apart(other, other_dim, to, dim) &&
                   keep_apart(other->src[0], other_dim, to, dim);
        };
        return std::all_of(step.ropes.begin(), step.ropes.end(), [&](auto * r) { return is_apart_from(r, 2); }) &&
               std::all_of(step.stores.begin(), step.stores.end(), [&](auto * s) { return is_apart_from(s, 1); });
    };
    size_t j = i + 1;
    for (; j < nodes_.size(); ++j) {
        ggml_tensor * t = nodes_[j];
        if (is_taken_[j]) continue;
        if (step.ropes.size() == Step::max_nodes || step.stores.size() == Step::max_nodes) break;
        if (is_ours_to_rotate(t) && t->ne[2] == n_tokens) {
            if (known_angles(t) != step.angles || !is_apart(t, 2)) break;
            step.ropes.push_back(t);
        } else if (is_plain_store(t) && t->src[0]->ne[1] == n_tokens) {
            if (!is_apart(t, 1)) break;
            step.stores.push_back(t);
        } else {
            break;
        }
        is_taken_[last_at] = true;
        last_at = j;
    }
    leaders_.push_back({nodes_[last_at], &step});
    return j;
}

Angles * Fusion::known_angles(const ggml_tensor * rope) {
    for (Angles & a : angles_) {
        const ggml_tensor * r = a.rope;
        const bool is_same = r->src[1] == rope->src[1] && r->src[2] == rope->src[2] && r->ne[2] == rope->ne[2] &&
                             std::equal(r->op_params + 1, r->op_params + 15, rope->op_params + 1);
        if (is_same) return &a;
    }
    return nullptr;
}

}  // namespace eaglecpp::kernels
