// SPDX-License-Identifier: MIT
// Groups nodes of a graph into steps; all nodes of a step are computed together. The operations between the products of
// a layer handle only a few thousand numbers. In each operation, a thread would spend more time waiting for other
// threads than computing. In a step, a thread does all of its work for a row without waiting. These nodes form steps:
//   - an addition, the norm after it, the norm's weights, and the products of the result. The rows are rounded once
//     for all products;
//   - a gate (SwiGLU or GeGLU) and the product of its result;
//   - the rotation of queries and keys, and their storage in the cache.
//
// Grouping only changes when threads wait. The arithmetic must not depend on the grouping; otherwise a row's bits would
// depend on its batch. Norms, gates and rotations use our arithmetic in every graph. Additions and roundings to half
// precision have only one correct result. Nodes are not grouped if one thread would write the memory of a node that
// another thread may still read.
#pragma once

#include <ggml.h>

#include <deque>
#include <utility>
#include <vector>

#include "base/types.h"
#include "kernels/compute.h"
#include "kernels/table.h"

namespace eaglecpp::kernels {

// Cosines and sines of a graph's positions, shared by all its layers.
struct Angles {
    const ggml_tensor * rope;   // the first rotation node that needs these angles
    std::vector<float> values;  // [token][n_dims]
};

extern const char step_tag;

struct Step {
    // Returns true if the node's `extra` points to a step. In other nodes it may point to other objects.
    static bool is_step(const ggml_tensor * node);
    static const Step & of(const ggml_tensor * node) { return *(const Step *)node->extra; }

    const void * tag = &step_tag;
    ggml_tensor *sum = nullptr, *norm = nullptr, *scaled = nullptr;  // sum -> norm -> scaled
    ggml_tensor * gate = nullptr;
    static constexpr size_t max_nodes = 4;  // maximum number of products, of ropes and of stores
    std::vector<ggml_tensor *> products;    // products of the same operand, with packed weights
    std::vector<ggml_tensor *> ropes, stores;
    Angles * angles = nullptr;
    bool fills_angles = false;
    const ggml_tensor * attention = nullptr;  // the attention operation that follows the products

    size_t work_size(const KernelTable & table, int n_threads) const;
    void compute(const KernelTable & table, const ComputeParams & params) const;
};

// The steps of a graph.
class Fusion {
  public:
    // Returns true if a node is a product of our packed weights.
    using IsPacked = bool (*)(const ggml_tensor * node);
    void find(ggml_cgraph * graph, IsPacked is_packed);
    // Marks the nodes of a graph while this object exists. The node that computes a step has the step as its `extra`,
    // and the other nodes of the step are not computed. While nodes are marked, only ggml's CPU backend may compute the
    // graph.
    class Marks : Pinned {
      public:
        explicit Marks(const Fusion & fusion);
        ~Marks();

      private:
        const Fusion & fusion_;
    };

  private:
    size_t find_norm(size_t i);
    size_t find_gate(size_t i);
    void find_products(size_t i, Step & step);
    size_t find_ropes(size_t i);
    bool can_move(size_t i, size_t j) const;
    Angles * known_angles(const ggml_tensor * rope);

    IsPacked is_packed_ = nullptr;
    std::vector<ggml_tensor *> nodes_;  // nodes that ggml would compute
    std::vector<bool> is_taken_;        // by index in nodes_
    Step * last_products_ = nullptr;    // products after the last norm; null once the attention after them is found
    std::vector<ggml_tensor *> taken_;  // nodes that another node's step computes
    std::vector<std::pair<ggml_tensor *, const Step *>> leaders_;
    std::deque<Step> steps_;
    std::deque<Angles> angles_;
};

}  // namespace eaglecpp::kernels
