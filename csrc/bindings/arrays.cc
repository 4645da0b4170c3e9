// SPDX-License-Identifier: Apache-2.0
// The one file that includes NumPy's headers: its table of functions is private to a file.
#include "bindings/arrays.h"

#define NPY_NO_DEPRECATED_API NPY_1_7_API_VERSION
#include <numpy/arrayobject.h>

#include <algorithm>

#include "bindings/module.h"

namespace llm_runtime::bindings {

namespace {

Element element_of_kind(char kind, Py_ssize_t bytes) {
  if (bytes != 4 && bytes != 8) return Element::kOther;
  if (kind == 'f' && bytes == 4) return Element::kFloat32;
  if (kind == 'i') return bytes == 4 ? Element::kInt32 : Element::kInt64;
  if (kind == 'u') return bytes == 4 ? Element::kUint32 : Element::kUint64;
  return Element::kOther;
}

int numpy_type(Element element) {
  switch (element) {
    case Element::kInt32:
      return NPY_INT32;
    case Element::kInt64:
      return NPY_INT64;
    case Element::kUint32:
      return NPY_UINT32;
    case Element::kUint64:
      return NPY_UINT64;
    case Element::kFloat32:
      return NPY_FLOAT32;
    case Element::kOther:
      break;
  }
  return NPY_NOTYPE;
}

}  // namespace

bool ArrayIn::describe(PyObject* object) noexcept {
  if (!PyArray_Check(object)) return false;
  auto* array = reinterpret_cast<PyArrayObject*>(object);
  const int flags = PyArray_FLAGS(array);
  const bool plain = (flags & NPY_ARRAY_ALIGNED) != 0 && PyArray_ISNOTSWAPPED(array);
  element_ = plain ? element_of_kind(PyArray_DESCR(array)->kind, PyArray_ITEMSIZE(array))
                   : Element::kOther;
  contiguous_ = (flags & NPY_ARRAY_C_CONTIGUOUS) != 0;
  writable_ = (flags & NPY_ARRAY_WRITEABLE) != 0;
  shape_ = {PyArray_DIMS(array), static_cast<std::size_t>(PyArray_NDIM(array))};
  strides_ = PyArray_STRIDES(array);
  size_ = 1;
  for (const auto length : shape_) size_ *= static_cast<std::size_t>(length);
  data_ = PyArray_DATA(array);
  return true;
}

IntArray int_array(const ArrayIn& array, const char* name) {
  const bool narrow = array.element() == Element::kInt32;
  if (!narrow && array.element() != Element::kInt64)
    throw_wrong_type(str_cat(name, " must hold int32 or int64"));
  const Py_ssize_t bytes = narrow ? 4 : 8;
  const auto rank = array.shape().size();
  std::array<std::size_t, 2> shape{1, 0};
  std::ptrdiff_t row_stride = 0;
  if (rank == 1 || rank == 2) {
    shape[1] = static_cast<std::size_t>(array.shape()[rank - 1]);
    if (rank == 2) {
      shape[0] = static_cast<std::size_t>(array.shape()[0]);
      row_stride = array.stride(0) / bytes;
      require_value(array.size() == 0 || shape[0] == 1 || array.stride(0) % bytes == 0,
                    "the rows of ", name, " must lie whole entries apart; pass a contiguous copy");
    }
    require_value(array.size() == 0 || shape[1] == 1 || array.stride(rank - 1) == bytes,
                  "the entries of a row of ", name,
                  " must lie side by side; pass a contiguous copy");
  }
  if (narrow) return {static_cast<const std::int32_t*>(array.data()), rank, shape, row_stride};
  return {static_cast<const std::int64_t*>(array.data()), rank, shape, row_stride};
}

nb::object new_array(const void* data, Element element, std::initializer_list<std::size_t> shape,
                     nb::object owner) {
  std::array<npy_intp, 2> lengths{};
  std::size_t rank = 0;
  for (const auto length : shape) lengths.at(rank++) = static_cast<npy_intp>(length);
  // Without NPY_ARRAY_WRITEABLE nobody writes through the pointer.
  auto array = nb::steal(PyArray_New(&PyArray_Type, static_cast<int>(rank), lengths.data(),
                                     numpy_type(element), nullptr, const_cast<void*>(data), 0,
                                     NPY_ARRAY_CARRAY_RO, nullptr));
  if (!array.is_valid()) throw nb::python_error();
  auto* view = reinterpret_cast<PyArrayObject*>(array.ptr());
  if (PyArray_SetBaseObject(view, owner.release().ptr()) != 0) throw nb::python_error();
  return array;
}

namespace {

/// A new writable int64 vector and where to write it.
nb::object new_vector(std::size_t size, std::span<std::int64_t>& entries) {
  auto length = static_cast<npy_intp>(size);
  auto array = nb::steal(PyArray_SimpleNew(1, &length, NPY_INT64));
  if (!array.is_valid()) throw nb::python_error();
  auto* vector = reinterpret_cast<PyArrayObject*>(array.ptr());
  entries = {static_cast<std::int64_t*>(PyArray_DATA(vector)), size};
  return array;
}

template <class T>
nb::object widened(const ArrayIn& array) {
  std::span<std::int64_t> entries;
  auto result = new_vector(array.size(), entries);
  std::ranges::copy(std::span(static_cast<const T*>(array.data()), array.size()), entries.begin());
  return result;
}

nb::object flat_int64(const ArrayIn& array) {
  if (array.is_contiguous() && array.element() == Element::kUint32)
    return widened<std::uint32_t>(array);
  if (array.is_contiguous() && array.element() == Element::kInt32)
    return widened<std::int32_t>(array);
  throw_wrong_type("the array must be a contiguous one of int32 or uint32");
}

/// Copying more bytes than this takes longer than handing the interpreter to another thread.
constexpr std::size_t kLongCopy = std::size_t{1} << 20;

nb::object leading_logits(const ArrayIn& array, std::size_t rows, std::size_t columns) {
  const auto shape = array.shape();
  if (array.element() != Element::kFloat32 || !array.is_contiguous() || shape.size() < 2)
    throw_wrong_type("the logits must be a contiguous float32 array of rank 2 or more");
  const auto width = static_cast<std::size_t>(shape.back());
  require_value(rows <= static_cast<std::size_t>(shape[shape.size() - 2]) && columns <= width,
                "the logits are fewer than ", rows, " rows of ", columns, " columns");
  std::array<npy_intp, 3> lengths{static_cast<npy_intp>(rows), 1, static_cast<npy_intp>(columns)};
  auto result = nb::steal(PyArray_SimpleNew(3, lengths.data(), NPY_FLOAT32));
  if (!result.is_valid()) throw nb::python_error();
  const auto* from = static_cast<const float*>(array.data());
  auto* to = static_cast<float*>(PyArray_DATA(reinterpret_cast<PyArrayObject*>(result.ptr())));
  const auto copy = [&] {
    for (std::size_t row = 0; row < rows; ++row)
      std::copy_n(from + row * width, columns, to + row * columns);
  };
  if (rows * columns * sizeof(float) < kLongCopy) {
    copy();
  } else {
    const nb::gil_scoped_release other_threads;
    copy();
  }
  return result;
}

}  // namespace

void bind_arrays(nb::module_& m) {
  if (PyArray_ImportNumPyAPI() != 0) throw nb::python_error();
  m.def(
      "flat_int64", &flat_int64, nb::arg("array"),
      nb::sig("def flat_int64(array: numpy.typing.NDArray[numpy.int32 | numpy.uint32], /) -> "
              "numpy.typing.NDArray[numpy.int64]"),
      "The entries in order, in a new int64 vector. TypeError for anything but a contiguous array "
      "of int32 or uint32.");
  m.def(
      "leading_logits", &leading_logits, nb::arg("array"), nb::arg("rows"), nb::arg("columns"),
      nb::sig("def leading_logits(array: numpy.typing.NDArray[numpy.float32], rows: int, "
              "columns: int, /) -> numpy.typing.NDArray[numpy.float32]"),
      "A copy [rows, 1, columns] of the first rows and columns of the last two axes. TypeError for "
      "anything but a contiguous float32 array of rank 2 or more, ValueError for a smaller one.");
}

}  // namespace llm_runtime::bindings
