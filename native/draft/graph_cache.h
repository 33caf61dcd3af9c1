// SPDX-License-Identifier: MIT
// Caches graphs by shape, as long as their memory is valid. A full cache evicts the least recently used graph.
#pragma once

#include <map>
#include <memory>

#include "draft/graph.h"

namespace eaglecpp {

class GraphCache {
  public:
    // Returns the graph of this shape, or null if there is none with memory of this epoch.
    DraftGraph * find(const GraphShape & shape, int epoch);

    // Adds a graph. It replaces an older graph of this shape or, if the cache is full, the least recently used graph.
    DraftGraph & keep(const GraphShape & shape, std::unique_ptr<DraftGraph> graph);

    // Drops the graphs that read or write this K/V cache.
    void forget(const DraftKv * kv);

  private:
    struct Kept {
        std::unique_ptr<DraftGraph> graph;
        long used = 0;
    };

    std::map<GraphShape, Kept> graphs_;
    long n_uses_ = 0;
};

}  // namespace eaglecpp
