// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

namespace bench {

/// Decides from six plain arguments, as the core's calls do.
inline std::int64_t decide(bool first, bool second, std::optional<bool> third, std::int64_t rows,
                           std::int64_t width, bool last) {
  return rows * width + first + second + third.value_or(false) + last;
}

/// Reads a whole table, so that nothing of it can be skipped.
inline void negate(const std::int32_t* in, std::int32_t* out, std::size_t size) {
  for (std::size_t i = 0; i < size; ++i) out[i] = -in[i];
}

}  // namespace bench
