// SPDX-License-Identifier: MIT
// The number of threads, on machines with a simulated clock: a decode's time and CPU time follow from the threads, the
// cores that others take, and what barriers cost.
#include "engine/thread_policy.h"

#include <algorithm>

#include "../check.h"
#include "base/error.h"

using namespace eaglecpp;
using Kind = ThreadPolicy::Kind;

namespace {

struct Machine {
    int n_cores = 2;
    double busy = 0.0;           // cores that others keep busy
    double work_ms = 10.0;       // one row on one thread
    double serial = 0.2;         // share that threads do not speed up
    double barrier_factor = 60;  // of the time, as soon as a thread waits for a core
    bool tells = true;           // what others take

    double now = 0.0, heard_at = 0.0;
    int n_starved = 0;

    double free_cores() const { return std::max(0.3, n_cores - busy); }

    // one decode; returns its time
    double run(ThreadPolicy & policy, int n_rows = 1, Kind kind = Kind::decode) {
        if (tells && now - heard_at >= 200.0) {
            heard_at = now;
            policy.hear_free(free_cores(), now);
        }
        ThreadPolicy::Run r;
        r.kind = kind;
        r.n_rows = n_rows;
        r.n_threads = policy.choose(kind, n_rows, now);
        const double alone = work_ms * (1.0 + 0.1 * (n_rows - 1));
        r.wall_ms = alone * (serial + (1.0 - serial) / r.n_threads);
        const double missing = r.n_threads - free_cores();
        r.cpu_ms = r.wall_ms * r.n_threads;
        if (missing > 0.0) {
            const bool waits = r.n_threads > 1;
            r.wall_ms *= waits ? barrier_factor : r.n_threads / free_cores();
            r.cpu_ms = r.wall_ms * std::min((double)r.n_threads, std::max(free_cores(), r.n_threads / 2.0));
            n_starved += waits;
        }
        now += r.wall_ms;
        policy.learn(r, now);
        return r.wall_ms;
    }

    // for some time; decodes
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

static void a_quiet_machine_keeps_all_threads_and_loses_nothing() {
    for (int n : {1, 2, 4, 16}) {
        for (bool tells : {true, false}) {
            Machine m;
            m.n_cores = n;
            m.tells = tells;
            ThreadPolicy policy = automatic(n);
            double ms = 0.0, best_ms = 0.0;
            for (int i = 0; i < 3000; ++i) {
                ms += m.run(policy);
                best_ms += m.work_ms * (m.serial + (1.0 - m.serial) / n);
            }
            CHECK(policy.level(Kind::decode) == n && policy.level(Kind::prompt) == n);
            CHECK_MSG(ms < 1.01 * best_ms, strf("%d threads: %.3f of the best", n, ms / best_ms));
        }
    }
}

static void a_busy_machine_gets_fewer_within_a_second_and_them_back() {
    for (bool tells : {true, false}) {
        Machine m;
        m.tells = tells;
        ThreadPolicy policy = automatic(2);
        m.run_for(policy, 5000.0);
        m.busy = 2.0;
        const double start = m.now;
        while (policy.level(Kind::decode) > 1 && m.now - start < 5000.0) m.run(policy);
        CHECK_MSG(m.now - start < 1000.0, strf("noticed after %.0f ms", m.now - start));
        CHECK(policy.level(Kind::prompt) == 1);
        // while it lasts nearly all goes to decodes with one thread
        const int n_before = m.n_starved, n = m.run_for(policy, 60000.0);
        CHECK_MSG(m.n_starved - n_before <= (tells ? 0 : 12), strf("%d decodes starved", m.n_starved - n_before));
        CHECK_MSG(n > 0.85 * 60000.0 / (1.1 * m.work_ms / 0.3), strf("%d decodes", n));
        m.busy = 0.0;
        const double over = m.now;
        while (policy.level(Kind::decode) < 2 && m.now - over < 60000.0) m.run(policy);
        CHECK_MSG(m.now - over < (tells ? 1500.0 : 25000.0), strf("back after %.0f ms", m.now - over));
    }
}

static void one_busy_core_of_many_costs_one_thread() {
    Machine m;
    m.n_cores = 8;
    ThreadPolicy policy = automatic(8);
    m.run_for(policy, 2000.0);
    m.busy = 1.0;
    m.run_for(policy, 3000.0);
    CHECK_MSG(policy.level(Kind::decode) == 7, strf("%d threads", policy.level(Kind::decode)));
}

static void times_without_their_cores_are_no_prices() {
    Machine m;
    m.tells = false;
    ThreadPolicy policy = automatic(2);
    m.run_for(policy, 2000.0);
    CHECK(policy.was_regular());
    m.busy = 2.0;
    bool is_ever_regular = false;
    while (policy.level(Kind::decode) > 1) {
        m.run(policy);
        is_ever_regular = is_ever_regular || policy.was_regular();
    }
    CHECK(!is_ever_regular);
    m.run(policy);
    CHECK(policy.was_regular());  // of one thread
}

// A large model or a slow start: nothing is known yet, and the first decodes already starve.
static void a_start_on_a_busy_machine() {
    Machine m;
    m.tells = false;
    m.busy = 2.0;
    ThreadPolicy policy = automatic(2);
    m.run(policy);
    m.run(policy);
    CHECK(policy.level(Kind::decode) == 1);
}

static void fewer_threads_are_kept_where_they_are_faster() {
    Machine m;
    m.n_cores = 4;
    m.serial = 1.6;  // threads get into each other's way
    ThreadPolicy policy = automatic(4);
    for (int i = 0; i < 3000; ++i) m.run(policy);
    CHECK_MSG(policy.level(Kind::decode) == 1, strf("%d threads", policy.level(Kind::decode)));
    CHECK(policy.level(Kind::prompt) == 4);
    m.serial = 0.1;  // the next model
    for (int i = 0; i < 60000 && policy.level(Kind::decode) < 4; ++i) m.run(policy);
    CHECK(policy.level(Kind::decode) == 4);
}

static void a_number_that_was_asked_for_stays() {
    Machine m;
    m.busy = 2.0;
    ThreadPolicy policy(2, 2, true, false);
    m.run_for(policy, 5000.0);
    CHECK(policy.level(Kind::decode) == 2 && policy.was_regular());
    CHECK(policy.level(Kind::prompt) == 1);
}

static void without_cpu_times_the_clock_alone_tells() {
    ThreadPolicy policy = automatic(2);
    double now = 0.0;
    const auto run = [&](double ms) {
        ThreadPolicy::Run r;
        r.n_threads = policy.choose(Kind::decode, 1, now);
        r.wall_ms = ms;
        r.cpu_ms = -1.0;
        now += ms;
        policy.learn(r, now);
    };
    for (int i = 0; i < 100; ++i) run(6.0);
    CHECK(policy.level(Kind::decode) == 2);
    for (int i = 0; i < 3; ++i) run(300.0);
    CHECK(policy.level(Kind::decode) == 1);
}

int main() {
    a_quiet_machine_keeps_all_threads_and_loses_nothing();
    a_busy_machine_gets_fewer_within_a_second_and_them_back();
    one_busy_core_of_many_costs_one_thread();
    times_without_their_cores_are_no_prices();
    a_start_on_a_busy_machine();
    fewer_threads_are_kept_where_they_are_faster();
    a_number_that_was_asked_for_stays();
    without_cpu_times_the_clock_alone_tells();
    return eaglecpp::test::result();
}
