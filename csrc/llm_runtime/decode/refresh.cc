// SPDX-License-Identifier: Apache-2.0
#include "llm_runtime/decode/refresh.h"

#include <utility>

#include "llm_runtime/support/errors.h"

namespace llm_runtime::decode {
namespace {

RefreshDecision inferred(const RefreshPolicy& policy, const ReplayState& state) {
  require_value(!state.reload_page_table, "reload_page_table needs an explicit reload_inputs");
  require_value(!state.reload_sampling_params,
                "reload_sampling_params needs an explicit reload_inputs");
  const bool full = (policy.full_on_batch_reset && state.reset_batch) ||
                    (policy.full_on_graph_switch && state.switched) ||
                    (policy.full_without_device_feedback && !state.has_device_feedback());
  return {
      .full = full,
      .page_table = policy.refresh_page_table_on_change && state.page_table_changed,
      .fields_to_refresh = policy.every_replay,
  };
}

RefreshDecision commanded(bool reload_inputs, const ReplayState& state) {
  require_value(
      !(reload_inputs && state.reload_page_table),
      "reload_inputs and reload_page_table exclude each other: the first covers the second");
  require_state(reload_inputs || !state.switched,
                "reload_inputs=False, but another trace was replayed last: this trace has no "
                "resident inputs");
  require_state(
      reload_inputs || state.has_device_feedback(),
      "reload_inputs=False, but the step has no device feedback: resident inputs would be stale");
  InputNames names;
  if (state.reload_sampling_params) names.names.emplace_back("sampling");
  return {
      .full = reload_inputs,
      .page_table = state.reload_page_table,
      .fields_to_refresh = std::move(names),
  };
}

}  // namespace

RefreshDecision decide_refresh(const RefreshPolicy& policy, const ReplayState& state) {
  return state.reload_inputs.has_value() ? commanded(*state.reload_inputs, state)
                                         : inferred(policy, state);
}

}  // namespace llm_runtime::decode
