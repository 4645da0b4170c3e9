# SPDX-License-Identifier: Apache-2.0
"""Resolution, validation and layout replacement of the prefill config."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace

import pytest

from llm_runtime.config import PageTableLayout
from llm_runtime.output_reader import OutputReader
from llm_runtime.prefill.config import PrefillRuntimeConfig

LAYOUT = PageTableLayout(block_size=32, raw_capacity_width=256, prefill_width=264, decode_width=256)


def sampler(**changes):
    fields = {"allow_force_argmax": True, "max_top_k": 32, "max_batch_size": 32, **changes}
    return SimpleNamespace(config=SimpleNamespace(**fields))


def make_model(**changes):
    mesh = SimpleNamespace(shape=(1, 1))
    fields = {"config": SimpleNamespace(mesh_device=mesh), "sampling": sampler(), **changes}
    return SimpleNamespace(**fields)


def resolve(model=None, **changes):
    model = make_model() if model is None else model
    options = {
        "model": model,
        "output_reader": OutputReader(getattr(model.config, "mesh_device", None) or model.mesh_device),
        "page_table_layout": LAYOUT,
        "max_batch_size": 32,
        "max_prefill_chunk_size": 2048,
        "device_sampling_enabled": True,
        "can_enable_trace": lambda length, cached: length in (128, 1024),
    }
    return PrefillRuntimeConfig.resolve(**{**options, **changes})


@pytest.mark.covers("PRE-15")
def test_resolve_derives_capabilities_from_the_sampler():
    config = resolve(
        make_model(sampling=sampler(max_batch_size=16)), supports_batched_prefill=True, max_prefill_batch_size=8
    )
    assert config.cluster_shape == (1, 1)
    assert config.allow_force_argmax is True
    assert config.max_device_top_k == 32
    assert config.sampling_batch_size == 16
    assert config.static_q128_topk_supported is False
    assert (config.supports_batched_prefill, config.disable_batched_prefill) == (True, False)
    assert config.max_prefill_batch_size == 8
    assert config.batched_prefill_batched_extract is True
    assert config.prefill_start_alignment == 32
    assert config.page_table_layout_ceiling is config.page_table_layout


def test_defaults_leave_batching_off():
    config = resolve()
    assert config.supports_batched_prefill is False
    assert config.max_prefill_batch_size == 8
    assert config.trace_capture_prime_sequence_lengths == ()


@pytest.mark.parametrize(("rows", "supported"), [(31, False), (32, True)])
def test_whole_tile_sampling_needs_32_sampler_rows(rows, supported):
    assert resolve(make_model(sampling=sampler(max_batch_size=rows))).static_q128_topk_supported is supported


def test_without_device_sampling_the_sampler_is_not_inspected():
    config = resolve(make_model(sampling="broken"), device_sampling_enabled=False)
    assert config.allow_force_argmax is False
    assert config.max_device_top_k == 0
    assert config.sampling_batch_size == 32
    assert config.static_q128_topk_supported is False


@pytest.mark.covers("PRE-16")
def test_config_is_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        resolve().max_batch_size = 4


@pytest.mark.covers("PRE-17")
def test_model_and_reader_must_share_one_mesh_object():
    with pytest.raises(ValueError, match="share one mesh"):
        resolve(output_reader=OutputReader(SimpleNamespace(shape=(1, 1))))


def test_mesh_may_be_found_on_the_model_itself():
    mesh = SimpleNamespace(shape=(1, 1))
    model = SimpleNamespace(config=SimpleNamespace(), mesh_device=mesh, sampling=sampler())
    assert resolve(model).mesh_device is mesh


@pytest.mark.covers("PRE-18")
def test_device_sampling_needs_a_sampler_config():
    with pytest.raises(TypeError, match=r"model\.sampling\.config"):
        resolve(make_model(sampling=None))


@pytest.mark.covers("PRE-19")
@pytest.mark.parametrize("rows", [3, 64])
def test_wave_cap_must_be_a_supported_size(rows):
    with pytest.raises(ValueError, match=r"one of \(1, 2, 4, 8, 16, 32\)"):
        resolve(max_prefill_batch_size=rows)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"max_batch_size": 0}, ValueError, "max_batch_size"),
        ({"max_batch_size": True}, ValueError, "max_batch_size"),
        ({"max_prefill_chunk_size": 2048.0}, ValueError, "max_prefill_chunk_size"),
        ({"max_prefill_chunk_size": 3000}, ValueError, "3000"),
        ({"max_prefill_chunk_size": 64}, ValueError, "64"),
        ({"supports_batched_prefill": None}, TypeError, "supports_batched_prefill"),
        ({"disable_batched_prefill": 1}, TypeError, "disable_batched_prefill"),
        ({"batched_prefill_batched_extract": "yes"}, TypeError, "batched_prefill_batched_extract"),
        ({"device_sampling_enabled": 0}, TypeError, "device_sampling_enabled"),
        ({"can_enable_trace": True}, TypeError, "can_enable_trace"),
        ({"output_reader": object()}, TypeError, "output_reader"),
        ({"page_table_layout": (32, 8, 8, 8)}, TypeError, "page_table_layout"),
        ({"trace_capture_prime_sequence_lengths": [128]}, TypeError, "tuple"),
        ({"trace_capture_prime_sequence_lengths": (128, 128)}, ValueError, "unique"),
        ({"trace_capture_prime_sequence_lengths": (128, 0)}, ValueError, r"lengths\[1\]"),
        ({"trace_capture_prime_sequence_lengths": (4096,)}, ValueError, "exceeds max_prefill_chunk_size 2048"),
        ({"prefill_start_alignment": 48}, ValueError, "48 must be a multiple of the block size 32"),
        ({"prefill_start_alignment": 0}, ValueError, "prefill_start_alignment"),
        ({"sampling_state_controller": object()}, ValueError, "together"),
    ],
)
def test_bad_arguments_are_refused_by_name(changes, error, message):
    with pytest.raises(error, match=message):
        resolve(**changes)


@pytest.mark.parametrize("cap", [128, 256, 512, 1024, 2048, 4096, 6144])
def test_every_chunkable_cap_resolves(cap):
    assert resolve(max_prefill_chunk_size=cap).max_prefill_chunk_size == cap


def test_chunks_must_start_at_block_boundaries():
    layout = PageTableLayout(block_size=256, raw_capacity_width=32, prefill_width=40, decode_width=32)
    with pytest.raises(ValueError, match=r"steps of 128 tokens.*block size 256"):
        resolve(page_table_layout=layout, max_prefill_chunk_size=128)


def test_model_declares_a_coarser_start_alignment():
    assert resolve(make_model(prefill_start_alignment=64)).prefill_start_alignment == 64
    assert resolve(make_model(prefill_start_alignment=64), prefill_start_alignment=128).prefill_start_alignment == 128


def test_replace_rechecks_derived_fields():
    config = resolve()
    with pytest.raises(ValueError, match="max_device_top_k is 8, the model's sampler says 32"):
        dataclasses.replace(config, max_device_top_k=8)
    with pytest.raises(ValueError, match="max_device_top_k must be 0"):
        dataclasses.replace(config, device_sampling_enabled=False)
    with pytest.raises(ValueError, match="cluster_shape"):
        dataclasses.replace(config, cluster_shape=(1, 1, 1))


def test_controller_must_drive_the_models_sampler():
    model = make_model()
    calls = {name: lambda *_args, **_options: None for name in ("admit", "admit_prefill", "prefill_forward", "reset")}
    good = SimpleNamespace(sampling=model.sampling, **calls)
    assert resolve(model, sampling_state_controller=good, sampling_state=object()).sampling_state_controller is good
    foreign = SimpleNamespace(sampling=sampler(), **calls)
    with pytest.raises(ValueError, match=r"must be model\.sampling"):
        resolve(model, sampling_state_controller=foreign, sampling_state=object())
    incomplete = SimpleNamespace(sampling=model.sampling)
    with pytest.raises(TypeError, match="callable admit"):
        resolve(model, sampling_state_controller=incomplete, sampling_state=object())


def layout(**changes):
    fields = {"block_size": 32, "raw_capacity_width": 128, "prefill_width": 136, "decode_width": 128, **changes}
    return PageTableLayout(**fields)


@pytest.mark.covers("PRE-20")
def test_smaller_layout_is_installed_in_a_new_config():
    config = resolve()
    smaller = layout()
    replaced = config.with_page_table_layout(smaller)
    assert replaced.page_table_layout is smaller
    assert config.page_table_layout.raw_capacity_width == 256
    assert replaced.with_page_table_layout(LAYOUT).page_table_layout is LAYOUT


@pytest.mark.covers("PRE-21", "PRE-22", "PRE-23")
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"block_size": 16}, "block_size 16"),
        ({"raw_capacity_width": 512, "prefill_width": 520, "decode_width": 512}, "capacity ceiling"),
        ({"prefill_width": 520}, "canonical geometry"),
        ({"decode_width": 264}, "canonical geometry"),
    ],
)
def test_layout_beyond_the_ceiling_is_refused(changes, message):
    config = resolve().with_page_table_layout(layout())
    with pytest.raises(ValueError, match=message):
        config.with_page_table_layout(layout(**changes))
