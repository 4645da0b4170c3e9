# SPDX-License-Identifier: Apache-2.0
"""Host arrays in and out, with a small stand-in for torch (which the tests do not need installed)."""

from __future__ import annotations

import array
import types

import numpy as np
import pytest

from llm_runtime.host_arrays import host_array, result_like


class FakeTorchTensor:
    """The six members of a torch tensor that a conversion touches."""

    def __init__(self, values, *, device="cpu", viewable=True):
        self.values = values
        self.device = types.SimpleNamespace(type=device)
        self.dtype = "torch.int64" if viewable else "torch.bfloat16"
        self.viewable = viewable

    @property
    def is_cpu(self):
        return self.device.type == "cpu"

    def detach(self):
        return self

    def numpy(self):
        if not self.viewable:
            raise TypeError("Got unsupported ScalarType BFloat16")
        return self.values


@pytest.fixture
def torch(monkeypatch):
    module = types.ModuleType("torch")
    module.Tensor = FakeTorchTensor
    module.from_numpy = FakeTorchTensor
    monkeypatch.setitem(__import__("sys").modules, "torch", module)
    return module


def test_numpy_passes_through_as_the_same_object():
    values = np.arange(6).reshape(2, 3)
    assert host_array(values, name="tokens") is values
    assert result_like(values)(values) is values


def test_other_buffers_become_views():
    source = array.array("i", [1, 2, 3])
    view = host_array(source, name="tokens")
    source[0] = 9
    assert view.tolist() == [9, 2, 3]
    assert view.dtype == np.int32


def test_dlpack_objects_become_views():
    class Exporter:
        def __init__(self, values):
            self.values = values

        def __dlpack__(self, **kwargs):
            return self.values.__dlpack__(**kwargs)

        def __dlpack_device__(self):
            return self.values.__dlpack_device__()

    values = np.arange(4, dtype=np.int64)
    assert np.shares_memory(host_array(Exporter(values), name="tokens"), values)


@pytest.mark.parametrize("value", [[1, 2], (1, 2), 3, None, "text", object()])
def test_anything_else_is_refused_by_name(value):
    with pytest.raises(TypeError, match="start_pos must be a host array"):
        host_array(value, name="start_pos")


def test_torch_goes_in_as_a_view_and_comes_out_as_torch(torch):
    values = np.arange(3)
    tensor = FakeTorchTensor(values)
    assert host_array(tensor, name="tokens") is values
    back = result_like(tensor)(values)
    assert isinstance(back, FakeTorchTensor)
    assert back.values is values


def test_read_only_results_are_copied_for_torch(torch):
    values = np.arange(3)
    values.flags.writeable = False
    back = result_like(FakeTorchTensor(values))(values)
    assert back.values.flags.writeable
    assert back.values.tolist() == [0, 1, 2]


def test_torch_tensors_that_numpy_cannot_view_are_refused(torch):
    with pytest.raises(TypeError, match="tokens must be a CPU tensor"):
        host_array(FakeTorchTensor(np.arange(3), device="cuda"), name="tokens")
    with pytest.raises(TypeError, match=r"tokens: NumPy has no view .*bfloat16"):
        host_array(FakeTorchTensor(np.arange(3), viewable=False), name="tokens")


@pytest.mark.torch
def test_real_torch_tensors_are_viewed_or_refused():
    torch = pytest.importorskip("torch")
    tensor = torch.arange(4)
    for _ in range(2):  # the second time the class is known
        assert host_array(tensor, name="tokens").ctypes.data == tensor.data_ptr()
        followed = torch.ones(3, requires_grad=True)
        assert host_array(followed, name="logits").ctypes.data == followed.data_ptr()
        with pytest.raises(TypeError, match="tokens must be a CPU tensor, got a torch tensor on meta"):
            host_array(torch.empty(3, device="meta"), name="tokens")
        with pytest.raises(TypeError, match=r"tokens: NumPy has no view .*bfloat16"):
            host_array(torch.ones(3, dtype=torch.bfloat16), name="tokens")
