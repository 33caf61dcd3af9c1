// SPDX-License-Identifier: MIT
// What drafts from the text are worth, in the simulator: recorded texts go through the planner on four machines,
// without a drafter and beside a simulated one of four kinds. `planner_copies FILE`, made by
// benchmarks/record_texts.py: prints the speed against plain decoding by kind of text and drafter, and the slowest
// window of 512 tokens; then the same on machines whose speed changes and in texts that do, and after how many tokens
// what was lost to the change is back.
#include <algorithm>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <sstream>

#include "algo/text.h"
#include "algo/tree.h"
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

struct Setting {
    std::string who;
    Machine machine;
    const World * drafter;
    uint64_t seed;
};

// The texts one after the other, each a conversation of its own, in an order of the seed's.
class CopyRun {
  public:
    CopyRun(const Setting & setting, const Disturbance & disturbance)
        : machine_(setting.machine),
          drafter_(setting.drafter),
          disturbance_(disturbance),
          seed_(setting.seed),
          clock_(disturbance_, setting.seed) {
        limits_ = machine_.limits();
        limits_.n_nodes = drafter_ ? 16 : 32;
        limits_.n_leaves = limits_.n_leaves_exact = 8;
    }

    CopyRun(const CopyRun &) = delete;

    void answer_all(const std::vector<Recorded> & texts) {
        std::vector<size_t> order(texts.size());
        for (size_t i = 0; i < order.size(); ++i) order[i] = i;
        for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[hash(seed_, i) % i]);
        for (size_t i : order) answer(texts[i]);
    }

    double worst() const { return worst_window(marks_, plain_ms_, 512); }
    int n_tokens() const { return n_tokens_; }

    // times of tokens [from, to)
    double plain_ms(int from, int to) const { return plain_ms_[to] - plain_ms_[from]; }
    double ms(int from, int to) const { return ms_at(to) - ms_at(from); }

    std::map<std::string, Totals> by_kind;

  private:
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

    int round(const Tokens & answer, int pos, TextIndex & index, Totals & totals) {
        planner_.begin_round(1);
        const TextDraft & draft = index.propose(2 * limits_.n_nodes, limits_.n_nodes, true);
        int n_left = (int)answer.size() - pos;
        planner_.decide(plan_, {answer[pos - 1], n_left, n_pending_, limits_, &draft});
        double ms = 0.0, seen_ms = 0.0;
        while (!plan_.frontier().empty()) {
            const bool is_first = plan_.decision().levels.empty();
            const int n_rows = (int)plan_.frontier().size();
            const double level_ms = drift() * (is_first ? machine_.commit_ms(n_pending_) : machine_.level_ms(n_rows));
            const double seen = clock_(level_ms);
            ms += level_ms;
            seen_ms += seen;
            planner_.grow(plan_, propose(answer, pos), seen);
        }
        planner_.choose({&plan_});
        const DraftTree & tree = plan_.tree();
        const Tokens tokens =
            match(tree, [&](int node) { return Choice{answer[pos + tree.depth[node]], --n_left == 0}; }).tokens;
        const double verify = verify_ms(tree.size()), seen_verify_ms = clock_(verify);
        const double host_ms =
            plan_.decision().mode == Decision::Mode::plain ? 0.0 : drift() * machine_.plain_ms() * machine_.host;
        planner_.learn(plan_, tokens);
        planner_.end_round(seen_verify_ms, seen_ms + seen_verify_ms + host_ms);
        const int n = (int)tokens.size();
        if (drafter_) n_pending_ = (plan_.decision().levels.empty() ? n_pending_ : 0) + n;
        count(n, ms + verify + host_ms, totals);
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
        totals.ms += ms;
        for (int i = 0; i < n; ++i, ++n_tokens_) {
            totals.plain_ms += verify_ms(1);
            plain_ms_.push_back(plain_ms_.back() + verify_ms(1));
        }
        marks_.push_back({n_tokens_, marks_.back().ms + ms});
    }

    double drift() const { return disturbance_.drift ? disturbance_.drift(n_tokens_) : 1.0; }
    double verify_ms(int n_rows) const {
        const double shape = disturbance_.reshape ? disturbance_.reshape(n_tokens_, n_rows) : 1.0;
        return drift() * shape * machine_.verify_ms(n_rows);
    }

    // a round's time lies evenly on its tokens
    double ms_at(int n) const {
        const auto to = std::lower_bound(marks_.begin(), marks_.end(), n,
                                         [](const Mark & mark, int tokens) { return mark.n_tokens < tokens; });
        if (to == marks_.begin()) return 0.0;
        const Mark & from = to[-1];
        return from.ms + (to->ms - from.ms) * (n - from.n_tokens) / (to->n_tokens - from.n_tokens);
    }

    Machine machine_;
    const World * drafter_;
    const Disturbance disturbance_;
    const uint64_t seed_;
    NoisyClock clock_;
    PlanLimits limits_;
    Planner planner_;
    SequencePlan plan_;
    int n_pending_ = 0, first_ = 0, n_tokens_ = 0;
    std::vector<Mark> marks_{{0, 0.0}};
    std::vector<double> plain_ms_{0.0};
};

template <typename F>
void each_setting(F && f) {
    for (int number : {1, 2, 7, 9}) {
        for (int style : {0, 1, 2, 4}) {  // none, and the texts code, prose, hostile of scenarios.cpp
            const std::string who = style > 0 ? "drafter of " + text(style).name : "no drafter";
            for (uint64_t seed = 0; seed < n_seeds; ++seed) {
                const World drafter(text(std::max(style, 1)), 8192, seed);
                f(Setting{who, machine(number), style > 0 ? &drafter : nullptr, seed});
            }
        }
    }
}

void print_speeds(const std::vector<Recorded> & texts) {
    std::map<std::string, std::vector<double>> speeds;
    double worst = 1e9;
    each_setting([&](const Setting & setting) {
        CopyRun run(setting, {});
        run.answer_all(texts);
        for (const auto & [kind, t] : run.by_kind) speeds[kind + ", " + setting.who].push_back(t.plain_ms / t.ms);
        worst = std::min(worst, run.worst());
    });
    std::vector<double> all;
    for (const auto & [name, values] : speeds) {
        all.push_back(geometric_mean(values));
        std::printf("%-34s %.3f\n", name.c_str(), all.back());
    }
    std::printf("%-34s %.4f\nworst window %.4f\n", "all", geometric_mean(all), worst);
}

// Each prose is followed by a copy in the same conversation.
std::vector<Recorded> changing(const std::vector<Recorded> & texts) {
    std::vector<Recorded> out, prose;
    for (const Recorded & t : texts) {
        if (t.kind == "prose") prose.push_back(t);
    }
    for (const Recorded & t : texts) {
        if (t.kind != "copy" || prose.empty()) continue;
        Recorded joined = prose[out.size() % prose.size()];
        joined.prompt.insert(joined.prompt.end(), t.prompt.begin(), t.prompt.end());
        joined.answer.insert(joined.answer.end(), t.answer.begin(), t.answer.end());
        joined.kind = "prose, then copy";
        out.push_back(joined);
    }
    return out;
}

constexpr int n_between = 1000;  // tokens from one change of the machine to the next

// Tokens from each change until 64 of them take no more than a tenth longer than where nothing changed.
void add_delays(const CopyRun & changed, const CopyRun & same, std::vector<int> & delays) {
    for (int from = n_between; from + n_between <= changed.n_tokens(); from += n_between) {
        const auto loss = [&](int at) {
            return changed.ms(at, at + 64) / changed.plain_ms(at, at + 64) * same.plain_ms(at, at + 64) /
                   same.ms(at, at + 64);
        };
        int delay = 0;
        while (delay < n_between - 64 && loss(from + delay) > 1.1) ++delay;
        delays.push_back(delay);
    }
}

void print_change(const char * name, const std::vector<Recorded> & texts, const Disturbance & change, bool is_step) {
    std::map<std::string, std::vector<double>> speeds;
    std::vector<int> delays;
    double worst = 1e9;
    each_setting([&](const Setting & setting) {
        CopyRun run(setting, change);
        run.answer_all(texts);
        speeds[setting.who].push_back(run.plain_ms(0, run.n_tokens()) / run.ms(0, run.n_tokens()));
        worst = std::min(worst, run.worst());
        if (!is_step) return;
        CopyRun same(setting, {});
        same.answer_all(texts);
        add_delays(run, same, delays);
    });
    std::printf("%s:", name);
    for (const auto & [who, values] : speeds) std::printf(" %s %.3f,", who.c_str(), geometric_mean(values));
    std::printf(" worst window %.4f", worst);
    std::sort(delays.begin(), delays.end());
    if (is_step) {
        std::printf(", back after %d tokens (median), %d (nine in ten)", delays[delays.size() / 2],
                    delays[delays.size() * 9 / 10]);
    }
    std::printf("\n");
}

void print_changes(const std::vector<Recorded> & texts) {
    Disturbance often, seldom, rows;
    often.drift = [](int pos) { return pos / 150 % 2 ? 2.0 : 1.0; };
    seldom.drift = [](int pos) { return pos / n_between % 2 ? 2.0 : 1.0; };
    rows.reshape = [](int pos, int n) { return pos / n_between % 2 ? 1.0 + 0.12 * (n - 1) : 1.0; };
    print_change("half the speed every 150 tokens", texts, often, false);
    print_change("half the speed every 1000 tokens", texts, seldom, true);
    print_change("rows cost 12 % more every 1000 tokens", texts, rows, false);
    print_change("each conversation prose, then a copy", changing(texts), {}, false);
}

}  // namespace

int main(int argc, char ** argv) {
    const std::vector<Recorded> texts = argc == 2 ? read(argv[1]) : std::vector<Recorded>{};
    if (texts.empty()) {
        std::cerr << "usage: planner_copies FILE, made by benchmarks/record_texts.py\n";
        return 2;
    }
    print_speeds(texts);
    print_changes(texts);
}
