// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace llm_runtime::lanes {

/// The rows of one call that one lane serves, in call order, and their slots inside the lane.
struct LaneRows {
  std::int64_t lane = 0;
  std::vector<std::int64_t> rows;
  std::vector<std::int64_t> slots;
};

/// Assigns each row to lane `slot / lane_capacity`; lanes come in order, lanes without rows are
/// left out. Refuses sizes below 1, a slot outside the group and a slot that two rows name.
std::vector<LaneRows> route_rows(std::span<const std::int64_t> slots, std::int64_t lane_count,
                                 std::int64_t lane_capacity);

}  // namespace llm_runtime::lanes
