// SPDX-License-Identifier: MIT
// ggml's CPU backend for tests, with weight matrices and the products that this backend computes.
#pragma once

#include <ggml-alloc.h>
#include <ggml-cpp.h>

#include <cstring>
#include <random>
#include <vector>

#include "check.h"

namespace eaglecpp::test {

inline std::mt19937 rng(1);

inline std::vector<float> normal(size_t n) {
    std::normal_distribution<float> d;
    std::vector<float> x(n);
    for (float & v : x) v = d(rng);
    return x;
}

inline void set_threads(const ggml_backend_ptr & cpu, int n) {
    ggml_backend_reg_t reg = ggml_backend_dev_backend_reg(ggml_backend_get_device(cpu.get()));
    ((ggml_backend_set_n_threads_t)ggml_backend_reg_get_proc_address(reg, "ggml_backend_set_n_threads"))(cpu.get(), n);
}

inline ggml_backend_ptr make_cpu(int n_threads = 1) {
    ggml_backend_ptr cpu(ggml_backend_init_by_type(GGML_BACKEND_DEVICE_TYPE_CPU, nullptr));
    set_threads(cpu, n_threads);
    return cpu;
}

// A weight matrix whose values the test fills in.
struct Matrix {
    Matrix(ggml_type type, int64_t n_in, int64_t n_out, int64_t n_experts, ggml_backend_buffer_type_t where)
        : ctx(ggml_init({ggml_tensor_overhead(), nullptr, true})),
          tensor(ggml_new_tensor_3d(ctx.get(), type, n_in, n_out, n_experts)),
          buffer(ggml_backend_alloc_ctx_tensors_from_buft(ctx.get(), where)) {
        ggml_backend_buffer_set_usage(buffer.get(), GGML_BACKEND_BUFFER_USAGE_WEIGHTS);
    }
    ggml_context_ptr ctx;
    ggml_tensor * tensor;
    ggml_backend_buffer_ptr buffer;
};

// Multiplies rows [n_in, n_given, n_rows] by the matrix. In a mixture of experts, ids [n_used, n_rows] choose the
// experts.
class Product {
  public:
    Product(ggml_tensor * w, const std::vector<float> & x, int n_given, int n_rows,
            const std::vector<int32_t> & ids = {})
        : cpu_(make_cpu()), ctx_(ggml_init({8 * ggml_tensor_overhead() + ggml_graph_overhead(), nullptr, true})) {
        ggml_tensor * in = ggml_new_tensor_3d(ctx_.get(), GGML_TYPE_F32, w->ne[0], ids.empty() ? n_rows : n_given,
                                              ids.empty() ? 1 : n_rows);
        ggml_tensor * chosen = nullptr;
        if (!ids.empty()) chosen = ggml_new_tensor_2d(ctx_.get(), GGML_TYPE_I32, ids.size() / n_rows, n_rows);
        out_ = chosen ? ggml_mul_mat_id(ctx_.get(), w, in, chosen) : ggml_mul_mat(ctx_.get(), w, in);
        graph_ = ggml_new_graph(ctx_.get());
        ggml_build_forward_expand(graph_, out_);
        memory_.reset(ggml_backend_alloc_ctx_tensors(ctx_.get(), cpu_.get()));
        ggml_backend_tensor_set(in, x.data(), 0, ggml_nbytes(in));
        if (chosen) ggml_backend_tensor_set(chosen, ids.data(), 0, ggml_nbytes(chosen));
    }
    std::vector<float> run(int n_threads) {
        set_threads(cpu_, n_threads);
        ggml_backend_tensor_memset(out_, 0xFF, 0, ggml_nbytes(out_));
        CHECK(ggml_backend_graph_compute(cpu_.get(), graph_) == GGML_STATUS_SUCCESS);
        std::vector<float> y(ggml_nelements(out_));
        ggml_backend_tensor_get(out_, y.data(), 0, ggml_nbytes(out_));
        return y;
    }
    ggml_backend_t cpu() const { return cpu_.get(); }

  private:
    ggml_backend_ptr cpu_;
    ggml_context_ptr ctx_;
    ggml_tensor * out_;
    ggml_cgraph * graph_;
    ggml_backend_buffer_ptr memory_;
};

}  // namespace eaglecpp::test
