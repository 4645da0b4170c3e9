// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "llm_runtime/registry/compile_gate.h"
#include "llm_runtime/support/errors.h"

namespace llm_runtime::registry {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;
using State = CompileGate::State;

TEST(CompileGate, WalksThroughItsStates) {
  CompileGate gate;
  EXPECT_EQ(gate.state(), State::kOpen);
  gate.set_capture_in_progress(true);
  EXPECT_EQ(gate.state(), State::kCapturing);
  gate.set_capture_in_progress(false);
  EXPECT_EQ(gate.state(), State::kOpen);
  gate.set_trace_active(true);
  EXPECT_EQ(gate.state(), State::kActive);
  gate.set_trace_active(false);
  EXPECT_EQ(gate.state(), State::kOpen);
}

TEST(CompileGate, RefusesTheTwoIllegalTransitionsAndChangesNothing) {
  CompileGate gate;
  gate.set_capture_in_progress(true);
  EXPECT_THROW(gate.set_trace_active(true), IllegalState);
  EXPECT_EQ(gate.state(), State::kCapturing);
  gate.set_capture_in_progress(false);
  gate.set_trace_active(true);
  EXPECT_THROW(gate.set_capture_in_progress(true), IllegalState);
  EXPECT_EQ(gate.state(), State::kActive);
}

TEST(CompileGate, ClearingIsAlwaysAllowedAndClearsOnlyItsOwnFlag) {
  CompileGate gate;
  gate.set_capture_in_progress(false);
  gate.set_trace_active(true);
  gate.set_capture_in_progress(false);
  EXPECT_EQ(gate.state(), State::kActive);
  gate.set_trace_active(false);
  gate.set_capture_in_progress(true);
  gate.set_trace_active(false);
  EXPECT_EQ(gate.state(), State::kCapturing);
}

TEST(CompileGate, RefusesCompilesAndCountsOnlyThoseAfterActivation) {
  CompileGate gate;
  EXPECT_NO_THROW(gate.admit_compile("decode B=32"));
  gate.set_capture_in_progress(true);
  EXPECT_THAT([&] { gate.admit_compile("decode B=32"); },
              ThrowsMessage<IllegalState>(
                  AllOf(HasSubstr("decode B=32"), HasSubstr("capture is in progress"))));
  EXPECT_EQ(gate.rejections(), 0);
  gate.set_capture_in_progress(false);
  gate.set_trace_active(true);
  EXPECT_THAT([&] { gate.admit_compile("decode B=32"); },
              ThrowsMessage<IllegalState>(
                  AllOf(HasSubstr("decode B=32"), HasSubstr("after trace activation"))));
  EXPECT_EQ(gate.rejections(), 1);
}

TEST(CompileGate, ReleaseIsTerminalAndRepeatable) {
  CompileGate gate;
  gate.set_trace_active(true);
  gate.release();
  gate.release();
  EXPECT_EQ(gate.state(), State::kReleased);
  EXPECT_THAT([&] { gate.require_live(); }, ThrowsMessage<IllegalState>(HasSubstr("released")));
  EXPECT_THROW(gate.admit_compile("decode"), IllegalState);
  EXPECT_EQ(gate.rejections(), 0);
  EXPECT_THROW(gate.set_trace_active(false), IllegalState);
  EXPECT_THROW(gate.set_capture_in_progress(false), IllegalState);
}

TEST(CompileGate, CountsRejectionsFromTwoThreads) {
  CompileGate gate;
  gate.set_trace_active(true);
  const auto work = [&gate] {
    for (int i = 0; i < 200; ++i) EXPECT_THROW(gate.admit_compile("late"), IllegalState);
  };
  std::thread other(work);
  work();
  other.join();
  EXPECT_EQ(gate.rejections(), 400);
}

}  // namespace
}  // namespace llm_runtime::registry
