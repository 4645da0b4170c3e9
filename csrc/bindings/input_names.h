// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <string>

#include "llm_runtime/decode/input_names.h"

namespace nanobind::detail {

/// InputNames is a tuple of str in Python; a bare string or a list is refused.
template <>
struct type_caster<llm_runtime::decode::InputNames> {
  NB_TYPE_CASTER(llm_runtime::decode::InputNames, const_name("tuple[str, ...]"))

  bool from_python(handle source, uint32_t /*flags*/, cleanup_list* /*cleanup*/) noexcept {
    if (!isinstance<nanobind::tuple>(source)) return false;
    value.names.clear();
    for (handle item : borrow<nanobind::tuple>(source)) {
      std::string name;
      if (!try_cast(item, name)) return false;
      value.names.push_back(std::move(name));
    }
    return true;
  }

  static handle from_cpp(const llm_runtime::decode::InputNames& names, rv_policy /*policy*/,
                         cleanup_list* /*cleanup*/) noexcept {
    PyObject* result = PyTuple_New(static_cast<Py_ssize_t>(names.names.size()));
    if (result == nullptr) return {};
    for (std::size_t i = 0; i < names.names.size(); ++i) {
      PyObject* name = PyUnicode_FromStringAndSize(names.names[i].data(),
                                                   static_cast<Py_ssize_t>(names.names[i].size()));
      if (name == nullptr || PyTuple_SetItem(result, static_cast<Py_ssize_t>(i), name) != 0) {
        Py_DECREF(result);
        return {};
      }
    }
    return result;
  }
};

}  // namespace nanobind::detail
