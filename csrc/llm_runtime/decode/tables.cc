// SPDX-License-Identifier: Apache-2.0
#include "llm_runtime/decode/tables.h"

#include <algorithm>
#include <utility>

#include "llm_runtime/support/errors.h"

namespace llm_runtime::decode {
namespace {

enum class TableSource : std::uint8_t {
  kUsedPrefixes,
  kWholeRows,
  kWholeRowsAnyPosition,
  kSubmitted,
};

TableSource table_source(const TableCommands& commands) {
  if (!commands.reload_inputs.has_value()) {
    require_value(!commands.reload_page_table, "reload_page_table needs an explicit reload_inputs");
    return TableSource::kUsedPrefixes;
  }
  if (*commands.reload_inputs) {
    require_value(
        !commands.reload_page_table,
        "reload_inputs and reload_page_table exclude each other: the first covers the second");
    return TableSource::kWholeRows;
  }
  return commands.reload_page_table ? TableSource::kWholeRowsAnyPosition : TableSource::kSubmitted;
}

std::size_t checked_lane_capacity(std::int64_t lane_capacity) {
  require_value(0 < lane_capacity && std::cmp_less_equal(lane_capacity, kMaxLaneSlots),
                "lane_capacity is ", lane_capacity, "; token padding supports 1 to ", kMaxLaneSlots,
                " slots");
  return static_cast<std::size_t>(lane_capacity);
}

DecodeGeometry checked(const DecodeGeometry& geometry) {
  require_value(geometry.block_size > 0, "block_size must be positive, not ", geometry.block_size);
  require_value(geometry.raw_capacity_width > 0, "raw_capacity_width must be positive, not ",
                geometry.raw_capacity_width);
  require_value(geometry.decode_width >= geometry.raw_capacity_width, "decode_width ",
                geometry.decode_width, " is below raw_capacity_width ",
                geometry.raw_capacity_width);
  return geometry;
}

// Blocks that hold position 0 to `position`.
std::int64_t used_blocks(std::int64_t position, std::int64_t block_size) {
  return position < 0 ? 0 : position / block_size + 1;
}

void check_row(std::size_t row, std::int64_t position, std::int64_t used, std::int64_t width,
               const DecodeGeometry& geometry) {
  require_value(used <= geometry.raw_capacity_width, "row ", row, ": position ", position,
                " exceeds the paged-KV capacity of ", geometry.raw_capacity_width, " blocks of ",
                geometry.block_size, " tokens");
  require_value(used <= width, "row ", row, ": position ", position, " needs ", used,
                " blocks, but the page table is too narrow: it has ", width, " columns");
}

RowCounts used_prefixes(const IntArray& start_pos, std::int64_t width, bool device_feedback,
                        const DecodeGeometry& geometry) {
  RowCounts counts{};
  for (std::size_t row = 0; row < start_pos.columns(); ++row) {
    const std::int64_t position = start_pos[row];
    std::int64_t count = used_blocks(position, geometry.block_size);
    check_row(row, position, count, width, geometry);
    // Under feedback the device may be one position ahead of the host, so at a block's end the next
    // block is needed.
    if (device_feedback && position >= 0 &&
        position % geometry.block_size == geometry.block_size - 1)
      count = std::min({count + 1, geometry.raw_capacity_width, width});
    counts[row] = static_cast<std::size_t>(count);
  }
  return counts;
}

RowCounts whole_rows(const IntArray& start_pos, std::int64_t width, bool check_positions,
                     const DecodeGeometry& geometry) {
  RowCounts counts{};
  for (std::size_t row = 0; row < start_pos.columns(); ++row) {
    const std::int64_t position = start_pos[row];
    if (check_positions)
      check_row(row, position, used_blocks(position, geometry.block_size), width, geometry);
    counts[row] = static_cast<std::size_t>(std::min(width, geometry.raw_capacity_width));
  }
  return counts;
}

}  // namespace

DecodeTables::DecodeTables(std::int64_t lane_capacity, const DecodeGeometry& geometry)
    : lane_capacity_(checked_lane_capacity(lane_capacity)), geometry_(checked(geometry)) {}

void DecodeTables::configure(const DecodeGeometry& geometry) {
  const DecodeGeometry wanted = checked(geometry);
  const std::scoped_lock lock(mutex_);
  if (wanted == geometry_) return;
  geometry_ = wanted;
  current_ = submitted_ = nullptr;
}

DecodeBatch DecodeTables::prepare(const IntArray& start_pos, const IntArray& page_table,
                                  const TableCommands& commands) {
  require_rank(start_pos, 1, "start_pos");
  require_rank(page_table, 2, "page_table");
  require_value(start_pos.columns() == page_table.rows(), "batches must match: start_pos has ",
                start_pos.columns(), " rows, page_table ", page_table.rows());
  require_value(start_pos.columns() == lane_capacity_, "the batch of ", start_pos.columns(),
                " rows must equal lane capacity ", lane_capacity_,
                "; send unused slots with a negative position");
  const TableSource source = table_source(commands);
  const ActiveSlots active = ActiveSlots::of(start_pos);
  const auto width = static_cast<std::int64_t>(page_table.columns());

  const std::scoped_lock lock(mutex_);
  if (source == TableSource::kSubmitted) {
    require_state(
        submitted_ != nullptr,
        "reload_inputs=False reuses the submitted page table, but no step was submitted yet");
    return {.page_table = submitted_, .page_table_changed = false, .active = active};
  }
  const RowCounts counts =
      source == TableSource::kUsedPrefixes
          ? used_prefixes(start_pos, width, commands.device_feedback, geometry_)
          : whole_rows(start_pos, width, source == TableSource::kWholeRows, geometry_);
  if (current_ == nullptr || !current_->equals_normalised(page_table, counts))
    current_ = std::make_shared<const PageTable>(page_table, counts,
                                                 static_cast<std::size_t>(geometry_.decode_width));
  const bool same = current_ == submitted_ || (submitted_ != nullptr && *current_ == *submitted_);
  return {.page_table = current_, .page_table_changed = !same, .active = active};
}

void DecodeTables::note_submitted(const DecodeBatch& batch) {
  const std::scoped_lock lock(mutex_);
  require_value(batch.page_table->rows() == lane_capacity_ &&
                    std::cmp_equal(batch.page_table->width(), geometry_.decode_width),
                "the batch has a page table of ", batch.page_table->rows(), " x ",
                batch.page_table->width(), " entries, the layout asks for ", lane_capacity_, " x ",
                geometry_.decode_width);
  submitted_ = batch.page_table;
}

void DecodeTables::reset() {
  const std::scoped_lock lock(mutex_);
  current_ = submitted_ = nullptr;
}

}  // namespace llm_runtime::decode
