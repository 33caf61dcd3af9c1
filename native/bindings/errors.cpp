// SPDX-License-Identifier: MIT
// The only translation of C++ errors: kind -> class of eaglecpp.errors.
#include "base/error.h"
#include "bindings/bindings.h"

namespace nb = nanobind;

namespace eaglecpp {

static const char * class_name(ErrorKind kind) {
    switch (kind) {
        case ErrorKind::gguf:
            return "GgufError";
        case ErrorKind::mismatch:
            return "MismatchError";
        case ErrorKind::unsupported:
            return "UnsupportedError";
        case ErrorKind::context_full:
            return "ContextFullError";
        case ErrorKind::out_of_memory:
            return "OutOfMemoryError";
        case ErrorKind::busy:
            return "EngineBusyError";
        case ErrorKind::broken:
            return "EngineBrokenError";
        case ErrorKind::grammar:
            return "GrammarError";
        case ErrorKind::not_found:
            return "ModelNotFoundError";
        case ErrorKind::value:
            break;
    }
    return nullptr;
}

void bind_errors(nb::module_ &) {
    nb::register_exception_translator(
        [](const std::exception_ptr & p, void *) {
            try {
                std::rethrow_exception(p);
            } catch (const Error & e) {
                const char * name = class_name(e.kind);
                if (!name) {
                    PyErr_SetString(PyExc_ValueError, e.what());
                    return;
                }
                const nb::object type = nb::module_::import_("eaglecpp.errors").attr(name);
                PyErr_SetString(type.ptr(), e.what());
            }
        },
        nullptr);
}

}  // namespace eaglecpp
