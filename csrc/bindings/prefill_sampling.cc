// SPDX-License-Identifier: Apache-2.0
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string_view.h>

#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "bindings/module.h"
#include "bindings/prefill.h"
#include "bindings/sampling_columns.h"
#include "llm_runtime/prefill/request_signatures.h"
#include "llm_runtime/sampling/sampling_rows.h"

namespace llm_runtime::bindings {

using namespace nb::literals;
using prefill::PrefillKind;
using prefill::PrefillRequest;

namespace {

/// The path of a sampled request: a wave always takes top-k.
std::string_view sampling_path(const PrefillRequest& request, const sampling::SamplingRows& rows) {
  return request.kind == PrefillKind::kSingle && rows.all_argmax() ? "argmax" : "topk";
}

std::optional<nb::object> sampled_request(const PrefillRequest& request, const nb::tuple& fields,
                                          const SamplerShape& sampler, bool static_q128) {
  std::vector<std::int64_t> sources;
  sources.reserve(request.rows.size());
  for (const auto& row : request.rows) sources.push_back(row.source_row);
  auto rows = plain_sampling_rows(fields, std::move(sources), sampler, /*in_slots=*/false);
  if (!rows) return std::nullopt;
  const prefill::SamplingIdentity identity{.path = sampling_path(request, *rows),
                                           .penalties_enabled = rows->penalised(),
                                           .logprobs_enabled = false};
  return nb::make_tuple(std::move(*rows), identity.path,
                        tuple_of(prefill::build_program_signatures(request, identity, static_q128)),
                        prefill::build_trace_signature(request, identity),
                        request.uses_chunked_prefill ? request.chunks.front().chunk_size
                                                     : request.padded_sequence_length);
}

nb::object prepare_sampled_requests(const nb::tuple& requests, const nb::tuple& fields,
                                    std::int64_t batch_size, std::int64_t max_device_top_k,
                                    bool allow_force_argmax, bool static_q128_topk_supported) {
  const SamplerShape sampler{batch_size, {max_device_top_k, allow_force_argmax}};
  std::vector<nb::object> prepared;
  prepared.reserve(nb::len(requests));
  for (nb::handle request : requests) {
    auto entry = sampled_request(nb::cast<const RequestObject&>(request).request, fields, sampler,
                                 static_q128_topk_supported);
    if (!entry) return nb::none();
    prepared.push_back(std::move(*entry));
  }
  return tuple_of(std::move(prepared));
}

}  // namespace

void bind_prefill_sampling(nb::module_& m) {
  m.def("prepare_sampled_requests", &prepare_sampled_requests, "requests"_a, "fields"_a,
        nb::kw_only(), "batch_size"_a, "max_device_top_k"_a, "allow_force_argmax"_a,
        "static_q128_topk_supported"_a,
        nb::sig("def prepare_sampled_requests(requests: tuple[PrefillRequest, ...], "
                "fields: tuple[Any, ...], *, batch_size: int, max_device_top_k: int, "
                "allow_force_argmax: bool, static_q128_topk_supported: bool) -> "
                "tuple[tuple[SamplingRows, str, tuple[PrefillProgramSignature, ...], "
                "PrefillTraceSignature, int], ...] | None"),
        "For each planned request its sampling rows, path, program signatures, trace signature and "
        "invocation length in tokens. None under the conditions of normalise_sampling, for any "
        "request. Follows chapter 20, section 9.2.");
  m.def(
      "environment_variable", [](const char* name) { return nb::cast(std::getenv(name)); },
      "name"_a, nb::sig("def environment_variable(name: str) -> str | None"),
      "An environment variable of the process. os.environ keeps both in step, at many times the "
      "cost of a look.");
}

}  // namespace llm_runtime::bindings
