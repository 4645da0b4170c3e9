// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <optional>

#include "llm_runtime/prefill/request_signatures.h"
#include "prefill/plan_call.h"

namespace llm_runtime::prefill {
namespace {

signature::PrefillProgramSignature program(const PrefillRequest& request, std::string_view path,
                                           bool topk_supported = true) {
  const auto programs = build_program_signatures(request, {.path = path}, topk_supported);
  EXPECT_EQ(programs.size(), 1U);
  return programs.at(0);
}

TEST(RequestSignatures, ShortSinglesCarryTheTileOfTheirLastToken) {
  const auto request = PlanCall{.lengths = {96}, .starts = {}, .slots = {}}.plan().at(0);
  EXPECT_EQ(program(request, "topk").last_token_tile_start, 64);
  EXPECT_EQ(program(request, "topk", false).last_token_tile_start, std::nullopt);
  EXPECT_EQ(program(request, "argmax", false).last_token_tile_start, 64);
  EXPECT_EQ(program(request, "logits").last_token_tile_start, std::nullopt);
}

TEST(RequestSignatures, ChunksAndOffsetsShareOneIdentity) {
  const auto a = PlanCall{.lengths = {4097}, .starts = {0}, .slots = {}}.plan().at(0);
  const auto b = PlanCall{.lengths = {2200}, .starts = {64}, .slots = {}}.plan().at(0);
  EXPECT_EQ(program(a, "topk").key, program(b, "topk").key);
  EXPECT_EQ(build_trace_signature(a, {.path = "topk"}).key,
            build_trace_signature(b, {.path = "topk"}).key);
  EXPECT_EQ(program(a, "topk").operation_variant, "chunked");
  EXPECT_EQ(program(a, "topk").chunk_page_table_width, 64);
}

TEST(RequestSignatures, ActiveRowsAreNoIdentity) {
  const auto three = PlanCall{.lengths = {80, 81, 82}, .starts = {}, .slots = {}}.plan().at(0);
  const auto four =
      PlanCall{.lengths = {1, 2, 3, 4}, .starts = {}, .slots = {{9, 8, 7, 6}}}.plan().at(0);
  EXPECT_EQ(program(three, "topk").key, program(four, "topk").key);
  EXPECT_EQ(program(three, "topk").operation_variant, "regular-batched");
}

}  // namespace
}  // namespace llm_runtime::prefill
