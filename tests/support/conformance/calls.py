# SPDX-License-Identifier: Apache-2.0
"""One call of a device function, described without a device library, and what came of it, in comparable words."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

_NUMPY = {"uint32": np.uint32, "int32": np.int32, "uint16": np.uint16, "uint8": np.uint8}
_LAYOUTS = {"TILE": "TILE_LAYOUT", "ROW_MAJOR": "ROW_MAJOR_LAYOUT"}
DECODE_GRID = (8, 8)


@dataclass(frozen=True)
class Value:
    """Something of the namespace, by its dotted name; or what the caller gives by that name, like `mesh`."""

    name: str


@dataclass(frozen=True)
class Make:
    """The result of another function of the namespace."""

    function: str
    args: tuple[Any, ...] = ()


@dataclass(frozen=True)
class HeightShards:
    """The memory config that puts one shard of `shape` on each of `cores` cores."""

    shape: tuple[int, int]
    cores: int


@dataclass(frozen=True)
class T:
    """A tensor argument full of zeros (or of `values`): `DRAM` or a sharded placement, on the device or the host."""

    shape: tuple[int, ...]
    dtype: str = "bfloat16"
    layout: str = "TILE"
    memory: HeightShards | None = None
    place: str = "device"
    values: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Call:
    """One call; `Tensor.x` and `MeshDevice.x` are members of the first argument.

    `differs` is the reason why the twin refuses, or answers otherwise, what ttnn lets pass. A `fatal` call ends a
    process that makes it on ttnn.
    """

    function: str
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    label: str = ""
    differs: str = ""
    fatal: bool = False

    def changed(self, label: str, *, differs: str = "", fatal: bool = False, **changes: Any) -> Call:
        """The same call with other arguments: `a0`, `a1` … by position, others by name; `...` leaves one out."""
        args = list(self.args)
        kwargs = dict(self.kwargs)
        for name, value in changes.items():
            if name[0] == "a" and name[1:].isdigit():
                args[int(name[1:])] = value
            elif value is ...:
                del kwargs[name]
            else:
                kwargs[name] = value
        return replace(self, args=tuple(args), kwargs=kwargs, label=label, differs=differs, fatal=fatal)

    @property
    def title(self) -> str:
        """Function and what is special about this call."""
        return f"{self.function}: {self.label}" if self.label else self.function


@dataclass(frozen=True)
class Outcome:
    """What a call did: one line per result tensor, or nothing because it was refused."""

    refused: bool
    results: tuple[str, ...] = ()
    message: str = field(default="", compare=False)


def run(call: Call, ns: Any, given: dict[str, Any]) -> Outcome:
    """Make the arguments, call, describe; everything that was made is dropped again. `given` holds the `mesh`."""
    memo: dict[int, Any] = {}
    args = [build(argument, ns, given, memo) for argument in call.args]
    kwargs = {name: build(argument, ns, given, memo) for name, argument in call.kwargs.items()}
    owner, _, member = call.function.partition(".")
    try:
        if member and owner in ("Tensor", "MeshDevice"):
            result = getattr(args[0], member)
            if callable(result):
                result = result(*args[1:], **kwargs)
        else:
            result = find(ns, call.function)(*args, **kwargs)
    except Exception as error:
        lines = [line for line in str(error).splitlines() if line.strip()]
        return Outcome(refused=True, message=" ".join(lines[:4])[:300])
    return Outcome(refused=False, results=tuple(describe(result)))


def find(ns: Any, name: str) -> Any:
    """Look a dotted name up."""
    for part in name.split("."):
        ns = getattr(ns, part)
    return ns


def build(argument: Any, ns: Any, given: dict[str, Any], memo: dict[int, Any]) -> Any:
    """The argument itself; one description used twice gives one object."""
    if isinstance(argument, (list, tuple)):
        return type(argument)(build(item, ns, given, memo) for item in argument)
    if isinstance(argument, Value):
        return given[argument.name] if argument.name in given else find(ns, argument.name)
    if isinstance(argument, Make):
        return find(ns, argument.function)(*(build(item, ns, given, memo) for item in argument.args))
    if isinstance(argument, HeightShards):
        return height_shards(argument, ns)
    if not isinstance(argument, T):
        return argument
    if id(argument) not in memo:
        memo[id(argument)] = _tensor(argument, ns, given["mesh"])
    return memo[id(argument)]


def height_shards(shards: HeightShards, ns: Any) -> Any:
    """The memory config of `shards`."""
    return ns.create_sharded_memory_config(
        shards.shape,
        core_grid=ns.num_cores_to_corerangeset(shards.cores, ns.CoreCoord(*DECODE_GRID), True),
        strategy=ns.ShardStrategy.HEIGHT,
        orientation=ns.ShardOrientation.ROW_MAJOR,
        use_height_and_width_as_shard_shape=True,
    )


def _tensor(wanted: T, ns: Any, mesh: Any) -> Any:
    dtype, layout = getattr(ns, wanted.dtype), getattr(ns, _LAYOUTS[wanted.layout])
    if wanted.place == "host" or wanted.values is not None:
        kind = _NUMPY.get(wanted.dtype, np.float32)
        values = np.zeros(wanted.shape, kind) if wanted.values is None else np.array(wanted.values, kind)
        made = ns.Tensor(values.reshape(wanted.shape), dtype, layout=layout)
        if wanted.place == "device":
            made = ns.to_device(made, device=mesh)
    else:
        made = ns.zeros(wanted.shape, dtype=dtype, layout=layout, device=mesh, memory_config=ns.DRAM_MEMORY_CONFIG)
    if wanted.place == "freed":
        ns.deallocate(made)
    elif wanted.memory is not None:
        made = ns.interleaved_to_sharded(made, height_shards(wanted.memory, ns))
    return made


def describe(value: Any) -> list[str]:
    """One line per tensor of a result: shapes, dtype, layout, place and memory config; other values by their repr."""
    if type(value) in (list, tuple):
        return [line for item in value for line in describe(item)]
    if not hasattr(value, "storage_type"):
        return [_words(value)]
    where = "host"
    if value.storage_type().name == "DEVICE":
        where = memory_words(value.memory_config())
    shape, padded = list(value.shape), list(value.padded_shape)
    return [f"{shape} in {padded} {value.dtype.name} {value.layout.name} {where}"]


def memory_words(config: Any) -> str:
    """Placement, memory and shards."""
    words = f"{config.memory_layout.name} {config.buffer_type.name}"
    shards = config.shard_spec
    if shards is None:
        return words
    return f"{words} shards {list(shards.shape)} on {_cores(shards.grid)} {shards.orientation.name}"


def _cores(grid: Any) -> str:
    return " ".join(f"{r.start.x},{r.start.y}-{r.end.x},{r.end.y}" for r in grid.ranges())


def _words(value: Any) -> str:
    if hasattr(value, "memory_layout"):
        return memory_words(value)
    if hasattr(value, "memory_config"):
        return f"{list(value.shape)} {_words(value.dtype)} {_words(value.layout)} {memory_words(value.memory_config)}"
    if hasattr(value, "name"):
        return str(value.name)
    if hasattr(value, "ranges"):
        return _cores(value)
    if hasattr(value, "x") and hasattr(value, "y"):
        return f"({value.x}, {value.y})"
    if isinstance(value, np.ndarray):
        return f"array {value.dtype} {list(value.shape)}"
    if value is None or isinstance(value, (bool, int, str)):
        return repr(value)
    try:
        return repr(list(value))  # a shape
    except TypeError:
        return type(value).__name__
