# SPDX-License-Identifier: Apache-2.0
"""Finding the device namespace of meshes and tensors."""

from __future__ import annotations

import types

import ml_dtypes
import numpy as np
import pytest

import ttnn_twin
from llm_runtime.device import host_tensor, namespace_of, numpy_of, tensor_namespace


def declared_namespace():
    class Tensor:
        def __init__(self, namespace=None):
            self.ttnn_namespace = namespace

    return types.SimpleNamespace(Tensor=Tensor, deallocate=lambda tensor: None)


def test_namespace_of_a_mesh_is_the_package_of_its_class(mesh):
    assert namespace_of(mesh) is ttnn_twin


def test_a_mesh_may_declare_its_namespace():
    namespace = declared_namespace()
    assert namespace_of(types.SimpleNamespace(ttnn_namespace=namespace)) is namespace


@pytest.mark.parametrize("value", [object(), np.zeros(1), types.SimpleNamespace(ttnn_namespace=np)])
def test_objects_of_no_device_library_are_refused(value):
    with pytest.raises(TypeError, match="belongs to no device namespace"):
        namespace_of(value)


def test_only_tensors_have_a_tensor_namespace(mesh):
    host = host_tensor(ttnn_twin, np.zeros((2, 2), np.float32), ttnn_twin.bfloat16)
    assert tensor_namespace(host) is ttnn_twin
    assert tensor_namespace(ttnn_twin.to_device(host, device=mesh)) is ttnn_twin
    for other in (mesh, ttnn_twin.bfloat16, np.zeros(1), None, [host], "x"):
        assert tensor_namespace(other) is None


def test_a_tensor_may_declare_its_namespace():
    namespace = declared_namespace()
    assert tensor_namespace(namespace.Tensor(namespace)) is namespace
    assert tensor_namespace(namespace.Tensor()) is None


def test_host_tensors_round_trip():
    values = np.array([[1, 2], [3, 4]], np.int64)
    tensor = host_tensor(ttnn_twin, values, ttnn_twin.uint32)
    assert tensor.dtype == ttnn_twin.uint32
    assert numpy_of(tensor).tolist() == values.tolist()


def test_bfloat16_arrives_as_float32():
    values = np.array([1.5, -2.0], np.float32)
    assert numpy_of(host_tensor(ttnn_twin, values, ttnn_twin.bfloat16)).dtype == np.float32
    assert numpy_of(values.astype(ml_dtypes.bfloat16)).tolist() == [1.5, -2.0]
    assert numpy_of(values) is values


def test_numpy_of_refuses_what_has_no_values():
    with pytest.raises(TypeError, match="cannot read host values from object"):
        numpy_of(object())
