// SPDX-License-Identifier: Apache-2.0
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <cstdint>
#include <optional>

#include "bindings/arrays.h"
#include "bindings/integers.h"
#include "bindings/prefill.h"
#include "bindings/value_class.h"

namespace llm_runtime::bindings {

using namespace nb::literals;
using prefill::PrefillChunk;

namespace {

void read_slice(const nb::slice& slice, PrefillChunk& chunk) {
  const nb::object step = slice.attr("step");
  require_value(step.is_none() || integer(step, "the step of token_slice") == 1,
                "token_slice must have no step but 1");
  const nb::object start = slice.attr("start");
  const nb::object stop = slice.attr("stop");
  require_value(!start.is_none() && !stop.is_none(), "token_slice needs both bounds");
  chunk.token_start = integer(start, "the start of token_slice");
  chunk.token_stop = integer(stop, "the stop of token_slice");
}

void init_chunk(ChunkObject* self, const nb::slice& token_slice, std::int64_t chunk_start_idx,
                std::int64_t chunk_size, const std::optional<ArrayIn>& chunk_page_table,
                bool contains_last_token) {
  PrefillChunk chunk;
  read_slice(token_slice, chunk);
  chunk.chunk_start_idx = chunk_start_idx;
  chunk.chunk_size = chunk_size;
  chunk.contains_last_token = contains_last_token;
  prefill::check_chunk(chunk);
  if (const auto table = int_array(chunk_page_table, "chunk_page_table")) {
    require_rank(*table, 2, "chunk_page_table");
    chunk.chunk_page_table = matrix_copy<std::int32_t>(*table);
  }
  new (self) ChunkObject{.chunk = std::move(chunk), .token_slice = {}, .chunk_page_table = {}};
}

}  // namespace

void bind_prefill_chunk(nb::module_& m) {
  nb::class_<ChunkObject> cls(m, "PrefillChunk", nb::is_final(),
                              "One invocation of a request. Follows chapter 10, section 4.2.");
  cls.def("__init__", &init_chunk, "token_slice"_a, "chunk_start_idx"_a, "chunk_size"_a,
          "chunk_page_table"_a.none(), "contains_last_token"_a,
          nb::sig("def __init__(self, token_slice: slice, chunk_start_idx: int, chunk_size: int, "
                  "chunk_page_table: numpy.typing.NDArray[numpy.int32 | numpy.int64] | None, "
                  "contains_last_token: bool) -> None"),
          "ValueError unless slice, start and size fit together.");
  def_once(
      cls, "token_slice", &ChunkObject::token_slice,
      [](const ChunkObject& self) -> nb::object {
        return nb::slice(self.chunk.token_start, self.chunk.token_stop);
      },
      "def token_slice(self, /) -> slice");
  cls.def_prop_ro("chunk_start_idx",
                  [](const ChunkObject& self) { return self.chunk.chunk_start_idx; });
  cls.def_prop_ro("chunk_size", [](const ChunkObject& self) { return self.chunk.chunk_size; });
  def_once(
      cls, "chunk_page_table", &ChunkObject::chunk_page_table,
      [](const ChunkObject& self) -> nb::object {
        return self.chunk.chunk_page_table ? matrix_view(*self.chunk.chunk_page_table) : nb::none();
      },
      "def chunk_page_table(self, /) -> numpy.typing.NDArray[numpy.int32] | None");
  cls.def_prop_ro("contains_last_token",
                  [](const ChunkObject& self) { return self.chunk.contains_last_token; });
  const FieldNames names{
      "token_slice", "chunk_start_idx", "chunk_size", "chunk_page_table", "contains_last_token",
  };
  def_keyword_object(cls, names);
  cls.attr("__hash__") = nb::none();  // no value: it carries an array
}

}  // namespace llm_runtime::bindings
