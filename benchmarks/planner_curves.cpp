// SPDX-License-Identifier: MIT
// Runs the planner on machines with published costs per row, and with drafters with published tokens per round. Prints
// one line for each run, with tab-separated speeds relative to target-only decoding. The argument is the number of
// seeds (default 4). With the argument "first", prints the first answers on consumer cards instead.
// benchmarks/planner_curves.py makes tables of the output.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>

#include "scenarios.h"

using namespace eaglecpp;
using namespace eaglecpp::sim;

namespace {

constexpr int n_slots = 7, n_tokens = 1536;
constexpr int n_answer = 200, n_answers = 20, n_first_seeds = 31;

// A machine whose times were published (sources: docs/research/gpu.md). change_ms: cost of changing the batch size in
// ms; 0 = free.
struct Card {
    Machine machine;
    double change_ms;
};

// A drafter whose acceptance was published. chat, code: tokens per round for chains of seven on MT-Bench and HumanEval.
// level: cost of a draft step in target-only steps; block: cost of a block in target-only steps.
struct Drafter {
    const char * name;
    double chat, code, level, block;
};

Card card(const char * name, double plain_ms, std::vector<std::pair<int, double>> curve, double change_ms) {
    for (auto & [n, ms] : curve) ms *= plain_ms;
    return {{name, curve}, change_ms};
}

// clang-format off
const std::vector<Card> cards = {
    {machine(18), 6.0},
    {machine(1), 6.0},
    // For Qwen3.8-27B in 4 bits, the published times are whole rounds with MTP drafts, and the acceptance is known. The
    // costs below are the times without the MTP heads, which take 0.06 target-only steps each.
    card("RTX 4090, 27B Q4_K", 21.3, {{1, 1}, {3, 1.38}}, 6.0),
    card("RTX 5090, 27B Q4_K", 16.3, {{1, 1}, {2, 1.14}, {3, 1.21}, {4, 1.31}, {5, 1.42}, {6, 1.54}, {7, 1.74}}, 6.0),
    {machine(6), 6.0},
    card("MI50, 27B Q8_0", 40.0, {{1, 1}, {2, 1.2}, {4, 1.34}, {8, 1.99}, {9, 3.21}, {16, 3.33}}, 6.0),
    card("Strix Halo, Vulkan, 30B-A3B Q4_K_M", 11.8, {{1, 1}, {2, 1.36}, {4, 1.93}, {8, 3.08}, {9, 5.8}, {16, 7.2}}, 6.0),
    card("Strix Halo, ROCm, a dense target", 75.0, {{1, 1}, {2, 1.2}, {4, 1.65}, {6, 2.2}, {8, 2.74}}, 6.0),
    {machine(5), 0.0},
    card("M2 Ultra, 7B Q8_0, llama.cpp's Metal", 14.2, {{1, 1}, {2, 1.11}, {3, 1.3}, {4, 1.41}, {5, 1.7}, {6, 2.0}, {7, 2.15}, {8, 2.16}}, 0.0),
    card("M4 Pro, 4 bits, if rows cost as in MLX 0.32", 20.0, {{1, 1}, {2, 1.03}, {4, 1.47}, {8, 2.69}}, 0.0),
    card("M5 Max, 70B 4 bits, if rows cost as in MLX", 70.0, {{1, 1}, {3, 1.12}, {5, 1.48}, {8, 2.25}, {12, 3.18}}, 0.0),
    card("CPU with AVX-512, Q4_K_M, our kernels", 90.0, {{1, 1}, {4, 1.02}, {8, 1.23}, {16, 2.06}}, 0.0),
    {machine(8), 6.0},
    {machine(11), 6.0},
    {machine(16), 0.0},
    {machine(17), 0.0},
};

// Llama 3.1 8B in Q4_0 has 4.65 GB. As on an RTX 3090, it is read at 0.78 of the published bandwidth. The costs of rows
// are the costs on the nearest published card. The cost of changing the batch size is the cost on the H200.
const double n_ms_gb_s = 1000.0 * 4.65 / 0.78;
const std::vector<Card> first_cards = {
    card("RTX 3060, 360 GB/s", n_ms_gb_s / 360.0, {{1, 1}, {2, 1.12}, {3, 1.2}, {4, 1.33}, {5, 1.53}, {6, 1.73}, {7, 1.95}, {8, 2.14}, {16, 2.16}}, 6.0),
    card("RTX 4090, 1008 GB/s", n_ms_gb_s / 1008.0, {{1, 1}, {3, 1.38}}, 6.0),
    card("RTX 5090, 1792 GB/s", n_ms_gb_s / 1792.0, {{1, 1}, {2, 1.14}, {3, 1.21}, {4, 1.31}, {5, 1.42}, {6, 1.54}, {7, 1.74}}, 6.0),
    card("RX 7900 XTX, 960 GB/s", n_ms_gb_s / 960.0, {{1, 1}, {2, 1.2}, {4, 1.34}, {8, 1.99}, {9, 3.21}, {16, 3.33}}, 6.0),
    card("M4 Pro, 273 GB/s", n_ms_gb_s / 273.0, {{1, 1}, {2, 1.81}, {3, 2.62}}, 1.0),
};
// clang-format on

const std::vector<Drafter> drafters = {
    {"EAGLE-3", 2.39, 4.16, 0.06, 0.0},
    {"DSpark", 3.64, 5.38, 0.005, 0.15},
    {"DFlash2", 4.2, 6.0, 0.002, 0.15},
};

// Returns a text on which chains of seven reach `length` tokens per round. All slots have the same acceptance rate.
Text of_length(const char * name, double length) {
    double low = 0.0, high = 1.0;
    for (int i = 0; i < 50; ++i) {
        const double a = (low + high) / 2.0, sum = (1.0 - std::pow(a, n_slots + 1)) / (1.0 - a);
        (sum < length ? low : high) = a;
    }
    Style s{0.0, 1.5, -0.2, 0.0};
    s.logits.assign(n_slots, 1.17 * std::log(low / (1.0 - low)));  // the factor 1.17 accounts for the logit's spread
    return {name, [s](int) { return s; }};
}

Machine with_drafter(Machine m, const Drafter & d, bool is_device) {
    m.level = d.level;
    m.block = d.block * m.verify_ms(n_slots + 1) / m.plain_ms();  // a pass over a block costs as much as its rows
    if (d.block > 0.0) m.n_levels = n_slots;
    m.host = 0.02;
    m.is_device = is_device;
    return m;
}

struct Case {
    Machine machine;
    Disturbance disturbance;
    RunOptions options;

    Case(const Card & on, const Drafter & d) : machine(with_drafter(on.machine, d, on.change_ms > 0.0)) {
        const Change change{on.change_ms, 0.75 * on.change_ms};
        options.costs = change.costs(machine);
        options.planner.pads_rows = machine.is_device;
        change.put_into(disturbance, machine);
    }
    Scene scene(const Text & text, int n_tokens, int seed) const {
        return {machine, std::make_shared<World>(text, n_tokens, seed), disturbance};
    }
};

void print_runs(const Card & on, const Drafter & d, const Text & text, int n_seeds) {
    const Case c(on, d);
    for (int seed = 1; seed <= n_seeds; ++seed) {
        const Scene scene = c.scene(text, n_tokens, seed);
        const std::vector<double> plain = scene.plain_ms();
        const Result r = scene.run_planner(c.options);
        double rows = 0.0;
        for (const auto & [n, count] : r.rows) rows += (double)n * count;
        std::printf("%s\t%s\t%s\t", c.machine.name.c_str(), d.name, text.name.c_str());
        print_run(plain.back() / r.ms, worst_window(r.marks, plain, 512), 0.965);
        std::printf("\t%.3f\n", rows / (double)r.marks.size());
    }
}

// Prints the number of rounds before the first round with several tokens, and the speed of answers 1, 2, 3 and 11 to
// 20.
void print_first_answers(const Card & on, const Drafter & d, Text text) {
    text.request = n_answer;
    const Case c(on, d);
    std::vector<double> speed[4], n_before;
    for (int seed = 1; seed <= n_first_seeds; ++seed) {
        const Scene scene = c.scene(text, n_answers * n_answer, seed);
        const std::vector<double> plain = scene.plain_ms();
        const std::vector<Mark> marks = scene.run_planner(c.options).marks;
        const auto ms_at = [&](int n) {
            const auto is_there = [n](const Mark & m) { return m.n_tokens >= n; };
            return n == 0 ? 0.0 : std::find_if(marks.begin(), marks.end(), is_there)->ms;
        };
        const auto over_plain = [&](int from, int to) {
            return (plain[to * n_answer] - plain[from * n_answer]) / (ms_at(to * n_answer) - ms_at(from * n_answer));
        };
        for (int i = 0; i < 3; ++i) speed[i].push_back(over_plain(i, i + 1));
        speed[3].push_back(over_plain(n_answers / 2, n_answers));
        size_t i = 0;
        while (i < marks.size() && marks[i].n_tokens == (int)i + 1) ++i;
        n_before.push_back((double)i);
    }
    std::sort(n_before.begin(), n_before.end());
    std::printf("%s\t%s\t%s\t%.0f\t%.2f\t%.2f\t%.2f\t%.2f\t%.2f\n", c.machine.name.c_str(), d.name, text.name.c_str(),
                n_before[n_first_seeds / 2], geometric_mean(speed[0]), geometric_mean(speed[1]),
                geometric_mean(speed[2]), geometric_mean(speed[3]),
                *std::min_element(speed[0].begin(), speed[0].end()));
}

}  // namespace

int main(int argc, char ** argv) {
    const int n_seeds = argc > 1 ? std::atoi(argv[1]) : 4;
    if (n_seeds == 0) {
        std::printf("machine\tdrafter\ttext\tbefore\tfirst\tsecond\tthird\tlater\tlowest first\n");
    } else {
        std::printf("machine\tdrafter\ttext\tspeed\twindow\tbound\trows\n");
    }
    for (const Card & c : n_seeds == 0 ? first_cards : cards) {
        for (const Drafter & d : drafters) {
            const std::vector<Text> texts = {of_length("chat", d.chat), of_length("code", d.code), text(4)};
            for (const Text & t : texts) {
                if (n_seeds > 0)
                    print_runs(c, d, t, n_seeds);
                else if (&t != &texts[2])
                    print_first_answers(c, d, t);
            }
        }
    }
    return 0;
}
