// SPDX-License-Identifier: Apache-2.0
#include "llm_runtime/registry/operation.h"

#include "llm_runtime/support/errors.h"

namespace llm_runtime::registry {

Operation operation_named(std::string_view name) {
  if (name == "prefill") return Operation::kPrefill;
  if (name == "decode") return Operation::kDecode;
  throw_invalid_value(str_cat("operation must be 'prefill' or 'decode', not '", name, "'"));
}

std::string_view name_of(Operation operation) {
  return operation == Operation::kDecode ? "decode" : "prefill";
}

}  // namespace llm_runtime::registry
