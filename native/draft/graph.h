// SPDX-License-Identifier: MIT
// The drafter's compute graphs. Arithmetic: SafeAILab/EAGLE eagle/model/cnets.py for EAGLE-3; vllm-project/vllm and
// sgl-project/sglang llama_eagle3.py for EAGLE 3.1's norms before fc and post-norm feedback; SafeAILab/EAGLE
// eagle/model/cnets1.py for EAGLE-1 and 2; draft/draft_file.h for block drafters. A graph is a pure function of
// switches, weights, memory and sizes. It only uses operations that the CPU, CUDA, Metal and Vulkan backends all
// implement.
//
// A graph serves one or several conversations. Operations with weights run once for the rows of all conversations.
// Operations that read or write a cache run separately for each conversation, in the sizes that they have when it runs
// alone. So a row's numbers do not depend on the other conversations, if products do not depend on the number of rows.
//
// There are two kinds of graph:
//   commit  Rows with true hidden states: fuses them and writes K/V. Only the last `n_out` (0 or 1) rows of a
//           conversation run fully. In a block drafter none of them does; the pass over a block follows.
//   extend  Draft rows that read the state of an earlier row; all rows run fully. In a block drafter with a Markov
//           head: the logits of draft positions given the previous token. If the graph picks the likeliest tokens, the
//           host computes these instead (outputs.h).
//
// "Fully" means query, attention, MLP and head of the last layer. Lower layers always run for all rows, because the K/V
// of the next layer needs their output.
//
// On a device, waiting for the host costs the most time besides arithmetic. So all inputs of a graph are contiguous and
// arrive in one copy. With `n_top` the graph picks the likeliest tokens itself, so that a few numbers come back in one
// copy instead of whole rows.
#pragma once

#include <ggml-alloc.h>
#include <ggml-backend.h>
#include <ggml-cpp.h>
#include <ggml.h>

#include <memory>
#include <numeric>
#include <tuple>
#include <utility>
#include <vector>

#include "draft/kv.h"
#include "draft/sketch.h"
#include "draft/weights.h"

namespace eaglecpp {

// One conversation's part of a graph.
struct GraphPart {
    const DraftKv * kv;
    int n_rows;
    int n_out;
    int n_kv;  // K/V slots read, padded

    bool operator<(const GraphPart & o) const {
        return std::tie(n_rows, n_out, n_kv, kv) < std::tie(o.n_rows, o.n_out, o.n_kv, o.kv);
    }
};

struct GraphShape {
    bool commit;  // otherwise extend
    std::vector<GraphPart> parts;
    // Draft rows after a commit of a single conversation. Each one embeds the likeliest token of the previous row and
    // follows it.
    int n_steps = 0;
    // For a commit of a block drafter: the blocks after the rows, one per conversation; n_out: draft positions that the
    // head runs for. Empty for rows of a prompt.
    std::vector<GraphPart> block = {};

    int n_rows() const {
        return std::accumulate(parts.begin(), parts.end(), 0, [](int n, const GraphPart & p) { return n + p.n_rows; });
    }
    int n_out() const {
        int n = 0;
        for (const auto * all : {&parts, &block}) {
            for (const GraphPart & p : *all) n += p.n_out;
        }
        return n;
    }
    bool operator<(const GraphShape & o) const {
        return std::tie(commit, n_steps, parts, block) < std::tie(o.commit, o.n_steps, o.parts, o.block);
    }
};

// Memory shared by all graphs of a drafter, which run one at a time. It only grows. Growing moves it, which invalidates
// graphs of an earlier `epoch`.
class DraftMemory {
  public:
    explicit DraftMemory(ggml_backend_buffer_type_t buft);

    // Allocates `inputs` and `outputs`, each contiguously in this order, then the other tensors of the graph. Returns
    // byte tensors that cover all inputs and all outputs, null without any. Error(out_of_memory)
    std::pair<ggml_tensor *, ggml_tensor *> allocate(ggml_context * ctx, ggml_cgraph * gf,
                                                     const std::vector<ggml_tensor *> & inputs,
                                                     const std::vector<ggml_tensor *> & outputs);

    int epoch() const { return epoch_; }
    size_t n_bytes() const;

  private:
    ggml_tensor * place(ggml_context * ctx, const std::vector<ggml_tensor *> & tensors,
                        ggml_backend_buffer_ptr & buffer, const char * name);
    [[noreturn]] void fail_without_room();

    ggml_backend_buffer_type_t buft_;
    ggml_backend_buffer_ptr inputs_, outputs_;
    ggml_gallocr_ptr alloc_;
    int epoch_ = 0;
};

// A built graph. Inputs have their shapes in ggml order; absent ones are null. The rows of a conversation are
// contiguous, in the order of the shape's parts.
struct DraftGraph {
    // commit: [n_aux * Ht, n_rows], extracted layers concatenated.
    ggml_tensor * hidden_states = nullptr;
    ggml_tensor * embd = nullptr;     // [H, n_rows] f32, token embeddings; in blocks only the anchors'
    ggml_tensor * pos = nullptr;      // [n_rows] i32
    ggml_tensor * pos_out = nullptr;  // [n_out] i32, positions of the rows that run fully; `pos` itself if all do
    ggml_tensor * row_out = nullptr;  // [n_out] i32, indices of these rows; null if they are all rows or the last ones

    ggml_tensor * previous = nullptr;  // with a Markov head: [R, rows of logits] W1 of each previous token

    // Inputs of one conversation.
    struct Part {
        ggml_tensor * state_idx = nullptr;   // extend: [n_rows] i32 state slot to read
        ggml_tensor * slot = nullptr;        // [n_rows] i64 K/V slot to write
        ggml_tensor * state_slot = nullptr;  // [n_out] i64 state slot to write
        // [n_kv, n_mask_rows] f16, 0 or -inf; for layers with a sliding window and, in a block, for causal layers. Null
        // if no layer of that kind attends.
        struct Mask {
            ggml_tensor * tensor = nullptr;
            bool slides = false, is_causal = false;
        };
        Mask masks[4];
        int n_mask_rows = 0;  // the last n_mask_rows rows have a mask row
    };
    std::vector<Part> parts;

    ggml_tensor * packed = nullptr;  // bytes of all inputs
    ggml_tensor * picked = nullptr;  // bytes of all picks; null without n_top

    // Outputs; null if n_out == 0.
    ggml_tensor * logits = nullptr;  // [Vd, n_out]; only the first position's with a Markov head and without n_top
    // For the host, per draft position: with a selector [selector_rank, n_out], with a confidence head [1, n_out].
    ggml_tensor * hidden = nullptr;
    // With n_top: the likeliest tokens of each row in no particular order, their logits and probabilities.
    ggml_tensor * top_ids = nullptr;     // [n_top, n_out] i32
    ggml_tensor * top_logits = nullptr;  // [1, n_top, n_out]
    ggml_tensor * top_probs = nullptr;   // [1, n_top, n_out]

    std::vector<std::unique_ptr<DraftGraph>> steps;  // inputs and outputs of the GraphShape::n_steps draft rows
    std::unique_ptr<DraftGraph> context;             // for a block: inputs of the rows before it

    std::unique_ptr<ExactLogits> exact;  // for a head with a sketch

    int epoch = 0;  // of its memory

    ggml_cgraph * gf = nullptr;
    ggml_context_ptr ctx;
};

struct GraphForm {
    bool flash_attn = false;  // one fused attention operation instead of separate ones
    int n_top = 0;            // tokens that the graph picks for each row that runs fully; 0 = no picking

    // Returns true if rows store states in the cache (kv.h). In a block only rows of a Markov head do, unless the
    // host rescores the graph's picks.
    bool keeps_states(const DraftSpec & spec) const {
        return !spec.is_block() || (spec.block.markov_rank > 0 && n_top == 0);
    }
};

// Size of the buffer, 0 for null.
size_t n_bytes_of(const ggml_backend_buffer_ptr & buffer);

// Builds and allocates a graph. Error(out_of_memory)
std::unique_ptr<DraftGraph> build_draft_graph(const DraftSpec & spec, const DraftWeights & weights,
                                              const GraphShape & shape, const GraphForm & form, DraftMemory & memory);

// Returns the tensors that graphs of this drafter use, by name; allocates none.
DraftTensors draft_tensors(const DraftSpec & spec);

}  // namespace eaglecpp
