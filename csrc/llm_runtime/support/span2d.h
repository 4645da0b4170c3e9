// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <span>

namespace llm_runtime {

/// A borrowed, C-contiguous matrix. Never owns; the caller keeps the memory alive for the call.
template <class T>
class Span2D {
 public:
  Span2D(T* data, std::size_t rows, std::size_t columns)
      : data_(data), rows_(rows), columns_(columns) {}

  std::size_t rows() const { return rows_; }
  std::size_t columns() const { return columns_; }
  std::span<T> row(std::size_t index) const { return {data_ + index * columns_, columns_}; }
  T* data() const { return data_; }

 private:
  T* data_;
  std::size_t rows_;
  std::size_t columns_;
};

}  // namespace llm_runtime
