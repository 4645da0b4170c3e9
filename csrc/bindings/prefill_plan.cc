// SPDX-License-Identifier: Apache-2.0
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "bindings/arrays.h"
#include "bindings/module.h"
#include "bindings/prefill.h"
#include "bindings/value_class.h"
#include "llm_runtime/prefill/plan_prefill.h"
#include "llm_runtime/prefill/prefill_lengths.h"
#include "llm_runtime/prefill/request_signatures.h"

namespace llm_runtime::bindings {

using namespace nb::literals;
using prefill::PrefillBatch;
using prefill::PrefillFallback;
using prefill::PrefillLimits;
using prefill::PrefillRequest;

namespace {

using Width = std::optional<std::int64_t>;
using Slots = std::optional<std::vector<std::int64_t>>;

/// Copying more tokens than this takes longer than handing the interpreter to another thread.
constexpr std::size_t kLongPlan = 65536;

/// Calls `plan`, which touches no Python object, without the interpreter if it takes long.
template <class Plan>
auto planned(const PrefillBatch& batch, Plan plan) {
  if (batch.tokens.rows() * batch.tokens.columns() < kLongPlan) return plan();
  const nb::gil_scoped_release other_threads;
  return plan();
}

nb::object requests_of(std::vector<PrefillRequest> requests) {
  return tuple_of(std::move(requests), [](PrefillRequest&& request) {
    return RequestObject{.request = std::move(request)};
  });
}

/// The limits of one lane, checked once, so that a call brings its batch only.
class Planner {
 public:
  explicit Planner(const PrefillLimits& limits) : limits_(limits) { prefill::check_limits(limits); }

  nb::object plan(const PrefillBatch& batch, bool disable_batched_prefill) const {
    const auto limits = limits_of_call(disable_batched_prefill);
    return requests_of(planned(batch, [&] { return prefill::plan_prefill(batch, limits); }));
  }

  nb::object explain(const PrefillBatch& batch, bool disable_batched_prefill) const {
    const auto limits = limits_of_call(disable_batched_prefill);
    auto plan = planned(batch, [&] { return prefill::explain_prefill(batch, limits); });
    return nb::make_tuple(requests_of(std::move(plan.requests)),
                          tuple_of(std::move(plan.fallbacks)));
  }

 private:
  PrefillLimits limits_of_call(bool disable_batched_prefill) const {
    auto limits = limits_;
    limits.disable_batched_prefill |= disable_batched_prefill;
    return limits;
  }

  PrefillLimits limits_;
};

/// Binds a method over one batch.
template <class Method>
void def_plan(nb::class_<Planner>& cls, const char* name, const char* returns, Method method,
              const char* doc) {
  const auto signature =
      "def " + std::string(name) +
      "(self, tokens: numpy.typing.NDArray[numpy.int32 | numpy.int64], "
      "page_table: numpy.typing.NDArray[numpy.int32 | numpy.int64], "
      "prompt_lens: numpy.typing.NDArray[numpy.int32 | numpy.int64] | None = None, "
      "start_pos: numpy.typing.NDArray[numpy.int32 | numpy.int64] | None = None, "
      "empty_slots: collections.abc.Sequence[int] | None = None, "
      "disable_batched_prefill: bool = False) -> " +
      returns;
  cls.def(
      name,
      [method](const Planner& self, const ArrayIn& tokens, const ArrayIn& page_table,
               const std::optional<ArrayIn>& prompt_lens, const std::optional<ArrayIn>& start_pos,
               const Slots& empty_slots, bool disable_batched_prefill) {
        const PrefillBatch batch{
            .tokens = int_array(tokens, "tokens"),
            .page_table = int_array(page_table, "page_table"),
            .prompt_lens = int_array(prompt_lens, "prompt_lens"),
            .start_pos = int_array(start_pos, "start_pos"),
            .empty_slots = empty_slots,
        };
        return (self.*method)(batch, disable_batched_prefill);
      },
      "tokens"_a, "page_table"_a, "prompt_lens"_a = nb::none(), "start_pos"_a = nb::none(),
      "empty_slots"_a = nb::none(), "disable_batched_prefill"_a = false, nb::sig(signature.c_str()),
      doc);
}

void bind_fallback(nb::module_& m) {
  nb::class_<PrefillFallback> cls(
      m, "PrefillFallback", nb::is_final(),
      "Why rows of one padded length became single requests: the rule that decided, in one word, "
      "and its numbers. Follows chapter 10, section 5.4.");
  cls.def_prop_ro(
      "rows", [](const PrefillFallback& self) { return nb::tuple(nb::cast(self.rows)); },
      nb::sig("def rows(self, /) -> tuple[int, ...]"));
  cls.def_ro("rule", &PrefillFallback::rule);
  cls.def_ro("detail", &PrefillFallback::detail);
  const FieldNames names{"rows", "rule", "detail"};
  cls.def("__repr__", [names](nb::handle self) { return keyword_repr(self, names); });
}

void bind_planner(nb::module_& m) {
  nb::class_<Planner> cls(m, "PrefillPlanner", nb::is_final(),
                          "Plans the prefill calls of one lane. Follows chapter 10, section 5.");
  cls.def(
      "__init__",
      [](Planner* self, std::int64_t block_size, std::int64_t max_batch_size,
         std::int64_t max_prefill_chunk_size, bool supports_batched_prefill,
         bool disable_batched_prefill, std::int64_t max_prefill_batch_size,
         Width max_actual_page_table_width, Width canonical_page_table_width,
         std::int64_t start_alignment) {
        new (self) Planner({
            .block_size = block_size,
            .max_batch_size = max_batch_size,
            .max_prefill_chunk_size = max_prefill_chunk_size,
            .supports_batched_prefill = supports_batched_prefill,
            .disable_batched_prefill = disable_batched_prefill,
            .max_prefill_batch_size = max_prefill_batch_size,
            .max_actual_page_table_width = max_actual_page_table_width,
            .canonical_page_table_width = canonical_page_table_width,
            .start_alignment = start_alignment,
        });
      },
      nb::kw_only(), "block_size"_a, "max_batch_size"_a, "max_prefill_chunk_size"_a,
      "supports_batched_prefill"_a, "disable_batched_prefill"_a, "max_prefill_batch_size"_a,
      "max_actual_page_table_width"_a.none(), "canonical_page_table_width"_a.none(),
      "start_alignment"_a,
      "ValueError for limits that no batch could be planned with. Lengths are in tokens, widths in "
      "blocks.");
  def_plan(cls, "plan", "tuple[PrefillRequest, ...]", &Planner::plan,
           "Plan one call: tokens [N, T] and page_table [N, W], prompt_lens and start_pos [N], all "
           "int32 or int64. ValueError for a batch that cannot be planned; nothing is planned "
           "then.");
  def_plan(cls, "explain", "tuple[tuple[PrefillRequest, ...], tuple[PrefillFallback, ...]]",
           &Planner::explain,
           "The plan, and for each padded length whose rows did not become a wave the rule that "
           "decided.");
}

void bind_lengths(nb::module_& m) {
  m.def("padded_prefill_length", &prefill::padded_prefill_length, "n"_a,
        "The bucket of n uncached tokens. Follows chapter 10, section 5.9.");
  m.def("max_prefill_chunk_size", &prefill::max_prefill_chunk_size, "sequence_length"_a,
        "maximum"_a,
        "The largest equal chunk of a padded length under the cap; ValueError if none.");
  m.def("validate_prefill_chunk_size", &prefill::validate_prefill_chunk_size, "cap"_a,
        "ValueError unless cap is a power of two of at least 128, or a multiple of 2048.");
  m.def(
      "prefill_bucket_ladder",
      [](std::int64_t cap, std::int64_t max_seq_len) {
        return nb::tuple(nb::cast(prefill::prefill_bucket_ladder(cap, max_seq_len)));
      },
      "max_prefill_chunk_size"_a, "max_seq_len"_a,
      nb::sig("def prefill_bucket_ladder(max_prefill_chunk_size: int, max_seq_len: int) "
              "-> tuple[int, ...]"),
      "Buckets up to the smaller limit. Follows chapter 10, section 5.9.");
}

void bind_signature_builders(nb::module_& m) {
  m.def(
      "build_program_signatures",
      [](const RequestObject& request, std::string_view path, bool static_q128_topk_supported,
         bool penalties, bool logprobs) {
        return tuple_of(prefill::build_program_signatures(
            request.request,
            {.path = path, .penalties_enabled = penalties, .logprobs_enabled = logprobs},
            static_q128_topk_supported));
      },
      "request"_a, "sampling_path"_a, nb::kw_only(), "static_q128_topk_supported"_a,
      "penalties_enabled"_a = false, "logprobs_enabled"_a = false,
      nb::sig("def build_program_signatures(request: PrefillRequest, sampling_path: str, *, "
              "static_q128_topk_supported: bool, penalties_enabled: bool = False, "
              "logprobs_enabled: bool = False) -> tuple[PrefillProgramSignature, ...]"),
      "The programs that a request runs, each once. Follows chapter 10, section 7.4.");
  m.def(
      "build_trace_signature",
      [](const RequestObject& request, bool trace_enabled, std::string_view path, bool penalties,
         bool logprobs) -> std::optional<signature::PrefillTraceSignature> {
        if (!trace_enabled) return std::nullopt;
        return prefill::build_trace_signature(
            request.request,
            {.path = path, .penalties_enabled = penalties, .logprobs_enabled = logprobs});
      },
      "request"_a, nb::kw_only(), "trace_enabled"_a, "sampling_path"_a = "logits",
      "penalties_enabled"_a = false, "logprobs_enabled"_a = false,
      "The trace that a request replays, None with tracing off. Follows chapter 10, section 7.4.");
}

}  // namespace

void bind_prefill_plan(nb::module_& m) {
  bind_lengths(m);
  bind_fallback(m);
  bind_planner(m);
  bind_signature_builders(m);
}

}  // namespace llm_runtime::bindings
