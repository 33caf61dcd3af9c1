// SPDX-License-Identifier: MIT
#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include "algo/text.h"
#include "algo/tree.h"
#include "base/error.h"
#include "bindings/bindings.h"
#include "grammar/grammar.h"

namespace nb = nanobind;

namespace eaglecpp {

static int checked(const DraftTree & tree, int node) {
    if (node < 0 || node >= tree.size()) fail(ErrorKind::value, "node %d is not one of the %d", node, tree.size());
    return node;
}

void bind_algo(nb::module_ & m) {
    nb::class_<DraftTree>(m, "DraftTree")
        .def(nb::init<Token>(), nb::arg("root"))
        .def("__len__", &DraftTree::size)
        .def("add", &DraftTree::add, nb::arg("token"), nb::arg("parent"), nb::arg("logp"))
        .def(
            "select",
            [](const DraftTree & t, int n_nodes, int n_leaves) {
                return best_subtree(t, n_nodes, n_leaves > 0 ? n_leaves : t.size());
            },
            nb::arg("n_nodes"), nb::arg("n_leaves") = 0)
        .def_prop_ro("tokens", [](const DraftTree & t) { return t.token; })
        .def_prop_ro("parents", [](const DraftTree & t) { return t.parent; })
        .def_prop_ro("depths", [](const DraftTree & t) { return t.depth; })
        .def_prop_ro("logps", [](const DraftTree & t) { return t.logp; })
        .def("leaves", &DraftTree::leaves)
        .def("path", [](const DraftTree & t, int node) { return t.path(checked(t, node)); }, nb::arg("node"));

    nb::class_<TextIndex>(m, "TextIndex")
        .def(nb::init<int, int>(), nb::arg("n_memory"), nb::arg("n_max"))
        .def("add", &TextIndex::add, nb::arg("token"))
        .def("propose", [](const TextIndex & t, int n) { return t.propose(n).tokens; }, nb::arg("n"));

    m.def(
        "match",
        [](const DraftTree & tree, const std::vector<Token> & sampled) {
            if ((int)sampled.size() != tree.size()) {
                fail(ErrorKind::value, "sampled: expected one token per node (%d), found %zu", tree.size(),
                     sampled.size());
            }
            const MatchResult r = match(tree, [&](int node) { return Choice{sampled[node], false}; });
            return std::make_pair(std::vector<int32_t>(r.nodes.begin() + 1, r.nodes.end()), r.tokens.back());
        },
        nb::arg("tree"), nb::arg("sampled"));
    m.def("grammar_limits", [] {
        using L = GrammarLimits;
        nb::dict d;
        d["n_text_bytes"] = L::n_text_bytes;
        d["n_repetitions"] = L::n_repetitions;
        d["n_token_names"] = L::n_token_names;
        d["n_token_name_bytes"] = L::n_token_name_bytes;
        d["n_steps"] = L::n_steps;
        d["n_steps_back"] = L::n_steps_back;
        d["n_frames"] = L::n_frames;
        d["n_schema_bytes"] = L::n_schema_bytes;
        d["n_schema_depth"] = L::n_schema_depth;
        d["n_schema_nodes"] = L::n_schema_nodes;
        return d;
    });
}

}  // namespace eaglecpp
