// SPDX-License-Identifier: MIT
#include "check.h"

int main() {
    for (const auto test : eaglecpp::test::tests()) test();
    return eaglecpp::test::result();
}
