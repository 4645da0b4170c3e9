// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "llm_runtime/support/int_array.h"

namespace llm_runtime::sampling {

/// Device seeds lie in 1 to this.
constexpr std::uint32_t kMaxDeviceSeed = 1'000'000;

/// The device seed of a stream for the token behind `position`: a pure function of its key.
std::uint32_t device_seed(std::uint64_t key, std::int64_t position);

/// The streams of a lane's slots, borrowed: key, last position drawn for, and how many were drawn.
struct SeedStreams {
  std::span<const std::uint64_t> keys;
  std::span<std::int64_t> positions;
  std::span<std::int64_t> counts;
};

/// Moves the streams of `slots` to `wanted[slot]` (one position on without it) and writes each
/// one's device seed to `out[slot]`. Drawing twice for one position changes nothing. Refuses slots
/// outside the streams and a `wanted` or `out` that is too short, before anything changes.
void draw_seeds(const SeedStreams& streams, std::span<const std::int64_t> slots,
                const std::optional<IntArray>& wanted, std::span<std::uint32_t> out);

}  // namespace llm_runtime::sampling
