// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>

namespace llm_runtime::decode {

/// What the caller of one decode step asks for, and the facts that decide whether it may.
struct DecodeCommands {
  bool reset_batch = false;
  std::optional<bool> reload_inputs = std::nullopt;  // no value: the runtime infers what to reload
  bool reload_page_table = false;
  bool reload_sampling_params = false;
  bool reset_sampling_state = false;
  bool has_sampling = false;       // the step samples on the device
  bool has_slot_remap = false;     // the step moves requests between slots
  bool resident_feedback = false;  // the last accepted step left its inputs on the device
};

/// Refuses every combination outside the three input modes: everything, page table only, nothing.
void validate_decode_commands(const DecodeCommands& commands);

}  // namespace llm_runtime::decode
