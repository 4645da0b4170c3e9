// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "llm_runtime/prefill/prefill_batch.h"
#include "llm_runtime/prefill/prefill_request.h"

namespace llm_runtime::prefill {

/// Plans a whole batch of one lane, or refuses it as a whole. Rows of one bucket become either one
/// physical wave or single requests. Waves come first, in the order in which their buckets appear,
/// then singles by ascending row.
std::vector<PrefillRequest> plan_prefill(const PrefillBatch& batch, const PrefillLimits& limits);

/// Why the rows of one padded length did not become a wave.
struct PrefillFallback {
  std::vector<std::int64_t> rows;  // as the caller numbers them
  std::string_view rule;
  std::string detail;
};

struct ExplainedPlan {
  std::vector<PrefillRequest> requests;
  std::vector<PrefillFallback> fallbacks;  // in the order in which their buckets appear
};

/// The same plan, and for each bucket without a wave the rule that decided.
ExplainedPlan explain_prefill(const PrefillBatch& batch, const PrefillLimits& limits);

}  // namespace llm_runtime::prefill
