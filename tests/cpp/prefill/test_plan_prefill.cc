// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "llm_runtime/prefill/plan_prefill.h"
#include "llm_runtime/support/errors.h"
#include "prefill/plan_call.h"

namespace llm_runtime::prefill {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

template <class T>
std::vector<T> prefix(const SharedMatrix<T>& matrix, std::size_t row, std::size_t count) {
  const auto entries = matrix.row(row).first(count);
  return {entries.begin(), entries.end()};
}

template <class T>
std::vector<T> behind(const SharedMatrix<T>& matrix, std::size_t row, std::size_t count) {
  const auto entries = matrix.row(row).subspan(count);
  return {entries.begin(), entries.end()};
}

TEST(PlanPrefill, OneShortRowIsARegularSingle) {
  const auto plan = PlanCall{.lengths = {80}, .starts = {}, .slots = {}}.plan();
  ASSERT_EQ(plan.size(), 1U);
  const auto& request = plan[0];
  EXPECT_EQ(request.kind, PrefillKind::kSingle);
  EXPECT_FALSE(request.uses_chunked_prefill);
  EXPECT_EQ(request.padded_sequence_length, 128);
  EXPECT_THAT(prefix(request.tokens, 0, 3), ElementsAre(1, 2, 3));
  EXPECT_THAT(behind(request.tokens, 0, 80), Each(0));
  EXPECT_THAT(prefix(request.page_table, 0, 3), ElementsAre(1000, 1001, 1002));
  EXPECT_THAT(behind(request.page_table, 0, 3), Each(-1));
  EXPECT_NO_THROW(check_arrays_and_chunks(request));
}

TEST(PlanPrefill, AnEligibleBucketIsOneWaveWithInertPadding) {
  PlanCall call{.lengths = {87, 115, 125}, .starts = {}, .slots = {{7, 3, 11}}};
  const auto plan = call.plan();
  ASSERT_EQ(plan.size(), 1U);
  const auto& wave = plan[0];
  EXPECT_EQ(wave.kind, PrefillKind::kBatched);
  EXPECT_EQ(wave.padded_batch_size, 4);
  EXPECT_EQ(wave.rows[2].slot, 11);
  EXPECT_EQ(wave.rows[2].last_token_index, 124);
  EXPECT_THAT(prefix(wave.page_table, 1, 5), ElementsAre(2000, 2001, 2002, 2003, -1));
  EXPECT_THAT(wave.tokens.row(3), Each(0));
  EXPECT_THAT(wave.page_table.row(3), Each(-1));
}

TEST(PlanPrefill, ACachedRowBreaksUpItsBucket) {
  const auto plan = PlanCall{.lengths = {160, 128}, .starts = {32, 0}, .slots = {}}.plan();
  ASSERT_EQ(plan.size(), 2U);
  EXPECT_TRUE(plan[0].uses_chunked_prefill);
  EXPECT_FALSE(plan[1].uses_chunked_prefill);
}

TEST(PlanPrefill, ALongCachedRowIsCutIntoEqualChunks) {
  const auto plan = PlanCall{.lengths = {4129}, .starts = {96}, .slots = {}}.plan();
  const auto& chunks = plan.at(0).chunks;
  ASSERT_EQ(chunks.size(), 2U);
  EXPECT_EQ(chunks[1].chunk_start_idx, 2144);
  EXPECT_EQ(chunks[1].token_start, 2048);
  EXPECT_THAT(prefix(*chunks[0].chunk_page_table, 0, 2), ElementsAre(1003, 1004));
  EXPECT_THAT(behind(*chunks[1].chunk_page_table, 0, 62), ElementsAre(1129, -1));
  EXPECT_THAT(behind(plan[0].page_table, 0, 130), Each(0));
  EXPECT_FALSE(chunks[0].contains_last_token);
  EXPECT_TRUE(chunks[1].contains_last_token);
}

TEST(PlanPrefill, AFullyCachedRowComputesItsLastBlock) {
  auto call = PlanCall{.lengths = {96}, .starts = {96}, .slots = {}};
  EXPECT_EQ(call.plan().at(0).rows[0].cached_tokens, 64);
  call.limits.start_alignment = 64;
  EXPECT_EQ(call.plan().at(0).rows[0].cached_tokens, 64);
  call.limits.start_alignment = 96;
  EXPECT_EQ(call.plan().at(0).rows[0].cached_tokens, 0);
}

TEST(PlanPrefill, ChunksOfPaddingNeedNoCapacity) {
  auto call = PlanCall{.lengths = {4097}, .starts = {}, .slots = {}};
  call.limits.max_actual_page_table_width = 129;
  call.limits.canonical_page_table_width = 192;  // three chunks of 64 blocks
  EXPECT_EQ(call.plan().at(0).chunks.size(), 3U);
  call.limits.canonical_page_table_width = 184;
  EXPECT_THAT([&] { call.plan(); },
              ThrowsMessage<InvalidValue>(HasSubstr("canonical_page_table_width 184")));
}

TEST(PlanPrefill, AFallbackNamesRowsRuleAndNumbers) {
  const auto plan =
      PlanCall{.lengths = {80, 700, 90, 160}, .starts = {0, 0, 0, 64}, .slots = {}}.explain();
  EXPECT_EQ(plan.requests.size(), 4U);
  ASSERT_EQ(plan.fallbacks.size(), 2U);
  EXPECT_THAT(plan.fallbacks[0].rows, ElementsAre(0, 2, 3));
  EXPECT_EQ(plan.fallbacks[0].rule, "cached_tokens");
  EXPECT_THAT(plan.fallbacks[0].detail, AllOf(HasSubstr("row 3"), HasSubstr("64")));
  EXPECT_EQ(plan.fallbacks[1].rule, "fewer_than_two_rows");
}

TEST(PlanPrefill, RefusalsNameTheRow) {
  EXPECT_THAT(([] { PlanCall{.lengths = {5, 0, 7}, .starts = {}, .slots = {}}.plan(); }),
              ThrowsMessage<InvalidValue>(HasSubstr("row 1")));
  EXPECT_THAT(([] { PlanCall{.lengths = {300}, .starts = {100}, .slots = {}}.plan(); }),
              ThrowsMessage<InvalidValue>(
                  AllOf(HasSubstr("row 0"), HasSubstr("100"), HasSubstr("block_size 32"))));
  EXPECT_THAT(([] { PlanCall{.lengths = {300}, .starts = {}, .slots = {}, .columns = 9}.plan(); }),
              ThrowsMessage<InvalidValue>(HasSubstr("page_table has 9 columns")));
}

TEST(PlanPrefill, RequestsShareMemoryThatOutlivesThem) {
  SharedMatrix<std::int32_t> table;
  {
    auto plan = PlanCall{.lengths = {160}, .starts = {32}, .slots = {}}.plan();
    table = *plan[0].chunks[0].chunk_page_table;
  }
  EXPECT_THAT(prefix(table, 0, 4), ElementsAre(1001, 1002, 1003, 1004));
}

}  // namespace
}  // namespace llm_runtime::prefill
