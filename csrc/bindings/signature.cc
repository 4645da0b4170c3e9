// SPDX-License-Identifier: Apache-2.0
#include "bindings/signature.h"

#include <nanobind/stl/string_view.h>

#include <optional>
#include <string>

#include "bindings/module.h"
#include "bindings/value_class.h"
#include "llm_runtime/signature/canonical_json.h"
#include "llm_runtime/signature/decode_signatures.h"
#include "llm_runtime/signature/prefill_signatures.h"

namespace llm_runtime::bindings {

using namespace nb::literals;
using signature::SignatureKey;

namespace {

using Width = std::optional<std::int64_t>;

nb::bytes as_bytes(std::string_view text) { return nb::bytes(text.data(), text.size()); }

nb::object first_mismatch(const SignatureKey& mine, const SignatureKey& theirs) {
  const auto found = mine.mismatches(theirs);
  if (found.empty()) return nb::none();
  return nb::make_tuple(found[0].path, packed_to_python(found[0].mine),
                        packed_to_python(found[0].theirs));
}

void bind_key(nb::module_& m) {
  nb::class_<SignatureKey> cls(
      m, "SignatureKey", nb::is_final(),
      "Identity of a program or trace: key material with its hash, compared "
      "in full. Follows chapter 30, section 2.2.");
  def_equality(cls);
  cls.def(
         "__init__",
         [](SignatureKey* self, const nb::bytes& packed) {
           new (self) SignatureKey(
               SignatureKey::from_untrusted(std::string(packed.c_str(), packed.size())));
         },
         nb::kw_only(), "packed"_a,
         "From the packed form, as pickling does. ValueError unless it is one tuple.")
      .def_static("from_material", &key_from_material, "material"_a,
                  nb::sig("def from_material(material: tuple[object, ...]) -> SignatureKey"),
                  "From a tuple of None, str-valued Enum, bool, int, finite float, str and tuples. "
                  "TypeError for other kinds, ValueError for NaN and infinities.")
      .def(
          "canonical_json",
          [](const SignatureKey& key, std::string_view domain, std::int64_t schema_version) {
            return as_bytes(signature::canonical_json(key, domain, schema_version));
          },
          nb::kw_only(), "domain"_a, "schema_version"_a,
          "The ASCII bytes whose SHA-256 is the digest.")
      .def(
          "material", [](const SignatureKey& key) { return packed_to_python(key.packed()); },
          nb::sig("def material(self) -> tuple[object, ...]"),
          "The material as plain values; an enum member comes back as its value.")
      .def(
          "first_mismatch", &first_mismatch, "other"_a,
          nb::sig(
              "def first_mismatch(self, other: SignatureKey) -> tuple[str, object, object] | None"),
          "(field, mine, theirs) of the first difference, None for equal keys. A side that lacks "
          "the field gives None.")
      .def("__repr__",
           [](const SignatureKey& key) {
             return "SignatureKey(" +
                    nb::cast<std::string>(nb::repr(packed_to_python(key.packed()))) + ")";
           })
      .def(
          "__reduce__",
          [](nb::handle self) {
            nb::object partial = nb::module_::import_("functools").attr("partial");
            const auto& key = nb::cast<const SignatureKey&>(self);
            return nb::make_tuple(partial(self.type(), "packed"_a = as_bytes(key.packed())),
                                  nb::tuple());
          },
          nb::sig("def __reduce__(self) -> tuple[typing.Any, ...]"));
}

template <class T>
nb::class_<T> bind_signature_type(nb::module_& m, const char* name, const char* doc) {
  auto cls = bind_value<T>(m, name, doc);
  cls.def_ro("key", &T::key, "The SignatureKey of this signature, packed once.");
  cls.def(
      "key_material", [](const T& self) { return packed_to_python(self.key.packed()); },
      nb::sig("def key_material(self) -> tuple[tuple[str, object], ...]"),
      "(name, value) pairs in the order that the key and its digest use.");
  return cls;
}

void bind_prefill_signatures(nb::module_& m) {
  using signature::PrefillProgramSignature;
  using signature::PrefillTraceSignature;
  bind_signature_type<PrefillProgramSignature>(
      m, "PrefillProgramSignature",
      "Identity of an eager prefill program. Follows chapter 10, section 7.1.")
      .def(
          "__init__",
          [](PrefillProgramSignature* self, std::string variant, std::int64_t batch,
             std::int64_t length, std::int64_t width, Width chunk_width, std::string path,
             bool penalties, bool logprobs, Width tile_start) {
            new (self) PrefillProgramSignature({
                .operation_variant = std::move(variant),
                .padded_batch_size = batch,
                .invocation_sequence_length = length,
                .page_table_width = width,
                .chunk_page_table_width = chunk_width,
                .sampling_path = std::move(path),
                .penalties_enabled = penalties,
                .logprobs_enabled = logprobs,
                .last_token_tile_start = tile_start,
            });
          },
          "operation_variant"_a, "padded_batch_size"_a, "invocation_sequence_length"_a,
          "page_table_width"_a, "chunk_page_table_width"_a, "sampling_path"_a,
          "penalties_enabled"_a = false, "logprobs_enabled"_a = false,
          "last_token_tile_start"_a = nb::none());
  bind_signature_type<PrefillTraceSignature>(
      m, "PrefillTraceSignature",
      "Identity of a captured prefill body. Follows chapter 10, section 7.2.")
      .def(
          "__init__",
          [](PrefillTraceSignature* self, std::string variant, std::int64_t batch,
             std::int64_t length, std::int64_t width, Width chunk_width, std::string path,
             bool penalties, bool logprobs) {
            new (self) PrefillTraceSignature({
                .operation_variant = std::move(variant),
                .padded_batch_size = batch,
                .padded_sequence_length = length,
                .page_table_width = width,
                .chunk_page_table_width = chunk_width,
                .sampling_path = std::move(path),
                .penalties_enabled = penalties,
                .logprobs_enabled = logprobs,
            });
          },
          "operation_variant"_a, "padded_batch_size"_a, "padded_sequence_length"_a,
          "page_table_width"_a, "chunk_page_table_width"_a, "sampling_path"_a = "logits",
          "penalties_enabled"_a = false, "logprobs_enabled"_a = false);
}

template <class T>
void bind_decode_signature(nb::module_& m, const char* name, const char* doc) {
  bind_signature_type<T>(m, name, doc)
      .def(
          "__init__",
          [](T* self, std::int64_t batch_size, std::int64_t width, std::string path, bool feedback,
             bool penalties, bool logprobs) {
            const signature::DecodeFields fields{
                .batch_size = batch_size,
                .page_table_width = width,
                .sampling_path = std::move(path),
                .device_feedback = feedback,
                .penalties_enabled = penalties,
                .logprobs_enabled = logprobs,
            };
            new (self) T(typename T::FieldsType{fields});
          },
          "batch_size"_a, "page_table_width"_a, "sampling_path"_a, "device_feedback"_a,
          "penalties_enabled"_a = false, "logprobs_enabled"_a = false);
}

}  // namespace

void bind_signature(nb::module_& m) {
  bind_key(m);
  bind_prefill_signatures(m);
  bind_decode_signature<signature::DecodeProgramSignature>(
      m, "DecodeProgramSignature",
      "Identity of an eager decode program. Follows chapter 20, section 3.1.");
  bind_decode_signature<signature::DecodeTraceSignature>(
      m, "DecodeTraceSignature",
      "Identity of a captured decode step. Follows chapter 20, section 3.1.");
}

}  // namespace llm_runtime::bindings
