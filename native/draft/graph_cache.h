// SPDX-License-Identifier: MIT
// Graphs by shape, as long as they are used and have memory.
#pragma once

#include <map>
#include <memory>

#include "draft/graph.h"

namespace eaglecpp {

class GraphCache {
  public:
    // null where there is none with the memory of this epoch
    DraftGraph * find(const GraphShape & shape, int epoch);

    // in place of an older one of this shape; where there are many, of the one that was not used for longest
    DraftGraph & keep(const GraphShape & shape, std::unique_ptr<DraftGraph> graph);

    // forgets those that read or write this cache of keys and values
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
