// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <utility>

#include "llm_runtime/signature/signature_key.h"

namespace llm_runtime::signature {

/// A typed signature together with its key, packed once at construction. `Fields` names its packing
/// in `pack()`.
template <class Fields>
struct Keyed : Fields {
  using FieldsType = Fields;

  explicit Keyed(Fields fields) : Fields(std::move(fields)), key(Fields::pack()) {}

  SignatureKey key;

  std::size_t hash() const { return key.hash(); }
  bool operator==(const Keyed& other) const { return key == other.key; }
};

}  // namespace llm_runtime::signature
