// SPDX-License-Identifier: Apache-2.0
#include <nanobind/stl/optional.h>

#include <algorithm>
#include <initializer_list>
#include <optional>

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

void stage(const ArrayIn& tokens, const ArrayIn& start_pos,
           const Writable<std::uint32_t>& out_tokens, const Writable<std::int32_t>& out_positions,
           const Writable<std::uint32_t>& out_rotary) {
  const std::size_t rows = start_pos.size();
  require_shape(out_tokens, "out_tokens", {1, 1, 1, decode::kMaxLaneSlots});
  require_shape(out_positions, "out_positions", {rows});
  require_shape(out_rotary, "out_rotary", {1, decode::round_up_to_tile(rows)});
  const decode::StagedInputs out{{out_tokens.data(), out_tokens.size()},
                                 {out_positions.data(), out_positions.size()},
                                 {out_rotary.data(), out_rotary.size()}};
  decode::stage_decode_inputs(int_array(tokens, "tokens"), int_array(start_pos, "start_pos"), out);
}

void bind_commands(nb::module_& m) {
  m.def("stage_decode_inputs", &stage, nb::arg("tokens").noconvert(),
        nb::arg("start_pos").noconvert(), nb::kw_only(), nb::arg("out_tokens").noconvert(),
        nb::arg("out_positions").noconvert(), nb::arg("out_rotary").noconvert(),
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
