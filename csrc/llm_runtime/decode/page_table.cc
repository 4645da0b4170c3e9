// SPDX-License-Identifier: Apache-2.0
#include "llm_runtime/decode/page_table.h"

#include <cstring>
#include <limits>
#include <type_traits>

#include "llm_runtime/support/errors.h"

namespace llm_runtime::decode {
namespace {

bool same_ids(const std::int32_t* source, const std::int32_t* own, std::size_t count) {
  return count == 0 || std::memcmp(source, own, count * sizeof(*own)) == 0;
}

bool same_ids(const std::int64_t* source, const std::int32_t* own, std::size_t count) {
  std::size_t differences = 0;  // no early exit: the loop vectorises, and rows are usually equal
  for (std::size_t i = 0; i < count; ++i) differences += source[i] != own[i] ? 1U : 0U;
  return differences == 0;
}

template <class Id>
std::int32_t to_block_id(Id id, std::size_t row, std::size_t column) {
  if constexpr (!std::is_same_v<Id, std::int32_t>) {
    using Limits = std::numeric_limits<std::int32_t>;
    require_value(Limits::min() <= id && id <= Limits::max(), "page_table row ", row, ", column ",
                  column, ": block id ", id, " does not fit int32");
  }
  return static_cast<std::int32_t>(id);
}

}  // namespace

template <class Id>
PageTable::PageTable(Span2D<const Id> source, const RowCounts& counts, std::size_t width)
    : rows_(source.rows()), width_(width), entries_(source.rows() * width), copied_(counts) {
  for (std::size_t row = 0; row < rows_; ++row) {
    const std::span<const Id> from = source.row(row);
    std::int32_t* to = entries_.data() + row * width_;
    for (std::size_t column = 0; column < counts[row]; ++column)
      to[column] = to_block_id(from[column], row, column);
  }
}

template <class Id>
bool PageTable::equals_normalised(Span2D<const Id> source, const RowCounts& counts) const {
  for (std::size_t row = 0; row < rows_; ++row) {
    const std::span<const std::int32_t> own = this->row(row);
    const std::size_t count = counts[row];
    if (!same_ids(source.row(row).data(), own.data(), count)) return false;
    // What was copied further than now must be zero to stand for the new zero tail.
    for (std::size_t column = count; column < copied_[row]; ++column)
      if (own[column] != 0) return false;
  }
  return true;
}

template PageTable::PageTable(Span2D<const std::int32_t>, const RowCounts&, std::size_t);
template PageTable::PageTable(Span2D<const std::int64_t>, const RowCounts&, std::size_t);
template bool PageTable::equals_normalised(Span2D<const std::int32_t>, const RowCounts&) const;
template bool PageTable::equals_normalised(Span2D<const std::int64_t>, const RowCounts&) const;

}  // namespace llm_runtime::decode
