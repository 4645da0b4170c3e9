// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <limits>

#include "llm_runtime/signature/canonical_json.h"

namespace llm_runtime::signature {
namespace {

SignatureKey one_text(std::string_view text) {
  KeyWriter writer;
  writer.text(text);
  return SignatureKey(std::move(writer).finish());
}

std::string body(const SignatureKey& key) {
  const std::string json = canonical_json(key, "d", 1);
  const std::string head =
      R"(["tuple",[["tuple",[["str","domain"],["str","d"]]],)"
      R"(["tuple",[["str","schema_version"],["int","1"]]],["tuple",[["str","signature"],)";
  EXPECT_EQ(json.substr(0, head.size()), head);
  EXPECT_EQ(json.substr(json.size() - 4), "]]]]");
  return json.substr(head.size(), json.size() - head.size() - 4);
}

TEST(CanonicalJson, TagsEveryValue) {
  KeyWriter writer;
  writer.null();
  writer.boolean(true);
  writer.boolean(false);
  writer.integer(-7);
  writer.big_integer("123456789012345678901234567890");
  writer.real(0.5);
  writer.enumeration("x");
  writer.pair("a", true);
  EXPECT_EQ(body(SignatureKey(std::move(writer).finish())),
            R"(["tuple",[["null"],["bool",true],["bool",false],["int","-7"],)"
            R"(["int","123456789012345678901234567890"],["float","0x1.0000000000000p-1"],)"
            R"(["enum","x"],["tuple",[["str","a"],["bool",true]]]]])");
}

TEST(CanonicalJson, EscapesAsAsciiWithSurrogatePairs) {
  EXPECT_EQ(body(one_text("a\"\\\n\r\t\f\b\x01\x7f")),
            R"(["tuple",[["str","a\"\\\n\r\t\f\b\u0001\u007f"]]])");
  EXPECT_EQ(body(one_text("\u00e9\u20ac\U0001F600")),
            R"(["tuple",[["str","\u00e9\u20ac\ud83d\ude00"]]])");
  EXPECT_EQ(body(one_text("\xed\xa0\x80")), R"(["tuple",[["str","\ud800"]]])");
}

TEST(CanonicalJson, WritesRealNumbersInHex) {
  EXPECT_EQ(real_hex(1.0), "0x1.0000000000000p+0");
  EXPECT_EQ(real_hex(-3.0), "-0x1.8000000000000p+1");
  EXPECT_EQ(real_hex(0.1), "0x1.999999999999ap-4");
  EXPECT_EQ(real_hex(0.0), "0x0.0p+0");
  EXPECT_EQ(real_hex(-0.0), "-0x0.0p+0");
  EXPECT_EQ(real_hex(std::numeric_limits<double>::max()), "0x1.fffffffffffffp+1023");
  EXPECT_EQ(real_hex(std::numeric_limits<double>::denorm_min()), "0x0.0000000000001p-1022");
}

}  // namespace
}  // namespace llm_runtime::signature
