// SPDX-License-Identifier: MIT
// Tests that the rows that pad a batch leave no cells in the target's cache, whatever number of drafts is accepted.
// Otherwise the rows of the next round would attend to these cells.
#include <cmath>

#include "../check.h"
#include "target/target.h"
#include "tiny_models.h"

using namespace eaglecpp;

static constexpr int n_prompt = 9;

static DraftTree chain(int n_drafts) {
    DraftTree tree(3);
    for (int i = 0; i < n_drafts; ++i) tree.add(4 + i, i, -0.5f);
    return tree;
}

// Runs a round that accepts `n_accepted` drafts. Afterwards `n_rows` is the number of rows in the cache. Returns the
// logits of the next root token, or an empty vector if `n_rows` is wrong.
static std::vector<float> logits_behind(const EngineOptions & options, int n_drafts, int n_accepted, int n_padding,
                                        Pos & n_rows) {
    Target target(options);
    target.open_context({});
    const SeqRange range = target.cells().seqs(0);
    TargetBatch batch;
    for (int i = 0; i < n_prompt; ++i) batch.add(1 + i, i, range, false);
    target.decode(batch, /*is_prompt=*/true);
    const DraftTree tree = chain(n_drafts);
    batch.clear();
    batch.add_tree(tree, n_prompt, range);
    batch.pad(n_padding);
    CHECK(batch.n_rows() == 1 + n_drafts + n_padding);
    target.decode(batch);
    CHECK(target.cells().keep_path(range, tree, n_accepted, n_prompt));
    n_rows = target.cells().n_rows(range);
    if (n_rows != n_prompt + n_accepted + 1) return {};  // llama.cpp would refuse the next batch
    batch.clear();
    batch.add_tree(chain(1), n_prompt + n_accepted + 1, range);
    target.decode(batch);
    const float * last = target.logits(1);
    return {last, last + target.vocab().size()};
}

TEST(padding_leaves_nothing_behind) {
    const test::TinyPair files;
    for (int n_leaves : {1, 4}) {
        EngineOptions options = test::tiny_options(files.target, "");
        options.n_leaves_max = n_leaves;
        for (int n_drafts : {0, 1, 3}) {
            for (int n_accepted = 0; n_accepted <= n_drafts; ++n_accepted) {
                const std::string what = strf("%d of %d drafts, %d leaves", n_accepted, n_drafts, n_leaves);
                Pos plain_rows = 0, rows = 0;
                const auto expected = logits_behind(options, n_drafts, n_accepted, 0, plain_rows);
                const auto found = logits_behind(options, n_drafts, n_accepted, 4, rows);
                CHECK_MSG(plain_rows == n_prompt + n_accepted + 1 && rows == plain_rows, what);
                float gap = 0.0f;
                for (size_t i = 0; i < found.size(); ++i) gap = std::max(gap, std::fabs(found[i] - expected[i]));
                CHECK_MSG(gap < 1e-5f, what + strf(": logits differ by %g", gap));
            }
        }
    }
}
