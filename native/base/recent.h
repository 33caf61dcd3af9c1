// SPDX-License-Identifier: MIT
#pragma once

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <map>
#include <utility>

namespace eaglecpp {

// A cache of the most recently used values, by key.
template <typename Key, typename Value>
class Recent {
  public:
    explicit Recent(size_t n_max) : n_max_(n_max) {}

    // Returns a pointer to the value of a key, or null. The pointer stays valid until this value is replaced or
    // dropped.
    Value * find(const Key & key) {
        const auto it = all_.find(key);
        if (it == all_.end()) return nullptr;
        it->second.second = ++n_uses_;
        return &it->second.first;
    }

    // Sets the value of a key. If the cache is full, the new value replaces the least recently used value.
    Value & keep(const Key & key, Value value) {
        const auto is_older = [](const auto & a, const auto & b) { return a.second.second < b.second.second; };
        if (all_.size() >= n_max_ && all_.count(key) == 0) {
            all_.erase(std::min_element(all_.begin(), all_.end(), is_older));
        }
        auto & kept = all_[key];
        kept = {std::move(value), ++n_uses_};
        return kept.first;
    }

    // Drops all values whose keys fulfil the condition.
    template <typename F>
    void forget_if(F && f) {
        for (auto it = all_.begin(); it != all_.end();) it = f(it->first) ? all_.erase(it) : std::next(it);
    }

  private:
    std::map<Key, std::pair<Value, long>> all_;  // by key: the value, and the number of its last use
    size_t n_max_;
    long n_uses_ = 0;
};

}  // namespace eaglecpp
