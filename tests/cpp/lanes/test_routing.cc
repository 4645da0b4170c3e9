// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "llm_runtime/lanes/routing.h"
#include "llm_runtime/support/errors.h"

namespace llm_runtime::lanes {
namespace {

using testing::ElementsAre;
using Slots = std::vector<std::int64_t>;

TEST(RouteRows, RowsGoToTheLaneOfTheirSlotInCallOrder) {
  const auto lanes = route_rows(Slots{9, 0, 8, 3}, 3, 4);
  ASSERT_EQ(lanes.size(), 2U);
  EXPECT_EQ(lanes[0].lane, 0);
  EXPECT_THAT(lanes[0].rows, ElementsAre(1, 3));
  EXPECT_THAT(lanes[0].slots, ElementsAre(0, 3));
  EXPECT_EQ(lanes[1].lane, 2);
  EXPECT_THAT(lanes[1].rows, ElementsAre(0, 2));
  EXPECT_THAT(lanes[1].slots, ElementsAre(1, 0));
}

TEST(RouteRows, NoRowsNeedNoLane) { EXPECT_TRUE(route_rows(Slots{}, 2, 4).empty()); }

TEST(RouteRows, RefusesSlotsOutsideTheGroupAndSharedSlots) {
  EXPECT_THROW(route_rows(Slots{8}, 2, 4), InvalidValue);
  EXPECT_THROW(route_rows(Slots{-1}, 2, 4), InvalidValue);
  EXPECT_THROW(route_rows(Slots{5, 1, 5}, 2, 4), InvalidValue);
  EXPECT_THROW(route_rows(Slots{0}, 0, 4), InvalidValue);
}

}  // namespace
}  // namespace llm_runtime::lanes
