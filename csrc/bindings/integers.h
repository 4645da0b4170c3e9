// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <cstdint>
#include <string>

#include "llm_runtime/support/errors.h"
#include "llm_runtime/support/integers.h"

namespace llm_runtime::bindings {

namespace nb = nanobind;

/// An `int` of 64 bits; anything else is a `TypeError`.
inline std::int64_t integer(nb::handle value, const char* name) {
  std::int64_t number = 0;
  if (!nb::try_cast(value, number))
    throw_wrong_type(
        str_cat(name, " must be a 64-bit integer, not ", nb::cast<std::string>(nb::repr(value))));
  return number;
}

/// A positive `int` that is no `bool`. Anything else, a float or NumPy integer included, is a
/// `ValueError`.
inline std::int64_t positive_integer(nb::handle value, const char* name) {
  std::int64_t number = 0;
  const bool is_count = PyLong_Check(value.ptr()) && !PyBool_Check(value.ptr()) &&
                        nb::try_cast(value, number) && number > 0 && number <= kMaxCount;
  if (!is_count)
    throw_invalid_value(str_cat(name, " must be a positive integer of at most ", kMaxCount,
                                ", not ", nb::cast<std::string>(nb::repr(value))));
  return number;
}

}  // namespace llm_runtime::bindings
