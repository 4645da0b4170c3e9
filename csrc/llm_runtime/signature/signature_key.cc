// SPDX-License-Identifier: Apache-2.0
#include "llm_runtime/signature/signature_key.h"

#include <algorithm>
#include <optional>

#include "llm_runtime/signature/key_reader.h"
#include "llm_runtime/support/errors.h"

namespace llm_runtime::signature {

namespace {

struct Entry {
  std::string_view name;
  std::string_view value;
};

std::vector<std::string_view> values_of(std::string_view packed_tuple) {
  std::vector<std::string_view> values;
  for_each_value(packed_tuple, [&](std::string_view value) { values.push_back(value); });
  return values;
}

/// The `(name, value)` entry that a packed value is, if it is one.
std::optional<Entry> entry_of(std::string_view packed) {
  if (packed.front() != static_cast<char>(KeyTag::kTupleBegin)) return std::nullopt;
  const auto items = values_of(packed);
  if (items.size() != 2) return std::nullopt;
  const KeyItem name = KeyReader(items[0]).next();
  if (name.tag != KeyTag::kText) return std::nullopt;
  return Entry{.name = name.text, .value = items[1]};
}

std::optional<std::vector<Entry>> entries_of(const std::vector<std::string_view>& values) {
  std::vector<Entry> entries;
  for (const auto value : values) {
    const auto entry = entry_of(value);
    if (!entry) return std::nullopt;
    entries.push_back(*entry);
  }
  return entries;
}

const Entry* find(const std::vector<Entry>& entries, std::string_view name) {
  const auto found = std::ranges::find(entries, name, &Entry::name);
  return found == entries.end() ? nullptr : &*found;
}

std::vector<KeyMismatch> compare_by_name(const std::vector<Entry>& mine,
                                         const std::vector<Entry>& theirs) {
  std::vector<KeyMismatch> result;
  for (const auto& entry : mine) {
    const Entry* other = find(theirs, entry.name);
    const std::string_view value = other != nullptr ? other->value : std::string_view{};
    if (entry.value != value)
      result.push_back({.path = std::string(entry.name), .mine = entry.value, .theirs = value});
  }
  for (const auto& entry : theirs) {
    if (find(mine, entry.name) == nullptr)
      result.push_back({.path = std::string(entry.name), .mine = {}, .theirs = entry.value});
  }
  return result;
}

std::vector<KeyMismatch> compare_by_position(const std::vector<std::string_view>& mine,
                                             const std::vector<std::string_view>& theirs) {
  std::vector<KeyMismatch> result;
  for (std::size_t i = 0; i < std::max(mine.size(), theirs.size()); ++i) {
    const std::string_view left = i < mine.size() ? mine[i] : std::string_view{};
    const std::string_view right = i < theirs.size() ? theirs[i] : std::string_view{};
    if (left != right)
      result.push_back({.path = str_cat("[", i, "]"), .mine = left, .theirs = right});
  }
  return result;
}

}  // namespace

SignatureKey SignatureKey::from_untrusted(std::string packed) {
  require_value(packed.size() >= 2 && packed.front() == static_cast<char>(KeyTag::kTupleBegin),
                "packed key material must be one tuple");
  KeyReader reader(packed);
  reader.next_value();
  require_value(reader.done(), "packed key material has bytes behind its tuple");
  return SignatureKey(std::move(packed));
}

std::vector<KeyMismatch> SignatureKey::mismatches(const SignatureKey& other) const {
  if (*this == other) return {};
  const auto mine = values_of(packed_);
  const auto theirs = values_of(other.packed_);
  const auto my_entries = entries_of(mine);
  const auto their_entries = entries_of(theirs);
  if (my_entries && their_entries) {
    auto result = compare_by_name(*my_entries, *their_entries);
    if (!result.empty()) return result;  // otherwise only the order differs
  }
  return compare_by_position(mine, theirs);
}

}  // namespace llm_runtime::signature
