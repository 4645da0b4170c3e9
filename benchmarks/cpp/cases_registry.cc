// SPDX-License-Identifier: Apache-2.0
// Signatures and registries: packing and hashing a key, and finding it among few and many programs.
#include <cstdint>
#include <memory>
#include <string>

#include "cases.h"
#include "llm_runtime/registry/program_registry.h"
#include "llm_runtime/signature/decode_signatures.h"

namespace llm_runtime::bench {

namespace {

signature::DecodeProgramSignature decode_signature(std::int64_t width) {
  signature::DecodeProgramFields fields;
  fields.batch_size = 32;
  fields.page_table_width = width;
  fields.sampling_path = "topk";
  fields.device_feedback = true;
  return signature::DecodeProgramSignature(std::move(fields));
}

}  // namespace

void add_registry_cases(Cases& cases) {
  cases.push_back({"signature_hash", [] { keep(decode_signature(64).hash()); }});
  for (const int programs : {1, 100, 10'000}) {
    const auto registry = std::make_shared<registry::ProgramRegistry>();
    for (std::int64_t width = 1; width <= programs; ++width)
      registry->add(decode_signature(width).key);
    const auto wanted =
        std::make_shared<signature::SignatureKey>(decode_signature((programs + 1) / 2).key);
    cases.push_back({"signature_lookup/programs:" + std::to_string(programs),
                     [registry, wanted] { keep(registry->find(*wanted)); }});
  }
}

}  // namespace llm_runtime::bench
