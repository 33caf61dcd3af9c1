// SPDX-License-Identifier: MIT
#include "target/exact_rows.h"

#include <algorithm>
#include <cstring>

#include "base/types.h"

namespace eaglecpp {

namespace {

constexpr int counts_measured[] = {2, 3, 4, 5, 8, 16, 32, 64};
constexpr int n_rows_measured = 65;
constexpr int n_rows_twice = 8;   // batches up to this size are compared twice
constexpr int n_before = 24;      // number of rows that are run before the compared rows
constexpr double ms_slow = 50.0;  // longer steps take longer than building and capturing graphs
// Number of rows before the compared rows on a GPU, where attention uses different kernels after long texts and after
// short texts. On the CPU it uses the same kernels for both (Target).
constexpr int n_before_gpu = 600;

class Measurement {
  public:
    Measurement(Target & target, const SeqRange & range, int n_rows_max, int n_batch_max, const Decode & decode)
        : target_(target), decode_(decode), range_(range) {
        n_rows_max = std::min(n_rows_max, n_rows_measured);
        const int n_room = target.n_ctx() - n_rows_max - 1;
        n_before_ = std::max(1, std::min(target.model().is_cpu() ? n_before : n_before_gpu, n_room));
        n_rows_max_ = std::max(1, std::min(n_rows_max, target.n_ctx() - n_before_ - 1));
        n_batch_max_ = std::max(n_rows_max_, std::min(n_batch_max, target.n_ctx() - n_before_ - 1));
        choose_tokens();
    }

    ExactRows run() {
        const double start = now_ms();
        run_alone();
        compare_all();
        target_.cells().truncate(range_, 0);
        out_.ms = now_ms() - start;
        return out_;
    }

  private:
    // Compares all sizes at positions from the last to the first. Larger batches start at earlier positions, so each
    // row runs alone only once. If a target cannot roll back that far, each batch starts at the first row.
    void compare_all() {
        for (int n : counts_measured) {
            if (n < n_rows_max_) compare(n, n_rows_max_ - n);
        }
        if (n_rows_max_ > 1) compare(n_rows_max_, 0);
        if (n_batch_max_ > n_rows_max_) compare(n_batch_max_, 0);
    }

    // Chooses arbitrary tokens, which are the same in every run.
    void choose_tokens() {
        for (int i = 0; i < n_before_ + n_batch_max_; ++i) {
            tokens_.push_back((Token)((uint32_t)i * 2654435761u % (uint32_t)target_.vocab().size()));
        }
    }

    void decode(int first, int n, bool is_prompt) {
        batch_.clear();
        for (int i = first; i < first + n; ++i) {
            const bool is_compared = !is_prompt && i < n_before_ + n_rows_max_;
            batch_.add(tokens_[i], i, range_, is_compared || target_.needs_all_outputs());
        }
        n_alike_ = n == n_rows_last_ ? n_alike_ + 1 : 1;
        n_rows_last_ = n;
        decode_(batch_, is_prompt, n_alike_);
        ++out_.n_decodes;
    }

    void run_before() {
        target_.cells().truncate(range_, 0);
        const int n_max = target_.n_prompt_rows();
        for (int at = 0; at < n_before_; at += n_max) decode(at, std::min(n_max, n_before_ - at), true);
    }

    void run_alone() {
        run_before();
        const size_t n_vocab = (size_t)target_.vocab().size();
        alone_.resize(n_vocab * n_rows_max_);
        for (int i = 0; i < n_rows_max_; ++i) {
            const double start = now_ms();
            decode(n_before_ + i, 1, false);
            const double ms = now_ms() - start;
            alone_ms_ = i == 0 ? ms : std::min(alone_ms_, ms);
            std::copy_n(target_.logits(0), n_vocab, &alone_[i * n_vocab]);
        }
    }

    void run_batch(int n, int first) {
        if (target_.model().supports_trees()) {
            target_.cells().truncate(range_, n_before_ + first);
        } else {
            run_before();
        }
        decode(n_before_ + first, n, false);
    }

    // Compares a batch of n rows with the same rows run alone. Repeats the batch until its graph is built, so that
    // callers can learn the batch's time.
    void compare(int n, int last) {
        const int first = target_.model().supports_trees() ? last : 0;
        const bool is_fast = !target_.model().is_cpu() && alone_ms_ < ms_slow;
        const int n_times = n > n_rows_max_ ? 1 : is_fast ? CostTable::n_slow + 2 : n <= n_rows_twice ? 2 : 1;
        for (int i = 0; i < n_times; ++i) run_batch(n, first);
        const size_t n_vocab = (size_t)target_.vocab().size();
        bool is_same = !target_.model().has_parting_products();
        for (int i = 0; i < std::min(n, n_rows_max_ - first) && is_same; ++i) {
            const float * alone = &alone_[(first + i) * n_vocab];
            is_same = std::memcmp(target_.logits(i), alone, n_vocab * sizeof(float)) == 0;
        }
        out_.counts.set(n, is_same);
    }

    Target & target_;
    const Decode & decode_;
    SeqRange range_;
    int n_rows_max_, n_batch_max_, n_before_ = 0;
    int n_rows_last_ = 0, n_alike_ = 0;  // rows of the last batch; number of consecutive batches of this size
    Tokens tokens_;
    TargetBatch batch_;
    std::vector<float> alone_;
    double alone_ms_ = 0.0;  // time of the fastest batch of one row
    ExactRows out_;
};

}  // namespace

ExactRows measure_exact_rows(Target & target, const SeqRange & range, int n_rows_max, int n_batch_max,
                             const Decode & decode) {
    return Measurement(target, range, n_rows_max, n_batch_max, decode).run();
}

}  // namespace eaglecpp
