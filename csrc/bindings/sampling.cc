// SPDX-License-Identifier: Apache-2.0
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string_view.h>

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "bindings/arrays.h"
#include "bindings/module.h"
#include "bindings/sampling_columns.h"
#include "llm_runtime/sampling/sampling_rows.h"
#include "llm_runtime/sampling/seed_streams.h"

namespace llm_runtime::bindings {

using namespace nb::literals;
using sampling::SamplingRow;
using sampling::SamplingRows;

namespace {

nb::object float_object(double value) { return nb::steal(PyFloat_FromDouble(value)); }

/// One entry a sampler row: `active(row)` where a row sits, `neutral` elsewhere.
template <class Active>
nb::object placed_column(const SamplingRows& rows, const nb::object& neutral, Active active) {
  std::vector<PyObject*> entries(rows.batch_size(), neutral.ptr());
  std::vector<nb::object> made;
  made.reserve(rows.rows().size());
  for (std::size_t index = 0; index < rows.rows().size(); ++index) {
    made.push_back(active(rows.rows()[index]));
    entries[rows.place(index)] = made.back().ptr();
  }
  auto column = nb::steal(PyTuple_New(static_cast<Py_ssize_t>(entries.size())));
  if (!column.is_valid()) throw nb::python_error();
  for (std::size_t at = 0; at < entries.size(); ++at)
    PyTuple_SetItem(column.ptr(), static_cast<Py_ssize_t>(at),
                    nb::borrow(entries[at]).release().ptr());
  return column;
}

nb::object float_column(const SamplingRows& rows, double SamplingRow::* member, double neutral) {
  const auto resting = float_object(neutral);
  return placed_column(rows, resting, [&](const SamplingRow& row) {
    return row.*member == neutral ? resting : float_object(row.*member);
  });
}

nb::object flag_column(const SamplingRows& rows, bool value) {
  const auto flag = nb::object(nb::bool_(value));
  return placed_column(rows, nb::object(nb::bool_(false)),
                       [&](const SamplingRow&) { return flag; });
}

template <class Name>
nb::object name_column(const SamplingRows& rows, const char* neutral, Name name) {
  return placed_column(rows, nb::object(nb::str(neutral)),
                       [&](const SamplingRow& row) { return nb::object(nb::str(name(row))); });
}

/// The tuple of one field of `PreparedSamplingParams`.
nb::object column(const SamplingRows& rows, std::string_view name) {
  if (name == "top_k")
    return placed_column(rows, nb::int_(1),
                         [](const SamplingRow& row) { return nb::int_(row.top_k); });
  if (name == "top_p") return float_column(rows, &SamplingRow::top_p, 0.0);
  if (name == "temperature") return float_column(rows, &SamplingRow::inverse_temperature, 1.0);
  if (name == "presence_penalty") return float_column(rows, &SamplingRow::presence_penalty, 0.0);
  if (name == "frequency_penalty") return float_column(rows, &SamplingRow::frequency_penalty, 0.0);
  if (name == "repetition_penalty")
    return float_column(rows, &SamplingRow::repetition_penalty, 1.0);
  if (name == "seeds")
    return placed_column(rows, nb::none(), [](const SamplingRow& row) -> nb::object {
      return row.seed ? nb::object(nb::int_(*row.seed)) : nb::none();
    });
  if (name == "greedy_mask")
    return placed_column(rows, nb::bool_(false),
                         [](const SamplingRow& row) { return nb::object(nb::bool_(row.greedy)); });
  if (name == "active_mask") return flag_column(rows, true);
  if (name == "enable_log_probs") return flag_column(rows, false);
  if (name == "num_logprobs")
    return placed_column(rows, nb::int_(0),
                         [](const SamplingRow&) { return nb::object(nb::int_(0)); });
  if (name == "logprob_modes")
    return name_column(rows, "none", [](const SamplingRow&) { return "none"; });
  if (name == "row_paths")
    return name_column(rows, "inactive",
                       [](const SamplingRow& row) { return row.argmax ? "argmax" : "topk"; });
  throw nb::key_error();
}

std::optional<SamplingRows> normalise_sampling(const nb::tuple& fields, const nb::tuple& rows,
                                               std::int64_t batch_size,
                                               std::int64_t max_device_top_k,
                                               bool allow_force_argmax, bool in_slots) {
  std::vector<std::int64_t> sources;
  sources.reserve(nb::len(rows));
  for (nb::handle row : rows) sources.push_back(nb::cast<std::int64_t>(row));
  return plain_sampling_rows(fields, std::move(sources),
                             {batch_size, {max_device_top_k, allow_force_argmax}}, in_slots);
}

void bind_rows(nb::module_& m) {
  nb::class_<SamplingRows> cls(
      m, "SamplingRows", nb::is_final(),
      "Sampling rows of one step; immutable. Follows chapter 20, section 10.2.");
  cls.def_prop_ro("active_rows", [](const SamplingRows& self) { return self.rows().size(); });
  cls.def_prop_ro("all_greedy", &SamplingRows::all_greedy, "Whether every active row is greedy.");
  cls.def_prop_ro("all_argmax", &SamplingRows::all_argmax,
                  "Whether every active row may take the argmax path.");
  cls.def_prop_ro("penalties_enabled", &SamplingRows::penalised,
                  "Whether any active row changes a penalty from its neutral value.");
  cls.def("column", &column, "name"_a, nb::sig("def column(self, name: str) -> tuple[Any, ...]"),
          "One field of PreparedSamplingParams, with one entry per sampler row; KeyError for any "
          "other name.");
  m.def(
      "copied_fields",
      [](const nb::tuple& fields) {
        auto result = nb::steal(PyTuple_New(static_cast<Py_ssize_t>(nb::len(fields))));
        if (!result.is_valid()) throw nb::python_error();
        Py_ssize_t at = 0;
        for (nb::handle field : fields) {
          auto* value = PyList_CheckExact(field.ptr())
                            ? PyList_GetSlice(field.ptr(), 0, PyList_Size(field.ptr()))
                            : nb::borrow(field).release().ptr();
          if (value == nullptr) throw nb::python_error();
          PyTuple_SetItem(result.ptr(), at++, value);
        }
        return result;
      },
      "fields"_a, nb::sig("def copied_fields(fields: tuple[Any, ...]) -> tuple[Any, ...]"),
      "The same values with every list copied, so that its owner may edit it.");
  m.def(
      "normalise_sampling", &normalise_sampling, "fields"_a, "rows"_a, nb::kw_only(),
      "batch_size"_a, "max_device_top_k"_a, "allow_force_argmax"_a, "in_slots"_a,
      nb::sig("def normalise_sampling(fields: tuple[Any, ...], rows: tuple[int, ...], *, "
              "batch_size: int, max_device_top_k: int, allow_force_argmax: bool, in_slots: bool) "
              "-> SamplingRows | None"),
      "Normalises the picked rows of plain parameters: numbers, None, or lists and tuples of them, "
      "in the field order of SamplingParams. With in_slots each row sits where it was picked. None "
      "for anything that is not plain, does not fit or asks for log-probabilities; the caller then "
      "says what is wrong. Follows chapter 20, section 10.");
}

void bind_seeds(nb::module_& m) {
  m.attr("MAX_DEVICE_SEED") = sampling::kMaxDeviceSeed;
  m.def("device_seed", &sampling::device_seed, "key"_a, "position"_a,
        "The seed that the device gets for the token behind a position of a stream.");
  m.def(
      "draw_seeds",
      [](const VectorOf<const std::uint64_t>& keys, const VectorOf<std::int64_t>& positions,
         const VectorOf<std::int64_t>& counts, const VectorOf<const std::int64_t>& slots,
         const std::optional<ArrayIn>& wanted, const VectorOf<std::uint32_t>& out) {
        sampling::draw_seeds({keys.values(), positions.values(), counts.values()}, slots.values(),
                             int_array(wanted, "wanted"), out.values());
      },
      "keys"_a, "positions"_a, "counts"_a, "slots"_a, "wanted"_a.none(), "out"_a,
      nb::sig(
          "def draw_seeds(keys: numpy.typing.NDArray[numpy.uint64], "
          "positions: numpy.typing.NDArray[numpy.int64], "
          "counts: numpy.typing.NDArray[numpy.int64], slots: numpy.typing.NDArray[numpy.int64], "
          "wanted: numpy.typing.NDArray[numpy.int32 | numpy.int64] | None, "
          "out: numpy.typing.NDArray[numpy.uint32]) -> None"),
      "Moves the streams of slots to wanted[slot] (one position on for None), in place, and writes "
      "their device seeds to out[slot]. ValueError for slots outside the arrays. Follows chapter "
      "20, section 5.5.");
}

}  // namespace

void bind_sampling(nb::module_& m) {
  bind_rows(m);
  bind_seeds(m);
}

}  // namespace llm_runtime::bindings
