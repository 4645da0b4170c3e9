// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>

#include "llm_runtime/signature/key_writer.h"

namespace llm_runtime::signature {

/// One token of packed key material; `text` is borrowed from the packed bytes.
struct KeyItem {
  KeyTag tag = KeyTag::kNull;
  std::int64_t integer = 0;
  double real = 0.0;
  std::string_view text;
};

/// Walks packed key material token by token. Every read is bounds-checked, so bytes of unknown
/// origin (a pickle) are refused with `InvalidValue` instead of being trusted.
class KeyReader {
 public:
  explicit KeyReader(std::string_view packed) : rest_(packed) {}

  bool done() const { return rest_.empty(); }
  KeyItem next();

  /// The bytes of the next complete value, a whole tuple included; moves past it.
  std::string_view next_value();

 private:
  std::string_view take(std::size_t count);

  std::string_view rest_;
};

/// The values directly inside a packed tuple, one `visit(std::string_view packed_value)` each.
template <class Visitor>
void for_each_value(std::string_view packed_tuple, Visitor&& visit) {
  KeyReader reader(packed_tuple.substr(1, packed_tuple.size() - 2));
  while (!reader.done()) visit(reader.next_value());
}

}  // namespace llm_runtime::signature
