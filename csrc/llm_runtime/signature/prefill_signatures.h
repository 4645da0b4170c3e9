// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <tuple>

#include "llm_runtime/signature/keyed.h"
#include "llm_runtime/signature/signature_key.h"
#include "llm_runtime/support/fields.h"

namespace llm_runtime::signature {

/// What the eager program of one prefill invocation depends on. Left out on purpose: active rows,
/// slots, token values, prompt lengths, cached offsets, chunk positions and counts, page-table
/// contents, sampling values.
struct PrefillProgramFields {
  std::string operation_variant;
  std::int64_t padded_batch_size = 0;
  std::int64_t invocation_sequence_length = 0;  // the chunk, not the prompt
  std::int64_t page_table_width = 0;
  std::optional<std::int64_t> chunk_page_table_width;
  std::string sampling_path;
  bool penalties_enabled = false;
  bool logprobs_enabled = false;
  std::optional<std::int64_t> last_token_tile_start;

  static constexpr auto fields() {
    using S = PrefillProgramFields;
    return std::tuple{field("operation_variant", &S::operation_variant),
                      field("padded_batch_size", &S::padded_batch_size),
                      field("invocation_sequence_length", &S::invocation_sequence_length),
                      field("page_table_width", &S::page_table_width),
                      field("chunk_page_table_width", &S::chunk_page_table_width),
                      field("sampling_path", &S::sampling_path),
                      field("penalties_enabled", &S::penalties_enabled, false),
                      field("logprobs_enabled", &S::logprobs_enabled, false),
                      field("last_token_tile_start", &S::last_token_tile_start)};
  }
  SignatureKey pack() const { return pack_fields(*this); }
};

/// What a captured prefill body depends on; a family of sampling paths each has its own trace.
struct PrefillTraceFields {
  std::string operation_variant;
  std::int64_t padded_batch_size = 0;
  std::int64_t padded_sequence_length = 0;  // of the first chunk
  std::int64_t page_table_width = 0;
  std::optional<std::int64_t> chunk_page_table_width;
  std::string sampling_path;
  bool penalties_enabled = false;
  bool logprobs_enabled = false;

  static constexpr auto fields() {
    using S = PrefillTraceFields;
    return std::tuple{field("operation_variant", &S::operation_variant),
                      field("padded_batch_size", &S::padded_batch_size),
                      field("padded_sequence_length", &S::padded_sequence_length),
                      field("page_table_width", &S::page_table_width),
                      field("chunk_page_table_width", &S::chunk_page_table_width),
                      field("sampling_path", &S::sampling_path, "logits"),
                      field("penalties_enabled", &S::penalties_enabled, false),
                      field("logprobs_enabled", &S::logprobs_enabled, false)};
  }
  SignatureKey pack() const { return pack_fields(*this); }
};

using PrefillProgramSignature = Keyed<PrefillProgramFields>;
using PrefillTraceSignature = Keyed<PrefillTraceFields>;

}  // namespace llm_runtime::signature
