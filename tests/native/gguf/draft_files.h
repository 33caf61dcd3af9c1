// SPDX-License-Identifier: MIT
// Tiny drafter GGUFs with seeded weights, and every way in which one can be malformed by name.
#pragma once

#include <string>
#include <vector>

namespace eaglecpp {

enum class Flaw {
    none,
    wrong_architecture,
    missing_size,
    wrong_key_type,
    negative_size,
    zero_heads,
    odd_head_dim,
    huge_width,
    no_target_layers,
    layer_beyond_target,
    missing_switch,
    unknown_rope_type,
    unknown_scaling,
    nan_epsilon,
    missing_tensor,
    unknown_tensor,
    wrong_shape,
    quantised_norm,
    d2t_wrong_type,
    d2t_out_of_range,
    d2t_duplicate,
    short_tokenizer,
    truncated_data,
    truncated_header,
    not_gguf,
    // of EAGLE-1
    narrow_target,
    norm_it_has_not,
    written_by_a_fork,
    latents_in_eagle_1,
    // of latent attention
    several_kv_heads,
    short_row,
    no_scale,
    zero_scale,
    no_key_length,
    rotated_halves,
    no_values,
    whole_kv_b,
    keys_not_transposed,
    normed_latent_values,
};

// eagle31: fc_norm, norm_output; latent: these and latent attention
enum class Kind { eagle, eagle3, eagle31, latent };

// with a word the error must contain
extern const std::vector<std::pair<Flaw, const char *>> all_flaws, eagle_flaws, latent_flaws;

void write_draft_file(const std::string & path, Kind kind, Flaw flaw = Flaw::none);

}  // namespace eaglecpp
