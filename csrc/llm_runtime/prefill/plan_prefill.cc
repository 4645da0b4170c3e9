// SPDX-License-Identifier: Apache-2.0
#include "llm_runtime/prefill/plan_prefill.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>

#include "llm_runtime/prefill/prefill_lengths.h"
#include "llm_runtime/prefill/request_builder.h"

namespace llm_runtime::prefill {

namespace {

/// A wave must stay below this many padded tokens.
constexpr std::int64_t kWaveTokenCeiling = 131072;

struct Bucket {
  std::int64_t padded_length = 0;
  std::int64_t rows = 0;
  bool any_cached = false;
  std::optional<std::int64_t> wave_rows;  // physical rows, if the bucket is one wave
};

Bucket& bucket_of(std::vector<Bucket>& buckets, const PrefillRow& row) {
  const auto padded = padded_prefill_length(row.uncached_tokens());
  const auto found = std::ranges::find(buckets, padded, &Bucket::padded_length);
  if (found != buckets.end()) return *found;
  return buckets.emplace_back(
      Bucket{.padded_length = padded, .rows = 0, .any_cached = false, .wave_rows = std::nullopt});
}

std::optional<std::int64_t> wave_rows(const Bucket& bucket, const PrefillLimits& limits) {
  if (bucket.rows < 2 || bucket.any_cached) return std::nullopt;
  if (!limits.supports_batched_prefill || limits.disable_batched_prefill) return std::nullopt;
  if (bucket.padded_length > limits.max_prefill_chunk_size) return std::nullopt;
  const auto physical = physical_batch_size(bucket.rows);
  if (!physical || *physical > limits.max_prefill_batch_size || *physical > limits.max_batch_size ||
      *physical * bucket.padded_length >= kWaveTokenCeiling)
    return std::nullopt;
  return physical;
}

std::vector<Bucket> buckets_of(const std::vector<PrefillRow>& rows, const PrefillLimits& limits) {
  std::vector<Bucket> buckets;
  for (const auto& row : rows) {
    Bucket& bucket = bucket_of(buckets, row);
    ++bucket.rows;
    bucket.any_cached |= row.cached_tokens > 0;
  }
  for (auto& bucket : buckets) bucket.wave_rows = wave_rows(bucket, limits);
  return buckets;
}

}  // namespace

std::vector<PrefillRequest> plan_prefill(const PrefillBatch& batch, const PrefillLimits& limits) {
  check_limits(limits);
  const auto rows = checked_rows(batch, limits);
  auto buckets = buckets_of(rows, limits);
  const RequestBuilder builder(batch, limits);

  std::vector<PrefillRequest> requests;
  requests.reserve(rows.size());
  for (const auto& bucket : buckets) {
    if (!bucket.wave_rows) continue;
    std::vector<PrefillRow> members;
    members.reserve(static_cast<std::size_t>(bucket.rows));
    std::ranges::copy_if(rows, std::back_inserter(members), [&](const PrefillRow& row) {
      return padded_prefill_length(row.uncached_tokens()) == bucket.padded_length;
    });
    requests.push_back(builder.wave(std::move(members), bucket.padded_length, *bucket.wave_rows));
  }
  for (const auto& row : rows) {
    const Bucket& bucket = bucket_of(buckets, row);
    if (!bucket.wave_rows) requests.push_back(builder.single(row, bucket.padded_length));
  }
  return requests;
}

}  // namespace llm_runtime::prefill
