// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string_view>

namespace llm_runtime::registry {

/// Which half of the runtime a trace serves.
enum class Operation : std::uint8_t { kPrefill, kDecode };

/// "prefill" or "decode"; other names are refused.
Operation operation_named(std::string_view name);
std::string_view name_of(Operation operation);

}  // namespace llm_runtime::registry
