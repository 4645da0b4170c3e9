// SPDX-License-Identifier: Apache-2.0
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>

#include "calls.h"

namespace nb = nanobind;
using namespace nb::literals;

using In = nb::ndarray<const std::int32_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using Out = nb::ndarray<nb::numpy, std::int32_t, nb::ndim<2>>;

NB_MODULE(nanobind_calls, m) {
  m.def("empty", [] {});
  m.def("six_keywords", &bench::decide, nb::kw_only(), "first"_a, "second"_a, "third"_a.none(),
        "rows"_a, "width"_a, "last"_a);
  m.def(
      "array",
      [](const In& in) {
        auto* data = new std::int32_t[in.size()];
        bench::negate(in.data(), data, in.size());
        nb::capsule owner(data, [](void* p) noexcept { delete[] static_cast<std::int32_t*>(p); });
        return Out(data, {in.shape(0), in.shape(1)}, owner);
      },
      "table"_a.noconvert());
}
