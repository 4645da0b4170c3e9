// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "llm_runtime/prefill/prefill_request.h"
#include "llm_runtime/support/int_array.h"

namespace llm_runtime::prefill {

/// Static policy of one lane.
struct PrefillLimits {
  std::int64_t block_size = 0;
  std::int64_t max_batch_size = 0;
  std::int64_t max_prefill_chunk_size = 0;
  bool supports_batched_prefill = false;
  bool disable_batched_prefill = false;
  std::int64_t max_prefill_batch_size = 0;
  std::optional<std::int64_t> max_actual_page_table_width;  // both widths come together
  std::optional<std::int64_t> canonical_page_table_width;
  std::int64_t start_alignment = 0;  // a multiple of the block size
};

/// One call of the planner. Everything is borrowed for the call and never written to.
struct PrefillBatch {
  IntArray tokens;      // [rows, columns]
  IntArray page_table;  // [rows, columns]
  std::optional<IntArray> prompt_lens;
  std::optional<IntArray> start_pos;
  std::optional<std::span<const std::int64_t>> empty_slots;
};

/// Refuses limits that no batch could be planned with.
void check_limits(const PrefillLimits& limits);

/// The rows of a batch with their effective starts; refuses the batch at its first bad row. A start
/// at or behind the last token falls back to the largest allowed start before it, so that every row
/// computes a token.
std::vector<PrefillRow> checked_rows(const PrefillBatch& batch, const PrefillLimits& limits);

}  // namespace llm_runtime::prefill
