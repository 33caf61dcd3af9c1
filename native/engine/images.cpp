// SPDX-License-Identifier: MIT
#include "engine/images.h"

#include <climits>
#include <iterator>
#include <utility>

#include "base/error.h"

namespace eaglecpp {

template <typename Is>
std::shared_ptr<const Image> Images::find_if(Is && is) {
    const auto found = std::find_if(images_.begin(), images_.end(), is);
    if (found == images_.end()) return nullptr;
    images_.splice(images_.begin(), images_, found);
    return images_.front();
}

std::shared_ptr<const Image> Images::find(const std::string & key) {
    const std::lock_guard lock(mutex_);
    return find_if([&](const auto & image) { return image->key == key; });
}

std::shared_ptr<const Image> Images::find(Token token) {
    const std::lock_guard lock(mutex_);
    return find_if([&](const auto & image) { return image->has(token); });
}

Token Images::first_id(const std::string & key, int n_rows) {
    constexpr size_t n_names_max = 4096;
    const std::lock_guard lock(mutex_);
    for (const auto & [first, name] : names_) {
        if (name.n_rows == n_rows && name.key == key) return first;
    }
    fail_if(n_rows >= next_ - INT_MIN, ErrorKind::value, "this engine has no image ids left; open the engine again");
    names_[next_] = {key, n_rows};
    if (names_.size() > n_names_max) names_.erase(std::prev(names_.end()));  // the oldest image has the highest id
    return std::exchange(next_, next_ - n_rows);
}

std::optional<Images::Name> Images::name(Token token) {
    const std::lock_guard lock(mutex_);
    const auto found = names_.lower_bound(token);
    if (found == names_.end() || token <= found->first - found->second.n_rows) return std::nullopt;
    return found->second;
}

std::shared_ptr<const Image> Images::add(const std::string & key, int n_rows, bool is_whole, int n_columns,
                                         std::vector<float> values) {
    const Token first = first_id(key, n_rows);
    const std::lock_guard lock(mutex_);
    if (auto known = find_if([&](const auto & image) { return image->key == key; })) return known;
    n_bytes_ += values.size() * sizeof(float);
    images_.push_front(std::make_shared<Image>(Image{key, first, n_rows, is_whole, n_columns, std::move(values)}));
    while (n_bytes_ > n_bytes_max_ && images_.size() > 1) {
        n_bytes_ -= images_.back()->values.size() * sizeof(float);
        images_.pop_back();
    }
    return images_.front();
}

}  // namespace eaglecpp
