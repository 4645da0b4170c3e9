// SPDX-License-Identifier: Apache-2.0
#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "calls.h"

namespace py = pybind11;
using namespace py::literals;

using Table = py::array_t<std::int32_t, py::array::c_style>;

PYBIND11_MODULE(pybind11_calls, m) {
  m.def("empty", [] {});
  m.def("six_keywords", &bench::decide, py::kw_only(), "first"_a, "second"_a, "third"_a.none(true),
        "rows"_a, "width"_a, "last"_a);
  m.def(
      "array",
      [](const Table& in) {
        auto* data = new std::int32_t[static_cast<std::size_t>(in.size())];
        bench::negate(in.data(), data, static_cast<std::size_t>(in.size()));
        py::capsule owner(data, [](void* p) { delete[] static_cast<std::int32_t*>(p); });
        return Table({in.shape(0), in.shape(1)}, data, owner);
      },
      py::arg("table").noconvert());
}
