// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

#include "llm_runtime/signature/signature_key.h"

namespace llm_runtime::signature {

/// `float.hex()` of a finite value, e.g. `0x1.8000000000000p+1`.
std::string real_hex(double value);

/// The canonical form of a key: compact ASCII JSON of tagged values, `["int","7"]` and the like,
/// around the triple domain, schema version and material. The SHA-256 of these bytes is the key's
/// digest.
std::string canonical_json(const SignatureKey& key, std::string_view domain,
                           std::int64_t schema_version);

}  // namespace llm_runtime::signature
