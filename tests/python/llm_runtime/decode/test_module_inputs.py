# SPDX-License-Identifier: Apache-2.0
"""The memory-config check of eager module inputs warns and always restores the modules."""

from __future__ import annotations

import logging
from types import SimpleNamespace

import pytest

import ttnn_twin
from support.tiny_decode_model import TinyDecodeModel, decode_runtime


def run(runtime, call, **options):
    return runtime.consume(runtime.invoke(runtime.prepare(**call), **options))


class Checked:
    """A module that declares where its decode input lives."""

    def __init__(self, memory_config):
        self.config = SimpleNamespace(decode_input_memcfg=memory_config)
        self.inputs = 0

    def decode_forward(self, x):
        self.inputs += 1


def test_a_module_input_in_another_place_is_a_warning(model, request_for, caplog):
    right, wrong = Checked(ttnn_twin.DRAM_MEMORY_CONFIG), Checked(ttnn_twin.L1_MEMORY_CONFIG)
    silent = Checked(None)
    model.named_modules = [("layer[0].right", right), ("layer[0].wrong", wrong), ("norm", silent)]
    with caplog.at_level(logging.WARNING):
        run(decode_runtime(model), request_for())
    assert [record.args[0] for record in caplog.records] == ["layer[0].wrong"]
    assert (right.inputs, wrong.inputs, silent.inputs) == (1, 1, 1)
    assert not any("decode_forward" in vars(module) for module in (right, wrong, silent))


def test_wrapped_modules_are_restored_on_every_way_out(mesh, model, request_for):
    module = Checked(ttnn_twin.DRAM_MEMORY_CONFIG)
    own = module.decode_forward = module.decode_forward
    broken = SimpleNamespace(config=SimpleNamespace(decode_input_memcfg=ttnn_twin.DRAM_MEMORY_CONFIG))
    model.named_modules = [("a", module), ("b", broken)]
    with pytest.raises(AttributeError, match="decode_forward"):
        run(decode_runtime(model), request_for())
    assert module.decode_forward is own
    model.named_modules = [("a", module)]
    mesh.faults.fail("paged_update_cache")
    with pytest.raises(RuntimeError, match="paged_update_cache"):
        run(decode_runtime(model), request_for())
    assert module.decode_forward is own


def test_a_model_without_named_modules_is_not_checked(mesh, request_for):
    model = TinyDecodeModel(mesh)
    model.iter_executor_named_modules = lambda: None
    run(decode_runtime(model), request_for())
