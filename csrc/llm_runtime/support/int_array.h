// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "llm_runtime/support/errors.h"

namespace llm_runtime {

/// A borrowed array of 32- or 64-bit integers as a caller hands it over: of any rank up to 2 that
/// the callee still has to check. Rows may lie apart (a sliced matrix); the entries of a row are
/// contiguous.
class IntArray {
 public:
  IntArray(const std::int32_t* data, std::size_t rank, std::array<std::size_t, 2> shape,
           std::ptrdiff_t row_stride)
      : narrow_(data), rank_(rank), shape_(shape), row_stride_(row_stride) {}
  IntArray(const std::int64_t* data, std::size_t rank, std::array<std::size_t, 2> shape,
           std::ptrdiff_t row_stride)
      : wide_(data), rank_(rank), shape_(shape), row_stride_(row_stride) {}

  /// A contiguous matrix or vector.
  template <class T>
  static IntArray matrix(std::span<const T> data, std::size_t rows, std::size_t columns) {
    return {data.data(), 2, {rows, columns}, static_cast<std::ptrdiff_t>(columns)};
  }
  template <class T>
  static IntArray vector(std::span<const T> data) {
    return {data.data(), 1, {1, data.size()}, static_cast<std::ptrdiff_t>(data.size())};
  }

  std::size_t rank() const { return rank_; }
  std::size_t rows() const { return shape_[0]; }     // 1 for a vector
  std::size_t columns() const { return shape_[1]; }  // the length of a vector

  std::int64_t at(std::size_t row, std::size_t column) const {
    const auto offset = offset_of(row, column);
    return wide_ != nullptr ? wide_[offset] : narrow_[offset];
  }
  std::int64_t operator[](std::size_t index) const { return at(0, index); }

  /// The first of `count` entries of a row that `is_bad` picks, or `count`.
  template <class Predicate>
  std::size_t find_in_row(std::size_t row, std::size_t count, Predicate is_bad) const {
    const auto offset = offset_of(row, 0);
    const auto search = [&](const auto* begin) {
      return static_cast<std::size_t>(std::find_if(begin, begin + count, is_bad) - begin);
    };
    return wide_ != nullptr ? search(wide_ + offset) : search(narrow_ + offset);
  }

  /// Whether a row starts with `entries`. The caller has checked that the row is long enough.
  bool row_starts_with(std::size_t row, std::span<const std::int32_t> entries) const {
    const auto offset = offset_of(row, 0);
    if (narrow_ != nullptr)
      return entries.empty() ||
             std::memcmp(narrow_ + offset, entries.data(), entries.size_bytes()) == 0;
    std::uint64_t differences = 0;  // no early exit: the loop vectorises, and rows are mostly equal
    for (std::size_t i = 0; i < entries.size(); ++i) {
      const std::int64_t entry = entries[i];
      differences |= static_cast<std::uint64_t>(wide_[offset + static_cast<std::ptrdiff_t>(i)]) ^
                     static_cast<std::uint64_t>(entry);
    }
    return differences == 0;
  }

  /// Copies `out.size()` entries of a row, from `first` on. 64-bit entries are cut to the width of
  /// `out`.
  template <class Out>
  void copy_row(std::size_t row, std::size_t first, std::span<Out> out) const {
    const auto offset = offset_of(row, first);
    const auto cut = [](auto entry) { return static_cast<Out>(entry); };
    if (wide_ != nullptr)
      std::transform(wide_ + offset, wide_ + offset + out.size(), out.begin(), cut);
    else
      std::transform(narrow_ + offset, narrow_ + offset + out.size(), out.begin(), cut);
  }

 private:
  std::ptrdiff_t offset_of(std::size_t row, std::size_t column) const {
    return static_cast<std::ptrdiff_t>(row) * row_stride_ + static_cast<std::ptrdiff_t>(column);
  }

  const std::int32_t* narrow_ = nullptr;
  const std::int64_t* wide_ = nullptr;
  std::size_t rank_;
  std::array<std::size_t, 2> shape_;
  std::ptrdiff_t row_stride_;
};

inline void require_rank(const IntArray& array, std::size_t rank, const char* name) {
  require_value(array.rank() == rank, name, " must have rank ", rank, ", not ", array.rank());
}

}  // namespace llm_runtime
