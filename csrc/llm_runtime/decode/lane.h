// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "llm_runtime/support/int_array.h"

namespace llm_runtime::decode {

/// Slots of one lane at most: the decode token vector is one tile row.
constexpr std::size_t kMaxLaneSlots = 32;
constexpr std::size_t kTileHeight = 32;

constexpr std::size_t round_up_to_tile(std::size_t rows) {
  return (rows + kTileHeight - 1) / kTileHeight * kTileHeight;
}

/// Which slots of a lane decode in this step; a slot is active when its position is not negative.
class ActiveSlots {
 public:
  static ActiveSlots of(const IntArray& start_pos) {
    ActiveSlots result;
    for (std::size_t slot = 0; slot < start_pos.columns(); ++slot)
      result.mask_ |= static_cast<std::uint32_t>(start_pos[slot] >= 0) << slot;
    return result;
  }

  bool contains(std::size_t slot) const { return ((mask_ >> slot) & 1U) != 0; }

  std::vector<std::int64_t> indices() const {
    std::vector<std::int64_t> result;
    for (std::size_t slot = 0; slot < kMaxLaneSlots; ++slot)
      if (contains(slot)) result.push_back(static_cast<std::int64_t>(slot));
    return result;
  }

  bool operator==(const ActiveSlots&) const = default;

 private:
  std::uint32_t mask_ = 0;  // bit s is slot s
};

}  // namespace llm_runtime::decode
