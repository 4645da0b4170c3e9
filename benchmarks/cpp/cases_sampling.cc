// SPDX-License-Identifier: Apache-2.0
// Sampling rows, random streams, and the routing of rows to lanes.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "cases.h"
#include "llm_runtime/lanes/routing.h"
#include "llm_runtime/sampling/sampling_rows.h"
#include "llm_runtime/sampling/seed_streams.h"

namespace llm_runtime::bench {

namespace {

sampling::SamplingRows normalised(const std::vector<sampling::RowRequest>& requests) {
  std::vector<sampling::SamplingRow> rows;
  rows.reserve(requests.size());
  for (const auto& request : requests)
    rows.push_back(*sampling::normalised_row(request, {.max_top_k = 32, .allow_argmax = true}));
  return sampling::SamplingRows(std::move(rows), {}, 32);
}

void add_rows(Cases& cases, int count) {
  auto requests = std::make_shared<std::vector<sampling::RowRequest>>();
  for (int row = 0; row < count; ++row)
    requests->push_back({.temperature = 0.5 + row, .top_k = 1 + row % 32, .top_p = 0.9});
  cases.push_back(
      {"sampling_rows/rows:" + std::to_string(count), [requests] { keep(normalised(*requests)); }});
}

void add_seeds(Cases& cases, int count) {
  struct Streams {
    explicit Streams(std::size_t rows)
        : keys(rows, 77), positions(rows), counts(rows), slots(rows), out(rows) {
      std::iota(slots.begin(), slots.end(), 0);
    }
    std::vector<std::uint64_t> keys;
    std::vector<std::int64_t> positions, counts, slots;
    std::vector<std::uint32_t> out;
  };
  const auto streams = std::make_shared<Streams>(static_cast<std::size_t>(count));
  cases.push_back({"seed_draw/rows:" + std::to_string(count), [streams] {
                     sampling::draw_seeds({streams->keys, streams->positions, streams->counts},
                                          streams->slots, std::nullopt, streams->out);
                     keep(streams->out);
                   }});
}

void add_routing(Cases& cases, int count) {
  const auto slots = std::make_shared<std::vector<std::int64_t>>();
  for (int row = 0; row < count; ++row) slots->push_back((row * 7) % 32);
  cases.push_back({"lane_routing/rows:" + std::to_string(count),
                   [slots] { keep(lanes::route_rows(*slots, 4, 8)); }});
}

}  // namespace

void add_sampling_cases(Cases& cases) {
  for (const int rows : kRowCounts) {
    add_rows(cases, rows);
    add_seeds(cases, rows);
    add_routing(cases, rows);
  }
}

}  // namespace llm_runtime::bench
