// SPDX-License-Identifier: MIT
#include "algo/coupled.h"

#include <algorithm>
#include <numeric>

#include "../check.h"
#include "algo/acceptance.h"
#include "base/error.h"
#include "random.h"

using namespace eaglecpp;
using namespace eaglecpp::test;

// Applies llama.cpp's samplers in llama.cpp's order, without shortcuts. Returns each token's probability after
// temperature, which is 0 for a removed token.
static std::vector<double> slow_cut(const std::vector<float> & logits, const CoupledSampling & s) {
    const int n = (int)logits.size();
    std::vector<int> order(n);
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return logits[a] > logits[b]; });
    if (s.top_k > 0 && s.top_k < n) order.resize(s.top_k);
    double total = 0.0, sum = 0.0;
    for (int i : order) total += std::exp(logits[i] - logits[order[0]]);
    if (s.top_p < 1.0f) {
        for (size_t i = 0; i < order.size(); ++i) {
            sum += std::exp(logits[order[i]] - logits[order[0]]) / total;
            if (sum >= s.top_p) order.resize(i + 1);
        }
    }
    std::vector<double> p(n, 0.0);
    total = 0.0;
    for (int i : order) {
        if (s.min_p > 0.0f && logits[i] < logits[order[0]] + std::log(s.min_p)) continue;
        total += p[i] = std::exp((logits[i] - logits[order[0]]) / s.temperature);
    }
    for (double & v : p) v /= total;
    return p;
}

static const CoupledSampling samplings[] = {
    {3, 0.8f, 40, 0.95f, 0.05f}, {4, 1.0f, 0, 1.0f, 0.0f}, {5, 0.5f, 0, 0.9f, 0.0f},  {6, 1.3f, 5, 1.0f, 0.0f},
    {7, 0.7f, 0, 1.0f, 0.1f},    {8, 1.0f, 1, 1.0f, 0.0f}, {9, 1.0f, 0, 0.3f, 0.02f},
};

TEST(proposes_the_best_scores) {
    Random random(3);
    std::vector<Token> ids(900);
    for (int i = 0; i < (int)ids.size(); ++i) ids[i] = 3 * i + random.integer(0, 2);
    CoupledDraft draft;
    for (int round = 0; round < 700; ++round) {
        const CoupledSampling & sampling = samplings[round % 7];
        const std::vector<float> logits = some_logits(random, random.integer(1, 900), 12.0 * random.real());
        const int n = (int)logits.size(), k = random.integer(1, 6);
        const std::vector<double> q = slow_cut(logits, sampling);
        const Noise noise(sampling.seed, round);
        std::vector<std::pair<double, Token>> scores;
        double noisy = 0.0;
        for (int i = 0; i < n; ++i) {
            if (q[i] <= 0.0) continue;
            scores.push_back({std::log(q[i]) + noise.gumbel(ids[i]), ids[i]});
            noisy += std::exp(scores.back().first);
        }
        std::sort(scores.rbegin(), scores.rend());
        const auto best = draft.best(logits.data(), n, k, ids.data(), sampling, round);
        if (!CHECK(best.size() == std::min<size_t>(k, scores.size()))) continue;
        for (size_t i = 0; i < best.size(); ++i) {
            CHECK(best[i].token == scores[i].second);
            CHECK_NEAR(best[i].logp, scores[i].first - std::log(noisy), 2e-3);
            const int index = (int)(std::find(ids.begin(), ids.end(), best[i].token) - ids.begin());
            CHECK_NEAR(best[i].logq, std::log(q[index]), 2e-3);
        }
    }
}

// The errors of the drafter's log-probabilities are normally distributed. After some hundred labels, predicted
// probabilities are calibrated in every temperature band.
TEST(chances_are_calibrated) {
    Random random(5);
    const int n = 300, k = 4;
    CoupledDraft draft;
    for (double temperature : {0.5, 0.8, 1.0}) {
        AcceptanceModel model;
        TextState text;
        CoupledSampling sampling;
        sampling.temperature = (float)temperature;
        const RequestKind kind = request_kind(temperature, false, true);
        double gap[10] = {};  // predicted minus true acceptance, for each tenth of the predicted probability
        int n_labels = 0;
        for (int pos = 0; pos < 12000; ++pos) {
            const std::vector<float> target = some_logits(random, n, 4.0 + 16.0 * random.real());
            std::vector<float> drafter = target;
            for (float & v : drafter) {
                v += (float)(2.0 * (random.real() + random.real() + random.real() + random.real() - 2.0));
            }
            const Token chosen = Noise(0, pos).choose(target.data(), n, 1.0 / temperature);
            const auto best = draft.best(drafter.data(), n, k, nullptr, sampling, pos);
            double a[k], sum = 0.0;
            model.predict(kind, text, {1}, best.data(), (int)best.size(), a);
            int matched = -1;
            for (int i = 0; i < (int)best.size(); ++i) {
                sum += a[i];
                if (best[i].token == chosen) matched = i;
                if (pos <= 2000) continue;
                gap[std::min((int)(10.0 * a[i]), 9)] += a[i] - (best[i].token == chosen);
                ++n_labels;
            }
            CHECK(sum <= 1.0 + 1e-9);
            model.learn(kind, text, {1}, best.data(), (int)best.size(), matched);
        }
        double error = 0.0;
        for (double g : gap) error += std::fabs(g) / n_labels;
        CHECK_MSG(error < 0.02, strf("temperature %g: error %.4f", temperature, error));
    }
}
