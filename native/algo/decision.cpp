// SPDX-License-Identifier: MIT
#include "algo/decision.h"

namespace eaglecpp {

namespace {
using Mode = Decision::Mode;
using Reason = Decision::Reason;

constexpr std::array<const char *, 3> mode_names = {"plain", "probe", "draft"};
constexpr std::array<const char *, n_reasons> reason_names = {
    "off", "room", "calibrating", "over_budget", "all_rejected", "pays", "fixed", "inexact", "no_match", "replay"};
// Explains to users why a generation drafted nothing, by Decision::Reason.
constexpr std::array<const char *, n_reasons> reason_texts = {
    "",
    ": too few tokens are left to draft",
    ": measuring a target-only step",
    ": waiting before the next try",
    "",
    "",
    "",
    ": no batch of several rows is known to be exact on this machine",
    ": a draft from the text would cost more than it gains",
    ": running accepted tokens again"};

std::string join(const std::vector<int32_t> & values) {
    std::string out;
    for (int32_t v : values) out += (out.empty() ? "" : ",") + std::to_string(v);
    return out;
}

// Explains a reason for users. best_speed: predicted speed of recent drafts; 0 = unknown.
std::string why_off(Reason reason, double best_speed) {
    const bool is_too_slow = best_speed > 0.0 && best_speed < 1.0;
    if (is_too_slow && (reason == Reason::over_budget || reason == Reason::all_rejected)) {
        return strf("off: the best draft would reach %.2f times the target-only speed", best_speed);
    }
    return std::string("off") + reason_texts[(int)reason];
}
}  // namespace

std::string Decision::to_line() const {
    std::string out = mode_names[(int)mode];
    if (mode != Mode::target_only) {
        out += strf(" k=%d levels=", k);
        for (size_t i = 0; i < steps.size(); ++i) out += (i ? "/" : "") + join(steps[i]);
        if (n_text > 0) out += " text=" + std::to_string(n_text);
    }
    if (mode == Mode::draft) {
        out += strf(" nodes=%s depth=%d leaves=%d", join(nodes).c_str(), depth, n_leaves);
    }
    out += std::string(" reason=") + reason_names[(int)reason];
    if (mode != Mode::target_only) out += strf(" tokens=%.4g cost=%.4g", n_tokens, cost);
    if (best_speed > 0.0) out += strf(" speed=%.4g", best_speed);
    return out;
}

void PlanSummary::add(const Decision & decision, int n_tokens, double n_steps) {
    ++n_rounds_;
    if (n_steps > 0.0) {
        n_committed_ += n_tokens;
        n_steps_ += n_steps;
        n_counted_ += 1.0;
    }
    n_probes_ += decision.mode == Mode::probe;
    if (decision.mode != Mode::draft || decision.nodes.empty()) {
        // Skips rounds that calibrate, lack room or replay rows: they do not show whether drafting makes this text
        // faster.
        if (decision.reason != Reason::calibrating && decision.reason != Reason::room &&
            decision.reason != Reason::replay) {
            why_off_ = decision.reason;
            best_speed_ = decision.best_speed;
        }
        return;
    }
    ++(decision.is_chain() ? n_chains_ : n_trees_);
    n_nodes_ += (double)decision.nodes.size();
    depth_ += decision.depth;
    n_tokens_ += decision.n_tokens;
    cost_ += decision.cost;
}

std::string PlanSummary::explain() const {
    if (n_rounds_ == 0) return "off";
    const int n = n_drafted();
    std::string rounds = strf("drafted in %d of %d rounds", n, n_rounds_);
    if (n_probes_ > 0) rounds += strf(", and in %d more without verifying the draft", n_probes_);
    if (!drafts()) return why_off(why_off_, best_speed_) + (n == 0 && n_probes_ == 0 ? "" : "; " + rounds);
    const std::string shape =
        n_chains_ >= n_trees_ ? strf("chain %.0f", n_nodes()) : strf("tree %.0f nodes, depth %.0f", n_nodes(), depth());
    return strf("%s: expected %.1f tokens in the time of %.2f target-only steps; %s", shape.c_str(),
                n_tokens_expected(), cost_expected(), rounds.c_str());
}

std::string PlanSummary::reason() const {
    return drafts() ? "" : reason_names[(int)why_off_];
}

const std::array<const char *, n_reasons> & decision_reasons() {
    return reason_names;
}

}  // namespace eaglecpp
