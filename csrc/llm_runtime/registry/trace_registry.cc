// SPDX-License-Identifier: Apache-2.0
#include "llm_runtime/registry/trace_registry.h"

#include "llm_runtime/support/errors.h"

namespace llm_runtime::registry {

using signature::SignatureKey;

namespace {

std::int32_t number(ProgramId id) { return static_cast<std::int32_t>(id); }
std::int32_t number(TraceId id) { return static_cast<std::int32_t>(id); }

}  // namespace

std::size_t TraceRegistry::index_of(TraceId trace_id) const {
  require_value(
      number(trace_id) >= 0 && static_cast<std::size_t>(number(trace_id)) < traces_.size(),
      "trace ", number(trace_id), " is not one of the ", traces_.size(), " registered traces");
  return static_cast<std::size_t>(number(trace_id));
}

TraceId TraceRegistry::find(const SignatureKey& key) const {
  const std::scoped_lock lock(mutex_);
  const auto index = keys_.find(key);
  return index ? static_cast<TraceId>(*index) : kNoTrace;
}

TraceId TraceRegistry::add(const SignatureKey& key, Operation operation) {
  const std::scoped_lock lock(mutex_);
  if (const auto index = keys_.find(key))
    throw_illegal_state(str_cat("the signature is already registered as trace ", *index));
  const std::size_t index = keys_.add(key);
  traces_.push_back({.operation = operation, .captured = false, .programs = {}});
  return static_cast<TraceId>(index);
}

const SignatureKey& TraceRegistry::key(TraceId trace_id) const {
  const std::scoped_lock lock(mutex_);
  return keys_[index_of(trace_id)];
}

Operation TraceRegistry::operation(TraceId trace_id) const {
  const std::scoped_lock lock(mutex_);
  return trace(trace_id).operation;
}

std::size_t TraceRegistry::size() const {
  const std::scoped_lock lock(mutex_);
  return traces_.size();
}

std::optional<Nearest> TraceRegistry::nearest(const SignatureKey& key, Operation operation) const {
  const std::scoped_lock lock(mutex_);
  return keys_.nearest(key,
                       [&](std::size_t index) { return traces_[index].operation == operation; });
}

void TraceRegistry::associate(ProgramId program_id, TraceId trace_id) {
  const std::scoped_lock lock(mutex_);
  require_value(number(program_id) >= 0, "program ", number(program_id),
                " is no registered program");
  std::vector<ProgramId>& programs = traces_[index_of(trace_id)].programs;
  const auto known = trace_of_program_.find(program_id);
  if (known != trace_of_program_.end()) {
    require_value(known->second == trace_id, "program ", number(program_id),
                  " already replays trace ", number(known->second), " and cannot replay trace ",
                  number(trace_id), " too");
    return;
  }
  trace_of_program_.emplace(program_id, trace_id);
  programs.push_back(program_id);
}

TraceId TraceRegistry::trace_of_program(ProgramId program_id) const {
  const std::scoped_lock lock(mutex_);
  const auto known = trace_of_program_.find(program_id);
  return known == trace_of_program_.end() ? kNoTrace : known->second;
}

std::vector<ProgramId> TraceRegistry::programs_of_trace(TraceId trace_id) const {
  const std::scoped_lock lock(mutex_);
  return trace(trace_id).programs;
}

std::size_t TraceRegistry::association_count() const {
  const std::scoped_lock lock(mutex_);
  return trace_of_program_.size();
}

void TraceRegistry::set_captured(TraceId trace_id, bool captured) {
  const std::scoped_lock lock(mutex_);
  traces_[index_of(trace_id)].captured = captured;
  // A released or newly captured trace has fresh persistent inputs: nothing in them was ever
  // refreshed.
  if (last_replayed_ == trace_id) last_replayed_ = kNoTrace;
}

bool TraceRegistry::is_captured(TraceId trace_id) const {
  const std::scoped_lock lock(mutex_);
  return trace(trace_id).captured;
}

std::vector<TraceId> TraceRegistry::capture_order() const {
  const std::scoped_lock lock(mutex_);
  std::vector<TraceId> order;
  for (const Operation operation : {Operation::kDecode, Operation::kPrefill})
    for (std::size_t index = 0; index < traces_.size(); ++index)
      if (traces_[index].operation == operation) order.push_back(static_cast<TraceId>(index));
  return order;
}

std::optional<std::size_t> TraceRegistry::preflight(std::span<const ProgramId> program_ids) const {
  const std::scoped_lock lock(mutex_);
  for (std::size_t position = 0; position < program_ids.size(); ++position) {
    const auto known = trace_of_program_.find(program_ids[position]);
    if (known == trace_of_program_.end() || !trace(known->second).captured) return position;
  }
  return std::nullopt;
}

void TraceRegistry::note_replay(TraceId trace_id) {
  const std::scoped_lock lock(mutex_);
  const Trace& replayed = trace(trace_id);
  require_state(replayed.captured, "trace ", number(trace_id),
                " is not captured and cannot have been replayed");
  ++replay_counts_[static_cast<std::size_t>(replayed.operation)];
  last_replayed_ = trace_id;
}

TraceId TraceRegistry::last_replayed() const {
  const std::scoped_lock lock(mutex_);
  return last_replayed_;
}

bool TraceRegistry::is_switch(TraceId trace_id) const {
  const std::scoped_lock lock(mutex_);
  index_of(trace_id);
  return last_replayed_ != trace_id;
}

std::int64_t TraceRegistry::replay_count(Operation operation) const {
  const std::scoped_lock lock(mutex_);
  return replay_counts_[static_cast<std::size_t>(operation)];
}

void TraceRegistry::forget_last() {
  const std::scoped_lock lock(mutex_);
  last_replayed_ = kNoTrace;
}

}  // namespace llm_runtime::registry
