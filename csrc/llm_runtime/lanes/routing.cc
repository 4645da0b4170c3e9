// SPDX-License-Identifier: Apache-2.0
#include "llm_runtime/lanes/routing.h"

#include <cstddef>

#include "llm_runtime/support/errors.h"
#include "llm_runtime/support/integers.h"

namespace llm_runtime::lanes {

namespace {

constexpr std::int64_t kNobody = -1;

void check_slots(std::span<const std::int64_t> slots, std::int64_t lane_count,
                 std::int64_t lane_capacity) {
  require_positive(lane_count, "lane_count");
  require_positive(lane_capacity, "lane_capacity");
  const auto total = lane_count * lane_capacity;
  for (std::size_t row = 0; row < slots.size(); ++row)
    require_value(slots[row] >= 0 && slots[row] < total, "row ", row, ": slot ", slots[row],
                  " is outside the group's slots [0, ", total, ") (", lane_count, " lanes of ",
                  lane_capacity, ")");
  std::vector<std::int64_t> row_of_slot(static_cast<std::size_t>(total), kNobody);
  for (std::size_t row = 0; row < slots.size(); ++row) {
    auto& first = row_of_slot[static_cast<std::size_t>(slots[row])];
    require_value(first == kNobody, "rows ", first, " and ", row, " both name slot ", slots[row],
                  "; a slot serves one row");
    first = static_cast<std::int64_t>(row);
  }
}

}  // namespace

std::vector<LaneRows> route_rows(std::span<const std::int64_t> slots, std::int64_t lane_count,
                                 std::int64_t lane_capacity) {
  check_slots(slots, lane_count, lane_capacity);
  std::vector<LaneRows> lanes(static_cast<std::size_t>(lane_count));
  for (std::size_t row = 0; row < slots.size(); ++row) {
    LaneRows& lane = lanes[static_cast<std::size_t>(slots[row] / lane_capacity)];
    lane.rows.push_back(static_cast<std::int64_t>(row));
    lane.slots.push_back(slots[row] % lane_capacity);
  }
  for (std::size_t index = 0; index < lanes.size(); ++index)
    lanes[index].lane = static_cast<std::int64_t>(index);
  std::erase_if(lanes, [](const LaneRows& lane) { return lane.rows.empty(); });
  return lanes;
}

}  // namespace llm_runtime::lanes
