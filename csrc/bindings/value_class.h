// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/operators.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <vector>

#include "llm_runtime/support/fields.h"

namespace llm_runtime::bindings {

namespace nb = nanobind;

using FieldNames = std::vector<const char*>;

/// The named attributes of an object as keyword arguments of its constructor.
inline nb::dict keywords_of(nb::handle self, const FieldNames& names) {
  nb::dict result;
  for (const char* name : names) result[name] = self.attr(name);
  return result;
}

/// `Name(field=value, …)`
inline std::string keyword_repr(nb::handle self, const FieldNames& names) {
  auto text = nb::cast<std::string>(self.type().attr("__name__")) + "(";
  const char* separator = "";
  for (const char* name : names) {
    text += separator + std::string(name) + "=" + nb::cast<std::string>(nb::repr(self.attr(name)));
    separator = ", ";
  }
  return text + ")";
}

/// What follows from a constructor that takes every field by keyword: repr, pickling and
/// `__replace__`. The last two go through the constructor, so that its checks run again.
template <class Class>
void def_keyword_object(Class& cls, const FieldNames& names) {
  const auto replace = "def __replace__(self, /, **changes: typing.Any) -> " +
                       nb::cast<std::string>(cls.attr("__name__"));
  cls.def("__repr__", [names](nb::handle self) { return keyword_repr(self, names); });
  cls.def(
      "__reduce__",
      [names](nb::handle self) {
        nb::object partial = nb::module_::import_("functools").attr("partial");
        return nb::make_tuple(partial(self.type(), **keywords_of(self, names)), nb::tuple());
      },
      nb::sig("def __reduce__(self) -> tuple[typing.Any, ...]"));
  cls.def(
      "__replace__",
      [names](nb::handle self, const nb::kwargs& changes) {
        nb::dict fields = keywords_of(self, names);
        fields.update(changes);
        return nb::handle(self.type())(**fields);
      },
      nb::sig(replace.c_str()));
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

/// Equality with hash; a foreign operand gives `NotImplemented`.
template <class T>
void def_equality(nb::class_<T>& cls) {
  cls.def(
      "__eq__", [](const T& a, const T& b) { return a == b; }, nb::is_operator(),
      nb::sig("def __eq__(self, arg: object, /) -> bool"));
  cls.def("__hash__", &value_hash<T>);
}

/// The promises of every value type, from its one field list: read-only fields, equality with hash,
/// repr, pickling and `__replace__`. The caller adds `__init__` with its defaults.
template <class T>
nb::class_<T> bind_value(nb::module_& m, const char* name, const char* doc) {
  nb::class_<T> cls(m, name, nb::is_final(), doc);
  FieldNames names;
  for_each_field<T>([&](const auto& entry) {
    cls.def_ro(entry.name, entry.member);
    names.push_back(entry.name);
  });
  def_equality(cls);
  def_keyword_object(cls, names);
  return cls;
}

}  // namespace llm_runtime::bindings
