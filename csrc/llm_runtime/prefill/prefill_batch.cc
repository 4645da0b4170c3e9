// SPDX-License-Identifier: Apache-2.0
#include "llm_runtime/prefill/prefill_batch.h"

#include <algorithm>
#include <utility>

#include "llm_runtime/paging/page_table_layout.h"
#include "llm_runtime/prefill/prefill_lengths.h"
#include "llm_runtime/support/errors.h"
#include "llm_runtime/support/integers.h"

namespace llm_runtime::prefill {

namespace {

void check_vector(const std::optional<IntArray>& values, std::size_t rows, const char* name) {
  if (!values) return;
  require_rank(*values, 1, name);
  require_value(values->columns() == rows, name, " has ", values->columns(), " entries for ", rows,
                " rows");
}

void check_slots(const PrefillBatch& batch, std::int64_t max_batch_size) {
  const auto rows = batch.tokens.rows();
  if (!batch.empty_slots) {
    require_value(std::cmp_less_equal(rows, max_batch_size), "a batch of ", rows,
                  " rows does not fit into the ", max_batch_size, " slots of the lane");
    return;
  }
  const auto slots = *batch.empty_slots;
  require_value(slots.size() == rows, "empty_slots has ", slots.size(), " entries for ", rows,
                " rows");
  for (std::size_t row = 0; row < rows; ++row)
    require_value(slots[row] >= 0 && slots[row] < max_batch_size, "row ", row, ": slot ",
                  slots[row], " is outside the lane's slots 0 to ", max_batch_size - 1);
  std::vector<std::int64_t> ordered(slots.begin(), slots.end());
  std::ranges::sort(ordered);
  const auto twice = std::ranges::adjacent_find(ordered);
  require_value(twice == ordered.end(), "empty_slots gives slot ",
                twice == ordered.end() ? 0 : *twice, " to more than one row");
}

void check_widths(const PrefillLimits& limits) {
  const auto& raw = limits.max_actual_page_table_width;
  const auto& canonical = limits.canonical_page_table_width;
  require_value(raw.has_value() == canonical.has_value(),
                "max_actual_page_table_width and canonical_page_table_width come together");
  if (!raw || !canonical) return;
  require_value(*raw > 0 && *canonical >= *raw && *canonical <= kMaxCount,
                "page-table widths must satisfy 0 < max_actual_page_table_width <= "
                "canonical_page_table_width, not ",
                *raw, " and ", *canonical);
  require_value(*canonical % paging::kWidthAlignment == 0, "canonical_page_table_width ",
                *canonical, " is not a multiple of ", paging::kWidthAlignment);
}

std::int64_t effective_start(std::int64_t cached, std::int64_t length, std::int64_t alignment) {
  const auto start = std::min(cached, length - 1);
  return start - start % alignment;
}

PrefillRow checked_row(const PrefillBatch& batch, const PrefillLimits& limits, std::size_t row) {
  const auto token_width = static_cast<std::int64_t>(batch.tokens.columns());
  const auto length = batch.prompt_lens ? (*batch.prompt_lens)[row] : token_width;
  const auto cached = batch.start_pos ? (*batch.start_pos)[row] : 0;
  require_value(cached >= 0 && length >= 0 && cached <= length && length <= token_width,
                "invalid lengths in row ", row, ": start ", cached, ", prompt length ", length,
                ", token width ", token_width);
  require_value(length > 0, "row ", row, ": the prompt is empty");
  require_value(cached % limits.block_size == 0, "row ", row, ": start ", cached,
                " must be block aligned, a multiple of block_size ", limits.block_size);
  const auto slot = batch.empty_slots ? (*batch.empty_slots)[row] : static_cast<std::int64_t>(row);
  return {
      .source_row = static_cast<std::int64_t>(row),
      .slot = slot,
      .prompt_length = length,
      .cached_tokens = effective_start(cached, length, limits.start_alignment),
      .last_token_index = length - 1,
  };
}

}  // namespace

void check_limits(const PrefillLimits& limits) {
  require_positive(limits.block_size, "block_size");
  require_positive(limits.max_batch_size, "max_batch_size");
  validate_prefill_chunk_size(limits.max_prefill_chunk_size);
  require_positive(limits.max_prefill_batch_size, "max_prefill_batch_size");
  require_positive(limits.start_alignment, "start_alignment");
  require_value(limits.start_alignment % limits.block_size == 0, "start_alignment ",
                limits.start_alignment, " is not a multiple of block_size ", limits.block_size);
}

std::vector<PrefillRow> checked_rows(const PrefillBatch& batch, const PrefillLimits& limits) {
  require_rank(batch.tokens, 2, "tokens");
  require_rank(batch.page_table, 2, "page_table");
  const auto rows = batch.tokens.rows();
  require_value(batch.page_table.rows() == rows, "page_table has ", batch.page_table.rows(),
                " rows for ", rows, " rows of tokens");
  check_vector(batch.prompt_lens, rows, "prompt_lens");
  check_vector(batch.start_pos, rows, "start_pos");
  check_slots(batch, limits.max_batch_size);
  check_widths(limits);
  std::vector<PrefillRow> result;
  result.reserve(rows);
  for (std::size_t row = 0; row < rows; ++row) result.push_back(checked_row(batch, limits, row));
  return result;
}

}  // namespace llm_runtime::prefill
