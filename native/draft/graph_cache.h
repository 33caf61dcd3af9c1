// SPDX-License-Identifier: MIT
// Keeps graphs by shape, as long as they are in use and their memory is valid.
#pragma once

#include <map>
#include <memory>

#include "draft/graph.h"

namespace eaglecpp {

class GraphCache {
  public:
    // null if there is none with the memory of this epoch
    DraftGraph * find(const GraphShape & shape, int epoch);

    // Replaces an older graph of this shape or, if there are too many graphs, the least recently used one.
    DraftGraph & keep(const GraphShape & shape, std::unique_ptr<DraftGraph> graph);

    // forgets the graphs that read or write this cache of keys and values
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
