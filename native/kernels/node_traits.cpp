// SPDX-License-Identifier: MIT
#include <atomic>
#include <new>

#include "kernels/attention.h"
#include "kernels/fusion.h"
#include "kernels/hook_state.h"
#include "kernels/product_ops.h"
#include "kernels/weights_buffer.h"

namespace eaglecpp::kernels {

namespace {

// Products of packed weights: nobody else can compute these.
class Packed : public abi::TensorTraits {
  public:
    bool work_size(int n_threads, const ggml_tensor * op, size_t & size) override {
        size = product_work_size(*ours.table, n_threads, op);
        return true;
    }
    bool compute_forward(ComputeParams * params, ggml_tensor * op) override {
        finish_packing(op->src[0]);
        multiply_packed(*ours.table, *params, op);
        return true;
    }
};

// Operations that ggml could compute, too. The thread that starts a graph asks for the work sizes; whether it is inside
// a ComputeScope is written on the node then, for the threads that compute it. `extra` of a node is free: the CPU
// backend uses it for weights only.
class Tagged : public abi::TensorTraits {
  public:
    bool work_size(int n_threads, const ggml_tensor * op, size_t & size) override {
        const_cast<ggml_tensor *>(op)->extra = scope.is_computing ? this : nullptr;
        return scope.is_computing && size_of(n_threads, op, size);
    }
    bool compute_forward(ComputeParams * params, ggml_tensor * op) override {
        if (op->extra != this) return false;
        compute(*params, op);
        return true;
    }

  private:
    virtual bool size_of(int n_threads, const ggml_tensor * op, size_t & size) = 0;
    virtual void compute(const ComputeParams & params, ggml_tensor * op) = 0;
};

class Dense : public Tagged {
    bool size_of(int, const ggml_tensor *, size_t & size) override {
        size = 0;
        return true;
    }
    void compute(const ComputeParams & params, ggml_tensor * op) override { multiply_dense(*ours.table, params, op); }
};

class Attention : public Tagged {
    bool size_of(int n_threads, const ggml_tensor * op, size_t & size) override {
        size = ours.table->attention_work_size(n_threads, op);
        return true;
    }
    void compute(const ComputeParams & params, ggml_tensor * op) override { ours.table->attention(params, op); }
};

// Several nodes at once, in the place of one of them (fusion.h).
class Steps : public abi::TensorTraits {
  public:
    bool work_size(int n_threads, const ggml_tensor * op, size_t & size) override {
        size = Step::of(op).work_size(*ours.table, n_threads);
        return true;
    }
    bool compute_forward(ComputeParams * params, ggml_tensor * op) override {
        const Step & step = Step::of(op);
        for (const ggml_tensor * p : step.products) finish_packing(p->src[0]);
        step.compute(*ours.table, *params);
        return true;
    }
};

// ggml's classes have other names than those of ggml_abi.h, which UBSan would take for a mistake.
#if defined(__GNUC__)
#define FOREIGN_CLASS __attribute__((no_sanitize("vptr")))
#else
#define FOREIGN_CLASS
#endif

// Asked in the place of one of ggml's own types, which is asked about all that is not ours.
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
            case GGML_OP_GLU:
            case GGML_OP_MUL:
            case GGML_OP_RMS_NORM:
            case GGML_OP_ROPE:
            case GGML_OP_SET_ROWS:
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

    // being planned by a thread of ours, or planned so
    static bool is_for(const ggml_tensor * op, const Tagged & tagged) {
        return scope.is_computing || op->extra == &tagged;
    }

    Packed packed_;
    Dense dense_;
    Attention attention_;
    Steps steps_;
};

std::atomic<GraphCompute> compute_of_ggml_{nullptr};

bool is_packed_product(const ggml_tensor * node) {
    return (node->op == GGML_OP_MUL_MAT || node->op == GGML_OP_MUL_MAT_ID) && is_ours(node->src[0]);
}

ggml_status compute_graph(ggml_backend_t backend, ggml_cgraph * graph) {
    if (!scope.is_computing) return compute_of_ggml_.load()(backend, graph);
    try {
        thread_local Fusions fusions;
        const Fusion & fusion = fusions.of(graph, ((abi::Graph *)graph)->uid, is_packed_product);
        fusion.mark();
        const ggml_status status = compute_of_ggml_.load()(backend, graph);
        fusion.unmark();
        return status;
    } catch (const std::bad_alloc &) {
        return GGML_STATUS_ALLOC_FAILED;
    }
}

}  // namespace

abi::ExtraBufferType * node_traits_before(abi::ExtraBufferType * ggmls) {
    static Extra extra;
    extra.ggmls = ggmls;
    return &extra;
}

GraphCompute fused_compute(GraphCompute of_ggml) {
    if (of_ggml != compute_graph) compute_of_ggml_ = of_ggml;
    return compute_graph;
}

}  // namespace eaglecpp::kernels
