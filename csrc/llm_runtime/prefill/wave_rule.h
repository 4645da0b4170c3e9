// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "llm_runtime/prefill/prefill_batch.h"

namespace llm_runtime::prefill {

/// The rows of one padded length in a batch, as far as waves care.
struct PrefillBucket {
  std::int64_t padded_length = 0;
  std::int64_t rows = 0;
  std::int64_t cached_row = 0;     // the first row with cached tokens, if cached_tokens > 0
  std::int64_t cached_tokens = 0;  // where that row starts
};

/// Rules that keep the rows of a bucket out of one wave, in the order in which they are asked.
enum class WaveRule : std::uint8_t {
  kNone,
  kFewerThanTwoRows,
  kNotSupported,
  kDisabled,
  kCachedTokens,
  kChunkCap,
  kPhysicalSizes,
  kModelCap,
  kLaneCapacity,
  kTokenCeiling,
};

/// One wave of `physical_rows`, or single requests because of `rule`.
struct WaveDecision {
  WaveRule rule = WaveRule::kNone;
  std::int64_t physical_rows = 0;  // 0 unless the rules got as far as asking for it

  bool is_wave() const { return rule == WaveRule::kNone; }
};

/// Whether a bucket becomes one wave; if not, the first rule that says so.
WaveDecision decide_wave(const PrefillBucket& bucket, const PrefillLimits& limits);

/// The rule in one word, for programs.
std::string_view rule_name(WaveRule rule);

/// The rule with the numbers that decided, for people.
std::string rule_detail(const WaveDecision& decision, const PrefillBucket& bucket,
                        const PrefillLimits& limits);

}  // namespace llm_runtime::prefill
