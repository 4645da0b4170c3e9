// SPDX-License-Identifier: Apache-2.0
#include "llm_runtime/support/errors.h"

#include <utility>

namespace llm_runtime {

void throw_invalid_value(std::string text) { throw InvalidValue(std::move(text)); }
void throw_illegal_state(std::string text) { throw IllegalState(std::move(text)); }
void throw_wrong_type(std::string text) { throw WrongType(std::move(text)); }

}  // namespace llm_runtime
