// SPDX-License-Identifier: MIT
// Tests products through ggml's own CPU backend: weights in our buffer type, F32, F16 and BF16 weights in their own
// memory, and mixtures of experts. Results are compared with sums in double precision over the dequantised weights.
// Results must also have the same bits for all numbers of threads and rows. Quantised weights are random bytes, because
// ggml reads any byte pattern and quantising takes seconds for some types.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <vector>

#include "cpu.h"
#include "ggml_hook/hook.h"
#include "kernels/table.h"

using namespace eaglecpp;
using namespace eaglecpp::test;

namespace {

struct Weights : Matrix {
    Weights(ggml_type type, int64_t n_in, int64_t n_out, int64_t n_experts, ggml_backend_buffer_type_t where)
        : Matrix(type, n_in, n_out, n_experts, where), values(normal((size_t)n_in * n_out * n_experts)) {
        std::vector<uint8_t> bytes(ggml_nbytes(tensor));
        const ggml_type_traits & traits = *ggml_get_type_traits(type);
        if (type == GGML_TYPE_F32) {
            std::memcpy(bytes.data(), values.data(), bytes.size());
        } else if (ggml_is_quantized(type)) {
            float * to = values.data();
            for (uint8_t * unit = bytes.data(); unit < bytes.data() + bytes.size(); unit += traits.type_size) {
                float largest;
                do {  // random scales are drawn until the largest value is moderate
                    for (size_t i = 0; i < traits.type_size; ++i) unit[i] = (uint8_t)rng();
                    traits.to_float(unit, to, traits.blck_size);
                    largest = 0;
                    for (int i = 0; i < traits.blck_size; ++i) largest = std::max(largest, std::fabs(to[i]));
                } while (!(largest > 0.5f && largest < 4.0f));
                to += traits.blck_size;
            }
        } else {
            traits.from_float_ref(values.data(), bytes.data(), (int64_t)values.size());
            traits.to_float(bytes.data(), values.data(), (int64_t)values.size());
        }
        ggml_backend_tensor_set(tensor, bytes.data(), 0, bytes.size());
    }
    std::vector<float> values;  // values of the quantised weights
};

std::vector<float> multiply(const Weights & m, const std::vector<float> & x, int n_given, int n_rows,
                            const std::vector<int32_t> & ids, int n_threads, bool in_scope = true,
                            const kernels::ChosenGroups * chosen = nullptr) {
    const kernels::ComputeScope scope(in_scope, chosen);
    Product product(m.tensor, x, n_given, n_rows, ids);
    if (chosen) kernels::take_graphs_of(product.cpu(), true);
    const std::vector<float> y = product.run(n_threads);
    // A node counts the pieces that its threads take. This second run with another number of threads must restart the
    // count.
    const std::vector<float> again = product.run(n_threads == 1 ? 3 : n_threads - 1);
    CHECK(std::memcmp(y.data(), again.data(), y.size() * sizeof(float)) == 0);
    return y;
}

// Checks the root mean square error, relative to the typical size of a sum of n_in random terms. The terms of a sum may
// cancel each other, but their errors do not.
void check_close(const char * what, const Weights & m, int64_t e, const float * x, const float * y, double bound) {
    const int64_t n_in = m.tensor->ne[0], n_out = m.tensor->ne[1];
    double error = 0, size = 0;
    for (int64_t o = 0; o < n_out; ++o) {
        double exact = 0;
        for (int64_t i = 0; i < n_in; ++i) {
            const double term = (double)m.values[(e * n_out + o) * n_in + i] * x[i];
            exact += term;
            size += term * term;
        }
        error += (exact - y[o]) * (exact - y[o]);
    }
    CHECK_MSG(std::sqrt(error / size) < bound, std::string(what) + " " + std::to_string(std::sqrt(error / size)));
}

// The chosen outputs must have the same bits as without a choice, and all other outputs must be -inf. Products with
// another number of outputs are not affected.
void computes_only_chosen_groups(ggml_backend_buffer_type_t packed) {
    const int n_in = 256, n_out = 700, n_rows = 3;
    const Weights m(GGML_TYPE_Q6_K, n_in, n_out, 1, packed), other(GGML_TYPE_Q6_K, n_in, n_out + 16, 1, packed);
    const std::vector<float> x = normal((size_t)n_in * n_rows);
    const std::vector<float> all = multiply(m, x, 1, n_rows, {}, 2), all_others = multiply(other, x, 1, n_rows, {}, 2);
    // The last group has 12 outputs.
    for (const std::vector<int32_t> & groups : {std::vector<int32_t>{0}, {1, 2, 3, 7, 40}, {9, 43}}) {
        const kernels::ChosenGroups chosen{n_out, groups};
        for (int n_threads : {1, 2, 7}) {
            const std::vector<float> y = multiply(m, x, 1, n_rows, {}, n_threads, true, &chosen);
            for (int i = 0; i < n_out * n_rows; ++i) {
                const bool is_chosen = std::count(groups.begin(), groups.end(), i % n_out / kernels::n_group) > 0;
                CHECK(y[i] == (is_chosen ? all[i] : -INFINITY));
            }
            CHECK(multiply(other, x, 1, n_rows, {}, n_threads, true, &chosen) == all_others);
        }
    }
}

}  // namespace

int main() {
    const kernels::Status & status = kernels::status();
    std::printf("%s %s\n", status.table.c_str(), status.why_not.c_str());
    if (!CHECK_MSG(status.is_active || status.table.empty(), status.why_not)) return test::result();
    if (!status.is_active) return 0;  // no kernels exist for this processor
    ggml_backend_buffer_type_t packed = kernels::weights_buffer_type(), plain = ggml_backend_cpu_buffer_type();

    for (ggml_type type :
         {GGML_TYPE_Q8_0, GGML_TYPE_Q4_0, GGML_TYPE_Q4_1, GGML_TYPE_Q5_0, GGML_TYPE_Q5_1, GGML_TYPE_IQ4_NL,
          GGML_TYPE_MXFP4, GGML_TYPE_Q2_K, GGML_TYPE_Q3_K, GGML_TYPE_Q4_K, GGML_TYPE_Q5_K, GGML_TYPE_Q6_K,
          GGML_TYPE_IQ4_XS, GGML_TYPE_F32, GGML_TYPE_F16, GGML_TYPE_BF16}) {
        const bool is_dense = !ggml_is_quantized(type);
        const char * name = ggml_type_name(type);
        const double bound = is_dense ? 1e-6 : 0.015;  // 8-bit activations cost about one percent of accuracy
        for (const auto & [n_in, n_out] : {std::pair<int, int>{256, 1}, {768, 47}, {512, 1500}}) {
            const Weights m(type, n_in, n_out, 1, is_dense ? plain : packed);
            CHECK(is_dense || kernels::can_hold(type, n_in));
            const int n_rows = 21;
            const std::vector<float> x = normal((size_t)n_in * n_rows);
            const std::vector<float> all = multiply(m, x, 1, n_rows, {}, 1);
            for (int r = 0; r < n_rows; ++r) {
                // The error of a single output may be four times as large.
                check_close(name, m, 0, &x[(size_t)r * n_in], &all[(size_t)r * n_out], n_out == 1 ? 4 * bound : bound);
            }
            for (int n_threads : {2, 3, 7, 16}) {
                const std::vector<float> y = multiply(m, x, 1, n_rows, {}, n_threads);
                CHECK_MSG(std::memcmp(y.data(), all.data(), y.size() * sizeof(float)) == 0, name);
            }
            for (int r = 0; r < n_rows; r += 5) {
                const std::vector<float> one(x.begin() + (size_t)r * n_in, x.begin() + (size_t)(r + 1) * n_in);
                const std::vector<float> y = multiply(m, one, 1, 1, {}, 2);
                CHECK_MSG(std::memcmp(y.data(), &all[(size_t)r * n_out], n_out * sizeof(float)) == 0, name);
            }
        }
        // A mixture of experts. The used experts have separate rows or share one row, and some experts are unused.
        const int n_experts = 6, n_used = 3, n_in = 256, n_out = 40;
        const Weights m(type, n_in, n_out, n_experts, is_dense ? plain : packed);
        for (int n_rows : {1, 2, 9}) {
            for (int n_given : {1, n_used}) {
                const std::vector<float> x = normal((size_t)n_in * n_given * n_rows);
                std::vector<int32_t> ids;
                for (int i = 0; i < n_rows * n_used; ++i) ids.push_back((i * 5 + i / n_used) % (n_experts - 1));
                const std::vector<float> y = multiply(m, x, n_given, n_rows, ids, 2);
                for (int r = 0; r < n_rows; ++r) {
                    for (int u = 0; u < n_used; ++u) {
                        const float * row = &x[(size_t)(r * n_given + u % n_given) * n_in];
                        check_close(name, m, ids[r * n_used + u], row, &y[(size_t)(r * n_used + u) * n_out], bound);
                    }
                }
            }
        }
    }

    computes_only_chosen_groups(packed);

    // Outside a ComputeScope, ggml computes with F16 weights and rounds the rows to half precision.
    const Weights half(GGML_TYPE_F16, 512, 64, 1, plain);
    const std::vector<float> x = normal(512);
    const std::vector<float> ours = multiply(half, x, 1, 1, {}, 1), theirs = multiply(half, x, 1, 1, {}, 1, false);
    CHECK(std::memcmp(ours.data(), theirs.data(), ours.size() * sizeof(float)) != 0);
    check_close("ggml's", half, 0, x.data(), theirs.data(), 1e-3);
    return test::result();
}
