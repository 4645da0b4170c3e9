// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>

#include "llm_runtime/decode/lane.h"
#include "llm_runtime/decode/page_table.h"
#include "llm_runtime/support/int_array.h"

namespace llm_runtime::decode {

/// The part of the page-table layout that decode uses; widths count blocks.
struct DecodeGeometry {
  std::int64_t block_size;
  std::int64_t raw_capacity_width;
  std::int64_t decode_width;
  bool operator==(const DecodeGeometry&) const = default;
};

/// How one step asks for its page table.
struct TableCommands {
  bool device_feedback = false;
  std::optional<bool> reload_inputs = std::nullopt;  // no value: changes are inferred
  bool reload_page_table = false;
};

/// One prepared step. Shares its table with the `DecodeTables` that made it.
struct DecodeBatch {
  std::shared_ptr<const PageTable> page_table;
  bool page_table_changed;  // against the last noted submission
  ActiveSlots active;
};

/// Normalises the page table of each decode step and tells whether it differs from the last
/// submitted one. Keeps copies only, never the caller's memory: an edit in place between two steps
/// is seen.
class DecodeTables {
 public:
  DecodeTables(std::int64_t lane_capacity, const DecodeGeometry& geometry);
  DecodeTables(const DecodeTables&) = delete;
  DecodeTables& operator=(const DecodeTables&) = delete;
  ~DecodeTables() = default;

  /// Installs another layout; a change forgets the cached and the submitted table.
  void configure(const DecodeGeometry& geometry);

  /// Checks the step and returns its table; the same table object while the normalised content
  /// stays the same.
  DecodeBatch prepare(const IntArray& start_pos, const IntArray& page_table,
                      const TableCommands& commands);

  /// Remembers the table of a step that reached the device.
  void note_submitted(const DecodeBatch& batch);

  /// Forgets the cached and the submitted table.
  void reset();

  std::size_t lane_capacity() const { return lane_capacity_; }

 private:
  std::mutex mutex_;
  const std::size_t lane_capacity_;
  DecodeGeometry geometry_;
  std::shared_ptr<const PageTable> current_;
  std::shared_ptr<const PageTable> submitted_;
};

}  // namespace llm_runtime::decode
