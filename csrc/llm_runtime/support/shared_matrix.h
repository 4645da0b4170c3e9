// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
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
class MatrixMemory {
  /// Raw memory that is aligned for every kind of entry; matrices are made in it.
  struct alignas(std::int64_t) Cell {
    std::array<std::byte, sizeof(std::int64_t)> bytes;
  };
  using Cells = Cell[];  // NOLINT(modernize-avoid-c-arrays): its length is known at run time only

 public:
  explicit MatrixMemory(std::size_t bytes)
      : memory_(std::make_shared_for_overwrite<Cells>((bytes + sizeof(Cell) - 1) / sizeof(Cell))) {}

  template <class T>
  struct Taken {
    SharedMatrix<T> matrix;
    std::span<T> entries;  // where to write it
  };

  /// The next `rows * columns` entries, still unwritten. Wider kinds of entry come first.
  template <class T>
  Taken<T> take(std::size_t rows, std::size_t columns) {
    const std::span<T> entries(reinterpret_cast<T*>(memory_.get()->bytes.data() + used_),
                               rows * columns);
    used_ += entries.size_bytes();
    return {{std::shared_ptr<const T>(memory_, entries.data()), rows, columns}, entries};
  }

 private:
  std::shared_ptr<Cells> memory_;
  std::size_t used_ = 0;
};

}  // namespace llm_runtime
