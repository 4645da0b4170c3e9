// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nanobind/nanobind.h>

#include <string_view>

#include "llm_runtime/signature/signature_key.h"

namespace llm_runtime::bindings {

namespace nb = nanobind;

/// A Python tuple of plain values as a key. `TypeError` for kinds without a canonical form,
/// `ValueError` for numbers that are not finite.
signature::SignatureKey key_from_material(nb::handle material);

/// A packed value as Python objects; an enum becomes its value, the empty view (an absent field)
/// becomes None.
nb::object packed_to_python(std::string_view packed);

}  // namespace llm_runtime::bindings
