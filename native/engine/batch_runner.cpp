// SPDX-License-Identifier: MIT
#include "engine/batch_runner.h"

#include "base/types.h"

namespace eaglecpp {

// Threads are chosen only where a number was not asked for, and on the CPU: a GPU's threads wait for it, which looks
// like waiting for a core.
BatchRunner::BatchRunner(Target & target, const EngineOptions & options) : target_(target) {
    const TargetOptions & known = target.options();
    const bool is_fixed = options.n_threads > 0 || !target.model().is_cpu();
    threads_ = ThreadPolicy(known.n_threads, known.n_threads_batch, is_fixed, is_fixed || options.n_threads_batch > 0);
    load_.free_cores(now_ms());
}

void BatchRunner::run(TargetBatch & batch, ThreadPolicy::Kind kind) {
    double now = now_ms();
    const double free_cores = load_.free_cores(now);
    if (free_cores >= 0.0) threads_.hear_free(free_cores, now);
    ThreadPolicy::Run run;
    run.kind = kind;
    run.n_rows = batch.n_rows();
    target_.set_n_threads(threads_.level(kind));
    now = now_ms();
    const double cpu_ms = process_cpu_ms();
    target_.decode(batch, /*is_prompt=*/kind == ThreadPolicy::Kind::prompt);
    const double end = now_ms();
    run.wall_ms = end - now;
    run.cpu_ms = process_cpu_ms() - cpu_ms;
    threads_.learn(run, end);
}

}  // namespace eaglecpp
