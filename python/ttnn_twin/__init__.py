# SPDX-License-Identifier: Apache-2.0
"""CPU twin of a ttnn device: the same function names, keywords and semantics, strict where hardware is undefined."""

from __future__ import annotations

from . import ops, tools
from .activations import UnaryOpType
from .allocator import LiveTensor
from .cores import CoreCoord, CoreGrid, CoreRange, CoreRangeSet, num_cores_to_corerangeset
from .creation import ReplicateTensorToMesh, as_tensor, full, ones, zeros
from .dtypes import (
    ROW_MAJOR_LAYOUT,
    TILE_LAYOUT,
    TILE_SIZE,
    DataType,
    Layout,
    StorageType,
    bfloat4_b,
    bfloat8_b,
    bfloat16,
    float32,
    int32,
    uint8,
    uint16,
    uint32,
)
from .events import MeshEvent, event_synchronize, record_event, synchronize_device
from .files import dump_tensor, load_tensor
from .ledger import CacheWrite, Ledger
from .memory import (
    DRAM_MEMORY_CONFIG,
    L1_BLOCK_SHARDED_MEMORY_CONFIG,
    L1_HEIGHT_SHARDED_MEMORY_CONFIG,
    L1_MEMORY_CONFIG,
    L1_WIDTH_SHARDED_MEMORY_CONFIG,
    BufferType,
    MemoryConfig,
    ShardOrientation,
    ShardSpec,
    ShardStrategy,
    TensorMemoryLayout,
    create_sharded_memory_config,
)
from .mesh import MeshDevice, close_mesh_device, open_mesh_device
from .mesh_options import MeshShape
from .ops import *  # noqa: F403 - the op package lists its own names
from .tensor import Shape, Tensor, TensorSpec
from .trace import (
    acknowledge_corruptible,
    begin_trace_capture,
    end_trace_capture,
    execute_trace,
    release_trace,
)
from .trace_region import MeshTraceId
from .transfer import (
    copy,
    copy_host_to_device_tensor,
    deallocate,
    from_device,
    get_device_tensors,
    to_device,
    to_dtype,
)

__all__ = [
    "DRAM_MEMORY_CONFIG",
    "L1_BLOCK_SHARDED_MEMORY_CONFIG",
    "L1_HEIGHT_SHARDED_MEMORY_CONFIG",
    "L1_MEMORY_CONFIG",
    "L1_WIDTH_SHARDED_MEMORY_CONFIG",
    "ROW_MAJOR_LAYOUT",
    "TILE_LAYOUT",
    "TILE_SIZE",
    "BufferType",
    "CacheWrite",
    "CoreCoord",
    "CoreGrid",
    "CoreRange",
    "CoreRangeSet",
    "DataType",
    "Layout",
    "Ledger",
    "LiveTensor",
    "MemoryConfig",
    "MeshDevice",
    "MeshEvent",
    "MeshShape",
    "MeshTraceId",
    "ReplicateTensorToMesh",
    "Shape",
    "ShardOrientation",
    "ShardSpec",
    "ShardStrategy",
    "StorageType",
    "Tensor",
    "TensorMemoryLayout",
    "TensorSpec",
    "UnaryOpType",
    "acknowledge_corruptible",
    "as_tensor",
    "begin_trace_capture",
    "bfloat4_b",
    "bfloat8_b",
    "bfloat16",
    "close_mesh_device",
    "copy",
    "copy_host_to_device_tensor",
    "create_sharded_memory_config",
    "deallocate",
    "dump_tensor",
    "end_trace_capture",
    "event_synchronize",
    "execute_trace",
    "float32",
    "from_device",
    "full",
    "get_device_tensors",
    "int32",
    "load_tensor",
    "num_cores_to_corerangeset",
    "ones",
    "open_mesh_device",
    "record_event",
    "release_trace",
    "synchronize_device",
    "to_device",
    "to_dtype",
    "tools",
    "uint8",
    "uint16",
    "uint32",
    "zeros",
    *ops.__all__,
]
