// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace llm_runtime::registry {

/// Position of a program or trace in its registry, in registration order; the owner's lists are
/// indexed by it.
enum class ProgramId : std::int32_t {};
enum class TraceId : std::int32_t {};

inline constexpr ProgramId kNoProgram{-1};
inline constexpr TraceId kNoTrace{-1};

}  // namespace llm_runtime::registry
