// SPDX-License-Identifier: MIT
// Conversations that draft in one graph against the same ones that draft alone: the same bits, whoever else is there,
// and whoever reads rows that another one saved.
#include <cstring>

#include "../check.h"
#include "../engine/tiny_models.h"
#include "../gguf/draft_files.h"
#include "base/error.h"
#include "ggml_hook/hook.h"
#include "seeded_drafter.h"
#include "target/llama_bridge.h"

using namespace eaglecpp;
using namespace eaglecpp::test;

namespace {

constexpr int n_conversations = 5;

class Pair {
  public:
    Pair(const DraftFile & file, bool is_remote, bool flash_attn, bool use_kernels)
        : together_(file, nullptr, is_remote, flash_attn, use_kernels),
          alone_(file, nullptr, is_remote, flash_attn, use_kernels),
          // ggml's own products depend on the number of rows
          tolerance_(use_kernels ? 0.0f : 2e-5f) {
        for (int i = 0; i < n_conversations; ++i) open();
    }

    void open() {
        a_.push_back(std::make_unique<FeatureSequence>(*together_.drafter));
        b_.push_back(std::make_unique<FeatureSequence>(*alone_.drafter));
    }

    void reopen(int i) {
        a_[i].reset();
        b_[i].reset();
        a_[i] = std::make_unique<FeatureSequence>(*together_.drafter);
        b_[i] = std::make_unique<FeatureSequence>(*alone_.drafter);
    }

    // rows without output, as those of a prompt
    void read(int i, int n) {
        const Rows rows = make_rows(spec(), n);
        a_[i]->commit(rows.features(), rows.tokens.data(), false);
        b_[i]->commit(rows.features(), rows.tokens.data(), false);
    }

    // who[i] commits n_pending[i] rows and then has widths[i][level] rows in each level
    void round(const std::vector<int> & who, const std::vector<int> & n_pending,
               const std::vector<std::vector<int>> & widths, const std::string & what) {
        std::vector<Rows> rows;
        for (int n : n_pending) rows.push_back(make_rows(spec(), n));
        std::vector<DraftCommit> commits;
        for (size_t w = 0; w < who.size(); ++w) {
            commits.push_back({a_[who[w]].get(), rows[w].features(), rows[w].tokens.data(), n_ahead(widths[w])});
        }
        const int n_runs = together_.drafter->n_runs();
        together_.drafter->commit_together(commits);
        CHECK_MSG(together_.drafter->n_runs() == n_runs + 1 || n_pending[0] > 100, what + ": more than one graph");
        for (size_t w = 0; w < who.size(); ++w) {
            b_[who[w]]->commit(rows[w].features(), rows[w].tokens.data(), true, n_ahead(widths[w]));
            compare(who[w], 1, what + ": commit");
        }
        std::vector<int> first_before(who.size(), 0), n_before(who.size(), 1);
        for (size_t level = 0;; ++level) {
            std::vector<DraftLevel> levels;
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
                levels.push_back({a_[who[w]].get(), own});
                there.push_back(w);
            }
            if (levels.empty()) return;
            together_.drafter->extend_together(levels);
            for (size_t l = 0; l < levels.size(); ++l) {
                b_[who[there[l]]]->extend(levels[l].rows);
                compare(who[there[l]], (int)levels[l].rows.size(), what + strf(": level %zu", level));
            }
        }
    }

    // One that cannot go on keeps nobody's rows.
    void nobody_moves_in_an_error() {
        const Rows few = make_rows(spec(), 2), many = make_rows(spec(), n_ctx + 1);
        const int n = a_[0]->n_rows();
        CHECK_THROWS(together_.drafter->commit_together({{a_[0].get(), few.features(), few.tokens.data()},
                                                         {a_[1].get(), many.features(), many.tokens.data()}}),
                     "the drafter's cache holds");
        CHECK(a_[0]->n_rows() == n);
        if (spec().is_block()) return;  // a conversation without a pass has no slots to ask for
        const int n_draft = a_[0]->n_draft_rows();
        CHECK_THROWS(together_.drafter->extend_together({{a_[0].get(), {{90, 1, 0}}}, {a_[1].get(), {{90, 1, 77}}}}),
                     "node 77 has no draft row");
        CHECK(a_[0]->n_draft_rows() == n_draft);
    }

    void saved_rows_serve_another() {
        FeatureSequence &from = *a_[0], &to = *b_[1];
        to.load_rows(from.save_rows(from.n_rows()), from.n_rows());
        const Rows more = make_rows(spec(), 2);
        for (FeatureSequence * seq : {&from, &to}) seq->commit(more.features(), more.tokens.data(), true);
        const auto expected = from.candidates(0, 3), found = to.candidates(0, 3);
        for (size_t c = 0; c < 3; ++c) CHECK(found[c].token == expected[c].token && found[c].logp == expected[c].logp);
        if (spec().is_block() && !together_.drafter->is_remote())
            CHECK_THROWS(from.extend({{1, 2, 0}}), "this pass gave 1 tokens");
    }

    const DraftSpec & spec() const { return together_.drafter->spec(); }

  private:
    // of a block drafter: levels ask for slots
    int n_ahead(const std::vector<int> & levels) const { return spec().is_block() ? (int)levels.size() : 0; }

    void compare(int i, int n_rows, const std::string & what) {
        FeatureSequence &a = *a_[i], &b = *b_[i];
        const auto same = [&](const float * x, const float * y, size_t n, const std::string & of) {
            float gap = 0.0f;
            for (size_t j = 0; j < n; ++j) gap = std::max(gap, std::fabs(x[j] - y[j]));
            const bool is_same = tolerance_ > 0.0f ? gap < tolerance_ : std::memcmp(x, y, n * sizeof(float)) == 0;
            CHECK_MSG(is_same, what + strf(": %s of conversation %d differs by %g", of.c_str(), i, gap));
        };
        CHECK(a.n_rows() == b.n_rows() && a.n_draft_rows() == b.n_draft_rows());
        for (int row = 0; row < n_rows; ++row) {
            // rows behind a selector are no graph's
            if (!spec().is_block()) same(a.logits(row), b.logits(row), spec().n_draft_vocab, strf("row %d", row));
            const auto ours = a.candidates(row, 3), theirs = b.candidates(row, 3);
            for (size_t c = 0; c < ours.size(); ++c) {
                CHECK(ours[c].token == theirs[c].token && std::fabs(ours[c].logp - theirs[c].logp) <= tolerance_);
                CHECK_NEAR(ours[c].confidence, theirs[c].confidence, 1e-4);
            }
        }
        if (spec().is_block()) return;
        std::vector<float> x(spec().n_embd), y(spec().n_embd);
        for (int node = 0; node <= a.n_draft_rows(); ++node) {
            a.get_state(node, x.data());
            b.get_state(node, y.data());
            same(x.data(), y.data(), x.size(), strf("state %d", node));
        }
    }

    Side together_, alone_;
    std::vector<std::unique_ptr<FeatureSequence>> a_, b_;
    float tolerance_;
};

void together_as_alone(const DraftFile & file, bool is_remote, bool flash_attn, bool use_kernels) {
    const std::string kind = strf("remote %d, flash %d, kernels %d", is_remote, flash_attn, use_kernels);
    Pair pair(file, is_remote, flash_attn, use_kernels);
    pair.read(1, 7);
    pair.read(2, 300);  // other numbers of slots
    pair.round({0, 1, 2, 3}, {1, 1, 1, 1}, {{1, 1}, {1, 1}, {1, 1}, {1, 1}}, kind + ", chains");
    pair.round({0, 1, 2}, {3, 1, 2}, {{1, 1, 1}, {}, {1}}, kind + ", chains of unequal depth");
    pair.round({4, 2, 0, 3}, {2, 5, 1, 1}, {{4, 3, 6}, {1, 1, 1}, {2}, {8, 8}}, kind + ", trees and chains");
    pair.round({3}, {4}, {{3, 2}}, kind + ", one");
    pair.read(0, 3);
    pair.round({0, 1, 2, 3, 4}, {1, 1, 1, 1, 1}, {{2}, {2}, {2}, {2}, {2}}, kind + ", five");
    pair.round({0, 1}, {120, 90}, {{1}, {2, 2}}, kind + ", more rows than a graph takes");
    pair.reopen(2);
    pair.round({1, 2, 4}, {1, 9, 2}, {{2, 2}, {3}, {1, 4}}, kind + ", a new conversation");
    pair.nobody_moves_in_an_error();
    pair.round({1, 0}, {2, 2}, {{2, 2}, {3}}, kind + ", after an error");
    pair.saved_rows_serve_another();
}

}  // namespace

int main() {
    llama_start();
    const Folder folder;
    const std::string path = folder.file("draft.gguf");
    std::vector<bool> kernels{false};
    if (kernels::status().is_active) kernels.push_back(true);
    for (Kind kind : all_kinds) {
        write_draft_file(path, kind);
        const DraftFile file(path);
        for (bool flash_attn : {false, true}) {
            for (bool is_remote : {false, true}) {
                for (bool use_kernels : kernels) together_as_alone(file, is_remote, flash_attn, use_kernels);
            }
        }
    }
    return test::result();
}
