// SPDX-License-Identifier: Apache-2.0
#include "llm_runtime/prefill/prefill_request.h"

#include <algorithm>
#include <utility>

#include "llm_runtime/support/errors.h"

namespace llm_runtime::prefill {

namespace {

void require_size(std::size_t size, std::int64_t wanted, const char* what, const char* field) {
  require_value(std::cmp_equal(size, wanted), what, " are ", size, " but ", field, " is ", wanted);
}

}  // namespace

std::string_view kind_name(PrefillKind kind) {
  return kind == PrefillKind::kSingle ? "single" : "batched";
}

PrefillKind kind_of(std::string_view name) {
  if (name == "single") return PrefillKind::kSingle;
  require_value(name == "batched", "kind must be 'single' or 'batched', not '", name, "'");
  return PrefillKind::kBatched;
}

void check_chunk(const PrefillChunk& chunk) {
  require_value(chunk.token_start >= 0 && chunk.token_stop > chunk.token_start,
                "token_slice must be a non-empty range from 0 on, not ", chunk.token_start, ":",
                chunk.token_stop);
  require_value(chunk.token_stop - chunk.token_start == chunk.chunk_size, "token_slice ",
                chunk.token_start, ":", chunk.token_stop, " does not hold chunk_size ",
                chunk.chunk_size, " tokens");
  require_value(chunk.chunk_start_idx >= 0, "chunk_start_idx must not be negative, not ",
                chunk.chunk_start_idx);
}

std::vector<PrefillRow> zip_rows(std::span<const std::int64_t> source_rows,
                                 std::span<const std::int64_t> slots,
                                 std::span<const std::int64_t> prompt_lengths,
                                 std::span<const std::int64_t> cached_tokens,
                                 std::span<const std::int64_t> last_token_indices) {
  const auto count = source_rows.size();
  require_value(count > 0 && slots.size() == count && prompt_lengths.size() == count &&
                    cached_tokens.size() == count && last_token_indices.size() == count,
                "source_rows, slots, prompt_lengths, cached_tokens and last_token_indices need one "
                "entry a row each, not ",
                count, ", ", slots.size(), ", ", prompt_lengths.size(), ", ", cached_tokens.size(),
                " and ", last_token_indices.size());
  std::vector<PrefillRow> rows;
  rows.reserve(count);
  for (std::size_t i = 0; i < count; ++i)
    rows.push_back({
        .source_row = source_rows[i],
        .slot = slots[i],
        .prompt_length = prompt_lengths[i],
        .cached_tokens = cached_tokens[i],
        .last_token_index = last_token_indices[i],
    });
  return rows;
}

void check_kind(PrefillKind kind, std::size_t rows) {
  require_value(kind == PrefillKind::kBatched || rows == 1, "a single request has one row, not ",
                rows);
}

void check_arrays_and_chunks(const PrefillRequest& request) {
  require_size(request.tokens.rows(), request.padded_batch_size, "token rows", "padded_batch_size");
  require_size(request.tokens.columns(), request.padded_sequence_length, "token columns",
               "padded_sequence_length");
  require_size(request.page_table.rows(), request.padded_batch_size, "page-table rows",
               "padded_batch_size");
  require_value(!request.chunks.empty(), "a prefill request needs at least one chunk");
  const auto last = std::ranges::count_if(request.chunks, &PrefillChunk::contains_last_token);
  require_value(last == 1, "exactly one chunk holds the last token, not ", last);
  require_value(request.chunks.back().contains_last_token,
                "the chunk with the last token must be the final one");
  const bool has_table = std::ranges::any_of(
      request.chunks, [](const PrefillChunk& chunk) { return chunk.chunk_page_table.has_value(); });
  require_value(request.uses_chunked_prefill == has_table,
                "uses_chunked_prefill must say whether a chunk has a page table");
}

}  // namespace llm_runtime::prefill
