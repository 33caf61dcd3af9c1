// SPDX-License-Identifier: MIT
#include "base/cgroup.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <vector>

namespace eaglecpp {

// Returns the folders of this process's groups that have this controller. A container may mount the process's group as
// the root, although the group's path has more parts. In this case, only the last returned folder exists.
static std::vector<std::string> folders(const std::string & root, const std::string & controller) {
    std::vector<std::string> out;
    std::ifstream groups(root + "/proc/self/cgroup");
    for (std::string line; std::getline(groups, line);) {  // "4:cpu,cpuacct:/path" in version 1, "0::/path" in 2
        const size_t names_at = line.find(':') + 1, path_at = line.find(':', names_at) + 1;
        if (names_at == 0 || path_at == 0) continue;
        const std::string names = "," + line.substr(names_at, path_at - names_at - 1) + ",";
        if (names != ",," && names.find("," + controller + ",") == std::string::npos) continue;
        const std::string top = root + "/sys/fs/cgroup" + (names == ",," ? "" : "/" + controller);
        std::string path = line.substr(path_at);
        if (path.find("/..") != std::string::npos) path.clear();  // the path is outside the visible hierarchy
        for (; !path.empty(); path.resize(path.rfind('/'))) out.push_back(top + path + "/");
        out.push_back(top + "/");
    }
    return out;
}

// Returns the number in a file, or the number after `key`. Returns `missing` if there is no number, for example if the
// file says "max".
static double number(const std::string & path, double missing, const std::string & key = "") {
    std::ifstream file(path);
    std::string found;
    double value = 0.0;
    if (key.empty()) return file >> value ? value : missing;
    while (file >> found >> value) {
        if (found == key) return value;
    }
    return missing;
}

double cgroup_memory(const std::string & root) {
    double least = HUGE_VAL;
    for (const std::string & folder : folders(root, "memory")) {
        const double cache =
            number(folder + "memory.stat", number(folder + "memory.stat", 0.0, "inactive_file"), "total_inactive_file");
        for (const auto & [limit, used] :
             {std::pair{"memory.max", "memory.current"}, std::pair{"memory.limit_in_bytes", "memory.usage_in_bytes"}}) {
            const double most = number(folder + limit, HUGE_VAL);
            least = std::min(least, most - std::clamp(number(folder + used, 0.0) - cache, 0.0, most));
        }
    }
    return least;
}

double cgroup_cpus(const std::string & root) {
    double least = HUGE_VAL;
    for (const std::string & folder : folders(root, "cpu")) {
        // Version 2 has "quota period" in one file. A missing limit is "max" in version 2 and -1 in version 1.
        const double quota = number(folder + "cpu.max", number(folder + "cpu.cfs_quota_us", 0.0));
        double period = number(folder + "cpu.cfs_period_us", 0.0);
        std::ifstream(folder + "cpu.max") >> period >> period;
        if (quota > 0.0 && period > 0.0) least = std::min(least, quota / period);
    }
    return least;
}

}  // namespace eaglecpp
