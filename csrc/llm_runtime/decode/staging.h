// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <span>

#include "llm_runtime/support/int_array.h"

namespace llm_runtime::decode {

/// The caller's staging buffers of one step; borrowed for the call.
struct StagedInputs {
  std::span<std::uint32_t> tokens;          // kMaxLaneSlots
  std::span<std::int32_t> positions;        // B
  std::span<std::uint32_t> rotary_indices;  // B rounded up to a tile
};

/// Fills the staging buffers: tokens with a zero tail, positions as they are (negative marks an
/// unused slot on the device), rotary indices with unused slots at 0. A placeholder token of an
/// unused slot that is no uint32 becomes 0.
void stage_decode_inputs(const IntArray& tokens, const IntArray& start_pos,
                         const StagedInputs& out);

}  // namespace llm_runtime::decode
