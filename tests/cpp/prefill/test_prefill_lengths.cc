// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>

#include "llm_runtime/prefill/prefill_lengths.h"
#include "llm_runtime/support/errors.h"

namespace llm_runtime::prefill {
namespace {

using ::testing::ElementsAre;

TEST(PrefillLengths, BucketsHaveNoRungBetween128And1024) {
  EXPECT_EQ(padded_prefill_length(1), 128);
  EXPECT_EQ(padded_prefill_length(128), 128);
  EXPECT_EQ(padded_prefill_length(129), 1024);
  EXPECT_EQ(padded_prefill_length(1025), 2048);
  EXPECT_EQ(padded_prefill_length(131072), 131072);
  EXPECT_THROW(padded_prefill_length(0), InvalidValue);
}

TEST(PrefillLengths, EveryLegalCapCutsEveryLongerBucket) {
  for (const std::int64_t cap : {128, 256, 512, 1024, 2048, 4096, 6144, 10240, 14336}) {
    ASSERT_NO_THROW(validate_prefill_chunk_size(cap));
    for (std::int64_t length = 128; length <= 131072; length = padded_prefill_length(length + 1)) {
      if (length <= cap) continue;
      const auto chunk = max_prefill_chunk_size(length, cap);
      EXPECT_LE(chunk, cap);
      EXPECT_EQ(length % chunk, 0) << length << " " << cap;
      EXPECT_GE(2 * chunk, cap < 2048 ? cap : 2048);
    }
  }
}

TEST(PrefillLengths, OtherCapsAreRefused) {
  for (const std::int64_t cap : {-2048, 0, 1, 64, 100, 384, 1536, 3000})
    EXPECT_THROW(validate_prefill_chunk_size(cap), InvalidValue) << cap;
  EXPECT_THROW(max_prefill_chunk_size(1000, 2048), InvalidValue);
}

TEST(PrefillLengths, LadderEndsAtTheSmallerLimit) {
  EXPECT_THAT(prefill_bucket_ladder(8192, 5000), ElementsAre(128, 1024, 2048, 4096));
  EXPECT_THAT(prefill_bucket_ladder(64, 5000), ElementsAre(64));
}

TEST(PrefillLengths, PhysicalBatchesAreTheNextSupportedSize) {
  EXPECT_EQ(physical_batch_size(1), 1);
  EXPECT_EQ(physical_batch_size(3), 4);
  EXPECT_EQ(physical_batch_size(17), 32);
  EXPECT_EQ(physical_batch_size(33), std::nullopt);
}

}  // namespace
}  // namespace llm_runtime::prefill
