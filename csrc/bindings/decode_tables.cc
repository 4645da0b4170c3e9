// SPDX-License-Identifier: Apache-2.0
#include <nanobind/stl/optional.h>

#include <memory>
#include <optional>

#include "bindings/arrays.h"
#include "bindings/module.h"
#include "llm_runtime/decode/tables.h"

namespace llm_runtime::bindings {

using decode::DecodeBatch;
using decode::DecodeGeometry;
using decode::DecodeTables;
using decode::PageTable;
using decode::TableCommands;

namespace {

/// A prepared step with its Python views, made once.
struct BoundBatch {
  DecodeBatch batch;
  nb::object page_table;
  nb::object active_slots;
};

nb::object view_of(const std::shared_ptr<const PageTable>& table) {
  return array_view(std::shared_ptr<const std::int32_t>(table, table->data()),
                    {table->rows(), table->width()});
}

nb::object tuple_of(const decode::ActiveSlots& active) {
  nb::list slots;
  for (std::int64_t slot : active.indices()) slots.append(slot);
  return nb::tuple(slots);
}

/// `DecodeTables` with the Python views of the tables that it keeps, so that an unchanged step
/// allocates nothing. No view refers back here, so there is no cycle.
class BoundTables {
 public:
  BoundTables(std::int64_t lane_capacity, const DecodeGeometry& geometry)
      : tables_(lane_capacity, geometry) {}

  void configure(const DecodeGeometry& geometry) { tables_.configure(geometry); }

  nb::object prepare(const ArrayIn& start_pos, const ArrayIn& page_table,
                     const TableCommands& commands) {
    return wrap(tables_.prepare(int_array(start_pos, "start_pos"),
                                int_array(page_table, "page_table"), commands));
  }

  void note_submitted(const BoundBatch& batch) {
    tables_.note_submitted(batch.batch);
    submitted_ = {batch.batch.page_table, batch.page_table};
  }

  void reset() {
    tables_.reset();
    current_ = submitted_ = {};
    last_.reset();
  }

 private:
  struct View {
    std::shared_ptr<const PageTable> table;
    nb::object array;
  };

  nb::object view_for(const std::shared_ptr<const PageTable>& table) {
    if (table == submitted_.table) return submitted_.array;
    if (table != current_.table) current_ = {table, view_of(table)};
    return current_.array;
  }

  nb::object wrap(const DecodeBatch& batch) {
    if (!last_.is_valid())
      return last_ =
                 nb::cast(BoundBatch{batch, view_for(batch.page_table), tuple_of(batch.active)});
    const BoundBatch& last = nb::cast<const BoundBatch&>(last_);
    const bool same_slots = last.batch.active == batch.active;
    if (same_slots && last.batch.page_table == batch.page_table &&
        last.batch.page_table_changed == batch.page_table_changed)
      return last_;
    return last_ = nb::cast(BoundBatch{batch, view_for(batch.page_table),
                                       same_slots ? last.active_slots : tuple_of(batch.active)});
  }

  DecodeTables tables_;
  View current_;
  View submitted_;
  nb::object last_;  // BoundBatch
};

}  // namespace

void bind_decode_tables(nb::module_& m) {
  nb::class_<BoundBatch>(
      m, "DecodeBatch", nb::is_final(),
      "One prepared decode step; shares its page table with the DecodeTables that made it.")
      .def_prop_ro(
          "page_table", [](const BoundBatch& self) { return self.page_table; },
          nb::sig("def page_table(self) -> numpy.typing.NDArray[numpy.int32]"),
          "int32 [B, W], read-only; the same object while its content does not change.")
      .def_prop_ro(
          "page_table_changed",
          [](const BoundBatch& self) { return self.batch.page_table_changed; },
          "Whether the table differs from the last noted submission.")
      .def_prop_ro(
          "active_slots", [](const BoundBatch& self) { return self.active_slots; },
          nb::sig("def active_slots(self) -> tuple[int, ...]"),
          "Slots with a position of 0 or more.");

  nb::class_<BoundTables>(
      m, "DecodeTables", nb::is_final(),
      "Page tables of a decode lane: normalisation, cache and the last submitted table. Keeps "
      "copies only. Follows chapter 20, section 4.3.")
      .def(
          "__init__",
          [](BoundTables* self, std::int64_t lane_capacity, std::int64_t block_size,
             std::int64_t raw_capacity_width, std::int64_t decode_width) {
            new (self) BoundTables(lane_capacity,
                                   DecodeGeometry{block_size, raw_capacity_width, decode_width});
          },
          nb::kw_only(), nb::arg("lane_capacity"), nb::arg("block_size"),
          nb::arg("raw_capacity_width"), nb::arg("decode_width"))
      .def(
          "configure",
          [](BoundTables& self, std::int64_t block_size, std::int64_t raw_capacity_width,
             std::int64_t decode_width) {
            self.configure(DecodeGeometry{block_size, raw_capacity_width, decode_width});
          },
          nb::kw_only(), nb::arg("block_size"), nb::arg("raw_capacity_width"),
          nb::arg("decode_width"),
          "Installs another layout; a change forgets the cached and the submitted table.")
      .def(
          "prepare",
          [](BoundTables& self, const ArrayIn& start_pos, const ArrayIn& page_table,
             bool device_feedback, std::optional<bool> reload_inputs, bool reload_page_table) {
            return self.prepare(start_pos, page_table,
                                TableCommands{device_feedback, reload_inputs, reload_page_table});
          },
          nb::arg("start_pos"), nb::arg("page_table"), nb::arg("device_feedback"),
          nb::arg("reload_inputs").none(), nb::arg("reload_page_table"),
          nb::sig(
              "def prepare(self, "
              "start_pos: numpy.typing.NDArray[numpy.int32] | numpy.typing.NDArray[numpy.int64], "
              "page_table: numpy.typing.NDArray[numpy.int32] | numpy.typing.NDArray[numpy.int64], "
              "device_feedback: bool, reload_inputs: bool | None, reload_page_table: bool) -> "
              "DecodeBatch"),
          "Checks one step and normalises its table: start_pos int32|int64 [B], page_table "
          "int32|int64 "
          "[B, any]. ValueError for sizes, a position beyond the capacity or the table, a block id "
          "beyond int32; "
          "RuntimeError when nothing was submitted that could be reused.")
      .def(
          "note_submitted",
          [](BoundTables& self, const BoundBatch& batch) { self.note_submitted(batch); },
          nb::arg("batch"), "Remembers the table of a step that reached the device.")
      .def(
          "reset", [](BoundTables& self) { self.reset(); },
          "Forgets the cached and the submitted table.");
}

}  // namespace llm_runtime::bindings
