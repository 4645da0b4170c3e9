// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "llm_runtime/decode/lane.h"
#include "llm_runtime/support/int_array.h"

namespace llm_runtime::decode {

/// Entries to take from each row of the caller's table.
using RowCounts = std::array<std::size_t, kMaxLaneSlots>;

/// A normalised decode page table: int32 [rows, width], a copied prefix per row and zeros behind
/// it. Owns its entries and never changes, so that it can be shared between a step, the cache and
/// the last submission.
class PageTable {
 public:
  /// Copies `counts[row]` entries of each row of `source`; a block id that is no int32 is refused.
  PageTable(const IntArray& source, const RowCounts& counts, std::size_t width);

  std::size_t rows() const { return rows_; }
  std::size_t width() const { return width_; }
  std::span<const std::int32_t> row(std::size_t index) const {
    return {entries_.data() + index * width_, width_};
  }
  const std::int32_t* data() const { return entries_.data(); }

  /// Whether normalising `source` to this width would give these entries; reads only the counted
  /// prefixes. `source` has as many rows as this table.
  bool equals_normalised(const IntArray& source, const RowCounts& counts) const;

  bool operator==(const PageTable& other) const {
    return rows_ == other.rows_ && width_ == other.width_ && entries_ == other.entries_;
  }

 private:
  std::size_t rows_;
  std::size_t width_;
  std::vector<std::int32_t> entries_;
  RowCounts copied_;
};

}  // namespace llm_runtime::decode
