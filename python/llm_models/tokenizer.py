# SPDX-License-Identifier: Apache-2.0
"""Text to token ids and back: byte-level BPE through `tokenizers`, streaming, and chat templates."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn

import tokenizers
from jinja2 import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from llm_models.checkpoints.checkpoint import BpeVocabulary, CheckpointError, LlamaCheckpoint

REPLACEMENT_CHARACTER = "\ufffd"


class Tokenizer:
    """A checkpoint's tokenizer and chat template.

    `eos_ids` end an answer; `bos_id` and `pad_id` may be `None`. Safe to share between threads.
    """

    def __init__(self, checkpoint: LlamaCheckpoint) -> None:
        """Build from `checkpoint`; `CheckpointError` when its tokenizer or chat template cannot be used."""
        self._source = checkpoint.tokenizer
        self._template = None if checkpoint.chat_template is None else _compile(checkpoint)
        self._path = checkpoint.path
        self._specials = _build(self._source)
        self.bos_id = checkpoint.bos_id
        self.eos_ids = checkpoint.eos_ids
        self.pad_id = checkpoint.pad_id

    @property
    def stop_tokens(self) -> tuple[int, ...]:
        """The ids that end an answer, under the name that product objects read."""
        return self.eos_ids

    @property
    def vocab_size(self) -> int:
        """Number of ids, control tokens included."""
        return int(self._specials.get_vocab_size(with_added_tokens=True))

    def encode(self, text: str, *, parse_special: bool = False) -> list[int]:
        """Token ids of `text`, nothing added; bytes that the vocabulary has no token for are dropped.

        With `parse_special` the written form of a control token (`<|im_end|>`) becomes that token; without it,
        which is right for text of unknown origin, it is ordinary text.
        """
        tokenizer = self._specials if parse_special else self._plain
        return list(tokenizer.encode(text, add_special_tokens=False).ids)

    def decode(self, ids: Iterable[int], *, skip_special: bool = True) -> str:
        """Text of `ids`; bytes that are no UTF-8 become U+FFFD. `ValueError` names an id outside the vocabulary."""
        ids = list(ids)
        for token in ids:
            if not 0 <= token < self.vocab_size:
                raise ValueError(f"token id {token} is outside the vocabulary of {self.vocab_size}")
        return str(self._specials.decode(ids, skip_special_tokens=skip_special))

    def stream_decoder(self, *, skip_special: bool = True) -> StreamDecoder:
        """A decoder that takes one id at a time."""
        return StreamDecoder(self, skip_special=skip_special)

    def chat_text(self, messages: Sequence[Mapping[str, str]], *, add_generation_prompt: bool = True) -> str:
        """Render the chat template over `messages` (each with `role` and `content`).

        `ValueError` when the checkpoint has no template, a message lacks a key, or the template refuses.
        """
        if self._template is None:
            raise ValueError(f"{self._path}: the checkpoint has no chat template")
        for index, message in enumerate(messages):
            if missing := {"role", "content"} - set(message):
                raise ValueError(f"message {index} has no {' and no '.join(sorted(missing))}")
        try:
            text: str = self._template.render(
                messages=[dict(message) for message in messages],
                add_generation_prompt=add_generation_prompt,
                bos_token=self._token_text(self.bos_id),
                eos_token=self._token_text(self.eos_ids[0] if self.eos_ids else None),
            )
        except TemplateError as error:
            raise ValueError(f"{self._path}: the chat template refused the messages: {error}") from error
        return text

    def chat_ids(self, messages: Sequence[Mapping[str, str]], *, add_generation_prompt: bool = True) -> list[int]:
        """Token ids of `chat_text`, control tokens parsed."""
        text = self.chat_text(messages, add_generation_prompt=add_generation_prompt)
        return self.encode(text, parse_special=True)

    def _token_text(self, token: int | None) -> str:
        text = None if token is None else self._specials.id_to_token(token)
        return "" if text is None else str(text)

    @cached_property
    def _plain(self) -> Any:
        # Whether control tokens are parsed is a state of the library's object, so each kind has its own.
        tokenizer = _build(self._source)
        tokenizer.encode_special_tokens = True
        return tokenizer


class StreamDecoder:
    """Text of a growing sequence of ids: the pieces join to the text of the whole, and no piece ends inside a
    character."""

    def __init__(self, tokenizer: Tokenizer, *, skip_special: bool) -> None:
        self._tokenizer = tokenizer
        self._skip_special = skip_special
        self._context: list[int] = []
        self._pending: list[int] = []

    def push(self, token: int) -> str:
        """Take the next id and return the text that is now certain; `ValueError` for an id out of range."""
        self._pending.append(token)
        try:
            text = self._text()
        except ValueError:
            self._pending.pop()
            raise
        # A trailing U+FFFD may be the first bytes of a character whose rest is still to come.
        return "" if text.endswith(REPLACEMENT_CHARACTER) else self._emit(text)

    def finish(self) -> str:
        """Return what is still held back; an unfinished character comes out as U+FFFD."""
        return self._emit(self._text())

    def _text(self) -> str:
        before = self._decode(self._context)
        return self._decode(self._context + self._pending)[len(before) :]

    def _decode(self, ids: list[int]) -> str:
        return self._tokenizer.decode(ids, skip_special=self._skip_special) if ids else ""

    def _emit(self, text: str) -> str:
        # Decoders that strip a leading blank need the tokens before, so that blanks inside the text survive.
        if text:
            self._context = self._pending
            self._pending = []
        return text


def _build(source: BpeVocabulary | Path) -> Any:
    if isinstance(source, Path):
        if not source.is_file():
            raise CheckpointError(f"{source}: no such file")
        try:
            return tokenizers.Tokenizer.from_file(str(source))
        except Exception as error:  # the library raises nothing narrower
            raise CheckpointError(f"{source}: not a readable tokenizer file ({error})") from error
    return _build_bpe(source)


def _build_bpe(source: BpeVocabulary) -> Any:
    vocabulary = {token: index for index, token in enumerate(source.tokens)}
    merges = [(left, right) for left, _, right in (merge.partition(" ") for merge in source.merges)]
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocabulary, merges=merges))
    byte_level: Any = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    if source.pre_tokenizer == "smollm":
        # Every numeric character stands alone before GPT-2's pattern is applied.
        digits = tokenizers.pre_tokenizers.Digits(individual_digits=True)
        byte_level = tokenizers.pre_tokenizers.Sequence([digits, byte_level])
    tokenizer.pre_tokenizer = byte_level
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [tokenizers.AddedToken(source.tokens[index], special=True, normalized=False) for index in source.control_ids]
    )
    return tokenizer


def _compile(checkpoint: LlamaCheckpoint) -> Any:
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.globals["raise_exception"] = _raise_exception
    try:
        return environment.from_string(checkpoint.chat_template or "")
    except TemplateError as error:
        raise CheckpointError(f"{checkpoint.path}: unusable chat template ({error})") from error


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(message)
