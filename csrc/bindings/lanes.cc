// SPDX-License-Identifier: Apache-2.0
#include <nanobind/nanobind.h>

#include <cstdint>
#include <vector>

#include "bindings/arrays.h"
#include "bindings/module.h"
#include "llm_runtime/lanes/routing.h"

namespace llm_runtime::bindings {

using namespace nb::literals;

namespace {

nb::list list_of(const std::vector<std::int64_t>& values) {
  nb::list result;
  for (const auto value : values) result.append(value);
  return result;
}

}  // namespace

void bind_lanes(nb::module_& m) {
  m.def(
      "route_rows",
      [](const VectorOf<const std::int64_t>& slots, std::int64_t lane_count,
         std::int64_t lane_capacity) {
        nb::list result;
        for (const auto& lane : lanes::route_rows(slots.values(), lane_count, lane_capacity))
          result.append(nb::make_tuple(lane.lane, list_of(lane.rows), list_of(lane.slots)));
        return nb::tuple(result);
      },
      "slots"_a, nb::kw_only(), "lane_count"_a, "lane_capacity"_a,
      nb::sig("def route_rows(slots: NDArray[numpy.int64], *, lane_count: int, lane_capacity: int) "
              "-> tuple[tuple[int, list[int], list[int]], ...]"),
      "(lane, rows, slots inside the lane) for each lane that a call's rows go to. ValueError "
      "naming row and slot for a slot outside the group or taken twice. Follows chapter 30, "
      "section "
      "7.3.");
}

}  // namespace llm_runtime::bindings
