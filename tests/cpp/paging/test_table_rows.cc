// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <span>

#include "llm_runtime/paging/table_rows.h"

namespace llm_runtime::paging {
namespace {

using ::testing::ElementsAre;

constexpr std::array<std::int64_t, 8> kWide{1, 2, 3, 99, 5, 6, 7, 98};
constexpr std::array<std::int32_t, 8> kNarrow{1, 2, 3, 99, 5, 6, 7, 98};

TEST(TableRows, CopyTheMappedPrefixAndNothingBehindIt) {
  for (const auto& source : {IntArray::matrix(std::span<const std::int64_t>(kWide), 2, 4),
                             IntArray::matrix(std::span<const std::int32_t>(kNarrow), 2, 4)}) {
    std::array<std::int32_t, 6> row{};
    write_table_row(source, 1, 0, 3, kSkipBlock, row);
    EXPECT_THAT(row, ElementsAre(5, 6, 7, -1, -1, -1));
    write_table_row(source, 0, 1, 2, kAnyBlock, row);
    EXPECT_THAT(row, ElementsAre(2, 3, 0, 0, 0, 0));
    write_table_row(source, 0, 0, 0, kSkipBlock, row);
    EXPECT_THAT(row, ElementsAre(-1, -1, -1, -1, -1, -1));
  }
}

TEST(TableRows, FollowTheRowStride) {
  const IntArray columns_of_a_wider_table(kNarrow.data() + 1, 2, {2, 2}, 4);
  std::array<std::int32_t, 3> row{};
  write_table_row(columns_of_a_wider_table, 1, 0, 2, kSkipBlock, row);
  EXPECT_THAT(row, ElementsAre(6, 7, -1));
}

}  // namespace
}  // namespace llm_runtime::paging
