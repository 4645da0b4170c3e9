// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <span>
#include <vector>

#include "llm_runtime/decode/lane.h"
#include "llm_runtime/decode/staging.h"
#include "llm_runtime/support/errors.h"

namespace llm_runtime::decode {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

struct Buffers {
  std::vector<std::uint32_t> tokens = std::vector<std::uint32_t>(32, 77);
  std::vector<std::int32_t> positions;
  std::vector<std::uint32_t> rotary = std::vector<std::uint32_t>(32, 77);

  explicit Buffers(std::size_t rows) : positions(rows, 77) {}
  StagedInputs out() { return {tokens, positions, rotary}; }
};

void stage(const std::vector<std::int64_t>& tokens, const std::vector<std::int64_t>& start_pos,
           Buffers& buffers) {
  stage_decode_inputs(IntArray::vector(std::span(tokens)), IntArray::vector(std::span(start_pos)),
                      buffers.out());
}

TEST(StageDecodeInputs, PadsTokensAndKeepsNegativePositions) {
  Buffers buffers(3);
  stage({5, -1, 4294967295}, {0, -7, 9}, buffers);
  EXPECT_THAT(std::span(buffers.tokens).first(3), ElementsAre(5U, 0U, 4294967295U));
  EXPECT_THAT(std::span(buffers.tokens).subspan(3), Each(0U));
  EXPECT_THAT(buffers.positions, ElementsAre(0, -7, 9));
  EXPECT_THAT(std::span(buffers.rotary).first(3), ElementsAre(0U, 0U, 9U));
  EXPECT_THAT(std::span(buffers.rotary).subspan(3), Each(0U));
}

TEST(StageDecodeInputs, KeepsTheTokenOfAnUnusedSlotAndClampsItsPosition) {
  Buffers buffers(1);
  stage({12}, {std::numeric_limits<std::int64_t>::min()}, buffers);
  EXPECT_EQ(buffers.tokens[0], 12U);
  EXPECT_EQ(buffers.positions[0], std::numeric_limits<std::int32_t>::min());
}

TEST(StageDecodeInputs, RefusesATokenOfAnActiveSlotBeforeWriting) {
  Buffers buffers(2);
  EXPECT_THAT([&] { stage({5, -1}, {0, 0}, buffers); },
              ThrowsMessage<InvalidValue>(AllOf(HasSubstr("row 1"), HasSubstr("-1"))));
  EXPECT_THAT(buffers.tokens, Each(77U));
  EXPECT_THROW(stage({5, 4294967296}, {0, 0}, buffers), InvalidValue);
  EXPECT_THROW(stage({5, 5}, {0, 2147483648}, buffers), InvalidValue);
}

TEST(StageDecodeInputs, RefusesOtherSizes) {
  Buffers buffers(2);
  EXPECT_THROW(stage({1}, {0, 0}, buffers), InvalidValue);
  EXPECT_THROW(stage({1}, {0}, buffers), InvalidValue);  // positions buffer has two entries
  Buffers empty(0);
  EXPECT_THROW(stage({}, {}, empty), InvalidValue);
  buffers.rotary.resize(31);
  EXPECT_THROW(stage({1, 2}, {0, 0}, buffers), InvalidValue);
  buffers.rotary.resize(32);
  buffers.tokens.resize(33);
  EXPECT_THROW(stage({1, 2}, {0, 0}, buffers), InvalidValue);
}

TEST(Lane, RoundsUpToTiles) {
  EXPECT_EQ(round_up_to_tile(1), 32U);
  EXPECT_EQ(round_up_to_tile(32), 32U);
  EXPECT_EQ(round_up_to_tile(33), 64U);
}

}  // namespace
}  // namespace llm_runtime::decode
