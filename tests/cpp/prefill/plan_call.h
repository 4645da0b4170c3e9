// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <optional>
#include <span>
#include <vector>

#include "llm_runtime/prefill/plan_prefill.h"

namespace llm_runtime::prefill {

/// A call with numbered tokens and table row r holding 1000 * (r + 1) + column; owns what a batch
/// borrows.
struct PlanCall {
  std::vector<std::int64_t> lengths;
  std::vector<std::int64_t> starts;
  std::optional<std::vector<std::int64_t>> slots;
  std::size_t columns = 256;
  PrefillLimits limits{.block_size = 32,
                       .max_batch_size = 32,
                       .max_prefill_chunk_size = 2048,
                       .supports_batched_prefill = true,
                       .disable_batched_prefill = false,
                       .max_prefill_batch_size = 8,
                       .max_actual_page_table_width = 256,
                       .canonical_page_table_width = 264,
                       .start_alignment = 32};

  template <class Plan>
  auto with(Plan function) const {
    const auto rows = lengths.size();
    std::size_t width = 1;
    for (const auto length : lengths) width = std::max(width, static_cast<std::size_t>(length));
    std::vector<std::int64_t> tokens(rows * width);
    std::iota(tokens.begin(), tokens.end(), 1);
    std::vector<std::int32_t> table(rows * columns);
    for (std::size_t row = 0; row < rows; ++row)
      std::iota(table.begin() + static_cast<std::ptrdiff_t>(row * columns),
                table.begin() + static_cast<std::ptrdiff_t>((row + 1) * columns),
                static_cast<std::int32_t>(1000 * (row + 1)));
    PrefillBatch batch{
        .tokens = IntArray::matrix(std::span<const std::int64_t>(tokens), rows, width),
        .page_table = IntArray::matrix(std::span<const std::int32_t>(table), rows, columns),
        .prompt_lens = IntArray::vector(std::span(lengths)),
        .start_pos = std::nullopt,
        .empty_slots = std::nullopt};
    if (!starts.empty()) batch.start_pos = IntArray::vector(std::span(starts));
    if (slots) batch.empty_slots = std::span<const std::int64_t>(*slots);
    return function(batch, limits);
  }

  std::vector<PrefillRequest> plan() const { return with(plan_prefill); }
  ExplainedPlan explain() const { return with(explain_prefill); }
};

}  // namespace llm_runtime::prefill
