// SPDX-License-Identifier: MIT
#include "target/exact_rows.h"

#include <algorithm>

#include "base/hash.h"
#include "base/types.h"

namespace eaglecpp {

namespace {

constexpr int counts_measured[] = {2, 3, 4, 5, 8, 16, 32, 64};
constexpr int n_rows_measured = 65;
constexpr int n_rows_twice = 8;  // batches up to this size run twice, because the first run may build a graph
constexpr int n_before = 8;      // number of rows that are run before the compared rows
// Number of rows before the compared rows on a GPU, where attention uses different kernels after long texts and after
// short texts. On the CPU it uses the same kernels for both (Target).
constexpr int n_before_gpu = 600;

class Measurement {
  public:
    Measurement(Target & target, const SeqRange & range, int n_rows_max, int n_batch_max, const Decode & decode,
                ExactRows & out)
        : target_(target), decode_(decode), range_(range), out_(out) {
        n_rows_max = std::min(n_rows_max, n_rows_measured);
        const int n_room = target.n_ctx() - n_rows_max - 1;
        n_before_ = std::max(1, std::min(target.model().is_cpu() ? n_before : n_before_gpu, n_room));
        n_rows_max_ = std::max(1, std::min(n_rows_max, target.n_ctx() - n_before_ - 1));
        n_batch_max_ = std::max(n_rows_max_, std::min(n_batch_max, target.n_ctx() - n_before_ - 1));
    }

    void run() {
        const double start = now_ms();
        try {
            for (int n : counts_measured) {
                if (n < n_rows_max_) compare(n);
            }
            if (n_rows_max_ > 1) compare(n_rows_max_);
            if (n_batch_max_ > n_rows_max_) compare(n_batch_max_);
            out_.counts.is_complete = true;
        } catch (const Stopped &) {
        }
        target_.cells().truncate(range_, 0);
        out_.ms += now_ms() - start;
    }

  private:
    struct Stopped {};

    // The tokens are arbitrary, but the same in every run.
    void decode(int first, int n, bool is_prompt) {
        batch_.clear();
        for (int i = first; i < first + n; ++i) {
            const bool is_compared = !is_prompt && i < n_before_ + n_rows_max_;
            const Token token = (uint32_t)i * 2654435761u % (uint32_t)target_.vocab().size();
            batch_.add(token, i, range_, is_compared || target_.needs_all_outputs());
        }
        n_alike_ = n == n_rows_last_ ? n_alike_ + 1 : 1;
        n_rows_last_ = n;
        if (!decode_(batch_, is_prompt, n_alike_)) throw Stopped();
        ++out_.n_decodes;
    }

    // Fills the cells with the first n rows, with the bits of rows that run alone. Known exact batches have these bits.
    void fill(int n) {
        n_filled_ = std::min(n, n_filled_);
        if (n_filled_ >= n_before_ && target_.model().supports_trees()) {
            target_.cells().truncate(range_, n_filled_);
        } else if (n_filled_ < n_before_ || n_filled_ < target_.cells().n_rows(range_)) {
            target_.cells().truncate(range_, 0);
            const int n_max = target_.n_prompt_rows();
            for (int at = 0; at < n_before_; at += n_max) decode(at, std::min(n_max, n_before_ - at), true);
            n_filled_ = n_before_;
        }
        while (n_filled_ < n) {
            const int n_rows = out_.counts.largest(n - n_filled_);
            decode(n_filled_, n_rows, false);
            n_filled_ += n_rows;
        }
    }

    // Returns 63 bits, which readers of JSON accept.
    uint64_t hash(int i) const { return hash_bytes(target_.logits(i), target_.vocab().size() * sizeof(float)) >> 1; }

    // Compares a batch of n rows with the same rows run alone. Repeats the batch until its graph is built, so that
    // callers can learn the batch's time.
    void compare(int n) {
        const auto & known = out_.counts.points();
        if (std::any_of(known.begin(), known.end(), [&](const auto & point) { return point.first == n; })) return;
        const int n_compared = std::min(n, n_rows_max_);
        while ((int)out_.alone.size() < n_compared) {
            fill(n_before_ + (int)out_.alone.size());
            decode(n_filled_, 1, false);
            ++n_filled_;
            out_.alone.push_back(hash(0));
        }
        const int n_cpu = n <= n_rows_twice ? 2 : 1;
        const int n_times = n > n_rows_max_ ? 1 : target_.model().is_cpu() ? n_cpu : CostTable::n_slow + 2;
        for (int i = 0; i < n_times; ++i) {
            fill(n_before_);
            decode(n_before_, n, false);
        }
        // Plain attention on the CPU adds the values of many cells in another order for several rows. After the few
        // cells here, the results would still be the same.
        bool is_same = !target_.model().has_parting_products() && (target_.keeps_order() || !target_.model().is_cpu());
        for (int i = 0; i < n_compared && is_same; ++i) is_same = hash(i) == out_.alone[i];
        if (is_same) n_filled_ = n_before_ + n_compared;
        out_.counts.set(n, is_same);
    }

    Target & target_;
    const Decode & decode_;
    SeqRange range_;
    ExactRows & out_;
    int n_rows_max_, n_batch_max_, n_before_ = 0;
    int n_filled_ = 0;                   // number of rows in the cells with the bits of rows that run alone
    int n_rows_last_ = 0, n_alike_ = 0;  // rows of the last batch; number of consecutive batches of this size
    TargetBatch batch_;
};

}  // namespace

void measure_exact_rows(Target & target, const SeqRange & range, int n_rows_max, int n_batch_max, const Decode & decode,
                        ExactRows & rows) {
    Measurement(target, range, n_rows_max, n_batch_max, decode, rows).run();
}

}  // namespace eaglecpp
