// SPDX-License-Identifier: Apache-2.0
// Python values to packed key material and back.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <string>

#include "bindings/signature.h"
#include "llm_runtime/signature/key_reader.h"
#include "llm_runtime/signature/key_writer.h"
#include "llm_runtime/support/errors.h"

namespace llm_runtime::bindings {

using signature::KeyItem;
using signature::KeyReader;
using signature::KeyTag;
using signature::KeyWriter;
using signature::SignatureKey;

namespace {

// "surrogatepass": json escapes lone surrogates too, so they are legal material.
constexpr const char* kSurrogates = "surrogatepass";

std::string kind_of(nb::handle value) {
  return nb::cast<std::string>(nb::str(value.type().attr("__qualname__")));
}

nb::bytes utf8(nb::handle text) {
  auto bytes = nb::steal<nb::bytes>(PyUnicode_AsEncodedString(text.ptr(), "utf-8", kSurrogates));
  if (!bytes.is_valid()) throw nb::python_error();
  return bytes;
}

nb::object text_from(std::string_view bytes) {
  auto text = nb::steal(
      PyUnicode_DecodeUTF8(bytes.data(), static_cast<Py_ssize_t>(bytes.size()), kSurrogates));
  if (!text.is_valid()) throw nb::python_error();
  return text;
}

std::string_view view(const nb::bytes& bytes) { return {bytes.c_str(), bytes.size()}; }

bool is_enum(nb::handle value) {
  const auto is_plain = [type = value.type()](PyTypeObject& exact) {
    return type.is(reinterpret_cast<PyObject*>(&exact));
  };
  if (is_plain(PyUnicode_Type) || is_plain(PyLong_Type) || is_plain(PyBool_Type) ||
      is_plain(PyTuple_Type) || is_plain(PyFloat_Type))
    return false;
  return nb::isinstance(value, nb::module_::import_("enum").attr("Enum"));
}

void write_enum(KeyWriter& writer, nb::handle member) {
  nb::object value = member.attr("value");
  if (!PyUnicode_Check(value.ptr()))
    throw_wrong_type(str_cat("the value of enum ", kind_of(member),
                             " must be a str to be key material, not ", kind_of(value)));
  writer.enumeration(view(utf8(value)));
}

void write_integer(KeyWriter& writer, nb::handle value) {
  int overflow = 0;
  const long long number = PyLong_AsLongLongAndOverflow(value.ptr(), &overflow);
  if (number == -1 && PyErr_Occurred() != nullptr) throw nb::python_error();
  if (overflow == 0) {
    writer.integer(number);
    return;
  }
  // int.__repr__: a subclass may print itself in another way.
  nb::object digits = nb::handle(reinterpret_cast<PyObject*>(&PyLong_Type)).attr("__repr__")(value);
  writer.big_integer(nb::cast<std::string>(digits));
}

void write_value(KeyWriter& writer, nb::handle value) {
  if (value.is_none()) {
    writer.null();
  } else if (is_enum(value)) {  // before str and int, which an enum may be too
    write_enum(writer, value);
  } else if (PyBool_Check(value.ptr())) {  // before int, which it is too
    writer.boolean(value.is(Py_True));
  } else if (PyLong_Check(value.ptr())) {
    write_integer(writer, value);
  } else if (PyFloat_Check(value.ptr())) {
    writer.real(PyFloat_AsDouble(value.ptr()));
  } else if (PyUnicode_Check(value.ptr())) {
    writer.text(view(utf8(value)));
  } else if (PyTuple_Check(value.ptr())) {
    writer.begin_tuple();
    for (nb::handle item : nb::borrow<nb::tuple>(value)) write_value(writer, item);
    writer.end_tuple();
  } else {
    throw_wrong_type(str_cat("key material must not hold a ", kind_of(value)));
  }
}

}  // namespace

SignatureKey key_from_material(nb::handle material) {
  if (!PyTuple_Check(material.ptr()))
    throw_wrong_type(str_cat("key material must be a tuple, not ", kind_of(material)));
  KeyWriter writer;
  for (nb::handle item : nb::borrow<nb::tuple>(material)) write_value(writer, item);
  return SignatureKey(std::move(writer).finish());
}

nb::object packed_to_python(std::string_view packed) {
  if (packed.empty()) return nb::none();
  const KeyItem item = KeyReader(packed).next();
  switch (item.tag) {
    case KeyTag::kNull:
    case KeyTag::kTupleEnd:
      return nb::none();
    case KeyTag::kFalse:
      return nb::bool_(false);
    case KeyTag::kTrue:
      return nb::bool_(true);
    case KeyTag::kInteger:
      return nb::int_(item.integer);
    case KeyTag::kReal:
      return nb::float_(item.real);
    case KeyTag::kBigInteger:
      return nb::int_(nb::str(item.text.data(), item.text.size()));
    case KeyTag::kText:
    case KeyTag::kEnum:
      return text_from(item.text);
    case KeyTag::kTupleBegin:
      break;
  }
  nb::list items;
  signature::for_each_value(packed,
                            [&](std::string_view value) { items.append(packed_to_python(value)); });
  return nb::tuple(items);
}

}  // namespace llm_runtime::bindings
