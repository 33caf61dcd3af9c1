// SPDX-License-Identifier: MIT
// A forked child has none of its parent's helper threads: it is told so instead of waiting for them.
#include <cstdio>
#include <thread>

#include "../check.h"
#include "../gguf/draft_files.h"
#include "base/error.h"
#include "base/log.h"
#include "tiny_models.h"

using namespace eaglecpp;

#ifndef _WIN32
#include <sys/wait.h>
#include <unistd.h>

static const Tokens prompt = {1, 5, 7, 9};
static const Strategy chain = {Strategy::Kind::chain, 1, 4, 4};

enum : int { finished, refused, failed };

static int attempt(const std::function<void()> & f) {
    try {
        f();
        return finished;
    } catch (const Error & e) {
        const bool says_so = std::string(e.what()).find("forked") != std::string::npos;
        return e.kind == ErrorKind::unsupported && says_so ? refused : failed;
    } catch (...) {
        return failed;
    }
}

// what becomes of f in a forked child; a hang ends with SIGALRM
static int in_child(const std::function<void()> & f) {
    const pid_t pid = fork();
    if (pid == 0) {
        alarm(300);
        _exit(attempt(f));
    }
    int status = 0;
    waitpid(pid, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

int main() {
    const test::Folder folder;
    const std::string target = folder.file("target.gguf"), draft = folder.file("draft.gguf");
    test::write_target(target);
    write_draft_file(draft, Kind::eagle31);
    EngineOptions options = test::tiny_options(target, draft);
    options.n_threads = options.n_threads_batch = 2;
    const auto use = [&](Engine & engine, int id) { test::generate(engine, id, prompt, test::greedy(chain, 4)); };
    const auto open_and_use = [&] {
        Engine engine(options);
        use(engine, engine.open_sequence());
    };

    Engine engine(options);
    const int id = engine.open_sequence();
    // Nothing has been computed: the child makes threads of its own. Servers load before they fork for this.
    CHECK(in_child([&] { use(engine, id); }) == finished);
    CHECK(in_child(open_and_use) == finished);

    // threads belong to the thread that computes, and only the one that forks exists in the child
    std::thread([&] { use(engine, id); }).join();
    CHECK(in_child([&] { use(engine, id); }) == finished);

    use(engine, id);
    CHECK(in_child([&] { use(engine, id); }) == refused);
    CHECK(in_child([&] { engine.clear(id); }) == refused);
    CHECK(in_child(open_and_use) == refused);
    CHECK(in_child([&] { Target{options}; }) == refused);

    // a log line in the child, whatever other threads were writing
    std::atomic<bool> is_done{false};
    std::thread writer([&] {
        while (!is_done) log_line(LogLevel::debug, "busy");
    });
    for (int i = 0; i < 50; ++i) CHECK(in_child([] { log_line(LogLevel::debug, "child"); }) == finished);
    is_done = true;
    writer.join();

    use(engine, id);  // the parent goes on
    return test::result();
}
#else
int main() {
    return test::result();
}
#endif
