// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <limits>

#include "llm_runtime/sampling/sampling_rows.h"
#include "llm_runtime/support/errors.h"

namespace llm_runtime::sampling {
namespace {

constexpr SamplerLimits kLimits{.max_top_k = 32, .allow_argmax = true};

TEST(NormalisedRow, GreedyRowsHaveFixedValuesAndAnyTopK) {
  const auto row =
      normalised_row({.temperature = 0.0, .top_k = std::nullopt, .top_p = 0.3}, kLimits);
  ASSERT_TRUE(row.has_value());
  EXPECT_EQ(row->top_k, 1);
  EXPECT_EQ(row->top_p, 0.0);
  EXPECT_EQ(row->inverse_temperature, 1.0);
  EXPECT_TRUE(row->greedy && row->argmax);
}

TEST(NormalisedRow, StochasticRowsInvertTheTemperatureAndClampTopP) {
  const auto row = normalised_row({.temperature = 0.5, .top_k = 32, .top_p = 1.5}, kLimits);
  ASSERT_TRUE(row.has_value());
  EXPECT_EQ(row->top_k, 32);
  EXPECT_EQ(row->top_p, 1.0);
  EXPECT_EQ(row->inverse_temperature, 2.0);
  EXPECT_FALSE(row->greedy || row->argmax);
}

TEST(NormalisedRow, ARepetitionPenaltyOfZeroIsNoPenalty) {
  const auto row = normalised_row({.repetition_penalty = 0.0}, kLimits);
  ASSERT_TRUE(row.has_value());
  EXPECT_FALSE(row->penalised());
}

TEST(NormalisedRow, WhatTheDeviceCannotSampleIsNoRow) {
  EXPECT_FALSE(normalised_row({.temperature = 1.0, .top_k = 33}, kLimits));
  EXPECT_FALSE(normalised_row({.temperature = 1.0, .top_k = 0}, kLimits));
  EXPECT_FALSE(normalised_row({.temperature = 1.0, .top_k = std::nullopt}, kLimits));
  EXPECT_FALSE(normalised_row({.temperature = -0.1, .top_k = 1}, kLimits));
  EXPECT_FALSE(normalised_row({.top_p = std::numeric_limits<double>::infinity()}, kLimits));
}

TEST(SamplingRows, SummariseTheirActiveRows) {
  const SamplingRow greedy{.argmax = true};
  const SamplingRow penalised{.presence_penalty = 0.5, .greedy = false};
  EXPECT_TRUE(SamplingRows({greedy}, {}, 4).all_argmax());
  const SamplingRows mixed({greedy, penalised}, {1, 3}, 4);
  EXPECT_FALSE(mixed.all_argmax());
  EXPECT_FALSE(mixed.all_greedy());
  EXPECT_TRUE(mixed.penalised());
  EXPECT_EQ(mixed.place(1), 3U);
}

TEST(SamplingRows, RefuseRowsThatDoNotFit) {
  EXPECT_THROW(SamplingRows({}, {}, 4), InvalidValue);
  EXPECT_THROW(SamplingRows({{}, {}}, {}, 1), InvalidValue);
  EXPECT_THROW(SamplingRows({{}, {}}, {1, 1}, 4), InvalidValue);
  EXPECT_THROW(SamplingRows({{}}, {4}, 4), InvalidValue);
  EXPECT_THROW(SamplingRows({{}}, {0, 1}, 4), InvalidValue);
}

}  // namespace
}  // namespace llm_runtime::sampling
