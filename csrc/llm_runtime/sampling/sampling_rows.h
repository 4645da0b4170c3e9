// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace llm_runtime::sampling {

/// What a caller asks of the sampler for one row.
struct RowRequest {
  double temperature = 0.0;
  std::optional<std::int64_t> top_k =
      std::nullopt;  // none: no integer, which only a greedy row may have
  double top_p = 1.0;
  double presence_penalty = 0.0;
  double frequency_penalty = 0.0;
  double repetition_penalty = 1.0;
  std::optional<std::int64_t> seed = std::nullopt;
};

/// What the device sampler can do.
struct SamplerLimits {
  std::int64_t max_top_k = 0;
  bool allow_argmax = false;
};

/// One active row as the device takes it. Greedy rows have `top_k` 1, `top_p` 0 and the inverse
/// temperature 1.
struct SamplingRow {
  std::int64_t top_k = 1;
  double top_p = 0.0;
  double inverse_temperature = 1.0;
  double presence_penalty = 0.0;
  double frequency_penalty = 0.0;
  double repetition_penalty = 1.0;
  std::optional<std::int64_t> seed = std::nullopt;
  bool greedy = true;
  bool argmax = false;

  bool penalised() const {
    return presence_penalty != 0.0 || frequency_penalty != 0.0 || repetition_penalty != 1.0;
  }
};

/// A request as a row, or nothing when the device sampler cannot serve it: a number that is not
/// finite, a negative temperature, a stochastic row without a `top_k` in 1 to the limit.
std::optional<SamplingRow> normalised_row(const RowRequest& request, const SamplerLimits& limits);

/// The active rows of one step and where in the sampler's `batch_size` rows each of them sits.
class SamplingRows {
 public:
  /// `places` are empty (row i sits at i) or one a row, ascending. Refuses rows that do not fit.
  SamplingRows(std::vector<SamplingRow> rows, std::vector<std::int64_t> places,
               std::int64_t batch_size);

  std::span<const SamplingRow> rows() const { return rows_; }
  std::size_t place(std::size_t index) const {
    return places_.empty() ? index : static_cast<std::size_t>(places_[index]);
  }
  std::size_t batch_size() const { return batch_size_; }

  bool all_greedy() const { return all_greedy_; }
  bool all_argmax() const { return all_argmax_; }
  bool penalised() const { return penalised_; }

 private:
  std::vector<SamplingRow> rows_;
  std::vector<std::int64_t> places_;
  std::size_t batch_size_;
  bool all_greedy_;
  bool all_argmax_;
  bool penalised_;
};

}  // namespace llm_runtime::sampling
