// SPDX-License-Identifier: MIT
// Gemma 4's assistant, a head without keys and values of its own: it sees the target's. Only the last of its committed
// rows is run. Its draft rows leave nothing behind, do not see each other, and all lie at the last row's position, as
// they did in training (huggingface/transformers: docs/source/en/model_doc/gemma4_assistant.md).
#pragma once

#include "engine/model_sequence.h"
#include "gguf/reader.h"

namespace eaglecpp {

class Assistant : public HeadSequence {
  public:
    Assistant(ModelDrafter & drafter, const SeqRange & range) : HeadSequence(drafter, range, /*owns_cells=*/false) {}

    void commit(const FeatureRows & features, const Token *) override {
        truncate(n_rows_);
        n_rows_ += features.n_rows;
    }
    void add_commit(const Token * tokens, const FeatureRows & features) override;
    void add_step(const std::vector<DraftRow> & rows) override;
    void save_rows(int, std::vector<uint8_t> &) const override {}
    void load_rows(ByteView, int n) override {
        truncate(0);
        n_rows_ = n;
    }
    bool fits(ByteView bytes, int) const override { return bytes.size == 0; }
};

// Whether an assistant's blocks can read the keys and values that its target keeps for its last two blocks; llama.cpp
// would read others, or past their end. Error(mismatch)
void check_assistant(const GgufReader & assistant, const GgufReader & target);

}  // namespace eaglecpp
