// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

#include "llm_runtime/signature/decode_signatures.h"
#include "llm_runtime/signature/key_reader.h"
#include "llm_runtime/signature/prefill_signatures.h"
#include "llm_runtime/signature/signature_key.h"
#include "llm_runtime/support/errors.h"

namespace llm_runtime::signature {
namespace {

using ::testing::ElementsAre;

template <class Fill>
SignatureKey key_of(Fill fill) {
  KeyWriter writer;
  fill(writer);
  return SignatureKey(std::move(writer).finish());
}

PrefillProgramFields regular() {
  return {.operation_variant = "regular-single",
          .padded_batch_size = 1,
          .invocation_sequence_length = 128,
          .page_table_width = 64,
          .chunk_page_table_width = std::nullopt,
          .sampling_path = "logits",
          .penalties_enabled = false,
          .logprobs_enabled = false,
          .last_token_tile_start = std::nullopt};
}

std::vector<std::string> paths(const SignatureKey& a, const SignatureKey& b) {
  std::vector<std::string> result;
  for (const auto& mismatch : a.mismatches(b)) result.push_back(mismatch.path);
  return result;
}

std::vector<std::string> names(const SignatureKey& key) {
  std::vector<std::string> result;
  for_each_value(key.packed(), [&](std::string_view pair) {
    for_each_value(pair, [&, first = true](std::string_view value) mutable {
      if (first) result.emplace_back(KeyReader(value).next().text);
      first = false;
    });
  });
  return result;
}

TEST(SignatureKey, ValuesThatPrintAlikeAreDifferentKeys) {
  const std::vector<SignatureKey> keys{
      key_of([](KeyWriter& w) { w.integer(1); }),
      key_of([](KeyWriter& w) { w.big_integer("1"); }),
      key_of([](KeyWriter& w) { w.boolean(true); }),
      key_of([](KeyWriter& w) { w.real(1.0); }),
      key_of([](KeyWriter& w) { w.text("1"); }),
      key_of([](KeyWriter& w) { w.enumeration("1"); }),
      key_of([](KeyWriter& w) { w.null(); }),
      key_of([](KeyWriter&) {}),
      key_of([](KeyWriter& w) { w.begin_tuple(), w.end_tuple(); }),
  };
  for (std::size_t i = 0; i < keys.size(); ++i)
    for (std::size_t j = 0; j < keys.size(); ++j) EXPECT_EQ(keys[i] == keys[j], i == j) << i << j;
}

TEST(SignatureKey, SignedZerosDiffer) {
  EXPECT_FALSE(key_of([](KeyWriter& w) { w.real(0.0); }) ==
               key_of([](KeyWriter& w) { w.real(-0.0); }));
}

TEST(SignatureKey, NonFiniteNumbersAreRefused) {
  KeyWriter writer;
  EXPECT_THROW(writer.real(std::numeric_limits<double>::quiet_NaN()), InvalidValue);
  EXPECT_THROW(writer.real(std::numeric_limits<double>::infinity()), InvalidValue);
}

TEST(SignatureKey, EqualMaterialHasEqualHashAndBytes) {
  const PrefillProgramSignature a(regular());
  const PrefillProgramSignature b(regular());
  EXPECT_EQ(a.key, b.key);
  EXPECT_EQ(a.key.hash(), b.key.hash());
  EXPECT_EQ(std::hash<SignatureKey>{}(a.key), a.key.hash());
}

TEST(SignatureKey, PacksTheFieldListAndOmitsFlagsThatAreOff) {
  auto fields = regular();
  EXPECT_THAT(names(fields.pack()),
              ElementsAre("operation_variant", "padded_batch_size", "invocation_sequence_length",
                          "page_table_width", "chunk_page_table_width", "sampling_path",
                          "last_token_tile_start"));
  fields.penalties_enabled = fields.logprobs_enabled = true;
  EXPECT_THAT(names(fields.pack()),
              ElementsAre("operation_variant", "padded_batch_size", "invocation_sequence_length",
                          "page_table_width", "chunk_page_table_width", "sampling_path",
                          "penalties_enabled", "logprobs_enabled", "last_token_tile_start"));
}

TEST(SignatureKey, DecodeMaterialStartsWithTheOperation) {
  DecodeProgramFields fields;
  fields.sampling_path = "topk";
  EXPECT_THAT(names(fields.pack()), ElementsAre("operation", "batch_size", "page_table_width",
                                                "sampling_path", "device_feedback"));
}

TEST(SignatureKey, MismatchesNameEveryDifferingField) {
  auto other = regular();
  other.page_table_width = 72;
  other.penalties_enabled = true;
  const SignatureKey mine = regular().pack();
  const SignatureKey theirs = other.pack();
  EXPECT_THAT(paths(mine, theirs), ElementsAre("page_table_width", "penalties_enabled"));
  EXPECT_THAT(paths(theirs, mine), ElementsAre("page_table_width", "penalties_enabled"));
  EXPECT_THAT(paths(mine, mine), ElementsAre());

  const auto first = mine.mismatches(theirs).front();
  EXPECT_EQ(KeyReader(first.mine).next().integer, 64);
  EXPECT_EQ(KeyReader(first.theirs).next().integer, 72);
  EXPECT_TRUE(mine.mismatches(theirs).back().mine.empty());
}

TEST(SignatureKey, MaterialWithoutNamesIsComparedByPosition) {
  const auto a = key_of([](KeyWriter& w) { w.integer(1), w.text("x"); });
  const auto b = key_of([](KeyWriter& w) { w.integer(1), w.text("y"), w.null(); });
  EXPECT_THAT(paths(a, b), ElementsAre("[1]", "[2]"));
}

TEST(SignatureKey, ADifferentOrderOfTheSamePairsIsAMismatch) {
  const auto a = key_of([](KeyWriter& w) { w.pair("m", true), w.pair("n", false); });
  const auto b = key_of([](KeyWriter& w) { w.pair("n", false), w.pair("m", true); });
  EXPECT_THAT(paths(a, b), ElementsAre("[0]", "[1]"));
}

TEST(SignatureKey, BrokenBytesAreRefused) {
  const std::string good(regular().pack().packed());
  EXPECT_EQ(SignatureKey::from_untrusted(good), regular().pack());
  for (std::size_t length = 0; length < good.size(); ++length)
    EXPECT_THROW(SignatureKey::from_untrusted(good.substr(0, length)), InvalidValue) << length;
  for (const char* bad : {"()n", "(x)", "n", "())", "(s\x7f\x7f\x7f\x7f)"})
    EXPECT_THROW(SignatureKey::from_untrusted(bad), InvalidValue) << bad;
}

}  // namespace
}  // namespace llm_runtime::signature
