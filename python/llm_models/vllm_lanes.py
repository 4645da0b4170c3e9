# SPDX-License-Identifier: Apache-2.0
"""Models that wait for a server's KV geometry, and the facade that builds their executors when it is known.

Follows chapter 40, section C.5, with decision D7: another block size arrives before the runtimes exist.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from llm_models.vllm_generator import VLLMGenerator, server_shape_given
from llm_runtime.config import PagedKVCacheConfig
from llm_runtime.lane_group import LaneGroupExecutor
from llm_runtime.tensor_resources import attach_cleanup_failures, raise_cleanup_failures
from llm_runtime.vllm_adapter import VLLMAdapter
from llm_runtime.vllm_adapter.adapter import server_cache_shape

__all__ = ["LateVLLMGenerator", "PendingLanes"]

BuildExecutor = Callable[[Any, PagedKVCacheConfig], Any]


class PendingLanes:
    """Loaded models, one per lane, without runtimes. Owns the models; the mesh is borrowed.

    `build_executor(model, paged_kv_cache)` makes a lane's executor. `models` need `release()`,
    `configure_paged_attention` and, as `model_args`, their runtime config.
    """

    cache_path: Any = None

    def __init__(self, models: Sequence[Any], *, mesh_device: Any, build_executor: BuildExecutor) -> None:
        self.models = list(models)
        self.mesh_device = mesh_device
        self._build_executor = build_executor

    @property
    def model(self) -> Any:
        """The model, or the models of several lanes."""
        return self.models[0] if len(self.models) == 1 else self.models

    @property
    def model_args(self) -> Any:
        """The runtime config, or those of several lanes."""
        found = [model.model_args for model in self.models]
        return found[0] if len(found) == 1 else found

    @property
    def already_warmed_up_prefill(self) -> bool:
        """False: nothing is built yet. Assigning has no effect, as on an executor."""
        return False

    @already_warmed_up_prefill.setter
    def already_warmed_up_prefill(self, value: bool) -> None:
        if not isinstance(value, bool):
            raise TypeError(f"already_warmed_up_prefill must be a bool, got {value!r}")

    def build(self, paged_kv_cache: PagedKVCacheConfig) -> Any:
        """Build every lane for this block size and maximum: an executor, or a group of them over the mesh.

        A failure cleans the lanes that were built, with their own failures attached, and may be followed by another
        attempt.
        """
        lanes: list[Any] = []
        try:
            for model in self.models:
                model.configure_paged_attention(
                    block_size=paged_kv_cache.block_size, max_num_blocks=paged_kv_cache.max_num_blocks
                )
                lanes.append(self._build_executor(model, paged_kv_cache))
        except BaseException as primary:
            attach_cleanup_failures(primary, _failures_of([lane.cleanup for lane in lanes]))
            raise
        return lanes[0] if len(lanes) == 1 else LaneGroupExecutor(lanes, mesh_device=self.mesh_device)

    def release(self) -> None:
        """Release every model; idempotent, the first failure is raised with the others attached."""
        failures = _failures_of([model.release for model in self.models])
        if failures:
            raise_cleanup_failures(failures)


class LateVLLMGenerator(VLLMGenerator):
    """A facade whose executors are built by `allocate_kv_cache`, when the server's block size is known.

    Owns the models of `pending`. Until the cache is allocated every serving call is refused.
    """

    def __init__(
        self, pending: PendingLanes, adapter: VLLMAdapter, *, vllm_config: Any = None, prefix: str = ""
    ) -> None:
        super().__init__(pending, adapter, vllm_config=vllm_config, prefix=prefix)
        self._pending = pending
        self._closed = False

    @property
    def target(self) -> Any:
        """The executor or lane group that serves; `RuntimeError` before it is built."""
        if self._target is self._pending:
            raise RuntimeError("the executors are not built yet: call allocate_kv_cache first")
        return self._target

    def allocate_kv_cache(self, kv_cache_shape: Any = None, dtype: Any = None, num_layers: int | None = None) -> Any:
        """Build the executors for the server's cache, allocate it and return its handle.

        Arguments and errors as in `VLLMGenerator`; the server's block size and number of blocks are taken as they are.
        Without arguments the cache has the provisional size that the facade was made with.
        """
        given = server_shape_given(kv_cache_shape, dtype, num_layers)
        if self._closed:
            raise RuntimeError("this generator was cleaned up: load the model again")
        if self._target is self._pending:
            policy = self.adapter.config.paged_kv_cache
            if given:
                blocks, _, block_size, _ = server_cache_shape(kv_cache_shape)
                policy = replace(policy, block_size=block_size, max_num_blocks=blocks)
            adapter = VLLMAdapter(replace(self.adapter.config, paged_kv_cache=policy))
            if given:
                adapter.resolve_legacy_kv_cache_config(kv_cache_shape, dtype, num_layers)
            else:
                policy = replace(policy, num_blocks=policy.max_num_blocks)
            self._target = self._pending.build(policy)
            self.adapter = adapter
        return super().allocate_kv_cache(kv_cache_shape, dtype, num_layers)

    def cleanup(self) -> None:
        """End the executors, then release the models; idempotent.

        While the executors cannot be cleaned the models are kept, because the cache may still be bound to them; the
        call may be repeated.
        """
        self._closed = True
        if self._target is not self._pending:
            super().cleanup()
        self._pending.release()


def _failures_of(steps: Sequence[Callable[[], None]]) -> list[BaseException]:
    failures: list[BaseException] = []
    for step in steps:
        try:
            step()
        except BaseException as failure:  # the others must still be tried
            failures.append(failure)
    return failures
