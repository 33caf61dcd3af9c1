// SPDX-License-Identifier: MIT
// Runs one product of quantised weights REPEATS times, with one of our kernel tables or with ggml's CPU backend. ggml
// repacks the weights if it can. arm_instructions.py runs this program and counts its instructions.
//     arm_instructions ggml|TABLE TYPE N_IN N_OUT N_ROWS REPEATS
#include <ggml-backend.h>
#include <ggml-cpu.h>
#include <ggml.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "kernels/select.h"

using namespace eaglecpp::kernels;

static std::vector<float> numbers(size_t n) {
    std::vector<float> x(n);
    uint32_t state = 1;
    for (float & f : x) f = (float)((state = state * 1664525u + 1013904223u) >> 8) / (1 << 24) - 0.5f;
    return x;
}

static double sum_of(const std::vector<float> & x) {
    double s = 0;
    for (size_t i = 0; i < x.size(); ++i) s += x[i] * (double)(i % 7);
    return s;
}

static void ours(const KernelTable & table, ggml_type type, const std::vector<uint8_t> & weights, int64_t n_in,
                 int64_t n_out, const std::vector<float> & x, int n_rows, int n_repeats, std::vector<float> & out) {
    const PackedProduct * product = table.packed(type);
    if (!product) exit(3);
    const size_t n_group_bytes = product->group_bytes(n_in), n_row_bytes = ggml_row_size(type, n_in);
    const int64_t n_groups = (n_out + n_group - 1) / n_group;
    auto * packed = (uint8_t *)aligned_alloc(64, n_groups * n_group_bytes);
    for (int64_t g = 0; g < n_groups; ++g) {
        const int64_t first = g * n_group, n = n_out - first < n_group ? n_out - first : n_group;
        product->pack(&weights[first * n_row_bytes], n_row_bytes, (int)n, n_in, packed + g * n_group_bytes);
    }
    const size_t n_bytes = table.row_bytes(n_in);
    auto * rounded = (uint8_t *)aligned_alloc(64, n_rows * n_bytes);
    std::vector<const uint8_t *> rows;
    std::vector<float *> outs;
    for (int r = 0; r < n_rows; ++r) {
        rows.push_back(rounded + r * n_bytes);
        outs.push_back(&out[r * n_out]);
    }
    for (int i = 0; i < n_repeats; ++i) {
        for (int r = 0; r < n_rows; ++r) product->quantize(&x[r * n_in], n_in, rounded + r * n_bytes);
        product->multiply(packed, n_in, n_out, 0, n_groups, rows.data(), n_rows, outs.data());
    }
    free(packed);
    free(rounded);
}

static void theirs(ggml_type type, const std::vector<uint8_t> & weights, int64_t n_in, int64_t n_out,
                   const std::vector<float> & x, int n_rows, int n_repeats, std::vector<float> & out) {
    ggml_backend_t cpu = ggml_backend_cpu_init();
    ggml_backend_cpu_set_n_threads(cpu, 1);
    ggml_context * ctx = ggml_init({1 << 20, nullptr, true});
    ggml_tensor * w = ggml_new_tensor_2d(ctx, type, n_in, n_out);
    ggml_tensor * rows = ggml_new_tensor_2d(ctx, GGML_TYPE_F32, n_in, n_rows);
    ggml_tensor * result = ggml_mul_mat(ctx, w, rows);
    // The weights get the first of the device's buffer types that supports the product, as in llama.cpp.
    ggml_backend_dev_t device = ggml_backend_get_device(cpu);
    auto extra = (ggml_backend_dev_get_extra_bufts_t)ggml_backend_reg_get_proc_address(
        ggml_backend_dev_backend_reg(device), "ggml_backend_dev_get_extra_bufts");
    ggml_backend_buffer_type_t place = ggml_backend_dev_buffer_type(device);
    for (ggml_backend_buffer_type_t * b = extra(device); b && *b; ++b) {
        ggml_backend_buffer_t empty = ggml_backend_buft_alloc_buffer(*b, 0);
        w->buffer = empty;
        const bool takes = ggml_backend_dev_supports_op(device, result);
        w->buffer = nullptr;
        ggml_backend_buffer_free(empty);
        if (takes) {
            place = *b;
            break;
        }
    }
    ggml_backend_buffer_t buffer = ggml_backend_buft_alloc_buffer(place, ggml_backend_buft_get_alloc_size(place, w));
    ggml_backend_tensor_alloc(buffer, w, ggml_backend_buffer_get_base(buffer));
    ggml_backend_alloc_ctx_tensors(ctx, cpu);
    ggml_backend_tensor_set(w, weights.data(), 0, weights.size());
    ggml_backend_tensor_set(rows, x.data(), 0, x.size() * sizeof(float));
    ggml_cgraph * graph = ggml_new_graph(ctx);
    ggml_build_forward_expand(graph, result);
    for (int i = 0; i < n_repeats; ++i) ggml_backend_graph_compute(cpu, graph);
    ggml_backend_tensor_get(result, out.data(), 0, out.size() * sizeof(float));
    printf("%s ", ggml_backend_buft_name(place));
}

int main(int argc, char ** argv) {
    if (argc != 7) return 2;
    const std::string who = argv[1], type_name = argv[2];
    const int64_t n_in = atoi(argv[3]), n_out = atoi(argv[4]);
    const int n_rows = atoi(argv[5]), n_repeats = atoi(argv[6]);
    int type = 0;
    while (type < GGML_TYPE_COUNT && type_name != ggml_type_name((ggml_type)type)) ++type;
    if (type == GGML_TYPE_COUNT) return 2;
    const std::vector<float> w = numbers(n_in * n_out), x = numbers(n_in * n_rows);
    std::vector<uint8_t> weights(ggml_row_size((ggml_type)type, n_in) * n_out);
    ggml_quantize_chunk((ggml_type)type, w.data(), weights.data(), 0, n_out, n_in, nullptr);
    std::vector<float> out(n_out * n_rows);
    if (who == "ggml") {
        theirs((ggml_type)type, weights, n_in, n_out, x, n_rows, n_repeats, out);
    } else {
        const KernelTable * chosen = nullptr;
        for (const KernelTable * t : usable_tables()) chosen = who == t->name ? t : chosen;
        if (!chosen) return 3;
        ours(*chosen, (ggml_type)type, weights, n_in, n_out, x, n_rows, n_repeats, out);
    }
    printf("%.6g\n", sum_of(out));
    return 0;
}
