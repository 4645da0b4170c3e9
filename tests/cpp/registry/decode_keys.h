// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <utility>

#include "llm_runtime/signature/decode_signatures.h"
#include "llm_runtime/signature/prefill_signatures.h"

namespace llm_runtime::registry {

inline signature::SignatureKey decode_key(std::int64_t batch_size, std::int64_t width,
                                          const char* path = "logits") {
  signature::DecodeProgramFields fields;
  fields.batch_size = batch_size;
  fields.page_table_width = width;
  fields.sampling_path = path;
  return signature::DecodeProgramSignature(std::move(fields)).key;
}

inline signature::SignatureKey prefill_key(std::int64_t length) {
  return signature::PrefillTraceSignature({.operation_variant = "regular-single",
                                           .padded_batch_size = 1,
                                           .padded_sequence_length = length,
                                           .page_table_width = 8,
                                           .chunk_page_table_width = {},
                                           .sampling_path = "logits"})
      .key;
}

}  // namespace llm_runtime::registry
