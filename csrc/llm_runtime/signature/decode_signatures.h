// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>

#include "llm_runtime/signature/keyed.h"
#include "llm_runtime/signature/signature_key.h"
#include "llm_runtime/support/fields.h"

namespace llm_runtime::signature {

/// What a decode step depends on. Left out on purpose: active rows, positions, tokens, page-table
/// contents, sampling values, commands. Programs and traces carry the same fields in two distinct
/// types.
struct DecodeFields {
  std::int64_t batch_size = 0;  // the lane's capacity, never the active count
  std::int64_t page_table_width = 0;
  std::string sampling_path;
  bool device_feedback = false;
  bool penalties_enabled = false;
  bool logprobs_enabled = false;

  static constexpr auto fields() {
    using S = DecodeFields;
    return std::tuple{field("batch_size", &S::batch_size),
                      field("page_table_width", &S::page_table_width),
                      field("sampling_path", &S::sampling_path),
                      field("device_feedback", &S::device_feedback),
                      field("penalties_enabled", &S::penalties_enabled, false),
                      field("logprobs_enabled", &S::logprobs_enabled, false)};
  }
  SignatureKey pack() const {
    return pack_fields(*this, std::pair<std::string_view, std::string_view>{"operation", "decode"});
  }
};

struct DecodeProgramFields : DecodeFields {};
struct DecodeTraceFields : DecodeFields {};

using DecodeProgramSignature = Keyed<DecodeProgramFields>;
using DecodeTraceSignature = Keyed<DecodeTraceFields>;

}  // namespace llm_runtime::signature
