// SPDX-License-Identifier: MIT
// A drafter on a device of its own against the same one on the CPU: the same logits, candidates, keys and values for
// every number of rows, whatever fills its graphs up to their size; and what that costs in waits and bytes.
#include <ggml-cpp.h>

#include <cmath>

#include "../check.h"
#include "../draft/seeded_drafter.h"
#include "../engine/tiny_models.h"
#include "../gguf/draft_files.h"
#include "base/error.h"
#include "counting_device.h"
#include "target/llama_bridge.h"

using namespace eaglecpp;
using namespace eaglecpp::test;

static constexpr float tolerance = 2e-5f;

static void commit(Side & side, const Rows & rows, bool want_output) {
    side.seq->commit(rows.features(), rows.tokens.data(), want_output);
}

static void compare(Side & a, Side & b, int n_rows, const std::string & what) {
    const int n = a.drafter->spec().n_draft_vocab;
    CoupledSampling sampling;
    sampling.seed = 7;
    for (int i = 0; i < n_rows; ++i) {
        const auto ours = a.seq->candidates(i, 4), theirs = b.seq->candidates(i, 4);
        sampling.top_k = i % 2 ? 0 : 10;
        const auto drawn = a.seq->candidates(i, 3, sampling, 11), theirs_drawn = b.seq->candidates(i, 3, sampling, 11);
        for (const auto & [x, y] : {std::pair{&ours, &theirs}, std::pair{&drawn, &theirs_drawn}}) {
            if (!CHECK_MSG(x->size() == y->size(), what)) return;
            for (size_t j = 0; j < x->size(); ++j) {
                CHECK_MSG((*x)[j].token == (*y)[j].token, what + strf(": row %d candidate %zu", i, j));
                CHECK_NEAR((*x)[j].logp, (*y)[j].logp, tolerance);
                CHECK_NEAR((*x)[j].logq, (*y)[j].logq, tolerance);
            }
        }
        float gap = 0.0f;
        for (int j = 0; j < n; ++j) gap = std::max(gap, std::fabs(a.seq->logits(i)[j] - b.seq->logits(i)[j]));
        CHECK_MSG(gap < tolerance, what + strf(": logits of row %d differ by %g", i, gap));
    }
    const DraftSpec & s = a.drafter->spec();
    std::vector<float> x(s.n_embd), y(s.n_embd);
    for (int node = 0; node <= a.seq->n_draft_rows(); ++node) {
        a.seq->get_state(node, x.data());
        b.seq->get_state(node, y.data());
        for (int j = 0; j < s.n_embd; ++j) CHECK_NEAR(x[j], y[j], tolerance);
    }
}

// rounds of every number of committed rows, each with levels of every width
static void rounds_are_the_same(Side & a, Side & b, const std::string & what) {
    const DraftSpec & s = a.drafter->spec();
    for (int n : {1, 2, 3, 4, 5, 6, 7, 8, 9, 130, 17}) {
        const Rows rows = make_rows(s, n);
        const bool want_output = n != 130;
        commit(a, rows, want_output);
        commit(b, rows, want_output);
        if (!want_output) continue;
        compare(a, b, 1, what + strf(": %d committed rows", n));
        std::vector<int> parents{0};
        for (int width : {1, 3, 2, 5}) {
            std::vector<DraftRow> level;
            const int first = 1 + a.seq->n_draft_rows();
            for (int i = 0; i < width; ++i)
                level.push_back({first + i, (i * 7 + n) % s.n_vocab, parents[i % parents.size()]});
            a.seq->extend(level);
            b.seq->extend(level);
            compare(a, b, width, what + strf(": %d committed rows, level of %d", n, width));
            parents.clear();
            for (int i = 0; i < width; ++i) parents.push_back(first + i);
        }
    }
}

// What one conversation leaves, the next one must not read.
static void caches_serve_again(Side & a, Side & b) {
    const uint64_t n_before = eaglecpp_counts().allocations, n_freed = eaglecpp_counts().frees;
    for (int i = 0; i < 3; ++i) {
        a.seq.reset();
        b.seq.reset();
        a.open();
        b.open();
        rounds_are_the_same(a, b, strf("conversation %d", i + 1));
    }
    CHECK_MSG(eaglecpp_counts().allocations == n_before, "a conversation allocated device memory anew");
    CHECK_MSG(eaglecpp_counts().frees == n_freed, "a closed conversation freed device memory");
}

// A chain that is drafted in the graph of its commit is the one that comes level by level; and one wait for all of it.
static void steps_are_levels(Side & host, Side & remote, const std::string & what) {
    CHECK_MSG(remote.drafter->can_step(), what);
    for (int n : {1, 3, 4, 2}) {
        constexpr int n_steps = 5;
        const Rows rows = make_rows(host.drafter->spec(), n);
        commit(host, rows, true);
        remote.drafter->commit_together({{remote.seq.get(), rows.features(), rows.tokens.data(), 0, n_steps}});
        const uint64_t before = eaglecpp_counts().waits;
        for (int i = 0; i <= n_steps; ++i) {
            const auto ours = remote.seq->candidates(i, 4), theirs = host.seq->candidates(0, 4);
            for (size_t j = 0; j < theirs.size(); ++j) {
                CHECK_MSG(ours[j].token == theirs[j].token, what + strf(": step %d candidate %zu", i, j));
                CHECK_NEAR(ours[j].logp, theirs[j].logp, tolerance);
            }
            if (i == n_steps) break;
            const DraftRow next{i + 1, theirs[0].token, i};
            host.seq->extend({next});
            CHECK(!remote.seq->take_step(i, {i + 1, theirs[1].token, i}) && remote.seq->take_step(i, next));
        }
        CHECK(eaglecpp_counts().waits == before);
        // what follows goes on from them
        CHECK(host.seq->n_draft_rows() == n_steps && remote.seq->n_draft_rows() == n_steps);
        const std::vector<DraftRow> level{{n_steps + 1, 1, n_steps}, {n_steps + 2, 2, 2}};
        host.seq->extend(level);
        remote.seq->extend(level);
        compare(host, remote, 2, what + ": a level behind the steps");
    }
}

int main() {
    llama_start();
    ggml_backend_register(ggml_backend_init());
    ggml_backend_dev_t device = find_device("Counting0", -1);
    const Folder folder;
    const std::string path = folder.file("draft.gguf");
    for (Kind kind : {Kind::eagle, Kind::eagle3, Kind::eagle31, Kind::latent}) {
        write_draft_file(path, kind);
        const DraftFile file(path);
        for (bool flash_attn : {false, true}) {
            const std::string what = strf("kind %d, flash %d", (int)kind, flash_attn);
            Side cpu(file, nullptr, /*is_remote=*/false, flash_attn);
            Side filled(file, nullptr, /*is_remote=*/true, flash_attn);
            rounds_are_the_same(cpu, filled, what + ", filled graphs");
            Side fresh(file, nullptr, /*is_remote=*/false, flash_attn);
            Side remote(file, device, /*is_remote=*/false, flash_attn);
            CHECK(remote.drafter->is_remote() && remote.drafter->form().n_top > 0);
            rounds_are_the_same(fresh, remote, what + ", device");
            caches_serve_again(fresh, remote);
            for (Side * side : {&fresh, &remote}) {
                side->seq.reset();
                side->open();
            }
            steps_are_levels(fresh, remote, what);
        }
    }
    return test::result();
}
