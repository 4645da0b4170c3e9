# SPDX-License-Identifier: Apache-2.0
"""A Llama on one device, written once in ttnn's op vocabulary against the namespace of its mesh.

Implements the tensor-model contract of chapter 40, section B.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from llm_models.checkpoints import LlamaCheckpoint
from llm_models.llama import kv_binding
from llm_models.llama.attention import as_rows
from llm_models.llama.last_token import LastTokenHead
from llm_models.llama.model_config import AttentionConfig, LlamaModelConfig
from llm_models.llama.parts import AttentionKind, ModelParts, ModelSizes, build_parts, model_config
from llm_models.llama.prefill import LlamaPrefill
from llm_models.llama.weights import Progress
from llm_runtime.device import namespace_of
from llm_runtime.tensor_resources import raise_cleanup_failures


class LlamaModel(LlamaPrefill):
    """A Llama with its device weights (owned); the mesh and the KV cache are borrowed.

    Rows between modules are bfloat16 tiles in DRAM: [1, 1, sequence, dim] in prefill, [1, 1, batch, dim] in decode.
    Methods free what they make; arguments are only freed where the method says that it consumes them.
    """

    tt_ccl: Any = None
    #: The attention of the family; a family that differs from Llama there has a subclass that sets it.
    attention_kind: AttentionKind = AttentionKind()

    def __init__(self, config: LlamaModelConfig, parts: ModelParts) -> None:
        """Take over `parts`; `from_checkpoint` makes them."""
        self.config = config
        self.mesh_device = config.mesh_device
        self.num_devices = config.num_devices
        self.n_layers = config.n_layers
        self.vocab_size = config.vocab_size
        self.model_args: Any = None
        self.embedding = parts.embedding
        self.rope_setup = parts.rope_setup
        self.layers = parts.layers
        self.norm = parts.norm
        self.lm_head = parts.lm_head
        self.sampling = parts.sampling
        self._weights = parts.weights
        self._released = False
        self._ns = namespace_of(config.mesh_device)
        self._last_token = LastTokenHead(self._ns, self.mesh_device, norm=self.norm, lm_head=self.lm_head)

    @classmethod
    def from_checkpoint(
        cls,
        checkpoint: LlamaCheckpoint,
        mesh_device: Any,
        *,
        max_batch_size: int,
        max_seq_len: int,
        block_size: int,
        max_num_blocks: int,
        n_layers: int | None = None,
        dtype: Any = None,
        kv_cache_dtype: Any = None,
        progress: Progress | None = None,
        cache_path: Path | None = None,
        log_probs: bool = False,
    ) -> LlamaModel:
        """Upload the weights and build the model.

        `max_batch_size` is the lane capacity (1 to 32), `max_seq_len` the context in tokens; `n_layers` may cut the
        model short; `dtype` is that of the matrices and `kv_cache_dtype` that of the cache (bfloat16 unless given).
        `progress(done, total)` follows the uploads; `cache_path` is a folder for converted weights. With `log_probs`
        the sampler returns those of sampled tokens when asked. `ValueError` for sizes that do not fit the checkpoint
        or the device, before anything is uploaded; a later failure frees what was.
        """
        bfloat16 = namespace_of(mesh_device).bfloat16
        sizes = ModelSizes(
            max_batch_size=max_batch_size,
            max_seq_len=max_seq_len,
            block_size=block_size,
            max_num_blocks=max_num_blocks,
            n_layers=checkpoint.config.n_layers if n_layers is None else n_layers,
            dtype=bfloat16 if dtype is None else dtype,
            kv_cache_dtype=bfloat16 if kv_cache_dtype is None else kv_cache_dtype,
        )
        config = model_config(checkpoint.config, mesh_device, sizes)
        parts = build_parts(
            checkpoint,
            config,
            dtype=sizes.dtype,
            progress=progress,
            cache_path=cache_path,
            log_probs=log_probs,
            kind=cls.attention_kind,
        )
        return cls(config, parts)

    @property
    def supports_on_device_sampling(self) -> bool:
        """Whether tokens can be sampled on the device."""
        return self.sampling is not None

    def embed_decode(self, tokens: Any) -> Any:
        """Rows [1, 1, batch, dim] for uint32 [1, 1, 1, 32]; what lies behind the batch is padding of the tile."""
        return as_rows(self._ns, self._embed(tokens), self.config.max_batch_size, self.config.dim)

    def decode_forward(self, x: Any, current_pos: Any, rot_mats: Sequence[Any], page_table: Any = None) -> Any:
        """One step of every slot: `x` (consumed), int32 [batch] positions, int32 [batch, blocks] page table.

        Returns logits [1, 1, batch, vocabulary]. Each slot with a position >= 0 writes one key and value there; slots
        at -1 write nothing, and their logits mean nothing.
        """
        if page_table is None:
            raise ValueError("decode needs a page table")
        for layer in self.layers:
            normed = layer.attn_norm.decode_forward(x)
            mixed = layer.attention.decode_forward(
                normed, current_pos=current_pos, rot_mats=rot_mats, page_table=page_table
            )
            self._ns.deallocate(normed)
            x = self._add(x, mixed)
            normed = layer.ff_norm.decode_forward(x)
            grown = layer.mlp.decode_forward(normed)
            self._ns.deallocate(normed)
            x = self._add(x, grown)
        normed = self.norm.decode_forward(x)
        self._ns.deallocate(x)
        logits = self.lm_head.decode_forward(normed)
        self._ns.deallocate(normed)
        return logits

    def gather_and_untilize_logits(self, logits: Any) -> Any:
        """Row-major logits of the same shape for the host; `logits` is consumed."""
        rows = self._ns.untilize(logits, use_multicore=True)
        self._ns.deallocate(logits)
        return rows

    def increment_positions(self, current_pos: Any, rot_idx: Any) -> None:
        """Add one in place: to every position that is not negative, and to every rotary index."""
        self._ns.plus_one(current_pos, skip_negative_entries=True)
        self._ns.plus_one(rot_idx)

    def configure_paged_attention(self, *, block_size: int, max_num_blocks: int) -> None:
        """Change the KV geometry before a cache is bound; see `kv_binding.configure_paged_attention`."""
        kv_binding.configure_paged_attention(self._attentions(), block_size=block_size, max_num_blocks=max_num_blocks)

    def set_kv_cache(self, cache: Iterable[Any] | None) -> None:
        """Bind one (key, value) pair per layer, or unbind with `None`; see `kv_binding.set_kv_cache`."""
        kv_binding.set_kv_cache(self._attentions(), cache)

    def iter_executor_named_modules(self) -> Iterator[tuple[str, Any]]:
        """(name, module) in execution order; nothing for a model without layers."""
        for index, layer in enumerate(self.layers):
            yield f"layer[{index}].attn_norm", layer.attn_norm
            yield f"layer[{index}].attention", layer.attention
            yield f"layer[{index}].ff_norm", layer.ff_norm
            yield f"layer[{index}].mlp", layer.mlp
        if self.layers:
            yield "final_norm", self.norm
            yield "lm_head", self.lm_head

    def release(self) -> None:
        """Free sampler buffers, rotary tables and weights; the KV cache is not ours.

        Idempotent. After a failure (the first is raised, others attached) it can be called again. The model cannot
        be used afterwards.
        """
        self._released = True
        failures: list[BaseException] = []
        for release in (self.sampling.release, self.rope_setup.release, self._weights.release):
            try:
                release()
            except BaseException as failure:
                failures.append(failure)
        if failures:
            raise_cleanup_failures(failures)

    def _attentions(self) -> list[AttentionConfig]:
        return [block.attention_config for block in self.config.block_configs]
