// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "llm_runtime/support/errors.h"
#include "llm_runtime/support/span2d.h"

namespace llm_runtime::bindings {

namespace nb = nanobind;

/// In: an int32 or int64 array. One import decides the element type; an overload each would import
/// it up to twice.
using Integers = nb::ndarray<nb::ro, nb::c_contig, nb::device::cpu>;

namespace detail {

inline void check_dimensions(const Integers& array, const char* name, std::size_t dimensions) {
  require_value(array.ndim() == dimensions, name, " must have ", dimensions, " dimension(s), not ",
                array.ndim());
}

template <class Visitor>
decltype(auto) visit_elements(const Integers& array, const char* name, Visitor&& visit) {
  if (array.dtype() == nb::dtype<std::int32_t>())
    return visit(static_cast<const std::int32_t*>(array.data()));
  if (array.dtype() == nb::dtype<std::int64_t>())
    return visit(static_cast<const std::int64_t*>(array.data()));
  throw_wrong_type(str_cat(name, " must be an int32 or int64 array"));
}

}  // namespace detail

/// Calls `visit` with the vector as a span of its element type.
template <class Visitor>
decltype(auto) visit_vector(const Integers& array, const char* name, Visitor&& visit) {
  detail::check_dimensions(array, name, 1);
  return detail::visit_elements(array, name, [&]<class T>(const T* data) {
    return visit(std::span<const T>{data, array.shape(0)});
  });
}

/// Calls `visit` with the matrix as a Span2D of its element type.
template <class Visitor>
decltype(auto) visit_matrix(const Integers& array, const char* name, Visitor&& visit) {
  detail::check_dimensions(array, name, 2);
  return detail::visit_elements(array, name, [&]<class T>(const T* data) {
    return visit(Span2D<const T>{data, array.shape(0), array.shape(1)});
  });
}

}  // namespace llm_runtime::bindings
