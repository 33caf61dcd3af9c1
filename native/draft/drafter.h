// SPDX-License-Identifier: MIT
// The drafter: weights on one backend, shared by any number of sequences. It knows nothing of the target beyond the
// tables it may share with it.
//
// A DraftSequence is the drafter's side of one conversation. Rows are committed in order: row p pairs the target's
// feature at position p with the embedding of the token at p + 1, and lives at K/V slot and RoPE position p. Draft rows
// come after the committed ones, are fed with the state of an earlier row, and vanish with the next commit. Several
// conversations can commit or extend in one graph: the weights are then read once for all, and each gets the bits it
// has alone where products do not depend on the number of rows.
#pragma once

#include <ggml-backend.h>
#include <ggml-cpp.h>

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "algo/coupled.h"
#include "algo/tree.h"
#include "base/features.h"
#include "draft/graph.h"
#include "draft/kv.h"
#include "draft/weights.h"
#include "gguf/draft_file.h"

namespace eaglecpp {

struct DrafterOptions {
    ggml_backend_dev_t device = nullptr;  // null: the CPU
    int n_threads = 1;                    // CPU only
    int n_ctx = 0;                        // committed rows a sequence can hold
    int n_draft_rows_max = 128;           // draft rows of one round
    ggml_type type_kv = GGML_TYPE_F16;
    bool flash_attn = true;   // where the device supports it for these sizes; fixed once sequences exist
    bool use_kernels = true;  // our own, on the CPU
    // Graphs in few sizes that pick the likeliest tokens themselves: always on devices other than the CPU, where
    // waiting and copying cost more than rows. Asked for on the CPU in tests.
    bool is_remote = false;
};

// One draft row: `token` is embedded, the state of `parent` is fed, attention sees the committed rows, the chain of
// parents and the row itself.
struct DraftRow {
    Token token;
    int parent;  // index of an earlier draft row of this round; -1 = the last committed row
};

class Drafter;
class DraftSequence;

// what one conversation adds to a graph of several
struct DraftCommit {
    DraftSequence * seq;
    FeatureRows features;
    const Token * tokens;
    int n_ahead = 0;  // of a parallel drafter: masked rows behind the last one, see DraftSequence::commit
};

struct DraftLevel {
    DraftSequence * seq;
    std::vector<DraftRow> rows;
};

// Graphs by shape, as long as they are used and have memory.
class DraftGraphs {
  public:
    DraftGraph & get(Drafter & drafter, const GraphShape & shape);

    // forgets those that read or write this cache
    void forget(const DraftKv * kv);

  private:
    struct Kept {
        std::unique_ptr<DraftGraph> graph;
        long used = 0;
    };

    std::map<GraphShape, Kept> graphs_;
    long n_uses_ = 0;
};

class DraftSequence {
  public:
    explicit DraftSequence(Drafter & drafter);
    ~DraftSequence();
    DraftSequence(const DraftSequence &) = delete;
    DraftSequence & operator=(const DraftSequence &) = delete;

    int n_rows() const { return kv_->n_rows; }

    // Appends rows with true features; tokens[i] is embedded in row i. With `want_output` the last row runs fully:
    // logits(0) is its draft distribution and its state is fed by DraftRow::parent -1. Drops the draft rows. All rows
    // or, after an exception, none. Error(context_full)
    // `n_ahead`, of a parallel drafter with output: so many masked rows follow it in the same graph, and logits(i) is
    // the distribution i tokens further on. They leave nothing behind.
    void commit(const FeatureRows & features, const Token * tokens, bool want_output, int n_ahead = 0);

    // Appends draft rows and runs them in one graph; logits(i) belongs to rows[i]. Returns the index of the first one.
    int extend(const std::vector<DraftRow> & rows);

    // draft rows of this round so far
    int n_draft_rows() const { return (int)parents_.size(); }

    // Each as the two above, of several conversations of one drafter in one graph: commits with output; no conversation
    // twice. All rows of all or, after an exception, none.
    static void commit_together(const std::vector<DraftCommit> & commits);
    static void extend_together(const std::vector<DraftLevel> & levels);

    // [n_draft_vocab] of output row i of this one's last call; valid until the next one of any sequence of this drafter
    const float * logits(int i);

    // the k most likely next tokens after output row i, as target ids
    std::vector<Candidate> candidates(int i, int k);

    // the k tokens after output row i that a target with this sampler most likely chooses at index `pos` of the text
    std::vector<Candidate> candidates(int i, int k, const CoupledSampling & sampling, Pos pos);

    // state [H] of the last committed row (-1) or of draft row i
    void get_state(int row, float * dst) const;
    void set_state(int row, const float * src);

    // The first n committed rows: as bytes, and from those of any conversation of this drafter in place of its own.
    std::vector<uint8_t> save_rows(int n) const;
    void load_rows(const std::vector<uint8_t> & bytes, int n);

    // keeps the first n committed rows; drops the draft rows
    void truncate(int n_rows);

    const DraftKv & kv() const { return *kv_; }

    // bytes beyond the weights: cache, and what all sequences compute in
    size_t n_bytes() const;

  private:
    // what a graph picked for one row, best first
    struct Picked {
        std::vector<std::pair<int32_t, float>> tokens;  // index and logit
        float log_sum_exp;
    };

    // this conversation's rows in a call
    struct Call {
        DraftSequence * seq;
        const Token * tokens;
        FeatureRows features;        // of a commit, without the masked rows
        std::vector<int32_t> pos;    // per row
        std::vector<int32_t> feeds;  // of an extend: state slot that each row is fed from
        int first_slot, first_state;
        int n_out;
        int n_ahead;  // masked rows, the last ones
        bool is_commit;
        GraphPart part;

        int n() const { return (int)pos.size(); }
        int n_idle() const { return part.n_rows - n(); }
    };

    // what a device picked for all rows of a graph; valid until the next one runs
    struct Landed {
        const int32_t * ids = nullptr;
        const float * numbers = nullptr;  // n logits, then n probabilities
        size_t n = 0;
    };

    int n_padded(int n_rows) const;
    int n_slots_read(int n_used) const;
    Call commit_call(const FeatureRows & features, const Token * tokens, bool want_output, int n_ahead);
    Call extend_call(const std::vector<DraftRow> & rows, std::vector<Token> & tokens);
    static void run(std::vector<Call> & calls);
    void check_room(int n_rows) const;
    void fill(DraftGraph & g, const Call & call, const DraftGraph::Part & in, int first_row, int first_out);
    void fill_mask(const DraftGraph & g, const Call & call, ggml_tensor * mask, int n_mask_rows, int window);
    void take_outputs(const DraftGraph & g, const Call & call, int first_out, const Landed & landed);
    void read_picked(const Landed & landed, size_t n_each);
    bool covers(const Picked & picked, const CoupledSampling & sampling) const;

    Drafter & drafter_;
    std::unique_ptr<DraftKv> kv_;
    DraftGraphs graphs_;              // with this conversation alone
    std::vector<int32_t> parents_;    // per draft row
    std::vector<int32_t> positions_;  // per draft row
    // of the last call
    std::vector<float> logits_;  // empty as long as nobody asked for what a device holds
    ggml_tensor * logits_tensor_ = nullptr;
    int first_out_ = 0, n_out_ = 0;  // its rows there
    int run_ = 0;                    // its number, of all runs of the drafter
    size_t n_logits_ = 0;
    std::vector<Picked> picked_;
    CoupledDraft coupled_;
    // kept to save allocations
    std::vector<float> scattered_;
};

class Drafter {
  public:
    // loads the weights; Error(gguf | out_of_memory | unsupported)
    Drafter(const DraftFile & file, const DrafterOptions & options);

    const DraftSpec & spec() const { return spec_; }
    const DrafterOptions & options() const { return options_; }
    const std::vector<Token> & d2t() const { return d2t_; }
    std::string device_name() const;
    bool flash_attn() const { return form_.flash_attn; }
    bool is_remote() const { return options_.is_remote; }

    // Tables of the target for a drafter without its own; the tensors must outlive the drafter. The embedding's rows
    // must be readable on the host. Where the drafter's device cannot read the head, `to_copy` is copied once: the same
    // values in memory that can be, or null. Error(mismatch) on wrong shapes, Error(unsupported) without such a copy.
    void share_embedding(const ggml_tensor * table);
    void share_head(const ggml_tensor * head, const ggml_tensor * to_copy);
    void set_embedding(EmbeddingTable table);

    // of all graphs from now on, where it runs on the CPU
    void set_n_threads(int n_threads);

    // Call after the tables are complete: picks flash attention where the device supports it, and verifies that the
    // device supports every operation. Error(unsupported | mismatch)
    void finish();

    // On a device: allocates now what conversations will need, so that a lack of memory shows before they begin.
    // Error(out_of_memory)
    void reserve(int n_sequences);

    // bytes in this drafter's memory: weights of its own, what graphs compute in, and one conversation's cache; and
    // what lies in host memory beside it
    struct Memory {
        size_t weights, compute, cache, host;
    };
    Memory memory_use() const;

    const DraftWeights & weights() const { return weights_; }
    ggml_backend_t backend() const { return backend_.get(); }
    ggml_backend_buffer_type_t buft() const { return buft_; }
    const GraphForm & form() const { return form_; }
    DraftMemory & memory() { return *memory_; }

    // Where the inputs of a graph are written before it starts: the tensor itself, or memory the device copies from.
    uint8_t * staging(const DraftGraph & g);
    // Memory that the device copies n bytes to on its own: copies to any other may make it wait for each.
    uint8_t * landing(size_t n);
    void start(const DraftGraph & g);
    void wait();

    // graphs of several conversations
    DraftGraphs & joint_graphs() { return joint_graphs_; }

    // Caches of closed conversations serve the next ones: allocating and freeing is dear on some devices, and drivers
    // have been seen to fail on freed memory. Error(out_of_memory)
    std::unique_ptr<DraftKv> take_kv();
    void give_kv(std::unique_ptr<DraftKv> kv);

    // graphs that were run; what one leaves on the device lasts until the next
    int n_runs() const { return n_runs_; }
    int count_run() { return ++n_runs_; }
    // graphs that were built
    int n_graphs() const { return n_graphs_; }
    void count_graph() { ++n_graphs_; }

  private:
    bool supports(const GraphForm & form, std::string & missing);
    bool is_on_cpu() const { return ggml_backend_dev_type(options_.device) == GGML_BACKEND_DEVICE_TYPE_CPU; }

    DraftSpec spec_;
    DrafterOptions options_;
    std::vector<Token> d2t_;
    std::string path_;
    ggml_backend_ptr backend_;
    ggml_backend_buffer_type_t buft_;
    DraftWeights weights_;
    ggml_context_ptr head_ctx_;
    ggml_backend_buffer_ptr head_buffer_;
    GraphForm form_;
    std::unique_ptr<DraftMemory> memory_;
    DraftGraphs joint_graphs_;
    std::vector<std::unique_ptr<DraftKv>> idle_kv_;
    // of the host, where the device has a kind of its own for what it copies
    class HostMemory {
      public:
        uint8_t * at_least(size_t n, ggml_backend_dev_t device);

      private:
        ggml_backend_buffer_ptr pinned_;
        std::vector<uint8_t> unpinned_;  // where there is none
    };
    HostMemory staging_, landing_;
    int n_runs_ = 0, n_graphs_ = 0;
    bool is_running_ = false;
};

}  // namespace eaglecpp
