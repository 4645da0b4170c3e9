// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

#include "llm_runtime/prefill/prefill_batch.h"
#include "llm_runtime/prefill/prefill_request.h"

namespace llm_runtime::prefill {

/// Plans a whole batch of one lane, or refuses it as a whole. Rows of one bucket become either one
/// physical wave or single requests. Waves come first, in the order in which their buckets appear,
/// then singles by ascending row.
std::vector<PrefillRequest> plan_prefill(const PrefillBatch& batch, const PrefillLimits& limits);

}  // namespace llm_runtime::prefill
