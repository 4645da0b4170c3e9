// SPDX-License-Identifier: Apache-2.0
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "bindings/arrays.h"
#include "bindings/integers.h"
#include "bindings/module.h"
#include "bindings/prefill.h"
#include "bindings/value_class.h"
#include "llm_runtime/support/shared_matrix.h"

namespace llm_runtime::bindings {

using namespace nb::literals;
using prefill::PrefillChunk;
using prefill::PrefillRequest;
using prefill::PrefillRow;

namespace {

using Integers = std::vector<std::int64_t>;

void init_request(RequestObject* self, std::string_view kind, const Integers& source_rows,
                  const Integers& slots, const ArrayIn& tokens, const ArrayIn& page_table,
                  const Integers& prompt_lengths, const Integers& cached_tokens,
                  const Integers& last_token_indices, std::int64_t padded_sequence_length,
                  std::int64_t padded_batch_size,
                  const nb::typed<nb::tuple, ChunkObject, nb::ellipsis>& chunks,
                  bool uses_chunked_prefill) {
  PrefillRequest request;
  request.kind = prefill::kind_of(kind);
  request.padded_sequence_length = padded_sequence_length;
  request.padded_batch_size = padded_batch_size;
  request.uses_chunked_prefill = uses_chunked_prefill;
  request.rows =
      prefill::zip_rows(source_rows, slots, prompt_lengths, cached_tokens, last_token_indices);
  prefill::check_kind(request.kind, request.rows.size());
  const auto token_array = int_array(tokens, "tokens");
  const auto table_array = int_array(page_table, "page_table");
  require_rank(token_array, 2, "tokens");
  require_rank(table_array, 2, "page_table");
  request.tokens = matrix_copy<std::int64_t>(token_array);
  request.page_table = matrix_copy<std::int32_t>(table_array);
  for (nb::handle item : chunks) {
    const ChunkObject* chunk = nullptr;
    if (!nb::try_cast(item, chunk) || chunk == nullptr)
      throw_wrong_type("chunks must hold PrefillChunk only");
    request.chunks.push_back(chunk->chunk);
  }
  prefill::check_arrays_and_chunks(request);
  new (self) RequestObject{.request = std::move(request), .chunks = nb::borrow(chunks)};
}

void def_rows_property(nb::class_<RequestObject>& cls, const char* name,
                       nb::object RequestObject::* kept, std::int64_t PrefillRow::* member) {
  const auto values = [member](const RequestObject& self) -> nb::object {
    nb::list result;
    for (const PrefillRow& row : self.request.rows) result.append(row.*member);
    return nb::tuple(result);
  };
  const auto signature = "def " + std::string(name) + "(self, /) -> tuple[int, ...]";
  def_once(cls, name, kept, values, signature.c_str());
}

nb::object chunk_tuple(const RequestObject& self) {
  nb::list result;
  for (const PrefillChunk& chunk : self.request.chunks)
    result.append(ChunkObject{.chunk = chunk, .token_slice = {}, .chunk_page_table = {}});
  return nb::tuple(result);
}

void bind_request(nb::module_& m) {
  nb::class_<RequestObject> cls(
      m, "PrefillRequest", nb::is_final(),
      "A prefill that runs as a unit: tokens int64 [padded_batch_size, padded_sequence_length], "
      "page_table int32 [padded_batch_size, page_table_width]. Follows chapter 10, section 4.3.");
  cls.def("__init__", &init_request, nb::kw_only(), "kind"_a, "source_rows"_a, "slots"_a,
          "tokens"_a, "page_table"_a, "prompt_lengths"_a, "cached_tokens"_a, "last_token_indices"_a,
          "padded_sequence_length"_a, "padded_batch_size"_a, "chunks"_a, "uses_chunked_prefill"_a,
          nb::sig("def __init__(self, *, kind: str, source_rows: collections.abc.Sequence[int], "
                  "slots: collections.abc.Sequence[int], "
                  "tokens: numpy.typing.NDArray[numpy.int32 | numpy.int64], "
                  "page_table: numpy.typing.NDArray[numpy.int32 | numpy.int64], "
                  "prompt_lengths: collections.abc.Sequence[int], "
                  "cached_tokens: collections.abc.Sequence[int], "
                  "last_token_indices: collections.abc.Sequence[int], "
                  "padded_sequence_length: int, padded_batch_size: int, "
                  "chunks: tuple[PrefillChunk, ...], uses_chunked_prefill: bool) -> None"),
          "Copies the arrays. ValueError unless arrays, rows and chunks fit together.");
  using R = RequestObject;
  cls.def_prop_ro("kind", [](const R& self) { return prefill::kind_name(self.request.kind); });
  def_rows_property(cls, "source_rows", &R::source_rows, &PrefillRow::source_row);
  def_rows_property(cls, "slots", &R::slots, &PrefillRow::slot);
  def_once(
      cls, "tokens", &R::tokens, [](const R& self) { return matrix_view(self.request.tokens); },
      "def tokens(self, /) -> numpy.typing.NDArray[numpy.int64]");
  def_once(
      cls, "page_table", &R::page_table,
      [](const R& self) { return matrix_view(self.request.page_table); },
      "def page_table(self, /) -> numpy.typing.NDArray[numpy.int32]");
  def_rows_property(cls, "prompt_lengths", &R::prompt_lengths, &PrefillRow::prompt_length);
  def_rows_property(cls, "cached_tokens", &R::cached_tokens, &PrefillRow::cached_tokens);
  def_rows_property(cls, "last_token_indices", &R::last_token_indices,
                    &PrefillRow::last_token_index);
  cls.def_prop_ro("padded_sequence_length",
                  [](const R& self) { return self.request.padded_sequence_length; });
  cls.def_prop_ro("padded_batch_size",
                  [](const R& self) { return self.request.padded_batch_size; });
  def_once(cls, "chunks", &R::chunks, &chunk_tuple,
           "def chunks(self, /) -> tuple[PrefillChunk, ...]");
  cls.def_prop_ro("uses_chunked_prefill",
                  [](const R& self) { return self.request.uses_chunked_prefill; });
  cls.def_prop_ro("page_table_width",
                  [](const R& self) { return self.request.page_table.columns(); });
  const FieldNames names{
      "kind",
      "source_rows",
      "slots",
      "tokens",
      "page_table",
      "prompt_lengths",
      "cached_tokens",
      "last_token_indices",
      "padded_sequence_length",
      "padded_batch_size",
      "chunks",
      "uses_chunked_prefill",
  };
  def_keyword_object(cls, names);
  cls.attr("__hash__") = nb::none();  // no value: it carries arrays
}

}  // namespace

void bind_prefill_request(nb::module_& m) {
  bind_prefill_chunk(m);
  bind_request(m);
}

}  // namespace llm_runtime::bindings
