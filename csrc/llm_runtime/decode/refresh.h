// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <tuple>

#include "llm_runtime/decode/input_names.h"
#include "llm_runtime/support/fields.h"

namespace llm_runtime::decode {

/// When a replay refreshes which persistent inputs, if the caller leaves it to the runtime.
struct RefreshPolicy {
  InputNames every_replay = {};
  bool full_on_batch_reset = true;
  bool full_on_graph_switch = true;
  bool full_without_device_feedback = true;
  bool refresh_page_table_on_change = true;

  static constexpr auto fields() {
    return std::tuple{
        field("every_replay", &RefreshPolicy::every_replay),
        field("full_on_batch_reset", &RefreshPolicy::full_on_batch_reset),
        field("full_on_graph_switch", &RefreshPolicy::full_on_graph_switch),
        field("full_without_device_feedback", &RefreshPolicy::full_without_device_feedback),
        field("refresh_page_table_on_change", &RefreshPolicy::refresh_page_table_on_change)};
  }
  bool operator==(const RefreshPolicy&) const = default;
};

/// What one replay copies to the device before it runs; `full` covers `page_table`.
struct RefreshDecision {
  bool full = false;
  bool page_table = false;
  InputNames fields_to_refresh = {};

  static constexpr auto fields() {
    return std::tuple{field("full", &RefreshDecision::full),
                      field("page_table", &RefreshDecision::page_table),
                      field("fields", &RefreshDecision::fields_to_refresh)};
  }
  bool operator==(const RefreshDecision&) const = default;
};

/// The state of a replay that the decision depends on.
struct ReplayState {
  bool switched = false;  // the last replayed trace was another one, or there was none
  bool reset_batch = false;
  bool device_feedback_enabled = false;
  bool feedback_compatible = false;
  bool page_table_changed = false;
  std::optional<bool> reload_inputs = std::nullopt;  // no value: the policy decides
  bool reload_page_table = false;
  bool reload_sampling_params = false;

  bool has_device_feedback() const { return device_feedback_enabled && feedback_compatible; }
};

/// Inferred from the policy, or exactly the explicit commands when `reload_inputs` has a value.
RefreshDecision decide_refresh(const RefreshPolicy& policy, const ReplayState& state);

}  // namespace llm_runtime::decode
