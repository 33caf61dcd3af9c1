// SPDX-License-Identifier: MIT
#include "kernels/product_ops.h"

#include <ggml-backend.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <tuple>
#include <utility>

namespace eaglecpp::kernels {

namespace {

// Returns true if every thread rounds all rows itself. With few inputs or a single row, this takes less time than
// waiting for the other threads.
bool rounds_privately(const ggml_tensor * op) {
    constexpr int64_t n_private = 3072;
    const int64_t n_rows = ggml_nrows(op->src[1]);
    return n_rows == 1 || n_rows * op->src[0]->ne[0] <= n_private;
}

int64_t n_groups(const ggml_tensor * w) {
    return (w->ne[1] + n_group - 1) / n_group;
}

constexpr int n_params = GGML_MAX_OP_PARAMS / sizeof(int32_t);
constexpr int chosen_param = n_params - 4;  // the parameters before Pieces' number hold a pointer to ChosenGroups

const ChosenGroups * chosen_groups(const ggml_tensor * op) {
    const ChosenGroups * chosen;
    std::memcpy(&chosen, op->op_params + chosen_param, sizeof(chosen));
    return chosen;
}

// Sets this thread's share of the outputs between the chosen groups to -inf.
void fill_between(const ChosenGroups & chosen, const ComputeParams & params, ggml_tensor * op) {
    const auto & groups = chosen.groups;
    const auto [first, end] = share((int64_t)groups.size(), params.ith, params.nth);
    for (int64_t row = 0; row < ggml_nrows(op); ++row) {
        float * out = row_of<float>(op, row);
        int64_t from = first == 0 ? 0 : (groups[first - 1] + 1) * n_group;
        for (int64_t i = first; i < end; from = (groups[i++] + 1) * n_group) {
            std::fill(out + from, out + groups[i] * n_group, -INFINITY);
        }
        if (end == (int64_t)groups.size()) std::fill(out + std::min(from, op->ne[0]), out + op->ne[0], -INFINITY);
    }
}

// Divides [0, n) into pieces for the threads of one operation. The first round has one piece per thread and covers half
// of the work, the second round covers half of the rest, and so on. A free thread takes the next piece. So a thread
// that is slow for a while (shared core, distant memory) hardly delays the other threads. Each thread has a section of
// [0, n). Every round has one piece of each section, right after the piece of the previous round. So threads of equal
// speed continue at the weights that they prefetched. Products of few weights have one round, because counting pieces
// takes longer than waiting: 2 to 4 % of a round on models of 135 million weights.
//
// The number of taken pieces is stored in the last parameter of the node, which no product uses. The number starts at 0
// and returns to 0 when no thread finds another piece. So no thread waits at the start, and a graph can be computed
// many times with any number of threads.
class Pieces {
  public:
    Pieces(ggml_tensor * op, const ComputeParams & params, int64_t n, size_t n_bytes)
        : taken_(*(std::atomic<int32_t> *)&op->op_params[n_params - 1]), ith_(params.ith), nth_(params.nth), n_(n) {
        for (size_t least = n_bytes_least * nth_; nth_ > 1 && n_rounds_ < 5 && n_bytes > least; least *= 2) ++n_rounds_;
    }
    // Returns the next piece, or false if no piece is left. Every thread must call this function until it returns
    // false.
    bool next(int64_t & first, int64_t & end) {
        if (n_rounds_ == 1) {
            std::tie(first, end) = share(std::exchange(n_, 0), ith_, nth_);
            return first < end;
        }
        do {
            const int32_t i = taken_.fetch_add(1, std::memory_order_relaxed);
            if (i >= n_rounds_ * nth_) {
                if (i == n_rounds_ * nth_ + nth_ - 1) taken_.store(0, std::memory_order_relaxed);
                return false;
            }
            const int round = i / nth_;
            std::tie(first, end) = share(n_, i % nth_, nth_);
            const int64_t n = end - first;
            if (round + 1 < n_rounds_) end -= n >> (round + 1);
            first += n - (n >> round);
        } while (first == end);
        return true;
    }

  private:
    static constexpr size_t n_bytes_least = 128 << 10;  // minimum bytes of weights per thread in each round
    static_assert(sizeof(std::atomic<int32_t>) == sizeof(int32_t));
    std::atomic<int32_t> & taken_;
    int ith_, nth_, n_rounds_ = 1;
    int64_t n_;
};

bool is_experts(const ggml_tensor * op) {
    return op->op == GGML_OP_MUL_MAT_ID;
}

// Returns the number of matrices that each row is multiplied with.
int64_t n_used(const ggml_tensor * op) {
    return is_experts(op) ? op->src[2]->ne[0] : 1;
}

// Returns the total number of rows of all matrices.
int64_t n_listed(const ggml_tensor * op) {
    return is_experts(op) ? op->src[2]->ne[0] * op->src[2]->ne[1] : ggml_nrows(op->src[1]);
}

// Returns the size of a thread's lists: pointers to rows and to their results and, for experts, the assignment of rows.
// The lists are at the end of the work buffer, so no thread allocates memory for them.
size_t list_size(const ggml_tensor * op) {
    size_t n = 2 * sizeof(void *) * n_listed(op);
    if (is_experts(op)) n += 2 * sizeof(int32_t) * n_listed(op) + sizeof(int64_t) * (op->src[0]->ne[2] + 1);
    return (n + 63) / 64 * 64;
}

// The rows of activations that are multiplied with one matrix, and pointers to the rows' results.
template <class Row>
struct RowList {
    RowList(const ComputeParams & params, const ggml_tensor * op) {
        const uintptr_t end = ((uintptr_t)params.wdata + params.wsize) & ~(uintptr_t)63;
        rows = (const Row **)(end - (params.ith + 1) * list_size(op));
        out = (float **)(rows + n_listed(op));
    }
    void clear() { n = 0; }
    void add(const Row * row, float * result) { rows[n] = row, out[n++] = result; }
    void * behind(const ggml_tensor * op) const { return out + n_listed(op); }

    const Row ** rows;
    float ** out;
    int n = 0;
};

// Calls run(matrix index, list) for each matrix that is multiplied with rows. This is the only matrix, or each chosen
// expert. row_at(i) is row i of src1.
template <class Row, class RowAt, class Run>
void for_each_matrix(ggml_tensor * op, RowList<Row> & list, const RowAt & row_at, const Run & run) {
    const ggml_tensor * x = op->src[1];
    if (!is_experts(op)) {
        list.clear();
        for (int64_t i = 0; i < ggml_nrows(x); ++i) list.add(row_at(i), row_of<float>(op, i));
        run(0, list);
        return;
    }
    const ggml_tensor * ids = op->src[2];  // [n_used, n_tokens]
    const int64_t n_used = ids->ne[0], n_tokens = ids->ne[1], n_experts = op->src[0]->ne[2];
    const int64_t n_chosen = n_used * n_tokens;
    int64_t * end = (int64_t *)list.behind(op);
    int32_t *chosen = (int32_t *)(end + n_experts + 1), *order = chosen + n_chosen;
    std::fill_n(end, n_experts + 1, (int64_t)0);
    for (int64_t t = 0; t < n_tokens; ++t) {
        for (int64_t u = 0; u < n_used; ++u) {
            const int32_t e = *(const int32_t *)((const char *)ids->data + t * ids->nb[1] + u * ids->nb[0]);
            chosen[t * n_used + u] = e;
            if (e >= 0 && e < n_experts) ++end[e + 1];
        }
    }
    for (int64_t e = 0; e < n_experts; ++e) end[e + 1] += end[e];
    int64_t * at = end;  // first entry of each expert; after the loop below, its end
    for (int64_t i = 0; i < n_chosen; ++i) {
        if (chosen[i] >= 0 && chosen[i] < n_experts) order[at[chosen[i]]++] = (int32_t)i;
    }
    int64_t first = 0;
    for (int64_t e = 0; e < n_experts; first = at[e], ++e) {
        if (at[e] == first) continue;
        list.clear();
        for (int64_t i = first; i < at[e]; ++i) {
            const int64_t t = order[i] / n_used, u = order[i] % n_used;
            list.add(row_at(t * x->ne[1] + u % x->ne[1]), (float *)((char *)op->data + u * op->nb[1] + t * op->nb[2]));
        }
        run(e, list);
    }
}

// Returns true if the kernels can read the operands of a product. The type of the weights is not checked.
bool is_plain_product(const ggml_tensor * op) {
    if (op->op != GGML_OP_MUL_MAT && op->op != GGML_OP_MUL_MAT_ID) return false;
    const ggml_tensor * x = op->src[1];
    if (op->type != GGML_TYPE_F32 || op->nb[0] != sizeof(float)) return false;
    if (!x || x->type != GGML_TYPE_F32 || x->nb[0] != sizeof(float) || x->ne[0] != op->src[0]->ne[0]) return false;
    if (is_experts(op)) return op->src[2] && op->src[2]->type == GGML_TYPE_I32 && x->ne[3] == 1;
    return op->src[0]->ne[2] == 1 && op->src[0]->ne[3] == 1 && op->op_params[1] == 0;  // [1]: a hint for other kernels
}

}  // namespace

bool can_pack(const KernelTable & table, const ggml_tensor * w) {
    const PackedProduct * p = table.packed(w->type);
    return p && w->ne[0] % p->n_unit == 0 && w->ne[3] == 1 && ggml_is_contiguous(w);
}

size_t packed_bytes(const KernelTable & table, const ggml_tensor * w) {
    return table.packed(w->type)->group_bytes(w->ne[0]) * n_groups(w) * w->ne[2];
}

int64_t packed_groups(const ggml_tensor * w) {
    return n_groups(w) * w->ne[2];
}

void pack_groups(const KernelTable & table, const ggml_tensor * w, const void * data, uint8_t * packed, int64_t g0,
                 int64_t g1) {
    const PackedProduct & p = *table.packed(w->type);
    const size_t n_group_bytes = p.group_bytes(w->ne[0]);
    const int64_t n_matrix = n_groups(w);
    for (int64_t g = g0; g < g1; ++g) {
        const int64_t row = g % n_matrix * n_group;
        const uint8_t * rows = (const uint8_t *)data + g / n_matrix * w->nb[2] + row * w->nb[1];
        const int n_rows = (int)std::min<int64_t>(n_group, w->ne[1] - row);
        p.pack(rows, w->nb[1], n_rows, w->ne[0], packed + g * n_group_bytes);
    }
}

bool can_multiply_packed(const KernelTable & table, const ggml_tensor * op) {
    return is_plain_product(op) && can_pack(table, op->src[0]);
}

bool can_multiply_dense(const KernelTable & table, const ggml_tensor * op) {
    if (!is_plain_product(op)) return false;
    const ggml_tensor * w = op->src[0];
    if (!table.dense(w->type) || w->ne[3] != 1 || w->nb[0] != ggml_type_size(w->type)) return false;
    const ggml_backend_buffer_t buffer = w->view_src ? w->view_src->buffer : w->buffer;
    if (!buffer) return false;
    const ggml_backend_buffer_usage usage = ggml_backend_buffer_get_usage(buffer);
    // Accepts weights, and LoRA factors, whose buffers llama.cpp does not mark as weights. Rejects caches, which
    // products read through views.
    return usage == GGML_BACKEND_BUFFER_USAGE_WEIGHTS || (usage == GGML_BACKEND_BUFFER_USAGE_ANY && !w->view_src);
}

size_t product_work_size(const KernelTable & table, int n_threads, const ggml_tensor * op) {
    const int64_t n_rows = ggml_nrows(op->src[1]);
    return table.row_bytes(op->src[0]->ne[0]) * (rounds_privately(op) ? n_rows * n_threads : n_rows) + 64 +
           dense_work_size(n_threads, op);
}

size_t dense_work_size(int n_threads, const ggml_tensor * op) {
    return n_threads * list_size(op) + 64;
}

size_t rounded_size(const KernelTable & table, const ggml_tensor * op) {
    return (table.row_bytes(op->src[0]->ne[0]) * ggml_nrows(op->src[1]) + 63) / 64 * 64;
}

void round_row(const KernelTable & table, const ggml_tensor * op, int64_t row, uint8_t * rounded) {
    const ggml_tensor * w = op->src[0];
    table.packed(w->type)->quantize(row_of<const float>(op->src[1], row), w->ne[0],
                                    rounded + row * table.row_bytes(w->ne[0]));
}

// Rounds the rows of activations. If the threads share the rows, waits for the other threads; otherwise rounds this
// thread's own copy.
static uint8_t * round_rows(const KernelTable & table, const ComputeParams & params, const ggml_tensor * op) {
    const int64_t n_rows = ggml_nrows(op->src[1]);
    uint8_t * rounded = rounded_rows(params);
    const bool is_own = rounds_privately(op);
    if (is_own) rounded += params.ith * n_rows * table.row_bytes(op->src[0]->ne[0]);
    const auto [first, end] = is_own ? std::pair<int64_t, int64_t>(0, n_rows) : share(n_rows, params.ith, params.nth);
    for (int64_t i = first; i < end; ++i) round_row(table, op, i, rounded);
    if (!is_own) barrier(params);
    return rounded;
}

void multiply_rounded(const KernelTable & table, const ComputeParams & params, ggml_tensor * op,
                      const uint8_t * rounded) {
    const ggml_tensor * w = op->src[0];
    const PackedProduct & p = *table.packed(w->type);
    const size_t n_row_bytes = table.row_bytes(w->ne[0]);
    const ChosenGroups * chosen = chosen_groups(op);
    const int64_t n = chosen ? (int64_t)chosen->groups.size() : n_groups(w);
    const size_t n_group_bytes = p.group_bytes(w->ne[0]), n_matrix_bytes = n_group_bytes * n_groups(w);
    RowList<uint8_t> list(params, op);
    const auto multiply = [&](int64_t g0, int64_t g1) {
        for_each_matrix(
            op, list, [&](int64_t i) { return rounded + i * n_row_bytes; },
            [&](int64_t matrix, const RowList<uint8_t> & l) {
                p.multiply((const uint8_t *)w->data + matrix * n_matrix_bytes, w->ne[0], w->ne[1], g0, g1, l.rows, l.n,
                           l.out);
            });
    };
    if (chosen) fill_between(*chosen, params, op);
    Pieces pieces(op, params, n, n_group_bytes * n * n_used(op));
    for (int64_t first, end; pieces.next(first, end);) {
        if (!chosen) multiply(first, end);
        for (int64_t i = first, next; chosen && i < end; i = next) {
            for (next = i + 1; next < end && chosen->groups[next] == chosen->groups[next - 1] + 1;) ++next;
            multiply(chosen->groups[i], chosen->groups[next - 1] + 1);
        }
    }
}

void compute_only(ggml_tensor * op, const ChosenGroups * chosen) {
    std::memcpy(op->op_params + chosen_param, &chosen, sizeof(chosen));
}

void multiply_packed(const KernelTable & table, const ComputeParams & params, ggml_tensor * op) {
    multiply_rounded(table, params, op, round_rows(table, params, op));
}

void multiply_dense(const KernelTable & table, const ComputeParams & params, ggml_tensor * op) {
    const ggml_tensor *w = op->src[0], *x = op->src[1];
    const DenseProduct multiply = table.dense(w->type);
    // A thread takes eight outputs at a time, because threads that write to the same cache lines slow each other down.
    constexpr int64_t n_step = 8;
    RowList<float> list(params, op);
    Pieces pieces(op, params, (w->ne[1] + n_step - 1) / n_step, w->nb[1] * w->ne[1] * n_used(op));
    for (int64_t first, end; pieces.next(first, end);) {
        for_each_matrix(
            op, list, [&](int64_t i) { return row_of<const float>(x, i); },
            [&, o0 = first * n_step, o1 = std::min(w->ne[1], end * n_step)](int64_t matrix, const RowList<float> & l) {
                multiply((const uint8_t *)w->data + matrix * w->nb[2], w->nb[1], w->ne[0], o0, o1, l.rows, l.n, l.out);
            });
    }
}

}  // namespace eaglecpp::kernels
