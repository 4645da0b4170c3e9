# SPDX-License-Identifier: Apache-2.0
"""Memory configurations: where a tensor lives and how it is spread over cores. Metadata only on the twin."""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass

from .cores import CoreGrid, CoreRange, CoreRangeSet
from .dtypes import _Identity


class BufferType(_Identity):
    """Memory a buffer is placed in."""

    DRAM = 0
    L1 = 1
    SYSTEM_MEMORY = 2
    L1_SMALL = 3
    TRACE = 4


class TensorMemoryLayout(_Identity):
    """How pages of a tensor are spread over banks or cores."""

    INTERLEAVED = 0
    HEIGHT_SHARDED = 2
    WIDTH_SHARDED = 3
    BLOCK_SHARDED = 4


class ShardOrientation(_Identity):
    """Order in which shards go to the cores of a grid."""

    ROW_MAJOR = 0
    COL_MAJOR = 1


class ShardStrategy(enum.Enum):
    """Dimension along which a tensor is cut into shards."""

    HEIGHT = 1
    WIDTH = 2
    BLOCK = 3


@dataclass(frozen=True, init=False)
class ShardSpec:
    """Shard shape (rows, columns) and the cores that hold the shards."""

    grid: CoreRangeSet
    shape: tuple[int, int]
    orientation: ShardOrientation

    def __init__(self, grid: CoreRangeSet, shard_shape: Sequence[int], shard_orientation: ShardOrientation) -> None:
        object.__setattr__(self, "grid", grid)
        object.__setattr__(self, "shape", (int(shard_shape[0]), int(shard_shape[1])))
        object.__setattr__(self, "orientation", shard_orientation)

    def num_cores(self) -> int:
        """Return the number of cores of the grid."""
        return self.grid.num_cores()


@dataclass(frozen=True)
class MemoryConfig:
    """Placement of a device tensor."""

    memory_layout: TensorMemoryLayout = TensorMemoryLayout.INTERLEAVED
    buffer_type: BufferType = BufferType.DRAM
    shard_spec: ShardSpec | None = None

    def __post_init__(self) -> None:
        # Hashed for every tensor specification an op makes.
        object.__setattr__(self, "_hash", hash((self.memory_layout, self.buffer_type, self.shard_spec)))

    def __hash__(self) -> int:
        return self._hash  # type: ignore[attr-defined, no-any-return]

    def is_sharded(self) -> bool:
        """Return whether the tensor is cut into shards."""
        return self.memory_layout is not TensorMemoryLayout.INTERLEAVED

    @property
    def interleaved(self) -> bool:
        """Return whether the tensor is spread page by page over all banks."""
        return self.memory_layout is TensorMemoryLayout.INTERLEAVED


DRAM_MEMORY_CONFIG = MemoryConfig()
L1_MEMORY_CONFIG = MemoryConfig(buffer_type=BufferType.L1)
L1_HEIGHT_SHARDED_MEMORY_CONFIG = MemoryConfig(TensorMemoryLayout.HEIGHT_SHARDED, BufferType.L1)
L1_WIDTH_SHARDED_MEMORY_CONFIG = MemoryConfig(TensorMemoryLayout.WIDTH_SHARDED, BufferType.L1)
L1_BLOCK_SHARDED_MEMORY_CONFIG = MemoryConfig(TensorMemoryLayout.BLOCK_SHARDED, BufferType.L1)

_LAYOUT_OF = {
    ShardStrategy.HEIGHT: TensorMemoryLayout.HEIGHT_SHARDED,
    ShardStrategy.WIDTH: TensorMemoryLayout.WIDTH_SHARDED,
    ShardStrategy.BLOCK: TensorMemoryLayout.BLOCK_SHARDED,
}


def create_sharded_memory_config(
    shape: Sequence[int],
    core_grid: CoreGrid | CoreRange | CoreRangeSet,
    strategy: ShardStrategy,
    orientation: ShardOrientation | None = None,
    use_height_and_width_as_shard_shape: bool = False,
) -> MemoryConfig:
    """Return an L1 memory config that cuts ``shape`` over ``core_grid``.

    ``shape`` is the shape of one shard when ``use_height_and_width_as_shard_shape``, else of the whole tensor,
    which must then divide evenly. Follows chapter 40, section F.2.

    Raises:
        RuntimeError: the shape cannot be cut evenly over the grid.
    """
    grid = _range_set(core_grid)
    cores = grid.num_cores()
    height, width = 1, int(shape[-1])
    for size in shape[:-1]:
        height *= int(size)
    if not use_height_and_width_as_shard_shape:
        rows, columns = _divisors(grid, cores, strategy)
        if height % rows or width % columns:
            raise RuntimeError(
                f"create_sharded_memory_config: shape {tuple(shape)} ({height} x {width}) does not divide into "
                f"{rows} x {columns} shards over {cores} cores"
            )
        height, width = height // rows, width // columns
    spec = ShardSpec(grid, (height, width), orientation or ShardOrientation.ROW_MAJOR)
    return MemoryConfig(_LAYOUT_OF[strategy], BufferType.L1, spec)


def _range_set(grid: CoreGrid | CoreRange | CoreRangeSet) -> CoreRangeSet:
    if isinstance(grid, CoreGrid):
        return grid.to_corerangeset()
    return CoreRangeSet([grid]) if isinstance(grid, CoreRange) else grid


def _divisors(grid: CoreRangeSet, cores: int, strategy: ShardStrategy) -> tuple[int, int]:
    if strategy is ShardStrategy.HEIGHT:
        return cores, 1
    if strategy is ShardStrategy.WIDTH:
        return 1, cores
    box = grid.bounding_box()
    return box.grid_size().y, box.grid_size().x
