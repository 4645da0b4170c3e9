// SPDX-License-Identifier: Apache-2.0
#include "llm_runtime/signature/key_writer.h"

#include <cmath>

#include "llm_runtime/support/errors.h"

namespace llm_runtime::signature {

void KeyWriter::real(double value) {
  require_value(std::isfinite(value), "key material must be finite, not ", value);
  raw(KeyTag::kReal, &value, sizeof value);
}

void KeyWriter::begin_tuple() {
  require_value(++depth_ <= kMaxKeyDepth, "key material nests deeper than ", kMaxKeyDepth,
                " tuples");
  tag(KeyTag::kTupleBegin);
}

void KeyWriter::sized(KeyTag kind, std::string_view bytes) {
  const auto length = static_cast<std::uint32_t>(bytes.size());
  require_value(length == bytes.size(), "key material holds a text of ", bytes.size(),
                " bytes; the limit is 4294967295");
  raw(kind, &length, sizeof length);
  packed_.append(bytes);
}

}  // namespace llm_runtime::signature
