// SPDX-License-Identifier: MIT
// Compares the attention kernel with double precision. Tests what the kernel guarantees: the bits of a row's result
// depend neither on the other rows, nor on the positions of the cells in the cache, nor on the number of threads, nor
// on the instruction set.
#include <ggml.h>

#include <cmath>
#include <condition_variable>
#include <cstring>
#include <functional>
#include <limits>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "../check.h"
#include "kernels/attention.h"
#include "tables.h"

// Waits until all threads of a run have reached a barrier.
struct ggml_threadpool {
    int n_threads = 1, n_waiting = 0, n_rounds = 0;
    std::mutex mutex;
    std::condition_variable all_here;

    void wait() {
        std::unique_lock<std::mutex> lock(mutex);
        const int round = n_rounds;
        if (++n_waiting == n_threads) {
            n_waiting = 0;
            ++n_rounds;
            all_here.notify_all();
        } else {
            all_here.wait(lock, [&] { return n_rounds != round; });
        }
    }
};

using namespace eaglecpp::kernels;

namespace {

constexpr float hidden = -std::numeric_limits<float>::infinity();

// Cache types that llama.cpp supports.
constexpr ggml_type cache_types[] = {GGML_TYPE_F16,  GGML_TYPE_BF16, GGML_TYPE_F32,  GGML_TYPE_Q8_0,  GGML_TYPE_Q4_0,
                                     GGML_TYPE_Q4_1, GGML_TYPE_Q5_0, GGML_TYPE_Q5_1, GGML_TYPE_IQ4_NL};

// Rows, cells and the mask of a test. Cells are numbered in text order. A run decides where the cells are in the cache.
struct Scene {
    std::string name;
    ggml_type type_k = GGML_TYPE_F16, type_v = GGML_TYPE_F16;
    int dk = 64, dv = 64, n_heads = 6, n_kv_heads = 2, n_batches = 1, n_rows = 5, n_cells = 77;
    float scale = 0.125f, softcap = 0, max_bias = 0;
    bool has_sinks = false, has_mask = true;
    int n_mask_heads = 1;
    // Mask value by row, cell and head. If empty, the mask is causal, but the last row sees all cells.
    std::function<float(int, int, int)> seen;

    // The shapes are q: [batch][row][head][dk], k: [batch][cell][kv_head][dk], v: [batch][cell][kv_head][dv], sinks:
    // [head].
    std::vector<float> q, k, v, sinks;
    std::vector<uint8_t> k_rows, v_rows;

    void fill(unsigned seed) {
        std::mt19937 random(seed);
        std::normal_distribution<float> normal;
        auto make = [&](size_t n) {
            std::vector<float> x(n);
            for (float & f : x) f = normal(random);
            return x;
        };
        q = make((size_t)n_batches * n_rows * n_heads * dk);
        k = make((size_t)n_batches * n_cells * n_kv_heads * dk);
        v = make((size_t)n_batches * n_cells * n_kv_heads * dv);
        sinks = make(n_heads);
        round();
    }

    // Rounds k and v to the type of the cache.
    void round() {
        for (bool is_k : {true, false}) {
            const ggml_type type = is_k ? type_k : type_v;
            std::vector<float> & x = is_k ? k : v;
            std::vector<uint8_t> & rows = is_k ? k_rows : v_rows;
            const int64_t width = (int64_t)n_kv_heads * (is_k ? dk : dv), n = (int64_t)x.size() / width;
            rows.resize(ggml_row_size(type, width) * n);
            if (type == GGML_TYPE_F32) {
                std::memcpy(rows.data(), x.data(), rows.size());
                continue;
            }
            ggml_quantize_chunk(type, x.data(), rows.data(), 0, n, width, nullptr);
            ggml_get_type_traits(type)->to_float(rows.data(), x.data(), (int64_t)x.size());
        }
    }

    float mask(int row, int cell, int head) const {
        if (!has_mask) return 0;
        if (seen) return seen(row, cell, head);
        return cell <= n_cells - n_rows + row ? 0 : hidden;
    }
};

// The rows and threads of a run, and the layout of its cache.
struct Run {
    int first_row = 0, n_rows = -1;  // -1 means all rows
    int n_threads = 1;
    std::vector<int> positions;  // positions of the cells in the cache; if empty, the cells follow each other
    int n_cache = -1;            // number of cells in the cache; -1 means as many as needed
};

Run rows(int first, int n) {
    Run run;
    run.first_row = first;
    run.n_rows = n;
    return run;
}

// Returns the attention of the run's rows: [batch][row][head][dv].
std::vector<float> compute(const KernelTable & table, const Scene & s, const Run & run) {
    const int n_rows = run.n_rows < 0 ? s.n_rows : run.n_rows;
    const int n_cache = run.n_cache < 0 ? s.n_cells : run.n_cache;
    auto position = [&](int cell) { return run.positions.empty() ? cell : run.positions[cell]; };
    const size_t n_bytes = (size_t)n_cache * s.n_kv_heads * s.n_batches * (s.dk + s.dv) * 4 +
                           (size_t)n_rows * n_cache * 2 * s.n_batches * s.n_mask_heads +
                           (size_t)n_rows * s.n_heads * (s.dk + s.dv) * 4 * s.n_batches + (1 << 20);
    ggml_context * ctx = ggml_init({n_bytes, nullptr, false});
    // In llama.cpp's layout, heads are adjacent, and are then permuted to [size, rows, heads].
    ggml_tensor * q = ggml_new_tensor_4d(ctx, GGML_TYPE_F32, s.dk, s.n_heads, n_rows, s.n_batches);
    ggml_tensor * k = ggml_new_tensor_4d(ctx, s.type_k, s.dk, s.n_kv_heads, n_cache, s.n_batches);
    ggml_tensor * v = ggml_new_tensor_4d(ctx, s.type_v, s.dv, s.n_kv_heads, n_cache, s.n_batches);
    // Cells that are not written get the byte 0xFF, which means NaN in every type.
    std::memset(k->data, 0xFF, ggml_nbytes(k));
    std::memset(v->data, 0xFF, ggml_nbytes(v));
    for (int b = 0; b < s.n_batches; ++b) {
        const size_t n_row = (size_t)s.n_heads * s.dk;
        std::memcpy((float *)q->data + b * n_rows * n_row, &s.q[((size_t)b * s.n_rows + run.first_row) * n_row],
                    n_rows * n_row * sizeof(float));
        for (int c = 0; c < s.n_cells; ++c) {
            for (ggml_tensor * t : {k, v}) {
                const std::vector<uint8_t> & rows = t == k ? s.k_rows : s.v_rows;
                const size_t n = t->nb[2];
                std::memcpy((char *)t->data + b * t->nb[3] + position(c) * n, &rows[((size_t)b * s.n_cells + c) * n],
                            n);
            }
        }
    }
    ggml_tensor * mask = nullptr;
    if (s.has_mask) {
        mask = ggml_new_tensor_4d(ctx, GGML_TYPE_F16, n_cache, n_rows, s.n_mask_heads, 1);
        auto * m = (ggml_fp16_t *)mask->data;
        for (int64_t i = 0; i < ggml_nelements(mask); ++i) m[i] = ggml_fp32_to_fp16(hidden);
        for (int h = 0; h < s.n_mask_heads; ++h) {
            for (int r = 0; r < n_rows; ++r) {
                for (int c = 0; c < s.n_cells; ++c) {
                    m[((size_t)h * n_rows + r) * n_cache + position(c)] =
                        ggml_fp32_to_fp16(s.mask(run.first_row + r, c, h));
                }
            }
        }
    }
    ggml_tensor * op = ggml_flash_attn_ext(ctx, ggml_permute(ctx, q, 0, 2, 1, 3), ggml_permute(ctx, k, 0, 2, 1, 3),
                                           ggml_permute(ctx, v, 0, 2, 1, 3), mask, s.scale, s.max_bias, s.softcap);
    if (s.has_sinks) {
        ggml_tensor * sinks = ggml_new_tensor_1d(ctx, GGML_TYPE_F32, s.n_heads);
        std::memcpy(sinks->data, s.sinks.data(), s.n_heads * sizeof(float));
        ggml_flash_attn_ext_add_sinks(op, sinks);
    }
    CHECK_MSG(attention_fits(op), s.name);
    std::memset(op->data, 0xFF, ggml_nbytes(op));

    const size_t n_work = table.attention_work_size(run.n_threads, op);
    std::vector<uint8_t> work(n_work + 16, 0xFF);  // work memory that is uninitialised and unaligned
    ggml_threadpool pool;
    pool.n_threads = run.n_threads;
    std::vector<std::thread> threads;
    for (int i = 0; i < run.n_threads; ++i) {
        threads.emplace_back(
            [&, i] { table.attention({i, run.n_threads, n_work, work.data() + 8, &pool, false}, op); });
    }
    for (std::thread & t : threads) t.join();
    for (int i = 0; i < 8; ++i) CHECK_MSG(work[i] == 0xFF && work[n_work + 8 + i] == 0xFF, s.name);
    std::vector<float> out((float *)op->data, (float *)op->data + ggml_nelements(op));
    ggml_free(ctx);
    return out;
}

std::vector<double> exact(const Scene & s) {
    std::vector<double> out((size_t)s.n_batches * s.n_rows * s.n_heads * s.dv);
    int n_log2 = 1;
    while (2 * n_log2 <= s.n_heads) n_log2 *= 2;
    for (int b = 0; b < s.n_batches; ++b) {
        for (int r = 0; r < s.n_rows; ++r) {
            for (int h = 0; h < s.n_heads; ++h) {
                const double slope = s.max_bias <= 0 ? 1
                                     : h < n_log2    ? std::pow(2.0, -s.max_bias / n_log2 * (h + 1))
                                                     : std::pow(2.0, -s.max_bias / 2 / n_log2 * (2 * (h - n_log2) + 1));
                const float * q = &s.q[(((size_t)b * s.n_rows + r) * s.n_heads + h) * s.dk];
                std::vector<double> score(s.n_cells);
                double most = s.has_sinks ? s.sinks[h] : -INFINITY;
                const int kv = h / (s.n_heads / s.n_kv_heads);
                for (int c = 0; c < s.n_cells; ++c) {
                    const float * k = &s.k[(((size_t)b * s.n_cells + c) * s.n_kv_heads + kv) * s.dk];
                    double x = 0;
                    for (int i = 0; i < s.dk; ++i) x += (double)q[i] * k[i];
                    x *= s.scale;
                    if (s.softcap != 0) x = s.softcap * std::tanh(x / s.softcap);
                    const float m = s.mask(r, c, h % s.n_mask_heads);
                    score[c] = m == hidden ? -INFINITY : x + slope * ggml_fp16_to_fp32(ggml_fp32_to_fp16(m));
                    most = std::max(most, score[c]);
                }
                double * o = &out[(((size_t)b * s.n_rows + r) * s.n_heads + h) * s.dv];
                if (most == -INFINITY) continue;
                double total = s.has_sinks ? std::exp(s.sinks[h] - most) : 0;
                for (int c = 0; c < s.n_cells; ++c) {
                    const float * v = &s.v[(((size_t)b * s.n_cells + c) * s.n_kv_heads + kv) * s.dv];
                    const double p = std::exp(score[c] - most);
                    total += p;
                    for (int i = 0; i < s.dv; ++i) o[i] += p * v[i];
                }
                for (int i = 0; i < s.dv; ++i) o[i] /= total;
            }
        }
    }
    return out;
}

bool same_bits(const float * a, const float * b, size_t n) {
    return std::memcmp(a, b, n * sizeof(float)) == 0;
}

bool same_bits(const std::vector<float> & a, const std::vector<float> & b) {
    return a.size() == b.size() && same_bits(a.data(), b.data(), a.size());
}

// Returns the mask for a window of 20 cells, some of which are missing.
float window(int row, int cell, int) {
    const int last = 70 + row;
    return cell <= last && cell > last - 20 && cell % 7 != 3 ? 0.0f : hidden;
}

std::vector<Scene> scenes() {
    std::vector<Scene> all;
    auto add = [&](const char * name, const std::function<void(Scene &)> & change) {
        Scene s;
        s.name = name;
        change(s);
        s.fill((unsigned)all.size() + 1);
        all.push_back(s);
    };
    add("as most models", [](Scene &) {});
    for (ggml_type k : cache_types) {
        for (ggml_type v : cache_types) {
            add("types", [&](Scene & s) {
                s.type_k = k, s.type_v = v, s.name += std::string(" ") + ggml_type_name(k) + " " + ggml_type_name(v);
            });
        }
        add("one row", [&](Scene & s) { s.type_k = s.type_v = k, s.n_rows = 1, s.n_cells = 200; });
        add("one head, one cell",
            [&](Scene & s) { s.type_k = s.type_v = k, s.n_heads = s.n_kv_heads = s.n_rows = s.n_cells = 1; });
    }
    for (int d : {1, 8, 17, 40, 80, 96, 100, 128, 192, 256, 576}) {
        for (ggml_type type : {GGML_TYPE_F16, GGML_TYPE_BF16, GGML_TYPE_F32}) {
            add("head size", [&](Scene & s) {
                s.dk = s.dv = d, s.type_k = s.type_v = type, s.scale = 1 / std::sqrt((float)d);
                s.name += " " + std::to_string(d) + " " + ggml_type_name(type);
            });
        }
    }
    add("keys larger than values", [](Scene & s) { s.dk = 192, s.dv = 128, s.scale = 0.07f; });
    add("values larger than keys", [](Scene & s) { s.dk = 40, s.dv = 72; });
    for (int n : {1, 2, 15, 16, 17, 31, 63, 64, 65, 129, 1000}) {
        add("cells", [&](Scene & s) { s.n_cells = n, s.n_rows = std::min(n, 3), s.name += " " + std::to_string(n); });
    }
    for (int n : {1, 2, 3, 4, 5, 7, 8, 9, 71}) {
        add("heads that share", [&](Scene & s) { s.n_heads = 2 * n, s.name += " " + std::to_string(n); });
    }
    add("no mask", [](Scene & s) { s.has_mask = false; });
    add("softcap", [](Scene & s) { s.softcap = 5, s.scale = 1; });
    add("softcap, far scores", [](Scene & s) { s.softcap = 50, s.scale = 20; });
    add("sinks", [](Scene & s) { s.has_sinks = true; });
    add("sinks above all scores", [](Scene & s) { s.has_sinks = true, s.scale = 1e-3f; });
    add("window with holes", [](Scene & s) { s.seen = window, s.n_cells = 80; });
    add("alibi", [](Scene & s) {
        s.max_bias = 8;
        s.seen = [](int row, int cell, int) { return cell <= 72 + row ? (float)(cell - 72 - row) : hidden; };
    });
    add("a separate mask for each head", [](Scene & s) {
        s.n_mask_heads = 6;
        s.seen = [](int row, int cell, int head) {
            return (cell * 5 + row + head) % (head + 2) ? 0.25f * head : hidden;
        };
    });
    add("rows that see nothing",
        [](Scene & s) { s.seen = [](int row, int cell, int) { return row % 2 && cell < 40 ? 0 : hidden; }; });
    add("rows that see nothing but a sink", [](Scene & s) {
        s.has_sinks = true;
        s.seen = [](int row, int cell, int) { return row % 2 && cell < 40 ? 0 : hidden; };
    });
    add("conversations that take turns", [](Scene & s) {
        s.n_cells = 900;
        s.seen = [](int row, int cell, int) { return cell % 3 == row / 2 % 3 ? 0 : hidden; };
    });
    add("batches", [](Scene & s) { s.n_batches = 3; });
    add("far apart", [](Scene & s) { s.scale = 30; });  // most weights are zero
    add("many heads", [](Scene & s) { s.n_heads = 600, s.n_kv_heads = 300, s.n_rows = 2; });
    return all;
}

void results_are_right_and_equal_on_all_instruction_sets(const std::vector<const KernelTable *> & tables) {
    for (const Scene & s : scenes()) {
        const std::vector<double> wanted = exact(s);
        const std::vector<float> portable = compute(*tables.back(), s, {});
        double most = 0;
        // Scores of some hundreds are themselves rounded to 24 bits.
        const double tolerance = 2e-6 * (1 + (s.softcap != 0 ? s.softcap : s.scale * std::sqrt((double)s.dk) * 8));
        for (size_t i = 0; i < wanted.size(); ++i) most = std::max(most, std::fabs(wanted[i] - portable[i]));
        CHECK_MSG(most <= tolerance, s.name + ": " + std::to_string(most) + " of " + std::to_string(tolerance));
        for (const KernelTable * t : tables) {
            CHECK_MSG(same_bits(portable, compute(*t, s, {})), s.name + ", " + t->name);
        }
    }
}

// Returns a scene with the rows of a draft tree after 83 common cells. Each row sees its ancestors. A few rows see
// fewer cells.
Scene tree(int n_rows, ggml_type type, int dk) {
    Scene s;
    s.n_rows = n_rows;
    s.type_k = s.type_v = type;
    s.dk = s.dv = dk;
    s.n_cells = 83 + n_rows;
    s.has_sinks = true;
    s.seen = [](int row, int cell, int) {
        if (cell < 83) return row % 5 == 4 && cell % 3 == 0 ? hidden : 0.0f;
        for (int node = row; node >= 0; node = node > 0 ? (node - 1) / 2 : -1) {
            if (cell == 83 + node) return 0.0f;
        }
        return hidden;
    };
    s.fill(7);
    s.name = "tree " + std::to_string(n_rows) + " " + ggml_type_name(type);
    return s;
}

void rows_do_not_depend_on_their_neighbours(const KernelTable & table, bool is_fast) {
    for (ggml_type type : cache_types) {
        const int n_all = is_fast && type == GGML_TYPE_F16 ? 150 : 40;
        Scene s = tree(n_all, type, type == GGML_TYPE_BF16 ? 48 : 64);
        if (type != GGML_TYPE_F16) s.scale = 4;  // with this scale, the maximum changes often and some weights are zero
        const size_t n_row = (size_t)s.n_heads * s.dv;
        std::vector<float> alone;
        for (int r = 0; r < n_all; ++r) {
            const std::vector<float> one = compute(table, s, rows(r, 1));
            alone.insert(alone.end(), one.begin(), one.end());
        }
        for (int n = 2; n <= n_all; n = n == 17 ? 40 : n < 17 ? n + 1 : n == 40 && n_all > 40 ? n_all : n_all + 1) {
            for (int first = 0; first + n <= n_all; first += n) {
                const std::vector<float> some = compute(table, s, rows(first, n));
                CHECK_MSG(
                    same_bits(some.data(), &alone[first * n_row], some.size()),
                    s.name + ", rows " + std::to_string(n) + " from " + std::to_string(first) + ", " + table.name);
            }
        }
    }
}

// The result depends neither on the number of threads, nor on the positions of the cells, nor on unrelated cells
// between them.
void threads_and_positions_change_nothing(const KernelTable & table) {
    std::vector<Scene> scenes = {tree(1, GGML_TYPE_F16, 64), tree(1, GGML_TYPE_F16, 64), tree(5, GGML_TYPE_BF16, 64),
                                 tree(6, GGML_TYPE_F16, 80), tree(130, GGML_TYPE_F16, 64)};
    for (int i : {0, 1}) scenes[i].n_cells = 700, scenes[i].seen = nullptr;
    scenes[1].n_heads = scenes[1].n_kv_heads = 1;
    scenes[2].n_batches = 3;
    for (int i : {0, 1, 2}) scenes[i].fill(3 + i);
    for (ggml_type type : cache_types) {
        for (int n_rows : {1, 4, 20}) scenes.push_back(tree(n_rows, type, 64));
    }
    // Each row belongs to another conversation. So a row may see none of the cells of a thread.
    scenes.push_back(tree(4, GGML_TYPE_F16, 64));
    scenes.back().n_cells = 700;
    scenes.back().seen = [](int row, int cell, int) { return cell / 175 == row ? 0 : hidden; };
    scenes.back().fill(8);
    std::mt19937 random(11);
    for (const Scene & s : scenes) {
        const std::vector<float> wanted = compute(table, s, {});
        for (int n = 1; n <= 16; ++n) {
            Run run;
            run.n_threads = n;
            int at = n == 2 ? 256 : 0;  // with n = 2, the first 256 cells of the cache belong to another conversation
            for (int c = 0; c < s.n_cells; ++c) {
                run.positions.push_back(at);
                at += 1 + (n % 3 && random() % 8 == 0 ? (int)(random() % (n % 3 == 1 ? 3 : 40)) : 0);
            }
            run.n_cache = at + (int)(random() % 200);
            CHECK_MSG(same_bits(wanted, compute(table, s, run)),
                      s.name + ", " + std::to_string(n) + " threads, " + table.name);
        }
    }
}

// If a cell contains infinity or NaN, rows that do not see this cell must not change.
void infinity_and_nan_stay_with_the_rows_that_see_them(const KernelTable & table) {
    for (ggml_type type : {GGML_TYPE_F16, GGML_TYPE_F32, GGML_TYPE_BF16}) {
        for (float poison : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
            for (int n_rows : {2, 12}) {
                Scene s = tree(n_rows, type, 64);
                std::vector<float> wanted;
                for (int r = 0; r < n_rows; ++r) {
                    const std::vector<float> one = compute(table, s, rows(r, 1));
                    wanted.insert(wanted.end(), one.begin(), one.end());
                }
                // Only node 1 and its descendants see the cell of node 1.
                const size_t width = (size_t)s.n_kv_heads * s.dv;
                for (size_t i = 0; i < width; ++i) s.v[84 * width + i] = poison;
                s.round();
                const std::vector<float> found = compute(table, s, {});
                const size_t n_row = (size_t)s.n_heads * s.dv;
                for (int r = 0; r < n_rows; ++r) {
                    bool sees = false;
                    for (int node = r; node > 0; node = (node - 1) / 2) sees |= node == 1;
                    const bool is_same = same_bits(&found[r * n_row], &wanted[r * n_row], n_row);
                    CHECK_MSG(is_same != sees, s.name + ", row " + std::to_string(r) + ", " + table.name);
                    if (sees) CHECK_MSG(!std::isfinite(found[r * n_row]), s.name);
                }
            }
        }
    }
}

void other_operations_are_left_to_ggml() {
    ggml_context * ctx = ggml_init({1 << 20, nullptr, true});
    auto op = [&](ggml_type q, ggml_type k, ggml_type v) {
        return ggml_flash_attn_ext(ctx, ggml_new_tensor_4d(ctx, q, 64, 4, 6, 1),
                                   ggml_new_tensor_4d(ctx, k, 64, 32, 2, 1), ggml_new_tensor_4d(ctx, v, 64, 32, 2, 1),
                                   nullptr, 1, 0, 0);
    };
    CHECK(attention_fits(op(GGML_TYPE_F32, GGML_TYPE_F16, GGML_TYPE_Q8_0)));
    CHECK(!attention_fits(op(GGML_TYPE_F32, GGML_TYPE_MXFP4, GGML_TYPE_F16)));
    CHECK(!attention_fits(op(GGML_TYPE_F32, GGML_TYPE_F16, GGML_TYPE_Q8_1)));
    CHECK(!attention_fits(op(GGML_TYPE_F16, GGML_TYPE_F16, GGML_TYPE_F16)));
    ggml_tensor * product =
        ggml_mul_mat(ctx, ggml_new_tensor_2d(ctx, GGML_TYPE_F32, 8, 8), ggml_new_tensor_2d(ctx, GGML_TYPE_F32, 8, 8));
    CHECK(!attention_fits(product));
    ggml_free(ctx);
}

}  // namespace

int main() {
    barrier_of_ggml = [](ggml_threadpool * pool) { pool->wait(); };
    const std::vector<const KernelTable *> tables = tested_tables();
    results_are_right_and_equal_on_all_instruction_sets(tables);
    for (const KernelTable * t : tables) {
        rows_do_not_depend_on_their_neighbours(*t, t != tables.back());
        threads_and_positions_change_nothing(*t);
        infinity_and_nan_stay_with_the_rows_that_see_them(*t);
    }
    other_operations_are_left_to_ggml();
    return eaglecpp::test::result();
}
