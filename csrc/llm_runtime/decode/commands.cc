// SPDX-License-Identifier: Apache-2.0
#include "llm_runtime/decode/commands.h"

#include "llm_runtime/support/errors.h"

namespace llm_runtime::decode {
namespace {

void refuse(bool refused, const char* text) { require_value(!refused, text); }

}  // namespace

void validate_decode_commands(const DecodeCommands& commands) {
  const bool inferred = !commands.reload_inputs.has_value();
  const bool everything = commands.reload_inputs.value_or(false);
  const bool resident = !inferred && !everything;

  refuse(inferred && commands.reload_page_table,
         "reload_page_table needs an explicit reload_inputs");
  refuse(inferred && commands.reload_sampling_params,
         "reload_sampling_params needs an explicit reload_inputs");
  refuse(inferred && commands.reset_sampling_state,
         "reset_sampling_state needs an explicit reload_inputs");
  refuse(!inferred && commands.reset_batch,
         "reset_batch belongs to inferred reloading and cannot be combined with an explicit "
         "reload_inputs");
  refuse(everything && commands.reload_page_table,
         "reload_inputs and reload_page_table exclude each other: the first covers the second");
  refuse(commands.reset_sampling_state && !everything,
         "reset_sampling_state needs reload_inputs=True");
  refuse(resident && !commands.has_sampling,
         "reload_inputs=False needs sampling_params: a step sampled on the host brings its tokens");
  refuse(resident && !commands.resident_feedback,
         "reload_inputs=False needs inputs on the device, but the last accepted step had no device "
         "feedback");
  refuse(commands.reload_sampling_params && !commands.has_sampling,
         "reload_sampling_params needs sampling_params");
  refuse(commands.reset_sampling_state && !commands.has_sampling,
         "reset_sampling_state needs sampling_params");
  refuse(resident && commands.has_slot_remap,
         "slot_remap needs reload_inputs=True: resident inputs stay in their slots");
}

}  // namespace llm_runtime::decode
