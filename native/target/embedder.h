// SPDX-License-Identifier: MIT
// Vectors of texts: a context of its own beside the target's, on the same weights. It is made
// for the longest text so far and keeps nothing of a text. `begin` takes texts, each `step` is one decode of llama.cpp,
// so that whoever shares the machine can compute between two of them.
//
// Models that read a text at once (BERT and its kind) need it in one batch, whatever its length. All others read it in
// pieces; the mean of their rows is taken here, because llama.cpp pools each batch by itself. One thread at a time.
#pragma once

#include <llama.h>

#include <memory>
#include <string>
#include <vector>

#include "target/context.h"
#include "target/target.h"
#include "target/tree_batch.h"

namespace eaglecpp {

class Embedder {
  public:
    // pooling: none, mean, cls or last; "" = the file's, or the mean where it has none.
    // Error(value | gguf | unsupported)
    Embedder(const Target & target, const std::string & pooling);

    const char * pooling() const;
    // values of a row
    int n_values() const { return n_values_; }
    // tokens of the longest text
    int n_max() const { return n_max_; }

    // Forgets earlier texts. Error(value | context_full | out_of_memory | unsupported)
    void begin(std::vector<Tokens> texts);
    // One decode; false once all texts were read. Error(out_of_memory | broken); then only `begin` goes on.
    bool step(int n_threads);
    // One row for each text, or without pooling for each token; not normalised.
    std::vector<float> take() { return std::move(rows_); }

  private:
    // of one text in a batch
    struct Part {
        size_t text;
        int begin, n, first_row;
    };

    void fill();
    void check_memory(size_t n_tokens) const;
    void make_context(int n_tokens);
    void read(const Part & part);

    std::shared_ptr<const TargetModel> model_;
    TargetOptions options_;
    bool reads_at_once_ = false;
    enum llama_pooling_type pooling_ = LLAMA_POOLING_TYPE_NONE;
    bool is_said_ = false;      // in the file
    bool llama_pools_ = false;  // rows of a batch, which is right where the last row or all of them are in it
    Vocabulary vocab_;
    int n_values_ = 0, n_max_ = 0;
    int n_texts_max_ = 1;              // in a batch
    int n_rows_of_piece_ = 0;          // of a text that need not be read at once
    int n_rows_max_ = 0, n_room_ = 0;  // of a batch; tokens that the context was made for
    std::vector<Tokens> texts_;
    std::vector<size_t> first_rows_;  // of the result, of each text
    size_t next_ = 0;
    int n_done_ = 0;  // tokens of the next text
    std::vector<Part> parts_;
    std::vector<float> rows_;
    TargetBatch batch_;
    Context context_;
};

}  // namespace eaglecpp
