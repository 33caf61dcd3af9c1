// SPDX-License-Identifier: MIT
// Runs batches on the target, each with the threads that are best at that moment.
#pragma once

#include "engine/machine_load.h"
#include "engine/options.h"
#include "engine/thread_policy.h"
#include "target/target.h"

namespace eaglecpp {

class BatchRunner {
  public:
    BatchRunner(Target & target, const EngineOptions & options);

    // what run() runs; filled by the caller
    TargetBatch & batch() { return batch_; }
    const TargetBatch & batch() const { return batch_; }

    // as Target::decode
    void run(ThreadPolicy::Kind kind) { run(batch_, kind); }
    void run(TargetBatch & batch, ThreadPolicy::Kind kind);

    // threads that decoding has now
    int n_threads() const { return threads_.level(ThreadPolicy::Kind::decode); }

    // True if the time of the last run is what such a batch normally costs.
    bool is_timed() const { return threads_.is_timed(); }

  private:
    Target & target_;
    TargetBatch batch_;
    ThreadPolicy threads_;
    MachineLoad load_;
};

}  // namespace eaglecpp
