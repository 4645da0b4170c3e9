// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "llm_runtime/sampling/seed_streams.h"
#include "llm_runtime/support/errors.h"

namespace llm_runtime::sampling {
namespace {

struct Lane {
  std::vector<std::uint64_t> keys{11, 22, 33};
  std::vector<std::int64_t> positions{-1, -1, -1};
  std::vector<std::int64_t> counts{0, 0, 0};
  std::vector<std::uint32_t> out{7, 8, 9};

  void draw(const std::vector<std::int64_t>& slots, const std::vector<std::int64_t>* wanted) {
    std::optional<IntArray> array;
    if (wanted != nullptr) array = IntArray::vector(std::span(*wanted));
    draw_seeds({keys, positions, counts}, slots, array, out);
  }
};

TEST(DrawSeeds, WritesOnlyTheDrawnSlots) {
  Lane lane;
  const std::vector<std::int64_t> wanted{5, 6, 7};
  lane.draw({0, 2}, &wanted);
  EXPECT_EQ(lane.out, (std::vector<std::uint32_t>{device_seed(11, 5), 8, device_seed(33, 7)}));
  EXPECT_EQ(lane.positions, (std::vector<std::int64_t>{5, -1, 7}));
  EXPECT_EQ(lane.counts, (std::vector<std::int64_t>{1, 0, 1}));
}

TEST(DrawSeeds, TheSamePositionDrawsTheSameSeedAndCountsOnce) {
  Lane lane;
  const std::vector<std::int64_t> wanted{5, 5, 5};
  lane.draw({1}, &wanted);
  const auto first = lane.out;
  lane.draw({1}, &wanted);
  EXPECT_EQ(lane.out, first);
  EXPECT_EQ(lane.counts[1], 1);
}

TEST(DrawSeeds, WithoutPositionsStreamsMoveOneOn) {
  Lane lane;
  lane.draw({0}, nullptr);
  lane.draw({0}, nullptr);
  EXPECT_EQ(lane.positions[0], 1);
  EXPECT_EQ(lane.out[0], device_seed(11, 1));
}

TEST(DrawSeeds, ABadSlotChangesNothing) {
  Lane lane;
  const std::vector<std::int64_t> wanted{5, 5};
  EXPECT_THROW(lane.draw({0, 2}, &wanted), InvalidValue);
  EXPECT_THROW(lane.draw({0, 3}, nullptr), InvalidValue);
  EXPECT_THROW(lane.draw({-1}, nullptr), InvalidValue);
  EXPECT_EQ(lane.counts, (std::vector<std::int64_t>{0, 0, 0}));
  EXPECT_EQ(lane.out, (std::vector<std::uint32_t>{7, 8, 9}));
}

TEST(DeviceSeed, LiesInTheDevicesRange) {
  for (std::int64_t position = 0; position < 1000; ++position) {
    const auto seed = device_seed(0x1234, position);
    EXPECT_GE(seed, 1U);
    EXPECT_LE(seed, kMaxDeviceSeed);
  }
}

}  // namespace
}  // namespace llm_runtime::sampling
