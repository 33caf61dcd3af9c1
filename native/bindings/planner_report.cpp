// SPDX-License-Identifier: MIT
#include "bindings/planner_report.h"

#include <array>

namespace nb = nanobind;

namespace eaglecpp {

namespace {

constexpr int n_rows_reported = 64;
constexpr int n_depths_reported = 12;
constexpr std::array<const char *, n_request_kinds> kind_names = {
    "greedy", "sampled", "hot", "constrained", "coupled_cool", "coupled_warm", "coupled_hot", "coupled_constrained"};

nb::list points(const std::vector<CostTable::Point> & points) {
    nb::list out;
    for (const CostTable::Point & p : points) out.append(nb::make_tuple(p.n_rows, p.ms, p.n_samples));
    return out;
}

nb::dict reliability(const Reliability & r) {
    nb::dict d;
    d["labels"] = r.n_labels();
    d["calibration_error"] = r.calibration_error();
    nb::list bins;
    for (const Reliability::Bin & b : r.bins()) bins.append(nb::make_tuple(b.n_labels, b.predicted, b.accepted));
    d["bins"] = bins;
    return d;
}

// [depth - 1][rank - 1]
nb::list mean_chances(const SequencePlan & plan, int k) {
    nb::list out;
    for (int depth = 1; depth <= n_depths_reported; ++depth) {
        nb::list ranks;
        for (int rank = 1; rank <= k; ++rank) ranks.append(plan.mean_p(depth, rank));
        out.append(ranks);
    }
    return out;
}

}  // namespace

nb::dict planner_report(const Engine & engine, int sequence) {
    const Planner & planner = engine.planner();
    const CostTable & costs = planner.costs();
    nb::dict d;
    d["plain_ms"] = costs.knows_plain() ? nb::cast(costs.plain()) : nb::none();
    d["host_ms"] = costs.host();
    d["plain_host_ms"] = costs.plain_host();
    d["noise"] = costs.noise();
    d["slowdown"] = costs.slowdown();
    d["verify"] = points(costs.verify_points(n_rows_reported));
    d["commit"] = points(costs.commit_points(n_rows_reported));
    d["level"] = points(costs.level_points(planner.options().width));
    nb::dict acceptance;
    for (int k = 0; k < n_request_kinds; ++k) {
        acceptance[kind_names[k]] = reliability(planner.acceptance().reliability((RequestKind)k));
    }
    acceptance["text"] = reliability(planner.text_acceptance().reliability());
    d["acceptance"] = acceptance;
    d["chances"] = mean_chances(engine.sequence(sequence).plan, planner.options().k);
    d["ledger"] = planner.ledger().balance();
    d["recall_notes"] = engine.sequence(sequence).recall.n_notes();
    return d;
}

}  // namespace eaglecpp
