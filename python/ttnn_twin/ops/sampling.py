# SPDX-License-Identifier: Apache-2.0
"""Random draws: one generator per user row, seeded by data, and sampling with top-k, top-p and temperature."""

from __future__ import annotations

import weakref

import numpy as np

from ..dispatch import dispatch
from ..dtypes import ROW_MAJOR_LAYOUT, TILE_LAYOUT, TILE_SIZE, bfloat16, int32, uint32
from ..memory import DRAM_MEMORY_CONFIG
from ..mesh import MeshDevice
from ..tensor import Array, Tensor, TensorSpec
from .common import (
    INTEGERS,
    refuse,
    require_dtype,
    require_layout,
    require_rank,
    require_tensors,
    share,
)

USERS = 32
KEEP_GENERATOR = 0xFFFFFFFF
"""Seed that leaves the generator of its user as it is."""

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_generators: weakref.WeakKeyDictionary[MeshDevice, Array] = weakref.WeakKeyDictionary()


def _generators_of(mesh: MeshDevice) -> Array:
    states = _generators.get(mesh)
    if states is None:
        states = _mixed(np.arange(USERS, dtype=np.uint64))
        _generators[mesh] = states
    return states


def _mixed(state: Array) -> Array:
    """Return the output of splitmix64 for uint64 states: equal states give equal, near ones unrelated numbers."""
    z = state + _GOLDEN
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: Array = z ^ (z >> np.uint64(31))
    return mixed


def manual_seed(seeds: Tensor, *, user_ids: Tensor | None = None) -> Tensor:
    """Seed the generators of users: ``seeds`` and ``user_ids`` are uint32 row-major device tensors ``[n]``.

    Without ``user_ids`` the seeds go to users 0, 1, … The seed 0xFFFFFFFF leaves its user's generator alone. A
    draw of :func:`sampling` depends on the last seed of its row and the number of draws of that row since. The
    result is an unused tensor, as in ttnn. Follows chapter 40, section F.2, step 6.

    Raises:
        RuntimeError: shapes or types are not accepted; when the op runs, a user id is outside ``[0, 31]``.
    """
    op = "manual_seed"
    operands = {"seeds": seeds} if user_ids is None else {"seeds": seeds, "user_ids": user_ids}
    require_tensors(op, **operands)
    for name, tensor in operands.items():
        require_dtype(op, name, tensor, {uint32})
        require_layout(op, name, tensor, ROW_MAJOR_LAYOUT)
        require_rank(op, name, tensor, 1)
        if tensor.shape != seeds.shape:
            refuse(op, f"{tensor.shape[0]} user_ids for {seeds.shape[0]} seeds")
    if user_ids is None and seeds.shape[0] > USERS:
        refuse(op, f"{seeds.shape[0]} seeds for {USERS} users")
    states, in_order = _generators_of(_mesh_of(seeds)), user_ids is None

    def kernel(made: list[Array], read: list[Array], _written: list[Array]) -> None:
        made[0].fill(0)
        values = read[0]
        users = np.arange(len(values)) if in_order else read[1]
        if len(users) and int(users.max()) >= USERS:
            refuse(op, f"user id {int(users.max())} is outside [0, {USERS - 1}]")
        fresh = values != KEEP_GENERATOR
        states[users[fresh]] = _mixed(values[fresh].astype(np.uint64))

    unused = TensorSpec((1,), uint32, ROW_MAJOR_LAYOUT, DRAM_MEMORY_CONFIG)
    return dispatch(op, reads=tuple(operands.values()), kernel=kernel, outputs=(unused,))[0]


def sampling(
    input_values_tensor: Tensor,
    input_indices_tensor: Tensor,
    k: Tensor,
    p: Tensor,
    temp: Tensor,
    *,
    seed: int | None = None,
    output_tensor: Tensor | None = None,
) -> Tensor:
    """Draw one index per row: uint32 ``[1, 1, 1, n]``, or ``output_tensor``, for candidates ``[1, 1, n, W]``.

    Row by row: the ``k`` largest values (their order among the candidates does not matter; of equal ones the
    first come first), softmax of value times ``temp`` (the inverse temperature), the smallest prefix whose
    probability reaches ``p`` (at least one), one draw. The draw uses the generator of the row's user, see
    :func:`manual_seed`; ``seed`` seeds all of them first. Rows never influence one another. ``k`` beyond
    ``[1, W]`` is clamped, so that rows in use by nobody need no values. Follows chapter 40, section F.2, step 6.

    Raises:
        RuntimeError: shapes, layouts or types are not accepted.
    """
    op = "sampling"
    users = _require_candidates(op, input_values_tensor, input_indices_tensor)
    require_tensors(op, k=k, p=p, temp=temp)
    for name, tensor, dtypes in (("k", k, INTEGERS), ("p", p, {bfloat16}), ("temp", temp, {bfloat16})):
        require_dtype(op, name, tensor, dtypes)
        require_layout(op, name, tensor, ROW_MAJOR_LAYOUT)
        if tensor.shape != (users,):
            refuse(op, f"{name} has shape {list(tensor.shape)}; [{users}] is needed, one per row")
    spec = TensorSpec((1, 1, 1, users), uint32, ROW_MAJOR_LAYOUT, DRAM_MEMORY_CONFIG)
    if output_tensor is not None:
        require_tensors(op, output_tensor=output_tensor)
        require_dtype(op, "output_tensor", output_tensor, INTEGERS)
        require_layout(op, "output_tensor", output_tensor, ROW_MAJOR_LAYOUT)
        if output_tensor.shape != spec.shape:
            refuse(op, f"output_tensor {list(output_tensor.shape)}; {list(spec.shape)} is needed")
    states = _generators_of(_mesh_of(input_values_tensor))

    def kernel(made: list[Array], read: list[Array], written: list[Array]) -> None:
        values, indices = read[0].reshape(users, -1), read[1].reshape(users, -1)
        if seed is not None:
            states[:] = _mixed(np.full(USERS, seed, np.uint64))
        uniform = (_mixed(states[:users]) >> np.uint64(11)).astype(np.float64) * 2.0**-53
        states[:users] += _GOLDEN
        chosen = draw(values, k=read[2], p=read[3], inverse_temperature=read[4], uniform=uniform)
        picked = indices[np.arange(users), chosen]
        np.copyto((written or made)[0].reshape(-1), picked, casting="unsafe")

    made = dispatch(
        op,
        reads=(input_values_tensor, input_indices_tensor, k, p, temp),
        kernel=kernel,
        outputs=() if output_tensor is not None else (spec,),
        writes=() if output_tensor is None else (output_tensor,),
        attributes=(seed,),
    )
    return share(output_tensor) if output_tensor is not None else made[0]


def draw(values: Array, *, k: Array, p: Array, inverse_temperature: Array, uniform: Array) -> Array:
    """Return the chosen column of each row of ``values`` ``[n, W]`` for numbers ``uniform`` in ``[0, 1)``."""
    with np.errstate(all="ignore"):
        scores = np.nan_to_num(values.astype(np.float64), nan=-np.inf)
        order = np.argsort(-scores, axis=1, kind="stable")
        ranked = np.take_along_axis(scores, order, axis=1)
        limit = np.clip(k.astype(np.int64), 1, values.shape[1])[:, None]
        weights = ranked * inverse_temperature.astype(np.float64)[:, None]
        weights = np.exp(weights - weights[:, :1])
        # a row of -inf alone has no distribution; its first candidate is as good as any
        weights = np.nan_to_num(weights, nan=0.0)
        weights[np.arange(values.shape[1])[None, :] >= limit] = 0.0
        before = np.cumsum(weights, axis=1) - weights
        total = weights.sum(axis=1, keepdims=True)
        weights[before >= np.maximum(p.astype(np.float64), 0.0)[:, None] * total] = 0.0
        weights[:, 0] = np.where(weights.sum(axis=1) > 0, weights[:, 0], 1.0)
        mass = np.cumsum(weights, axis=1)
    rank = (mass <= uniform[:, None] * mass[:, -1:]).sum(axis=1)
    chosen: Array = np.take_along_axis(order, rank[:, None], axis=1)[:, 0]
    return chosen


def _require_candidates(op: str, values: Tensor, indices: Tensor) -> int:
    require_tensors(op, input_values_tensor=values, input_indices_tensor=indices)
    require_dtype(op, "input_values_tensor", values, {bfloat16})
    require_layout(op, "input_values_tensor", values, TILE_LAYOUT)
    require_dtype(op, "input_indices_tensor", indices, {uint32, int32})
    require_layout(op, "input_indices_tensor", indices, ROW_MAJOR_LAYOUT)
    require_rank(op, "input_values_tensor", values, 4)
    if indices.shape != values.shape:
        refuse(op, f"input_indices_tensor {list(indices.shape)} for values {list(values.shape)}")
    users, width = values.shape[2:]
    if values.shape[:2] != (1, 1) or not 1 <= users <= USERS:
        refuse(op, f"input_values_tensor {list(values.shape)}; [1, 1, n, W] with 1 to {USERS} rows is needed")
    tiles = width // TILE_SIZE
    if width % TILE_SIZE or tiles & (tiles - 1) or not tiles:
        refuse(op, f"{width} candidates; a power of two times {TILE_SIZE} is needed")
    return users


def _mesh_of(tensor: Tensor) -> MeshDevice:
    mesh = tensor._mesh
    assert mesh is not None
    return mesh
