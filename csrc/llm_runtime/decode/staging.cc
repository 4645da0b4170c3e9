// SPDX-License-Identifier: Apache-2.0
#include "llm_runtime/decode/staging.h"

#include <algorithm>
#include <cstddef>
#include <limits>

#include "llm_runtime/decode/lane.h"
#include "llm_runtime/support/errors.h"

namespace llm_runtime::decode {
namespace {

void check_sizes(std::size_t rows, std::size_t positions, const StagedInputs& out) {
  require_value(rows == positions, "batches must match: tokens has ", rows, " rows, start_pos ",
                positions);
  require_value(0 < rows && rows <= kMaxLaneSlots, "tokens has ", rows, " rows; a lane has 1 to ",
                kMaxLaneSlots, " slots");
  require_value(out.tokens.size() == kMaxLaneSlots, "out_tokens has ", out.tokens.size(),
                " entries, not ", kMaxLaneSlots);
  require_value(out.positions.size() == rows, "out_positions has ", out.positions.size(),
                " entries, not ", rows);
  require_value(out.rotary_indices.size() == round_up_to_tile(rows), "out_rotary has ",
                out.rotary_indices.size(), " entries, not ", round_up_to_tile(rows));
}

constexpr std::int64_t kMaxToken = std::numeric_limits<std::uint32_t>::max();
constexpr std::int64_t kMinPosition = std::numeric_limits<std::int32_t>::min();
constexpr std::int64_t kMaxPosition = std::numeric_limits<std::int32_t>::max();

bool is_token(std::int64_t token) { return 0 <= token && token <= kMaxToken; }

void check_row(std::size_t row, std::int64_t token, std::int64_t position) {
  if (position < 0) return;
  require_value(is_token(token), "row ", row, ": token ", token, " is outside 0 to ", kMaxToken);
  require_value(position <= kMaxPosition, "row ", row, ": position ", position, " is above ",
                kMaxPosition);
}

}  // namespace

void stage_decode_inputs(const IntArray& tokens, const IntArray& start_pos,
                         const StagedInputs& out) {
  require_rank(tokens, 1, "tokens");
  require_rank(start_pos, 1, "start_pos");
  check_sizes(tokens.columns(), start_pos.columns(), out);
  for (std::size_t row = 0; row < tokens.columns(); ++row)
    check_row(row, tokens[row], start_pos[row]);

  std::ranges::fill(out.tokens, 0U);
  std::ranges::fill(out.rotary_indices, 0U);
  for (std::size_t row = 0; row < tokens.columns(); ++row) {
    const std::int64_t position = start_pos[row];
    out.positions[row] = static_cast<std::int32_t>(std::max(position, kMinPosition));
    if (is_token(tokens[row])) out.tokens[row] = static_cast<std::uint32_t>(tokens[row]);
    if (position > 0) out.rotary_indices[row] = static_cast<std::uint32_t>(position);
  }
}

}  // namespace llm_runtime::decode
