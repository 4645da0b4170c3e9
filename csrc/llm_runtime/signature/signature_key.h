// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "llm_runtime/signature/key_writer.h"
#include "llm_runtime/support/fields.h"

namespace llm_runtime::signature {

/// One difference between two keys. The values are packed, borrowed from the two keys, and empty
/// where a side lacks the field.
struct KeyMismatch {
  std::string path;
  std::string_view mine;
  std::string_view theirs;
};

/// The identity of a program or trace: packed key material with its hash, computed once. Equality
/// compares the hash first and always the bytes after it, so a hash collision costs a compare and
/// never merges two keys.
class SignatureKey {
 public:
  /// Takes what `KeyWriter::finish` returned.
  explicit SignatureKey(std::string packed)
      : packed_(std::move(packed)), hash_(std::hash<std::string_view>{}(packed_)) {}

  /// Takes bytes of unknown origin; refuses anything but one complete tuple.
  static SignatureKey from_untrusted(std::string packed);

  std::string_view packed() const { return packed_; }
  std::size_t hash() const { return hash_; }

  /// All differences in `(name, value)` entries, in my order, then entries that only the other key
  /// has. Material of another shape is compared by position, with paths like `[2]`. Empty exactly
  /// when the keys are equal.
  std::vector<KeyMismatch> mismatches(const SignatureKey& other) const;

  bool operator==(const SignatureKey& other) const {
    return hash_ == other.hash_ && packed_ == other.packed_;
  }

 private:
  std::string packed_;
  std::size_t hash_;
};

/// Key material from a field list: `(name, value)` pairs in the order of the list, without fields
/// that hold their omitted value. `leading` pairs come first.
template <class T, class... Leading>
SignatureKey pack_fields(const T& value, const std::pair<std::string_view, Leading>&... leading) {
  KeyWriter writer;
  (writer.pair(leading.first, leading.second), ...);
  for_each_field<T>([&](const auto& entry) {
    const auto& member = value.*entry.member;
    if constexpr (!std::is_same_v<std::decay_t<decltype(entry.omitted)>, NeverOmitted>) {
      if (member == entry.omitted) return;
    }
    writer.pair(entry.name, member);
  });
  return SignatureKey(std::move(writer).finish());
}

}  // namespace llm_runtime::signature

template <>
struct std::hash<llm_runtime::signature::SignatureKey> {
  std::size_t operator()(const llm_runtime::signature::SignatureKey& key) const noexcept {
    return key.hash();
  }
};
