// SPDX-License-Identifier: Apache-2.0
#include "llm_runtime/sampling/sampling_rows.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <utility>

#include "llm_runtime/support/errors.h"

namespace llm_runtime::sampling {

namespace {

bool is_finite(const RowRequest& request) {
  // The sum of finite numbers may overflow, so each is looked at.
  return std::isfinite(request.temperature) && std::isfinite(request.top_p) &&
         std::isfinite(request.presence_penalty) && std::isfinite(request.frequency_penalty) &&
         std::isfinite(request.repetition_penalty);
}

void check_places(std::span<const std::int64_t> places, std::size_t rows, std::size_t batch_size) {
  require_value(0 < rows && rows <= batch_size, rows, " sampled rows for a sampler of ", batch_size,
                " rows");
  if (places.empty()) return;
  require_value(places.size() == rows, rows, " sampled rows need as many places, not ",
                places.size());
  require_value(std::ranges::is_sorted(places, std::ranges::less_equal{}) && places.front() >= 0 &&
                    std::cmp_less(places.back(), batch_size),
                "places must ascend inside 0 to ", batch_size - 1);
}

}  // namespace

std::optional<SamplingRow> normalised_row(const RowRequest& request, const SamplerLimits& limits) {
  if (!is_finite(request) || request.temperature < 0.0) return std::nullopt;
  const bool greedy = request.temperature == 0.0;
  if (!greedy && (!request.top_k || *request.top_k < 1 || *request.top_k > limits.max_top_k))
    return std::nullopt;
  return SamplingRow{
      .top_k = greedy ? 1 : *request.top_k,
      .top_p = greedy ? 0.0 : std::clamp(request.top_p, 0.0, 1.0),
      .inverse_temperature = greedy ? 1.0 : 1.0 / request.temperature,
      .presence_penalty = request.presence_penalty,
      .frequency_penalty = request.frequency_penalty,
      .repetition_penalty = request.repetition_penalty == 0.0 ? 1.0 : request.repetition_penalty,
      .seed = request.seed,
      .greedy = greedy,
      .argmax = greedy && limits.allow_argmax,
  };
}

SamplingRows::SamplingRows(std::vector<SamplingRow> rows, std::vector<std::int64_t> places,
                           std::int64_t batch_size)
    : rows_(std::move(rows)),
      places_(std::move(places)),
      batch_size_(static_cast<std::size_t>(std::max<std::int64_t>(batch_size, 0))),
      all_greedy_(std::ranges::all_of(rows_, &SamplingRow::greedy)),
      all_argmax_(std::ranges::all_of(rows_, &SamplingRow::argmax)),
      penalised_(std::ranges::any_of(rows_, &SamplingRow::penalised)) {
  check_places(places_, rows_.size(), batch_size_);
}

}  // namespace llm_runtime::sampling
