// SPDX-License-Identifier: MIT
// Tests how the number of threads adapts on machines with a simulated clock. The machine computes the wall time and the
// CPU time of a decode. These times depend on the number of threads, the cores that other processes use, and the cost
// of barriers.
#include "engine/thread_policy.h"

#include <algorithm>

#include "../check.h"
#include "base/error.h"

using namespace eaglecpp;
using Kind = ThreadPolicy::Kind;

namespace {

struct Machine {
    int n_cores = 2;
    double busy = 0.0;           // number of cores that other processes use
    double work_ms = 10.0;       // time of one row on one thread
    double serial = 0.2;         // share of the time that more threads do not reduce
    double barrier_factor = 60;  // factor on the time if a thread has to wait for a core
    bool tells = true;           // the system reports which cores other processes use

    double now = 0.0, heard_at = 0.0;
    int n_starved = 0;

    double free_cores() const { return std::max(0.3, n_cores - busy); }

    // Runs one decode.
    void run(ThreadPolicy & policy, int n_rows = 1) {
        if (tells && now - heard_at >= 200.0) {
            heard_at = now;
            policy.hear_free(free_cores(), now);
        }
        ThreadPolicy::Run r;
        r.n_rows = n_rows;
        const int n_threads = policy.n_threads(r.kind);
        const double alone = work_ms * (1.0 + 0.1 * (n_rows - 1));
        r.wall_ms = alone * (serial + (1.0 - serial) / n_threads);
        const double missing = n_threads - free_cores();
        r.cpu_ms = r.wall_ms * n_threads;
        if (missing > 0.0) {
            const bool waits = n_threads > 1;
            r.wall_ms *= waits ? barrier_factor : n_threads / free_cores();
            r.cpu_ms = r.wall_ms * std::min((double)n_threads, std::max(free_cores(), n_threads / 2.0));
            n_starved += waits;
        }
        now += r.wall_ms;
        policy.learn(r, now);
    }

    // Runs decodes for `ms` milliseconds and returns the number of decodes.
    int run_for(ThreadPolicy & policy, double ms) {
        const double end = now + ms;
        int n = 0;
        for (; now < end; ++n) run(policy, 1 + n % 3);
        return n;
    }
};

ThreadPolicy automatic(int n) {
    return ThreadPolicy(n, n, false, false);
}

}  // namespace

TEST(a_quiet_machine_keeps_all_threads) {
    for (int n : {1, 2, 4, 16}) {
        Machine m;
        m.n_cores = n;
        ThreadPolicy policy = automatic(n);
        for (int i = 0; i < 3000; ++i) {
            m.run(policy, 1 + i % 3);
            CHECK(policy.n_threads(Kind::decode) == n && policy.n_threads(Kind::prompt) == n && policy.is_timed());
        }
    }
}

TEST(a_busy_machine_gets_fewer_threads_at_once_and_later_all) {
    Machine m;
    ThreadPolicy policy = automatic(2);
    m.run_for(policy, 5000.0);
    m.busy = 2.0;
    const double start = m.now;
    while (policy.n_threads(Kind::decode) > 1 && m.now - start < 5000.0) m.run(policy);
    CHECK_MSG(m.now - start < 700.0, strf("noticed after %.0f ms", m.now - start));
    CHECK(policy.n_threads(Kind::prompt) == 1);
    // While other programs run, decodes keep one thread.
    const int n_before = m.n_starved, n = m.run_for(policy, 60000.0);
    CHECK_MSG(m.n_starved == n_before, strf("%d decodes had to wait for a core", m.n_starved - n_before));
    CHECK_MSG(n > 0.85 * 60000.0 / (1.1 * m.work_ms / 0.3), strf("%d decodes", n));
    m.busy = 0.0;
    const double over = m.now;
    while (policy.n_threads(Kind::decode) < 2 && m.now - over < 60000.0) m.run(policy);
    CHECK_MSG(m.now - over < 1500.0, strf("back after %.0f ms", m.now - over));
}

TEST(falls_when_decodes_miss_cores_that_other_programs_took) {
    ThreadPolicy policy = automatic(2);
    const auto decode = [&](double cpu_ms, double now) { policy.learn({Kind::decode, 1, 10.0, cpu_ms}, now); };
    double now = 0.0;
    for (int i = 0; i < 20; ++i) decode(20.0, now += 10.0);
    policy.hear_free(1.0, now);  // until the answer began, another program was running
    CHECK(policy.n_threads(Kind::decode) == 2);
    for (int i = 0; i < 8; ++i) decode(14.0, now += 10.0);
    policy.hear_free(1.0, now);
    CHECK(policy.n_threads(Kind::decode) == 1);
    policy.hear_free(2.0, now + 50.0);
    CHECK(policy.n_threads(Kind::decode) == 1);
    policy.hear_free(2.0, now + 450.0);
    CHECK(policy.n_threads(Kind::decode) == 2);
}

TEST(one_busy_core_of_many_costs_one_thread) {
    Machine m;
    m.n_cores = 8;
    ThreadPolicy policy = automatic(8);
    m.run_for(policy, 2000.0);
    m.busy = 1.0;
    m.run_for(policy, 3000.0);
    CHECK_MSG(policy.n_threads(Kind::decode) == 7, strf("%d threads", policy.n_threads(Kind::decode)));
}

// The system reports free cores that this process may not use. This happens, for example, with a container's CPU quota.
TEST(threads_without_cores_are_dropped_for_longer_and_longer) {
    Machine m;
    ThreadPolicy policy = automatic(2);
    m.run_for(policy, 2000.0);
    CHECK(policy.is_timed());
    m.busy = 2.0;
    m.tells = false;
    int n_regular = 0;
    for (; policy.n_threads(Kind::decode) > 1; n_regular += policy.is_timed()) m.run(policy);
    // Times that were measured without the missing cores must not enter the cost table.
    CHECK(n_regular <= 1 && !policy.is_timed());
    m.run(policy);
    CHECK(policy.is_timed());  // decodes with one thread are timed
    const int n_before = m.n_starved;
    for (const double end = m.now + 60000.0; m.now < end; m.run(policy)) policy.hear_free(2.0, m.now);
    CHECK_MSG(m.n_starved - n_before <= 12, strf("%d decodes had to wait for a core", m.n_starved - n_before));
}

TEST(without_reports_the_number_stays) {
    Machine m;
    m.tells = false;
    m.busy = 2.0;
    ThreadPolicy policy = automatic(2);
    m.run_for(policy, 5000.0);
    CHECK(policy.n_threads(Kind::decode) == 2);
}

TEST(an_explicit_number_stays) {
    Machine m;
    m.busy = 2.0;
    ThreadPolicy policy(2, 2, true, false);
    m.run_for(policy, 5000.0);
    CHECK(policy.n_threads(Kind::decode) == 2 && policy.is_timed());
    CHECK(policy.n_threads(Kind::prompt) == 1);
}
