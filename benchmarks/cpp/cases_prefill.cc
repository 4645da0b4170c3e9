// SPDX-License-Identifier: Apache-2.0
// Prefill planning: waves by rows and table width, single requests, chunks, and the signatures of a
// request.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "cases.h"
#include "llm_runtime/prefill/plan_prefill.h"
#include "llm_runtime/prefill/request_signatures.h"

namespace llm_runtime::bench {

namespace {

constexpr std::int64_t kBlock = 32;

/// Owns what a batch borrows: `rows` prompts of `length` tokens and a page table of `width`
/// columns.
struct Prompts {
  Prompts(std::size_t rows, std::size_t length, std::size_t width, bool batched)
      : tokens(rows * length),
        table(rows * width),
        lengths(rows, static_cast<std::int64_t>(length)),
        slots(rows),
        limits{.block_size = kBlock,
               .max_batch_size = 32,
               .max_prefill_chunk_size = 2048,
               .supports_batched_prefill = batched,
               .disable_batched_prefill = false,
               .max_prefill_batch_size = 32,
               .max_actual_page_table_width = static_cast<std::int64_t>(width),
               .canonical_page_table_width = static_cast<std::int64_t>(width),
               .start_alignment = kBlock},
        columns(length),
        table_columns(width) {
    std::iota(tokens.begin(), tokens.end(), 0);
    std::iota(table.begin(), table.end(), 0);
    std::iota(slots.begin(), slots.end(), 0);
  }

  std::vector<prefill::PrefillRequest> plan() const {
    const auto rows = lengths.size();
    return prefill::plan_prefill(
        {.tokens = IntArray::matrix(std::span<const std::int64_t>(tokens), rows, columns),
         .page_table = IntArray::matrix(std::span<const std::int32_t>(table), rows, table_columns),
         .prompt_lens = IntArray::vector(std::span<const std::int64_t>(lengths)),
         .start_pos = std::nullopt,
         .empty_slots = slots},
        limits);
  }

  std::vector<std::int64_t> tokens;
  std::vector<std::int32_t> table;
  std::vector<std::int64_t> lengths;
  std::vector<std::int64_t> slots;
  prefill::PrefillLimits limits;
  std::size_t columns;
  std::size_t table_columns;
};

Case planning(std::string name, int rows, int length, int width, bool batched) {
  const auto prompts =
      std::make_shared<Prompts>(static_cast<std::size_t>(rows), static_cast<std::size_t>(length),
                                static_cast<std::size_t>(width), batched);
  return {std::move(name), [prompts] { keep(prompts->plan()); }};
}

}  // namespace

void add_prefill_cases(Cases& cases) {
  for (const int rows : kRowCounts) {
    const auto suffix = "/rows:" + std::to_string(rows);
    for (const int width : kTableWidths)
      cases.push_back(planning("plan_wave" + suffix + "/width:" + std::to_string(width), rows, 128,
                               width, true));
    cases.push_back(planning("plan_singles" + suffix, rows, 128, 64, false));
  }
  cases.push_back(planning("plan_chunks/tokens:8192", 1, 8192, 256, true));
  const auto request = std::make_shared<prefill::PrefillRequest>(
      std::move(Prompts(1, 100, 64, true).plan().front()));
  cases.push_back({"prefill_signatures", [request] {
                     keep(prefill::build_program_signatures(*request, {.path = "topk"}, true));
                     keep(prefill::build_trace_signature(*request, {.path = "topk"}));
                   }});
}

}  // namespace llm_runtime::bench
