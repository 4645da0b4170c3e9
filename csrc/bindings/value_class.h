// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/operators.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <tuple>

#include "llm_runtime/support/fields.h"

namespace llm_runtime::bindings {

namespace nb = nanobind;

/// The fields of a value as a Python dict, in the order of its field list.
template <class T>
nb::dict field_dict(const T& value) {
  nb::dict result;
  for_each_field<T>(
      [&](const auto& entry) { result[entry.name] = nb::cast(value.*(entry.member)); });
  return result;
}

/// `Name(field=value, …)`
template <class T>
std::string value_repr(nb::handle self) {
  std::string text = nb::cast<std::string>(nb::handle(self.type()).attr("__name__")) + "(";
  const char* separator = "";
  for (auto [name, value] : field_dict(nb::cast<const T&>(self))) {
    text += separator + nb::cast<std::string>(name) + "=" + nb::cast<std::string>(nb::repr(value));
    separator = ", ";
  }
  return text + ")";
}

/// A value's own cached hash if it has one, else the hash over its field list.
template <class T>
Py_ssize_t value_hash(const T& value) {
  if constexpr (requires { value.hash(); }) {
    return static_cast<Py_ssize_t>(value.hash());
  } else {
    return static_cast<Py_ssize_t>(hash_fields(value));
  }
}

/// The promises of every value type, from its one field list: read-only fields, equality with hash,
/// repr, pickling through the constructor and `__replace__`. The caller adds `__init__` with its
/// defaults.
template <class T>
nb::class_<T> bind_value(nb::module_& m, const char* name, const char* doc) {
  nb::class_<T> cls(m, name, nb::is_final(), doc);
  for_each_field<T>([&](const auto& entry) { cls.def_ro(entry.name, entry.member); });
  cls.def(
      "__eq__", [](const T& a, const T& b) { return a == b; }, nb::is_operator(),
      nb::sig("def __eq__(self, arg: object, /) -> bool"));
  cls.def("__hash__", &value_hash<T>);
  cls.def("__repr__", &value_repr<T>);
  cls.def("__reduce__", [](nb::handle self) {
    nb::object partial = nb::module_::import_("functools").attr("partial");
    return nb::make_tuple(partial(self.type(), **field_dict(nb::cast<const T&>(self))),
                          nb::tuple());
  });
  cls.def("__replace__", [](nb::handle self, const nb::kwargs& changes) {
    nb::dict fields = field_dict(nb::cast<const T&>(self));
    for (auto [key, value] : changes) fields[key] = value;
    return nb::handle(self.type())(**fields);
  });
  return cls;
}

}  // namespace llm_runtime::bindings
