# SPDX-License-Identifier: Apache-2.0
"""Checks of module inputs while a family is written."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import ttnn_twin
from llm_models.module_inputs import InputMismatch, check_module_inputs, suspend_module_input_checks
from support.executors import Bench, decode_call, prefill_call


class Placement:
    """A memory config that counts comparisons and refuses to be written as text."""

    def __init__(self, name: str, log: list[str]) -> None:
        self.name, self.log = name, log

    def __eq__(self, other: object) -> bool:
        self.log.append("compared")
        return isinstance(other, Placement) and other.name == self.name

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        self.log.append("formatted")
        return self.name


class Input:
    """A tensor of a device namespace whose placement reads are counted."""

    def __init__(self, placement: Placement) -> None:
        self._placement = placement
        self.reads = 0
        self.ttnn_namespace = SimpleNamespace(Tensor=Input, deallocate=None)

    def is_allocated(self) -> bool:
        return True

    @property
    def spec(self) -> Any:
        self.reads += 1
        return SimpleNamespace(memory_config=self._placement)


class Module:
    def __init__(self, declared: Any) -> None:
        self.config = SimpleNamespace(decode_input_memcfg=declared, prefill_input_memcfg=declared)
        self.calls = 0

    def decode_forward(self, x: Any) -> Any:
        self.calls += 1
        return x

    forward = decode_forward


@pytest.mark.covers("MDC-13")
def test_a_placement_is_read_once_and_equal_ones_are_never_formatted() -> None:
    log: list[str] = []
    module, tensor = Module(Placement("L1", log)), Input(Placement("L1", log))
    with check_module_inputs([("mlp", module)]) as found:
        assert module.decode_forward(tensor) is tensor
    assert tensor.reads == 1 and log == ["compared"] and found == []
    other = Input(Placement("DRAM", log))
    with check_module_inputs([("mlp", module)]) as found:
        module.decode_forward(x=other)
    assert other.reads == 1 and log.count("formatted") == 0
    assert [mismatch.module for mismatch in found] == ["mlp"]
    assert str(found[0]) == "mlp: input has memory config DRAM, declared is L1"


@pytest.mark.covers("MDC-14")
def test_suspensions_nest_and_calls_outside_are_not_checked() -> None:
    module, tensor = Module(Placement("L1", [])), Input(Placement("DRAM", []))
    module.decode_forward(tensor)
    with check_module_inputs([("mlp", module)]) as found:
        with suspend_module_input_checks():
            with suspend_module_input_checks():
                module.decode_forward(tensor)
            module.decode_forward(tensor)
        assert tensor.reads == 0
        module.decode_forward(tensor)
    module.decode_forward(tensor)
    assert tensor.reads == 1 and len(found) == 1 and module.calls == 5


def test_modes_and_modules_without_a_method() -> None:
    with pytest.raises(ValueError, match="mode must be one of"), check_module_inputs([], mode="train"):
        pass
    with check_module_inputs(None, mode="prefill") as found:
        assert found == []
    bare = SimpleNamespace(config=SimpleNamespace(decode_input_memcfg="L1"))
    module = Module("L1")
    with (
        pytest.raises(AttributeError, match="module norm declares decode_input_memcfg"),
        check_module_inputs([("mlp", module), ("norm", bare)]),
    ):
        pass
    assert "decode_forward" not in vars(module)


def test_methods_come_back_whoever_owned_them() -> None:
    module = Module("L1")
    own = module.decode_forward = lambda x: x  # type: ignore[method-assign]
    with pytest.raises(KeyError), check_module_inputs([("mlp", module)]):
        assert module.decode_forward is not own
        raise KeyError
    assert module.decode_forward is own


@pytest.mark.parametrize("mode", ["prefill", "decode"])
def test_the_llama_gets_what_it_declares(bench: Bench, mode: str) -> None:
    executor = bench.executor(num_blocks=64)
    executor.allocate_kv_cache()
    named = list(executor.model.iter_executor_named_modules())
    for _, module in named:
        if mode == "prefill" and not hasattr(module.config, "prefill_input_memcfg"):
            object.__setattr__(module, "config", _Declares(module.config, ttnn_twin.DRAM_MEMORY_CONFIG))
    with check_module_inputs(named, mode=mode) as found:
        if mode == "prefill":
            executor.prefill_forward(**prefill_call())
        else:
            executor.decode_forward(**decode_call([0, -1]))
    assert found == []
    changed = [(name, module) for name, module in named if name == "layer[1].mlp"]
    (_, mlp) = changed[0]
    mlp.config = _Declares(mlp.config, ttnn_twin.L1_MEMORY_CONFIG)
    with check_module_inputs(changed, mode=mode) as found:
        executor.prefill_forward(**prefill_call())
        executor.decode_forward(**decode_call([20, -1]))
    assert {type(mismatch) for mismatch in found} == {InputMismatch}
    assert np.unique([mismatch.module for mismatch in found]).tolist() == ["layer[1].mlp"]


class _Declares:
    """A module's config with both inputs declared."""

    def __init__(self, config: Any, placement: Any) -> None:
        self._config = config
        self.prefill_input_memcfg = self.decode_input_memcfg = placement

    def __getattr__(self, name: str) -> Any:
        return getattr(self._config, name)
