// SPDX-License-Identifier: MIT
// Converts strings between Python and C++, replacing nanobind/stl/string.h. Untrusted files may contain any bytes, so
// invalid UTF-8 becomes U+FFFD in Python. Invalid bytes of a path become surrogates instead, and converting the path
// back gives the same bytes.
#pragma once

#include <nanobind/nanobind.h>

#include <string>

namespace nanobind::detail {

template <>
struct type_caster<std::string> {
    NB_TYPE_CASTER(std::string, const_name("str"))

    bool from_python(handle src, uint32_t, cleanup_list *) noexcept {
        if (!PyUnicode_Check(src.ptr())) return false;
        const object bytes = steal(PyUnicode_AsEncodedString(src.ptr(), "utf-8", "surrogateescape"));
        if (!bytes.is_valid()) {
            PyErr_Clear();
            return false;
        }
        value.assign(PyBytes_AS_STRING(bytes.ptr()), (size_t)PyBytes_GET_SIZE(bytes.ptr()));
        return true;
    }

    static handle from_cpp(const std::string & value, rv_policy, cleanup_list *) noexcept {
        return PyUnicode_DecodeUTF8(value.data(), (Py_ssize_t)value.size(), "replace");
    }
};

}  // namespace nanobind::detail
