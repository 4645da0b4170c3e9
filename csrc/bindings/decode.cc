// SPDX-License-Identifier: Apache-2.0
#include <nanobind/stl/optional.h>

#include <algorithm>
#include <initializer_list>

#include "bindings/arrays.h"
#include "bindings/field_names.h"
#include "bindings/integers.h"
#include "bindings/module.h"
#include "bindings/value_class.h"
#include "llm_runtime/decode/commands.h"
#include "llm_runtime/decode/refresh.h"
#include "llm_runtime/decode/staging.h"
#include "llm_runtime/decode/tables.h"

namespace llm_runtime::bindings {
namespace {

using decode::DecodeBatch;
using decode::DecodeCommands;
using decode::DecodeGeometry;
using decode::DecodeTables;
using decode::PageTable;
using decode::RefreshDecision;
using decode::RefreshPolicy;
using decode::ReplayState;
using decode::TableCommands;

/// A prepared step with its Python views, made once.
struct BoundBatch {
  DecodeBatch batch;
  nb::object page_table;
  nb::object active_slots;
};

nb::object view_of(const std::shared_ptr<const PageTable>& table) {
  using Shared = std::shared_ptr<const PageTable>;
  nb::capsule owner(new Shared(table),
                    [](void* shared) noexcept { delete static_cast<Shared*>(shared); });
  return nb::cast(view(table->data(), {table->rows(), table->width()}, owner));
}

nb::object tuple_of(const decode::ActiveSlots& active) {
  nb::list slots;
  for (std::int64_t slot : active.indices()) slots.append(slot);
  return nb::tuple(slots);
}

/// `DecodeTables` and the Python objects of its last result, so that an unchanged step allocates
/// nothing.
class BoundTables {
 public:
  BoundTables(std::int64_t lane_capacity, const DecodeGeometry& geometry)
      : tables_(lane_capacity, geometry) {}

  nb::object prepare(const Integers& start_pos, const Integers& page_table,
                     const TableCommands& commands) {
    return wrap(visit_vector(start_pos, "start_pos", [&](auto positions) {
      return visit_matrix(page_table, "page_table",
                          [&](auto table) { return tables_.prepare(positions, table, commands); });
    }));
  }

  DecodeTables& tables() { return tables_; }

 private:
  nb::object wrap(DecodeBatch batch) {
    if (!last_.is_valid())
      return last_ = nb::cast(BoundBatch{batch, view_of(batch.page_table), tuple_of(batch.active)});
    const BoundBatch& last = nb::cast<const BoundBatch&>(last_);
    const bool same_table = last.batch.page_table == batch.page_table;
    const bool same_slots = last.batch.active == batch.active;
    if (same_table && same_slots && last.batch.page_table_changed == batch.page_table_changed)
      return last_;
    return last_ =
               nb::cast(BoundBatch{batch, same_table ? last.page_table : view_of(batch.page_table),
                                   same_slots ? last.active_slots : tuple_of(batch.active)});
  }

  DecodeTables tables_;
  nb::object last_;  // BoundBatch; holds no reference back, so no cycle
};

void bind_tables(nb::module_& m) {
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

  nb::class_<BoundTables>(m, "DecodeTables", nb::is_final(),
                          "Page tables of a decode lane: normalisation, cache and the last "
                          "submitted table. Keeps copies only.")
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
            self.tables().configure(DecodeGeometry{block_size, raw_capacity_width, decode_width});
          },
          nb::kw_only(), nb::arg("block_size"), nb::arg("raw_capacity_width"),
          nb::arg("decode_width"),
          "Installs another layout; a change forgets the cached and the submitted table.")
      .def(
          "prepare",
          [](BoundTables& self, const Integers& start_pos, const Integers& page_table,
             bool device_feedback, std::optional<bool> reload_inputs, bool reload_page_table) {
            return self.prepare(start_pos, page_table,
                                TableCommands{device_feedback, reload_inputs, reload_page_table});
          },
          nb::kw_only(), nb::arg("start_pos").noconvert(), nb::arg("page_table").noconvert(),
          nb::arg("device_feedback"), nb::arg("reload_inputs").none(), nb::arg("reload_page_table"),
          nb::sig("def prepare(self, *, start_pos: numpy.typing.NDArray[numpy.signedinteger], "
                  "page_table: numpy.typing.NDArray[numpy.signedinteger], device_feedback: bool, "
                  "reload_inputs: bool | None, reload_page_table: bool) -> DecodeBatch"),
          "Checks one step and normalises its table: start_pos int32|int64 [B], page_table "
          "int32|int64 [B, any].")
      .def(
          "note_submitted",
          [](BoundTables& self, const BoundBatch& batch) {
            self.tables().note_submitted(batch.batch);
          },
          nb::arg("batch"), "Remembers the table of a step that reached the device.")
      .def(
          "reset", [](BoundTables& self) { self.tables().reset(); },
          "Forgets the cached and the submitted table.");
}

template <class Array>
void require_shape(const Array& array, const char* name, std::initializer_list<std::size_t> shape) {
  const bool same = array.ndim() == shape.size() &&
                    std::equal(shape.begin(), shape.end(), array.shape_ptr(),
                               [](std::size_t wanted, std::int64_t given) {
                                 return static_cast<std::int64_t>(wanted) == given;
                               });
  if (same) return;
  nb::list wanted, given;
  for (std::size_t size : shape) wanted.append(size);
  for (std::size_t axis = 0; axis < array.ndim(); ++axis) given.append(array.shape(axis));
  throw_invalid_value(str_cat(name, " must have shape ", nb::repr(wanted).c_str(), ", not ",
                              nb::repr(given).c_str()));
}

template <class T>
using Writable = nb::ndarray<T, nb::c_contig, nb::device::cpu>;

void stage(const Integers& tokens, const Integers& start_pos,
           const Writable<std::uint32_t>& out_tokens, const Writable<std::int32_t>& out_positions,
           const Writable<std::uint32_t>& out_rotary) {
  const std::size_t rows = start_pos.size();
  require_shape(out_tokens, "out_tokens", {1, 1, 1, decode::kMaxLaneSlots});
  require_shape(out_positions, "out_positions", {rows});
  require_shape(out_rotary, "out_rotary", {1, decode::round_up_to_tile(rows)});
  const decode::StagedInputs out{{out_tokens.data(), out_tokens.size()},
                                 {out_positions.data(), out_positions.size()},
                                 {out_rotary.data(), out_rotary.size()}};
  visit_vector(tokens, "tokens", [&](auto ids) {
    visit_vector(start_pos, "start_pos",
                 [&](auto positions) { decode::stage_decode_inputs(ids, positions, out); });
  });
}

void bind_commands(nb::module_& m) {
  m.def("stage_decode_inputs", &stage, nb::arg("tokens").noconvert(),
        nb::arg("start_pos").noconvert(), nb::kw_only(), nb::arg("out_tokens").noconvert(),
        nb::arg("out_positions").noconvert(), nb::arg("out_rotary").noconvert(),
        "Fills the staging arrays of one step: uint32 [1, 1, 1, 32], int32 [B], uint32 [1, B "
        "rounded up to 32].");
  m.def(
      "validate_decode_commands",
      [](bool reset_batch, std::optional<bool> reload_inputs, bool reload_page_table,
         bool reload_sampling_params, bool reset_sampling_state, bool has_sampling,
         bool has_slot_remap, bool resident_feedback) {
        decode::validate_decode_commands({reset_batch, reload_inputs, reload_page_table,
                                          reload_sampling_params, reset_sampling_state,
                                          has_sampling, has_slot_remap, resident_feedback});
      },
      nb::kw_only(), nb::arg("reset_batch"), nb::arg("reload_inputs").none(),
      nb::arg("reload_page_table"), nb::arg("reload_sampling_params"),
      nb::arg("reset_sampling_state"), nb::arg("has_sampling"), nb::arg("has_slot_remap"),
      nb::arg("resident_feedback"),
      "ValueError for a combination outside the three input modes: everything, page table only, "
      "nothing.");
}

void bind_refresh(nb::module_& m) {
  const RefreshPolicy policy;
  bind_value<RefreshPolicy>(m, "RefreshPolicy", "When a replay refreshes which persistent inputs.")
      .def(nb::init<decode::FieldNames, bool, bool, bool, bool>(),
           nb::arg("every_replay") = nb::tuple(),
           nb::arg("full_on_batch_reset") = policy.full_on_batch_reset,
           nb::arg("full_on_graph_switch") = policy.full_on_graph_switch,
           nb::arg("full_without_device_feedback") = policy.full_without_device_feedback,
           nb::arg("refresh_page_table_on_change") = policy.refresh_page_table_on_change);
  bind_value<RefreshDecision>(m, "RefreshDecision",
                              "What one replay copies to the device before it runs.")
      .def(nb::init<bool, bool, decode::FieldNames>(), nb::arg("full"), nb::arg("page_table"),
           nb::arg("fields"));
  m.def(
      "decide_refresh",
      [](const RefreshPolicy& given, bool switched, bool reset_batch, bool device_feedback_enabled,
         bool feedback_compatible, bool page_table_changed, std::optional<bool> reload_inputs,
         bool reload_page_table, bool reload_sampling_params) {
        return decode::decide_refresh(
            given, {switched, reset_batch, device_feedback_enabled, feedback_compatible,
                    page_table_changed, reload_inputs, reload_page_table, reload_sampling_params});
      },
      nb::arg("policy"), nb::kw_only(), nb::arg("switched"), nb::arg("reset_batch"),
      nb::arg("device_feedback_enabled"), nb::arg("feedback_compatible"),
      nb::arg("page_table_changed"), nb::arg("reload_inputs").none(), nb::arg("reload_page_table"),
      nb::arg("reload_sampling_params"),
      "Inferred from the policy, or exactly the commands when reload_inputs is a bool.");
}

}  // namespace

void bind_decode(nb::module_& m) {
  bind_tables(m);
  bind_commands(m);
  bind_refresh(m);
}

}  // namespace llm_runtime::bindings
