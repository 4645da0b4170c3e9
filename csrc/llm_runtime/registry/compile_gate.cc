// SPDX-License-Identifier: Apache-2.0
#include "llm_runtime/registry/compile_gate.h"

#include "llm_runtime/support/errors.h"

namespace llm_runtime::registry {

CompileGate::State CompileGate::state() const {
  const std::scoped_lock lock(mutex_);
  return state_;
}

std::int64_t CompileGate::rejections() const {
  const std::scoped_lock lock(mutex_);
  return rejections_;
}

void CompileGate::require_live_locked() const {
  require_state(state_ != State::kReleased,
                "the program registry was released; build a new executor");
}

void CompileGate::set_capture_in_progress(bool value) {
  const std::scoped_lock lock(mutex_);
  require_live_locked();
  require_state(!value || state_ != State::kActive,
                "a capture cannot begin while traces are active");
  if (value)
    state_ = State::kCapturing;
  else if (state_ == State::kCapturing)
    state_ = State::kOpen;
}

void CompileGate::set_trace_active(bool value) {
  const std::scoped_lock lock(mutex_);
  require_live_locked();
  require_state(!value || state_ != State::kCapturing,
                "traces cannot be activated while a trace capture is in progress");
  if (value)
    state_ = State::kActive;
  else if (state_ == State::kActive)
    state_ = State::kOpen;
}

void CompileGate::release() {
  const std::scoped_lock lock(mutex_);
  state_ = State::kReleased;
}

void CompileGate::require_live() const {
  const std::scoped_lock lock(mutex_);
  require_live_locked();
}

void CompileGate::admit_compile(std::string_view description) {
  const std::scoped_lock lock(mutex_);
  require_live_locked();
  require_state(
      state_ != State::kCapturing, "cannot compile ", description,
      " while trace capture is in progress: compile every program before the first capture");
  if (state_ != State::kActive) return;
  ++rejections_;
  throw_illegal_state(
      str_cat("cannot compile ", description,
              " after trace activation: warmup must compile every program that is served"));
}

std::string_view name_of(CompileGate::State state) {
  switch (state) {
    case CompileGate::State::kOpen:
      return "open";
    case CompileGate::State::kCapturing:
      return "capturing";
    case CompileGate::State::kActive:
      return "active";
    case CompileGate::State::kReleased:
      break;
  }
  return "released";
}

}  // namespace llm_runtime::registry
