// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "llm_runtime/decode/tables.h"
#include "llm_runtime/support/errors.h"

namespace llm_runtime::decode {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

constexpr DecodeGeometry kGeometry{.block_size = 32, .raw_capacity_width = 4, .decode_width = 8};

/// A caller's table: rows of block ids of either width of integer.
template <class Id>
struct Table {
  std::vector<Id> ids;
  std::size_t columns;
  IntArray array() const { return IntArray::matrix(std::span(ids), ids.size() / columns, columns); }
};

using Table32 = Table<std::int32_t>;

DecodeBatch prepare(DecodeTables& tables, const std::vector<std::int32_t>& start_pos,
                    const Table32& table, const TableCommands& commands = {}) {
  return tables.prepare(IntArray::vector(std::span(start_pos)), table.array(), commands);
}

TEST(DecodeTables, CopiesTheUsedPrefixAndZeroesTheRest) {
  DecodeTables tables(3, kGeometry);
  const DecodeBatch batch = prepare(tables, {-7, 31, 32}, {{1, 2, 3, 4, 5, 6, 7, 8, 9}, 3});
  EXPECT_THAT(batch.page_table->row(0), ElementsAre(0, 0, 0, 0, 0, 0, 0, 0));
  EXPECT_THAT(batch.page_table->row(1), ElementsAre(4, 0, 0, 0, 0, 0, 0, 0));
  EXPECT_THAT(batch.page_table->row(2), ElementsAre(7, 8, 0, 0, 0, 0, 0, 0));
  EXPECT_THAT(batch.active.indices(), ElementsAre(1, 2));
  EXPECT_TRUE(batch.page_table_changed);
}

TEST(DecodeTables, FeedbackAddsTheNextBlockAtABlockEndOnly) {
  DecodeTables tables(4, kGeometry);
  const Table32 table{{1, 2, 3, 4, 99, 5, 6, 7, 8, 99, 9, 10, 11, 12, 99, 13, 14, 15, 16, 99}, 5};
  const DecodeBatch batch = prepare(tables, {30, 31, 127, -1}, table, {.device_feedback = true});
  EXPECT_THAT(batch.page_table->row(0), ElementsAre(1, 0, 0, 0, 0, 0, 0, 0));
  EXPECT_THAT(batch.page_table->row(1), ElementsAre(5, 6, 0, 0, 0, 0, 0, 0));
  EXPECT_THAT(batch.page_table->row(2),
              ElementsAre(9, 10, 11, 12, 0, 0, 0, 0));  // at full capacity
  EXPECT_THAT(batch.page_table->row(3), ElementsAre(0, 0, 0, 0, 0, 0, 0, 0));
}

TEST(DecodeTables, FeedbackIsClampedToANarrowTable) {
  DecodeTables tables(1, kGeometry);
  const DecodeBatch batch = prepare(tables, {31}, {{5}, 1}, {.device_feedback = true});
  EXPECT_THAT(batch.page_table->row(0), ElementsAre(5, 0, 0, 0, 0, 0, 0, 0));
}

TEST(DecodeTables, ReturnsTheSameTableWhileTheNormalisedContentStays) {
  DecodeTables tables(2, kGeometry);
  Table32 table{{3, 4, 6, 7}, 2};
  const auto first = prepare(tables, {0, -1}, table).page_table;
  EXPECT_EQ(prepare(tables, {1, -1}, table).page_table, first);
  table.ids = {3, 90, 91, 92};
  EXPECT_EQ(prepare(tables, {1, -1}, table).page_table, first);
  EXPECT_EQ(prepare(tables, {1, -1}, {{3, 90, 1, 91, 92, 2}, 3}).page_table, first);  // wider input
  table.ids[0] = 9;
  const auto edited = prepare(tables, {1, -1}, table).page_table;
  EXPECT_NE(edited, first);
  EXPECT_EQ(edited->row(0)[0], 9);
  EXPECT_EQ(first->row(0)[0], 3);  // a table that was handed out never changes
}

TEST(DecodeTables, AShorterPrefixIsAChangeUnlessTheDroppedBlocksAreZero) {
  DecodeTables tables(1, kGeometry);
  const auto two = prepare(tables, {32}, {{3, 4}, 2}).page_table;
  EXPECT_NE(prepare(tables, {0}, {{3, 4}, 2}).page_table, two);
  const auto zero_tail = prepare(tables, {32}, {{3, 0}, 2}).page_table;
  EXPECT_EQ(prepare(tables, {0}, {{3, 0}, 2}).page_table, zero_tail);
}

TEST(DecodeTables, ComparesWithTheNotedSubmissionAndNotWithTheLastPrepare) {
  DecodeTables tables(1, kGeometry);
  const Table32 table{{3, 4}, 2};
  const DecodeBatch first = prepare(tables, {0}, table);
  EXPECT_TRUE(prepare(tables, {0}, table).page_table_changed);
  tables.note_submitted(first);
  EXPECT_FALSE(prepare(tables, {0}, table).page_table_changed);
  EXPECT_TRUE(prepare(tables, {32}, table).page_table_changed);  // abandoned
  EXPECT_FALSE(prepare(tables, {0}, table).page_table_changed);  // equal content, rebuilt
  tables.reset();
  EXPECT_TRUE(prepare(tables, {0}, table).page_table_changed);
}

TEST(DecodeTables, AcceptsInt64AndRefusesIdsThatDoNotFit) {
  DecodeTables tables(1, kGeometry);
  const std::vector<std::int64_t> positions{33};
  const auto prepare64 = [&](const Table<std::int64_t>& table) {
    return tables.prepare(IntArray::vector(std::span(positions)), table.array(), TableCommands{});
  };
  const auto table =
      prepare64({{7, 8, std::int64_t{1} << 40}, 3}).page_table;  // garbage behind the prefix
  EXPECT_THAT(table->row(0), ElementsAre(7, 8, 0, 0, 0, 0, 0, 0));
  EXPECT_EQ(prepare64({{7, 8, 5}, 3}).page_table, table);
  EXPECT_THAT([&] { prepare64({{7, std::int64_t{1} << 40}, 2}); },
              ThrowsMessage<InvalidValue>(
                  AllOf(HasSubstr("row 0"), HasSubstr("column 1"), HasSubstr("1099511627776"))));
  EXPECT_EQ(prepare64({{7, 8}, 2}).page_table, table);  // the refusal left the cache alone
}

TEST(DecodeTables, RefusesAPositionBeyondCapacityNamingRowPositionAndCapacity) {
  DecodeTables tables(2, kGeometry);
  const Table32 wide{std::vector<std::int32_t>(16, 1), 8};
  EXPECT_NO_THROW(prepare(tables, {-1, 127}, wide));
  EXPECT_THAT(
      [&] { prepare(tables, {-1, 128}, wide); },
      ThrowsMessage<InvalidValue>(AllOf(HasSubstr("row 1"), HasSubstr("128"), HasSubstr("capacity"),
                                        HasSubstr("4 blocks of 32"))));
  const std::vector<std::int64_t> far{0, std::numeric_limits<std::int64_t>::max()};
  EXPECT_THROW(tables.prepare(IntArray::vector(std::span(far)), wide.array(), TableCommands{}),
               InvalidValue);
}

TEST(DecodeTables, RefusesATableTooNarrowForThePosition) {
  DecodeTables tables(1, kGeometry);
  EXPECT_THAT([&] { prepare(tables, {64}, {{1, 2}, 2}); },
              ThrowsMessage<InvalidValue>(
                  AllOf(HasSubstr("row 0"), HasSubstr("too narrow"), HasSubstr("2 columns"))));
}

TEST(DecodeTables, RefusesOtherBatchSizes) {
  DecodeTables tables(2, kGeometry);
  EXPECT_THAT([&] { prepare(tables, {0}, {{1}, 1}); },
              ThrowsMessage<InvalidValue>(HasSubstr("must equal lane capacity 2")));
  EXPECT_THAT([&] { prepare(tables, {0}, {{1, 2}, 1}); },
              ThrowsMessage<InvalidValue>(HasSubstr("must match")));
}

TEST(DecodeTables, RefusesLanesAndLayoutsThatCannotExist) {
  EXPECT_THROW(DecodeTables(0, kGeometry), InvalidValue);
  EXPECT_NO_THROW(DecodeTables(32, kGeometry));
  EXPECT_THAT([] { const DecodeTables tables(33, kGeometry); },
              ThrowsMessage<InvalidValue>(AllOf(HasSubstr("33"), HasSubstr("32 slots"))));
  EXPECT_THROW(DecodeTables(1, {0, 4, 8}), InvalidValue);
  EXPECT_THROW(DecodeTables(1, {32, 0, 8}), InvalidValue);
  EXPECT_THROW(DecodeTables(1, {32, 9, 8}), InvalidValue);
}

TEST(DecodeTables, FullReloadCopiesWholeRowsUpToCapacityAndChecksPositions) {
  DecodeTables tables(1, kGeometry);
  const Table32 table{{1, 2, 3, 4, 5}, 5};
  const DecodeBatch batch = prepare(tables, {0}, table, {.reload_inputs = true});
  EXPECT_THAT(batch.page_table->row(0), ElementsAre(1, 2, 3, 4, 0, 0, 0, 0));
  EXPECT_EQ(prepare(tables, {0}, table, {.reload_inputs = true}).page_table, batch.page_table);
  EXPECT_THROW(prepare(tables, {128}, table, {.reload_inputs = true}), InvalidValue);
  EXPECT_THROW(prepare(tables, {64}, {{1, 2}, 2}, {.reload_inputs = true}), InvalidValue);
}

TEST(DecodeTables, TableOnlyReloadIgnoresStalePositions) {
  DecodeTables tables(1, kGeometry);
  const TableCommands commands{
      .device_feedback = true, .reload_inputs = false, .reload_page_table = true};
  const DecodeBatch batch = prepare(tables, {4000}, {{1, 2}, 2}, commands);
  EXPECT_THAT(batch.page_table->row(0), ElementsAre(1, 2, 0, 0, 0, 0, 0, 0));
}

TEST(DecodeTables, ResidentStepReusesTheSubmittedTable) {
  DecodeTables tables(1, kGeometry);
  const TableCommands resident{.device_feedback = true, .reload_inputs = false};
  EXPECT_THAT([&] { prepare(tables, {0}, {{1}, 1}, resident); },
              ThrowsMessage<IllegalState>(HasSubstr("no step was submitted")));
  const DecodeBatch submitted = prepare(tables, {0}, {{1}, 1});
  tables.note_submitted(submitted);
  prepare(tables, {0}, {{2}, 1});
  const DecodeBatch batch = prepare(tables, {4000}, {{9}, 1}, resident);
  EXPECT_EQ(batch.page_table, submitted.page_table);
  EXPECT_FALSE(batch.page_table_changed);
}

TEST(DecodeTables, RefusesIllegalReloadCombinations) {
  DecodeTables tables(1, kGeometry);
  EXPECT_THROW(prepare(tables, {0}, {{1}, 1}, {.reload_page_table = true}), InvalidValue);
  EXPECT_THROW(prepare(tables, {0}, {{1}, 1}, {.reload_inputs = true, .reload_page_table = true}),
               InvalidValue);
}

TEST(DecodeTables, AnotherLayoutForgetsTablesAndTheSameLayoutDoesNot) {
  DecodeTables tables(1, kGeometry);
  const DecodeBatch before = prepare(tables, {0}, {{1}, 1});
  tables.note_submitted(before);
  tables.configure(kGeometry);
  EXPECT_EQ(prepare(tables, {0}, {{1}, 1}).page_table, before.page_table);
  tables.configure({.block_size = 32, .raw_capacity_width = 4, .decode_width = 16});
  const DecodeBatch after = prepare(tables, {0}, {{1}, 1});
  EXPECT_EQ(after.page_table->width(), 16U);
  EXPECT_TRUE(after.page_table_changed);
  EXPECT_THAT([&] { tables.note_submitted(before); },
              ThrowsMessage<InvalidValue>(AllOf(HasSubstr("1 x 8"), HasSubstr("1 x 16"))));
  EXPECT_THROW(tables.configure({0, 4, 8}), InvalidValue);
}

TEST(DecodeTables, CanBeUsedFromTwoThreads) {
  DecodeTables tables(2, kGeometry);
  const auto work = [&tables](std::int32_t first_block) {
    for (std::int32_t step = 0; step < 500; ++step) {
      const std::int32_t block = first_block + step / 10;
      const DecodeBatch batch = prepare(tables, {step % 32, -1}, {{block, 0}, 1});
      EXPECT_THAT(batch.page_table->row(0), ElementsAre(block, 0, 0, 0, 0, 0, 0, 0));
      tables.note_submitted(batch);
    }
  };
  std::thread other(work, 100);
  work(5000);
  other.join();
}

}  // namespace
}  // namespace llm_runtime::decode
