// SPDX-License-Identifier: Apache-2.0
#include "bindings/sampling_columns.h"

#include <algorithm>
#include <cstddef>
#include <span>
#include <utility>

namespace llm_runtime::bindings {

using sampling::RowRequest;
using sampling::SamplingRow;
using sampling::SamplingRows;

namespace {

constexpr std::size_t kFields = 9;
constexpr std::int64_t kNoSeed = -1;

/// One field: a scalar for every row, or a list or tuple by row.
class Column {
 public:
  Column(PyObject* value, std::int64_t last_row) : value_(value) {
    if (PyList_CheckExact(value))
      size_ = PyList_Size(value);
    else if (PyTuple_CheckExact(value))
      size_ = PyTuple_Size(value);
    else
      return;
    is_sequence_ = true;
    fits_ = size_ == 1 || size_ > last_row;
    is_list_ = PyList_CheckExact(value);
  }

  bool fits() const { return fits_; }
  bool is_sequence() const { return is_sequence_; }

  /// Borrowed; null when the list shrank meanwhile.
  PyObject* at(std::int64_t row) const {
    if (!is_sequence_) return value_;
    const auto index = size_ == 1 ? 0 : static_cast<Py_ssize_t>(row);
    return is_list_ ? PyList_GetItem(value_, index) : PyTuple_GetItem(value_, index);
  }

 private:
  PyObject* value_;
  Py_ssize_t size_ = 0;
  bool is_sequence_ = false;
  bool is_list_ = false;
  bool fits_ = true;
};

bool read_number(PyObject* entry, double& out) {
  if (entry == nullptr) return false;
  if (PyFloat_CheckExact(entry)) {
    out = PyFloat_AsDouble(entry);
    return true;
  }
  if (!PyLong_CheckExact(entry)) return false;
  out = PyLong_AsDouble(entry);
  if (out == -1.0 && PyErr_Occurred() != nullptr) {
    PyErr_Clear();
    return false;
  }
  return true;
}

bool read_integer(PyObject* entry, std::int64_t& out) {
  if (entry == nullptr || !PyLong_CheckExact(entry)) return false;
  int overflow = 0;
  out = PyLong_AsLongLongAndOverflow(entry, &overflow);
  return overflow == 0;
}

bool read_seed(PyObject* entry, std::optional<std::int64_t>& out) {
  if (entry == Py_None) return true;
  std::int64_t seed = 0;
  if (!read_integer(entry, seed)) return false;
  if (seed != kNoSeed) out = seed;
  return true;
}

/// `columns` in the order of SamplingParams.
bool read_row(std::span<const Column> columns, std::int64_t row, bool first, RowRequest& out) {
  if (!read_number(columns[0].at(row), out.temperature)) return false;
  std::int64_t top_k = 0;
  if (read_integer(columns[1].at(row), top_k)) out.top_k = top_k;
  // One seed names one random stream, so a scalar belongs to one row and is not repeated.
  const bool seeded = columns[6].is_sequence() || first;
  return read_number(columns[2].at(row), out.top_p) &&
         read_number(columns[3].at(row), out.presence_penalty) &&
         read_number(columns[4].at(row), out.frequency_penalty) &&
         read_number(columns[5].at(row), out.repetition_penalty) &&
         (!seeded || read_seed(columns[6].at(row), out.seed)) && columns[7].at(row) == Py_False;
}

std::optional<std::vector<Column>> read_columns(const nb::tuple& fields, std::int64_t last_row) {
  std::vector<Column> columns;
  columns.reserve(kFields);
  for (nb::handle field : fields) {
    columns.emplace_back(field.ptr(), last_row);
    if (!columns.back().fits()) return std::nullopt;
  }
  return columns;
}

}  // namespace

std::optional<SamplingRows> plain_sampling_rows(const nb::tuple& fields,
                                                std::vector<std::int64_t> rows,
                                                const SamplerShape& sampler, bool in_slots) {
  if (nb::len(fields) != kFields || rows.empty() || std::ranges::min(rows) < 0 ||
      std::cmp_greater(rows.size(), sampler.batch_size))
    return std::nullopt;
  const auto columns = read_columns(fields, std::ranges::max(rows));
  if (!columns) return std::nullopt;
  std::vector<SamplingRow> normalised;
  normalised.reserve(rows.size());
  for (const auto row : rows) {
    RowRequest request;
    if (!read_row(*columns, row, normalised.empty(), request)) {
      PyErr_Clear();
      return std::nullopt;
    }
    const auto active = sampling::normalised_row(request, sampler.limits);
    if (!active) return std::nullopt;
    normalised.push_back(*active);
  }
  if (!in_slots) rows.clear();
  return SamplingRows(std::move(normalised), std::move(rows), sampler.batch_size);
}

}  // namespace llm_runtime::bindings
