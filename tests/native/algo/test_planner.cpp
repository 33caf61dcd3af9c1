// SPDX-License-Identifier: MIT
// The planner call by call: legal plans whatever happens, fixed strategies, determinism, time.
#include "algo/planner.h"

#include <limits>

#include "../check.h"
#include "algo/tree.h"
#include "base/error.h"
#include "random.h"
#include "tree_grower.h"

using namespace eaglecpp;
using namespace eaglecpp::test;

namespace {

constexpr double inf = std::numeric_limits<double>::infinity();

std::vector<std::vector<Candidate>> propose(Random & random, const SequencePlan & plan, bool is_hostile) {
    const float values[] = {std::nanf(""), (float)-inf, 0.0f, -1e30f, 3.0f, -0.5f};
    std::vector<std::vector<Candidate>> out;
    for (size_t i = 0; i < plan.frontier().size(); ++i) {
        out.emplace_back();
        float logp = -2.0f * (float)(random.real() * random.real());
        for (int j = 0; j < plan.k(); ++j) {
            out.back().push_back({random.integer(0, 5) * 10 + j, is_hostile ? values[random.integer(0, 5)] : logp});
            logp -= 1.0f + 2.0f * (float)random.real();
        }
    }
    return out;
}

double some_time(Random & random, bool is_hostile) {
    const double values[] = {0.0, -1.0, std::nan(""), inf, 1e300, 1e-300, 5.0};
    return is_hostile ? values[random.integer(0, 6)] : 10.0 * (0.9 + 0.2 * random.real());
}

// The tree of a round must be legal whatever came before.
void check_legal(const SequencePlan & plan, const PlanLimits & limits, int n_left) {
    const DraftTree & tree = plan.tree();
    CHECK(tree.size() >= 1 && tree.n_draft() <= std::max(limits.n_nodes, 0));
    CHECK((int)tree.leaves().size() <= std::max(limits.n_leaves, 1));
    CHECK(tree.n_draft() == (int)plan.decision().nodes.size());
    for (int i = 1; i < tree.size(); ++i) {
        CHECK(tree.parent[i] >= 0 && tree.parent[i] < i);
        CHECK(tree.depth[i] == tree.depth[tree.parent[i]] + 1 &&
              (tree.depth[i] <= tree.depth[i - 1] || tree.parent[i] == i - 1));
        CHECK(tree.depth[i] < n_left);  // a draft beyond the last token is verified for nothing
        CHECK(tree.logp[i] <= tree.logp[tree.parent[i]]);
    }
    CHECK(plan.decision().n_leaves == (tree.n_draft() > 0 ? (int)tree.leaves().size() : 0));
    CHECK(plan.frontier().empty());
}

int draft(Planner & planner, SequencePlan & plan, Random & random, bool is_hostile) {
    int n_rows = 0;
    while (!plan.frontier().empty()) {
        if (!plan.decision().levels.empty()) n_rows += (int)plan.frontier().size();
        planner.grow({{&plan, propose(random, plan, is_hostile)}}, is_hostile ? some_time(random, true) : 0.6);
    }
    return n_rows;
}

Tokens emit(Random & random, const DraftTree & tree, int n_left) {
    return match(tree, [&](int) { return Choice{random.integer(0, 5) * 10, --n_left == 0}; }).tokens;
}

}  // namespace

// Rows that are run again are paid for like any others, and a round of them is not a plain one.
static void a_round_that_runs_rows_again_drafts_nothing_and_is_charged() {
    const auto measured = [](bool is_again) {
        Planner planner;
        SequencePlan plan;
        planner.begin_request(plan, RequestKind::greedy, false);
        for (int round = 0; round < 12; ++round) {
            planner.begin_round(1);
            RoundRequest request{0, 100, 1, {}};
            request.n_replay = is_again && round > 5 ? 3 : 0;
            plan.use(Strategy());
            planner.decide(plan, request);
            CHECK(plan.frontier().empty());
            planner.choose({&plan});
            planner.learn(plan, {7});
            planner.end_round(request.n_replay > 0 ? 16.0 : 10.0, request.n_replay > 0 ? 16.0 : 10.0);
        }
        CHECK(plan.decision().reason == (is_again ? Decision::Reason::replay : Decision::Reason::off));
        return std::pair{planner.charged(), planner.costs().plain(1)};
    };
    const auto [plain, plain_ms] = measured(false);
    const auto [again, same_ms] = measured(true);
    CHECK_NEAR(plain, 1.0, 0.01);
    CHECK_NEAR(again, 1.6, 0.1);
    CHECK_NEAR(same_ms, plain_ms, 0.1);  // the reference did not take them for plain rounds
}

static void plans_are_legal_whatever_happens() {
    for (bool is_hostile : {false, true}) {
        for (int seed = 0; seed < 40; ++seed) {
            Random random(100 + seed);
            Planner planner;
            SequencePlan plan;
            planner.begin_request(plan, (RequestKind)random.integer(0, n_request_kinds - 1), false);
            for (int round = 0; round < 300; ++round) {
                const PlanLimits limits{random.integer(0, 64), random.integer(1, 16), random.integer(0, 128)};
                const int n_left = round % 3 ? random.integer(1, 3) : 100;
                planner.begin_round(1);
                TextDraft text;
                for (int i = random.integer(0, 20); i > 0; --i) text.tokens.push_back(random.integer(0, 5) * 10);
                text.n_match = random.integer(0, 40);
                planner.decide(plan, {0, n_left, random.integer(0, 300), limits, seed % 2 ? &text : nullptr});
                CHECK(draft(planner, plan, random, is_hostile) <= limits.n_draft_rows);
                planner.choose({&plan});
                check_legal(plan, limits, n_left);
                planner.learn(plan, emit(random, plan.tree(), n_left));
                const double ms = some_time(random, is_hostile);
                planner.end_round(ms, ms + some_time(random, is_hostile));
                CHECK(std::isfinite(planner.ledger().balance()) && std::isfinite(planner.costs().plain()));
            }
        }
    }
}

static void several_conversations_share_legally() {
    for (int seed = 0; seed < 20; ++seed) {
        Random random(200 + seed);
        Planner planner;
        std::vector<SequencePlan> all(6);
        all[4].use(Strategy::make("tree", 3, 3, 7));
        all[5].use(Strategy::make("off", 1, 1, 1));
        for (SequencePlan & p : all) planner.begin_request(p, RequestKind::greedy, false);
        for (int round = 0; round < 200; ++round) {
            const int n = random.integer(1, 6);
            const PlanLimits limits{32, 8, 128};
            planner.begin_round(n);
            std::vector<SequencePlan *> plans;
            for (int i = 0; i < n; ++i) {
                planner.decide(all[i], {0, 50, 1, limits});
                draft(planner, all[i], random, false);
                plans.push_back(&all[i]);
            }
            planner.choose(plans);
            for (SequencePlan * p : plans) {
                check_legal(*p, limits, 50);
                planner.learn(*p, emit(random, p->tree(), 50));
            }
            planner.end_round(10.0 + n, 11.0 + n);
        }
    }
}

// A round that an error cut short leaves nothing behind that matters.
static void a_round_may_be_begun_anew() {
    Random random(300);
    Planner planner;
    SequencePlan plan;
    planner.begin_request(plan, RequestKind::greedy, false);
    for (int round = 0; round < 200; ++round) {
        planner.begin_round(1);
        planner.decide(plan, {0, 50, 1, {}});
        if (round % 7 == 0) continue;
        if (!plan.frontier().empty() && round % 5 == 0) planner.grow({{&plan, propose(random, plan, false)}}, 0.6);
        if (round % 5 == 0) continue;
        draft(planner, plan, random, false);
        planner.choose({&plan});
        check_legal(plan, {}, 50);
        if (round % 11 == 0) continue;
        planner.learn(plan, emit(random, plan.tree(), 50));
        planner.end_round(10.0, 11.0);
    }
}

static void append_depth_first(const DraftTree & from, int node, int to, DraftTree & out) {
    for (int i = node + 1; i < from.size(); ++i) {
        if (from.parent[i] == node) append_depth_first(from, i, out.add(from.token[i], to, 0.0f), out);
    }
}

// the planner verifies depth first
static DraftTree depth_first(const DraftTree & tree) {
    DraftTree out(tree.token[0]);
    append_depth_first(tree, 0, 0, out);
    return out;
}

// Fixed strategies give exactly the tree of EAGLE-2's growth and re-rank.
static void fixed_strategies_are_eagle_2s() {
    for (const Strategy & s :
         {Strategy::make("chain", 1, 4, 4), Strategy::make("tree", 4, 5, 15), Strategy::make("tree", 3, 2, 30)}) {
        for (int n_leaves : {1, 4, 64}) {
            Random random(400), same(400);
            Planner planner;
            SequencePlan plan;
            plan.use(s);
            planner.begin_request(plan, RequestKind::greedy, false);
            planner.begin_round(1);
            planner.decide(plan, {7, 100, 1, {64, n_leaves, 128}});
            TreeGrower grower(7, s.k);
            while (!plan.frontier().empty()) {
                CHECK(plan.frontier() == grower.frontier());
                const auto children = propose(random, plan, false);
                grower.grow(children);
                planner.grow({{&plan, children}}, 0.5);
            }
            planner.choose({&plan});
            const DraftTree expected = depth_first(best_subtree(grower.pool(), s.nodes, n_leaves));
            CHECK(plan.tree().token == expected.token && plan.tree().parent == expected.parent);
            CHECK(plan.decision().reason == Decision::Reason::pinned);
            planner.learn(plan, {1});
            planner.end_round(10.0, 11.0);
        }
    }
}

static void a_fixed_strategy_stays_within_the_request() {
    Random random(401);
    Planner planner;
    SequencePlan plan;
    plan.use(Strategy::make("chain", 1, 8, 8));
    planner.begin_request(plan, RequestKind::greedy, false);
    for (int n_left : {1, 2, 3, 9, 20}) {
        planner.begin_round(1);
        planner.decide(plan, {7, n_left, 1, {}});
        draft(planner, plan, random, false);
        planner.choose({&plan});
        CHECK(plan.tree().n_draft() == std::min(8, n_left - 1));
        planner.learn(plan, {1});
        planner.end_round(10.0, 11.0);
    }
}

static void nothing_is_drafted_after_an_end() {
    PlannerOptions options;
    options.end_tokens = {10, 20, 30};
    for (int seed = 0; seed < 10; ++seed) {
        Random random(500 + seed);
        Planner planner(options);
        SequencePlan plan;
        planner.begin_request(plan, RequestKind::greedy, false);
        for (int round = 0; round < 100; ++round) {
            planner.begin_round(1);
            planner.decide(plan, {0, 100, 1, {64, 64, 128}});
            draft(planner, plan, random, false);
            planner.choose({&plan});
            for (int i = 1; i < plan.pool().size(); ++i) {
                const Token above = plan.pool().token[plan.pool().parent[i]];
                CHECK(above != 10 && above != 20 && above != 30);
            }
            planner.learn(plan, emit(random, plan.tree(), 100));
            planner.end_round(10.0, 11.0);
        }
    }
}

static void misuse_is_an_error() {
    Planner planner;
    SequencePlan plan;
    CHECK_THROWS(planner.grow({{&plan, {}}}, 1.0), "frontier");
    PlannerOptions options;
    options.k = 0;
    CHECK_THROWS(Planner{options}, "k=0");
}

// Plain rounds of 10 ms; in the last one the drafter commits what waited for it.
static void catching_up_is_charged() {
    Planner planner;
    SequencePlan plan;
    planner.begin_request(plan, RequestKind::greedy, false);
    const auto round = [&](double commit_ms) {
        planner.begin_round(1);
        planner.decide(plan, {0, 1, 128, PlanLimits{}});  // one token left: nothing is drafted
        if (commit_ms > 0.0) planner.catch_up(plan, 128, commit_ms);
        planner.choose({&plan});
        planner.learn(plan, {1});
        planner.end_round(10.0, 10.0 + commit_ms);
        return planner.charged();
    };
    for (int i = 0; i < 2; ++i) CHECK(round(0.0) == 0.0);  // nobody is sure yet how long a plain round takes
    for (int i = 0; i < 9; ++i) CHECK(round(0.0) == 1.0);
    const double plain_ms = planner.costs().plain(), before = planner.ledger().balance();
    const double charged = round(2.0);
    CHECK_NEAR(charged, 1.2, 1e-6);
    CHECK_NEAR(before - planner.ledger().balance(), 0.2 - 0.015, 1e-6);
    CHECK_NEAR(planner.costs().plain(), plain_ms, 1e-6);  // nor is it taken for the price of a plain round
}

// A round in which a fixed strategy drafts is no plain one, however long the others wait for one.
static void a_fixed_strategy_beside_it_keeps_nobody_from_drafting() {
    Random random(310);
    Planner planner;
    std::vector<SequencePlan> both(2);
    both[1].use(Strategy::make("chain", 1, 3, 3));
    for (SequencePlan & plan : both) planner.begin_request(plan, RequestKind::greedy, false);
    for (int n : {1, 2, 3, 4, 5, 6, 8}) {
        for (int i = 0; i < 4; ++i) planner.costs().learn_verify(n, 10.0 + 0.1 * n);
    }
    int n_measuring = 0;
    for (int round = 0; round < 300; ++round) {
        planner.begin_round(2);
        for (SequencePlan & plan : both) {
            planner.decide(plan, {0, 500, 1, {16, 1, 128}});
            draft(planner, plan, random, false);
        }
        planner.choose({&both[0], &both[1]});
        n_measuring += both[0].decision().reason == Decision::Reason::measuring;
        for (SequencePlan & plan : both) planner.learn(plan, emit(random, plan.tree(), 500));
        planner.end_round(10.5, 11.0);
    }
    CHECK_MSG(n_measuring < 75, strf("%d of 300 rounds", n_measuring));
}

// As long as the ledger saves for a trial, catching up takes nothing of what plain rounds earn.
static void saving_is_not_spent_on_catching_up() {
    PlannerOptions options;
    options.ledger.start = 0.0;
    Planner planner(options);
    SequencePlan plan;
    plan.use(Strategy::make("auto", 1, 1, 1));
    planner.begin_request(plan, RequestKind::greedy, false);
    const auto round = [&](double commit_ms) {
        planner.begin_round(1);
        planner.decide(plan, {0, 100, 128, PlanLimits{}});
        if (commit_ms > 0.0) planner.catch_up(plan, 128, commit_ms);
        planner.choose({&plan});
        planner.learn(plan, {1});
        planner.end_round(10.0, 10.0 + commit_ms);
    };
    for (int i = 0; i < 6; ++i) round(0.0);
    CHECK(plan.decision().reason == Decision::Reason::saving);
    const double before = planner.ledger().balance();
    round(20.0);
    CHECK(plan.decision().reason == Decision::Reason::saving);
    CHECK_NEAR(planner.ledger().balance() - before, 0.015, 1e-6);
}

// A third row costs half a plain step, those after it nothing: one level more does not pay, two do.
static void a_draft_goes_past_an_expensive_row() {
    const auto verify_ms = [](int n_rows) { return n_rows <= 2 ? 10.0 : 17.0; };
    Random random(600);
    Planner planner;
    SequencePlan plan;
    planner.begin_request(plan, RequestKind::greedy, false);
    for (int n = 1; n <= 8; ++n) {
        for (int i = 0; i < 20; ++i) planner.costs().learn_verify(n, verify_ms(n));
    }
    int n_deep = 0;
    for (int round = 0; round < 400; ++round) {
        planner.begin_round(1);
        planner.decide(plan, {0, 100, 1, {7, 1, 16}});
        double draft_ms = 0.0;
        for (; !plan.frontier().empty(); draft_ms += 0.5) {
            std::vector<Candidate> children;
            for (int i = 0; i < plan.k(); ++i) children.push_back({i, i == 0 ? -0.03f : -5.0f});
            planner.grow({{&plan, {children}}}, 0.5);
        }
        planner.choose({&plan});
        const int n_draft = plan.tree().n_draft();
        Tokens tokens(1, 0);
        while ((int)tokens.size() <= n_draft && random.real() < 0.97) tokens.push_back(0);
        planner.learn(plan, tokens);
        planner.end_round(verify_ms(1 + n_draft), verify_ms(1 + n_draft) + draft_ms);
        n_deep += n_draft > 2;
    }
    CHECK_MSG(n_deep > 40, strf("only %d of 400 drafts went past it", n_deep));
}

int main() {
    plans_are_legal_whatever_happens();
    a_round_that_runs_rows_again_drafts_nothing_and_is_charged();
    several_conversations_share_legally();
    a_round_may_be_begun_anew();
    fixed_strategies_are_eagle_2s();
    a_fixed_strategy_stays_within_the_request();
    nothing_is_drafted_after_an_end();
    misuse_is_an_error();
    catching_up_is_charged();
    saving_is_not_spent_on_catching_up();
    a_fixed_strategy_beside_it_keeps_nobody_from_drafting();
    a_draft_goes_past_an_expensive_row();
    return result();
}
