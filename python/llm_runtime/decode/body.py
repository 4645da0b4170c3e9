# SPDX-License-Identifier: Apache-2.0
"""The device work of one decode step: embedding, model body, sampling and position feedback.

Follows chapter 20, sections 5.3 and 5.9.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from llm_runtime.decode.config import DecodeRuntimeConfig
from llm_runtime.decode.remap import without_remap
from llm_runtime.decode.values import DecodeDeviceInputs, PreparedDecode
from llm_runtime.device import namespace_of, tensor_namespace

__all__ = ["DecodeBody", "checked_module_inputs"]

logger = logging.getLogger(__name__)

KPT = tuple[Any, Any, Any]


class DecodeBody:
    """Runs the model on staged inputs; all collaborators are borrowed from ``config``."""

    def __init__(self, config: DecodeRuntimeConfig) -> None:
        self._model = config.model
        self._controller = config.sampling_state_controller
        self._state = config.sampling_state
        self._namespace = namespace_of(config.mesh_device)

    def run(
        self,
        prepared: PreparedDecode,
        inputs: DecodeDeviceInputs,
        kpt: KPT | None,
        *,
        device_feedback: bool,
        count_tokens: bool,
    ) -> tuple[Any, Any]:
        """Return ``(logits, None)`` or ``(token ids, log_probs or None)`` as device tensors owned by the caller.

        With ``device_feedback`` the sampled ids replace the token input before positions advance, so that
        the next replay consumes them one position later.
        """
        model = self._model
        rotation = model.rope_setup.decode_forward(inputs.rotary_indices)
        hidden = model.embed_decode(inputs.tokens)
        logits = model.decode_forward(hidden, inputs.positions, rotation, page_table=inputs.page_table)
        if prepared.sampling_params is None:
            return (model.gather_and_untilize_logits(logits), None)
        output: tuple[Any, Any] = self._sample(prepared, logits, inputs, kpt, count_tokens=count_tokens)
        if device_feedback:
            ids = self._namespace.reshape(output[0], inputs.tokens.shape)
            self._namespace.copy(input_a=ids, input_b=inputs.tokens)
            model.increment_positions(inputs.positions, inputs.rotary_indices)
        return output

    def _sample(
        self,
        prepared: PreparedDecode,
        logits: Any,
        inputs: DecodeDeviceInputs,
        kpt: KPT | None,
        *,
        count_tokens: bool,
    ) -> Any:
        sampling = prepared.prepared_sampling
        if sampling is None:
            raise RuntimeError("a device-sampled decode step has no prepared sampling parameters")
        k, p, temp = kpt if kpt is not None else (None, None, None)
        if self._controller is not None:
            return self._controller.decode_forward(
                logits,
                self._state,
                without_remap(sampling),
                k=k,
                p=p,
                temp=temp,
                positions=None if prepared.reload_inputs is False else inputs.positions,
                tt_out_tok=None,
                count_tokens=count_tokens,
                advance_seeds=False,
            )
        sampler = self._model.sampling
        if kpt is None:
            return sampler.decode_forward(logits, tt_out_tok=None, enable_log_probs=sampling.log_probs_enabled)
        return sampler.decode_forward(
            logits, k=k, p=p, temp=temp, tt_out_tok=None, enable_log_probs=sampling.log_probs_enabled
        )


@contextmanager
def checked_module_inputs(model: Any) -> Iterator[None]:
    """Compare the first argument of every module's ``decode_forward`` with its declared memory config.

    For the duration, each module from ``model.iter_executor_named_modules()`` that declares a
    ``decode_input_memcfg`` is wrapped; a mismatch of an allocated tensor is logged as a warning and never
    fails the step. The originals come back on every way out, a failed set-up included. AttributeError for a
    module that declares the config without a ``decode_forward``.
    """
    mismatches: list[tuple[str, Any, Any]] = []
    wrapped: list[tuple[Any, bool, Any]] = []
    try:
        for name, module in model.iter_executor_named_modules() or ():
            expected = getattr(getattr(module, "config", None), "decode_input_memcfg", None)
            if expected is None:
                continue
            original = module.decode_forward
            own = "decode_forward" in getattr(module, "__dict__", {})
            module.decode_forward = _checking(name, original, expected, mismatches)
            wrapped.append((module, own, original))
        yield
    finally:
        for module, own, original in reversed(wrapped):
            if own:
                module.decode_forward = original
            else:
                del module.decode_forward
        for name, expected, actual in mismatches:
            logger.warning("decode input of %s has memory config %s, declared is %s", name, actual, expected)


def _checking(name: str, original: Any, expected: Any, mismatches: list[tuple[str, Any, Any]]) -> Any:
    def decode_forward(*args: Any, **kwargs: Any) -> Any:
        value: Any = args[0] if args else next(iter(kwargs.values()), None)
        if tensor_namespace(value) is not None and value.is_allocated():
            actual = value.spec.memory_config
            if actual != expected:
                mismatches.append((name, expected, actual))
        return original(*args, **kwargs)

    return decode_forward
