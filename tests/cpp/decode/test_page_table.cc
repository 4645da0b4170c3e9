// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <span>

#include "llm_runtime/decode/page_table.h"

namespace llm_runtime::decode {
namespace {

using ::testing::ElementsAre;

template <class Id>
IntArray matrix(const std::vector<Id>& ids, std::size_t rows, std::size_t columns) {
  return IntArray::matrix(std::span(ids), rows, columns);
}

TEST(PageTable, OwnsItsEntries) {
  std::vector<std::int32_t> ids{1, 2, 3, 4};
  const PageTable table(matrix(ids, 2, 2), RowCounts{2, 1}, 3);
  ids = {9, 9, 9, 9};
  EXPECT_THAT(table.row(0), ElementsAre(1, 2, 0));
  EXPECT_THAT(table.row(1), ElementsAre(3, 0, 0));
}

TEST(PageTable, NormalisedEqualityLooksAtPrefixesAndTheirTails) {
  const std::vector<std::int64_t> ids{1, 2, 3, 0};
  const IntArray source = matrix(ids, 2, 2);
  const PageTable table(source, RowCounts{2, 2}, 2);
  EXPECT_TRUE(table.equals_normalised(source, RowCounts{2, 2}));
  EXPECT_TRUE(table.equals_normalised(source, RowCounts{2, 1}));   // row 1 ends in a zero
  EXPECT_FALSE(table.equals_normalised(source, RowCounts{1, 2}));  // row 0 does not
}

TEST(PageTable, ComparesInt64IdsInFullWidth) {
  const std::vector<std::int64_t> ids{1};
  const std::vector<std::int64_t> aliased{1 + (std::int64_t{1} << 32)};
  const PageTable table(matrix(ids, 1, 1), RowCounts{1}, 1);
  EXPECT_FALSE(table.equals_normalised(matrix(aliased, 1, 1), RowCounts{1}));
}

TEST(PageTable, EqualityNeedsShapeAndContent) {
  const std::vector<std::int32_t> ids{1, 2};
  const PageTable row(matrix(ids, 1, 2), RowCounts{2}, 2);
  const PageTable column(matrix(ids, 2, 1), RowCounts{1, 1}, 1);
  EXPECT_FALSE(row == column);
  EXPECT_TRUE(row == PageTable(matrix(ids, 1, 2), RowCounts{2}, 2));
}

}  // namespace
}  // namespace llm_runtime::decode
