# SPDX-License-Identifier: Apache-2.0
"""Resolved static collaborators, capabilities and geometry ceilings of a decode runtime.

Follows chapter 20, section 3.5.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from llm_runtime._core import PageTableLayout
from llm_runtime._validation import is_positive_int, positive_int, require_bool, require_instance
from llm_runtime.output_reader import OutputReader

__all__ = ["TOKEN_ROWS", "DecodeRuntimeConfig"]

#: Entries of the staged token vector; lanes have at most this many slots.
TOKEN_ROWS = 32


@dataclass(frozen=True)
class DecodeRuntimeConfig:
    """What a decode runtime may rely on; ``resolve`` derives it, construction checks it again.

    ``model``, ``mesh_device``, ``output_reader``, ``sampling_state_controller`` and ``sampling_state`` are
    borrowed. ``lane_capacity`` is the fixed number of rows (1..32) of every call. The ceiling stays as
    constructed when the layout is replaced.
    """

    model: Any
    mesh_device: Any
    output_reader: OutputReader
    lane_capacity: int
    page_table_layout: PageTableLayout
    page_table_layout_ceiling: PageTableLayout
    cluster_shape: tuple[int, int]
    num_devices: int
    vocab_size: int
    device_sampling_enabled: bool
    allow_force_argmax: bool
    max_device_top_k: int
    sampling_batch_size: int
    position_feedback_capable: bool
    force_greedy_top_k: bool = False
    sampling_state_controller: Any = None
    sampling_state: Any = None

    def __post_init__(self) -> None:
        require_instance(self.output_reader, OutputReader, name="output_reader")
        if self.mesh_device is not self.output_reader.mesh_device:
            raise ValueError("mesh_device and output_reader must use the same mesh")
        _check_model_mesh(self.model, self.mesh_device)
        _check_lane_capacity(self.lane_capacity)
        for name in (
            "device_sampling_enabled",
            "force_greedy_top_k",
            "allow_force_argmax",
            "position_feedback_capable",
        ):
            require_bool(getattr(self, name), name=name)
        require_instance(self.page_table_layout, PageTableLayout, name="page_table_layout")
        require_instance(self.page_table_layout_ceiling, PageTableLayout, name="page_table_layout_ceiling")
        _check_inside_ceiling(self.page_table_layout, self.page_table_layout_ceiling)
        if not isinstance(self.cluster_shape, tuple):
            raise TypeError(f"cluster_shape must be a tuple, got {type(self.cluster_shape).__name__}")
        self._check_derived()
        self._check_controller()

    def _check_derived(self) -> None:
        """Compare every derived field with what the collaborators expose now."""
        shape = _mesh_shape(self.mesh_device)
        sampling = _sampling_capabilities(self.model, self.lane_capacity, enabled=self.device_sampling_enabled)
        current: dict[str, Any] = {
            "cluster_shape": shape,
            "num_devices": _num_devices(self.model, shape),
            "vocab_size": _vocab_size(self.model),
            "allow_force_argmax": sampling[0],
            "max_device_top_k": sampling[1],
            "sampling_batch_size": sampling[2],
            "position_feedback_capable": _can_increment_positions(self.model),
        }
        for name, expected in current.items():
            if getattr(self, name) != expected:
                raise ValueError(f"{name} is {getattr(self, name)!r}, but the model and mesh now have {expected!r}")

    def _check_controller(self) -> None:
        controller, state = self.sampling_state_controller, self.sampling_state
        if (controller is None) != (state is None):
            raise ValueError("sampling_state_controller and sampling_state must be given together")
        if controller is None:
            return
        if getattr(controller, "sampling", None) is not getattr(self.model, "sampling", None):
            raise ValueError("sampling_state_controller.sampling must be model.sampling")
        if not callable(getattr(controller, "decode_forward", None)):
            raise TypeError("sampling_state_controller.decode_forward must be callable")

    @classmethod
    def resolve(
        cls,
        *,
        model: Any,
        output_reader: OutputReader,
        lane_capacity: int,
        page_table_layout: PageTableLayout,
        device_sampling_enabled: bool,
        force_greedy_top_k: bool = False,
        sampling_state_controller: Any = None,
        sampling_state: Any = None,
    ) -> DecodeRuntimeConfig:
        """Derive a config from its collaborators.

        The first failing check wins: reader type (TypeError), mesh identity, lane capacity in 1..32
        (ValueError), flag and layout types (TypeError), mesh shape, device count and vocabulary
        (ValueError), sampler contract. Follows chapter 20, section 3.5.
        """
        require_instance(output_reader, OutputReader, name="output_reader")
        mesh = output_reader.mesh_device
        _check_model_mesh(model, mesh)
        _check_lane_capacity(lane_capacity)
        require_bool(device_sampling_enabled, name="device_sampling_enabled")
        require_bool(force_greedy_top_k, name="force_greedy_top_k")
        require_instance(page_table_layout, PageTableLayout, name="page_table_layout")
        shape = _mesh_shape(mesh)
        num_devices = _num_devices(model, shape)
        vocab_size = _vocab_size(model)
        argmax, top_k, rows = _sampling_capabilities(model, lane_capacity, enabled=device_sampling_enabled)
        return cls(
            model=model,
            mesh_device=mesh,
            output_reader=output_reader,
            lane_capacity=lane_capacity,
            page_table_layout=page_table_layout,
            page_table_layout_ceiling=page_table_layout,
            cluster_shape=shape,
            num_devices=num_devices,
            vocab_size=vocab_size,
            device_sampling_enabled=device_sampling_enabled,
            allow_force_argmax=argmax,
            max_device_top_k=top_k,
            sampling_batch_size=rows,
            position_feedback_capable=_can_increment_positions(model),
            force_greedy_top_k=force_greedy_top_k,
            sampling_state_controller=sampling_state_controller,
            sampling_state=sampling_state,
        )

    def with_page_table_layout(self, layout: PageTableLayout) -> DecodeRuntimeConfig:
        """Return a config with ``layout`` under the unchanged ceiling; it may shrink and grow back.

        TypeError for another type; ValueError when the block size changes or a width exceeds the ceiling.
        """
        require_instance(layout, PageTableLayout, name="page_table_layout")
        _check_inside_ceiling(layout, self.page_table_layout_ceiling)
        return replace(self, page_table_layout=layout)


def _check_model_mesh(model: Any, mesh: Any) -> None:
    model_mesh = getattr(getattr(model, "config", None), "mesh_device", None)
    if model_mesh is not None and model_mesh is not mesh:
        raise ValueError("model.config.mesh_device and output_reader must use the same mesh")


def _check_lane_capacity(lane_capacity: Any) -> None:
    positive_int(lane_capacity, name="lane_capacity")
    if lane_capacity > TOKEN_ROWS:
        raise ValueError(f"lane_capacity is {lane_capacity}, but token padding supports {TOKEN_ROWS} slots at most")


def _check_inside_ceiling(layout: PageTableLayout, ceiling: PageTableLayout) -> None:
    if layout.block_size != ceiling.block_size:
        raise ValueError(f"block_size {layout.block_size} differs from the ceiling's {ceiling.block_size}")
    for name, what in (("raw_capacity_width", "paged-KV capacity"), ("decode_width", "decode width")):
        mine, limit = getattr(layout, name), getattr(ceiling, name)
        if mine > limit:
            raise ValueError(f"{what} {name}={mine} exceeds the construction-time ceiling {limit}")


def _mesh_shape(mesh: Any) -> tuple[int, int]:
    shape = getattr(mesh, "shape", None)
    try:
        dimensions = tuple(int(size) for size in shape)  # type: ignore[union-attr]
    except (TypeError, ValueError) as error:
        raise TypeError(f"mesh_device.shape must be two integers, got {shape!r}") from error
    if len(dimensions) != 2 or min(dimensions) < 1:
        raise ValueError(f"mesh_device.shape must be two positive dimensions, got {dimensions}")
    return (dimensions[0], dimensions[1])


def _num_devices(model: Any, shape: tuple[int, int]) -> int:
    count = getattr(getattr(model, "config", None), "num_devices", None)
    if count is None:
        count = getattr(model, "num_devices", None)
    if count is None:
        return shape[0] * shape[1]
    positive_int(count, name="num_devices")
    if count != shape[0] * shape[1]:
        raise ValueError(f"num_devices is {count}, but the mesh has {shape[0]}x{shape[1]} devices")
    return int(count)


def _vocab_size(model: Any) -> int:
    return positive_int(getattr(model, "vocab_size", None), name="vocab_size")


def _can_increment_positions(model: Any) -> bool:
    return callable(getattr(model, "increment_positions", None))


def _sampling_capabilities(model: Any, lane_capacity: int, *, enabled: bool) -> tuple[bool, int, int]:
    """``(allow_force_argmax, max_device_top_k, sampling_batch_size)`` as the model's sampler declares them."""
    if not enabled:
        return (False, 0, lane_capacity)
    sampling = getattr(model, "sampling", None)
    if not callable(getattr(sampling, "decode_forward", None)):
        raise TypeError("device sampling needs a callable model.sampling.decode_forward")
    config = getattr(sampling, "config", None)
    argmax = getattr(config, "allow_force_argmax", None)
    require_bool(argmax, name="model.sampling.config.allow_force_argmax")
    top_k = positive_int(getattr(config, "max_top_k", None), name="model.sampling.config.max_top_k")
    rows = getattr(config, "max_batch_size", lane_capacity)
    if not is_positive_int(rows) or rows < lane_capacity:
        raise ValueError(
            f"model.sampling.config.max_batch_size must be an integer of at least the lane capacity "
            f"{lane_capacity}, got {rows!r}"
        )
    return (bool(argmax), top_k, int(rows))
