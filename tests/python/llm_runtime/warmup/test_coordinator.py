# SPDX-License-Identifier: Apache-2.0
"""Warmup calls on a real lane: what they compile where, in which order, and when capturing begins."""

from __future__ import annotations

import inspect

import pytest

from llm_runtime.config import PageTableLayout, WarmupConfig
from support.prefill_model import EchoSampler
from support.warm_lane import layout_of


def prompt_of(request):
    return int(request["prompt_lens"][0])


def geometry(requests):
    """(rows, prompt, cached) of prefill requests."""
    return [
        (
            len(request["tokens"]),
            prompt_of(request),
            0 if request["start_pos"] is None else int(request["start_pos"][0]),
        )
        for request in requests
    ]


@pytest.mark.covers("WRM-01", "WRM-03", "WRM-04")
def test_call_shapes(new_lane):
    names = {
        "warmup_prefill": ["kv_cache", "can_sample_on_device", "enable_trace"],
        "warmup_decode": ["kv_cache", "max_batch_size", "num_blocks", "can_sample_on_device", "enable_trace"],
    }
    coordinator = new_lane().coordinator
    for method, expected in names.items():
        parameters = list(inspect.signature(getattr(coordinator, method)).parameters.values())
        assert [parameter.name for parameter in parameters] == expected
        assert {parameter.kind for parameter in parameters} == {inspect.Parameter.KEYWORD_ONLY}
        assert {parameter.default for parameter in parameters} == {inspect.Parameter.empty}
    with pytest.raises(TypeError, match="greedy_only"):
        coordinator.warmup_prefill(kv_cache=None, can_sample_on_device=False, enable_trace=False, greedy_only=True)
    with pytest.raises(TypeError, match="read_from_device"):
        coordinator.warmup_decode(
            kv_cache=None,
            max_batch_size=4,
            num_blocks=1,
            can_sample_on_device=False,
            enable_trace=False,
            read_from_device=True,
        )


@pytest.mark.covers("WRM-02")
def test_without_tracing_everything_compiles_eagerly(new_lane):
    lane = new_lane(mode="none", sampling=False, lane_capacity=1, lengths=(128,))
    lane.warm_prefill(trace=False)
    lane.warm_decode(trace=False)
    assert lane.log.count(("cache", "kv")) == 2
    request = lane.requests("prefill")[0]
    assert set(request) == {"tokens", "page_table", "prompt_lens", "start_pos", "empty_slots", "sampling_params"}
    assert set(lane.requests("decode")[0]) == {"tokens", "start_pos", "page_table", "sampling_params"}
    assert lane.coordinator.coverage_manifest is None
    assert lane.coordinator.already_warmed_up_prefill


@pytest.mark.covers("WRM-09")
def test_the_samplers_capability_is_read_at_resolution_only(new_lane):
    class Watched:
        def __init__(self, config):
            self.config, self.read = config, []

        def __getattr__(self, name):
            self.read.append(name)
            return getattr(self.config, name)

    lane = new_lane(lengths=(128,), raw=8)
    watched = lane.model.sampling.config = Watched(lane.model.sampling.config)
    lane.warm_prefill(trace=False, sampling=True)
    lane.warm_decode(trace=False, sampling=True)
    assert "allow_force_argmax" not in watched.read


@pytest.mark.covers("WRM-11")
def test_a_sealed_coordinator_takes_no_layout(new_lane):
    lane = new_lane()
    lane.coordinator.configure_page_table_layout(PageTableLayout(32, 4, 64, 8))
    assert lane.coordinator.config.page_table_layout.raw_capacity_width == 4
    lane.coordinator.seal_configuration()
    with pytest.raises(RuntimeError, match="sealed"):
        lane.coordinator.configure_page_table_layout(PageTableLayout(32, 4, 64, 8))


def test_a_warmup_call_seals_and_uses_the_shrunk_layout(new_lane):
    lane = new_lane(mode="none", sampling=False, lengths=(128, 1024))
    layout = layout_of(6)
    for owner in (lane.prefill, lane.decode, lane.coordinator):
        owner.configure_page_table_layout(layout)
    lane.warm_prefill(trace=False)
    prompts = geometry(lane.requests("prefill"))
    assert (1, 192, 0) in prompts
    assert (1, 192, 32) in prompts
    assert max(prompt for _, prompt, _ in prompts) == 192
    with pytest.raises(RuntimeError, match="sealed"):
        lane.coordinator.configure_page_table_layout(layout)


@pytest.mark.covers("WRM-10")
@pytest.mark.parametrize(("start_alignment", "cached"), [(128, []), (32, [(1, 128, 32)])])
def test_a_cached_start_is_warmed_where_a_prefix_leaves_room(new_lane, start_alignment, cached):
    """Four blocks hold a prefix of 32 tokens and a rest, but none of 128: what serving can ask for decides."""
    lane = new_lane(mode="none", sampling=False, lengths=(128,), prefill_start_alignment=start_alignment)
    layout = PageTableLayout(32, 4, 64, 8)
    for owner in (lane.prefill, lane.decode, lane.coordinator):
        owner.configure_page_table_layout(layout)
    lane.warm_prefill(trace=False)
    prompts = geometry(lane.requests("prefill"))
    assert [prompt for prompt in prompts if prompt[2]] == cached
    assert (1, 128, 0) in prompts
    with pytest.raises(RuntimeError, match="sealed"):
        lane.coordinator.configure_page_table_layout(layout)


@pytest.mark.covers("WRM-22")
def test_a_coordinator_must_share_the_executions_layout(new_lane):
    lane = new_lane()
    lane.prefill.configure_page_table_layout(layout_of(4))
    with pytest.raises(ValueError, match="page-table layout"):
        lane.new_coordinator()


@pytest.mark.parametrize(
    ("changes", "error", "match"),
    [
        ({"config": None}, TypeError, "config"),
        ({"ensure_sampling_buffers": None}, TypeError, "ensure_sampling_buffers"),
        ({"validate_bound_cache": 3}, TypeError, "validate_bound_cache"),
    ],
)
def test_collaborators_are_checked(new_lane, changes, error, match):
    with pytest.raises(error, match=match):
        new_lane().new_coordinator(**changes)


@pytest.mark.covers("WRM-23")
def test_policy_is_read_through_the_config(new_lane):
    coordinator = new_lane().coordinator
    values = {id(value) for value in vars(coordinator).values() if not isinstance(value, (bool, type(None)))}
    config = coordinator.config
    for name in ("page_table_layout", "prefill_sequence_lengths", "eager_plan", "sampled_plan", "limits"):
        assert id(getattr(config, name)) not in values
    assert not any(isinstance(value, int) and value == 4 for value in vars(coordinator).values())


@pytest.mark.covers("WRM-26")
def test_waves_compile_for_every_batch_size_of_the_lane(new_lane):
    lane = new_lane(mode="none", sampling=False, lane_capacity=8)
    lane.warm_prefill(trace=False)
    fresh = [(rows, prompt) for rows, prompt, cached in geometry(lane.requests("prefill")) if not cached]
    assert fresh == [(1, 128), (2, 128), (4, 128), (8, 128), (1, 1024)]


@pytest.mark.covers("WRM-27")
def test_sampled_calls_carry_device_parameters(new_lane):
    lane = new_lane(lane_capacity=2, lengths=(128,), warmup=WarmupConfig(include_decode_top_k=True), mode="none", raw=8)
    lane.warm_prefill(trace=False, sampling=True)
    lane.warm_decode(trace=False, sampling=True)
    first, second = (request["sampling_params"] for request in lane.requests("prefill")[:2])
    assert first is None
    assert second.top_k == [32]
    plain, argmax, topk = (request["sampling_params"] for request in lane.requests("decode"))
    assert plain is None
    assert (argmax.temperature, argmax.top_k) == ([0.0, 0.0], [1, 1])
    assert (topk.temperature, topk.top_k, topk.top_p) == ([1.0, 1.0], [32, 32], [0.08, 0.08])


@pytest.mark.covers("WRM-28")
@pytest.mark.parametrize("target", ["topk", "argmax"])
def test_sampled_128_token_prompts_end_in_every_tile(new_lane, target):
    lane = new_lane(lane_capacity=32, lengths=(128,), mode="none", raw=8, supports_batched_prefill=False)
    assert lane.config.prime_q128_tile_ends is True
    lane.warm_prefill(trace=False, sampling=True)
    temperature = 1.0 if target == "topk" else 0.0
    single = [
        request
        for request in lane.requests("prefill")
        if len(request["tokens"]) == 1
        and request["start_pos"] is None
        and request["sampling_params"] is not None
        and request["sampling_params"].temperature == [temperature]
    ]
    assert [prompt_of(request) for request in single] == [32, 64, 96, 128]
    assert [request["tokens"].shape[1] for request in single] == [32, 64, 96, 128]


def test_a_narrow_sampler_needs_no_tile_ends_for_top_k(new_lane, mesh):
    lane = new_lane(
        lane_capacity=2, lengths=(128,), mode="none", raw=8, sampler=EchoSampler(mesh, rows=2), max_prefill_batch_size=1
    )
    lane.warm_prefill(trace=False, sampling=True)
    ends = [
        (request["sampling_params"].temperature[0], prompt_of(request))
        for request in lane.requests("prefill")
        if request["sampling_params"] is not None and request["start_pos"] is None
    ]
    assert ends == [(1.0, 128), (0.0, 32), (0.0, 64), (0.0, 96), (0.0, 128)]


@pytest.mark.covers("WRM-29")
def test_without_argmax_decode_warms_top_k(new_lane, mesh):
    lane = new_lane(
        lane_capacity=2, lengths=(128,), mode="none", sampler=EchoSampler(mesh, allow_force_argmax=False), raw=8
    )
    lane.warm_decode(trace=False, sampling=True)
    params = [request["sampling_params"] for request in lane.requests("decode")]
    assert params[0] is None
    assert params[1].top_k == [32, 32]
    assert len(params) == 2


@pytest.mark.covers("WRM-30", "WRM-31")
def test_eager_and_traced_coverage_are_tracked_apart(new_lane):
    lane = new_lane(sampling=False)
    for trace, target in ((False, "eager"), (True, "traced")):
        lane.warm_prefill(trace=trace)
        compiled = lane.requests("prefill", target)
        assert any(cached for _, _, cached in geometry(compiled))
        lane.warm_prefill(trace=trace)
        assert len(lane.requests("prefill", target)) == len(compiled)
    assert geometry(lane.requests("prefill", "eager")) == geometry(lane.requests("prefill", "traced"))
    assert lane.captures() == 0
    assert lane.coordinator.already_warmed_up_prefill is False


def test_cases_that_cannot_be_traced_compile_eagerly_in_the_traced_pass(new_lane):
    lane = new_lane(
        sampling=False, chunk=2048, lengths=(128, 1024, 2048), can_enable_trace=lambda length, cached: length == 128
    )
    lane.warm_prefill(trace=True)
    assert {prompt for _, prompt, _ in geometry(lane.requests("prefill", "eager"))} >= {1024, 2048}
    assert {prompt for _, prompt, _ in geometry(lane.requests("prefill", "traced"))} == {128, 160}


def test_top_k_cases_register_first_when_tracing_with_sampling(new_lane):
    lane = new_lane(lengths=(128,), raw=8)
    lane.warm_prefill(trace=True, sampling=True)
    temperatures = [
        None if request["sampling_params"] is None else request["sampling_params"].temperature[0]
        for request in lane.requests("prefill")
    ]
    assert set(temperatures[: temperatures.count(1.0)]) == {1.0}


@pytest.mark.covers("WRM-35", "W05")
def test_a_failed_compile_is_the_only_one_repeated(new_lane, mesh):
    lane = new_lane(lane_capacity=2, raw=8)
    mesh.faults.fail("embedding", at=3)
    with pytest.raises(RuntimeError, match="injected fault"):
        lane.warm_decode(trace=True, sampling=True)
    assert len(lane.programs.compiled_programs) == 1
    lane.warm_decode(trace=True, sampling=True)
    assert len(lane.programs.compiled_programs) == 2
    assert len(lane.requests("decode")) == 3


@pytest.mark.covers("WRM-36")
def test_hints_stay_inside_the_policy(new_lane):
    lane = new_lane(mode="decode_only", sampling=False, lengths=(128,), raw=8)
    with pytest.raises(ValueError, match="trace policy"):
        lane.warm_prefill(trace=True)
    with pytest.raises(ValueError, match="statically disabled"):
        lane.warm_decode(trace=True, sampling=True)
    assert lane.log == []
    lane.warm_prefill(trace=False)
    assert lane.requests("prefill")


@pytest.mark.covers("T25")
@pytest.mark.parametrize(
    ("changes", "match"),
    [({"max_batch_size": 8}, "8.*4 rows"), ({"max_batch_size": True}, "4 rows"), ({"num_blocks": 0}, "num_blocks")],
)
def test_decode_hints_must_fit_the_lane(new_lane, changes, match):
    lane = new_lane()
    hints = {
        "kv_cache": None,
        "max_batch_size": 4,
        "num_blocks": 8,
        "can_sample_on_device": False,
        "enable_trace": False,
    }
    with pytest.raises(ValueError, match=match):
        lane.coordinator.warmup_decode(**{**hints, **changes})
    with pytest.raises(TypeError, match="enable_trace"):
        lane.coordinator.warmup_decode(**{**hints, "enable_trace": 1})
    assert lane.log == []


def test_a_foreign_cache_stops_the_call(new_lane):
    lane = new_lane()

    def refuse(cache):
        raise ValueError(f"not my cache: {cache}")

    lane.coordinator = lane.new_coordinator(validate_bound_cache=refuse)
    with pytest.raises(ValueError, match="not my cache: kv"):
        lane.warm_prefill(trace=False)
    assert lane.requests("prefill") == []
