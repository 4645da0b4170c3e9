// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "llm_runtime/support/fields.h"

namespace llm_runtime::decode {

/// An ordered list of input names: a tuple of strings in Python.
struct InputNames {
  std::vector<std::string> names;
  bool operator==(const InputNames&) const = default;
};

}  // namespace llm_runtime::decode

template <>
struct std::hash<llm_runtime::decode::InputNames> {
  std::size_t operator()(const llm_runtime::decode::InputNames& value) const noexcept {
    std::size_t seed = value.names.size();
    for (const std::string& name : value.names)
      seed = llm_runtime::combine_hash(seed, std::hash<std::string>{}(name));
    return seed;
  }
};
