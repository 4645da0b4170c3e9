// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <functional>
#include <tuple>
#include <type_traits>

namespace llm_runtime {

/// Marks a field that always takes part in key material.
struct NeverOmitted {};

/// One entry of a value type's field list: its public name, where it lives, and the value (if any)
/// that leaves the field out of key material.
template <class T, class Member, class Omitted = NeverOmitted>
struct Field {
  const char* name;
  Member T::* member;
  Omitted omitted{};
};

template <class T, class Member>
constexpr Field<T, Member> field(const char* name, Member T::* member) {
  return {name, member};
}

template <class T, class Member, class Omitted>
constexpr Field<T, Member, Omitted> field(const char* name, Member T::* member, Omitted omitted) {
  return {name, member, omitted};
}

/// A value type writes its fields once, as `static constexpr auto fields()`; equality, hash, repr,
/// pickling and key material follow from that list.
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
    const auto& member = value.*entry.member;
    seed = combine_hash(seed, std::hash<std::decay_t<decltype(member)>>{}(member));
  });
  return seed;
}

}  // namespace llm_runtime
