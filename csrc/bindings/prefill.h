// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nanobind/nanobind.h>

#include "llm_runtime/prefill/prefill_request.h"

namespace llm_runtime::bindings {

namespace nb = nanobind;

/// A request and what Python has asked of it so far. Views and tuples are made on first use and
/// kept; none of them refers back to this object.
struct RequestObject {
  prefill::PrefillRequest request;
  nb::object source_rows, slots, prompt_lengths, cached_tokens, last_token_indices;
  nb::object tokens, page_table, chunks;
};

struct ChunkObject {
  prefill::PrefillChunk chunk;
  nb::object token_slice, chunk_page_table;
};

}  // namespace llm_runtime::bindings
