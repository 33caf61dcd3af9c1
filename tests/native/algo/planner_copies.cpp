// SPDX-License-Identifier: MIT
// What drafts from the text are worth, in the simulator: recorded texts go through the planner on four machines,
// without a drafter and beside a simulated one of four kinds. `planner_copies FILE`, made by
// benchmarks/record_texts.py: prints the speed against plain decoding by kind of text and drafter, and the slowest
// window of 512 tokens.
#include <cmath>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <sstream>

#include "algo/match.h"
#include "algo/text_index.h"
#include "base/error.h"
#include "scenarios.h"

using namespace eaglecpp;
using namespace eaglecpp::sim;

namespace {

constexpr int n_seeds = 4;
constexpr Token wrong = 1 << 24;  // tokens of the drafter that are not the target's begin here

struct Recorded {
    std::string kind;
    Tokens prompt, answer;
};

std::vector<Recorded> read(const char * path) {
    std::ifstream in(path);
    std::vector<Recorded> out;
    for (std::string line; std::getline(in, line);) {
        std::istringstream words(line);
        Recorded r;
        size_t n_prompt;
        words >> r.kind >> n_prompt;
        for (Token token; words >> token;) (r.prompt.size() < n_prompt ? r.prompt : r.answer).push_back(token);
        out.push_back(r);
    }
    return out;
}

struct Totals {
    double plain_ms = 0.0, ms = 0.0;
};

// The texts one after the other, each a conversation of its own, in an order of the seed's.
class CopyRun {
  public:
    CopyRun(const Machine & machine, const World * drafter, uint64_t seed)
        : machine_(machine), drafter_(drafter), clock_(disturbance_, seed) {
        limits_ = machine.limits();
        limits_.n_nodes = drafter ? 16 : 32;
        limits_.n_leaves = limits_.n_leaves_exact = 8;
    }

    void answer(const Recorded & text) {
        TextIndex index;
        index.assign(text.prompt);
        planner_.begin_request(plan_, RequestKind::greedy, false);
        first_ = n_tokens_;
        n_pending_ = drafter_ ? 1 : 0;
        index.add(text.answer[0]);
        Totals & totals = by_kind[text.kind];
        for (int pos = 1; pos < (int)text.answer.size();) {
            const int n = round(text.answer, pos, index, totals);
            for (int i = pos; i < pos + n; ++i) index.add(text.answer[i]);
            pos += n;
        }
    }

    double worst() const { return worst_window(marks_, plain_ms_, 512); }

    std::map<std::string, Totals> by_kind;

  private:
    int round(const Tokens & answer, int pos, TextIndex & index, Totals & totals) {
        planner_.begin_round(1);
        const TextDraft & draft = index.propose(2 * limits_.n_nodes, limits_.n_nodes, true);
        int n_left = (int)answer.size() - pos;
        planner_.decide(plan_, {answer[pos - 1], n_left, n_pending_, limits_, &draft});
        double ms = 0.0, seen_ms = 0.0;
        while (!plan_.frontier().empty()) {
            const bool is_first = plan_.decision().levels.empty();
            const int n_rows = (int)plan_.frontier().size();
            const double level_ms = is_first ? machine_.commit_ms(n_pending_) : machine_.level_ms(n_rows);
            const double seen = clock_(level_ms);
            ms += level_ms;
            seen_ms += seen;
            planner_.grow(plan_, propose(answer, pos), seen);
        }
        planner_.choose({&plan_});
        const DraftTree & tree = plan_.tree();
        const Tokens tokens =
            match(tree, [&](int node) { return Choice{answer[pos + tree.depth[node]], --n_left == 0}; }).tokens;
        const double verify_ms = machine_.verify_ms(tree.size()), seen_verify_ms = clock_(verify_ms);
        const double host_ms =
            plan_.decision().mode == Decision::Mode::plain ? 0.0 : machine_.plain_ms() * machine_.host;
        planner_.learn(plan_, tokens);
        planner_.end_round(seen_verify_ms, seen_ms + seen_verify_ms + host_ms);
        const int n = (int)tokens.size();
        if (drafter_) n_pending_ = (plan_.decision().levels.empty() ? n_pending_ : 0) + n;
        count(n, ms + verify_ms + host_ms, totals);
        return n;
    }

    std::vector<std::vector<Candidate>> propose(const Tokens & answer, int pos) const {
        const DraftTree & pool = plan_.pool();
        std::vector<std::vector<Candidate>> out;
        for (int32_t node : plan_.frontier()) {
            const int depth = pool.depth[node] + 1, at = pos + depth - 1;
            bool is_on_path = at < (int)answer.size();
            for (int32_t i = node; i > 0; i = pool.parent[i]) {
                is_on_path = is_on_path && pool.token[i] == answer[pos + pool.depth[i] - 1];
            }
            const uint64_t key = is_on_path ? 0 : hash(hash(pos, node), pool.token[node]) | 1;
            out.push_back(drafter_->propose((first_ + at) % drafter_->n_tokens(), depth, plan_.k(), key));
            for (Candidate & c : out.back()) {
                c.token = c.token == World::true_token && is_on_path ? answer[at] : wrong + c.token;
            }
        }
        return out;
    }

    void count(int n, double ms, Totals & totals) {
        n_tokens_ += n;
        totals.plain_ms += n * machine_.plain_ms();
        totals.ms += ms;
        ms_ += ms;
        for (int i = 0; i < n; ++i) plain_ms_.push_back(plain_ms_.back() + machine_.plain_ms());
        marks_.push_back({n_tokens_, ms_});
    }

    Machine machine_;
    const World * drafter_;
    Disturbance disturbance_;
    NoisyClock clock_;
    PlanLimits limits_;
    Planner planner_;
    SequencePlan plan_;
    int n_pending_ = 0, first_ = 0, n_tokens_ = 0;
    double ms_ = 0.0;
    std::vector<Mark> marks_;
    std::vector<double> plain_ms_{0.0};
};

}  // namespace

int main(int argc, char ** argv) {
    const std::vector<Recorded> texts = argc == 2 ? read(argv[1]) : std::vector<Recorded>{};
    if (texts.empty()) {
        std::cerr << "usage: planner_copies FILE, made by benchmarks/record_texts.py\n";
        return 2;
    }
    std::map<std::string, std::vector<double>> speeds;
    double worst = 1e9;
    for (int number : {1, 2, 7, 9}) {
        for (int style : {0, 1, 2, 4}) {  // none, and the texts code, prose, hostile of scenarios.cpp
            for (uint64_t seed = 0; seed < n_seeds; ++seed) {
                const World drafter(text(std::max(style, 1)), 8192, seed);
                CopyRun run(machine(number), style > 0 ? &drafter : nullptr, seed);
                std::vector<size_t> order(texts.size());
                for (size_t i = 0; i < order.size(); ++i) order[i] = i;
                for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[hash(seed, i) % i]);
                for (size_t i : order) run.answer(texts[i]);
                const std::string who = style > 0 ? "drafter of " + text(style).name : "no drafter";
                for (const auto & [kind, t] : run.by_kind) speeds[kind + ", " + who].push_back(t.plain_ms / t.ms);
                worst = std::min(worst, run.worst());
            }
        }
    }
    std::vector<double> all;
    for (const auto & [name, values] : speeds) {
        all.push_back(geometric_mean(values));
        std::printf("%-28s %.3f\n", name.c_str(), all.back());
    }
    std::printf("%-28s %.4f\nworst window %.4f\n", "all", geometric_mean(all), worst);
}
