// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <mutex>
#include <optional>

#include "llm_runtime/registry/ids.h"
#include "llm_runtime/registry/key_index.h"
#include "llm_runtime/signature/signature_key.h"

namespace llm_runtime::registry {

/// The compiled programs by key. There is no removal; what belongs to a program is kept by the
/// caller under its id.
class ProgramRegistry {
 public:
  ProgramRegistry() = default;
  ProgramRegistry(const ProgramRegistry&) = delete;
  ProgramRegistry& operator=(const ProgramRegistry&) = delete;
  ~ProgramRegistry() = default;

  ProgramId find(const signature::SignatureKey& key) const;
  ProgramId add(const signature::SignatureKey& key);
  const signature::SignatureKey& key(ProgramId program_id) const;
  std::size_t size() const;

  /// Explains a miss: the closest program of the same kind.
  std::optional<Nearest> nearest(const signature::SignatureKey& key) const;

 private:
  mutable std::mutex mutex_;
  KeyIndex keys_;
};

}  // namespace llm_runtime::registry
