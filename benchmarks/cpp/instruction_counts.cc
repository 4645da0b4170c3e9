// SPDX-License-Identifier: Apache-2.0
// Runs every case under callgrind, which dumps the instructions of `kRuns` calls per case. Started
// by check_budgets.py.
#include <valgrind/callgrind.h>

#include <cstdio>

#include "cases.h"

namespace {

constexpr int kRuns = 10;

}  // namespace

int main() {
  std::printf("compiler %s\nruns %d\n", BENCH_COMPILER, kRuns);
  const auto cases = llm_runtime::bench::all_cases();
  for (const auto& one : cases) {
    // Twice, so that caches, pools and both states of a case that alternates are there.
    one.run();
    one.run();
    CALLGRIND_ZERO_STATS;
    CALLGRIND_TOGGLE_COLLECT;
    for (int run = 0; run < kRuns; ++run) one.run();
    CALLGRIND_TOGGLE_COLLECT;
    CALLGRIND_DUMP_STATS_AT(one.name.c_str());
  }
}
