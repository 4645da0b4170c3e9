// SPDX-License-Identifier: Apache-2.0
#include "llm_runtime/registry/program_registry.h"

#include "llm_runtime/support/errors.h"

namespace llm_runtime::registry {

using signature::SignatureKey;

ProgramId ProgramRegistry::find(const SignatureKey& key) const {
  const std::scoped_lock lock(mutex_);
  const auto index = keys_.find(key);
  return index ? static_cast<ProgramId>(*index) : kNoProgram;
}

ProgramId ProgramRegistry::add(const SignatureKey& key) {
  const std::scoped_lock lock(mutex_);
  if (const auto index = keys_.find(key))
    throw_illegal_state(str_cat("the signature is already registered as program ", *index));
  return static_cast<ProgramId>(keys_.add(key));
}

const SignatureKey& ProgramRegistry::key(ProgramId program_id) const {
  const std::scoped_lock lock(mutex_);
  const auto id = static_cast<std::int32_t>(program_id);
  require_value(0 <= id && static_cast<std::size_t>(id) < keys_.size(), "program ", id,
                " is not one of the ", keys_.size(), " registered programs");
  return keys_[static_cast<std::size_t>(id)];
}

std::size_t ProgramRegistry::size() const {
  const std::scoped_lock lock(mutex_);
  return keys_.size();
}

std::optional<Nearest> ProgramRegistry::nearest(const SignatureKey& key) const {
  const std::scoped_lock lock(mutex_);
  return keys_.nearest(key, [](std::size_t) { return true; });
}

}  // namespace llm_runtime::registry
