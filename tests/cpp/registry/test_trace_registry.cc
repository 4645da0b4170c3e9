// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "llm_runtime/registry/trace_registry.h"
#include "llm_runtime/support/errors.h"
#include "registry/decode_keys.h"

namespace llm_runtime::registry {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::ThrowsMessage;

TEST(TraceRegistry, KeepsKeyAndOperation) {
  TraceRegistry registry;
  EXPECT_EQ(registry.add(prefill_key(128), Operation::kPrefill), TraceId{0});
  EXPECT_EQ(registry.add(decode_key(32, 64), Operation::kDecode), TraceId{1});
  EXPECT_EQ(registry.find(decode_key(32, 64)), TraceId{1});
  EXPECT_EQ(registry.find(decode_key(32, 8)), kNoTrace);
  EXPECT_EQ(registry.operation(TraceId{0}), Operation::kPrefill);
  EXPECT_EQ(registry.key(TraceId{0}), prefill_key(128));
  EXPECT_EQ(registry.size(), 2U);
  EXPECT_THROW(registry.add(prefill_key(128), Operation::kPrefill), IllegalState);
  EXPECT_THROW(registry.operation(TraceId{2}), InvalidValue);
  EXPECT_THROW(registry.key(kNoTrace), InvalidValue);
}

TEST(TraceRegistry, CapturesDecodeBeforePrefillInRegistrationOrder) {
  TraceRegistry registry;
  registry.add(prefill_key(128), Operation::kPrefill);
  registry.add(decode_key(1, 1), Operation::kDecode);
  registry.add(prefill_key(1024), Operation::kPrefill);
  registry.add(decode_key(1, 2), Operation::kDecode);
  EXPECT_THAT(registry.capture_order(),
              ElementsAre(TraceId{1}, TraceId{3}, TraceId{0}, TraceId{2}));
}

TEST(TraceRegistry, AProgramReplaysOneTraceAndATraceServesManyPrograms) {
  TraceRegistry registry;
  const TraceId first = registry.add(prefill_key(128), Operation::kPrefill);
  const TraceId second = registry.add(prefill_key(1024), Operation::kPrefill);
  registry.associate(ProgramId{4}, first);
  registry.associate(ProgramId{2}, first);
  registry.associate(ProgramId{4}, first);
  EXPECT_THAT([&] { registry.associate(ProgramId{4}, second); },
              ThrowsMessage<InvalidValue>(
                  AllOf(HasSubstr("program 4"), HasSubstr("trace 0"), HasSubstr("trace 1"))));
  EXPECT_EQ(registry.association_count(), 2U);
  EXPECT_THAT(registry.programs_of_trace(first), ElementsAre(ProgramId{4}, ProgramId{2}));
  EXPECT_THAT(registry.programs_of_trace(second), IsEmpty());
  EXPECT_EQ(registry.trace_of_program(ProgramId{2}), first);
  EXPECT_EQ(registry.trace_of_program(ProgramId{3}), kNoTrace);
  EXPECT_THROW(registry.associate(ProgramId{0}, TraceId{9}), InvalidValue);
  EXPECT_THROW(registry.associate(kNoProgram, first), InvalidValue);
  EXPECT_EQ(registry.association_count(), 2U);
}

TEST(TraceRegistry, PreflightFindsTheFirstProgramWithoutACapturedTrace) {
  TraceRegistry registry;
  const TraceId captured = registry.add(prefill_key(128), Operation::kPrefill);
  const TraceId pending = registry.add(prefill_key(1024), Operation::kPrefill);
  registry.associate(ProgramId{0}, captured);
  registry.associate(ProgramId{1}, pending);
  registry.set_captured(captured, true);
  const auto preflight = [&](std::vector<ProgramId> ids) { return registry.preflight(ids); };
  EXPECT_EQ(preflight({}), std::nullopt);
  EXPECT_EQ(preflight({ProgramId{0}, ProgramId{0}}), std::nullopt);
  EXPECT_EQ(preflight({ProgramId{0}, ProgramId{1}}), 1U);
  EXPECT_EQ(preflight({ProgramId{0}, ProgramId{0}, ProgramId{7}}), 2U);
  EXPECT_EQ(preflight({kNoProgram}), 0U);
  registry.set_captured(captured, false);
  EXPECT_EQ(preflight({ProgramId{0}}), 0U);
}

TEST(TraceRegistry, CountsReplaysAndKnowsASwitch) {
  TraceRegistry registry;
  const TraceId decode = registry.add(decode_key(1, 1), Operation::kDecode);
  const TraceId prefill = registry.add(prefill_key(128), Operation::kPrefill);
  registry.set_captured(decode, true);
  registry.set_captured(prefill, true);
  EXPECT_TRUE(registry.is_switch(decode));
  registry.note_replay(decode);
  EXPECT_FALSE(registry.is_switch(decode));
  registry.note_replay(decode);
  registry.note_replay(prefill);
  EXPECT_TRUE(registry.is_switch(decode));
  EXPECT_EQ(registry.last_replayed(), prefill);
  EXPECT_EQ(registry.replay_count(Operation::kDecode), 2);
  EXPECT_EQ(registry.replay_count(Operation::kPrefill), 1);
  registry.forget_last();
  EXPECT_TRUE(registry.is_switch(prefill));
  EXPECT_EQ(registry.last_replayed(), kNoTrace);
}

TEST(TraceRegistry, OnlyACapturedTraceReplaysAndANewCaptureCountsAsSwitched) {
  TraceRegistry registry;
  const TraceId trace = registry.add(decode_key(1, 1), Operation::kDecode);
  EXPECT_THAT([&] { registry.note_replay(trace); },
              ThrowsMessage<IllegalState>(HasSubstr("not captured")));
  EXPECT_EQ(registry.replay_count(Operation::kDecode), 0);
  registry.set_captured(trace, true);
  registry.note_replay(trace);
  registry.set_captured(trace, false);
  registry.set_captured(trace, true);
  EXPECT_TRUE(registry.is_switch(trace));
  EXPECT_THROW(registry.is_switch(TraceId{1}), InvalidValue);
}

TEST(TraceRegistry, NearestStaysInsideTheOperation) {
  TraceRegistry registry;
  registry.add(decode_key(32, 64), Operation::kDecode);
  registry.add(prefill_key(1024), Operation::kPrefill);
  EXPECT_FALSE(registry.nearest(decode_key(32, 8), Operation::kPrefill).has_value());
  const auto nearest = registry.nearest(prefill_key(128), Operation::kPrefill);
  ASSERT_TRUE(nearest.has_value());
  EXPECT_EQ(nearest->index, 1U);
  EXPECT_EQ(nearest->field, "padded_sequence_length");
}

TEST(TraceRegistry, CanBeReadWhileAnotherThreadReplays) {
  TraceRegistry registry;
  const TraceId trace = registry.add(decode_key(1, 1), Operation::kDecode);
  registry.associate(ProgramId{0}, trace);
  registry.set_captured(trace, true);
  std::thread replays([&] {
    for (int step = 0; step < 500; ++step) registry.note_replay(trace);
  });
  const std::vector<ProgramId> programs{ProgramId{0}};
  for (int step = 0; step < 500; ++step) {
    EXPECT_EQ(registry.preflight(programs), std::nullopt);
    EXPECT_EQ(registry.find(decode_key(1, 1)), trace);
    EXPECT_LE(registry.replay_count(Operation::kDecode), 500);
  }
  replays.join();
  EXPECT_EQ(registry.replay_count(Operation::kDecode), 500);
}

TEST(Operation, NamesGoBothWays) {
  EXPECT_EQ(operation_named("prefill"), Operation::kPrefill);
  EXPECT_EQ(name_of(operation_named("decode")), "decode");
  EXPECT_THAT([] { operation_named("warmup"); },
              ThrowsMessage<InvalidValue>(HasSubstr("'warmup'")));
}

}  // namespace
}  // namespace llm_runtime::registry
