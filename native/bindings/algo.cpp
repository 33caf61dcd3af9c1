// SPDX-License-Identifier: MIT
#include <nanobind/stl/vector.h>

#include "algo/text.h"
#include "bindings/bindings.h"
#include "bindings/text.h"
#include "grammar/matcher.h"

namespace nb = nanobind;

namespace eaglecpp {

void bind_algo(nb::module_ & m) {
    nb::class_<TextIndex>(m, "TextIndex")
        .def(nb::init<int>(), nb::arg("n_max"))
        .def("add", &TextIndex::add, nb::arg("token"))
        .def("propose", [](const TextIndex & t, int n) { return t.propose(n).tokens; }, nb::arg("n"));

    m.def("load_llguidance", &Llguidance::load, nb::arg("path"));
    m.def("check_grammar", &check_grammar, nb::arg("text"), nb::call_guard<nb::gil_scoped_release>());
}

}  // namespace eaglecpp
