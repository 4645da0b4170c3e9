// SPDX-License-Identifier: Apache-2.0
// Decode: a new page table, a steady step, a step whose table changed, staging, and the refresh
// decision.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "cases.h"
#include "llm_runtime/decode/lane.h"
#include "llm_runtime/decode/refresh.h"
#include "llm_runtime/decode/staging.h"
#include "llm_runtime/decode/tables.h"

namespace llm_runtime::bench {

namespace {

constexpr std::int32_t kBlock = 32;

/// A full lane at the end of its tables, so that every entry is in use.
struct Lane {
  Lane(std::size_t rows, std::size_t width)
      : tables(static_cast<std::int64_t>(rows),
               {kBlock, static_cast<std::int64_t>(width), static_cast<std::int64_t>(width)}),
        positions(rows, static_cast<std::int32_t>(width) * kBlock - 1),
        table(rows * width),
        columns(width) {
    std::iota(table.begin(), table.end(), 1);
    tables.note_submitted(prepare());
  }

  decode::DecodeBatch prepare() {
    return tables.prepare(
        IntArray::vector(std::span<const std::int32_t>(positions)),
        IntArray::matrix(std::span<const std::int32_t>(table), positions.size(), columns),
        {.device_feedback = true});
  }

  decode::DecodeTables tables;
  std::vector<std::int32_t> positions;
  std::vector<std::int32_t> table;
  std::size_t columns;
};

std::string sizes(int rows, int width) {
  return "/rows:" + std::to_string(rows) + "/width:" + std::to_string(width);
}

void add_tables(Cases& cases, int rows, int width) {
  const auto lane =
      std::make_shared<Lane>(static_cast<std::size_t>(rows), static_cast<std::size_t>(width));
  cases.push_back({"decode_table_copy" + sizes(rows, width), [lane] {
                     lane->tables.reset();
                     keep(lane->prepare());
                   }});
  const auto steady =
      std::make_shared<Lane>(static_cast<std::size_t>(rows), static_cast<std::size_t>(width));
  cases.push_back({"decode_batch" + sizes(rows, width), [steady] {
                     const auto batch = steady->prepare();
                     steady->tables.note_submitted(batch);
                     keep(batch);
                   }});
  const auto changing =
      std::make_shared<Lane>(static_cast<std::size_t>(rows), static_cast<std::size_t>(width));
  cases.push_back({"change_detection" + sizes(rows, width), [changing] {
                     changing->table.back() ^= 1;  // the last entry: every other one is compared
                     keep(changing->prepare());
                   }});
}

void add_staging(Cases& cases, int rows) {
  struct Buffers {
    explicit Buffers(std::size_t count)
        : inputs(count, 7), positions(count), rotary(decode::round_up_to_tile(count)) {}
    std::vector<std::int32_t> inputs;
    std::vector<std::uint32_t> tokens = std::vector<std::uint32_t>(decode::kMaxLaneSlots);
    std::vector<std::int32_t> positions;
    std::vector<std::uint32_t> rotary;
  };
  const auto buffers = std::make_shared<Buffers>(static_cast<std::size_t>(rows));
  cases.push_back({"stage_inputs/rows:" + std::to_string(rows), [buffers] {
                     const auto array =
                         IntArray::vector(std::span<const std::int32_t>(buffers->inputs));
                     decode::stage_decode_inputs(
                         array, array, {buffers->tokens, buffers->positions, buffers->rotary});
                     keep(buffers->tokens);
                   }});
}

}  // namespace

void add_decode_cases(Cases& cases) {
  for (const int rows : kRowCounts) {
    for (const int width : kTableWidths) add_tables(cases, rows, width);
    add_staging(cases, rows);
  }
  for (const int steps : {10, 100'000}) {
    const auto lane = std::make_shared<Lane>(32, 64);
    const auto done = std::make_shared<int>(0);
    // The first call, which nobody counts, brings the lane to its age.
    cases.push_back(
        {"decode_batch_after_steps/steps:" + std::to_string(steps), [lane, done, steps] {
           do {
             lane->tables.note_submitted(lane->prepare());
           } while (++*done < steps);
         }});
  }
  const auto policy = std::make_shared<decode::RefreshPolicy>();
  policy->every_replay.names = {"sampling"};
  cases.push_back({"refresh_decision", [policy] {
                     keep(decode::decide_refresh(
                         *policy, {.device_feedback_enabled = true, .feedback_compatible = true}));
                   }});
}

}  // namespace llm_runtime::bench
