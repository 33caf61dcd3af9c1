// SPDX-License-Identifier: MIT
#include <atomic>
#include <new>
#include <utility>

#include "base/recent.h"
#include "ggml_hook/fusion.h"
#include "ggml_hook/hook_state.h"
#include "kernels/attention.h"
#include "kernels/product_ops.h"

namespace eaglecpp::kernels {

namespace {

// The kernel of a node, with its scratch memory.
class Traits : public abi::TensorTraits {
  public:
    using Size = size_t (*)(int n_threads, const ggml_tensor * op);
    using Compute = void (*)(const ComputeParams & params, ggml_tensor * op);
    Traits(Size size, Compute compute) : size_(size), compute_(compute) {}
    bool work_size(int n_threads, const ggml_tensor * op, size_t & size) override {
        size = size_(n_threads, op);
        return true;
    }
    bool compute_forward(ComputeParams * params, ggml_tensor * op) override {
        compute_(*params, op);
        return true;
    }

  private:
    Size size_;
    Compute compute_;
};

// The kernel of an operation that ggml could also compute. The thread that starts a graph asks for the work sizes. If
// this thread is inside a ComputeScope, the node's `extra` records this for the computing threads. The CPU backend uses
// `extra` only for weights, so the field is free.
class Tagged : public Traits {
  public:
    using Traits::Traits;
    bool work_size(int n_threads, const ggml_tensor * op, size_t & size) override {
        const_cast<ggml_tensor *>(op)->extra = scope.is_computing ? this : nullptr;
        return scope.is_computing && Traits::work_size(n_threads, op, size);
    }
    bool compute_forward(ComputeParams * params, ggml_tensor * op) override {
        return op->extra == this && Traits::compute_forward(params, op);
    }
};

// Disables UBSan here. It would report an error, because ggml's classes and the classes in ggml_abi.h have different
// names.
#if defined(__GNUC__)
#define FOREIGN_CLASS __attribute__((no_sanitize("vptr")))
#else
#define FOREIGN_CLASS
#endif

// Replaces one of ggml's extra buffer types, and calls it for all nodes that we do not compute.
class Extra : public abi::ExtraBufferType {
  public:
    FOREIGN_CLASS bool supports_op(ggml_backend_dev_t dev, const ggml_tensor * op) override {
        return ggmls->supports_op(dev, op);
    }

    FOREIGN_CLASS abi::TensorTraits * get_tensor_traits(const ggml_tensor * op) override {
        abi::TensorTraits * ours = traits(op);
        return ours ? ours : ggmls->get_tensor_traits(op);
    }

    abi::ExtraBufferType * ggmls = nullptr;

  private:
    abi::TensorTraits * traits(const ggml_tensor * op) {
        switch (op->op) {
            case GGML_OP_MUL:
            case GGML_OP_RMS_NORM:
                return Step::is_step(op) ? &steps_ : nullptr;
            case GGML_OP_MUL_MAT:
            case GGML_OP_MUL_MAT_ID:
                if (Step::is_step(op)) return &steps_;
                if (is_ours(op->src[0])) return &packed_;
                return is_for(op, dense_) && can_multiply_dense(*ours.table, op) ? &dense_ : nullptr;
            case GGML_OP_FLASH_ATTN_EXT:
                return is_for(op, attention_) && ours.table->attention && attention_fits(op) ? &attention_ : nullptr;
            default:
                return nullptr;
        }
    }

    // Returns true if a thread inside a ComputeScope is planning the node, or has planned it.
    static bool is_for(const ggml_tensor * op, const Tagged & tagged) {
        return scope.is_computing || op->extra == &tagged;
    }

    // Products of packed weights. No other traits can compute them.
    Traits packed_{[](int n, const ggml_tensor * op) { return product_work_size(*ours.table, n, op); },
                   [](const ComputeParams & params, ggml_tensor * op) { multiply_packed(*ours.table, params, op); }};
    // Computes all nodes of a step in one call (fusion.h).
    Traits steps_{[](int n, const ggml_tensor * op) { return Step::of(op).work_size(*ours.table, n); },
                  [](const ComputeParams & params, ggml_tensor * op) { Step::of(op).compute(*ours.table, params); }};
    Tagged dense_{dense_work_size,
                  [](const ComputeParams & params, ggml_tensor * op) { multiply_dense(*ours.table, params, op); }};
    Tagged attention_{[](int n, const ggml_tensor * op) { return ours.table->attention_work_size(n, op); },
                      [](const ComputeParams & params, ggml_tensor * op) { ours.table->attention(params, op); }};
};

std::atomic<GraphCompute> compute_of_ggml_{nullptr};

bool is_packed_product(const ggml_tensor * node) {
    return (node->op == GGML_OP_MUL_MAT || node->op == GGML_OP_MUL_MAT_ID) && is_ours(node->src[0]);
}

// Runs ggml's graph_compute. ggml's CPU backend frees its work buffer before it allocates a larger buffer. If the
// allocation fails, the backend later writes into the freed buffer and frees it again.
ggml_status compute_by_ggml(ggml_backend_t backend, ggml_cgraph * graph) {
    try {
        return compute_of_ggml_.load()(backend, graph);
    } catch (const std::bad_alloc &) {
        auto & cpu = *(abi::CpuContext *)((abi::Backend *)backend)->context;
        cpu.work_data = nullptr;
        cpu.work_size = 0;
        return GGML_STATUS_ALLOC_FAILED;
    }
}

ggml_status compute_graph(ggml_backend_t backend, ggml_cgraph * graph) {
    if (!scope.is_computing) return compute_by_ggml(backend, graph);
    // ggml changes a graph's `uid` whenever the graph changes; 0 = unknown.
    thread_local Recent<uint64_t, Fusion> fusions(64);
    const uint64_t uid = ((abi::Graph *)graph)->uid;
    const Fusion * fusion = uid == 0 ? nullptr : fusions.find(uid);
    try {
        if (!fusion) {
            Fusion found;
            found.find(graph, is_packed_product);
            fusion = &fusions.keep(uid, std::move(found));
        }
    } catch (const std::bad_alloc &) {
        return GGML_STATUS_ALLOC_FAILED;
    }
    for (int i = 0; scope.chosen && i < ggml_graph_n_nodes(graph); ++i) {
        ggml_tensor * node = ggml_graph_node(graph, i);
        if (is_packed_product(node) && node->ne[0] == scope.chosen->n_out) compute_only(node, scope.chosen);
    }
    const Fusion::Marks marks(*fusion);
    return compute_by_ggml(backend, graph);
}

}  // namespace

abi::ExtraBufferType * node_traits_before(abi::ExtraBufferType * ggmls) {
    static Extra extra;
    extra.ggmls = ggmls;
    return &extra;
}

GraphCompute compute_in_place_of(GraphCompute of_ggml, bool fuses) {
    if (of_ggml != compute_graph && of_ggml != compute_by_ggml) compute_of_ggml_ = of_ggml;
    return fuses ? compute_graph : compute_by_ggml;
}

}  // namespace eaglecpp::kernels
