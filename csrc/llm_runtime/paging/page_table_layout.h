// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <tuple>

#include "llm_runtime/support/fields.h"

namespace llm_runtime::paging {

/// Page-table widths are whole groups of this many entries.
inline constexpr std::int64_t kWidthAlignment = 8;

/// The one owner of page-table geometry, shared by prefill and decode.
struct PageTableLayout {
  std::int64_t block_size = 0;          // tokens a block
  std::int64_t raw_capacity_width = 0;  // blocks that one sequence may use
  std::int64_t prefill_width = 0;  // columns, room for the overhang of one padded chunk included
  std::int64_t decode_width = 0;   // columns

  static constexpr auto fields() {
    using S = PageTableLayout;
    return std::tuple{
        field("block_size", &S::block_size), field("raw_capacity_width", &S::raw_capacity_width),
        field("prefill_width", &S::prefill_width), field("decode_width", &S::decode_width)};
  }
  bool operator==(const PageTableLayout&) const = default;
};

/// The layout itself if its widths hold its capacity in whole groups; refuses it otherwise.
PageTableLayout checked(const PageTableLayout& layout);

/// The layout of a lane. Refuses a physical cache with fewer blocks than the decode table has
/// columns.
PageTableLayout resolve_layout(std::int64_t block_size, std::int64_t model_max_sequence_length,
                               std::int64_t physical_num_blocks,
                               std::int64_t max_prefill_chunk_size);

/// The number of blocks to allocate: `num_blocks`, or more if the decode table of the longest
/// sequence needs them.
std::int64_t fit_paged_kv_num_blocks(std::int64_t num_blocks, std::int64_t max_seq_len,
                                     std::int64_t block_size);

}  // namespace llm_runtime::paging
