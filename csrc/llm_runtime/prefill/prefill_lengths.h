// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace llm_runtime::prefill {

/// The shortest padded length; static last-token tiles belong to it.
inline constexpr std::int64_t kShortestBucket = 128;

/// The bucket of `n` uncached tokens: 128, 1024, then powers of two.
std::int64_t padded_prefill_length(std::int64_t n);

/// Refuses a chunk cap that some prompt could not be cut by: caps are powers of two from 128 on, or
/// multiples of 2048.
void validate_prefill_chunk_size(std::int64_t cap);

/// The chunk of a padded length above the cap: the largest multiple of the granularity (2048 if the
/// cap is a multiple of 2048, else the cap) that divides the length and is no more than the cap.
std::int64_t max_prefill_chunk_size(std::int64_t sequence_length, std::int64_t maximum);

/// Every bucket up to the smaller of chunk cap and sequence limit; that number itself when it is
/// below all buckets.
std::vector<std::int64_t> prefill_bucket_ladder(std::int64_t max_prefill_chunk_size,
                                                std::int64_t max_seq_len);

/// No wave has more physical rows.
inline constexpr std::int64_t kLargestPhysicalBatch = 32;

/// The smallest supported physical batch that holds `rows`, if there is one.
std::optional<std::int64_t> physical_batch_size(std::int64_t rows);

}  // namespace llm_runtime::prefill
