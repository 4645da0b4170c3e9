// SPDX-License-Identifier: Apache-2.0
#include "llm_runtime/paging/page_table_layout.h"

#include <algorithm>

#include "llm_runtime/support/errors.h"
#include "llm_runtime/support/integers.h"

namespace llm_runtime::paging {

namespace {

void require_width(std::int64_t width, std::int64_t raw, const char* name) {
  require_value(width >= raw, name, " ", width, " is narrower than raw_capacity_width ", raw);
  require_value(width % kWidthAlignment == 0, name, " ", width, " is not a multiple of ",
                kWidthAlignment);
}

}  // namespace

PageTableLayout checked(const PageTableLayout& layout) {
  require_positive(layout.block_size, "block_size");
  require_positive(layout.raw_capacity_width, "raw_capacity_width");
  require_width(layout.prefill_width, layout.raw_capacity_width, "prefill_width");
  require_width(layout.decode_width, layout.raw_capacity_width, "decode_width");
  return layout;
}

PageTableLayout resolve_layout(std::int64_t block_size, std::int64_t model_max_sequence_length,
                               std::int64_t physical_num_blocks,
                               std::int64_t max_prefill_chunk_size) {
  require_positive(block_size, "block_size");
  require_positive(model_max_sequence_length, "model_max_sequence_length");
  require_positive(physical_num_blocks, "physical_num_blocks");
  require_positive(max_prefill_chunk_size, "max_prefill_chunk_size");

  const auto raw = std::min(ceil_div(model_max_sequence_length, block_size), physical_num_blocks);
  const auto decode_width = round_up(raw, kWidthAlignment);
  require_value(decode_width <= physical_num_blocks, "the decode page table has ", decode_width,
                " columns (", raw, " blocks of ", block_size, " tokens, rounded up to ",
                kWidthAlignment, ") but physical_num_blocks is ", physical_num_blocks,
                "; allocate at least ", decode_width, " blocks");
  // The last chunk of a prompt that ends with its first token hangs over by the rest of the chunk.
  const auto overhang = ceil_div(max_prefill_chunk_size - 1, block_size);
  return checked({
      .block_size = block_size,
      .raw_capacity_width = raw,
      .prefill_width = round_up(raw + overhang, kWidthAlignment),
      .decode_width = decode_width,
  });
}

std::int64_t fit_paged_kv_num_blocks(std::int64_t num_blocks, std::int64_t max_seq_len,
                                     std::int64_t block_size) {
  require_positive(block_size, "block_size");
  return std::max(num_blocks, round_up(ceil_div(max_seq_len, block_size), kWidthAlignment));
}

}  // namespace llm_runtime::paging
