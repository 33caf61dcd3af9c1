// SPDX-License-Identifier: MIT
// Tests what native/kernels/products.inc and norm.inc guarantee. The bits of a row's result depend neither on the
// number of rows, nor on the row's position among them, nor on which outputs a thread computes, nor on the instruction
// set. Weights are random bytes, because every bit pattern is a weight. The program needs no library, so it can be
// cross-compiled and run in an emulator. Each argument names an instruction set that this run must test.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <random>
#include <vector>

#include <sys/mman.h>
#include <unistd.h>

#include "check.h"
#include "tables.h"

using namespace eaglecpp::kernels;

#if defined(EAGLECPP_KERNELS_X86)
namespace eaglecpp::kernels {
const PackedProduct * products_avx_vnni_emulated(ggml_type type);
}
#endif

namespace {

// Memory that ends at a page boundary. The next page is unreadable.
template <class T>
class Guarded {
  public:
    explicit Guarded(size_t n) : n_(n) {
        const size_t n_page = (size_t)sysconf(_SC_PAGESIZE);
        n_mapped_ = (n * sizeof(T) + n_page - 1) / n_page * n_page + n_page;
        base_ = (uint8_t *)mmap(nullptr, n_mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        mprotect(base_ + n_mapped_ - n_page, n_page, PROT_NONE);
        data_ = (T *)(base_ + n_mapped_ - n_page - n * sizeof(T));
    }
    Guarded(size_t n, const T * from) : Guarded(n) { std::copy_n(from, n, data_); }
    ~Guarded() { munmap(base_, n_mapped_); }
    Guarded(const Guarded &) = delete;
    Guarded & operator=(const Guarded &) = delete;
    T * data() { return data_; }
    T & operator[](size_t i) { return data_[i]; }
    size_t size() const { return n_; }

  private:
    size_t n_, n_mapped_;
    uint8_t * base_;
    T * data_;
};

struct Type {
    const char * name;
    ggml_type type;
    int n_unit, n_source;
    std::vector<int> halves;  // offsets of the half-precision scales in a unit
};

const std::vector<Type> types = {
    {"Q8_0", GGML_TYPE_Q8_0, 32, 34, {0}},       {"Q4_0", GGML_TYPE_Q4_0, 32, 18, {0}},
    {"Q4_1", GGML_TYPE_Q4_1, 32, 20, {0, 2}},    {"Q5_0", GGML_TYPE_Q5_0, 32, 22, {0}},
    {"Q5_1", GGML_TYPE_Q5_1, 32, 24, {0, 2}},    {"IQ4_NL", GGML_TYPE_IQ4_NL, 32, 18, {0}},
    {"MXFP4", GGML_TYPE_MXFP4, 32, 17, {}},      {"Q2_K", GGML_TYPE_Q2_K, 256, 84, {80, 82}},
    {"Q3_K", GGML_TYPE_Q3_K, 256, 110, {108}},   {"Q4_K", GGML_TYPE_Q4_K, 256, 144, {0, 2}},
    {"Q5_K", GGML_TYPE_Q5_K, 256, 176, {0, 2}},  {"Q6_K", GGML_TYPE_Q6_K, 256, 210, {208}},
    {"IQ4_XS", GGML_TYPE_IQ4_XS, 256, 136, {0}},
};

constexpr int n_all_rows = 40;

std::mt19937 rng(1);

std::vector<uint8_t> random_weights(const Type & t, int64_t n_in, int64_t n_out) {
    std::vector<uint8_t> w((size_t)(n_in / t.n_unit) * n_out * t.n_source);
    for (uint8_t & b : w) b = (uint8_t)rng();
    const size_t n_row = w.size() / n_out;
    // the first output has the largest weights; for most types, it also has the smallest weights
    std::fill_n(w.begin(), n_row, 0xFF);
    if (n_out > 1) std::fill_n(w.begin() + n_row, n_row, 0);
    for (size_t unit = 0; unit < w.size(); unit += t.n_source) {
        for (int at : t.halves) {
            // Scales are from 2^-7 to 2, so sums never become infinite.
            const uint16_t half = (uint16_t)((rng() & 0x83ff) | ((8 + rng() % 8) << 10));
            std::memcpy(&w[unit + at], &half, 2);
        }
        if (t.type == GGML_TYPE_MXFP4) w[unit] = (uint8_t)(rng() % 8 == 0 ? rng() % 2 : 110 + rng() % 20);
    }
    return w;
}

std::vector<float> random_rows(int64_t n_in, int n_rows) {
    std::normal_distribution<float> normal;
    std::vector<float> x((size_t)n_in * n_rows);
    for (float & v : x) v = normal(rng);
    if (n_rows > 3) {
        std::fill_n(&x[n_in], 32, 0.0f);  // the scale of this block of zeros is 0
        // All inputs become 127 or -127, which brings integer sums closest to an overflow.
        std::fill_n(&x[2 * n_in], n_in, 1.0f);
        std::fill_n(&x[3 * n_in], n_in, -1.0f);
    }
    return x;
}

// Returns y[row][output] for rows in the order `order`. The outputs are computed in as many pieces as n_threads threads
// would compute.
std::vector<float> multiply(const KernelTable & table, const Type & t, const std::vector<uint8_t> & weights,
                            int64_t n_in, int64_t n_out, const std::vector<float> & x, const std::vector<int> & order,
                            int n_threads) {
    const PackedProduct & p = *table.packed(t.type);
    const int64_t n_groups = (n_out + n_group - 1) / n_group;
    Guarded<uint8_t> packed(p.group_bytes(n_in) * n_groups), file(weights.size(), weights.data());
    uint8_t * base = packed.data();
    const size_t n_row = (size_t)(n_in / t.n_unit) * t.n_source;
    for (int64_t g = 0; g < n_groups; ++g) {
        const int n = (int)std::min<int64_t>(n_group, n_out - g * n_group);
        p.pack(&file[g * n_group * n_row], n_row, n, n_in, base + g * p.group_bytes(n_in));
    }
    const size_t n_act = table.row_bytes(n_in);
    Guarded<uint8_t> rounded(n_act * order.size());
    Guarded<float> y(order.size() * n_out), inputs(x.size(), x.data());
    std::vector<const uint8_t *> rows;
    std::vector<float *> out;
    std::fill_n(y.data(), y.size(), NAN);
    for (size_t i = 0; i < order.size(); ++i) {
        p.quantize(&inputs[(size_t)order[i] * n_in], n_in, &rounded[i * n_act]);
        rows.push_back(&rounded[i * n_act]);
        out.push_back(&y[i * n_out]);
    }
    for (int i = 0; i < n_threads; ++i) {
        const int64_t g0 = n_groups * i / n_threads, g1 = n_groups * (i + 1) / n_threads;
        if (g0 < g1) p.multiply(base, n_in, n_out, g0, g1, rows.data(), (int)rows.size(), out.data());
    }
    return std::vector<float>(y.data(), y.data() + y.size());
}

std::vector<float> multiply_dense(const KernelTable & table, ggml_type type, const std::vector<uint8_t> & weights,
                                  int64_t n_in, int64_t n_out, const std::vector<float> & x,
                                  const std::vector<int> & order, int n_threads) {
    Guarded<uint8_t> file(weights.size(), weights.data());
    Guarded<float> y(order.size() * n_out), inputs((size_t)n_in * n_all_rows, x.data());
    std::vector<const float *> rows;
    std::vector<float *> out;
    std::fill_n(y.data(), y.size(), NAN);
    for (size_t i = 0; i < order.size(); ++i) rows.push_back(&inputs[order[i] * n_in]), out.push_back(&y[i * n_out]);
    for (int i = 0; i < n_threads; ++i) {
        const int64_t o0 = n_out * i / n_threads, o1 = n_out * (i + 1) / n_threads;
        if (o0 == o1) continue;
        table.dense(type)(file.data(), weights.size() / n_out, n_in, o0, o1, rows.data(), (int)rows.size(), out.data());
    }
    return std::vector<float>(y.data(), y.data() + y.size());
}

std::vector<uint8_t> random_dense(ggml_type type, int64_t n) {
    const size_t n_bytes = type == GGML_TYPE_F32 ? 4 : 2;
    std::vector<uint8_t> w((size_t)n * n_bytes);
    std::normal_distribution<float> normal;
    for (int64_t i = 0; i < n; ++i) {
        const float v = normal(rng);
        uint32_t bits;
        std::memcpy(&bits, &v, 4);
        if (type == GGML_TYPE_F32) {
            std::memcpy(&w[4 * i], &v, 4);
        } else {
            uint16_t half = (uint16_t)(bits >> 16);
            // some of these numbers are subnormal
            if (type == GGML_TYPE_F16) half = (uint16_t)((rng() & 0x83ff) | ((rng() % 16) << 10));
            std::memcpy(&w[2 * i], &half, 2);
        }
    }
    return w;
}

// Tests all numbers and orders of rows, all numbers of threads and all instruction sets.
template <class Multiply>
void check_rows(const char * what, const std::vector<const KernelTable *> & tables, int64_t n_in, int64_t n_out,
                bool is_long, const Multiply & run) {
    std::vector<float> expected;
    for (const KernelTable * table : tables) {
        // Results of runs with a single row.
        std::vector<float> single;
        for (int r = 0; r < n_all_rows; ++r) {
            const std::vector<float> y = run(*table, std::vector<int>{r}, 1);
            single.insert(single.end(), y.begin(), y.end());
        }
        if (expected.empty()) expected = single;
        if (std::memcmp(expected.data(), single.data(), single.size() * 4) != 0) {
            std::printf("%s, %s, %d x %d: the bits differ from %s\n", what, table->name, (int)n_in, (int)n_out,
                        tables.front()->name);
            CHECK(false);
        }
        if (is_long && table != tables.back()) continue;
        for (int n : {2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, n_all_rows}) {
            std::vector<int> order;
            for (int i = 0; i < n; ++i) order.push_back((7 * i + n) % n_all_rows);
            const std::vector<float> y = run(*table, order, 1 + n % 16);
            for (int i = 0; i < n; ++i) {
                if (std::memcmp(&y[(size_t)i * n_out], &expected[(size_t)order[i] * n_out], n_out * 4) == 0) continue;
                std::printf("%s, %s, %d x %d: row %d of %d differs\n", what, table->name, (int)n_in, (int)n_out, i, n);
                CHECK(false);
            }
        }
    }
}

// Tests norms. The results of the first instruction set are compared with double precision. The results of the other
// instruction sets, also in place, are compared with the first.
void check_norms(const std::vector<const KernelTable *> & tables) {
    for (int n : {1, 2, 15, 16, 17, 31, 63, 64, 65, 576, 1000}) {
        Guarded<float> x(n), w(n);
        for (Guarded<float> * row : {&x, &w}) {
            const std::vector<float> values = random_rows(n, 1);
            std::copy(values.begin(), values.end(), row->data());
        }
        double squares = 0;
        for (int i = 0; i < n; ++i) squares += (double)x[i] * x[i];
        Guarded<float> first_normed(n), first(n);
        tables.front()->norm_row(x.data(), n, 1e-5f, w.data(), first_normed.data(), first.data());
        for (int i = 0; i < n; ++i) {
            const double exact = x[i] / std::sqrt(squares / n + 1e-5);
            CHECK_NEAR(first_normed[i], exact, 1e-5 * std::fabs(exact) + 1e-12);
            CHECK_NEAR(first[i], exact * w[i], 1e-5 * std::fabs(exact * w[i]) + 1e-12);
        }
        for (const KernelTable * t : tables) {
            Guarded<float> normed(n), scaled(n), in_place(n, x.data());
            t->norm_row(x.data(), n, 1e-5f, w.data(), normed.data(), scaled.data());
            t->norm_row(in_place.data(), n, 1e-5f, w.data(), nullptr, in_place.data());
            CHECK_MSG(std::memcmp(normed.data(), first_normed.data(), n * sizeof(float)) == 0, t->name);
            for (Guarded<float> * found : {&scaled, &in_place}) {
                CHECK_MSG(std::memcmp(found->data(), first.data(), n * sizeof(float)) == 0, t->name);
            }
        }
    }
}

void check_choice_by_processor() {
    const auto names = [](std::initializer_list<bool Processor::*> offers) {
        Processor processor;
        for (bool Processor::* offer : offers) processor.*offer = true;
        std::string all;
        for (const KernelTable * t : usable_tables(processor)) all += std::string(t->name) + " ";
        return all;
    };
    using P = Processor;
    CHECK(names({}) == "");
#if defined(EAGLECPP_KERNELS_X86)
    CHECK(names({&P::avx2}) == "avx2 ");                                      // Haswell
    CHECK(names({&P::avx2, &P::avx512}) == "avx2 ");                          // Skylake-X
    CHECK(names({&P::avx2, &P::avx512, &P::avx512_vnni}) == "avx512 avx2 ");  // Cascade Lake
    CHECK(names({&P::avx2, &P::avx_vnni}) == "avx_vnni avx2 ");               // Alder Lake
#elif defined(EAGLECPP_KERNELS_ARM)
    CHECK(names({&P::dot_products}) == "neon ");
    CHECK(names({&P::dot_products, &P::i8mm}) == "neon_i8mm neon ");
#endif
}

}  // namespace

int main(int argc, char ** argv) {
    check_choice_by_processor();
    std::vector<const KernelTable *> tables = tested_tables();
#if defined(EAGLECPP_KERNELS_X86)
    KernelTable emulated;
    const auto is_avx2 = [](const KernelTable * t) { return std::strcmp(t->name, "avx2") == 0; };
    if (const auto avx2 = std::find_if(tables.begin(), tables.end(), is_avx2); avx2 != tables.end()) {
        emulated = with_products(**avx2, "avx_vnni_emulated", products_avx_vnni_emulated);
        tables.insert(tables.end() - 1, &emulated);
    }
#endif
    for (const KernelTable * t : tables) std::printf("%s ", t->name);
    std::printf("\n");
    for (int i = 1; i < argc; ++i) {
        const auto is_wanted = [&](const KernelTable * t) { return std::strcmp(t->name, argv[i]) == 0; };
        const bool is_tested = std::any_of(tables.begin(), tables.end(), is_wanted);
        CHECK_MSG(is_tested, std::string(argv[i]) + " cannot be used here");
    }
    std::swap(tables.front(), tables.back());  // the portable version is the reference
    check_norms(tables);
    for (const Type & t : types) {
        for (int64_t n_in : {(int64_t)t.n_unit, (int64_t)t.n_unit * 3, (int64_t)768, (int64_t)2304}) {
            for (int64_t n_out : {1, 16, 17, 31, 48, 83}) {
                const std::vector<uint8_t> w = random_weights(t, n_in, n_out);
                const std::vector<float> x = random_rows(n_in, n_all_rows);
                check_rows(t.name, tables, n_in, n_out, n_in * n_out > 20000,
                           [&](const KernelTable & table, const std::vector<int> & order, int n_threads) {
                               return multiply(table, t, w, n_in, n_out, x, order, n_threads);
                           });
            }
        }
    }
    for (ggml_type type : {GGML_TYPE_F32, GGML_TYPE_F16, GGML_TYPE_BF16}) {
        for (int64_t n_in : {1, 15, 16, 31, 200, 576}) {
            for (int64_t n_out : {1, 3, 4, 7, 40}) {
                const std::vector<uint8_t> w = random_dense(type, n_in * n_out);
                const std::vector<float> x = random_rows(std::max<int64_t>(n_in, 32), n_all_rows);
                check_rows("dense", tables, n_in, n_out, false,
                           [&](const KernelTable & table, const std::vector<int> & order, int n_threads) {
                               return multiply_dense(table, type, w, n_in, n_out, x, order, n_threads);
                           });
            }
        }
    }
    return eaglecpp::test::result();
}
