// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <nanobind/nanobind.h>

namespace llm_runtime::bindings {

namespace nb = nanobind;

// One function a folder of the core, called in dependency order.
void bind_arrays(nb::module_& m);
void bind_errors(nb::module_& m);
void bind_signature(nb::module_& m);
void bind_paging(nb::module_& m);
void bind_prefill_request(nb::module_& m);
void bind_prefill_plan(nb::module_& m);
void bind_decode(nb::module_& m);
void bind_prefill_sampling(nb::module_& m);
void bind_sampling(nb::module_& m);
void bind_decode_tables(nb::module_& m);
void bind_lanes(nb::module_& m);
void bind_registry(nb::module_& m);

}  // namespace llm_runtime::bindings
