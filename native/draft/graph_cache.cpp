// SPDX-License-Identifier: MIT
#include "draft/graph_cache.h"

#include <algorithm>

#include "ggml_hook/hook.h"

namespace eaglecpp {

// A generation needs about five graphs, and several times as many if chains are drafted in one graph.
static constexpr size_t n_graphs_max = 64;

DraftGraph * GraphCache::find(const GraphShape & shape, int epoch) {
    const auto it = graphs_.find(shape);
    if (it == graphs_.end() || it->second.graph->epoch != epoch) return nullptr;
    it->second.used = ++n_uses_;
    return it->second.graph.get();
}

DraftGraph & GraphCache::keep(const GraphShape & shape, std::unique_ptr<DraftGraph> graph) {
    if (graphs_.size() >= n_graphs_max && graphs_.count(shape) == 0) {
        graphs_.erase(std::min_element(graphs_.begin(), graphs_.end(),
                                       [](const auto & a, const auto & b) { return a.second.used < b.second.used; }));
    }
    Kept & kept = graphs_[shape];
    kept = {std::move(graph), ++n_uses_};
    kernels::name_graph(kept.graph->gf);
    return *kept.graph;
}

void GraphCache::forget(const DraftKv * kv) {
    for (auto it = graphs_.begin(); it != graphs_.end();) {
        const auto & parts = it->first.parts;
        const bool has = std::any_of(parts.begin(), parts.end(), [&](const GraphPart & p) { return p.kv == kv; });
        it = has ? graphs_.erase(it) : std::next(it);
    }
}

}  // namespace eaglecpp
