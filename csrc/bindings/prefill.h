// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nanobind/nanobind.h>

#include <cstddef>
#include <functional>
#include <utility>
#include <vector>

#include "bindings/arrays.h"
#include "llm_runtime/prefill/prefill_request.h"
#include "llm_runtime/support/shared_matrix.h"

namespace llm_runtime::bindings {

namespace nb = nanobind;

/// A request and what Python has asked of it so far. Views and tuples are made on first use and
/// kept; none of them refers back to this object.
struct RequestObject {
  prefill::PrefillRequest request;
  nb::object source_rows, slots, prompt_lengths, cached_tokens, last_token_indices;
  nb::object tokens, page_table, chunks;
};

struct ChunkObject {
  prefill::PrefillChunk chunk;
  nb::object token_slice, chunk_page_table;
};

/// Values that Python owns from here on, as a tuple.
template <class Value, class Wrap = std::identity>
nb::object tuple_of(std::vector<Value> values, Wrap wrap = {}) {
  auto result = nb::steal(PyTuple_New(static_cast<Py_ssize_t>(values.size())));
  if (!result.is_valid()) throw nb::python_error();
  Py_ssize_t index = 0;
  for (Value& value : values)
    PyTuple_SetItem(result.ptr(), index++, nb::cast(wrap(std::move(value))).release().ptr());
  return result;
}

template <class T>
nb::object matrix_view(const SharedMatrix<T>& matrix) {
  return array_view(matrix.owner(), {matrix.rows(), matrix.columns()});
}

/// Reads a rank-2 array that Python made into memory of our own.
template <class T>
SharedMatrix<T> matrix_copy(const IntArray& array) {
  MatrixMemory memory(array.rows() * array.columns() * sizeof(T));
  auto [matrix, entries] = memory.take<T>(array.rows(), array.columns());
  for (std::size_t row = 0; row < array.rows(); ++row)
    array.copy_row(row, 0, entries.subspan(row * array.columns(), array.columns()));
  return matrix;
}

/// Binds a property whose value is made once.
template <class Object, class Make>
void def_once(nb::class_<Object>& cls, const char* name, nb::object Object::* kept, Make make,
              const char* signature) {
  cls.def_prop_ro(
      name,
      [kept, make](Object& self) {
        if (!(self.*kept).is_valid()) self.*kept = make(self);
        return self.*kept;
      },
      nb::sig(signature));
}

void bind_prefill_chunk(nb::module_& m);

}  // namespace llm_runtime::bindings
