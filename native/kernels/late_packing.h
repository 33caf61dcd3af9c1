// SPDX-License-Identifier: MIT
// Packs the weights of a mapped file after the model is loaded, in threads of its own, because copying them takes
// several times as long as mapping the file. A product whose weights are not packed yet packs them itself, together
// with the other threads of its graph, so the first prompt proceeds with the packing, layer by layer.
#pragma once

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "kernels/table.h"

namespace eaglecpp::kernels {

// What is still to be packed of one ggml buffer. add() is called by the thread that loads, the rest by any thread.
class LatePacking {
  public:
    LatePacking();
    // Drops the work that has not been begun.
    ~LatePacking();
    LatePacking(const LatePacking &) = delete;
    LatePacking & operator=(const LatePacking &) = delete;

    // Notes that `data`, all bytes of the tensor, is to be packed into `packed`. False if that has to be done at once,
    // because `data` is not part of a mapped file, which could be mapped a second time.
    bool add(const KernelTable & table, const ggml_tensor * weights, const void * data, uint8_t * packed);
    // Waits until this tensor is packed, helping with the packing.
    void finish(const void * packed) {
        if (n_unfinished_.load(std::memory_order_acquire) > 0) finish_one(packed);
    }
    void finish_all();
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
    std::mutex mutex_;  // of all below
    std::condition_variable changed_;
    std::vector<std::unique_ptr<Job>> jobs_;  // in the order of the file, which is about that of the layers
    std::unordered_map<const void *, Job *> by_place_;
    size_t n_begun_ = 0;
    int n_helpers_ = 0;
    bool is_cancelled_ = false;
};

}  // namespace eaglecpp::kernels
