// SPDX-License-Identifier: Apache-2.0
#include "llm_runtime/support/errors.h"

#include "bindings/module.h"

namespace llm_runtime::bindings {

// InvalidValue and IllegalState map by themselves (std::invalid_argument, std::runtime_error);
// WrongType needs a rule.
void bind_errors(nb::module_& /*m*/) {
  nb::register_exception_translator([](const std::exception_ptr& error, void* /*payload*/) {
    try {
      std::rethrow_exception(error);
    } catch (const WrongType& wrong) {
      PyErr_SetString(PyExc_TypeError, wrong.what());
    }
  });
}

}  // namespace llm_runtime::bindings
