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
        case ErrorKind::cancelled:
            return "OpeningCancelledError";
        case ErrorKind::value:
            break;
    }
    return nullptr;
}

nb::object exception_of(const Error & e) {
    const char * name = class_name(e.kind);
    const nb::object type =
        name ? nb::module_::import_("eaglecpp.errors").attr(name) : nb::borrow(nb::handle(PyExc_ValueError));
    return type(e.what());
}

void bind_errors(nb::module_ &) {
    nb::register_exception_translator(
        [](const std::exception_ptr & p, void *) {
            try {
                std::rethrow_exception(p);
            } catch (const Error & e) {
                const nb::object error = exception_of(e);
                PyErr_SetObject((PyObject *)Py_TYPE(error.ptr()), error.ptr());
            }
        },
        nullptr);
}

}  // namespace eaglecpp
