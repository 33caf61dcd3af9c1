// SPDX-License-Identifier: MIT
// Tests fused nodes in ggml's own CPU backend, on a layer that is built and allocated as in llama.cpp. The results must
// have the same bits for every number of rows and threads, in new and in known graphs.
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "cpu.h"
#include "ggml_hook/fusion.h"
#include "ggml_hook/hook.h"

using namespace eaglecpp;
using namespace eaglecpp::kernels;
using namespace eaglecpp::test;

namespace {

constexpr int n_embd = 128, n_kv = 64, n_ff = 256, n_all_rows = 9;

struct Form {
    const char * name;
    ggml_type value_type = GGML_TYPE_Q8_0;  // type of the value projection; the other weights are Q8_0
    bool packs = true;
};

// Weights and inputs of a form. They are the same in every run.
struct Scene {
    explicit Scene(const Form & form) : form(form) {
        for (int rows : {n_embd, n_kv, n_kv, n_embd, n_ff, n_ff}) {
            const bool is_value = matrices.size() == 2;
            matrices.push_back(make(is_value ? form.value_type : GGML_TYPE_Q8_0, rows));
        }
        norm_1 = normal(n_embd), norm_2 = normal(n_embd);
        x = normal((size_t)n_embd * n_all_rows);
    }
    Matrix make(ggml_type type, int n_out) const {
        Matrix m(type, n_embd, n_out, 1, form.packs ? weights_buffer_type() : ggml_backend_cpu_buffer_type());
        const std::vector<float> values = normal((size_t)n_embd * n_out);
        std::vector<uint8_t> bytes(ggml_nbytes(m.tensor));
        ggml_quantize_chunk(type, values.data(), bytes.data(), 0, n_out, n_embd, nullptr);
        ggml_backend_tensor_set(m.tensor, bytes.data(), 0, bytes.size());
        return m;
    }
    Form form;
    std::vector<Matrix> matrices;
    std::vector<float> norm_1, norm_2, x;
};

using Result = std::vector<std::vector<float>>;  // queries, keys, values, residual, gate and up

// Two norms and the products of their results, for some rows of the scene.
class Layer {
  public:
    Layer(const Scene & s, const std::vector<int> & rows, int n_threads, bool fuses)
        : rows_(rows), cpu_(make_cpu(n_threads)) {
        if (fuses) take_graphs_of(cpu_.get(), true);
        ctx_.reset(ggml_init({100 * ggml_tensor_overhead() + ggml_graph_overhead(), nullptr, true}));
        build(s);
        alloc_.reset(ggml_gallocr_new(ggml_backend_cpu_buffer_type()));
        CHECK(ggml_gallocr_alloc_graph(alloc_.get(), graph));
        std::vector<float> x;
        for (int r : rows) x.insert(x.end(), &s.x[(size_t)r * n_embd], &s.x[(size_t)r * n_embd] + n_embd);
        const auto put = [](ggml_tensor * t, const std::vector<float> & from) {
            ggml_backend_tensor_set(t, from.data(), 0, ggml_nbytes(t));
        };
        put(x_, x), put(norm_1_, s.norm_1), put(norm_2_, s.norm_2);
    }

    Result run() {
        {
            const ComputeScope scope(true);
            CHECK(ggml_backend_graph_compute(cpu_.get(), graph) == GGML_STATUS_SUCCESS);
        }
        for (int i = 0; i < ggml_graph_n_nodes(graph); ++i) {
            const ggml_tensor * t = ggml_graph_node(graph, i);
            CHECK((t->flags & GGML_TENSOR_FLAG_COMPUTE) && !Step::is_step(t));
        }
        Result r;
        for (const ggml_tensor * t : outputs_) {
            r.emplace_back(ggml_nelements(t));
            ggml_backend_tensor_get(t, r.back().data(), 0, ggml_nbytes(t));
        }
        return r;
    }

    ggml_cgraph * graph;

  private:
    ggml_tensor * input(int64_t n_rows) {
        ggml_tensor * t = ggml_new_tensor_2d(ctx_.get(), GGML_TYPE_F32, n_embd, n_rows);
        ggml_set_input(t);
        ggml_set_output(t);  // the tensor is not overwritten, so the graph can run again
        return t;
    }
    ggml_tensor * output(ggml_tensor * t) {
        ggml_set_output(t);
        ggml_build_forward_expand(graph, t);
        return outputs_.emplace_back(t);
    }
    void build(const Scene & s) {
        ggml_context * c = ctx_.get();
        graph = ggml_new_graph(c);
        x_ = input((int64_t)rows_.size()), norm_1_ = input(1), norm_2_ = input(1);
        const auto product = [&](int i, ggml_tensor * t) { return ggml_mul_mat(c, s.matrices[i].tensor, t); };
        ggml_tensor * t = ggml_mul(c, ggml_rms_norm(c, x_, 1e-5f), norm_1_);
        ggml_tensor * queries = output(ggml_scale(c, product(0, t), 2.0f));  // a node between the products
        output(product(1, t));
        output(product(2, t));
        ggml_tensor * residual = output(ggml_add(c, product(3, queries), x_));
        ggml_tensor * u = ggml_mul(c, ggml_rms_norm(c, residual, 1e-5f), norm_2_);
        output(product(4, u));
        output(product(5, u));
    }

    std::vector<int> rows_;
    ggml_backend_ptr cpu_;
    ggml_context_ptr ctx_;
    ggml_gallocr_ptr alloc_;
    ggml_tensor *x_, *norm_1_, *norm_2_;
    std::vector<ggml_tensor *> outputs_;
};

std::vector<int> first_rows(int n) {
    std::vector<int> rows;
    for (int i = 0; i < n; ++i) rows.push_back(i);
    return rows;
}

// Compares the first a.size() numbers of the two vectors.
bool same(const std::vector<float> & a, const std::vector<float> & b) {
    return std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

void check_near(const std::vector<float> & a, const std::vector<float> & b, const std::string & what) {
    double worst = 0, size = 0;
    for (size_t i = 0; i < a.size(); ++i) {
        worst = std::max(worst, std::fabs((double)a[i] - b[i]));
        size = std::max(size, std::fabs((double)b[i]));
    }
    CHECK_MSG(worst <= 0.01 * size, what + ": off by " + std::to_string(worst) + " of " + std::to_string(size));
}

// Without fusion, ggml computes norms with different rounding. So an input that is rounded to 8 bits may differ by one
// step.
void check_form(const Form & form) {
    const Scene scene(form);
    const std::vector<int> all = first_rows(n_all_rows);
    Layer batch(scene, all, 2, true);
    const Result expected = Layer(scene, all, 2, false).run(), together = batch.run();
    for (size_t i = 0; i < together.size(); ++i) {
        check_near(together[i], expected[i], std::string(form.name) + ", result " + std::to_string(i));
    }
    // A graph with a number must give the same result alone and next to other graphs.
    name_graph(batch.graph);
    for (int i = 0; i < 2; ++i) CHECK(same(together[3], batch.run()[3]));
    for (int n_threads : {1, 2, 3}) {
        for (int n : {1, 2, 5}) {
            const Result some = Layer(scene, first_rows(n), n_threads, true).run();
            const std::string what =
                std::string(form.name) + ", " + std::to_string(n) + " rows, " + std::to_string(n_threads) + " threads";
            for (size_t i = 0; i < some.size(); ++i) CHECK_MSG(same(some[i], together[i]), what);
        }
    }
}

bool is_product(const ggml_tensor * t) {
    return t->op == GGML_OP_MUL_MAT;
}

// Checks which nodes remain in the fused graph. The results alone do not show whether all nodes of a layer are fused.
void fuses_the_expected_nodes(const Form & form) {
    const Scene scene(form);
    Layer layer(scene, first_rows(4), 2, true);
    Fusion fusion;
    fusion.find(layer.graph, is_product);
    const Fusion::Marks marks(fusion);
    std::string left;
    for (int i = 0; i < ggml_graph_n_nodes(layer.graph); ++i) {
        const ggml_tensor * t = ggml_graph_node(layer.graph, i);
        if (t->flags & GGML_TENSOR_FLAG_COMPUTE && t->op != GGML_OP_RESHAPE && t->op != GGML_OP_VIEW) {
            left += std::string(Step::is_step(t) ? "*" : "") + ggml_op_name(t->op) + " ";
        }
    }
    CHECK_MSG(left == "*MUL_MAT SCALE MUL_MAT ADD *MUL_MAT ", std::string(form.name) + ": " + left);
}

// If the result of a norm is scaled row by row, ggml computes the norm, even if it is the first node of a graph.
void leaves_other_norms_alone() {
    const ggml_context_ptr ctx(ggml_init({20 * ggml_tensor_overhead() + ggml_graph_overhead(), nullptr, true}));
    std::vector<float> memory(8 * n_embd);
    ggml_tensor * x = ggml_new_tensor_2d(ctx.get(), GGML_TYPE_F32, n_embd, 2);
    ggml_tensor * w = ggml_new_tensor_2d(ctx.get(), GGML_TYPE_F32, n_embd, 2);
    ggml_tensor * norm = ggml_rms_norm(ctx.get(), x, 1e-5f);
    ggml_tensor * scaled = ggml_mul(ctx.get(), norm, w);
    ggml_cgraph * graph = ggml_new_graph(ctx.get());
    ggml_build_forward_expand(graph, scaled);
    int at = 0;
    for (ggml_tensor * t : {x, w, norm, scaled}) t->data = &memory[2 * n_embd * at++];
    Fusion fusion;
    fusion.find(graph, is_product);
    const Fusion::Marks marks(fusion);
    CHECK(!Step::is_step(norm) && !Step::is_step(scaled) && (norm->flags & GGML_TENSOR_FLAG_COMPUTE));
}

// A node must not move if another thread may still read the memory that the node writes. In this graph, the second
// product writes to the memory of the first product's result.
void leaves_shared_memory_alone() {
    const Scene scene(Form{"memory"});
    const ggml_context_ptr ctx(ggml_init({20 * ggml_tensor_overhead() + ggml_graph_overhead(), nullptr, true}));
    std::vector<float> memory(5 * n_ff);
    ggml_tensor * x = ggml_new_tensor_2d(ctx.get(), GGML_TYPE_F32, n_embd, 1);
    ggml_tensor * norm = ggml_rms_norm(ctx.get(), x, 1e-5f);
    ggml_tensor * first = ggml_mul_mat(ctx.get(), scene.matrices[4].tensor, norm);
    ggml_tensor * used = ggml_scale(ctx.get(), first, 2.0f);
    ggml_tensor * second = ggml_mul_mat(ctx.get(), scene.matrices[5].tensor, norm);
    ggml_cgraph * graph = ggml_new_graph(ctx.get());
    for (ggml_tensor * t : {used, second}) ggml_build_forward_expand(graph, t);
    const auto n_moved = [&](float * of_second) {
        norm->data = memory.data(), first->data = &memory[n_ff], used->data = &memory[2 * n_ff];
        second->data = of_second, x->data = &memory[4 * n_ff];
        Fusion fusion;
        fusion.find(graph, is_product);
        const Fusion::Marks marks(fusion);
        return !(second->flags & GGML_TENSOR_FLAG_COMPUTE);
    };
    CHECK(n_moved(&memory[3 * n_ff]));
    CHECK(!n_moved(&memory[n_ff]));          // `used` reads this memory
    CHECK(!n_moved(&memory[2 * n_ff + 8]));  // `used` writes this memory
    CHECK(!n_moved(&memory[8]));             // both products read this memory
}

// Graphs outside a ComputeScope are computed without fusion.
void leaves_other_graphs_alone() {
    const Scene scene(Form{"others"});
    Layer fused(scene, first_rows(3), 2, true);
    const Result inside = fused.run();
    const ggml_backend_ptr cpu = make_cpu();
    take_graphs_of(cpu.get(), true);
    CHECK(ggml_backend_graph_compute(cpu.get(), fused.graph) == GGML_STATUS_SUCCESS);
    const Result again = fused.run();
    CHECK(same(inside[3], again[3]));
}

}  // namespace

int main() {
    if (!status().is_active) {
        std::printf("skipped: %s\n", status().why_not.c_str());
        return 0;
    }
    const Form plain{"plain"};
    for (const Form & form :
         {plain, {"other type of values", GGML_TYPE_Q5_1}, {"weights that are not packed", GGML_TYPE_Q8_0, false}}) {
        check_form(form);
    }
    fuses_the_expected_nodes(plain);
    leaves_other_norms_alone();
    leaves_shared_memory_alone();
    leaves_other_graphs_alone();
    return eaglecpp::test::result();
}
