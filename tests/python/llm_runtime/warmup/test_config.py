# SPDX-License-Identifier: Apache-2.0
"""Resolution, validation and replacement of the warmup configuration."""

from __future__ import annotations

from dataclasses import FrozenInstanceError, replace
from types import SimpleNamespace

import pytest

from llm_runtime.config import PageTableLayout, TraceConfig, WarmupConfig
from llm_runtime.decode import DecodeRuntimeConfig
from llm_runtime.warmup import WarmupCoordinatorConfig
from support.warm_lane import WarmModel, layout_of


@pytest.fixture
def lane(new_lane):
    return new_lane()


def resolve(lane, **changes):
    options = {
        "warmup": WarmupConfig(),
        "trace": TraceConfig("all"),
        "prefill": lane.prefill.config,
        "decode": lane.decode.config,
        "prefill_sequence_lengths": (128, 1024),
    }
    return WarmupCoordinatorConfig.resolve(**{**options, **changes})


def test_resolve_derives_policy_from_the_runtimes(lane):
    config = resolve(lane)
    assert (config.lane_batch_size, config.device_sampling_enabled, config.allow_force_argmax) == (4, True, True)
    assert (config.prefill_trace_enabled, config.decode_trace_enabled) == (True, True)
    assert config.prefill_trace_sequence_lengths == (128, 1024)
    assert config.prime_q128_tile_ends is False
    assert config.model is lane.model
    decode_only = resolve(lane, trace=TraceConfig("decode_only"))
    assert (decode_only.prefill_trace_enabled, decode_only.prefill_trace_sequence_lengths) == (False, ())


@pytest.mark.covers("WRM-05")
def test_configured_lengths_override_the_models(lane):
    config = resolve(lane, warmup=WarmupConfig(prefill_seq_lens=(1024,)), trace=TraceConfig("none"))
    assert {case.sequence_length for case in config.eager_plan.prefill} == {1024}


@pytest.mark.covers("WRM-06", "WRM-07", "WRM-08")
@pytest.mark.parametrize(
    ("lengths", "match"),
    [
        ((), "non-empty tuple"),
        ([128], "non-empty tuple"),
        ((True,), "positive integers"),
        ((0,), "positive integers"),
        ((128.0,), "positive integers"),
        ((128, 128), "unique"),
    ],
)
def test_lengths_are_checked(lane, lengths, match):
    with pytest.raises(ValueError, match=match):
        resolve(lane, prefill_sequence_lengths=lengths)


@pytest.mark.covers("WRM-13")
def test_the_config_is_frozen_and_holds_both_plans(new_lane):
    config = new_lane(lane_capacity=2, lengths=(128,)).config
    assert len(config.eager_plan.decode) == 1
    assert [case.sampling_path for case in config.sampled_plan.decode] == ["logits", "argmax"]
    with pytest.raises(FrozenInstanceError):
        config.lane_batch_size = 1


@pytest.mark.covers("WRM-14")
def test_plans_must_be_the_plans_of_the_config(lane):
    config = lane.config
    with pytest.raises(ValueError, match="eager_plan must match"):
        replace(config, eager_plan=config.sampled_plan)
    with pytest.raises(ValueError, match="sampled_plan must match"):
        replace(config, sampled_plan=config.eager_plan)


@pytest.mark.parametrize(
    ("changes", "error", "match"),
    [
        ({"warmup": None}, TypeError, "warmup"),
        ({"page_table_layout": object()}, TypeError, "page_table_layout"),
        ({"eager_plan": ()}, TypeError, "eager_plan"),
        ({"limits": None}, TypeError, "limits"),
        ({"model": None}, ValueError, "model"),
        ({"lane_batch_size": 0}, ValueError, "lane_batch_size"),
        ({"decode_trace_enabled": 1}, TypeError, "decode_trace_enabled"),
        ({"device_sampling_enabled": False}, ValueError, "allow_force_argmax requires"),
        ({"prime_q128_tile_ends": True}, ValueError, "prime_q128_tile_ends must be False"),
        ({"prefill_trace_sequence_lengths": [128]}, TypeError, "tuple"),
        ({"prefill_trace_sequence_lengths": (256,)}, ValueError, "256"),
        ({"prefill_trace_enabled": False}, ValueError, "not traced"),
    ],
)
def test_a_replaced_config_is_checked_as_a_whole(lane, changes, error, match):
    with pytest.raises(error, match=match):
        replace(lane.config, **changes)


def test_the_ceiling_covers_the_layout(lane):
    for wrong in (PageTableLayout(16, 128, 192, 128), PageTableLayout(32, 129, 192, 136)):
        with pytest.raises(ValueError, match=r"block_size|ceiling"):
            replace(lane.config, page_table_layout=wrong)


def decode_config(lane, model=None, **changes):
    current = lane.decode.config
    options = {
        "model": model or lane.model,
        "output_reader": current.output_reader,
        "lane_capacity": 4,
        "page_table_layout": current.page_table_layout,
        "device_sampling_enabled": True,
    }
    return DecodeRuntimeConfig.resolve(**{**options, **changes})


@pytest.mark.covers("WRM-15", "WRM-16", "WRM-17", "WRM-18")
@pytest.mark.parametrize(
    ("difference", "match"),
    [
        ("model", "share one model"),
        ("layout", "share one page-table layout$"),
        ("capacity", "share one lane capacity, got 4 and 2"),
        ("sampling", "share device-sampling policy"),
    ],
)
def test_prefill_and_decode_must_describe_one_lane(mesh, lane, difference, match):
    changes = {
        "model": lambda: {"model": WarmModel(mesh)},
        "layout": lambda: {"page_table_layout": layout_of(128)},
        "capacity": lambda: {"lane_capacity": 2},
        "sampling": lambda: {"device_sampling_enabled": False},
    }[difference]()
    with pytest.raises(ValueError, match=match):
        resolve(lane, decode=decode_config(lane, **changes))


@pytest.mark.covers("WRM-19")
def test_prefill_and_decode_must_agree_on_argmax(lane):
    lane.model.sampling.config.allow_force_argmax = False
    with pytest.raises(ValueError, match="share force-argmax capability"):
        resolve(lane, decode=decode_config(lane))


@pytest.mark.covers("WRM-20", "WRM-21")
@pytest.mark.parametrize("ceiling", [PageTableLayout(32, 129, 192, 136), PageTableLayout(32, 128, 192, 136)])
def test_prefill_and_decode_must_share_the_ceiling(lane, ceiling):
    decode = replace(lane.decode.config, page_table_layout_ceiling=ceiling)
    with pytest.raises(ValueError, match="share one page-table layout ceiling"):
        resolve(lane, decode=decode)


def test_types_are_checked_first(lane):
    for name in ("warmup", "trace", "prefill", "decode"):
        with pytest.raises(TypeError, match=name):
            resolve(lane, **{name: SimpleNamespace()})


@pytest.mark.parametrize("mode", ["decode_only", "all"])
def test_with_tracing_every_servable_bucket_must_be_warmed(new_lane, mode):
    lane = new_lane(chunk=2048, lengths=(128, 1024, 2048))
    with pytest.raises(ValueError, match=r"\[1024\].*\[128, 2048\]"):
        resolve(lane, prefill_sequence_lengths=(128, 2048), trace=TraceConfig(mode))
    assert resolve(lane, prefill_sequence_lengths=(128,), trace=TraceConfig("none")).eager_plan.prefill


def test_a_chunk_size_without_a_bucket_gets_a_length(new_lane):
    lane = new_lane(chunk=256, lengths=(128,))
    assert lane.config.prefill_sequence_lengths == (128, 1024)


def test_traced_lengths_follow_the_invocation_length(new_lane):
    asked = []

    def can_enable_trace(length, cached):
        asked.append((length, cached))
        return length == 128

    lane = new_lane(can_enable_trace=can_enable_trace)
    assert lane.config.prefill_trace_sequence_lengths == (128, 1024)
    assert set(asked) == {(128, 0)}
    wide = new_lane(chunk=2048, lengths=(128, 1024, 2048), can_enable_trace=can_enable_trace)
    assert wide.config.prefill_trace_sequence_lengths == (128,)
    assert not wide.config.traces_prefill_case(wide.config.eager_plan.prefill[-1])


@pytest.mark.covers("WRM-24")
@pytest.mark.parametrize(("start_alignment", "cached"), [(128, False), (32, True)])
def test_a_smaller_layout_rebuilds_both_plans(new_lane, start_alignment, cached):
    """A prefix of 128 tokens fills four blocks, so nothing is warmed behind it; one of 32 leaves room."""
    config = new_lane(prefill_start_alignment=start_alignment).config
    smaller = config.with_page_table_layout(PageTableLayout(32, 4, 64, 8))
    assert smaller.page_table_layout_ceiling is config.page_table_layout_ceiling
    for plan in (smaller.eager_plan, smaller.sampled_plan):
        assert any(case.cached_tokens for case in plan.prefill) == cached
    assert any(case.cached_tokens for case in config.eager_plan.prefill)
    assert config.page_table_layout.raw_capacity_width == 128
    assert smaller.with_page_table_layout(config.page_table_layout) == config


@pytest.mark.covers("WRM-25")
@pytest.mark.parametrize(
    ("layout", "match"),
    [
        (PageTableLayout(16, 128, 192, 128), "cannot change block_size"),
        (PageTableLayout(32, 129, 192, 136), "capacity ceiling"),
        (PageTableLayout(32, 128, 200, 128), "canonical geometry"),
    ],
)
def test_a_layout_cannot_outgrow_the_ceiling(lane, layout, match):
    with pytest.raises(ValueError, match=match):
        lane.config.with_page_table_layout(layout)


@pytest.mark.covers("WRM-12")
def test_a_look_alike_layout_is_refused(lane):
    fake = SimpleNamespace(block_size=32, raw_capacity_width=4, prefill_width=64, decode_width=8)
    with pytest.raises(TypeError, match="PageTableLayout"):
        lane.config.with_page_table_layout(fake)
    with pytest.raises(TypeError, match="PageTableLayout"):
        lane.coordinator.configure_page_table_layout(fake)
