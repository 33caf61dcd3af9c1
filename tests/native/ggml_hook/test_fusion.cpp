// SPDX-License-Identifier: MIT
// Tests fused nodes in ggml's own CPU backend, on a layer that is built and allocated as in llama.cpp. The results must
// have the same bits as without fusion, for every number of rows and threads, in new and in known graphs. Then the
// parts of a fused step are compared with ggml's own functions.
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "cpu.h"
#include "ggml_hook/fusion.h"
#include "ggml_hook/hook.h"
#include "tables.h"

using namespace eaglecpp;
using namespace eaglecpp::kernels;
using namespace eaglecpp::test;

namespace {

constexpr int n_head_dim = 32, n_heads = 4, n_kv_heads = 2, n_cells = 64, n_ff = 256, n_all_rows = 9;
constexpr int n_embd = n_head_dim * n_heads, n_kv = n_head_dim * n_kv_heads;

struct Form {
    const char * name;
    int rope_mode = GGML_ROPE_TYPE_NORMAL;
    ggml_type value_type = GGML_TYPE_Q8_0;  // type of the value projection; the other weights are Q8_0
    bool has_factors = false, has_yarn = false, packs = true, adds_first = true;
    int n_rotated = n_head_dim;
    float freq_scale = 1.0f;
    ggml_glu_op gate = GGML_GLU_OP_SWIGLU;
    std::array<int, GGML_MROPE_SECTIONS> sections = {}, key_sections = {};  // sections of a rotation (M-RoPE)
    int n_positions() const { return sections[0] ? GGML_MROPE_SECTIONS : 1; }
};

// Weights and inputs of a form. They are the same in every run.
struct Scene {
    explicit Scene(const Form & form) : form(form) {
        for (int rows : {n_embd, n_kv, n_kv, n_embd, n_ff, n_ff}) {
            const bool is_value = matrices.size() == 2;
            matrices.push_back(make(is_value ? form.value_type : GGML_TYPE_Q8_0, n_embd, rows));
        }
        matrices.push_back(make(GGML_TYPE_Q8_0, n_ff, n_embd));
        norm_1 = normal(n_embd), norm_2 = normal(n_embd);
        x = normal((size_t)n_embd * n_all_rows), before = normal((size_t)n_embd * n_all_rows);
        for (int i = 0; i < n_head_dim / 2; ++i) factors.push_back(1.0f + 0.25f * (float)i);
    }
    Matrix make(ggml_type type, int n_in, int n_out) const {
        Matrix m(type, n_in, n_out, 1, form.packs ? weights_buffer_type() : ggml_backend_cpu_buffer_type());
        const std::vector<float> values = normal((size_t)n_in * n_out);
        std::vector<uint8_t> bytes(ggml_nbytes(m.tensor));
        ggml_quantize_chunk(type, values.data(), bytes.data(), 0, n_out, n_in, nullptr);
        ggml_backend_tensor_set(m.tensor, bytes.data(), 0, bytes.size());
        return m;
    }
    Form form;
    std::vector<Matrix> matrices;
    std::vector<float> norm_1, norm_2, x, before, factors;
};

struct Result {
    std::vector<std::vector<float>> rows;      // rows of residual, queries, gate, up and down
    std::vector<std::vector<uint16_t>> cells;  // rows of keys and values
};

// Two norms and all nodes between them, for some rows of the scene. The rows are in separate cells.
class Layer {
  public:
    Layer(const Scene & s, const std::vector<int> & rows, int n_threads, bool fuses)
        : rows_(rows), cpu_(make_cpu(n_threads)) {
        if (fuses) take_graphs_of(cpu_.get(), true);
        ctx_.reset(ggml_init({100 * ggml_tensor_overhead() + ggml_graph_overhead(), nullptr, true}));
        build(s);
        alloc_.reset(ggml_gallocr_new(ggml_backend_cpu_buffer_type()));
        CHECK(ggml_gallocr_alloc_graph(alloc_.get(), graph));
        const auto put = [&](ggml_tensor * t, const void * from) {
            ggml_backend_tensor_set(t, from, 0, ggml_nbytes(t));
        };
        std::vector<float> x, before;
        std::vector<int32_t> positions(rows.size() * s.form.n_positions());
        std::vector<int64_t> cells;
        for (int r : rows) {
            x.insert(x.end(), &s.x[(size_t)r * n_embd], &s.x[(size_t)r * n_embd] + n_embd);
            before.insert(before.end(), &s.before[(size_t)r * n_embd], &s.before[(size_t)r * n_embd] + n_embd);
            for (int k = 0; k < s.form.n_positions(); ++k) {  // the numbers are laid out one position after another
                positions[k * rows.size() + cells.size()] = 100 + 3 * r + 11 * k * k;
            }
            cells.push_back((5 * r + 2) % n_cells);
        }
        put(x_, x.data());
        if (before_) put(before_, before.data());
        put(positions_, positions.data());
        put(cells_, cells.data());
        put(norm_1_, s.norm_1.data());
        put(norm_2_, s.norm_2.data());
        if (factors_) put(factors_, s.factors.data());
    }

    Result run() {
        ggml_backend_tensor_memset(k_cache_, 0, 0, ggml_nbytes(k_cache_));
        ggml_backend_tensor_memset(v_cache_, 0, 0, ggml_nbytes(v_cache_));
        {
            const ComputeScope scope(true);
            CHECK(ggml_backend_graph_compute(cpu_.get(), graph) == GGML_STATUS_SUCCESS);
        }
        for (int i = 0; i < ggml_graph_n_nodes(graph); ++i) {
            const ggml_tensor * t = ggml_graph_node(graph, i);
            CHECK((t->flags & GGML_TENSOR_FLAG_COMPUTE) && !Step::is_step(t));
        }
        Result r;
        for (const ggml_tensor * t : {residual_, queries_, gate_, up_, down_}) {
            r.rows.emplace_back(ggml_nelements(t));
            ggml_backend_tensor_get(t, r.rows.back().data(), 0, ggml_nbytes(t));
        }
        for (const ggml_tensor * t : {k_cache_, v_cache_}) {
            r.cells.emplace_back(ggml_nelements(t));
            ggml_backend_tensor_get(t, r.cells.back().data(), 0, ggml_nbytes(t));
        }
        return r;
    }

    ggml_cgraph * graph;

  private:
    ggml_tensor * input(ggml_type type, int64_t n, int64_t m) {
        ggml_tensor * t = ggml_new_tensor_2d(ctx_.get(), type, n, m);
        ggml_set_input(t);
        ggml_set_output(t);  // the tensor is not overwritten, so the graph can run again
        return t;
    }
    ggml_tensor * output(ggml_tensor * t) {
        ggml_set_output(t);
        return t;
    }
    ggml_tensor * rotate(const Form & f, std::array<int, GGML_MROPE_SECTIONS> sections, ggml_tensor * t, int n) {
        ggml_context * c = ctx_.get();
        t = ggml_reshape_3d(c, t, n_head_dim, n, (int64_t)rows_.size());
        return ggml_rope_multi(c, t, positions_, factors_, f.n_rotated, sections.data(), f.rope_mode, 256, 10000.0f,
                               f.freq_scale, f.has_yarn ? 1.0f : 0.0f, 1.0f, 32.0f, 1.0f);
    }
    void store(ggml_tensor * rows, ggml_tensor * cache) {
        ggml_build_forward_expand(graph, ggml_set_rows(ctx_.get(), cache, rows, cells_));
    }
    void build(const Scene & s) {
        ggml_context * c = ctx_.get();
        const int64_t n = (int64_t)rows_.size();
        graph = ggml_new_graph(c);
        x_ = input(GGML_TYPE_F32, n_embd, n);
        before_ = s.form.adds_first ? input(GGML_TYPE_F32, n_embd, n) : nullptr;
        norm_1_ = input(GGML_TYPE_F32, n_embd, 1), norm_2_ = input(GGML_TYPE_F32, n_embd, 1);
        positions_ = ggml_new_tensor_1d(c, GGML_TYPE_I32, n * s.form.n_positions());
        cells_ = ggml_new_tensor_1d(c, GGML_TYPE_I64, n);
        factors_ = s.form.has_factors ? ggml_new_tensor_1d(c, GGML_TYPE_F32, n_head_dim / 2) : nullptr;
        for (ggml_tensor * t : {positions_, cells_, factors_}) {
            if (t) ggml_set_input(t), ggml_set_output(t);
        }
        k_cache_ = input(GGML_TYPE_F16, n_kv, n_cells), v_cache_ = input(GGML_TYPE_F16, n_kv, n_cells);
        const auto product = [&](int i, ggml_tensor * t) { return ggml_mul_mat(c, s.matrices[i].tensor, t); };
        ggml_tensor * first = before_ ? ggml_add(c, x_, before_) : x_;
        ggml_tensor * t = ggml_mul(c, ggml_rms_norm(c, first, 1e-5f), norm_1_);
        ggml_tensor * q = rotate(s.form, s.form.sections, product(0, t), n_heads);
        ggml_build_forward_expand(graph, q);
        ggml_tensor * v = product(2, t);
        ggml_build_forward_expand(graph, v);
        ggml_tensor * k = rotate(s.form, s.form.key_sections, product(1, t), n_kv_heads);
        ggml_build_forward_expand(graph, k);
        store(ggml_view_2d(c, k, n_kv, n, k->nb[2], 0), k_cache_);
        store(ggml_view_2d(c, v, n_kv, n, v->nb[1], 0), v_cache_);
        queries_ = output(ggml_scale(c, q, 2.0f));
        ggml_tensor * attended = product(3, ggml_reshape_2d(c, queries_, n_embd, n));
        residual_ = output(ggml_add(c, attended, first));
        ggml_tensor * u = ggml_mul(c, ggml_rms_norm(c, residual_, 1e-5f), norm_2_);
        gate_ = output(product(4, u));
        ggml_build_forward_expand(graph, gate_);
        up_ = output(product(5, u));
        ggml_build_forward_expand(graph, up_);
        down_ = output(product(6, ggml_glu_split(c, gate_, up_, s.form.gate)));
        ggml_build_forward_expand(graph, down_);
    }

    std::vector<int> rows_;
    ggml_backend_ptr cpu_;
    ggml_context_ptr ctx_;
    ggml_gallocr_ptr alloc_;
    ggml_tensor *x_, *before_, *norm_1_, *norm_2_, *positions_, *cells_, *factors_, *k_cache_, *v_cache_;
    ggml_tensor *residual_, *queries_, *gate_, *up_, *down_;
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

// Without fusion, ggml computes norms and rotations with different rounding. So an input that is rounded to 8 bits may
// differ by one step.
void check_form(const Form & form) {
    const Scene scene(form);
    const std::vector<int> all = first_rows(n_all_rows);
    Layer batch(scene, all, 2, true);
    const Result expected = Layer(scene, all, 2, false).run(), together = batch.run();
    for (int i = 0; i < 5; ++i) {
        check_near(together.rows[i], expected.rows[i], std::string(form.name) + ", result " + std::to_string(i));
    }
    for (int i = 0; i < 2; ++i) {
        std::vector<float> a(together.cells[i].size()), b(a.size());
        ggml_fp16_to_fp32_row((const ggml_fp16_t *)together.cells[i].data(), a.data(), (int64_t)a.size());
        ggml_fp16_to_fp32_row((const ggml_fp16_t *)expected.cells[i].data(), b.data(), (int64_t)b.size());
        check_near(a, b, std::string(form.name) + ", cache");
    }
    // A graph with a number must give the same result alone and next to other graphs.
    name_graph(batch.graph);
    for (int i = 0; i < 2; ++i) {
        const Result again = batch.run();
        CHECK(same(together.rows[3], again.rows[3]) && together.cells == again.cells);
    }
    for (int n_threads : {1, 2, 3}) {
        for (int n : {1, 2, 5}) {
            const Result some = Layer(scene, first_rows(n), n_threads, true).run();
            const std::string what =
                std::string(form.name) + ", " + std::to_string(n) + " rows, " + std::to_string(n_threads) + " threads";
            for (int i = 0; i < 5; ++i) CHECK_MSG(same(some.rows[i], together.rows[i]), what);
            for (int r = 0; r < n; ++r) {
                const size_t at = (size_t)((5 * r + 2) % n_cells) * n_kv;
                for (int i = 0; i < 2; ++i) {
                    const uint16_t * cell = &some.cells[i][at];
                    CHECK_MSG(std::equal(cell, cell + n_kv, &together.cells[i][at]), what);
                }
            }
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
    // The product of the values is not fused, because it reuses the memory of the queries before their rotation.
    CHECK_MSG(left == "*MUL_MAT *ROPE *MUL_MAT *SET_ROWS SCALE MUL_MAT *MUL_MAT *MUL_MAT ",
              std::string(form.name) + ": " + left);
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
    std::vector<float> memory(4 * n_ff);
    ggml_tensor * x = ggml_new_tensor_2d(ctx.get(), GGML_TYPE_F32, n_embd, 1);
    ggml_tensor * first = ggml_mul_mat(ctx.get(), scene.matrices[4].tensor, x);
    ggml_tensor * used = ggml_scale(ctx.get(), first, 2.0f);
    ggml_tensor * second = ggml_mul_mat(ctx.get(), scene.matrices[5].tensor, x);
    ggml_cgraph * graph = ggml_new_graph(ctx.get());
    for (ggml_tensor * t : {used, second}) ggml_build_forward_expand(graph, t);
    const auto n_moved = [&](float * of_second) {
        x->data = memory.data(), first->data = &memory[n_ff], used->data = &memory[2 * n_ff], second->data = of_second;
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
    CHECK(same(inside.rows[3], again.rows[3]));
}

// --- parts of a fused step -------------------------------------------------------------------------------------------

// Tests every number that a half can represent, and numbers between them.
void halves_round_like_ggmls() {
    std::vector<float> x;
    for (uint32_t bits = 0; bits < 0xFFFFF000u; bits += 0x3FF7) {
        float f;
        std::memcpy(&f, &bits, 4);
        if (!std::isnan(f)) x.push_back(f);
    }
    for (float f : {65504.0f, 65519.9f, 65520.0f, 6.1e-5f, 5.96e-8f, 2.98e-8f, 2.99e-8f, 0.0f, -0.0f}) x.push_back(f);
    x.push_back(std::numeric_limits<float>::infinity());
    std::vector<uint16_t> theirs(x.size()), ours(x.size());
    ggml_fp32_to_fp16_row(x.data(), (ggml_fp16_t *)theirs.data(), (int64_t)x.size());
    for (const KernelTable * t : tested_tables()) {
        t->halve_row(x.data(), (int64_t)x.size(), ours.data());
        CHECK_MSG(ours == theirs, t->name);
    }
}

}  // namespace

int main() {
    if (!status().is_active) {
        std::printf("skipped: %s\n", status().why_not.c_str());
        return 0;
    }
    std::vector<Form> forms(13);
    forms[0].name = "plain";
    forms[1].name = "halves apart", forms[1].rope_mode = GGML_ROPE_TYPE_NEOX;
    forms[2].name = "other type of values", forms[2].value_type = GGML_TYPE_Q5_1;
    forms[3].name = "factors", forms[3].has_factors = true;
    forms[4].name = "YaRN", forms[4].has_yarn = true, forms[4].freq_scale = 0.25f;
    forms[5].name = "weights that are not packed", forms[5].packs = false;
    forms[6].name = "nothing added first", forms[6].adds_first = false;
    forms[7].name = "part of a head", forms[7].n_rotated = 16;
    forms[8].name = "positions made smaller", forms[8].freq_scale = 0.5f;
    forms[9].name = "GeGLU", forms[9].gate = GGML_GLU_OP_GEGLU;
    forms[10].name = "sections", forms[10].rope_mode = GGML_ROPE_TYPE_MROPE;
    forms[10].sections = forms[10].key_sections = {6, 5, 3, 2};
    forms[11].name = "sections by turns, repeated", forms[11].rope_mode = GGML_ROPE_TYPE_IMROPE;
    forms[11].sections = forms[11].key_sections = {3, 3, 1, 2};
    forms[12] = forms[10], forms[12].name = "other sections of keys", forms[12].key_sections = {2, 3, 5, 6};
    for (const Form & form : forms) check_form(form);
    for (int i : {0, 9, 10, 11}) fuses_the_expected_nodes(forms[i]);
    leaves_other_norms_alone();
    leaves_shared_memory_alone();
    leaves_other_graphs_alone();
    halves_round_like_ggmls();
    return eaglecpp::test::result();
}
