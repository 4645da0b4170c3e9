// SPDX-License-Identifier: Apache-2.0
#include "llm_runtime/prefill/plan_prefill.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "llm_runtime/prefill/prefill_lengths.h"
#include "llm_runtime/prefill/request_builder.h"
#include "llm_runtime/prefill/wave_rule.h"

namespace llm_runtime::prefill {

namespace {

struct Bucket : PrefillBucket {
  WaveDecision decision;
};

std::vector<Bucket>::iterator bucket_of(std::vector<Bucket>& buckets, std::int64_t padded_length) {
  return std::ranges::find(buckets, padded_length, &Bucket::padded_length);
}

/// Checked rows of a batch and what becomes of them.
struct Decided {
  std::vector<PrefillRow> rows;
  std::vector<Bucket> buckets;  // in the order in which they appear

  Bucket& bucket(const PrefillRow& row) {
    return *bucket_of(buckets, padded_prefill_length(row.uncached_tokens()));
  }

  std::vector<PrefillRow> members(const Bucket& bucket) const {
    std::vector<PrefillRow> result;
    result.reserve(static_cast<std::size_t>(bucket.rows));
    std::ranges::copy_if(rows, std::back_inserter(result), [&](const PrefillRow& row) {
      return padded_prefill_length(row.uncached_tokens()) == bucket.padded_length;
    });
    return result;
  }
};

Decided decide(const PrefillBatch& batch, const PrefillLimits& limits) {
  check_limits(limits);
  Decided result{.rows = checked_rows(batch, limits), .buckets = {}};
  for (const auto& row : result.rows) {
    const auto padded_length = padded_prefill_length(row.uncached_tokens());
    auto bucket = bucket_of(result.buckets, padded_length);
    if (bucket == result.buckets.end())
      bucket = result.buckets.insert(bucket, Bucket{{.padded_length = padded_length}, {}});
    ++bucket->rows;
    if (bucket->cached_tokens == 0 && row.cached_tokens > 0) {
      bucket->cached_row = row.source_row;
      bucket->cached_tokens = row.cached_tokens;
    }
  }
  for (auto& bucket : result.buckets) bucket.decision = decide_wave(bucket, limits);
  return result;
}

std::vector<PrefillRequest> build(Decided& decided, const PrefillBatch& batch,
                                  const PrefillLimits& limits) {
  const RequestBuilder builder(batch, limits);
  std::vector<PrefillRequest> requests;
  requests.reserve(decided.rows.size());
  for (const auto& bucket : decided.buckets) {
    if (bucket.decision.is_wave())
      requests.push_back(builder.wave(decided.members(bucket), bucket.padded_length,
                                      bucket.decision.physical_rows));
  }
  for (const auto& row : decided.rows) {
    const auto& bucket = decided.bucket(row);
    if (!bucket.decision.is_wave()) requests.push_back(builder.single(row, bucket.padded_length));
  }
  return requests;
}

PrefillFallback fallback(const Decided& decided, const Bucket& bucket,
                         const PrefillLimits& limits) {
  PrefillFallback result{
      .rows = {},
      .rule = rule_name(bucket.decision.rule),
      .detail = rule_detail(bucket.decision, bucket, limits),
  };
  for (const auto& row : decided.members(bucket)) result.rows.push_back(row.source_row);
  return result;
}

}  // namespace

std::vector<PrefillRequest> plan_prefill(const PrefillBatch& batch, const PrefillLimits& limits) {
  auto decided = decide(batch, limits);
  return build(decided, batch, limits);
}

ExplainedPlan explain_prefill(const PrefillBatch& batch, const PrefillLimits& limits) {
  auto decided = decide(batch, limits);
  ExplainedPlan plan{.requests = build(decided, batch, limits), .fallbacks = {}};
  for (const auto& bucket : decided.buckets) {
    if (!bucket.decision.is_wave()) plan.fallbacks.push_back(fallback(decided, bucket, limits));
  }
  return plan;
}

}  // namespace llm_runtime::prefill
