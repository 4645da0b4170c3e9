// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace llm_runtime::signature {

/// Kinds of value in packed key material. Each value starts with one of these bytes, so that `1`,
/// `1.0`, `true`, the text "1" and an enum of that value all pack differently.
enum class KeyTag : char {
  kNull = 'n',
  kFalse = 'f',
  kTrue = 't',
  kInteger = 'i',     // eight bytes
  kBigInteger = 'I',  // length, decimal digits: integers beyond 64 bits
  kReal = 'd',        // eight bytes
  kText = 's',        // length, UTF-8 (lone surrogates in their three-byte form)
  kEnum = 'e',        // length, UTF-8
  kTupleBegin = '(',
  kTupleEnd = ')',
};

/// Tuples may nest this deep, the outer one included; real signatures need three.
inline constexpr int kMaxKeyDepth = 64;

/// Packs one tuple of key material, value by value, in the order of the calls.
class KeyWriter {
 public:
  KeyWriter() {
    packed_.reserve(kTypicalSize);
    begin_tuple();
  }

  void null() { tag(KeyTag::kNull); }
  void boolean(bool value) { tag(value ? KeyTag::kTrue : KeyTag::kFalse); }
  void integer(std::int64_t value) { raw(KeyTag::kInteger, &value, sizeof value); }
  void big_integer(std::string_view digits) { sized(KeyTag::kBigInteger, digits); }
  /// Refuses NaN and infinities: they have no canonical form.
  void real(double value);
  void text(std::string_view utf8) { sized(KeyTag::kText, utf8); }
  void enumeration(std::string_view utf8) { sized(KeyTag::kEnum, utf8); }
  void begin_tuple();
  void end_tuple() {
    --depth_;
    tag(KeyTag::kTupleEnd);
  }

  void value(std::same_as<bool> auto item) { boolean(item); }
  void value(std::same_as<std::int64_t> auto item) { integer(item); }
  void value(std::string_view item) { text(item); }
  template <class T>
  void value(const std::optional<T>& item) {
    item ? value(*item) : null();
  }

  /// One `(name, value)` entry of a signature.
  template <class T>
  void pair(std::string_view name, const T& item) {
    begin_tuple();
    text(name);
    value(item);
    end_tuple();
  }

  /// Closes the outer tuple and hands the bytes over; the writer is spent.
  std::string finish() && {
    end_tuple();
    return std::move(packed_);
  }

 private:
  static constexpr std::size_t kTypicalSize = 320;  // the nine entries of the largest signature

  void tag(KeyTag kind) { packed_.push_back(static_cast<char>(kind)); }
  void raw(KeyTag kind, const void* bytes, std::size_t count) {
    tag(kind);
    packed_.append(static_cast<const char*>(bytes), count);
  }
  void sized(KeyTag kind, std::string_view bytes);

  std::string packed_;
  int depth_ = 0;
};

}  // namespace llm_runtime::signature
