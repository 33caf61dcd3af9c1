// SPDX-License-Identifier: MIT
// Steps: several nodes of a graph computed as one. Between the products of a layer lie operations on a few thousand
// numbers, each of which costs more in waiting for the other threads than in work. A step does in one go, for a row,
// what one thread can do alone:
//   - an addition, the norm that follows it and that norm's weights, then the products of the result, whose rows are
//     rounded once for all of them;
//   - a gate (SwiGLU or GeGLU) and the product of its result;
//   - the rotation of queries and keys, and what is stored of them in the cache.
//
// What is computed does not depend on how nodes are grouped, or a row's bits would depend on the batch it is in: norms,
// gates and rotations have arithmetic of ours in every graph, additions and roundings to half precision have only one.
// Grouping changes who waits for whom. It is left out wherever the memory of one node would be written while another
// thread may still read it.
#pragma once

#include <ggml.h>

#include <deque>
#include <utility>
#include <vector>

#include "base/types.h"
#include "kernels/compute.h"
#include "kernels/table.h"

namespace eaglecpp::kernels {

// Cosines and sines of a graph's positions, which all its layers share.
struct Angles {
    const ggml_tensor * rope;   // the first to need them
    std::vector<float> values;  // [token][n_dims]
};

extern const char step_tag;

struct Step {
    // of what a node's `extra` points to, whoever put it there
    static bool is_step(const ggml_tensor * node);
    static const Step & of(const ggml_tensor * node) { return *(const Step *)node->extra; }

    const void * tag = &step_tag;
    ggml_tensor *sum = nullptr, *norm = nullptr, *scaled = nullptr;  // sum -> norm -> scaled
    ggml_tensor * gate = nullptr;
    static constexpr size_t max_nodes = 4;  // of each of these
    std::vector<ggml_tensor *> products;    // of one operand, with packed weights
    std::vector<ggml_tensor *> ropes, stores;
    Angles * angles = nullptr;
    bool fills_angles = false;
    const ggml_tensor * attention = nullptr;  // that follows the products

    size_t work_size(const KernelTable & table, int n_threads) const;
    void compute(const KernelTable & table, const ComputeParams & params) const;
};

// The steps of one graph.
class Fusion {
  public:
    // `is_packed`: whether a node is a product of packed weights of ours
    using IsPacked = bool (*)(const ggml_tensor * node);
    void find(ggml_cgraph * graph, IsPacked is_packed);
    // While it lives, the node that computes a step has it as `extra`, others that the step takes are not computed, and
    // some have their results elsewhere. Then only ggml's CPU backend may compute the graph.
    class Marks : Pinned {
      public:
        explicit Marks(const Fusion & fusion);
        ~Marks();

      private:
        const Fusion & fusion_;
    };

  private:
    struct Moved {
        ggml_tensor * node;
        void *before, *data;
    };

    size_t find_norm(size_t i);
    size_t find_gate(size_t i);
    void find_products(size_t i, Step & step);
    size_t find_ropes(size_t i);
    bool can_move(size_t i, size_t j) const;
    bool turn(size_t i, size_t j, const Step & step);
    void turn_back();
    Angles * known_angles(const ggml_tensor * rope);

    IsPacked is_packed_ = nullptr;
    std::vector<ggml_tensor *> nodes_;  // that are computed
    std::vector<bool> is_taken_;        // of nodes_
    Step * last_products_ = nullptr;    // behind a norm, before attention
    std::vector<ggml_tensor *> taken_;  // by steps that others compute
    std::vector<std::pair<ggml_tensor *, const Step *>> leaders_;
    std::vector<Moved> moved_;
    std::deque<Step> steps_;
    std::deque<Angles> angles_;
};

// The steps of the graphs that were computed last. A graph is known by its `uid`, which ggml changes with the graph.
class Fusions {
  public:
    const Fusion & of(ggml_cgraph * graph, uint64_t uid, Fusion::IsPacked is_packed);

  private:
    struct Known {
        uint64_t uid = 0;
        uint64_t last_use = 0;
        Fusion fusion;
    };
    std::deque<Known> known_;
    uint64_t n_uses_ = 0;
};

}  // namespace eaglecpp::kernels
