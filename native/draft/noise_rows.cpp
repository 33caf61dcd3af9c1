// SPDX-License-Identifier: MIT
#include "draft/noise_rows.h"

#include <algorithm>
#include <cmath>

#include "algo/noise.h"

namespace eaglecpp {

// With so few of the first 16 bits set, the others matter.
static constexpr int n_fine = 64;

NoiseRows::NoiseRows(DraftDevice & device, int n_draft_vocab, const std::vector<Token> & d2t)
    : device_(device), d2t_(d2t), ctx_(ggml_init({2 * ggml_tensor_overhead(), nullptr, /*no_alloc=*/true})) {
    rows_ = ggml_new_tensor_2d(ctx_.get(), GGML_TYPE_F16, n_draft_vocab, n_rows);
    ggml_set_name(rows_, "noise");
    buffer_.reset(ggml_backend_alloc_ctx_tensors_from_buft(ctx_.get(), device.buft()));
}

void NoiseRows::make_table(float temperature, float most) {
    if (!table_.empty() && table_temperature_ == temperature && table_most_ == most) return;
    table_.resize(1 << 16);
    for (int c = 0; c < (int)table_.size(); ++c) {
        table_[c] = ggml_fp32_to_fp16(std::min(most, temperature * (float)Noise::gumbel_near((uint16_t)c)));
    }
    table_temperature_ = temperature;
    table_most_ = most;
}

// Min-p leaves no token whose logit is further below the best one than `gap`. Noise that is not larger than that, and
// what the best one's own noise mostly is, seldom lifts one of these, and seldom keeps down one of the others.
int NoiseRows::bring(const CoupledSampling & sampling, Pos pos) {
    const float gap = sampling.min_p > 0.0f ? -std::log(sampling.min_p) : INFINITY;
    const float temperature = sampling.temperature, most = gap + temperature;
    const int row = pos % n_rows;
    Tag & tag = tags_[row];
    if (tag.pos == pos && tag.seed == sampling.seed && tag.temperature == temperature && tag.most == most) return row;
    make_table(temperature, most);
    const size_t n = rows_->ne[0], n_bytes = n * sizeof(ggml_fp16_t);
    const Noise noise(sampling.seed, pos);
    const Token * tokens = d2t_.empty() ? nullptr : d2t_.data();
    coarse_.resize(n);
    noise.coarse(tokens, (int)n, coarse_.data());
    auto * out = (ggml_fp16_t *)(host_.at_least(n_rows * n_bytes, device_.get()) + row * n_bytes);
    for (size_t i = 0; i < n; ++i) {
        const uint16_t c = coarse_[i];
        if (c >= n_fine) {
            out[i] = table_[c];
        } else {
            const double g = noise.gumbel(tokens ? tokens[i] : (Token)i);
            out[i] = ggml_fp32_to_fp16(std::min(most, temperature * (float)g));
        }
    }
    ggml_backend_tensor_set_async(device_.backend(), rows_, out, row * n_bytes, n_bytes);
    tag = {sampling.seed, temperature, most, pos};
    return row;
}

}  // namespace eaglecpp
