// SPDX-License-Identifier: Apache-2.0
#include "llm_runtime/prefill/request_signatures.h"

#include <algorithm>
#include <cstdint>
#include <string>

#include "llm_runtime/prefill/prefill_lengths.h"

namespace llm_runtime::prefill {

namespace {

constexpr std::int64_t kTileRows = 32;

std::optional<std::int64_t> chunk_width(const PrefillChunk& chunk) {
  if (!chunk.chunk_page_table) return std::nullopt;
  return static_cast<std::int64_t>(chunk.chunk_page_table->columns());
}

std::optional<std::int64_t> last_token_tile_start(const PrefillRequest& request,
                                                  std::string_view path, bool topk_supported) {
  const bool has_tile = !request.uses_chunked_prefill && request.kind == PrefillKind::kSingle &&
                        request.padded_sequence_length == kShortestBucket;
  if (!has_tile || !(path == "argmax" || (path == "topk" && topk_supported))) return std::nullopt;
  const PrefillRow& row = request.rows.front();
  return (row.last_token_index - row.cached_tokens) / kTileRows * kTileRows;
}

}  // namespace

std::string_view operation_variant(const PrefillRequest& request) {
  if (request.uses_chunked_prefill) return "chunked";
  return request.kind == PrefillKind::kBatched ? "regular-batched" : "regular-single";
}

std::vector<signature::PrefillProgramSignature> build_program_signatures(
    const PrefillRequest& request, const SamplingIdentity& sampling,
    bool static_q128_topk_supported) {
  const auto tile_start = last_token_tile_start(request, sampling.path, static_q128_topk_supported);
  std::vector<signature::PrefillProgramSignature> programs;
  const PrefillChunk* previous = nullptr;
  for (const auto& chunk : request.chunks) {
    const bool same_shape = previous != nullptr && previous->chunk_size == chunk.chunk_size &&
                            chunk_width(*previous) == chunk_width(chunk);
    previous = &chunk;
    if (same_shape) continue;  // planned chunks are all alike
    signature::PrefillProgramSignature program({
        .operation_variant = std::string(operation_variant(request)),
        .padded_batch_size = request.padded_batch_size,
        .invocation_sequence_length = chunk.chunk_size,
        .page_table_width = static_cast<std::int64_t>(request.page_table.columns()),
        .chunk_page_table_width = chunk_width(chunk),
        .sampling_path = std::string(sampling.path),
        .penalties_enabled = sampling.penalties_enabled,
        .logprobs_enabled = sampling.logprobs_enabled,
        .last_token_tile_start = tile_start,
    });
    if (std::ranges::find(programs, program) == programs.end())
      programs.push_back(std::move(program));
  }
  return programs;
}

signature::PrefillTraceSignature build_trace_signature(const PrefillRequest& request,
                                                       const SamplingIdentity& sampling) {
  const PrefillChunk& chunk = request.chunks.front();
  return signature::PrefillTraceSignature({
      .operation_variant = std::string(operation_variant(request)),
      .padded_batch_size = request.padded_batch_size,
      .padded_sequence_length = chunk.chunk_size,
      .page_table_width = static_cast<std::int64_t>(request.page_table.columns()),
      .chunk_page_table_width = chunk_width(chunk),
      .sampling_path = std::string(sampling.path),
      .penalties_enabled = sampling.penalties_enabled,
      .logprobs_enabled = sampling.logprobs_enabled,
  });
}

}  // namespace llm_runtime::prefill
