// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "llm_runtime/support/int_array.h"

namespace llm_runtime::paging {

/// Entries behind the mapped prefix: fills skip them.
inline constexpr std::int32_t kSkipBlock = -1;
/// Entries behind the mapped prefix where attention reads the whole table: any valid id will do.
inline constexpr std::int32_t kAnyBlock = 0;

/// Writes one row of a page table: `mapped` block ids of the caller's row, from column `first` on,
/// then `filler`. The only way from a caller's table into ours, so nothing behind the mapped prefix
/// can get through. The caller has checked `mapped <= out.size()` and that the source row is long
/// enough.
void write_table_row(const IntArray& source, std::size_t row, std::size_t first, std::size_t mapped,
                     std::int32_t filler, std::span<std::int32_t> out);

}  // namespace llm_runtime::paging
