// SPDX-License-Identifier: Apache-2.0
// nanobind as the project uses it: arrays by NumPy's own C interface.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>

#define NPY_NO_DEPRECATED_API NPY_1_7_API_VERSION
#include <numpy/arrayobject.h>

#include "calls.h"

namespace nb = nanobind;
using namespace nb::literals;

NB_MODULE(numpy_calls, m) {
  if (PyArray_ImportNumPyAPI() != 0) throw nb::python_error();
  m.def("empty", [] {});
  m.def("six_keywords", &bench::decide, nb::kw_only(), "first"_a, "second"_a, "third"_a.none(),
        "rows"_a, "width"_a, "last"_a);
  m.def("array", [](nb::handle table) {
    if (!PyArray_Check(table.ptr())) throw nb::type_error("not an array");
    auto* in = reinterpret_cast<PyArrayObject*>(table.ptr());
    if (PyArray_TYPE(in) != NPY_INT32 || PyArray_NDIM(in) != 2 || !PyArray_IS_C_CONTIGUOUS(in))
      throw nb::type_error("not a contiguous int32 table");
    auto out = nb::steal(PyArray_SimpleNew(2, PyArray_DIMS(in), NPY_INT32));
    if (!out.is_valid()) throw nb::python_error();
    bench::negate(static_cast<const std::int32_t*>(PyArray_DATA(in)),
                  static_cast<std::int32_t*>(
                      PyArray_DATA(reinterpret_cast<PyArrayObject*>(out.ptr()))),
                  static_cast<std::size_t>(PyArray_SIZE(in)));
    return out;
  });
}
