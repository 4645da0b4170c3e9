// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "llm_runtime/paging/page_table_layout.h"
#include "llm_runtime/support/errors.h"

namespace llm_runtime::paging {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

TEST(PageTableLayout, LeavesRoomForTheOverhangOfOneChunk) {
  EXPECT_EQ(resolve_layout(32, 4096, 132, 2048), (PageTableLayout{32, 128, 192, 128}));
  EXPECT_EQ(resolve_layout(32, 1000, 32, 128), (PageTableLayout{32, 32, 40, 32}));
  EXPECT_EQ(resolve_layout(32, 1024, 32, 1), (PageTableLayout{32, 32, 32, 32}));
}

TEST(PageTableLayout, RefusesACacheBelowTheDecodeTable) {
  EXPECT_THAT([] { resolve_layout(32, 100, 4, 128); },
              ThrowsMessage<InvalidValue>(HasSubstr("allocate at least 8 blocks")));
  EXPECT_EQ(fit_paged_kv_num_blocks(4, 100, 32), 8);
  EXPECT_NO_THROW(resolve_layout(32, 100, 8, 128));
}

TEST(PageTableLayout, RefusesWidthsThatDoNotHoldTheCapacity) {
  EXPECT_NO_THROW(checked({32, 5, 16, 8}));
  EXPECT_THAT([] { checked({32, 9, 8, 16}); },
              ThrowsMessage<InvalidValue>(HasSubstr("prefill_width 8 is narrower")));
  EXPECT_THAT([] { checked({32, 4, 8, 12}); },
              ThrowsMessage<InvalidValue>(HasSubstr("decode_width 12 is not a multiple")));
}

TEST(PageTableLayout, NamesTheFirstBadArgument) {
  EXPECT_THAT([] { resolve_layout(32, 0, 0, 0); },
              ThrowsMessage<InvalidValue>(HasSubstr("model_max_sequence_length")));
}

}  // namespace
}  // namespace llm_runtime::paging
