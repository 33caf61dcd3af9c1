// SPDX-License-Identifier: MIT
#include "ggml_hook/fusion.h"

#include <algorithm>
#include <cstring>

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
// write rows of one tensor while other threads read other rows of the other tensor.
bool keep_apart(const ggml_tensor * a, const ggml_tensor * b) {
    if (!overlap(a, b)) return true;
    return a->data == b->data && a->nb[1] == b->nb[1] && ggml_nbytes(a) == ggml_nbytes(b);
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

// --- rows -----------------------------------------------------------------------------------------------------------

void compute_norm(const KernelTable & table, const Step & step, int64_t row) {
    const ggml_tensor *norm = step.norm, *scaled = step.scaled;
    float eps;
    std::memcpy(&eps, norm->op_params, sizeof eps);
    const ggml_tensor * weights = !scaled ? nullptr : scaled->src[0] == norm ? scaled->src[1] : scaled->src[0];
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
    // Products with the same type of weights are adjacent. begins[k] is the index of the first product of the k-th
    // type.
    int begins[max_nodes + 1], n_types = 0;
    for (int k = 0; k < (int)products.size(); ++k) {
        if (k == 0 || products[k]->src[0]->type != products[k - 1]->src[0]->type) begins[n_types++] = k;
    }
    begins[n_types] = (int)products.size();
    const size_t n_each = products.empty() ? 0 : rounded_size(table, products[0]);
    uint8_t * const rounded = rounded_rows(params);
    const auto [first, end] = share(ggml_nrows(norm), params.ith, params.nth);
    for (int64_t row = first; row < end; ++row) {
        compute_norm(table, *this, row);
        for (int k = 0; k < n_types; ++k) round_row(table, products[begins[k]], row, rounded + k * n_each);
    }
    if (products.empty()) return;
    barrier(params);
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
    for (size_t i = 0; i < nodes_.size();) {
        i = is_ours_to_norm(nodes_[i]) ? find_norm(i) : i + 1;
    }
    // Frees the memory, because many graphs are kept in memory and most of them never run again.
    std::vector<ggml_tensor *>().swap(nodes_);
}

Fusion::Marks::Marks(const Fusion & fusion) : fusion_(fusion) {
    for (ggml_tensor * t : fusion_.taken_) t->flags &= ~GGML_TENSOR_FLAG_COMPUTE;
    for (const auto & [node, step] : fusion_.leaders_) node->extra = (void *)step;
}

Fusion::Marks::~Marks() {
    for (ggml_tensor * t : fusion_.taken_) t->flags |= GGML_TENSOR_FLAG_COMPUTE;
    for (const auto & [node, step] : fusion_.leaders_) node->extra = nullptr;
}

// Groups a norm with the nodes after it. If the multiplication after the norm cannot join the step, ggml
// computes both nodes. Returns the index of the next node to look at.
size_t Fusion::find_norm(size_t i) {
    ggml_tensor * norm = nodes_[i];
    ggml_tensor * next = i + 1 < nodes_.size() ? nodes_[i + 1] : nullptr;
    const bool is_used = next && next->op == GGML_OP_MUL && (next->src[0] == norm || next->src[1] == norm);
    if (is_used && !(is_scaling(next, norm) && keep_apart(norm->src[0], next))) return i + 1;
    Step & step = steps_.emplace_back();
    step.norm = norm;
    if (is_used) step.scaled = next;
    ggml_tensor * result = is_used ? next : norm;
    const size_t behind = i + (is_used ? 2 : 1);
    if (behind < nodes_.size() && is_packed_(nodes_[behind]) && nodes_[behind]->op == GGML_OP_MUL_MAT &&
        nodes_[behind]->src[1] == result) {
        find_products(behind, step);
        taken_.insert(taken_.end(), {norm, result});
        leaders_.push_back({nodes_[behind], &step});
        return behind + 1;
    }
    if (is_used) taken_.push_back(norm);
    leaders_.push_back({result, &step});
    return behind;
}

// Returns true if node j may be computed before all nodes between it and node i.
bool Fusion::can_move(size_t i, size_t j) const {
    const ggml_tensor * p = nodes_[j];
    for (size_t k = i + 1; k < j; ++k) {
        if (std::count(taken_.begin(), taken_.end(), nodes_[k]) > 0) continue;
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
        if (p->op != GGML_OP_MUL_MAT || p->src[1] != first->src[1] || !is_packed_(p)) continue;
        if (overlap(p, first->src[1]) || !can_move(i, j)) continue;
        step.products.push_back(p);
        taken_.push_back(p);
    }
}

}  // namespace eaglecpp::kernels
