# SPDX-License-Identifier: Apache-2.0
"""Resolution and replacement of the decode runtime's static configuration."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace

import pytest

from llm_runtime.config import PageTableLayout
from llm_runtime.decode import DecodeRuntime, DecodeRuntimeConfig
from llm_runtime.output_reader import OutputReader
from support.tiny_decode_model import (
    TinyDecodeModel,
    TinySampler,
    decode_config,
    decode_layout,
    without_feedback,
)


@pytest.mark.covers("DEC-18")
def test_resolve_derives_capabilities_from_model_and_mesh(mesh):
    model = TinyDecodeModel(mesh, sampler=TinySampler(mesh, rows=2))
    config = decode_config(model)
    assert (config.cluster_shape, config.num_devices, config.vocab_size) == ((1, 1), 1, 64)
    assert (config.allow_force_argmax, config.max_device_top_k, config.sampling_batch_size) == (True, 32, 2)
    assert config.position_feedback_capable is True
    assert config.sampling_state_controller is None
    assert config.page_table_layout_ceiling is config.page_table_layout


def test_resolve_without_device_sampling_reads_no_sampler(mesh):
    model = TinyDecodeModel(mesh)
    model.sampling = None
    config = decode_config(model, device_sampling_enabled=False)
    assert (config.allow_force_argmax, config.max_device_top_k, config.sampling_batch_size) == (False, 0, 2)


def test_resolve_sees_a_model_that_cannot_advance_positions(model):
    assert decode_config(without_feedback(model)).position_feedback_capable is False


@pytest.mark.covers("DEC-19")
def test_config_is_frozen_and_required(model):
    config = decode_config(model)
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.lane_capacity = 1
    with pytest.raises(TypeError, match="config"):
        DecodeRuntime(None)


@pytest.mark.covers("DEC-20")
def test_a_reader_of_another_mesh_is_refused(model, deferred_mesh):
    with pytest.raises(ValueError, match="same mesh"):
        decode_config(model, output_reader=OutputReader(deferred_mesh))


@pytest.mark.covers("DEC-21")
@pytest.mark.parametrize("capacity", [True, 0, -1, 1.0, None])
def test_lane_capacity_is_a_positive_integer(model, capacity):
    with pytest.raises(ValueError, match=r"lane_capacity.*positive integer"):
        decode_config(model, lane_capacity=capacity)


def test_lane_capacity_is_bounded_by_the_token_vector(model):
    assert decode_config(model, lane_capacity=32).lane_capacity == 32
    with pytest.raises(ValueError, match=r"33.*32 slots"):
        decode_config(model, lane_capacity=33)


@pytest.mark.covers("DEC-22")
def test_a_look_alike_layout_is_refused(model):
    fake = SimpleNamespace(block_size=32, raw_capacity_width=8, prefill_width=72, decode_width=8)
    with pytest.raises(TypeError, match=r"page_table_layout.*PageTableLayout"):
        decode_config(model, page_table_layout=fake)


@pytest.mark.parametrize("name", ["device_sampling_enabled", "force_greedy_top_k"])
def test_flags_are_bools(model, name):
    with pytest.raises(TypeError, match=name):
        decode_config(model, **{name: 1})


def test_device_count_must_match_the_mesh(model):
    model.config.num_devices = 2
    with pytest.raises(ValueError, match=r"num_devices is 2.*1x1"):
        decode_config(model)
    model.config.num_devices = True
    with pytest.raises(ValueError, match="num_devices"):
        decode_config(model)


def test_vocabulary_size_must_be_positive(model):
    model.vocab_size = 0
    with pytest.raises(ValueError, match="vocab_size"):
        decode_config(model)


@pytest.mark.parametrize(
    ("field", "value", "error"),
    [
        ("allow_force_argmax", 1, TypeError),
        ("max_top_k", True, ValueError),
        ("max_batch_size", 1, ValueError),
        ("max_batch_size", "2", ValueError),
    ],
)
def test_the_sampler_contract_is_checked(model, field, value, error):
    setattr(model.sampling.config, field, value)
    with pytest.raises(error, match=field):
        decode_config(model)


def test_a_sampler_without_decode_forward_is_refused(model):
    model.sampling = SimpleNamespace(config=model.sampling.config)
    with pytest.raises(TypeError, match="decode_forward"):
        decode_config(model)


def test_controller_and_state_come_together(model):
    with pytest.raises(ValueError, match="together"):
        decode_config(model, sampling_state=object())
    foreign = SimpleNamespace(sampling=object(), decode_forward=print)
    with pytest.raises(ValueError, match=r"model\.sampling"):
        decode_config(model, sampling_state_controller=foreign, sampling_state=object())
    mute = SimpleNamespace(sampling=model.sampling)
    with pytest.raises(TypeError, match="decode_forward"):
        decode_config(model, sampling_state_controller=mute, sampling_state=object())


def test_a_replaced_config_cannot_drift_from_its_collaborators(model):
    config = decode_config(model)
    for change in ({"vocab_size": 8}, {"max_device_top_k": 5}, {"cluster_shape": (1, 2)}, {"num_devices": 2}):
        with pytest.raises(ValueError, match=next(iter(change))):
            dataclasses.replace(config, **change)
    model.sampling.config.allow_force_argmax = False
    with pytest.raises(ValueError, match="allow_force_argmax"):
        dataclasses.replace(config)


@pytest.mark.covers("DEC-23")
def test_a_smaller_layout_gives_a_new_config(model):
    config = decode_config(model)
    smaller = config.with_page_table_layout(decode_layout(raw=4))
    assert (smaller.page_table_layout.raw_capacity_width, config.page_table_layout.raw_capacity_width) == (4, 8)
    assert smaller.page_table_layout_ceiling is config.page_table_layout_ceiling
    assert smaller.with_page_table_layout(decode_layout()).page_table_layout.raw_capacity_width == 8


@pytest.mark.covers("DEC-24", "DEC-25", "DEC-26")
@pytest.mark.parametrize(
    ("layout", "match"),
    [
        (PageTableLayout(16, 8, 136, 8), "block_size"),
        (PageTableLayout(32, 9, 80, 16), "ceiling"),
        (PageTableLayout(32, 4, 1024, 1024), "decode width"),
    ],
)
def test_a_layout_cannot_outgrow_its_ceiling(model, layout, match):
    config = decode_config(model)
    with pytest.raises(ValueError, match=match):
        config.with_page_table_layout(layout)
    with pytest.raises(TypeError, match="page_table_layout"):
        config.with_page_table_layout((32, 4, 64, 8))


def test_positional_construction_is_not_needed_to_resolve(model):
    with pytest.raises(TypeError):
        DecodeRuntimeConfig.resolve(model)
