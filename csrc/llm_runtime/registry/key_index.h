// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "llm_runtime/signature/signature_key.h"

namespace llm_runtime::registry {

/// What separates a wanted key from the closest registered one: its first differing field with both
/// packed values, empty where a side lacks the field.
struct Nearest {
  std::size_t index;
  std::string field;
  std::string wanted;
  std::string registered;
};

/// Keys in registration order, found by hash and full compare. Keys are never removed and keep
/// their address.
class KeyIndex {
 public:
  std::optional<std::size_t> find(const signature::SignatureKey& key) const {
    const auto found = indices_.find(key);
    if (found == indices_.end()) return std::nullopt;
    return found->second;
  }

  /// The index of a key that `find` does not know.
  std::size_t add(const signature::SignatureKey& key);

  std::size_t size() const { return keys_.size(); }
  const signature::SignatureKey& operator[](std::size_t index) const { return *keys_[index]; }

  /// The candidate of the same kind (name of the first field) with the fewest differing fields, the
  /// earliest of equals. Nothing when there is no such candidate, or when the wanted key itself is
  /// one.
  std::optional<Nearest> nearest(const signature::SignatureKey& wanted,
                                 const std::function<bool(std::size_t)>& is_candidate) const;

 private:
  std::unordered_map<signature::SignatureKey, std::size_t> indices_;
  std::vector<const signature::SignatureKey*> keys_;  // into the nodes of indices_
};

}  // namespace llm_runtime::registry
