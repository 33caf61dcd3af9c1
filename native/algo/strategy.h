// SPDX-License-Identifier: MIT
// How a round uses the drafter.
#pragma once

#include <string>

#include "base/error.h"

namespace eaglecpp {

struct Strategy {
    enum class Kind { off, chain, tree, automatic };  // automatic: the planner decides each round

    Kind kind = Kind::off;
    int k = 1;      // children per frontier node; 1 for a chain
    int depth = 0;  // draft levels
    int nodes = 0;  // draft nodes kept for verification

    static Strategy make(const std::string & kind, int k, int depth, int nodes) {
        if (kind == "off") return {};
        if (kind == "auto") return {Kind::automatic, 1, 0, 0};
        if (kind != "chain" && kind != "tree") {
            fail(ErrorKind::value, "strategy: '%s' is not one of auto, off, chain, tree", kind.c_str());
        }
        if (k < 1 || depth < 1 || nodes < 1) {
            fail(ErrorKind::value, "strategy %s: k=%d depth=%d nodes=%d, expected at least 1 each", kind.c_str(), k,
                 depth, nodes);
        }
        if (kind == "chain") return {Kind::chain, 1, depth, depth};
        return {Kind::tree, k, depth, nodes};
    }

    bool is_fixed() const { return kind == Kind::chain || kind == Kind::tree; }

    const char * kind_name() const {
        switch (kind) {
            case Kind::off:
                return "off";
            case Kind::chain:
                return "chain";
            case Kind::tree:
                return "tree";
            case Kind::automatic:
                return "auto";
        }
        return "";
    }
};

}  // namespace eaglecpp
