# SPDX-License-Identifier: Apache-2.0
"""Runtime policies and page-table geometry."""

from __future__ import annotations

import dataclasses
import subprocess
import sys

import pytest

from llm_runtime.config import (
    PagedKVCacheConfig,
    PageTableLayout,
    TraceConfig,
    WarmupConfig,
    fit_paged_kv_num_blocks,
)


@pytest.mark.covers("CFG-01", "CFG-02", "CFG-03")
@pytest.mark.parametrize(
    ("mode", "prefill", "decode"),
    [("none", False, False), ("decode_only", False, True), ("all", True, True)],
)
def test_trace_mode_selects_operations(mode, prefill, decode):
    config = TraceConfig(mode)
    assert (config.prefill_enabled, config.decode_enabled) == (prefill, decode)


def test_default_trace_mode_is_decode_only():
    assert TraceConfig().mode == "decode_only"


@pytest.mark.covers("CFG-04")
def test_trace_config_is_frozen():
    config = TraceConfig("all")
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.mode = "none"
    assert config.mode == "all"


@pytest.mark.covers("CFG-05")
@pytest.mark.parametrize("mode", ["prefill_only", "", "ALL", None, 1])
def test_unknown_trace_mode_is_refused(mode):
    with pytest.raises(ValueError, match=f"unsupported trace mode {mode!r}"):
        TraceConfig(mode)


@pytest.mark.covers("CFG-06")
def test_warmup_defaults():
    config = WarmupConfig()
    assert config.prefill_seq_lens is None
    assert config.prefill_batch_sizes == (1, 2, 4, 8, 16, 32)
    assert config.include_decode_top_k is False


@pytest.mark.covers("CFG-07")
@pytest.mark.parametrize("field", ["prefill_seq_lens", "prefill_batch_sizes"])
def test_warmup_refuses_mutable_lists(field):
    with pytest.raises(TypeError, match=f"{field} must be a tuple"):
        WarmupConfig(**{field: [1, 2]})


@pytest.mark.parametrize("field", ["prefill_seq_lens", "prefill_batch_sizes"])
@pytest.mark.parametrize(
    ("values", "essence"),
    [
        ((), "empty"),
        ((1, 0), r"\[1\] must be a positive integer, got 0"),
        ((True,), "got True"),
        ((1.0,), r"got 1\.0"),
        ((4, 4), "unique"),
    ],
)
def test_warmup_refuses_bad_sizes(field, values, essence):
    with pytest.raises(ValueError, match=essence) as error:
        WarmupConfig(**{field: values})
    assert field in str(error.value)


def test_warmup_sizes_need_no_order():
    assert WarmupConfig(prefill_seq_lens=(1024, 128)).prefill_seq_lens == (1024, 128)


def test_warmup_batch_sizes_may_not_be_none():
    with pytest.raises(TypeError, match="prefill_batch_sizes"):
        WarmupConfig(prefill_batch_sizes=None)


def test_kv_config_has_exactly_five_fields():
    config = PagedKVCacheConfig(block_size=32, max_num_blocks=1024, dtype="bf8")
    assert not config.is_resolved()
    names = [field.name for field in dataclasses.fields(config)]
    assert names == ["block_size", "max_num_blocks", "dtype", "memory_config", "num_blocks"]


@pytest.mark.covers("CFG-09")
def test_resolved_kv_config_is_frozen():
    config = PagedKVCacheConfig(block_size=32, max_num_blocks=1024, dtype="bf8", num_blocks=512)
    assert config.is_resolved()
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.num_blocks = 256
    assert config.num_blocks == 512


@pytest.mark.covers("CFG-10", "CFG-11")
@pytest.mark.parametrize(
    ("change", "essence"),
    [
        ({"num_blocks": 1025}, "num_blocks 1025 exceeds max_num_blocks 1024"),
        ({"num_blocks": 0}, "num_blocks must be a positive integer when resolved"),
        ({"num_blocks": True}, "num_blocks"),
        ({"block_size": 0}, "block_size"),
        ({"block_size": 32.0}, "block_size"),
        ({"max_num_blocks": -1}, "max_num_blocks"),
    ],
)
def test_kv_config_refuses_bad_counts(change, essence):
    with pytest.raises(ValueError, match=essence):
        PagedKVCacheConfig(**{"block_size": 32, "max_num_blocks": 1024, "dtype": "bf8", **change})


@pytest.mark.covers("CFG-13", "CFG-14", "CFG-16")
@pytest.mark.parametrize(
    ("block", "max_seq", "blocks", "chunk", "widths"),
    [
        (32, 131072, 4096, 4096, (4096, 4096, 4224)),
        (32, 1024, 32, 1024, (32, 32, 64)),
        (64, 2048, 32, 2048, (32, 32, 64)),
        (32, 1000, 32, 128, (32, 32, 40)),
        (32, 1024, 24, 128, (24, 24, 32)),
        (32, 100, 8, 128, (4, 8, 8)),
        (32, 4096, 104, 2048, (104, 104, 168)),
        (32, 4096, 132, 2048, (128, 128, 192)),
        (16, 4096, 200, 2048, (200, 200, 328)),
    ],
)
def test_layout_widths(block, max_seq, blocks, chunk, widths):
    layout = PageTableLayout.resolve(
        block_size=block,
        model_max_sequence_length=max_seq,
        physical_num_blocks=blocks,
        max_prefill_chunk_size=chunk,
    )
    assert (layout.raw_capacity_width, layout.decode_width, layout.prefill_width) == widths


# CFG-12 (100 blocks) and CFG-15 (1 block) give widths; decision D6 refuses both layouts.
@pytest.mark.covers("P37")
@pytest.mark.parametrize(
    ("block", "max_seq", "blocks", "numbers"),
    [
        (32, 100, 4, ("4", "8")),
        (32, 1024, 20, ("20", "24")),
        (32, 4096, 100, ("100", "104")),
        (32, 4096, 1, ("1", "8")),
    ],
)
def test_layout_wider_than_the_cache_is_refused(block, max_seq, blocks, numbers):
    with pytest.raises(ValueError) as error:
        PageTableLayout.resolve(
            block_size=block,
            model_max_sequence_length=max_seq,
            physical_num_blocks=blocks,
            max_prefill_chunk_size=128,
        )
    for number in numbers:
        assert number in str(error.value)


def test_fit_gives_the_block_count_that_a_layout_accepts():
    fitted = fit_paged_kv_num_blocks(4, max_seq_len=100, block_size=32)
    assert fitted == 8
    assert fit_paged_kv_num_blocks(40, max_seq_len=100, block_size=32) == 40
    layout = PageTableLayout.resolve(
        block_size=32, model_max_sequence_length=100, physical_num_blocks=fitted, max_prefill_chunk_size=128
    )
    assert layout.raw_capacity_width == 4


@pytest.mark.covers("CFG-17")
def test_layout_is_independent_of_warmup_policy():
    layouts = []
    for warmup in (WarmupConfig(), WarmupConfig(prefill_batch_sizes=(1,), include_decode_top_k=True)):
        assert warmup.prefill_batch_sizes
        layouts.append(
            PageTableLayout.resolve(
                block_size=32,
                model_max_sequence_length=1024,
                physical_num_blocks=32,
                max_prefill_chunk_size=128,
            )
        )
    assert layouts[0] == layouts[1]


def test_importing_the_package_brings_in_neither_torch_nor_a_device():
    modules = (
        "config, host_arrays, device, errors, tensor_resources, output_reader, digest, program_compiler, "
        "trace_compiler, execution, paged_kv_cache"
    )
    script = (
        f"import sys; from llm_runtime import {modules}\n"
        "print([name for name in ('torch', 'ttnn', 'ttnn_twin', 'llm_models') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
