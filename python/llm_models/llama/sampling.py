# SPDX-License-Identifier: Apache-2.0
"""Token sampling on the device: largest logit, or top-k with top-p, temperature and seeds.

Follows chapter 40, sections B.7 and F.2 (items 6 and 7).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from llm_models.llama.log_probs import sampled_log_probs
from llm_models.llama.model_config import require_positive_int
from llm_models.llama.weights import upload
from llm_runtime.device import namespace_of
from llm_runtime.seed_buffer import DeviceSeedBuffer
from llm_runtime.tensor_resources import best_effort_deallocate_owned_tensors, raise_cleanup_failures

SAMPLER_ROWS = 32
MAX_TOP_K = 32


@dataclass(frozen=True, kw_only=True)
class Sampling1DConfig:
    """Sizes and policy of the sampler. `seeds` is made for the mesh unless given; the mesh is borrowed.

    With `supports_log_probs` warmup also covers the programs that return log-probabilities of sampled tokens.
    """

    mesh_device: Any
    vocab_size: int
    valid_vocab_size: int = 0
    max_batch_size: int = SAMPLER_ROWS
    max_top_k: int = MAX_TOP_K
    allow_force_argmax: bool = True
    supports_log_probs: bool = False
    seeds: DeviceSeedBuffer = field(default=None)  # type: ignore[assignment]

    def __post_init__(self) -> None:
        require_positive_int("vocab_size", self.vocab_size)
        if self.vocab_size < self.max_top_k:
            raise ValueError(f"vocab_size {self.vocab_size} is below max_top_k {self.max_top_k}")
        if not self.valid_vocab_size:
            object.__setattr__(self, "valid_vocab_size", self.vocab_size)
        if self.seeds is None:
            object.__setattr__(self, "seeds", DeviceSeedBuffer(self.mesh_device, self.max_batch_size))

    def is_resolved(self) -> bool:
        """Always true: construction resolves every field."""
        return True


class Sampling1D:
    """Samples one token per row on one device; owns the constant buffers that this takes."""

    def __init__(self, config: Sampling1DConfig) -> None:
        self.config = config
        self._ns = namespace_of(config.mesh_device)
        self._user_ids: Any = None
        self._offsets: Any = None
        self._owned: list[Any] = []
        self._deallocated: set[int] = set()
        self._halves = config.vocab_size % (2 * SAMPLER_ROWS) == 0 and config.vocab_size // 2 >= MAX_TOP_K

    def load_device_buffers(self) -> None:
        """Upload seeds, user ids and index offsets; does nothing when they are there. Repeatable after a failure."""
        self.config.seeds.load()
        if self._offsets is not None:
            return
        if self._owned:
            self._release_owned()
        ns, mesh, rows = self._ns, self.config.mesh_device, self.config.max_batch_size
        users = np.arange(rows, dtype=np.uint32)
        user_ids = ns.to_device(ns.Tensor(users, ns.uint32), device=mesh)
        self._owned.append(user_ids)
        parts = 2 if self._halves else 1
        first = np.repeat(np.arange(parts) * (self.config.vocab_size // parts), self.config.max_top_k)
        offsets = np.broadcast_to(first.astype(np.int32), (1, 1, rows, len(first))).copy()
        on_device = upload(ns, mesh, offsets, layout=ns.TILE_LAYOUT, dtype=ns.int32)
        self._owned.append(on_device)
        self._user_ids, self._offsets = user_ids, on_device

    def release(self) -> None:
        """Free the buffers; they can be loaded again. Idempotent, and retryable after a failure."""
        failures: list[BaseException] = []
        for release in (self._release_owned, self.config.seeds.release):
            try:
                release()
            except BaseException as failure:
                failures.append(failure)
        if failures:
            raise_cleanup_failures(failures)

    def decode_forward(
        self,
        logits: Any,
        *,
        k: Any = None,
        p: Any = None,
        temp: Any = None,
        seeds: Any = None,
        tt_out_tok: Any = None,
        enable_log_probs: bool = False,
    ) -> tuple[Any, Any]:
        """Sample every row of `logits` [1, 1, rows, vocabulary] (borrowed); rows are at most `max_batch_size`.

        Without `k`, `p` and `temp` the largest logit wins. With them (device uint32, bfloat16, bfloat16, one entry
        per sampler row, `temp` inverse) each row draws among its `k` largest logits with its own seed, from `seeds`
        (uint32, one per sampler row) or the config's buffer. Returns uint32 ids [1, 1, 1, max_batch_size], written
        into `tt_out_tok` if given, and None or, with `enable_log_probs`, what `sampled_log_probs` gives. `ValueError`,
        before any device work, for an incomplete set, argmax where it is not allowed, logits that do not fit, and
        log-probabilities that the config does not support or that come without the set.
        """
        rows, width = logits.shape[2], logits.shape[3]
        given = [value is not None for value in (k, p, temp)]
        if any(given) != all(given):
            raise ValueError("k, p and temp go together: all for top-k, none for argmax")
        if not any(given) and not self.config.allow_force_argmax:
            raise ValueError("argmax is not allowed by this sampler (allow_force_argmax); give k, p and temp")
        if enable_log_probs and not (self.config.supports_log_probs and any(given)):
            raise ValueError("log-probabilities need supports_log_probs and top-k; sample on the host for them")
        if rows > self.config.max_batch_size or width != self.config.vocab_size:
            raise ValueError(
                f"logits have {rows} rows of {width}; the sampler takes at most {self.config.max_batch_size} rows "
                f"of {self.config.vocab_size}"
            )
        if not any(given):
            return self._argmax(logits, tt_out_tok), None
        self.load_device_buffers()
        seed_buffer = self.config.seeds.get_device_buffer() if seeds is None else seeds
        tokens = self._top_k(logits, k, p, temp, seed_buffer, tt_out_tok)
        return tokens, sampled_log_probs(self._ns, logits, tokens) if enable_log_probs else None

    def _argmax(self, logits: Any, output: Any) -> Any:
        ns, rows = self._ns, self.config.max_batch_size
        plain = ns.untilize(logits, use_multicore=True)
        ids = ns.argmax(plain, dim=-1, keepdim=False)
        ns.deallocate(plain)
        missing = rows - ids.shape[-1]
        if missing:
            padded = ns.pad(ids, [(0, 0), (0, 0), (0, missing)], value=0)
            ns.deallocate(ids)
            ids = padded
        ids = ns.reshape(ids, (1, 1, 1, rows))
        if output is None:
            return ids
        ns.copy(input_a=ids, input_b=output)
        ns.deallocate(ids)
        return output

    def _top_k(self, logits: Any, k: Any, p: Any, temp: Any, seeds: Any, output: Any) -> Any:
        ns = self._ns
        values, ids = self._candidates(logits)
        values = self._all_rows(values, 0.0)
        wide = self._all_rows(ids, 0)
        token_ids = ns.add(wide, self._offsets)
        ns.deallocate(wide)
        plain = ns.untilize(token_ids, use_multicore=True)
        ns.deallocate(token_ids)
        ns.manual_seed(seeds=seeds, user_ids=self._user_ids)
        options = {} if output is None else {"output_tensor": output}
        sampled = ns.sampling(values, plain, k=k, p=p, temp=temp, **options)
        ns.deallocate(values)
        ns.deallocate(plain)
        return sampled if output is None else output

    def _candidates(self, logits: Any) -> tuple[Any, Any]:
        """The largest logits of each half of the vocabulary, and their indices inside it as int32."""
        ns, top = self._ns, self.config.max_top_k
        halves = ns.split(logits, self.config.vocab_size // 2, dim=3) if self._halves else [logits]
        values, ids = [], []
        for half in halves:
            best, places = ns.topk(half, k=top, dim=-1)
            values.append(best)
            ids.append(places)
            if half is not logits:
                ns.deallocate(half)
        joined = self._joined(values)
        places = self._joined(ids)
        cast = ns.typecast(places, ns.int32)
        ns.deallocate(places)
        return joined, cast

    def _joined(self, parts: list[Any]) -> Any:
        if len(parts) == 1:
            return parts[0]
        joined = self._ns.concat(parts, dim=-1)
        for part in parts:
            self._ns.deallocate(part)
        return joined

    def _all_rows(self, x: Any, value: float) -> Any:
        missing = self.config.max_batch_size - x.shape[2]
        if not missing:
            return x
        padded = self._ns.pad(x, [(0, 0), (0, 0), (0, missing), (0, 0)], value=value)
        self._ns.deallocate(x)
        return padded

    def _release_owned(self) -> None:
        self._user_ids = self._offsets = None
        failures = best_effort_deallocate_owned_tensors(self._owned, self._deallocated)
        if failures:
            raise_cleanup_failures(failures)
        self._owned.clear()
        self._deallocated.clear()
