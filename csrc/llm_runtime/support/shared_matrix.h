// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <utility>

namespace llm_runtime {

/// A read-only, C-contiguous matrix with shared ownership of its memory, which may hold more than
/// this matrix.
template <class T>
class SharedMatrix {
 public:
  SharedMatrix() = default;
  SharedMatrix(std::shared_ptr<const T> data, std::size_t rows, std::size_t columns)
      : data_(std::move(data)), rows_(rows), columns_(columns) {}

  std::size_t rows() const { return rows_; }
  std::size_t columns() const { return columns_; }
  const T* data() const { return data_.get(); }
  std::span<const T> row(std::size_t index) const {
    return {data_.get() + index * columns_, columns_};
  }
  const std::shared_ptr<const T>& owner() const { return data_; }

 private:
  std::shared_ptr<const T> data_;
  std::size_t rows_ = 0;
  std::size_t columns_ = 0;
};

/// One allocation for several matrices that are written once and then shared.
template <class T>
class MatrixMemory {
  using Entries = T[];  // NOLINT(modernize-avoid-c-arrays): its length is known at run time only

 public:
  explicit MatrixMemory(std::size_t entries)
      : memory_(std::make_shared_for_overwrite<Entries>(entries)) {}

  /// The next `rows * columns` entries, still unwritten.
  SharedMatrix<T> take(std::size_t rows, std::size_t columns) {
    taken_ = {memory_.get() + used_, rows * columns};
    used_ += rows * columns;
    return {std::shared_ptr<const T>(memory_, taken_.data()), rows, columns};
  }

  /// Where to write the matrix that was taken last.
  std::span<T> taken() const { return taken_; }

 private:
  std::shared_ptr<Entries> memory_;
  std::span<T> taken_;
  std::size_t used_ = 0;
};

}  // namespace llm_runtime
