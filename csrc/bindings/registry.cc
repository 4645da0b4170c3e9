// SPDX-License-Identifier: Apache-2.0
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <string_view>
#include <vector>

#include "bindings/module.h"
#include "bindings/signature.h"
#include "llm_runtime/registry/compile_gate.h"
#include "llm_runtime/registry/program_registry.h"
#include "llm_runtime/registry/trace_registry.h"

namespace nanobind::detail {

/// Ids are plain ints in Python.
template <class Id>
struct id_caster {
  NB_TYPE_CASTER(Id, const_name("int"))

  bool from_python(handle source, uint32_t flags, cleanup_list* cleanup) noexcept {
    make_caster<std::int32_t> caster;
    if (!caster.from_python(source, flags, cleanup)) return false;
    value = static_cast<Id>(caster.value);
    return true;
  }

  static handle from_cpp(Id id, rv_policy /*policy*/, cleanup_list* /*cleanup*/) noexcept {
    return PyLong_FromLong(static_cast<long>(id));
  }
};

template <>
struct type_caster<llm_runtime::registry::ProgramId> : id_caster<llm_runtime::registry::ProgramId> {
};
template <>
struct type_caster<llm_runtime::registry::TraceId> : id_caster<llm_runtime::registry::TraceId> {};

}  // namespace nanobind::detail

namespace llm_runtime::bindings {
namespace {

using namespace nb::literals;
using registry::CompileGate;
using registry::Nearest;
using registry::ProgramId;
using registry::ProgramRegistry;
using registry::TraceId;
using registry::TraceRegistry;
using signature::SignatureKey;

nb::object as_tuple(const std::optional<Nearest>& nearest) {
  if (!nearest) return nb::none();
  return nb::make_tuple(nearest->index, nearest->field, packed_to_python(nearest->wanted),
                        packed_to_python(nearest->registered));
}

template <class Id>
nb::tuple as_tuple(const std::vector<Id>& ids) {
  return nb::tuple(nb::cast(ids));
}

void bind_gate(nb::module_& m) {
  using State = CompileGate::State;
  nb::class_<CompileGate>(m, "CompileGate", nb::is_final(),
                          "Whether new programs may be compiled. Follows chapter 30, section 2.5.")
      .def(nb::init<>())
      .def_prop_ro(
          "state", [](const CompileGate& self) { return name_of(self.state()); },
          "'open', 'capturing', 'active' or 'released'.")
      .def_prop_ro("trace_capture_in_progress",
                   [](const CompileGate& self) { return self.state() == State::kCapturing; })
      .def_prop_ro("trace_active",
                   [](const CompileGate& self) { return self.state() == State::kActive; })
      .def_prop_ro("released",
                   [](const CompileGate& self) { return self.state() == State::kReleased; })
      .def_prop_ro("rejections", &CompileGate::rejections,
                   "Compiles refused because a trace was active.")
      .def("set_capture_in_progress", &CompileGate::set_capture_in_progress, "value"_a)
      .def("set_trace_active", &CompileGate::set_trace_active, "value"_a)
      .def("release", &CompileGate::release, "Ends the gate for good; repeating it is harmless.")
      .def("require_live", &CompileGate::require_live, "RuntimeError after release.")
      .def("admit_compile", &CompileGate::admit_compile, "description"_a,
           "RuntimeError unless the gate is open; only a refusal after activation counts.");
}

void bind_programs(nb::module_& m) {
  nb::class_<ProgramRegistry>(m, "ProgramRegistry", nb::is_final(),
                              "Compiled programs by key; ids count up in registration order.")
      .def(nb::init<>())
      .def("find", &ProgramRegistry::find, "key"_a, "The id, or -1.")
      .def("add", &ProgramRegistry::add, "key"_a,
           "The new id. RuntimeError when the key is present.")
      .def("key", &ProgramRegistry::key, "program_id"_a, nb::rv_policy::copy)
      .def("__len__", &ProgramRegistry::size)
      .def(
          "nearest",
          [](const ProgramRegistry& self, const SignatureKey& key) {
            return as_tuple(self.nearest(key));
          },
          "key"_a,
          nb::sig("def nearest(self, key: SignatureKey) -> tuple[int, str, object, object] | None"),
          "(id, field, wanted, registered) of the closest program of the same kind; None without "
          "one.");
}

void bind_traces(nb::module_& m) {
  nb::class_<TraceRegistry>(
      m, "TraceRegistry", nb::is_final(),
      "Registered traces by key, the programs they serve and the replay history.")
      .def(nb::init<>())
      .def("find", &TraceRegistry::find, "key"_a, "The id, or -1.")
      .def(
          "add",
          [](TraceRegistry& self, const SignatureKey& key, std::string_view operation) {
            return self.add(key, registry::operation_named(operation));
          },
          "key"_a, nb::kw_only(), "operation"_a,
          "The new id. RuntimeError when the key is present.")
      .def("key", &TraceRegistry::key, "trace_id"_a, nb::rv_policy::copy)
      .def(
          "operation",
          [](const TraceRegistry& self, TraceId id) { return name_of(self.operation(id)); },
          "trace_id"_a)
      .def("__len__", &TraceRegistry::size)
      .def(
          "nearest",
          [](const TraceRegistry& self, const SignatureKey& key, std::string_view operation) {
            return as_tuple(self.nearest(key, registry::operation_named(operation)));
          },
          "key"_a, nb::kw_only(), "operation"_a,
          nb::sig("def nearest(self, key: SignatureKey, *, operation: str) -> tuple[int, str, "
                  "object, object] | None"),
          "(id, field, wanted, registered) of the closest trace of the operation; None without "
          "one.")
      .def("associate", &TraceRegistry::associate, nb::kw_only(), "program_id"_a, "trace_id"_a,
           "Lets a program replay a trace. ValueError when it already replays another one.")
      .def("trace_of_program", &TraceRegistry::trace_of_program, "program_id"_a,
           "The trace id, or -1.")
      .def(
          "programs_of_trace",
          [](const TraceRegistry& self, TraceId id) {
            return as_tuple(self.programs_of_trace(id));
          },
          "trace_id"_a, nb::sig("def programs_of_trace(self, trace_id: int) -> tuple[int, ...]"))
      .def_prop_ro("association_count", &TraceRegistry::association_count)
      .def("set_captured", &TraceRegistry::set_captured, "trace_id"_a, "captured"_a)
      .def("is_captured", &TraceRegistry::is_captured, "trace_id"_a)
      .def(
          "capture_order", [](const TraceRegistry& self) { return as_tuple(self.capture_order()); },
          nb::sig("def capture_order(self) -> tuple[int, ...]"),
          "Decode before prefill, registration order inside each.")
      .def(
          "preflight",
          [](const TraceRegistry& self, const std::vector<ProgramId>& ids) {
            const auto position = self.preflight(ids);
            return position ? static_cast<std::int64_t>(*position) : -1;
          },
          "program_ids"_a, "Position of the first program without a captured trace, or -1.")
      .def("note_replay", &TraceRegistry::note_replay, "trace_id"_a,
           "Counts a submitted replay. RuntimeError when the trace is not captured.")
      .def_prop_ro("last_replayed", &TraceRegistry::last_replayed)
      .def("is_switch", &TraceRegistry::is_switch, "trace_id"_a,
           "Whether the last replayed trace was another one, or there was none.")
      .def(
          "replay_count",
          [](const TraceRegistry& self, std::string_view operation) {
            return self.replay_count(registry::operation_named(operation));
          },
          "operation"_a)
      .def("forget_last", &TraceRegistry::forget_last);
}

}  // namespace

void bind_registry(nb::module_& m) {
  bind_gate(m);
  bind_programs(m);
  bind_traces(m);
}

}  // namespace llm_runtime::bindings
