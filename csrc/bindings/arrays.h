// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>

#include "llm_runtime/support/errors.h"
#include "llm_runtime/support/int_array.h"

namespace llm_runtime::bindings {

namespace nb = nanobind;

/// In: any array on the CPU, read-only ones included. Never copied; `int_array` looks at what it
/// is.
using ArrayIn = nb::ndarray<nb::ro, nb::device::cpu>;

/// An argument as the core reads it. The core checks the rank; other kinds of number are a
/// `TypeError`, columns that lie apart a `ValueError`.
inline IntArray int_array(const ArrayIn& array, const char* name) {
  const auto rank = array.ndim();
  std::array<std::size_t, 2> shape{1, 0};
  std::ptrdiff_t row_stride = 0;
  if (rank == 1 || rank == 2) {
    shape = rank == 1 ? std::array<std::size_t, 2>{1, array.shape(0)}
                      : std::array<std::size_t, 2>{array.shape(0), array.shape(1)};
    row_stride = rank == 1 ? 0 : static_cast<std::ptrdiff_t>(array.stride(0));
    require_value(array.size() == 0 || shape[1] == 1 || array.stride(rank - 1) == 1,
                  "the entries of a row of ", name,
                  " must lie side by side; pass a contiguous copy");
  }
  if (array.dtype() == nb::dtype<std::int32_t>())
    return {static_cast<const std::int32_t*>(array.data()), rank, shape, row_stride};
  if (array.dtype() != nb::dtype<std::int64_t>())
    throw_wrong_type(str_cat(name, " must hold int32 or int64"));
  return {static_cast<const std::int64_t*>(array.data()), rank, shape, row_stride};
}

inline std::optional<IntArray> int_array(const std::optional<ArrayIn>& array, const char* name) {
  if (!array) return std::nullopt;
  return int_array(*array, name);
}

/// Out: a read-only NumPy view of shared memory; the view keeps the memory alive, whatever becomes
/// of its first owner.
template <class T>
nb::object array_view(const std::shared_ptr<const T>& data,
                      std::initializer_list<std::size_t> shape) {
  auto owner = std::make_unique<std::shared_ptr<const T>>(data);
  nb::capsule capsule(owner.get(), [](void* shared) noexcept {
    delete static_cast<std::shared_ptr<const T>*>(shared);
  });
  owner.release();  // the capsule has it
  return nb::cast(nb::ndarray<nb::numpy, const T>(data.get(), shape, capsule));
}

}  // namespace llm_runtime::bindings
