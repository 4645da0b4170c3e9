// SPDX-License-Identifier: Apache-2.0
#include "llm_runtime/prefill/request_builder.h"

#include <algorithm>
#include <utility>

#include "llm_runtime/paging/table_rows.h"
#include "llm_runtime/prefill/prefill_lengths.h"
#include "llm_runtime/support/errors.h"
#include "llm_runtime/support/integers.h"

namespace llm_runtime::prefill {

namespace {

std::size_t as_size(std::int64_t value) { return static_cast<std::size_t>(value); }

std::size_t bytes_of(std::size_t tokens, std::size_t table_entries) {
  return tokens * sizeof(std::int64_t) + table_entries * sizeof(std::int32_t);
}

PrefillChunk whole_request(std::int64_t padded_length) {
  return {
      .token_start = 0,
      .token_stop = padded_length,
      .chunk_start_idx = 0,
      .chunk_size = padded_length,
      .chunk_page_table = std::nullopt,
      .contains_last_token = true,
  };
}

bool is_no_block(std::int64_t id) { return id < 0 || id > kMaxCount; }

}  // namespace

std::size_t RequestBuilder::checked_blocks(const PrefillRow& row) const {
  const auto source_row = as_size(row.source_row);
  const auto blocks = ceil_div(row.prompt_length, limits_.block_size);
  const auto raw = limits_.max_actual_page_table_width.value_or(blocks);
  require_value(blocks <= raw, "row ", source_row, ": prompt length ", row.prompt_length, " needs ",
                blocks, " blocks of ", limits_.block_size,
                " tokens but the KV capacity of a sequence is ", raw, " blocks");
  const auto columns = batch_.page_table.columns();
  require_value(as_size(blocks) <= columns, "row ", source_row, ": prompt length ",
                row.prompt_length, " needs ", blocks, " blocks but page_table has ", columns,
                " columns");
  const auto bad = batch_.page_table.find_in_row(source_row, as_size(blocks), is_no_block);
  require_value(bad == as_size(blocks), "row ", source_row, ": page_table column ", bad, " of ",
                blocks, " in use is no block id");
  return as_size(blocks);
}

std::int64_t RequestBuilder::table_width(std::int64_t end) const {
  return limits_.canonical_page_table_width.value_or(ceil_div(end, limits_.block_size));
}

void RequestBuilder::check_capacity(const PrefillRow& row, std::int64_t end,
                                    std::int64_t width) const {
  require_value(end <= width * limits_.block_size, "row ", row.source_row,
                ": its padded tokens end at ", end, " but canonical_page_table_width ", width,
                " holds ", width * limits_.block_size, " tokens");
}

void RequestBuilder::check_chunk_size(const PrefillRow& row, const Cut& cut) const {
  // Otherwise the second chunk would start inside a block.
  require_value(cut.count == 1 || cut.size % limits_.block_size == 0, "row ", row.source_row,
                ": chunks of ", cut.size, " tokens are no multiple of block_size ",
                limits_.block_size);
}

void RequestBuilder::copy_tokens(const PrefillRow& row, std::span<std::int64_t> out) const {
  const auto count = as_size(row.uncached_tokens());
  batch_.tokens.copy_row(as_size(row.source_row), as_size(row.cached_tokens), out.first(count));
  std::ranges::fill(out.subspan(count), 0);
}

PrefillRequest RequestBuilder::wave(std::vector<PrefillRow> rows, std::int64_t padded_length,
                                    std::int64_t physical_rows) const {
  const auto count = as_size(physical_rows);
  const auto length = as_size(padded_length);
  const auto width = table_width(padded_length);
  const auto columns = as_size(width);
  PrefillRequest request;
  request.kind = PrefillKind::kBatched;
  request.padded_sequence_length = padded_length;
  request.padded_batch_size = physical_rows;
  request.chunks = {whole_request(padded_length)};
  MatrixMemory memory(bytes_of(count * length, count * columns));
  auto [token_matrix, tokens] = memory.take<std::int64_t>(count, length);
  auto [table_matrix, table] = memory.take<std::int32_t>(count, columns);
  request.tokens = std::move(token_matrix);
  request.page_table = std::move(table_matrix);
  for (std::size_t row = 0; row < rows.size(); ++row) {
    const auto blocks = checked_blocks(rows[row]);
    check_capacity(rows[row], padded_length, width);
    copy_tokens(rows[row], tokens.subspan(row * length, length));
    paging::write_table_row(batch_.page_table, as_size(rows[row].source_row), 0, blocks,
                            paging::kSkipBlock, table.subspan(row * columns, columns));
  }
  // Padding rows compute nothing that is kept: zero tokens, and fills skip them.
  std::ranges::fill(tokens.subspan(rows.size() * length), 0);
  paging::write_table_row(batch_.page_table, 0, 0, 0, paging::kSkipBlock,
                          table.subspan(rows.size() * columns));
  request.rows = std::move(rows);
  return request;
}

RequestBuilder::Cut RequestBuilder::cut(const PrefillRow& row, std::int64_t padded_length) const {
  const auto cap = limits_.max_prefill_chunk_size;
  const auto size =
      padded_length > cap ? max_prefill_chunk_size(padded_length, cap) : padded_length;
  return {
      .chunked = padded_length > cap || row.cached_tokens > 0,
      .size = size,
      .count = ceil_div(row.uncached_tokens(), size),
  };  // none of padding only
}

PrefillRequest RequestBuilder::single(const PrefillRow& row, std::int64_t padded_length) const {
  const auto cut = this->cut(row, padded_length);
  const auto width = table_width(row.cached_tokens + padded_length);
  const auto blocks = checked_blocks(row);
  check_capacity(row, row.cached_tokens + cut.count * cut.size, width);
  check_chunk_size(row, cut);

  PrefillRequest request;
  request.rows = {row};
  request.padded_sequence_length = padded_length;
  request.padded_batch_size = 1;
  request.uses_chunked_prefill = cut.chunked;
  const auto chunk_width = cut.chunked ? as_size(ceil_div(cut.size, limits_.block_size)) : 0;
  MatrixMemory memory(
      bytes_of(as_size(padded_length), as_size(width) + as_size(cut.count) * chunk_width));
  auto [token_matrix, tokens] = memory.take<std::int64_t>(1, as_size(padded_length));
  auto [table_matrix, table] = memory.take<std::int32_t>(1, as_size(width));
  request.tokens = std::move(token_matrix);
  request.page_table = std::move(table_matrix);
  copy_tokens(row, tokens);
  // Chunked attention reads the whole table, so its filler must be a valid id.
  paging::write_table_row(batch_.page_table, as_size(row.source_row), 0, blocks,
                          cut.chunked ? paging::kAnyBlock : paging::kSkipBlock, table);
  if (cut.chunked)
    add_chunks(request, cut, blocks, memory);
  else
    request.chunks = {whole_request(padded_length)};
  return request;
}

void RequestBuilder::add_chunks(PrefillRequest& request, const Cut& cut, std::size_t blocks,
                                MatrixMemory& memory) const {
  const PrefillRow& row = request.rows.front();
  const auto width = as_size(ceil_div(cut.size, limits_.block_size));
  request.chunks.reserve(as_size(cut.count));
  for (std::int64_t start = 0; start < row.uncached_tokens(); start += cut.size) {
    const auto position = row.cached_tokens + start;
    const auto first = as_size(position / limits_.block_size);
    const auto mapped = std::min(width, blocks - first);
    auto [table_matrix, table] = memory.take<std::int32_t>(1, width);
    request.chunks.push_back({
        .token_start = start,
        .token_stop = start + cut.size,
        .chunk_start_idx = position,
        .chunk_size = cut.size,
        .chunk_page_table = std::move(table_matrix),
        .contains_last_token = start + cut.size >= row.uncached_tokens(),
    });
    paging::write_table_row(batch_.page_table, as_size(row.source_row), first, mapped,
                            paging::kSkipBlock, table);
  }
}

}  // namespace llm_runtime::prefill
