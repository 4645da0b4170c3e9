// SPDX-License-Identifier: Apache-2.0
#include "llm_runtime/decode/page_table.h"

#include <limits>

#include "llm_runtime/paging/table_rows.h"
#include "llm_runtime/support/errors.h"

namespace llm_runtime::decode {
namespace {

void check_block_ids(const IntArray& source, std::size_t row, std::size_t count) {
  using Limits = std::numeric_limits<std::int32_t>;
  const std::size_t column = source.find_in_row(
      row, count, [](auto id) { return id < Limits::min() || id > Limits::max(); });
  if (column < count)
    throw_invalid_value(str_cat("page_table row ", row, ", column ", column, ": block id ",
                                source.at(row, column), " does not fit int32"));
}

}  // namespace

PageTable::PageTable(const IntArray& source, const RowCounts& counts, std::size_t width)
    : rows_(source.rows()), width_(width), entries_(source.rows() * width), copied_(counts) {
  for (std::size_t row = 0; row < rows_; ++row) {
    check_block_ids(source, row, counts[row]);
    paging::write_table_row(source, row, 0, counts[row], paging::kAnyBlock,
                            std::span(entries_).subspan(row * width_, width_));
  }
}

bool PageTable::equals_normalised(const IntArray& source, const RowCounts& counts) const {
  for (std::size_t row = 0; row < rows_; ++row) {
    const std::span<const std::int32_t> own = this->row(row);
    const std::size_t count = counts[row];
    if (!source.row_starts_with(row, own.first(count))) return false;
    // What was copied further than now must be zero to stand for the new zero tail.
    for (std::size_t column = count; column < copied_[row]; ++column)
      if (own[column] != paging::kAnyBlock) return false;
  }
  return true;
}

}  // namespace llm_runtime::decode
