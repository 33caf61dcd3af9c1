// SPDX-License-Identifier: MIT
// Tests that the CPU limits of containers are read from files that are laid out as on Linux.
#include <cmath>
#include <filesystem>
#include <fstream>

#include "../check.h"
#include "base/cgroup.h"
#include "base/memory.h"

using namespace eaglecpp;

namespace {

struct Root {
    std::string path = (std::filesystem::temp_directory_path() / "eaglecpp-test-cgroup").string();

    explicit Root(const std::vector<std::pair<std::string, std::string>> & files) {
        std::filesystem::remove_all(path);
        for (const auto & [name, text] : files) {
            const std::filesystem::path file = path + "/" + name;
            std::filesystem::create_directories(file.parent_path());
            std::ofstream(file) << text << "\n";
        }
    }
    ~Root() { std::filesystem::remove_all(path); }
};

}  // namespace

TEST(version_2_and_the_groups_above_count) {
    const Root root({{"proc/self/cgroup", "0::/a/b"},
                     {"sys/fs/cgroup/a/b/memory.max", "max"},
                     {"sys/fs/cgroup/a/b/memory.current", "900"},
                     {"sys/fs/cgroup/a/memory.max", "4000"},
                     {"sys/fs/cgroup/a/memory.current", "3000"},
                     {"sys/fs/cgroup/a/memory.stat", "anon 1200\nfile 1800\ninactive_file 1500\nactive_file 300"},
                     {"sys/fs/cgroup/a/b/cpu.max", "250000 100000"},
                     {"sys/fs/cgroup/a/cpu.max", "max 100000"}});
    CHECK(cgroup_memory(root.path) == 2500.0);
    CHECK(cgroup_cpus(root.path) == 2.5);
}

// The files name the group's path on the host. The container sees its own group as the root.
TEST(version_1_in_a_container) {
    const Root root({{"proc/self/cgroup", "4:memory:/docker/5a\n3:cpu,cpuacct:/docker/5a\n2:cpuset:/docker/5a"},
                     {"sys/fs/cgroup/memory/memory.limit_in_bytes", "4000"},
                     {"sys/fs/cgroup/memory/memory.usage_in_bytes", "5000"},
                     {"sys/fs/cgroup/memory/memory.stat", "inactive_file 0\ntotal_inactive_file 1500"},
                     {"sys/fs/cgroup/cpu/cpu.cfs_quota_us", "200000"},
                     {"sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000"}});
    CHECK(cgroup_memory(root.path) == 500.0);
    CHECK(cgroup_cpus(root.path) == 2.0);
}

TEST(no_limit) {
    const Root root({{"proc/self/cgroup", "0::/../x\n1:cpu:/"},
                     {"sys/fs/cgroup/memory.max", "max"},
                     {"sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1"},
                     {"sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000"}});
    CHECK(std::isinf(cgroup_memory(root.path)) && std::isinf(cgroup_cpus(root.path)));
    CHECK(std::isinf(cgroup_memory("/nowhere")) && std::isinf(cgroup_cpus("/nowhere")));
    CHECK((double)available_memory() <= std::max(1.0, cgroup_memory() + 64e6));
}
