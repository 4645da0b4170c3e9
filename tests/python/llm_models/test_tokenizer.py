# SPDX-License-Identifier: Apache-2.0
"""Tokenizer: golden ids, round trips, control tokens, streaming, chat templates."""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from llm_models.checkpoints import BpeVocabulary, CheckpointError
from llm_models.tokenizer import Tokenizer
from support.llama import byte_tokens, golden, smollm2, tiny_checkpoint


@functools.cache
def smollm2_tokenizer() -> Tokenizer:
    return Tokenizer(smollm2())


@functools.cache
def byte_tokenizer() -> Tokenizer:
    return Tokenizer(tiny_checkpoint())


@functools.cache
def missing_bytes() -> set[int]:
    vocabulary = smollm2().tokenizer
    assert isinstance(vocabulary, BpeVocabulary)
    return {byte for byte, token in enumerate(byte_tokens()) if token not in vocabulary.tokens}


def with_template(template: str | None, **changes: Any) -> Tokenizer:
    return Tokenizer(dataclasses.replace(tiny_checkpoint(), chat_template=template, **changes))


@pytest.mark.parametrize("case", golden(), ids=lambda case: case["prompt"])
def test_chat_ids_equal_the_golden_ids(case: dict[str, Any]) -> None:
    tokenizer = smollm2_tokenizer()
    assert tokenizer.chat_ids([{"role": "user", "content": case["prompt"]}]) == case["prompt_ids"]
    assert tokenizer.decode(case["new_ids"]) == case["text"]
    decoder = tokenizer.stream_decoder()
    pieces = [decoder.push(token) for token in case["new_ids"]]
    assert "".join([*pieces, decoder.finish()]) == case["text"]


def test_smollm_splits_every_numeric_character_before_the_pattern() -> None:
    tokenizer = smollm2_tokenizer()
    digits = [tokenizer.encode(digit) for digit in "123"]
    assert tokenizer.encode("123") == [token for ids in digits for token in ids]
    # GPT-2's pattern alone would keep the blank with the numeral.
    assert tokenizer.encode(" \u00bd") == tokenizer.encode(" ") + tokenizer.encode("\u00bd")
    assert tokenizer.encode(" the") != tokenizer.encode(" ") + tokenizer.encode("the")


def test_control_tokens_are_text_unless_asked_for() -> None:
    tokenizer = smollm2_tokenizer()
    assert tokenizer.encode("<|im_end|>", parse_special=True) == [2]
    plain = tokenizer.encode("<|im_end|>")
    assert 2 not in plain
    assert tokenizer.decode(plain) == "<|im_end|>"
    assert tokenizer.decode([2]) == ""
    assert tokenizer.decode([2], skip_special=False) == "<|im_end|>"
    assert tokenizer.stop_tokens == tokenizer.eos_ids == (2,)
    assert tokenizer.vocab_size == 49152


@given(st.text(max_size=60))
@settings(max_examples=150, deadline=None)
def test_text_survives_the_round_trip(text: str) -> None:
    tokenizer = smollm2_tokenizer()
    text = "".join(character for character in text if not missing_bytes() & set(character.encode()))
    assert tokenizer.decode(tokenizer.encode(text), skip_special=False) == text


def test_bytes_that_the_vocabulary_lacks_are_dropped() -> None:
    # Planes 4 to 11 and a few control bytes never occurred when this vocabulary was made.
    assert missing_bytes() >= {0x04, 0xF1, 0xF2}
    assert smollm2_tokenizer().encode("a\x04") == smollm2_tokenizer().encode("a")


@given(st.lists(st.integers(17, 49151), max_size=30))
@settings(max_examples=150, deadline=None)
def test_streamed_pieces_join_to_the_whole_and_hold_whole_characters(ids: list[int]) -> None:
    tokenizer = smollm2_tokenizer()
    decoder = tokenizer.stream_decoder()
    pieces = [decoder.push(token) for token in ids]
    assert not any(piece.endswith("\ufffd") for piece in pieces)
    assert "".join([*pieces, decoder.finish()]) == tokenizer.decode(ids)


@given(st.text(max_size=30))
@settings(max_examples=100, deadline=None)
def test_a_character_appears_with_its_last_byte(text: str) -> None:
    tokenizer = byte_tokenizer()
    decoder = tokenizer.stream_decoder()
    pieces = []
    for character in text:
        *early, last = tokenizer.encode(character)
        assert all(decoder.push(token) == "" for token in early)
        pieces.append(decoder.push(last))
    # U+FFFD itself is held back until something follows, because it looks like an unfinished character.
    assert "".join([*pieces, decoder.finish()]) == text
    if "\ufffd" not in text:
        assert pieces == list(text)


def test_an_unfinished_character_comes_out_at_the_end() -> None:
    tokenizer = byte_tokenizer()
    first, *_ = tokenizer.encode("\u20ac")
    decoder = tokenizer.stream_decoder()
    assert (decoder.push(first), decoder.finish()) == ("", "\ufffd")


def test_ids_outside_the_vocabulary_are_named_and_leave_the_stream_usable() -> None:
    decoder = byte_tokenizer().stream_decoder()
    with pytest.raises(ValueError, match="token id 256 is outside the vocabulary of 256"):
        decoder.push(256)
    assert decoder.push(ord("a")) == "a"
    with pytest.raises(ValueError, match="token id -1"):
        byte_tokenizer().decode([-1])


def test_a_tokenizer_file_is_used(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    byte_tokenizer()._specials.save(str(path))
    tokenizer = Tokenizer(dataclasses.replace(tiny_checkpoint(), tokenizer=path))
    assert tokenizer.encode("h\u00e9") == byte_tokenizer().encode("h\u00e9")
    path.write_text("{}")
    with pytest.raises(CheckpointError, match=r"tokenizer\.json: not a readable tokenizer file"):
        Tokenizer(dataclasses.replace(tiny_checkpoint(), tokenizer=path))
    path.unlink()
    with pytest.raises(CheckpointError, match=r"tokenizer\.json: no such file"):
        Tokenizer(dataclasses.replace(tiny_checkpoint(), tokenizer=path))


def test_chat_templates_see_messages_flag_and_special_tokens() -> None:
    vocabulary = BpeVocabulary(
        tokens=(*tiny_vocabulary().tokens, "<s>"), merges=(), control_ids=(256,), pre_tokenizer="gpt-2"
    )
    template = (
        "{{ bos_token }}{% for m in messages %}{{ m.role }}:{{ m.content }};{% endfor %}{{ add_generation_prompt }}"
    )
    tokenizer = with_template(template, tokenizer=vocabulary, bos_id=256)
    messages = [{"role": "user", "content": "hi"}]
    assert tokenizer.chat_text(messages) == "<s>user:hi;True"
    ids = tokenizer.chat_ids(messages, add_generation_prompt=False)
    assert ids == [256, *b"user:hi;False"]


@pytest.mark.parametrize(
    ("template", "messages", "words"),
    [
        (None, [{"role": "user", "content": "x"}], "no chat template"),
        ("{{ raise_exception('no system role') }}", [{"role": "system", "content": "x"}], "no system role"),
        ("{{ messages[0].content.missing.deeper }}", [{"role": "user", "content": "x"}], "refused"),
        ("x", [{"role": "user"}], "message 0 has no content"),
        ("{{ ''.__class__.__mro__ }}", [{"role": "user", "content": "x"}], "refused"),
    ],
)
def test_unusable_chats_are_value_errors(template: str | None, messages: list[dict[str, str]], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        with_template(template).chat_text(messages)


def test_a_broken_template_is_a_checkpoint_error() -> None:
    with pytest.raises(CheckpointError, match="unusable chat template"):
        with_template("{% for %}")


def tiny_vocabulary() -> BpeVocabulary:
    vocabulary = tiny_checkpoint().tokenizer
    assert isinstance(vocabulary, BpeVocabulary)
    return vocabulary
