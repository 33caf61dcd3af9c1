// SPDX-License-Identifier: MIT
// The drafter's compute graphs (arithmetic: SafeAILab/EAGLE eagle/model/cnets.py for EAGLE-3; per-feature norm before
// fc and post-norm feedback of EAGLE 3.1 as in vllm-project/vllm and sgl-project/sglang llama_eagle3.py; EAGLE-1 and 2:
// SafeAILab/EAGLE eagle/model/cnets1.py; block drafters: draft/draft_file.h). A graph is a pure function of switches,
// weights, memory and sizes. It uses only operations that the CPU, CUDA, Metal and Vulkan backends all implement.
//
// A graph serves one conversation or several: operations with weights run for the rows of all conversations at once;
// operations that read or write a cache run for each conversation separately, in the sizes they have when it runs
// alone. So a row's numbers do not depend on which conversations share the graph, as far as products do not depend on
// the number of rows.
//
// Two kinds of graph:
//   commit  rows with true target features: fuse them, write K/V; only a conversation's last `n_out` (0 or 1) rows run
//           fully. Of a block drafter none does: behind them comes the pass over a block
//   extend  draft rows fed with the state of an earlier row: all rows run fully. Of a block drafter with a Markov head:
//           the logits of slots, given the token before, unless the graph picks the likeliest tokens: then the host
//           computes what the token before changes about these (outputs.h)
// "Fully" means query, attention, MLP and head of the last layer; layers below the last always run for all rows, as
// the K/V of the next layer needs their output.
//
// Beyond arithmetic, what costs time on a device is waiting for the host. So all inputs of a graph lie side by side and
// one copy brings them, and with `n_top` the graph picks the likeliest tokens itself, so that a few numbers come back
// instead of whole rows, in one copy, too.
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

// one conversation's part of a graph
struct GraphPart {
    const DraftKv * kv;
    int n_rows;
    int n_out;
    int n_kv;  // slots read, padded

    bool operator<(const GraphPart & o) const {
        return std::tie(n_rows, n_out, n_kv, kv) < std::tie(o.n_rows, o.n_out, o.n_kv, o.kv);
    }
};

struct GraphShape {
    bool commit;  // else extend
    std::vector<GraphPart> parts;
    // draft rows after a commit of one conversation: each embeds the likeliest token of the row before and follows it
    int n_steps = 0;
    // Of a block drafter's commit: the blocks behind the rows, one for each conversation; n_out: their slots that the
    // head runs for. Empty: rows of a prompt.
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

// The memory that all graphs of a drafter compute in, one at a time. It grows and never shrinks. Growing moves it,
// which leaves graphs of an earlier `epoch` without memory.
class DraftMemory {
  public:
    explicit DraftMemory(ggml_backend_buffer_type_t buft);

    // Gives memory to `inputs` and `outputs`, each side by side in this order, then to whatever else the graph
    // computes. Returns tensors of bytes that cover all inputs and all outputs, null where there are none.
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

// A built graph. Inputs have their shapes in ggml order; absent ones are null. Rows of a conversation stand side by
// side, conversations in the order of the shape's parts.
struct DraftGraph {
    // commit: [n_aux * Ht, n_rows], aux layers side by side
    ggml_tensor * features = nullptr;
    ggml_tensor * embd = nullptr;     // [H, n_rows] f32, token embeddings; of blocks the anchors' alone
    ggml_tensor * pos = nullptr;      // [n_rows] i32
    ggml_tensor * pos_out = nullptr;  // [n_out] i32, of the rows that run fully; `pos` itself where all do
    ggml_tensor * row_out = nullptr;  // [n_out] i32, these rows; null where all do or the last ones

    ggml_tensor * previous = nullptr;  // with a Markov head: [R, rows of logits] W1 of the token before each

    // of one conversation
    struct Part {
        ggml_tensor * state_idx = nullptr;   // extend: [n_rows] i32 state slot to feed from
        ggml_tensor * slot = nullptr;        // [n_rows] i64 K/V slot to write
        ggml_tensor * state_slot = nullptr;  // [n_out] i64 state slot to write
        // [n_kv, n_mask_rows] f16, 0 or -inf, of layers with a sliding window and, in a block, of causal ones; null
        // where no such layer attends
        struct Mask {
            ggml_tensor * tensor = nullptr;
            bool slides = false, is_causal = false;
        };
        Mask masks[4];
        int n_mask_rows = 0;  // its last n_mask_rows rows have a mask row
    };
    std::vector<Part> parts;

    ggml_tensor * packed = nullptr;  // the bytes of all inputs
    ggml_tensor * picked = nullptr;  // the bytes of all picks; null without n_top

    // outputs; null when n_out == 0
    ggml_tensor * logits = nullptr;  // [Vd, n_out]; of a block with a Markov head and without n_top the first slot's
    // of a block's slots, for the host: with a selector [selector_rank, n_out], with a confidence head [1, n_out]
    ggml_tensor * hidden = nullptr;
    // with n_top: the likeliest tokens of each row in no particular order, their logits and their probabilities
    ggml_tensor * top_ids = nullptr;     // [n_top, n_out] i32
    ggml_tensor * top_logits = nullptr;  // [1, n_top, n_out]
    ggml_tensor * top_probs = nullptr;   // [1, n_top, n_out]

    std::vector<std::unique_ptr<DraftGraph>> steps;  // inputs and outputs of GraphShape::n_steps rows
    std::unique_ptr<DraftGraph> context;             // inputs of the rows before a block, where this is one

    int epoch = 0;  // of the memory it has

    ggml_cgraph * gf = nullptr;
    ggml_context_ptr ctx;
};

struct GraphForm {
    bool flash_attn = false;  // one fused attention operation instead of the explicit form
    int n_top = 0;            // tokens that the graph picks for each row that runs fully; 0 = none

    // Whether rows leave states in the cache (kv.h). Of a block those with a Markov head do, unless the host rescores
    // what the graph picked.
    bool keeps_states(const DraftSpec & spec) const {
        return !spec.is_block() || (spec.block.markov_rank > 0 && n_top == 0);
    }
};

// of a buffer that may not be there
size_t n_bytes_of(const ggml_backend_buffer_ptr & buffer);

// Builds and allocates. Error(out_of_memory)
std::unique_ptr<DraftGraph> build_draft_graph(const DraftSpec & spec, const DraftWeights & weights,
                                              const GraphShape & shape, const GraphForm & form, DraftMemory & memory);

// The tensors that the graphs of such a drafter use, by name; allocates none.
DraftTensors draft_tensors(const DraftSpec & spec);

}  // namespace eaglecpp
