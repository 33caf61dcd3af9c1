// SPDX-License-Identifier: MIT
// Each file of the bindings has one bind_*() function, which module.cpp calls. Only this folder includes nanobind.
#pragma once

#include <nanobind/nanobind.h>

#include <atomic>
#include <utility>

#include "base/error.h"
#include "bindings/text.h"
#include "gguf/guard.h"

namespace eaglecpp {

void bind_errors(nanobind::module_ & m);
void bind_system(nanobind::module_ & m);
void bind_gguf(nanobind::module_ & m);
void bind_options(nanobind::module_ & m);
void bind_target(nanobind::module_ & m);
void bind_drafter(nanobind::module_ & m);
void bind_engine(nanobind::module_ & m);

// Returns the properties of a drafter file. DraftFile.info, Drafter.info and Engine.draft_info() all call this
// function.
nanobind::dict draft_spec_dict(const struct DraftSpec & spec);

// Returns the Python exception for this error, without raising it.
nanobind::object exception_of(const class Error & e);

// Calls a method that may release the GIL. Raises an error if another thread is inside the object, and turns a failed
// assertion of ggml into an error. The object's class must have a member `in_use`.
template <auto method>
struct OneAtATime;

template <typename Self, typename Result, typename... Args, Result (Self::*method)(Args...)>
struct OneAtATime<method> {
    static Result call(Self & self, Args... args) {
        fail_if(self.in_use.exchange(true), ErrorKind::busy,
                "this object is in use by another thread; use it from one thread at a time");
        const struct Release {
            ~Release() { in_use = false; }
            std::atomic<bool> & in_use;
        } release{self.in_use};
        return guarded([&] { return (self.*method)(std::forward<Args>(args)...); });
    }
};

}  // namespace eaglecpp
