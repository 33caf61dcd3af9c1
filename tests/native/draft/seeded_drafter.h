// SPDX-License-Identifier: MIT
// A drafter with tables of its own and seeded weights, and rows for it.
#pragma once

#include <ggml-backend.h>
#include <ggml.h>

#include <cmath>
#include <memory>
#include <random>
#include <vector>

#include "draft/feature_sequence.h"

namespace eaglecpp::test {

static constexpr int n_ctx = 600;

// a drafter, and a conversation
struct Side {
    Side(const DraftFile & file, ggml_backend_dev_t device, bool is_remote, bool flash_attn, bool use_kernels = false) {
        DrafterOptions o;
        o.device = device;
        o.n_ctx = n_ctx;
        o.type_kv = GGML_TYPE_F32;
        o.flash_attn = flash_attn;
        o.use_kernels = use_kernels;
        o.is_remote = is_remote;
        drafter = std::make_unique<FeatureDrafter>(file, o);
        const DraftSpec & s = drafter->spec();
        std::vector<float> values((size_t)s.n_embd * s.n_vocab);
        fill(values.data(), values.size(), 1, 1.0f);
        const auto * table = (const uint8_t *)values.data();
        drafter->set_embedding(EmbeddingTable::from_bytes({table, table + values.size() * sizeof(float)}, GGML_TYPE_F32,
                                                          s.n_embd, s.n_vocab));
        int seed = 2;
        ggml_context * ctx = drafter->weights().ctx.get();
        for (ggml_tensor * t = ggml_get_first_tensor(ctx); t; t = ggml_get_next_tensor(ctx, t)) {
            values.resize(ggml_nelements(t));
            fill(values.data(), values.size(), ++seed, 1.0f / std::sqrt((float)t->ne[0]));
            ggml_backend_tensor_set(t, values.data(), 0, values.size() * sizeof(float));
        }
        drafter->finish();
        open();
    }

    static void fill(float * out, size_t n, int seed, float deviation) {
        std::mt19937 random(seed);
        std::normal_distribution<float> normal(0.0f, deviation);
        for (size_t i = 0; i < n; ++i) out[i] = normal(random);
    }

    void open() { seq = std::make_unique<FeatureSequence>(*drafter); }

    std::unique_ptr<FeatureDrafter> drafter;
    std::unique_ptr<FeatureSequence> seq;
};

struct Rows {
    std::vector<std::vector<float>> layers;
    Tokens tokens;

    FeatureRows features() const {
        FeatureRows out;
        for (const auto & l : layers) out.layer.push_back(l.data());
        out.n_rows = (int)tokens.size();
        return out;
    }
};

inline Rows make_rows(const DraftSpec & s, int n) {
    static std::mt19937 random{3};
    std::normal_distribution<float> normal;
    Rows out;
    for (int a = 0; a < s.n_aux(); ++a) {
        out.layers.emplace_back((size_t)n * s.n_embd_target);
        for (float & v : out.layers.back()) v = normal(random);
    }
    for (int i = 0; i < n; ++i) out.tokens.push_back((Token)(random() % s.n_vocab));
    return out;
}

}  // namespace eaglecpp::test
