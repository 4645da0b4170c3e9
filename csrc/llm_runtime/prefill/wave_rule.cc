// SPDX-License-Identifier: Apache-2.0
#include "llm_runtime/prefill/wave_rule.h"

#include "llm_runtime/prefill/prefill_lengths.h"
#include "llm_runtime/support/str_cat.h"

namespace llm_runtime::prefill {

namespace {

/// A wave must stay below this many padded tokens.
constexpr std::int64_t kWaveTokenCeiling = 131072;

}  // namespace

WaveDecision decide_wave(const PrefillBucket& bucket, const PrefillLimits& limits) {
  const auto singles = [](WaveRule rule, std::int64_t physical = 0) {
    return WaveDecision{.rule = rule, .physical_rows = physical};
  };
  if (bucket.rows < 2) return singles(WaveRule::kFewerThanTwoRows);
  if (!limits.supports_batched_prefill) return singles(WaveRule::kNotSupported);
  if (limits.disable_batched_prefill) return singles(WaveRule::kDisabled);
  if (bucket.cached_tokens > 0) return singles(WaveRule::kCachedTokens);
  if (bucket.padded_length > limits.max_prefill_chunk_size) return singles(WaveRule::kChunkCap);
  const auto physical = physical_batch_size(bucket.rows);
  if (!physical) return singles(WaveRule::kPhysicalSizes);
  if (*physical > limits.max_prefill_batch_size) return singles(WaveRule::kModelCap, *physical);
  if (*physical > limits.max_batch_size) return singles(WaveRule::kLaneCapacity, *physical);
  if (*physical * bucket.padded_length >= kWaveTokenCeiling)
    return singles(WaveRule::kTokenCeiling, *physical);
  return {.rule = WaveRule::kNone, .physical_rows = *physical};
}

std::string_view rule_name(WaveRule rule) {
  switch (rule) {
    case WaveRule::kFewerThanTwoRows:
      return "fewer_than_two_rows";
    case WaveRule::kNotSupported:
      return "not_supported";
    case WaveRule::kDisabled:
      return "disabled";
    case WaveRule::kCachedTokens:
      return "cached_tokens";
    case WaveRule::kChunkCap:
      return "max_prefill_chunk_size";
    case WaveRule::kPhysicalSizes:
      return "physical_batch_sizes";
    case WaveRule::kModelCap:
      return "max_prefill_batch_size";
    case WaveRule::kLaneCapacity:
      return "max_batch_size";
    case WaveRule::kTokenCeiling:
      return "wave_token_ceiling";
    case WaveRule::kNone:
      break;
  }
  return "none";
}

std::string rule_detail(const WaveDecision& decision, const PrefillBucket& bucket,
                        const PrefillLimits& limits) {
  const auto rows = bucket.rows;
  const auto physical = decision.physical_rows;
  const auto length = bucket.padded_length;
  switch (decision.rule) {
    case WaveRule::kFewerThanTwoRows:
      return str_cat(rows, " row pads to ", length, " tokens; a wave needs 2");
    case WaveRule::kNotSupported:
      return str_cat(rows, " rows, but the model does not support batched prefill");
    case WaveRule::kDisabled:
      return str_cat(rows, " rows, but batched prefill is disabled");
    case WaveRule::kCachedTokens:
      return str_cat("row ", bucket.cached_row, " starts behind ", bucket.cached_tokens,
                     " cached tokens; every row of a wave starts at 0");
    case WaveRule::kChunkCap:
      return str_cat("padded length ", length, " exceeds max_prefill_chunk_size ",
                     limits.max_prefill_chunk_size);
    case WaveRule::kPhysicalSizes:
      return str_cat(rows, " rows exceed ", kLargestPhysicalBatch, ", the largest physical batch");
    case WaveRule::kModelCap:
      return str_cat(rows, " rows need a physical batch of ", physical,
                     ", above max_prefill_batch_size ", limits.max_prefill_batch_size);
    case WaveRule::kLaneCapacity:
      return str_cat(rows, " rows need a physical batch of ", physical, ", above max_batch_size ",
                     limits.max_batch_size);
    case WaveRule::kTokenCeiling:
      return str_cat(physical, " physical rows of ", length, " tokens are ", physical * length,
                     " padded tokens; a wave stays below ", kWaveTokenCeiling);
    case WaveRule::kNone:
      break;
  }
  return str_cat(rows, " rows in a wave of ", physical);
}

}  // namespace llm_runtime::prefill
