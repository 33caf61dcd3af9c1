// SPDX-License-Identifier: MIT
// Tests that the status always shows whether our kernels are used. If libggml does not report its commit, the kernels
// run. If libggml reports an unknown commit, the kernels are off and a warning is logged. If EAGLECPP_KERNELS names an
// unknown table, another warning is logged. The program's argument is the commit that ggml reports.
#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

#include "base/log.h"
#include "check.h"
#include "ggml_hook/ggml_abi.h"
#include "ggml_hook/hook.h"
#include "kernels/select.h"

using namespace eaglecpp;

static std::string commit;

// Replaces the function of ggml in all calls from eaglecpp.
extern "C" const char * ggml_commit(void) {
    return commit.c_str();
}

static std::vector<std::string> warnings() {
    std::vector<std::string> found;
    for (const LogLine & line : log_drain()) {
        if (line.level >= LogLevel::warning) found.push_back(line.text);
    }
    return found;
}

int main(int, char ** argv) {
    commit = argv[1];
    const bool is_ours = commit != "deadbee";
    kernels::status();
    const kernels::Status & status = kernels::status();
    const std::vector<std::string> said = warnings();
    if (!kernels::chosen_table()) {
        CHECK(!status.is_active && !status.is_possible && said.empty());
        return test::result();
    }
    CHECK(status.is_possible && status.is_active == is_ours);
    if (const char * wanted = std::getenv("EAGLECPP_KERNELS")) {
        CHECK(said.size() == 1);
        for (const std::string & text : said) {
            CHECK_MSG(text.find(std::string("'") + wanted + "'") != std::string::npos, text);
            for (const kernels::KernelTable * t : kernels::usable_tables()) {
                CHECK_MSG(text.find(t->name) != std::string::npos, text);
            }
        }
        return test::result();
    }
    CHECK(said.size() == (is_ours ? 0 : 1));
    for (const std::string & text : said) {
        CHECK_MSG(text.find("kernels are off") != std::string::npos, text);
        CHECK_MSG(text.find("found deadbee") != std::string::npos, text);
    }
    return test::result();
}
