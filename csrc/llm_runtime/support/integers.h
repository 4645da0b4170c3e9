// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <limits>

#include "llm_runtime/support/errors.h"

namespace llm_runtime {

/// Counts and lengths end where the device's 32-bit integers end.
inline constexpr std::int64_t kMaxCount = std::numeric_limits<std::int32_t>::max();

constexpr std::int64_t ceil_div(std::int64_t value, std::int64_t unit) {
  return value / unit + static_cast<std::int64_t>(value % unit != 0);
}

constexpr std::int64_t round_up(std::int64_t value, std::int64_t unit) {
  return ceil_div(value, unit) * unit;
}

inline void require_positive(std::int64_t value, const char* name) {
  require_value(value > 0 && value <= kMaxCount, name, " must be a positive integer of at most ",
                kMaxCount, ", not ", value);
}

}  // namespace llm_runtime
