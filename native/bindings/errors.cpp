// SPDX-License-Identifier: MIT
// Translates C++ errors into Python errors: each ErrorKind becomes a class of eaglecpp.errors.
#include <iterator>

#include "base/error.h"
#include "bindings/bindings.h"

namespace nb = nanobind;

namespace eaglecpp {

nb::object exception_of(const Error & e) {
    // Names are in the order of ErrorKind. The last kind has no name here: it maps to Python's ValueError.
    constexpr const char * names[] = {"GgufError",         "MismatchError",    "UnsupportedError",
                                      "ContextFullError",  "OutOfMemoryError", "EngineBusyError",
                                      "EngineBrokenError", "GrammarError",     "ModelNotFoundError"};
    static_assert(std::size(names) == (size_t)ErrorKind::value);
    const nb::object type = e.kind == ErrorKind::value
                                ? nb::borrow(nb::handle(PyExc_ValueError))
                                : nb::object(nb::module_::import_("eaglecpp.errors").attr(names[(int)e.kind]));
    return type(std::string(e.what()));
}

void bind_errors(nb::module_ &) {
    nb::register_exception_translator(
        [](const std::exception_ptr & p, void *) {
            try {
                std::rethrow_exception(p);
            } catch (const Error & e) {
                const nb::object error = exception_of(e);
                PyErr_SetObject((PyObject *)Py_TYPE(error.ptr()), error.ptr());
            } catch (const std::runtime_error & e) {
                // llama.cpp raised the error. nanobind would decode its text strictly as UTF-8.
                if (typeid(e) != typeid(std::runtime_error)) throw;
                PyErr_SetObject(PyExc_RuntimeError, nb::cast(std::string(e.what())).ptr());
            }
        },
        nullptr);
}

}  // namespace eaglecpp
