// SPDX-License-Identifier: MIT
// Exposes the fields of a struct T under their own names. def_fields(c, FIELD(a), FIELD(b)) defines attributes of a
// class. put_fields(d, value, FIELD(a), "b", &T::c) sets entries of a dict. It also accepts functions without
// arguments.
#pragma once

#include <nanobind/nanobind.h>

#include <functional>

#define FIELD(name) #name, &T::name

namespace eaglecpp {

template <class Class, class Member, class... More>
void def_fields(Class & c, const char * name, Member member, More... more) {
    c.def_rw(name, member);
    if constexpr (sizeof...(more) > 0) def_fields(c, more...);
}

template <class T, class Member, class... More>
void put_fields(nanobind::dict & d, const T & value, const char * name, Member member, More... more) {
    d[name] = std::invoke(member, value);
    if constexpr (sizeof...(more) > 0) put_fields(d, value, more...);
}

}  // namespace eaglecpp
