// SPDX-License-Identifier: MIT
// Packs the weights of a mapped file after the model is loaded, in threads of its own, because copying them takes
// several times as long as mapping the file. A product whose weights are not packed yet packs them itself, together
// with the other threads of its graph, so the first prompt proceeds with the packing, layer by layer.
#pragma once

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <unordered_map>
#include <vector>

#include "base/types.h"
#include "kernels/table.h"

namespace eaglecpp::kernels {

// What is still to be packed of one ggml buffer. add() is called by the thread that loads, the rest by any thread.
class LatePacking : Pinned {
  public:
    LatePacking();
    // Drops the work that has not been begun.
    ~LatePacking();

    // Packs `data`, all bytes of the tensor, into `packed`: at once, unless they are part of a mapped file, which can
    // be mapped a second time.
    void add(const KernelTable & table, const ggml_tensor * weights, const void * data, uint8_t * packed,
             bool is_mapped);
    // Waits until this tensor is packed, helping with the packing.
    void finish(const void * packed) {
        if (n_unfinished_.load(std::memory_order_acquire) > 0) finish_one(packed);
    }
    void finish_all();
    // Around a fork: no group is half packed then, and the child, which has no helpers, can pack all that is left.
    void pause();
    void go_on(bool is_child);
    // Starts packing what was added to any LatePacking. Call only once the file is mapped, because mapping and packing
    // would compete for the one lock on the page tables.
    static void start_all();

  private:
    struct Job;
    void finish_one(const void * packed);
    void finish(Job & job);
    void work_on(Job & job, bool is_all);
    void start_helpers();
    void run_helper();
    Job * next_job();

    std::atomic<int> n_unfinished_{0};
    std::mutex entrance_;        // to packing_: who pauses must not wait for ever
    std::shared_mutex packing_;  // held by each thread that packs, for a few groups
    std::mutex mutex_;           // of all below
    std::condition_variable changed_;
    std::vector<std::unique_ptr<Job>> jobs_;  // in the order of the file, which is about that of the layers
    std::unordered_map<const void *, Job *> by_address_;
    size_t n_begun_ = 0;
    int n_helpers_ = 0;
    bool is_cancelled_ = false;
};

}  // namespace eaglecpp::kernels
