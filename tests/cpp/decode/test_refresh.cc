// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "llm_runtime/decode/refresh.h"
#include "llm_runtime/support/errors.h"

namespace llm_runtime::decode {
namespace {

constexpr bool bit(unsigned value, unsigned index) { return ((value >> index) & 1U) != 0; }

// Every combination of the three legs, their three policy flags, the two halves of feedback and the
// page table.
TEST(DecideRefresh, InferredModeIsTheGatedDisjunction) {
  for (unsigned bits = 0; bits < 512; ++bits) {
    const RefreshPolicy policy{.every_replay = {{"position", "sampling"}},
                               .full_on_batch_reset = bit(bits, 0),
                               .full_on_graph_switch = bit(bits, 1),
                               .full_without_device_feedback = bit(bits, 2),
                               .refresh_page_table_on_change = bit(bits, 3)};
    const ReplayState state{.switched = bit(bits, 4),
                            .reset_batch = bit(bits, 5),
                            .device_feedback_enabled = bit(bits, 6),
                            .feedback_compatible = bit(bits, 7),
                            .page_table_changed = bit(bits, 8)};
    int reasons = 0;
    if (bit(bits, 0) && bit(bits, 5)) ++reasons;
    if (bit(bits, 1) && bit(bits, 4)) ++reasons;
    if (bit(bits, 2) && !(bit(bits, 6) && bit(bits, 7))) ++reasons;
    const RefreshDecision wanted{
        reasons > 0, bit(bits, 3) && bit(bits, 8), {{"position", "sampling"}}};
    EXPECT_EQ(decide_refresh(policy, state), wanted) << "combination " << bits;
  }
}

TEST(DecideRefresh, SteadyStateWithFeedbackCopiesNothing) {
  const ReplayState steady{.device_feedback_enabled = true, .feedback_compatible = true};
  EXPECT_EQ(decide_refresh({}, steady), (RefreshDecision{false, false, {}}));
}

TEST(DecideRefresh, ExplicitModeFollowsTheCommandsAndIgnoresThePolicy) {
  const RefreshPolicy policy{.every_replay = {{"position"}}};
  ReplayState state{.reset_batch = true,
                    .device_feedback_enabled = true,
                    .feedback_compatible = true,
                    .page_table_changed = true,
                    .reload_inputs = false};
  EXPECT_EQ(decide_refresh(policy, state), (RefreshDecision{false, false, {}}));
  state.reload_page_table = true;
  EXPECT_EQ(decide_refresh(policy, state), (RefreshDecision{false, true, {}}));
  state.reload_sampling_params = true;
  EXPECT_EQ(decide_refresh(policy, state), (RefreshDecision{false, true, {{"sampling"}}}));
  const ReplayState full{.switched = true, .reload_inputs = true};
  EXPECT_EQ(decide_refresh(policy, full), (RefreshDecision{true, false, {}}));
}

TEST(DecideRefresh, ResidentInputsNeedTheSameTraceAndFeedback) {
  for (unsigned bits = 0; bits < 8; ++bits) {
    const ReplayState state{.switched = bit(bits, 0),
                            .device_feedback_enabled = bit(bits, 1),
                            .feedback_compatible = bit(bits, 2),
                            .reload_inputs = false};
    if (bits == 6)
      EXPECT_NO_THROW(decide_refresh({}, state));
    else
      EXPECT_THROW(decide_refresh({}, state), IllegalState) << "combination " << bits;
  }
}

TEST(DecideRefresh, RefusesContradictingCommands) {
  EXPECT_THROW(decide_refresh({}, {.reload_inputs = true, .reload_page_table = true}),
               InvalidValue);
  EXPECT_THROW(decide_refresh({}, {.reload_page_table = true}), InvalidValue);
  EXPECT_THROW(decide_refresh({}, {.reload_sampling_params = true}), InvalidValue);
}

TEST(RefreshPolicy, HashesItsNames) {
  EXPECT_EQ(hash_fields(RefreshPolicy{.every_replay = {{"a", "b"}}}),
            hash_fields(RefreshPolicy{.every_replay = {{"a", "b"}}}));
  EXPECT_NE(hash_fields(RefreshPolicy{.every_replay = {{"a", "b"}}}),
            hash_fields(RefreshPolicy{.every_replay = {{"b", "a"}}}));
}

}  // namespace
}  // namespace llm_runtime::decode
