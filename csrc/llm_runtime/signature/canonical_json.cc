// SPDX-License-Identifier: Apache-2.0
#include "llm_runtime/signature/canonical_json.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <cstdlib>

#include "llm_runtime/signature/key_reader.h"

namespace llm_runtime::signature {

namespace {

constexpr std::string_view kHexDigits = "0123456789abcdef";

std::string hex_digits(std::uint64_t value, std::size_t count) {
  std::string digits(count, '0');
  for (auto digit = digits.rbegin(); digit != digits.rend(); ++digit, value >>= 4U)
    *digit = kHexDigits[value & 0xfU];
  return digits;
}

std::size_t encoded_length(unsigned first_byte) {
  if (first_byte < 0x80U) return 1;
  if (first_byte < 0xe0U) return 2;
  return first_byte < 0xf0U ? 3 : 4;
}

/// The next code point of UTF-8 text, which is well formed by construction except for lone
/// surrogates.
char32_t take_code_point(std::string_view& text) {
  static constexpr std::array<unsigned, 5> kPayload{0, 0x7fU, 0x1fU, 0x0fU, 0x07U};
  const unsigned first = static_cast<unsigned char>(text.front());
  const std::size_t length = std::min(encoded_length(first), text.size());
  char32_t code = first & kPayload[length];
  for (std::size_t i = 1; i < length; ++i)
    code = (code << 6U) | (static_cast<unsigned char>(text[i]) & 0x3fU);
  text.remove_prefix(length);
  return code;
}

void append_escaped(std::string& out, char32_t code) {
  if (code >= 0x10000U) {  // JSON knows UTF-16 only
    append_escaped(out, 0xd800U + ((code - 0x10000U) >> 10U));
    append_escaped(out, 0xdc00U + ((code - 0x10000U) & 0x3ffU));
    return;
  }
  switch (code) {
    case '"':
      out += "\\\"";
      return;
    case '\\':
      out += "\\\\";
      return;
    case '\n':
      out += "\\n";
      return;
    case '\r':
      out += "\\r";
      return;
    case '\t':
      out += "\\t";
      return;
    case '\f':
      out += "\\f";
      return;
    case '\b':
      out += "\\b";
      return;
    default:
      break;
  }
  if (code >= ' ' && code <= '~')
    out += static_cast<char>(code);
  else
    out += "\\u" + hex_digits(code, 4);
}

void append_quoted(std::string& out, std::string_view text) {
  out += '"';
  while (!text.empty()) append_escaped(out, take_code_point(text));
  out += '"';
}

void append_tagged(std::string& out, std::string_view kind, std::string_view text) {
  out += "[\"";
  out += kind;
  out += "\",";
  append_quoted(out, text);
  out += ']';
}

void append_value(std::string& out, std::string_view packed) {
  const KeyItem item = KeyReader(packed).next();
  switch (item.tag) {
    case KeyTag::kNull:
      out += R"(["null"])";
      return;
    case KeyTag::kFalse:
      out += R"(["bool",false])";
      return;
    case KeyTag::kTrue:
      out += R"(["bool",true])";
      return;
    case KeyTag::kInteger:
      append_tagged(out, "int", std::to_string(item.integer));
      return;
    case KeyTag::kBigInteger:
      append_tagged(out, "int", item.text);
      return;
    case KeyTag::kReal:
      append_tagged(out, "float", real_hex(item.real));
      return;
    case KeyTag::kText:
      append_tagged(out, "str", item.text);
      return;
    case KeyTag::kEnum:
      append_tagged(out, "enum", item.text);
      return;
    case KeyTag::kTupleBegin:
      break;
    case KeyTag::kTupleEnd:
      return;
  }
  out += R"(["tuple",[)";
  const char* separator = "";
  for_each_value(packed, [&](std::string_view value) {
    out += separator;
    append_value(out, value);
    separator = ",";
  });
  out += "]]";
}

}  // namespace

std::string real_hex(double value) {
  constexpr unsigned kMantissaBits = 52;
  constexpr int kBias = 1023;
  const auto bits = std::bit_cast<std::uint64_t>(value);
  const auto mantissa = bits & ((1ULL << kMantissaBits) - 1U);
  const auto biased = static_cast<int>((bits >> kMantissaBits) & 0x7ffU);
  std::string text = (bits >> 63U) != 0U ? "-" : "";
  if (biased == 0 && mantissa == 0) return text + "0x0.0p+0";
  const int exponent = biased == 0 ? 1 - kBias : biased - kBias;
  text += biased == 0 ? "0x0." : "0x1.";
  text += hex_digits(mantissa, kMantissaBits / 4U) + "p";
  return text + (exponent < 0 ? "-" : "+") + std::to_string(std::abs(exponent));
}

std::string canonical_json(const SignatureKey& key, std::string_view domain,
                           std::int64_t schema_version) {
  KeyWriter payload;
  payload.pair("domain", domain);
  payload.pair("schema_version", schema_version);
  payload.begin_tuple();
  payload.text("signature");
  std::string packed = std::move(payload).finish();
  packed.pop_back();  // the key goes in front of the closing marks
  packed += key.packed();
  packed.append(2, static_cast<char>(KeyTag::kTupleEnd));
  std::string json;
  append_value(json, packed);
  return json;
}

}  // namespace llm_runtime::signature
