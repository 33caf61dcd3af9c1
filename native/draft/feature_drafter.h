// SPDX-License-Identifier: MIT
// A drafter that reads the target's features, EAGLE or a block drafter: weights on one device, shared by any number of
// conversations (feature_sequence.h). It knows nothing of the target beyond the tables it may share with it. What the
// two kinds share is all but the graph: tables, devices, memory, caches, graphs that are kept, picks, the calls for
// several.
#pragma once

#include <ggml-backend.h>
#include <ggml-cpp.h>

#include <memory>
#include <string>
#include <vector>

#include "draft/device.h"
#include "draft/draft_file.h"
#include "draft/drafter.h"
#include "draft/graph.h"
#include "draft/graph_cache.h"
#include "draft/kv.h"
#include "draft/weights.h"

namespace eaglecpp {

struct DrafterOptions {
    ggml_backend_dev_t device = nullptr;  // null: the CPU
    int n_threads = 1;                    // CPU only
    int n_ctx = 0;                        // committed rows a sequence can hold
    int n_draft_rows_max = 128;           // draft rows of one round
    int n_sequences = 1;                  // most conversations
    ggml_type type_kv = GGML_TYPE_F16;
    bool flash_attn = true;   // where the device supports it for these sizes; fixed once sequences exist
    bool use_kernels = true;  // our own, on the CPU
    // Use graphs of few sizes that pick the likeliest tokens themselves. Always so on devices other than the CPU, where
    // waiting and copying cost more than rows; on the CPU only tests ask for it.
    bool is_remote = false;
};

class FeatureDrafter : public Drafter {
  public:
    // Rows of one commit graph: large enough for efficient matrix products, small enough that features and activations
    // of an 8B-class drafter stay within some 20 MiB.
    static constexpr int n_commit_chunk = 128;

    // loads the weights; Error(gguf | out_of_memory | unsupported)
    FeatureDrafter(const DraftFile & file, const DrafterOptions & options);

    const DraftSpec & spec() const { return spec_; }
    const DrafterOptions & options() const { return options_; }
    DraftTraits traits() const override;
    DraftDescription describe() const override { return {spec_.is_block() ? spec_.block.kind() : "eagle"}; }
    const std::vector<Token> & d2t() const { return d2t_; }  // [n_draft_vocab] draft id -> target id
    std::unique_ptr<DraftSequence> open(int conversation) override;
    void extend_together(const std::vector<DraftRequest> & steps) override;
    bool can_step() const override { return weights_.draft_embedding != nullptr; }
    std::string device_name() const override { return device_.name(); }
    bool flash_attn() const { return form_.flash_attn; }
    bool is_remote() const { return options_.is_remote; }

    // Tables of the target for a drafter without its own; the tensors must outlive the drafter. The embedding's rows
    // must be readable on the host. Where the drafter's device cannot read the head, `to_copy` is copied once: the same
    // values in memory that can be copied from, or null. Error(mismatch) on wrong shapes, Error(unsupported) when a
    // copy is needed and `to_copy` is null.
    void set_embedding(EmbeddingTable table);
    void share_head(const ggml_tensor * head, const ggml_tensor * to_copy);

    void set_n_threads(int n_threads) override;

    // Call after the tables are complete: picks flash attention where the device supports it, and verifies that the
    // device supports every operation. Error(unsupported | mismatch)
    void finish();

    // On a device: allocates now what conversations will need, so that a lack of memory shows before they begin.
    // Error(out_of_memory)
    void reserve();

    std::vector<MemoryUse> memory_use() const override;

    const DraftWeights & weights() const { return weights_; }
    DraftDevice & device() { return device_; }
    const DraftDevice & device() const { return device_; }
    const GraphForm & form() const { return form_; }
    // the host computes what the token before changes about a block's slot, for the slot's likeliest tokens
    bool selects() const { return spec_.block.selector_rank > 0 || (spec_.block.markov_rank > 0 && form_.n_top > 0); }

    // The graph that runs next, kept or built. This call may discard what the last graph left on the device.
    // Error(out_of_memory)
    const DraftGraph & next_graph(GraphCache & kept, const GraphShape & shape);

    // graphs of several conversations
    GraphCache & joint_graphs() { return joint_graphs_; }

    // Caches of closed conversations serve the next ones: allocating and freeing is slow on some devices, and drivers
    // have been seen to fail on freed memory. Error(out_of_memory)
    std::unique_ptr<DraftKv> take_kv();
    void give_kv(std::unique_ptr<DraftKv> kv);

    // number of graphs that were run; what one leaves on the device lasts until the next
    int n_runs() const { return n_runs_; }

  private:
    int n_commit_rows() const override { return n_commit_chunk; }
    void run_commits(const std::vector<DraftRequest> & commits) override;
    std::vector<GraphShape> shapes(const DraftKv & kv, const GraphForm & form, int n_rows, int n_level_rows,
                                   int n_together) const;
    bool supports(const GraphForm & form, std::string & missing, int n_steps = 0);
    void check_table(const char * what, int64_t n_embd, int64_t n_found, int n_rows) const;
    void bring_embedding();
    void bring_mask();
    bool make_rows(ggml_tensor *& rows, ggml_type type, int n_rows);

    DraftSpec spec_;
    DrafterOptions options_;
    std::vector<Token> d2t_;
    std::string path_;
    DraftDevice device_;
    DraftWeights weights_;
    ggml_context_ptr head_ctx_, embedding_ctx_;
    ggml_backend_buffer_ptr head_buffer_, embedding_buffer_;
    GraphForm form_;
    DraftMemory memory_;
    GraphCache joint_graphs_;
    std::vector<std::unique_ptr<DraftKv>> idle_kv_;
    int n_runs_ = 0;
};

}  // namespace eaglecpp
