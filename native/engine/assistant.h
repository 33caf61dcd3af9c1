// SPDX-License-Identifier: MIT
// Gemma 4's assistant: a head that reads the target's keys and values and stores none of its own. A commit runs only
// the last committed row. As in training, draft rows do not see each other, and all have the position of the last
// committed row (huggingface/transformers: docs/source/en/model_doc/gemma4_assistant.md).
#pragma once

#include "engine/model_sequence.h"
#include "gguf/reader.h"

namespace eaglecpp {

class Assistant : public HeadSequence {
  public:
    Assistant(ModelDrafter & drafter, const SeqRange & range) : HeadSequence(drafter, range, /*owns_cells=*/false) {}

    void commit(const HiddenStates & hidden_states, const Token * tokens) override {
        truncate(n_rows_);
        for (int i = 0; i < hidden_states.n_rows; ++i) d_.vocabulary_.add(tokens[i]);
        n_rows_ += hidden_states.n_rows;
    }
    void add_commit(const Token * tokens, const HiddenStates & hidden_states) override;
    void add_step(const std::vector<DraftRow> & rows) override;
    void save_rows(int, std::vector<uint8_t> &) const override {}
    void load_rows(ByteView, int n) override {
        truncate(0);
        n_rows_ = n;
    }
    bool fits(ByteView bytes, int) const override { return bytes.size == 0; }
};

// Checks that the assistant's blocks can read the keys and values of the target's last two blocks. llama.cpp does not
// check this: with unsuitable blocks it would read wrong values or past the end of the buffer. Error(mismatch)
void check_assistant(const GgufReader & assistant, const GgufReader & target);

}  // namespace eaglecpp
