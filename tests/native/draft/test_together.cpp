// SPDX-License-Identifier: MIT
// Compares conversations that draft in one graph, on the CPU or a device, with conversations that draft alone on the
// CPU. The numbers must not depend on the other conversations, on the padding of a device's graphs, or on whether rows
// were saved and loaded in between.
#include <cmath>
#include <cstring>
#include <memory>
#include <random>

#include "../check.h"
#include "../engine/tiny_models.h"
#include "../gguf/draft_files.h"
#include "base/error.h"
#include "counting_device.h"
#include "draft/hidden_state_sequence.h"
#include "ggml_hook/hook.h"
#include "target/llama_bridge.h"

using namespace eaglecpp;
using namespace eaglecpp::test;

namespace {

constexpr int n_ctx = 600, n_conversations = 5;

// Device and mode under test. The reference is the same drafter on the CPU, whose graphs are not padded.
struct Place {
    const char * name;
    ggml_backend_dev_t device;
    bool is_remote, use_kernels;
};

void fill(float * out, size_t n, int seed, float deviation) {
    std::mt19937 random(seed);
    std::normal_distribution<float> normal(0.0f, deviation);
    for (size_t i = 0; i < n; ++i) out[i] = normal(random);
}

// Opens a drafter that has its own token tables and seeded weights.
std::unique_ptr<HiddenStateDrafter> make_drafter(const DraftFile & file, const Place & place, bool flash_attn) {
    DrafterOptions o;
    o.device = place.device;
    o.n_ctx = n_ctx;
    o.type_kv = GGML_TYPE_F32;
    o.flash_attn = flash_attn;
    o.use_kernels = place.use_kernels;
    o.is_remote = place.is_remote;
    auto drafter = std::make_unique<HiddenStateDrafter>(file, o);
    const DraftSpec & s = drafter->spec();
    std::vector<float> values((size_t)s.n_embd * s.n_vocab);
    fill(values.data(), values.size(), 1, 1.0f);
    const auto * table = (const uint8_t *)values.data();
    drafter->set_embedding(
        EmbeddingTable({table, table + values.size() * sizeof(float)}, GGML_TYPE_F32, s.n_embd, s.n_vocab));
    int seed = 2;
    ggml_context * ctx = drafter->weights().ctx.get();
    for (ggml_tensor * t = ggml_get_first_tensor(ctx); t; t = ggml_get_next_tensor(ctx, t)) {
        values.resize(ggml_nelements(t));
        fill(values.data(), values.size(), ++seed, 1.0f / std::sqrt((float)t->ne[0]));
        ggml_backend_tensor_set(t, values.data(), 0, values.size() * sizeof(float));
    }
    drafter->finish();
    return drafter;
}

struct Rows {
    std::vector<std::vector<float>> layers;
    Tokens tokens;

    HiddenStates hidden_states() const {
        HiddenStates out;
        for (const auto & l : layers) out.layer.push_back(l.data());
        out.n_rows = (int)tokens.size();
        return out;
    }
};

Rows make_rows(const DraftSpec & s, int n) {
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

class Pair {
  public:
    Pair(const DraftFile & file, const Place & place, bool flash_attn)
        : together_(make_drafter(file, place, flash_attn)),
          alone_(make_drafter(file, {"", nullptr, false, place.use_kernels}, flash_attn)),
          // The results of ggml's own products and attention depend on the number of rows. Latent attention always uses
          // ggml's own attention.
          tolerance_(place.use_kernels && flash_attn && !place.is_remote && !file.spec().has_latent() ? 0.0f : 2e-5f) {
        CHECK(!place.device || together_->form().n_top > 0);
        for (int i = 0; i < n_conversations; ++i) reopen(i);
    }

    void reopen(int i) {
        a_[i].reset();
        b_[i].reset();
        a_[i] = std::make_unique<HiddenStateSequence>(*together_);
        b_[i] = std::make_unique<HiddenStateSequence>(*alone_);
    }

    // Reads rows without output for conversation i, in the same way as for a prompt.
    void read(int i, int n) {
        const Rows rows = make_rows(spec(), n);
        a_[i]->commit(rows.hidden_states(), rows.tokens.data());
        b_[i]->commit(rows.hidden_states(), rows.tokens.data());
    }

    // Conversation who[i] first commits n_pending[i] rows. It then runs widths[i][level] rows in each draft step.
    void round(const std::vector<int> & who, const std::vector<int> & n_pending,
               const std::vector<std::vector<int>> & widths, const std::string & what) {
        std::vector<Rows> rows;
        for (int n : n_pending) rows.push_back(make_rows(spec(), n));
        std::vector<DraftRequest> commits;
        for (size_t w = 0; w < who.size(); ++w) {
            commits.push_back({a_[who[w]].get(), rows[w].hidden_states(), rows[w].tokens.data(), n_ahead(widths[w])});
        }
        const int n_runs = together_->n_runs();
        together_->commit_together(commits);
        CHECK_MSG(together_->n_runs() == n_runs + 1 || n_pending[0] > 100, what + ": expected a single graph");
        for (size_t w = 0; w < who.size(); ++w) {
            alone_->commit_together(
                {{b_[who[w]].get(), rows[w].hidden_states(), rows[w].tokens.data(), n_ahead(widths[w])}});
            compare(who[w], 1, what + ": commit");
        }
        std::vector<int> first_before(who.size(), 0), n_before(who.size(), 1);
        for (size_t level = 0;; ++level) {
            std::vector<DraftRequest> levels;
            std::vector<size_t> there;
            for (size_t w = 0; w < who.size(); ++w) {
                if (level >= widths[w].size()) continue;
                std::vector<DraftRow> own;
                const int first = 1 + a_[who[w]]->n_draft_rows();
                for (int i = 0; i < widths[w][level]; ++i) {
                    own.push_back(
                        {first + i, (int)(w * 5 + level + i) % spec().n_vocab, first_before[w] + i % n_before[w]});
                }
                first_before[w] = first;
                n_before[w] = (int)own.size();
                levels.push_back(DraftRequest::step(a_[who[w]].get(), own));
                there.push_back(w);
            }
            if (levels.empty()) return;
            together_->extend_together(levels);
            for (size_t l = 0; l < levels.size(); ++l) {
                alone_->extend_together({DraftRequest::step(b_[who[there[l]]].get(), levels[l].rows)});
                compare(who[there[l]], (int)levels[l].rows.size(), what + strf(": level %zu", level));
            }
        }
    }

    // If one conversation of a call fails, none of its conversations may change.
    void an_error_moves_no_conversation() {
        const Rows few = make_rows(spec(), 2), many = make_rows(spec(), n_ctx + 1);
        const int n = a_[0]->n_rows();
        CHECK_THROWS(together_->commit_together({{a_[0].get(), few.hidden_states(), few.tokens.data()},
                                                 {a_[1].get(), many.hidden_states(), many.tokens.data()}}),
                     "the drafter's cache has room for");
        CHECK(a_[0]->n_rows() == n);
        if (spec().is_block()) return;  // before a pass, a conversation of a block drafter has no slots to request
        const int n_draft = a_[0]->n_draft_rows();
        CHECK_THROWS(together_->extend_together({DraftRequest::step(a_[0].get(), {{90, 1, 0}}),
                                                 DraftRequest::step(a_[1].get(), {{90, 1, 77}})}),
                     "node 77 has no draft row");
        CHECK(a_[0]->n_draft_rows() == n_draft);
    }

    void saved_rows_serve_another() {
        HiddenStateSequence &from = *a_[0], &to = *a_[1];
        std::vector<uint8_t> rows;
        from.save_rows(from.n_rows(), rows);
        to.load_rows({rows.data(), rows.size()}, from.n_rows());
        const Rows more = make_rows(spec(), 2);
        for (HiddenStateSequence * seq : {&from, &to}) {
            together_->commit_together({{seq, more.hidden_states(), more.tokens.data()}});
        }
        const auto expected = from.candidates(0, 3), found = to.candidates(0, 3);
        for (size_t c = 0; c < 3; ++c) CHECK(found[c].token == expected[c].token && found[c].logp == expected[c].logp);
        if (spec().is_block() && !together_->is_remote())
            CHECK_THROWS(together_->extend_together({DraftRequest::step(&from, {{1, 2, 0}})}),
                         "the last commit gave 1 draft tokens");
    }

    // On a device, each number of rows has its own graph.
    void every_number_of_rows(const std::string & what) {
        reopen(0);
        for (int n : {1, 2, 3, 4, 5, 6, 7, 8, 9, 17}) round({0}, {n}, {{1, 3, 5}}, what + strf(", %d rows", n));
        read(0, 130);
        round({0}, {2}, {{1}}, what + ", after a prompt");
    }

    // A new conversation reuses the device memory of a closed conversation. It must not read the rows of the closed
    // conversation.
    void caches_serve_again(const std::string & what) {
        every_number_of_rows(what);
        const EaglecppCounts before = eaglecpp_counts();
        for (int i = 0; i < 3; ++i) every_number_of_rows(what + strf(", conversation %d", i + 1));
        CHECK_MSG(eaglecpp_counts().allocations == before.allocations, what + ": device memory was allocated again");
        CHECK_MSG(eaglecpp_counts().frees == before.frees, what + ": device memory was freed");
    }

    // A chain that is drafted in the graph of its commit equals a chain that is drafted step by step. The former waits
    // for the device only once.
    void steps_are_levels(const std::string & what) {
        constexpr int n_steps = 5;
        reopen(0);
        HiddenStateSequence &a = *a_[0], &b = *b_[0];
        CHECK_MSG(together_->can_step(), what);
        for (int n : {1, 3, 4, 2}) {
            const Rows rows = make_rows(spec(), n);
            alone_->commit_together({{&b, rows.hidden_states(), rows.tokens.data()}});
            together_->commit_together({{&a, rows.hidden_states(), rows.tokens.data(), 0, n_steps}});
            const uint64_t before = eaglecpp_counts().waits;
            for (int i = 0; i < n_steps; ++i) {
                same_candidates(a.candidates(i, 4), b.candidates(0, 4), what + strf(": step %d", i));
                const std::vector<Candidate> best = b.candidates(0, 4);
                const DraftRow next{i + 1, best[0].token, i};
                alone_->extend_together({DraftRequest::step(&b, {next})});
                CHECK(!a.take_step(i, {i + 1, best[1].token, i}) && a.take_step(i, next));
            }
            same_candidates(a.candidates(n_steps, 4), b.candidates(0, 4), what + ": the last step");
            CHECK(eaglecpp_counts().waits == before);
            // Later draft steps continue from the drafted chain.
            CHECK(b.n_draft_rows() == n_steps && a.n_draft_rows() == n_steps);
            const std::vector<DraftRow> level{{n_steps + 1, 1, n_steps}, {n_steps + 2, 2, 2}};
            alone_->extend_together({DraftRequest::step(&b, level)});
            together_->extend_together({DraftRequest::step(&a, level)});
            compare(0, 2, what + ": a draft step after the chain");
        }
    }

    const DraftSpec & spec() const { return together_->spec(); }

  private:
    // Returns the number of slots to request from a block drafter.
    int n_ahead(const std::vector<int> & levels) const { return spec().is_block() ? (int)levels.size() : 0; }

    void same_candidates(const std::vector<Candidate> & ours, const std::vector<Candidate> & theirs,
                         const std::string & what) {
        if (!CHECK_MSG(ours.size() == theirs.size(), what)) return;
        for (size_t c = 0; c < ours.size(); ++c) {
            CHECK_MSG(ours[c].token == theirs[c].token, what + strf(": candidate %zu", c));
            CHECK_NEAR(ours[c].logp, theirs[c].logp, tolerance_);
            CHECK_NEAR(ours[c].logq, theirs[c].logq, tolerance_);
            CHECK_NEAR(ours[c].confidence, theirs[c].confidence, 1e-4);
        }
    }

    void compare(int i, int n_rows, const std::string & what) {
        HiddenStateSequence &a = *a_[i], &b = *b_[i];
        const auto same = [&](const float * x, const float * y, size_t n, const std::string & of) {
            float gap = 0.0f;
            for (size_t j = 0; j < n; ++j) gap = std::max(gap, std::fabs(x[j] - y[j]));
            const bool is_same = tolerance_ > 0.0f ? gap < tolerance_ : std::memcmp(x, y, n * sizeof(float)) == 0;
            CHECK_MSG(is_same, what + strf(": %s of conversation %d differs by %g", of.c_str(), i, gap));
        };
        CHECK(a.n_rows() == b.n_rows() && a.n_draft_rows() == b.n_draft_rows());
        for (int row = 0; row < n_rows; ++row) {
            // The graph of a selector does not compute logits for all rows.
            if (!spec().is_block()) same(a.logits(row), b.logits(row), spec().n_draft_vocab, strf("row %d", row));
            same_candidates(a.candidates(row, 3), b.candidates(row, 3), what);
            if (spec().is_block()) continue;
            CoupledSampling sampling;
            sampling.seed = 7;
            sampling.top_k = row % 2 ? 0 : 10;
            same_candidates(a.candidates(row, 3, sampling, 11), b.candidates(row, 3, sampling, 11), what + ", drawn");
        }
        if (spec().is_block()) return;
        std::vector<float> x((1 + a.n_draft_rows()) * spec().n_embd), y(x);
        ggml_backend_tensor_get(a.kv().state(), x.data(), 0, x.size() * sizeof(float));
        ggml_backend_tensor_get(b.kv().state(), y.data(), 0, y.size() * sizeof(float));
        same(x.data(), y.data(), x.size(), "states");
    }

    std::unique_ptr<HiddenStateDrafter> together_, alone_;
    std::unique_ptr<HiddenStateSequence> a_[n_conversations], b_[n_conversations];
    float tolerance_;
};

void check(const DraftFile & file, Kind of, const Place & place, bool flash_attn) {
    const std::string kind = strf("kind %d, %s, flash %d", (int)of, place.name, flash_attn);
    const uint64_t n_misaligned = eaglecpp_counts().misaligned;
    Pair pair(file, place, flash_attn);
    pair.read(1, 7);
    pair.read(2, 300);  // from here on, each conversation has another number of rows
    pair.round({0, 1, 2, 3}, {1, 1, 1, 1}, {{1, 1}, {1, 1}, {1, 1}, {1, 1}}, kind + ", chains");
    pair.round({0, 1, 2}, {3, 1, 2}, {{1, 1, 1}, {}, {1}}, kind + ", chains of unequal depth");
    pair.round({4, 2, 0, 3}, {2, 5, 1, 1}, {{4, 3, 6}, {1, 1, 1}, {2}, {8, 8}}, kind + ", trees and chains");
    pair.round({3}, {4}, {{3, 2}}, kind + ", one");
    pair.read(0, 3);
    pair.round({0, 1, 2, 3, 4}, {1, 1, 1, 1, 1}, {{2}, {2}, {2}, {2}, {2}}, kind + ", five");
    pair.round({0, 1}, {120, 90}, {{1}, {2, 2}}, kind + ", more rows than a graph takes");
    pair.reopen(2);
    pair.round({1, 2, 4}, {1, 9, 2}, {{2, 2}, {3}, {1, 4}}, kind + ", a new conversation");
    pair.an_error_moves_no_conversation();
    pair.round({1, 0}, {2, 2}, {{2, 2}, {3}}, kind + ", after an error");
    pair.saved_rows_serve_another();
    pair.caches_serve_again(kind);
    if (!place.device || pair.spec().is_block()) return;
    pair.steps_are_levels(kind);
    CHECK_MSG(eaglecpp_counts().misaligned == n_misaligned, kind + ": a shader cannot bind the offset of its source");
}

}  // namespace

int main() {
    llama_start();
    ggml_backend_register(ggml_backend_init());
    const Folder folder;
    const std::string path = folder.file("draft.gguf");
    std::vector<Place> places = {{"ggml", nullptr, false, false},
                                 {"filled graphs", nullptr, true, false},
                                 {"device", find_device("Counting0", -1), true, false}};
    if (kernels::status().is_active) {
        places.push_back({"kernels", nullptr, false, true});
        places.push_back({"filled graphs with kernels", nullptr, true, true});
    }
    for (Kind kind : all_kinds) {
        write_draft_file(path, kind);
        const DraftFile file(path);
        for (bool flash_attn : {false, true}) {
            for (const Place & place : places) check(file, kind, place, flash_attn);
        }
    }
    return test::result();
}
