// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <mutex>
#include <string_view>

namespace llm_runtime::registry {

/// Whether new programs may be compiled. A compile while a trace is being recorded would land in
/// the trace; one after activation could move memory that a trace has fixed.
///
///     OPEN --begin capture--> CAPTURING --end--> OPEN --activate--> ACTIVE --deactivate--> OPEN
///     any --release--> RELEASED (terminal)
class CompileGate {
 public:
  enum class State : std::uint8_t { kOpen, kCapturing, kActive, kReleased };

  CompileGate() = default;
  CompileGate(const CompileGate&) = delete;
  CompileGate& operator=(const CompileGate&) = delete;
  ~CompileGate() = default;

  State state() const;
  /// Compiles refused because a trace was active.
  std::int64_t rejections() const;

  /// Refused after release, and while a trace is active.
  void set_capture_in_progress(bool value);
  /// Refused after release, and while a capture is in progress.
  void set_trace_active(bool value);
  void release();

  /// Refuses use after release.
  void require_live() const;
  /// Refuses a compile unless the gate is open; `description` names the program.
  void admit_compile(std::string_view description);

 private:
  void require_live_locked() const;

  mutable std::mutex mutex_;
  State state_ = State::kOpen;
  std::int64_t rejections_ = 0;
};

/// "open", "capturing", "active" or "released".
std::string_view name_of(CompileGate::State state);

}  // namespace llm_runtime::registry
