// SPDX-License-Identifier: Apache-2.0
// Times every case with Google Benchmark; takes its options, for example --benchmark_filter=decode.
#include <benchmark/benchmark.h>

#include "cases.h"

int main(int argc, char** argv) {
  const auto cases = llm_runtime::bench::all_cases();
  for (const auto& one : cases) {
    benchmark::RegisterBenchmark(one.name.c_str(), [&one](benchmark::State& state) {
      one.run();
      for (auto _ : state) one.run();
    });
  }
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
}
