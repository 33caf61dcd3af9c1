// SPDX-License-Identifier: MIT
#include "engine/assistant.h"

#include "base/error.h"

namespace eaglecpp {

void Assistant::add_commit(const Token * tokens, const HiddenStates & hidden_states) {
    commit(hidden_states, tokens);
    const int last = hidden_states.n_rows - 1;
    outputs_.assign(1, d_.batch_.n_rows());
    d_.batch_.add(d_.own_token(tokens[last]), n_rows_, range_, true, state_at(hidden_states, last));
}

void Assistant::add_step(const std::vector<DraftRow> & rows) {
    outputs_.clear();
    for (const DraftRow & row : rows) {
        const int parent = row_of(row.parent);
        nodes_.push_back(row.node);
        outputs_.push_back(d_.batch_.n_rows());
        d_.batch_.add(d_.own_token(row.token), n_rows_, range_, true, state_behind(parent));
    }
}

// Layout of the keys in a block of a file.
struct BlockKeys {
    bool is_windowed = false;
    int64_t n = 0, size = 0;
};

static BlockKeys keys_of(const GgufReader & file, int layer) {
    const std::string arch = file.str("general.architecture") + ".attention.";
    BlockKeys out;
    out.is_windowed = file.find_of_layer(arch + "sliding_window_pattern", layer).value_or(0) != 0;
    out.n = file.find_of_layer(arch + "head_count_kv", layer)
                .value_or(file.find_of_layer(arch + "head_count", layer).value_or(0));
    out.size = file.find_u32(arch + (out.is_windowed ? "key_length_swa" : "key_length")).value_or(0);
    return out;
}

void check_assistant(const GgufReader & assistant, const GgufReader & target) {
    const int n_own = (int)assistant.u32(assistant.str("general.architecture") + ".block_count");
    const int n_blocks = (int)target.u32(target.str("general.architecture") + ".block_count");
    for (int i = 0; i < n_own; ++i) {
        const BlockKeys own = keys_of(assistant, i);
        const int read = n_blocks - 1 - own.is_windowed;
        const BlockKeys kept = keys_of(target, read);
        if (own.is_windowed == kept.is_windowed && own.n == kept.n && own.size == kept.size) continue;
        const auto shape = [](const BlockKeys & k) {
            return strf("%d keys of size %d%s", (int)k.n, (int)k.size, k.is_windowed ? " with a sliding window" : "");
        };
        fail(ErrorKind::mismatch,
             "%s cannot draft for %s: block %d of the assistant reads %s, but block %d of the target stores %s; use "
             "the assistant made for this target",
             assistant.path().c_str(), target.path().c_str(), i, shape(own).c_str(), read, shape(kept).c_str());
    }
}

}  // namespace eaglecpp
