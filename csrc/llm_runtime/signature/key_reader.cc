// SPDX-License-Identifier: Apache-2.0
#include "llm_runtime/signature/key_reader.h"

#include <algorithm>

#include "llm_runtime/support/errors.h"

namespace llm_runtime::signature {

namespace {

template <class T>
T read_as(std::string_view bytes) {
  T value{};
  std::ranges::copy(bytes, reinterpret_cast<char*>(&value));
  return value;
}

}  // namespace

std::string_view KeyReader::take(std::size_t count) {
  require_value(count <= rest_.size(), "packed key material is cut short: ", count,
                " bytes wanted, ", rest_.size(), " left");
  const std::string_view taken = rest_.substr(0, count);
  rest_.remove_prefix(count);
  return taken;
}

KeyItem KeyReader::next() {
  KeyItem item;
  item.tag = static_cast<KeyTag>(take(1).front());
  switch (item.tag) {
    case KeyTag::kNull:
    case KeyTag::kFalse:
    case KeyTag::kTrue:
    case KeyTag::kTupleBegin:
    case KeyTag::kTupleEnd:
      return item;
    case KeyTag::kInteger:
      item.integer = read_as<std::int64_t>(take(sizeof(std::int64_t)));
      return item;
    case KeyTag::kReal:
      item.real = read_as<double>(take(sizeof(double)));
      return item;
    case KeyTag::kBigInteger:
    case KeyTag::kText:
    case KeyTag::kEnum:
      item.text = take(read_as<std::uint32_t>(take(sizeof(std::uint32_t))));
      return item;
  }
  throw_invalid_value(
      str_cat("packed key material holds the unknown tag ", static_cast<int>(item.tag)));
}

std::string_view KeyReader::next_value() {
  const std::string_view start = rest_;
  int depth = 0;
  do {
    const KeyTag tag = next().tag;
    if (tag == KeyTag::kTupleBegin) ++depth;
    if (tag == KeyTag::kTupleEnd) --depth;
    require_value(depth >= 0 && depth <= kMaxKeyDepth,
                  "packed key material opens or closes a tuple where it must not");
  } while (depth > 0);
  return start.substr(0, start.size() - rest_.size());
}

}  // namespace llm_runtime::signature
