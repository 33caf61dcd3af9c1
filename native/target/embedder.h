// SPDX-License-Identifier: MIT
// Computes vectors of texts in a separate context on the target's weights. The context has room for the longest text so
// far and keeps no rows of finished texts. begin() takes the texts. Each step() is one decode of llama.cpp, so other
// work can run between steps.
//
// BERT and similar models need a whole text in one batch. All other models read a text in pieces. This class computes
// the mean of a text's rows itself, because llama.cpp pools each batch separately. Not thread-safe.
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
    // pooling: none, mean, cls or last. "" selects the pooling that the file names, or mean if the file names none.
    // Error(value | gguf | unsupported)
    Embedder(const Target & target, const std::string & pooling);

    const char * pooling() const;
    // Returns the number of values per vector.
    int n_values() const { return n_values_; }
    // Returns the maximum number of tokens of a text.
    int n_max() const { return n_max_; }

    // Takes new texts and drops all earlier texts. Error(value | context_full | out_of_memory | unsupported)
    void begin(std::vector<Tokens> texts);
    // Runs one decode. Returns false once all texts have been read. After Error(out_of_memory | broken), call begin()
    // again.
    bool step(int n_threads);
    // Returns the vectors of all texts: one row per text, or one row per token if pooling is none. The vectors are not
    // normalised.
    std::vector<float> take() { return std::move(rows_); }

  private:
    // The part of a text that one batch reads.
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
    bool is_in_file_ = false;   // the file names a pooling
    bool llama_pools_ = false;  // llama.cpp pools, so one batch must have the last row or all rows of a text
    Vocabulary vocab_;
    int n_values_ = 0, n_max_ = 0;
    int n_texts_max_ = 1;              // maximum number of texts per batch
    int n_rows_of_piece_ = 0;          // rows per batch for texts that are read in pieces
    int n_rows_max_ = 0, n_room_ = 0;  // n_rows_max_: rows per batch; n_room_: tokens that fit into the context
    std::vector<Tokens> texts_;
    std::vector<size_t> first_rows_;  // index of each text's first row in the result
    size_t next_ = 0;
    int n_done_ = 0;  // number of tokens of the current text that were read
    std::vector<Part> parts_;
    std::vector<float> rows_;
    TargetBatch batch_;
    Context context_;
};

}  // namespace eaglecpp
