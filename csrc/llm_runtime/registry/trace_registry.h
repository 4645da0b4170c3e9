// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "llm_runtime/registry/ids.h"
#include "llm_runtime/registry/key_index.h"
#include "llm_runtime/registry/operation.h"
#include "llm_runtime/signature/signature_key.h"

namespace llm_runtime::registry {

/// The registered traces by key, the programs that each one serves, and the replay history.
/// A trace is captured while the caller holds its device artifact; ids only, no device objects.
class TraceRegistry {
 public:
  TraceRegistry() = default;
  TraceRegistry(const TraceRegistry&) = delete;
  TraceRegistry& operator=(const TraceRegistry&) = delete;
  ~TraceRegistry() = default;

  TraceId find(const signature::SignatureKey& key) const;
  TraceId add(const signature::SignatureKey& key, Operation operation);
  const signature::SignatureKey& key(TraceId trace_id) const;
  Operation operation(TraceId trace_id) const;
  std::size_t size() const;

  /// Explains a miss: the closest trace of the operation.
  std::optional<Nearest> nearest(const signature::SignatureKey& key, Operation operation) const;

  /// Lets a program replay a trace. Repeating it is harmless; another trace for the same program is
  /// refused.
  void associate(ProgramId program_id, TraceId trace_id);
  TraceId trace_of_program(ProgramId program_id) const;
  std::vector<ProgramId> programs_of_trace(TraceId trace_id) const;
  std::size_t association_count() const;

  void set_captured(TraceId trace_id, bool captured);
  bool is_captured(TraceId trace_id) const;

  /// Decode before prefill, registration order inside each.
  std::vector<TraceId> capture_order() const;

  /// Position of the first program that has no captured trace.
  std::optional<std::size_t> preflight(std::span<const ProgramId> program_ids) const;

  /// Counts a submitted replay; the trace must be captured.
  void note_replay(TraceId trace_id);
  TraceId last_replayed() const;
  /// Whether replaying this trace now would follow another one, or none.
  bool is_switch(TraceId trace_id) const;
  std::int64_t replay_count(Operation operation) const;
  void forget_last();

 private:
  struct Trace {
    Operation operation;
    bool captured;
    std::vector<ProgramId> programs;
  };

  std::size_t index_of(TraceId trace_id) const;
  const Trace& trace(TraceId trace_id) const { return traces_[index_of(trace_id)]; }

  mutable std::mutex mutex_;
  KeyIndex keys_;
  std::vector<Trace> traces_;
  std::unordered_map<ProgramId, TraceId> trace_of_program_;
  TraceId last_replayed_ = kNoTrace;
  std::array<std::int64_t, 2> replay_counts_{};  // by Operation
};

}  // namespace llm_runtime::registry
