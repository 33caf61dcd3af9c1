// SPDX-License-Identifier: MIT
// Packs weights after the model is loaded, in threads of its own, where they lie in a mapped file: copying them takes
// several times as long as mapping the file does. A product whose weights are not ready packs them itself, together
// with the other threads of its graph, so the first prompt follows the packing layer by layer.
#pragma once

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "kernels/table.h"

namespace eaglecpp::kernels {

// What one ggml buffer has still to pack. add() is called by the thread that loads; the rest by any.
class LatePacking {
  public:
    LatePacking();
    // Forgets what nobody has begun.
    ~LatePacking();
    LatePacking(const LatePacking &) = delete;
    LatePacking & operator=(const LatePacking &) = delete;

    // Remembers to pack `data`, all bytes of the tensor, into `packed`. False where it has to be done at once: `data`
    // is not part of a mapped file, which could be mapped a second time.
    bool add(const KernelTable & table, const ggml_tensor * weights, const void * data, uint8_t * packed);
    // Returns when this tensor is packed; helps.
    void finish(const void * packed) {
        if (n_unfinished_.load(std::memory_order_acquire) > 0) finish_one(packed);
    }
    void finish_all();
    // Begins with what was added to any. Not before the file is mapped: page tables have one lock.
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
    std::mutex mutex_;  // of all below
    std::condition_variable changed_;
    std::vector<std::unique_ptr<Job>> jobs_;  // in the order of the file, which is about that of the layers
    std::unordered_map<const void *, Job *> by_place_;
    size_t n_begun_ = 0;
    int n_helpers_ = 0;
    bool is_cancelled_ = false;
};

}  // namespace eaglecpp::kernels
