// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nanobind/nanobind.h>

#include <array>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <span>
#include <type_traits>

#include "llm_runtime/support/errors.h"
#include "llm_runtime/support/int_array.h"

namespace llm_runtime::bindings {

namespace nb = nanobind;

enum class Element : std::uint8_t { kInt32, kInt64, kUint32, kUint64, kFloat32, kOther };

template <std::integral T>
constexpr Element element_of() {
  if constexpr (std::is_signed_v<T>) return sizeof(T) == 4 ? Element::kInt32 : Element::kInt64;
  return sizeof(T) == 4 ? Element::kUint32 : Element::kUint64;
}

/// A NumPy array, read-only ones included, as its header describes it. Borrows the array for one
/// call and never copies it. Read through NumPy's own C interface, which costs some nanoseconds;
/// DLPack takes a fifth of a microsecond for each array.
class ArrayIn {
 public:
  /// Whether `object` is a NumPy array, which is then described.
  bool describe(PyObject* object) noexcept;

  Element element() const { return element_; }  // kOther also when unaligned or byte-swapped
  bool is_contiguous() const { return contiguous_; }
  bool is_writable() const { return writable_; }
  std::span<const Py_ssize_t> shape() const { return shape_; }
  std::size_t size() const { return size_; }
  void* data() const { return data_; }
  /// In bytes.
  Py_ssize_t stride(std::size_t axis) const { return strides_[axis]; }

 private:
  Element element_ = Element::kOther;
  bool contiguous_ = false;
  bool writable_ = false;
  std::span<const Py_ssize_t> shape_;
  const Py_ssize_t* strides_ = nullptr;
  std::size_t size_ = 0;
  void* data_ = nullptr;
};

/// A contiguous NumPy array of exactly `T`, writable unless `T` is const. Borrowed for one call.
template <class T>
class ArrayOf {
 public:
  bool describe(PyObject* object) noexcept {
    return array_.describe(object) && array_.element() == element_of<std::remove_const_t<T>>() &&
           array_.is_contiguous() && (std::is_const_v<T> || array_.is_writable());
  }

  std::span<T> values() const { return {static_cast<T*>(array_.data()), array_.size()}; }
  std::span<const Py_ssize_t> shape() const { return array_.shape(); }

 private:
  ArrayIn array_;
};

/// The same of rank 1.
template <class T>
class VectorOf : public ArrayOf<T> {
 public:
  bool describe(PyObject* object) noexcept {
    return ArrayOf<T>::describe(object) && this->shape().size() == 1;
  }
};

/// An argument as the core reads it. The core checks the rank; other kinds of number are a
/// `TypeError`, columns that lie apart a `ValueError`.
IntArray int_array(const ArrayIn& array, const char* name);

inline std::optional<IntArray> int_array(const std::optional<ArrayIn>& array, const char* name) {
  if (!array) return std::nullopt;
  return int_array(*array, name);
}

/// A read-only NumPy array over `data`, which `owner` (stolen) keeps alive.
nb::object new_array(const void* data, Element element, std::initializer_list<std::size_t> shape,
                     nb::object owner);

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
  return new_array(data.get(), element_of<T>(), shape, std::move(capsule));
}

}  // namespace llm_runtime::bindings

namespace nanobind::detail {

template <class Array>
  requires requires(Array array, PyObject* object) {
    { array.describe(object) } noexcept -> std::same_as<bool>;
  }
struct type_caster<Array> {
  NB_TYPE_CASTER(Array, const_name("numpy.typing.NDArray[typing.Any]"))

  bool from_python(handle source, std::uint32_t, cleanup_list*) noexcept {
    return value.describe(source.ptr());
  }
};

}  // namespace nanobind::detail
