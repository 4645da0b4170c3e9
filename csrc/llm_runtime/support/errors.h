// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stdexcept>
#include <string>

#include "llm_runtime/support/str_cat.h"

namespace llm_runtime {

/// A bad argument value: `ValueError` in Python. The text names what, where, the bad value and the
/// limit.
class InvalidValue : public std::invalid_argument {
  using std::invalid_argument::invalid_argument;
};

/// A call that the owner's state does not allow: `RuntimeError` in Python.
class IllegalState : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// A value of the wrong kind: `TypeError` in Python.
class WrongType : public std::logic_error {
  using std::logic_error::logic_error;
};

[[noreturn]] void throw_invalid_value(const std::string& text);
[[noreturn]] void throw_illegal_state(const std::string& text);
[[noreturn]] void throw_wrong_type(const std::string& text);

/// Refuses a bad argument; the text is put together only on failure.
template <class... Parts>
inline void require_value(bool ok, const Parts&... parts) {
  if (!ok) [[unlikely]]
    throw_invalid_value(str_cat(parts...));
}

/// Refuses a call in the wrong state.
template <class... Parts>
inline void require_state(bool ok, const Parts&... parts) {
  if (!ok) [[unlikely]]
    throw_illegal_state(str_cat(parts...));
}

}  // namespace llm_runtime
