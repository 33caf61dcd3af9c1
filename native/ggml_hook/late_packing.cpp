// SPDX-License-Identifier: MIT
#include "ggml_hook/late_packing.h"

#include <algorithm>
#include <atomic>
#include <new>
#include <set>
#include <system_error>
#include <thread>

#include "kernels/product_ops.h"

#ifdef __linux__
#include <pthread.h>
#include <sys/mman.h>
#include <unistd.h>
#endif

namespace eaglecpp::kernels {

namespace {

// A second mapping of mapped bytes: the first is llama.cpp's, which unmaps what it thinks it does not need any more.
class Mapping : Pinned {
  public:
    ~Mapping() { release(); }

    // null where this is not a mapped file
    const uint8_t * open([[maybe_unused]] const void * data, [[maybe_unused]] size_t n) {
#ifdef __linux__
        static const uintptr_t n_page = (uintptr_t)sysconf(_SC_PAGESIZE);
        const uintptr_t first = (uintptr_t)data & ~(n_page - 1),
                        end = ((uintptr_t)data + n + n_page - 1) & ~(n_page - 1);
        // a size of 0 maps the same pages again, if they are shared with others as a file's are
        void * p = mremap((void *)first, 0, end - first, MREMAP_MAYMOVE);
        if (p == MAP_FAILED) return nullptr;
        base_ = p;
        n_ = end - first;
        // the pages count once, for this mapping; whoever reads them through the other one gets them back
        madvise((void *)first, n_, MADV_DONTNEED);
        return (const uint8_t *)p + ((uintptr_t)data - first);
#else
        return nullptr;
#endif
    }
    void release() {
#ifdef __linux__
        if (base_) munmap(base_, n_);
#endif
        base_ = nullptr;
    }

  private:
    void * base_ = nullptr;
    [[maybe_unused]] size_t n_ = 0;
};

// All that may have unfinished work when the process is forked.
struct Everybody {
    std::mutex mutex;
    std::set<LatePacking *> all;
};

Everybody & everybody();

[[maybe_unused]] void go_on_all(bool is_child) {
    for (LatePacking * p : everybody().all) p->go_on(is_child);
    everybody().mutex.unlock();
}

Everybody & everybody() {
    static Everybody * e = [] {
        auto * made = new Everybody;  // never freed: helpers may outlive static objects
#ifdef __linux__
        pthread_atfork(
            [] {
                everybody().mutex.lock();
                for (LatePacking * p : everybody().all) p->pause();
            },
            [] { go_on_all(/*is_child=*/false); }, [] { go_on_all(/*is_child=*/true); });
#endif
        return made;
    }();
    return *e;
}

constexpr int64_t n_step = 16;  // groups that a thread takes at once

}  // namespace

struct LatePacking::Job {
    const KernelTable * table;
    ggml_tensor weights;  // its type and shape
    Mapping mapping;
    const uint8_t * data = nullptr;
    uint8_t * packed = nullptr;
    int64_t n_groups = 0;
    std::atomic<int64_t> next{0}, n_left{0};
};

LatePacking::LatePacking() {
    const std::lock_guard lock(everybody().mutex);
    everybody().all.insert(this);
}

LatePacking::~LatePacking() {
    {
        const std::lock_guard lock(everybody().mutex);
        everybody().all.erase(this);
    }
    std::unique_lock lock(mutex_);
    is_cancelled_ = true;
    changed_.wait(lock, [&] { return n_helpers_ == 0; });
}

void LatePacking::add(const KernelTable & table, const ggml_tensor * w, const void * data, uint8_t * packed,
                      bool is_mapped) {
    auto owned = std::make_unique<Job>();
    Job & job = *owned;
    job.data = is_mapped ? job.mapping.open(data, ggml_nbytes(w)) : nullptr;
    const bool may_wait = job.data;
    if (!may_wait) job.data = (const uint8_t *)data;
    job.table = &table;
    job.weights = *w;
    job.packed = packed;
    job.n_groups = packed_groups(w);
    job.n_left = job.n_groups;
    {
        const std::lock_guard lock(mutex_);
        by_address_[packed] = &job;
        jobs_.push_back(std::move(owned));
        n_unfinished_.fetch_add(1, std::memory_order_release);
    }
    if (may_wait) return;
    if (ggml_nbytes(w) > (1 << 20)) start_helpers();
    finish(job);
}

void LatePacking::start_all() {
    const std::lock_guard lock(everybody().mutex);
    for (LatePacking * p : everybody().all) p->start_helpers();
}

// One core stays with whoever opens the model, as long as there are others.
void LatePacking::start_helpers() {
    const int n_cores = (int)std::thread::hardware_concurrency();
    const std::lock_guard lock(mutex_);
    if (!next_job()) return;
    try {
        while (n_helpers_ < std::clamp(n_cores - 1, 1, 8)) {
            std::thread([this] { run_helper(); }).detach();
            ++n_helpers_;
        }
    } catch (const std::system_error &) {
        // no more threads to be had: whoever needs the weights packs them
    }
}

// The first that still has groups to give; null when there is none.
LatePacking::Job * LatePacking::next_job() {
    while (!is_cancelled_ && n_begun_ < jobs_.size()) {
        Job & job = *jobs_[n_begun_];
        if (job.next.load(std::memory_order_relaxed) < job.n_groups) return &job;
        ++n_begun_;
    }
    return nullptr;
}

void LatePacking::run_helper() {
    std::unique_lock lock(mutex_);
    while (Job * job = next_job()) {
        lock.unlock();
        work_on(*job, /*is_all=*/false);
        lock.lock();
    }
    --n_helpers_;
    changed_.notify_all();
}

void LatePacking::work_on(Job & job, bool is_all) {
    do {
        {
            std::unique_lock enter(entrance_);
            const std::shared_lock packing(packing_);
            enter.unlock();
            const int64_t first = job.next.fetch_add(n_step);
            if (first >= job.n_groups) return;
            const int64_t end = std::min(job.n_groups, first + n_step);
            pack_groups(*job.table, &job.weights, job.data, job.packed, first, end);
            if (job.n_left.fetch_sub(end - first) > end - first) continue;
            job.mapping.release();
        }
        const std::lock_guard lock(mutex_);
        n_unfinished_.fetch_sub(1);
        changed_.notify_all();
        return;
    } while (is_all);
}

void LatePacking::finish(Job & job) {
    work_on(job, /*is_all=*/true);
    if (job.n_left.load(std::memory_order_acquire) == 0) return;
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return job.n_left.load(std::memory_order_acquire) == 0; });
}

void LatePacking::pause() {
    entrance_.lock();
    packing_.lock();
    mutex_.lock();
}

void LatePacking::go_on(bool is_child) {
    if (is_child) {
        // no other thread is here: none helps, waits or packs, and this one has another id than the one that locked
        n_helpers_ = 0;
        new (&changed_) std::condition_variable;
        new (&packing_) std::shared_mutex;
    } else {
        packing_.unlock();
    }
    mutex_.unlock();
    entrance_.unlock();
}

void LatePacking::finish_one(const void * packed) {
    Job * job = nullptr;
    {
        const std::lock_guard lock(mutex_);
        const auto found = by_address_.find(packed);
        if (found != by_address_.end()) job = found->second;
    }
    if (job) finish(*job);
}

void LatePacking::finish_all() {
    for (size_t i = 0;; ++i) {
        Job * job = nullptr;
        {
            const std::lock_guard lock(mutex_);
            if (i < jobs_.size()) job = jobs_[i].get();
        }
        if (!job) break;
        finish(*job);
    }
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return n_helpers_ == 0; });
}

}  // namespace eaglecpp::kernels
