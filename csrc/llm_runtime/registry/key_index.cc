// SPDX-License-Identifier: Apache-2.0
#include "llm_runtime/registry/key_index.h"

#include <string_view>

#include "llm_runtime/signature/key_reader.h"

namespace llm_runtime::registry {

using signature::KeyReader;
using signature::KeyTag;
using signature::SignatureKey;

namespace {

// Decode material starts with "operation", prefill material with "operation_variant"; other
// material has no kind.
std::string_view kind_of(const SignatureKey& key) {
  KeyReader reader(key.packed());
  reader.next();
  if (reader.next().tag != KeyTag::kTupleBegin) return {};
  const auto name = reader.next();
  return name.tag == KeyTag::kText ? name.text : std::string_view{};
}

}  // namespace

std::size_t KeyIndex::add(const SignatureKey& key) {
  const auto [entry, added] = indices_.emplace(key, keys_.size());
  if (added) keys_.push_back(&entry->first);
  return entry->second;
}

std::optional<Nearest> KeyIndex::nearest(
    const SignatureKey& wanted, const std::function<bool(std::size_t)>& is_candidate) const {
  std::vector<signature::KeyMismatch> fewest;
  std::size_t closest = 0;
  for (std::size_t index = 0; index < keys_.size(); ++index) {
    if (!is_candidate(index) || kind_of(*keys_[index]) != kind_of(wanted)) continue;
    auto mismatches = wanted.mismatches(*keys_[index]);
    if (mismatches.empty()) return std::nullopt;
    if (!fewest.empty() && mismatches.size() >= fewest.size()) continue;
    fewest = std::move(mismatches);
    closest = index;
  }
  if (fewest.empty()) return std::nullopt;
  const auto& first = fewest.front();
  return Nearest{
      .index = closest,
      .field = first.path,
      .wanted = std::string(first.mine),
      .registered = std::string(first.theirs),
  };
}

}  // namespace llm_runtime::registry
