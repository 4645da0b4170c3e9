// SPDX-License-Identifier: Apache-2.0
#include <cstdint>

#include "bindings/integers.h"
#include "bindings/module.h"
#include "bindings/value_class.h"
#include "llm_runtime/paging/page_table_layout.h"

namespace llm_runtime::bindings {

using namespace nb::literals;
using paging::PageTableLayout;

void bind_paging(nb::module_& m) {
  bind_value<PageTableLayout>(m, "PageTableLayout",
                              "Page-table geometry of one lane. Follows chapter 10, section 2.5.")
      .def(
          "__init__",
          [](PageTableLayout* self, std::int64_t block_size, std::int64_t raw_capacity_width,
             std::int64_t prefill_width, std::int64_t decode_width) {
            new (self) PageTableLayout(paging::checked({
                .block_size = block_size,
                .raw_capacity_width = raw_capacity_width,
                .prefill_width = prefill_width,
                .decode_width = decode_width,
            }));
          },
          "block_size"_a, "raw_capacity_width"_a, "prefill_width"_a, "decode_width"_a,
          "ValueError unless both widths hold the capacity in groups of 8 columns.")
      .def_static(
          "resolve",
          [](nb::handle block, nb::handle length, nb::handle blocks, nb::handle chunk) {
            const auto block_size = positive_integer(block, "block_size");
            const auto model_max_sequence_length =
                positive_integer(length, "model_max_sequence_length");
            const auto physical_num_blocks = positive_integer(blocks, "physical_num_blocks");
            const auto max_prefill_chunk_size = positive_integer(chunk, "max_prefill_chunk_size");
            return paging::resolve_layout(block_size, model_max_sequence_length,
                                          physical_num_blocks, max_prefill_chunk_size);
          },
          nb::kw_only(), "block_size"_a.none(), "model_max_sequence_length"_a.none(),
          "physical_num_blocks"_a.none(), "max_prefill_chunk_size"_a.none(),
          nb::sig("def resolve(*, block_size: int, model_max_sequence_length: int, "
                  "physical_num_blocks: int, max_prefill_chunk_size: int) -> PageTableLayout"),
          "The layout of a lane. ValueError for anything but positive integers, and for a cache "
          "with fewer blocks than the decode table has columns.");
  m.def(
      "fit_paged_kv_num_blocks",
      [](nb::handle num_blocks, nb::handle max_seq_len, nb::handle block_size) {
        return paging::fit_paged_kv_num_blocks(integer(nb::int_(num_blocks), "num_blocks"),
                                               integer(nb::int_(max_seq_len), "max_seq_len"),
                                               integer(nb::int_(block_size), "block_size"));
      },
      "num_blocks"_a, nb::kw_only(), "max_seq_len"_a, "block_size"_a,
      nb::sig("def fit_paged_kv_num_blocks(num_blocks: int, *, max_seq_len: int, block_size: int) "
              "-> int"),
      "Blocks to allocate: num_blocks, or more if the decode table of max_seq_len tokens needs "
      "them. Follows chapter 10, section 2.6.");
}

}  // namespace llm_runtime::bindings
