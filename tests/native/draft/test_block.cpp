// SPDX-License-Identifier: MIT
// Block drafters: conversations in one graph against the same ones alone, rows that are saved, and what is refused.
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

constexpr int n_ahead = 3;

void same(FeatureSequence & a, FeatureSequence & b, int i, float tolerance, const std::string & what) {
    const auto x = a.candidates(i, 3), y = b.candidates(i, 3);
    CHECK_MSG(x.size() == y.size() && x.size() == 3, what + ": candidates");
    for (size_t c = 0; c < x.size(); ++c) {
        CHECK_MSG(x[c].token == y[c].token && std::fabs(x[c].logp - y[c].logp) <= tolerance, what + ": they differ");
        CHECK_NEAR(x[c].confidence, y[c].confidence, 1e-4);
    }
}

void together_as_alone(const DraftFile & file, bool is_remote, bool flash_attn, bool use_kernels) {
    const std::string what = strf("remote %d, flash %d, kernels %d", is_remote, flash_attn, use_kernels);
    const float tolerance = use_kernels ? 0.0f : 2e-5f;  // ggml's own products depend on the number of rows
    Side together(file, nullptr, is_remote, flash_attn, use_kernels);
    Side alone(file, nullptr, is_remote, flash_attn, use_kernels);
    std::vector<std::unique_ptr<FeatureSequence>> a, b;
    std::vector<Rows> rows;
    std::vector<DraftCommit> commits;
    for (int n : {1, 9, 200}) {
        a.push_back(std::make_unique<FeatureSequence>(*together.drafter));
        b.push_back(std::make_unique<FeatureSequence>(*alone.drafter));
        rows.push_back(make_rows(file.spec(), n));
    }
    for (size_t i = 0; i < a.size(); ++i) {
        commits.push_back({a[i].get(), rows[i].features(), rows[i].tokens.data(), n_ahead});
    }
    together.drafter->commit_together(commits);
    std::vector<DraftLevel> levels;
    for (size_t i = 0; i < a.size(); ++i) levels.push_back({a[i].get(), {{1, (Token)i, 0}, {2, 7, 0}}});
    together.drafter->extend_together(levels);
    for (size_t i = 0; i < a.size(); ++i) {
        b[i]->commit(rows[i].features(), rows[i].tokens.data(), true, n_ahead);
        b[i]->extend(levels[i].rows);
        for (int row : {0, 1}) same(*a[i], *b[i], row, tolerance, what + strf(": conversation %zu", i));
    }
    FeatureSequence & one = *b[1];
    const int n = one.n_rows();
    const std::vector<uint8_t> bytes = one.save_rows(n);
    b[0]->load_rows(bytes, n);
    const Rows more = make_rows(file.spec(), 2);
    one.commit(more.features(), more.tokens.data(), true, 0);
    const auto expected = one.candidates(0, 3);
    b[0]->commit(more.features(), more.tokens.data(), true, 0);
    const auto found = b[0]->candidates(0, 3);
    for (size_t c = 0; c < 3; ++c) CHECK(found[c].token == expected[c].token && found[c].logp == expected[c].logp);
    CHECK_THROWS(one.commit(more.features(), more.tokens.data(), true, 9), "9 masked rows behind a commit");
    one.commit(more.features(), more.tokens.data(), true, 0);
    if (!is_remote) CHECK_THROWS(one.extend({{1, 2, 0}}), "this pass gave 1 tokens");
}

}  // namespace

int main() {
    llama_start();
    const Folder folder;
    const std::string path = folder.file("draft.gguf");
    std::vector<bool> kernels{false};
    if (kernels::status().is_active) kernels.push_back(true);
    for (Kind kind : {Kind::dspark, Kind::dflash2}) {
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
