// SPDX-License-Identifier: Apache-2.0
#include "llm_runtime/support/errors.h"

namespace llm_runtime {

void throw_invalid_value(const std::string& text) { throw InvalidValue(text); }
void throw_illegal_state(const std::string& text) { throw IllegalState(text); }
void throw_wrong_type(const std::string& text) { throw WrongType(text); }

}  // namespace llm_runtime
