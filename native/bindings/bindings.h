// SPDX-License-Identifier: MIT
// One bind_*() per file; module.cpp lists them. Nothing outside this folder includes nanobind.
#pragma once

#include <nanobind/nanobind.h>

#include "bindings/text.h"

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

}  // namespace eaglecpp
