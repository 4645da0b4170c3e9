// SPDX-License-Identifier: Apache-2.0
#include "llm_runtime/paging/table_rows.h"

#include <algorithm>

namespace llm_runtime::paging {

void write_table_row(const IntArray& source, std::size_t row, std::size_t first, std::size_t mapped,
                     std::int32_t filler, std::span<std::int32_t> out) {
  source.copy_row(row, first, out.first(mapped));
  std::ranges::fill(out.subspan(mapped), filler);
}

}  // namespace llm_runtime::paging
