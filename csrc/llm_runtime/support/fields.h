// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <functional>
#include <tuple>

namespace llm_runtime {

/// One entry of a value type's field list: its public name and where it lives.
template <class T, class Member>
struct Field {
  const char* name;
  Member T::* member;
};

template <class T, class Member>
constexpr Field<T, Member> field(const char* name, Member T::* member) {
  return {name, member};
}

/// A value type writes its fields once, as `static constexpr auto fields()`; equality, hash, repr, pickling and key
/// material follow from that list.
///
///     struct Size {
///       int rows;
///       static constexpr auto fields() { return std::tuple{field("rows", &Size::rows)}; }
///     };
template <class T, class Visitor>
constexpr void for_each_field(Visitor&& visit) {
  std::apply([&](const auto&... entry) { (visit(entry), ...); }, T::fields());
}

inline std::size_t combine_hash(std::size_t seed, std::size_t value) {
  return seed ^ (value + 0x9e3779b97f4a7c15ULL + (seed << 6U) + (seed >> 2U));
}

/// Hash over the field list; pairs with a defaulted `operator==`.
template <class T>
std::size_t hash_fields(const T& value) {
  std::size_t seed = 0;
  for_each_field<T>([&](const auto& entry) {
    const auto& member = value.*(entry.member);
    seed = combine_hash(seed, std::hash<std::decay_t<decltype(member)>>{}(member));
  });
  return seed;
}

}  // namespace llm_runtime
