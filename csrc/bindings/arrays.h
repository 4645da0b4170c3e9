// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "llm_runtime/support/span2d.h"

namespace llm_runtime::bindings {

namespace nb = nanobind;

// In: typed, const, C-contiguous, on the CPU; bind the argument with .noconvert() so that nothing
// is copied silently.
template <class T>
using Vector = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
template <class T>
using Matrix = nb::ndarray<const T, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

template <class T>
std::span<const T> as_span(const Vector<T>& array) {
  return {array.data(), array.shape(0)};
}

template <class T>
Span2D<const T> as_matrix(const Matrix<T>& array) {
  return {array.data(), array.shape(0), array.shape(1)};
}

/// Out: a read-only NumPy view of memory that `owner` keeps alive.
template <class T>
nb::ndarray<nb::numpy, const T> view(const T* data, std::initializer_list<std::size_t> shape,
                                     nb::handle owner) {
  return {data, shape, owner};
}

}  // namespace llm_runtime::bindings
