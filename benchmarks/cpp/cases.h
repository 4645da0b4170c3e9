// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace llm_runtime::bench {

/// One thing to measure. `run` owns its inputs and may be called any number of times.
struct Case {
  std::string name;
  std::function<void()> run;
};

using Cases = std::vector<Case>;

void add_prefill_cases(Cases& cases);
void add_decode_cases(Cases& cases);
void add_registry_cases(Cases& cases);
void add_sampling_cases(Cases& cases);

inline Cases all_cases() {
  Cases cases;
  add_prefill_cases(cases);
  add_decode_cases(cases);
  add_registry_cases(cases);
  add_sampling_cases(cases);
  return cases;
}

inline constexpr int kRowCounts[] = {1, 8, 32};
inline constexpr int kTableWidths[] = {64, 256, 4096};

/// Keeps the compiler from dropping a result that nobody reads.
template <class T>
void keep(const T& value) {
  asm volatile("" : : "r"(&value) : "memory");
}

}  // namespace llm_runtime::bench
