// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "llm_runtime/sampling/sampling_rows.h"

namespace llm_runtime::bindings {

namespace nb = nanobind;

/// The sampler that rows are normalised for.
struct SamplerShape {
  std::int64_t batch_size = 0;
  sampling::SamplerLimits limits;
};

/// The picked rows of sampling parameters, normalised; with `in_slots` each sits where it was
/// picked. Nothing when a field is no plain value (exact `float`, `int` or `None`, or a list or
/// tuple of them with one entry or more than the last picked row), asks for log-probabilities, or
/// holds what the device sampler cannot serve. `fields` come in the order of `SamplingParams`.
std::optional<sampling::SamplingRows> plain_sampling_rows(const nb::tuple& fields,
                                                          std::vector<std::int64_t> rows,
                                                          const SamplerShape& sampler,
                                                          bool in_slots);

}  // namespace llm_runtime::bindings
