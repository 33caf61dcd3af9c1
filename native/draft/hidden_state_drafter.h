// SPDX-License-Identifier: MIT
// A drafter that reads the target's hidden states: EAGLE or a block drafter. Its weights are on one device, and all
// conversations share them (hidden_state_sequence.h). Of the target, the drafter knows only the shared tables. EAGLE
// and block drafters differ only in their graphs.
#pragma once

#include <ggml-backend.h>

#include <memory>
#include <string>
#include <vector>

#include "base/recent.h"
#include "draft/device.h"
#include "draft/draft_file.h"
#include "draft/drafter.h"
#include "draft/graph.h"
#include "draft/kv.h"
#include "draft/weights.h"

namespace eaglecpp {

struct DrafterOptions {
    ggml_backend_dev_t device = nullptr;  // null = the CPU
    int n_threads = 1;                    // number of threads on the CPU
    int n_ctx = 0;                        // maximum number of committed rows per sequence
    int n_draft_rows_max = 128;           // maximum number of draft rows per round
    int n_sequences = 1;                  // maximum number of conversations
    ggml_type type_kv = GGML_TYPE_F16;
    bool flash_attn = true;   // used if the device supports it for these sizes; fixed once sequences exist
    bool use_kernels = true;  // use our CPU kernels
    // Use graphs that have few different sizes and pick the likeliest tokens themselves. On devices this is always
    // true, because waiting and copying cost more than additional rows. On the CPU, only tests set it.
    bool is_remote = false;
};

class HiddenStateDrafter : public Drafter {
  public:
    // Number of rows per commit graph. It is large enough for efficient matrix products. It is small enough that the
    // hidden states and activations of a drafter for an 8B model take about 20 MiB at most.
    static constexpr int n_commit_chunk = 128;

    // Loads the weights. Error(gguf | out_of_memory | unsupported)
    HiddenStateDrafter(const DraftFile & file, const DrafterOptions & options);

    const DraftSpec & spec() const { return spec_; }
    const DrafterOptions & options() const { return options_; }
    DraftTraits traits() const override;
    DraftDescription describe() const override { return {spec_.is_block() ? spec_.block.kind() : "eagle"}; }
    const std::vector<Token> & d2t() const { return d2t_; }  // target id of each draft id, [n_draft_vocab]
    std::unique_ptr<DraftSequence> open(int conversation) override;
    void extend_together(const std::vector<DraftRequest> & steps) override;
    bool can_step() const override { return weights_.draft_embedding != nullptr; }
    std::string device_name() const override { return device_.name(); }
    bool flash_attn() const { return form_.flash_attn; }
    bool is_remote() const { return options_.is_remote; }

    // set_embedding() and share_head() give the drafter a table of the target that its own file lacks. The table must
    // outlive the drafter. The rows of the embedding must be readable on the host. `to_copy` has the head's values in
    // readable memory, or is null. If the drafter's device cannot read the head, `to_copy` is copied once.
    // Error(mismatch) on wrong shapes, Error(unsupported) if a copy is needed and `to_copy` is null.
    void set_embedding(EmbeddingTable table);
    void share_head(const ggml_tensor * head, const ggml_tensor * to_copy);

    void set_n_threads(int n_threads) override;

    // Call this function after all tables are set. Selects flash attention if the device supports it, and checks that
    // the device supports every operation. Error(unsupported | mismatch)
    void finish();

    // On a device, allocates the memory of all conversations. So a lack of memory is found before any conversation
    // starts. Error(out_of_memory)
    void reserve();

    std::vector<MemoryUse> memory_use() const override;

    const DraftWeights & weights() const { return weights_; }
    DraftDevice & device() { return device_; }
    const DraftDevice & device() const { return device_; }
    const GraphForm & form() const { return form_; }
    // Returns true if the host, not the graph, applies the effect of the previous token on a position of a block. The
    // host applies this effect only to the position's likeliest tokens.
    bool selects() const { return spec_.block.selector_rank > 0 || (spec_.block.markov_rank > 0 && form_.n_top > 0); }

    // Returns a graph of this shape to run next, from the cache or newly built. The call may discard the results of the
    // last graph on the device. Error(out_of_memory)
    const DraftGraph & next_graph(const GraphShape & shape);

    // take_kv() returns the K/V cache of a closed conversation, or a new cache. give_kv() returns a cache after use.
    // Caches are reused for two reasons: allocating and freeing is slow on some devices, and some drivers failed after
    // memory was freed. Error(out_of_memory)
    std::unique_ptr<DraftKv> take_kv();
    void give_kv(std::unique_ptr<DraftKv> kv);

    // Number of graphs run so far. A graph's results stay on the device until the next graph runs.
    int n_runs() const { return n_runs_; }

  private:
    int n_commit_rows() const override { return n_commit_chunk; }
    void run_commits(const std::vector<DraftRequest> & commits) override;
    std::vector<GraphShape> shapes(const DraftKv & kv, const GraphForm & form, int n_rows, int n_step_rows,
                                   int n_together) const;
    bool supports(const GraphForm & form, std::string & missing, int n_steps = 0);
    void check_table(const char * what, int64_t n_embd, int64_t n_found, int n_rows) const;
    std::unique_ptr<DraftKv> make_kv(ggml_backend_buffer_type_t buft) const;
    void bring_embedding();
    void bring_mask();

    DraftSpec spec_;
    DrafterOptions options_;
    std::vector<Token> d2t_;
    std::string path_;
    DraftDevice device_;
    DraftWeights weights_;
    OwnMatrix head_, embedded_;
    GraphForm form_;
    DraftMemory memory_;
    Recent<GraphShape, std::unique_ptr<DraftGraph>> graphs_;
    std::vector<std::unique_ptr<DraftKv>> idle_kv_;
    int n_runs_ = 0;
};

}  // namespace eaglecpp
