// SPDX-License-Identifier: MIT
// The drafter's compute graphs. Sources of the arithmetic:
//   EAGLE-3              SafeAILab/EAGLE eagle/model/cnets.py
//   EAGLE-3.1            vllm-project/vllm and sgl-project/sglang llama_eagle3.py (norms before fc, post-norm feedback)
//   EAGLE-1 and EAGLE-2  SafeAILab/EAGLE eagle/model/cnets1.py
//   block drafters       see draft/draft_file.h
//
// A graph depends only on switches, weights, memory and sizes. It uses only operations that the CPU, CUDA, Metal and
// Vulkan backends all implement.
//
// A graph serves one or several conversations. Operations with weights run once for the rows of all conversations.
// Operations that read or write a cache run separately for each conversation, with the same sizes as if this
// conversation ran alone. So a row's numbers do not depend on other conversations, provided that the results of
// products do not depend on the number of rows.
//
// There are two kinds of graph:
//   commit  Rows with true hidden states: fuses these states and writes K/V. Only the last `n_out` (0 or 1) rows of a
//           conversation run fully. In a block drafter, no committed row runs fully; the pass over a block follows.
//   extend  Draft rows that read the state of an earlier row; all rows run fully. In a block drafter with a Markov
//           head: the logits of draft positions, given the previous token. If the graph picks the likeliest tokens, the
//           host computes these logits instead (outputs.h).
//
// A row runs fully if query, attention, MLP and head of the last layer run for it. Lower layers always run for all
// rows, because the next layer computes K/V from their output.
//
// On a device, waiting for the host takes the most time besides arithmetic. So all inputs of a graph are contiguous and
// arrive in one copy. With `n_top`, the graph picks the likeliest tokens itself, and one copy returns only these tokens
// instead of whole rows.
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
#include "draft/weights.h"

namespace eaglecpp {

// The part of one conversation in a graph.
struct GraphPart {
    const DraftKv * kv;
    int n_rows;
    int n_out;
    int n_kv;  // number of K/V slots that the graph reads, padded

    bool operator<(const GraphPart & o) const {
        return std::tie(n_rows, n_out, n_kv, kv) < std::tie(o.n_rows, o.n_out, o.n_kv, o.kv);
    }
};

struct GraphShape {
    bool commit;  // true for a commit graph, false for an extend graph
    std::vector<GraphPart> parts;
    // Number of draft rows after a commit of a single conversation. Each draft row follows the previous row and embeds
    // its likeliest token.
    int n_steps = 0;
    // For a commit of a block drafter: the blocks after the committed rows, one per conversation. n_out of a block is
    // the number of draft positions for which the head runs. Empty if the rows belong to a prompt.
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

// Memory shared by all graphs of a drafter, which run one at a time. The memory never shrinks. When it grows, it moves,
// and all graphs with an earlier `epoch` become invalid.
class DraftMemory {
  public:
    explicit DraftMemory(ggml_backend_buffer_type_t buft);

    // Allocates `inputs` and `outputs`, each contiguously in this order, then all other tensors of the graph. Returns a
    // byte tensor that covers all inputs, and a byte tensor that covers all outputs (null if empty).
    // Error(out_of_memory)
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

// A built graph. Shapes of inputs are in ggml's order. Unused inputs are null. The rows of a conversation are
// contiguous, and conversations are in the order of the shape's parts.
struct DraftGraph {
    // For a commit: [n_aux * Ht, n_rows], the concatenated hidden states of the extracted layers.
    ggml_tensor * hidden_states = nullptr;
    ggml_tensor * embd = nullptr;  // [H, n_rows] f32, token embeddings; for a block only the embeddings of the anchors
    ggml_tensor * pos = nullptr;   // [n_rows] i32, positions
    ggml_tensor * pos_out = nullptr;  // [n_out] i32, positions of rows that run fully; `pos` itself if all rows do
    ggml_tensor * row_out = nullptr;  // [n_out] i32, indices of rows that run fully; null if all or the last rows do

    ggml_tensor * previous = nullptr;  // with a Markov head: [R, rows of logits], the row of W1 for each previous token

    // Inputs of one conversation.
    struct Part {
        ggml_tensor * state_idx = nullptr;   // extend: [n_rows] i32 state slot that each row reads
        ggml_tensor * slot = nullptr;        // [n_rows] i64 K/V slot that each row writes
        ggml_tensor * state_slot = nullptr;  // [n_out] i64 state slot that each row writes
        // Attention mask [n_kv, n_mask_rows] f16 with values 0 or -inf. Layers with a sliding window share one mask. In
        // a block, causal layers share another mask. A mask is null if no layer uses it.
        struct Mask {
            ggml_tensor * tensor = nullptr;
            bool slides = false, is_causal = false;
        };
        Mask masks[4];
        int n_mask_rows = 0;  // the mask covers only the last n_mask_rows rows of the conversation
    };
    std::vector<Part> parts;

    ggml_tensor * packed = nullptr;  // bytes of all inputs
    ggml_tensor * picked = nullptr;  // bytes of all picks; null without n_top

    // Outputs of the graph; null if n_out == 0.
    ggml_tensor * logits = nullptr;  // [Vd, n_out]; with a Markov head and without n_top, only the first position
    // States for the host, per draft position: [selector_rank, n_out] with a selector, [1, n_out] with a confidence
    // head.
    ggml_tensor * hidden = nullptr;
    // The likeliest tokens of each row with their logits and probabilities, in no particular order, if n_top > 0.
    ggml_tensor * top_ids = nullptr;     // [n_top, n_out] i32, token ids
    ggml_tensor * top_logits = nullptr;  // [1, n_top, n_out], logits
    ggml_tensor * top_probs = nullptr;   // [1, n_top, n_out], probabilities

    std::vector<std::unique_ptr<DraftGraph>> steps;  // inputs and outputs of each of the GraphShape::n_steps draft rows
    std::unique_ptr<DraftGraph> context;             // for a block: inputs of the rows before the block

    int epoch = 0;  // epoch of the graph's memory

    ggml_cgraph * gf = nullptr;
    ggml_context_ptr ctx;
};

struct GraphForm {
    bool flash_attn = false;  // one flash attention operation replaces several operations
    int n_top = 0;            // number of tokens that the graph picks for each row that runs fully; 0 = no picks

    // Returns true if rows store states in the cache (kv.h). In a block drafter, only the rows for a Markov head store
    // states, and only if a graph, not the host, rescores these rows.
    bool keeps_states(const DraftSpec & spec) const {
        return !spec.is_block() || (spec.block.markov_rank > 0 && n_top == 0);
    }
};

// Returns the size of the buffer, or 0 for a null buffer.
size_t n_bytes_of(const ggml_backend_buffer_ptr & buffer);

// Builds and allocates a graph. Error(out_of_memory)
std::unique_ptr<DraftGraph> build_draft_graph(const DraftSpec & spec, const DraftWeights & weights,
                                              const GraphShape & shape, const GraphForm & form, DraftMemory & memory);

// Returns the tensors that graphs of this drafter use, by name. Does not allocate memory.
DraftTensors draft_tensors(const DraftSpec & spec);

}  // namespace eaglecpp
