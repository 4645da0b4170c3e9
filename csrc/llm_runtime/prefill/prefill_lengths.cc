// SPDX-License-Identifier: Apache-2.0
#include "llm_runtime/prefill/prefill_lengths.h"

#include <algorithm>
#include <array>
#include <bit>

#include "llm_runtime/support/errors.h"
#include "llm_runtime/support/integers.h"

namespace llm_runtime::prefill {

namespace {

constexpr std::int64_t kSecondBucket = 1024;
constexpr std::int64_t kGranularity = 2048;
constexpr std::array<std::int64_t, 6> kPhysicalBatches{1, 2, 4, 8, 16, kLargestPhysicalBatch};

bool is_power_of_two(std::int64_t value) {
  return std::has_single_bit(static_cast<std::uint64_t>(value));
}

std::int64_t next_bucket(std::int64_t bucket) {
  return bucket == kShortestBucket ? kSecondBucket : 2 * bucket;
}

}  // namespace

std::int64_t padded_prefill_length(std::int64_t n) {
  require_positive(n, "prefill length");
  if (n <= kShortestBucket) return kShortestBucket;
  if (n <= kSecondBucket) return kSecondBucket;
  return static_cast<std::int64_t>(std::bit_ceil(static_cast<std::uint64_t>(n)));
}

void validate_prefill_chunk_size(std::int64_t cap) {
  require_value(
      cap > 0 && cap <= kMaxCount &&
          (cap % kGranularity == 0 || (cap >= kShortestBucket && is_power_of_two(cap))),
      "max_prefill_chunk_size ", cap,
      " cannot cut every prompt into equal chunks: it must be a power of two of at least ",
      kShortestBucket, ", or a multiple of ", kGranularity);
}

std::int64_t max_prefill_chunk_size(std::int64_t sequence_length, std::int64_t maximum) {
  require_positive(sequence_length, "sequence_length");
  validate_prefill_chunk_size(maximum);
  const auto granularity = maximum % kGranularity == 0 ? kGranularity : maximum;
  const auto limit = std::min(sequence_length, maximum);
  for (auto chunk = limit - limit % granularity; chunk > 0; chunk -= granularity) {
    if (sequence_length % chunk == 0) return chunk;
  }
  throw_invalid_value(str_cat("no multiple of ", granularity, " up to ", maximum, " divides ",
                              sequence_length, " tokens into equal chunks"));
}

std::vector<std::int64_t> prefill_bucket_ladder(std::int64_t max_prefill_chunk_size,
                                                std::int64_t max_seq_len) {
  require_positive(max_prefill_chunk_size, "max_prefill_chunk_size");
  require_positive(max_seq_len, "max_seq_len");
  const auto ceiling = std::min(max_prefill_chunk_size, max_seq_len);
  std::vector<std::int64_t> ladder;
  for (auto bucket = kShortestBucket; bucket <= ceiling; bucket = next_bucket(bucket))
    ladder.push_back(bucket);
  if (ladder.empty()) ladder.push_back(ceiling);
  return ladder;
}

std::optional<std::int64_t> physical_batch_size(std::int64_t rows) {
  const auto* size = std::ranges::lower_bound(kPhysicalBatches, rows);
  if (size == kPhysicalBatches.end()) return std::nullopt;
  return *size;
}

}  // namespace llm_runtime::prefill
