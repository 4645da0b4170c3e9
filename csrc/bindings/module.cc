// SPDX-License-Identifier: Apache-2.0
#include "bindings/module.h"

NB_MODULE(_core, m) {
  m.doc() =
      "Host decisions of the LLM runtime: page tables, prefill plans, signatures, decode steps, "
      "registries.";
  llm_runtime::bindings::bind_arrays(m);
  llm_runtime::bindings::bind_errors(m);
  llm_runtime::bindings::bind_signature(m);
  llm_runtime::bindings::bind_paging(m);
  llm_runtime::bindings::bind_prefill_request(m);
  llm_runtime::bindings::bind_prefill_plan(m);
  llm_runtime::bindings::bind_decode(m);
  llm_runtime::bindings::bind_decode_tables(m);
  llm_runtime::bindings::bind_sampling(m);
  llm_runtime::bindings::bind_prefill_sampling(m);
  llm_runtime::bindings::bind_registry(m);
  llm_runtime::bindings::bind_lanes(m);
}
