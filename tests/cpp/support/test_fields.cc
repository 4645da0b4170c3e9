// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <string>
#include <tuple>
#include <vector>

#include "llm_runtime/support/fields.h"

namespace llm_runtime {
namespace {

struct Sample {
  int rows;
  bool wide;
  static constexpr auto fields() {
    return std::tuple{field("rows", &Sample::rows), field("wide", &Sample::wide)};
  }
  bool operator==(const Sample&) const = default;
};

TEST(Fields, AreVisitedInTheOrderTheyAreWritten) {
  std::vector<std::string> names;
  for_each_field<Sample>([&](const auto& entry) { names.emplace_back(entry.name); });
  EXPECT_EQ(names, (std::vector<std::string>{"rows", "wide"}));
}

TEST(Fields, EqualValuesHashAlikeAndOtherValuesDiffer) {
  EXPECT_EQ(hash_fields(Sample{3, true}), hash_fields(Sample{3, true}));
  EXPECT_NE(hash_fields(Sample{3, true}), hash_fields(Sample{3, false}));
  EXPECT_NE(hash_fields(Sample{3, true}), hash_fields(Sample{4, true}));
}

}  // namespace
}  // namespace llm_runtime
