// SPDX-License-Identifier: MIT
// One bind_*() per file; module.cpp lists them. Nothing outside this folder includes nanobind.
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
void bind_algo(nanobind::module_ & m);
void bind_gguf(nanobind::module_ & m);
void bind_options(nanobind::module_ & m);
void bind_target(nanobind::module_ & m);
void bind_drafter(nanobind::module_ & m);
void bind_engine(nanobind::module_ & m);

// facts of a drafter file, shared by DraftFile.info, Drafter.info and Engine.draft_info()
nanobind::dict draft_spec_dict(const struct DraftSpec & spec);

// the exception that Python raises for this error, not raised
nanobind::object exception_of(const class Error & e);

// Calls a method that may compute without the GIL: refuses a second thread, and an assertion of ggml is an error. The
// class has `in_use`.
template <auto method>
struct OneAtATime;

template <typename Self, typename Result, typename... Args, Result (Self::*method)(Args...)>
struct OneAtATime<method> {
    static Result call(Self & self, Args... args) {
        if (self.in_use.exchange(true)) fail(ErrorKind::busy, "in use by another thread; one thread at a time");
        const struct Release {
            ~Release() { in_use = false; }
            std::atomic<bool> & in_use;
        } release{self.in_use};
        return guarded([&] { return (self.*method)(std::forward<Args>(args)...); });
    }
};

}  // namespace eaglecpp
