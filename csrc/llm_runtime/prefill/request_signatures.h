// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "llm_runtime/prefill/prefill_request.h"
#include "llm_runtime/signature/prefill_signatures.h"

namespace llm_runtime::prefill {

/// What a call samples with, as far as identities know it.
struct SamplingIdentity {
  std::string_view path;  // "logits", "argmax" or "topk"
  bool penalties_enabled = false;
  bool logprobs_enabled = false;
};

/// `chunked`, `regular-batched` or `regular-single`.
std::string_view operation_variant(const PrefillRequest& request);

/// The programs of a request, one for all chunks of equal shape. Sampling in a short regular single
/// request also depends on the 32-row tile of its last token: always for argmax, for top-k where
/// the sampler supports it.
std::vector<signature::PrefillProgramSignature> build_program_signatures(
    const PrefillRequest& request, const SamplingIdentity& sampling,
    bool static_q128_topk_supported);

/// The trace of a request; every chunk replays the same one.
signature::PrefillTraceSignature build_trace_signature(const PrefillRequest& request,
                                                       const SamplingIdentity& sampling);

}  // namespace llm_runtime::prefill
