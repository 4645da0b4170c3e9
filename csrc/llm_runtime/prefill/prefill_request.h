// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "llm_runtime/support/shared_matrix.h"

namespace llm_runtime::prefill {

/// There is no third kind for chunking: a chunked request is a single one with chunk tables.
enum class PrefillKind : std::uint8_t { kSingle, kBatched };

std::string_view kind_name(PrefillKind kind);
PrefillKind kind_of(std::string_view name);

/// One invocation of a request.
struct PrefillChunk {
  std::int64_t token_start = 0;  // columns of the request's tokens
  std::int64_t token_stop = 0;
  std::int64_t chunk_start_idx = 0;  // position in the sequence, cached part included
  std::int64_t chunk_size = 0;       // padded tokens
  std::optional<SharedMatrix<std::int32_t>> chunk_page_table;  // fill-only blocks of this chunk
  bool contains_last_token = false;
};

/// One row of a request as the caller numbers it.
struct PrefillRow {
  std::int64_t source_row = 0;
  std::int64_t slot = 0;  // within the lane
  std::int64_t prompt_length = 0;
  std::int64_t cached_tokens = 0;     // where computing starts
  std::int64_t last_token_index = 0;  // position in the sequence

  std::int64_t uncached_tokens() const { return prompt_length - cached_tokens; }
};

/// One prefill that runs as a unit: a wave of rows, or one row in one or more chunks.
struct PrefillRequest {
  PrefillKind kind = PrefillKind::kSingle;
  std::vector<PrefillRow> rows;             // active rows only
  SharedMatrix<std::int64_t> tokens;        // uncached tokens, zero padded
  SharedMatrix<std::int32_t> page_table;    // of the whole sequences
  std::int64_t padded_sequence_length = 0;  // columns of tokens
  std::int64_t padded_batch_size = 0;       // rows of both arrays
  std::vector<PrefillChunk> chunks;         // ends with the one that holds the last token
  bool uses_chunked_prefill = false;
};

/// Refuses a chunk whose slice, size and start do not fit together.
void check_chunk(const PrefillChunk& chunk);

/// Rows from one list a field; refuses lists that are empty or differ in length.
std::vector<PrefillRow> zip_rows(std::span<const std::int64_t> source_rows,
                                 std::span<const std::int64_t> slots,
                                 std::span<const std::int64_t> prompt_lengths,
                                 std::span<const std::int64_t> cached_tokens,
                                 std::span<const std::int64_t> last_token_indices);

/// Refuses more than one row in a single request.
void check_kind(PrefillKind kind, std::size_t rows);

/// Refuses a request whose arrays and chunks do not fit together.
void check_arrays_and_chunks(const PrefillRequest& request);

}  // namespace llm_runtime::prefill
