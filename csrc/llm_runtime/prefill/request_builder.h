// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "llm_runtime/prefill/prefill_batch.h"
#include "llm_runtime/prefill/prefill_request.h"
#include "llm_runtime/support/shared_matrix.h"

namespace llm_runtime::prefill {

/// Makes requests out of checked rows of one batch. Borrows both arguments; a request owns its
/// arrays.
class RequestBuilder {
 public:
  RequestBuilder(const PrefillBatch& batch, const PrefillLimits& limits)
      : batch_(batch), limits_(limits) {}

  /// One physical wave of `physical_rows` rows for `rows`, none of which has cached tokens.
  PrefillRequest wave(std::vector<PrefillRow> rows, std::int64_t padded_length,
                      std::int64_t physical_rows) const;

  /// One row in one or more chunks; chunked if it is longer than the cap or starts behind cached
  /// tokens.
  PrefillRequest single(const PrefillRow& row, std::int64_t padded_length) const;

 private:
  /// How a row is cut into invocations of equal size.
  struct Cut {
    bool chunked = false;
    std::int64_t size = 0;
    std::int64_t count = 0;
  };
  Cut cut(const PrefillRow& row, std::int64_t padded_length) const;

  /// Blocks of the row's whole prompt; refuses rows that the cache or the caller's table cannot
  /// hold.
  std::size_t checked_blocks(const PrefillRow& row) const;
  std::int64_t table_width(std::int64_t end) const;
  void check_capacity(const PrefillRow& row, std::int64_t end, std::int64_t width) const;
  void check_chunk_size(const PrefillRow& row, const Cut& cut) const;
  void copy_tokens(const PrefillRow& row, std::span<std::int64_t> out) const;
  void add_chunks(PrefillRequest& request, const Cut& cut, std::size_t blocks,
                  MatrixMemory& memory) const;

  const PrefillBatch& batch_;
  const PrefillLimits& limits_;
};

}  // namespace llm_runtime::prefill
