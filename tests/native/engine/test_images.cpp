// SPDX-License-Identifier: MIT
// Images that the engine keeps: each row has an id of its own, and what was used longest ago goes first.
#include "engine/images.h"

#include "../check.h"

using namespace eaglecpp;

namespace {

constexpr int n_embd = 4;
constexpr int n_rows = 2;
constexpr size_t n_bytes = n_rows * n_embd * sizeof(float);

std::shared_ptr<const Image> add(Images & images, const std::string & key, float value = 0.0f) {
    return images.add(key, n_rows, /*is_whole=*/true, std::vector<float>(n_rows * n_embd, value));
}

void test_ids() {
    Images images(8 * n_bytes);
    const auto a = add(images, "a", 1.0f), b = add(images, "b", 2.0f);
    CHECK(a->first < 0 && b->first == a->first - n_rows);
    CHECK(images.find(a->first - 1) == a && images.find(b->first) == b);
    CHECK(images.find(b->first - n_rows) == nullptr && images.find(a->first + 1) == nullptr);
    CHECK(a->row(a->first)[0] == 1.0f && b->row(b->first - 1) == b->values.data() + n_embd);
    CHECK(add(images, "a", 3.0f) == a && a->values[0] == 1.0f);  // what is there stays
}

void test_the_one_used_longest_ago_goes() {
    Images images(2 * n_bytes);
    const Token a = add(images, "a")->first, b = add(images, "b")->first;
    CHECK(images.find(a) != nullptr);  // used
    add(images, "c");
    CHECK(images.find("a") != nullptr && images.find("b") == nullptr && images.find("c") != nullptr);
    CHECK(images.find(b) == nullptr);
    CHECK(images.find("a") != nullptr);
    add(images, "d");
    CHECK(images.find("c") == nullptr);
    const auto again = add(images, "b");
    CHECK(again->first != b && images.find(b) == nullptr);  // its old ids stay unknown
}

void test_one_that_is_larger_than_all_stays_until_the_next() {
    Images images(n_bytes - 1);
    const auto held = add(images, "a");
    CHECK(images.find("a") == held);
    add(images, "b");
    CHECK(images.find("a") == nullptr && held->values.size() == n_rows * n_embd);
}

}  // namespace

int main() {
    test_ids();
    test_the_one_used_longest_ago_goes();
    test_one_that_is_larger_than_all_stays_until_the_next();
    return eaglecpp::test::result();
}
