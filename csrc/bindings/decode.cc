// SPDX-License-Identifier: Apache-2.0
#include <nanobind/stl/optional.h>

#include <algorithm>
#include <initializer_list>
#include <optional>
#include <span>
#include <utility>

#include "bindings/arrays.h"
#include "bindings/input_names.h"
#include "bindings/module.h"
#include "bindings/value_class.h"
#include "llm_runtime/decode/commands.h"
#include "llm_runtime/decode/lane.h"
#include "llm_runtime/decode/refresh.h"
#include "llm_runtime/decode/staging.h"

namespace llm_runtime::bindings {
namespace {

using decode::RefreshDecision;
using decode::RefreshPolicy;

void require_shape(std::span<const Py_ssize_t> given, const char* name,
                   std::initializer_list<std::size_t> wanted) {
  if (std::ranges::equal(given, wanted, std::cmp_equal<Py_ssize_t, std::size_t>)) return;
  nb::list expected, actual;
  for (std::size_t size : wanted) expected.append(size);
  for (Py_ssize_t size : given) actual.append(size);
  throw_invalid_value(str_cat(name, " must have shape ", nb::repr(expected).c_str(), ", not ",
                              nb::repr(actual).c_str()));
}

void stage(const ArrayIn& tokens, const ArrayIn& start_pos,
           const ArrayOf<std::uint32_t>& out_tokens, const ArrayOf<std::int32_t>& out_positions,
           const ArrayOf<std::uint32_t>& out_rotary) {
  const std::size_t rows = start_pos.size();
  require_shape(out_tokens.shape(), "out_tokens", {1, 1, 1, decode::kMaxLaneSlots});
  require_shape(out_positions.shape(), "out_positions", {rows});
  require_shape(out_rotary.shape(), "out_rotary", {1, decode::round_up_to_tile(rows)});
  decode::stage_decode_inputs(int_array(tokens, "tokens"), int_array(start_pos, "start_pos"),
                              {out_tokens.values(), out_positions.values(), out_rotary.values()});
}

void bind_commands(nb::module_& m) {
  m.def("stage_decode_inputs", &stage, nb::arg("tokens"), nb::arg("start_pos"), nb::kw_only(),
        nb::arg("out_tokens"), nb::arg("out_positions"), nb::arg("out_rotary"),
        nb::sig(
            "def stage_decode_inputs("
            "tokens: numpy.typing.NDArray[numpy.int32] | numpy.typing.NDArray[numpy.int64], "
            "start_pos: numpy.typing.NDArray[numpy.int32] | numpy.typing.NDArray[numpy.int64], *, "
            "out_tokens: numpy.typing.NDArray[numpy.uint32], "
            "out_positions: numpy.typing.NDArray[numpy.int32], "
            "out_rotary: numpy.typing.NDArray[numpy.uint32]) -> None"),
        "Fills the staging arrays of one step: uint32 [1, 1, 1, 32], int32 [B], uint32 [1, B "
        "rounded up to 32]. ValueError for other shapes and for a bad token of an active row. "
        "Follows chapter 20, "
        "section 5.2.");
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
      "nothing. Follows chapter 20, section 4.6.");
}

void bind_refresh(nb::module_& m) {
  const RefreshPolicy policy;
  bind_value<RefreshPolicy>(m, "RefreshPolicy", "When a replay refreshes which persistent inputs.")
      .def(nb::init<decode::InputNames, bool, bool, bool, bool>(),
           nb::arg("every_replay") = nb::tuple(),
           nb::arg("full_on_batch_reset") = policy.full_on_batch_reset,
           nb::arg("full_on_graph_switch") = policy.full_on_graph_switch,
           nb::arg("full_without_device_feedback") = policy.full_without_device_feedback,
           nb::arg("refresh_page_table_on_change") = policy.refresh_page_table_on_change);
  bind_value<RefreshDecision>(m, "RefreshDecision",
                              "What one replay copies to the device before it runs.")
      .def(nb::init<bool, bool, decode::InputNames>(), nb::arg("full"), nb::arg("page_table"),
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
      "Inferred from the policy, or exactly the commands when reload_inputs is a bool. ValueError "
      "for contradicting commands, RuntimeError for resident inputs that were never established. "
      "Follows chapter 30, "
      "section 3.5.");
}

}  // namespace

void bind_decode(nb::module_& m) {
  bind_commands(m);
  bind_refresh(m);
}

}  // namespace llm_runtime::bindings
