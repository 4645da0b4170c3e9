// SPDX-License-Identifier: Apache-2.0
#include "llm_runtime/sampling/seed_streams.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "llm_runtime/support/errors.h"

namespace llm_runtime::sampling {

namespace {

constexpr std::uint64_t kGamma = 0x9E3779B97F4A7C15U;

/// The output function of SplitMix64: a bijection that spreads every input bit.
std::uint64_t mix(std::uint64_t value) {
  value = (value ^ (value >> 30U)) * 0xBF58476D1CE4E5B9U;
  value = (value ^ (value >> 27U)) * 0x94D049BB133111EBU;
  return value ^ (value >> 31U);
}

void check_slots(const SeedStreams& streams, std::span<const std::int64_t> slots,
                 const std::optional<IntArray>& wanted, std::size_t out_size) {
  const auto capacity = streams.keys.size();
  require_value(streams.positions.size() == capacity && streams.counts.size() == capacity,
                "keys, positions and counts must be of one length");
  if (wanted) require_rank(*wanted, 1, "wanted");
  const auto limit = std::min({capacity, out_size, wanted ? wanted->columns() : capacity});
  for (const auto slot : slots)
    require_value(slot >= 0 && std::cmp_less(slot, limit), "slot ", slot, " is outside 0 to ",
                  limit, " (exclusive)");
}

}  // namespace

std::uint32_t device_seed(std::uint64_t key, std::int64_t position) {
  const auto step = static_cast<std::uint64_t>(position) + 1U;
  return static_cast<std::uint32_t>(mix(key + step * kGamma) % kMaxDeviceSeed) + 1U;
}

void draw_seeds(const SeedStreams& streams, std::span<const std::int64_t> slots,
                const std::optional<IntArray>& wanted, std::span<std::uint32_t> out) {
  check_slots(streams, slots, wanted, out.size());
  for (const auto entry : slots) {
    const auto slot = static_cast<std::size_t>(entry);
    auto& held = streams.positions[slot];
    const auto position = wanted ? (*wanted)[slot] : held + 1;
    if (held != position) ++streams.counts[slot];
    held = position;
    out[slot] = device_seed(streams.keys[slot], position);
  }
}

}  // namespace llm_runtime::sampling
