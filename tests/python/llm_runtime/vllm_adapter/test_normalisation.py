# SPDX-License-Identifier: Apache-2.0
"""From a server's arguments to the executors'."""

from __future__ import annotations

import inspect
import itertools
from typing import Any

import numpy as np
import pytest

from llm_runtime.config import TraceConfig
from llm_runtime.vllm_adapter import REQUEST_STATE_FIELDS, VLLMAdapter

PREFILL_KEYS = ["tokens", "page_table", "prompt_lens", "start_pos", "empty_slots", "kv_cache", "sampling_params"]
DECODE_KEYS = ["tokens", "start_pos", "page_table", "kv_cache", "sampling_params"]
COMMANDS = ["reload_inputs", "reload_page_table", "reload_sampling_params", "reset_sampling_state"]
TOKENS, TABLE = [[1, 2, 3, 4], [5, 6, 7, 0]], [[0, 1], [2, 3]]
STATE = {"prompt_tokens": object(), "output_tokens": object(), "slot_remap": [1, 0]}


@pytest.mark.covers("VLA-09")
def test_call_shapes() -> None:
    for name in ("normalize_prefill", "normalize_decode"):
        parameters = inspect.signature(getattr(VLLMAdapter, name)).parameters
        assert parameters["enable_trace"].kind is inspect.Parameter.KEYWORD_ONLY
        assert parameters["enable_trace"].default is inspect.Parameter.empty
        assert parameters["compatibility_kwargs"].default is None
        assert not any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values())
    assert inspect.signature(VLLMAdapter.normalize_decode).parameters["reset_batch"].default is False


@pytest.mark.covers("VLA-10", "VLA-31")
def test_key_order_with_and_without_request_state(make_adapter: Any) -> None:
    adapter = make_adapter(request_state_fields=REQUEST_STATE_FIELDS)
    shuffled = dict(reversed(STATE.items()))
    absent: tuple[Any, ...] = (None, {}, dict.fromkeys(REQUEST_STATE_FIELDS))
    for state, extra in [(shuffled, list(REQUEST_STATE_FIELDS)), *((value, []) for value in absent)]:
        prefill, _ = adapter.normalize_prefill(TOKENS, TABLE, enable_trace=True, compatibility_kwargs=state)
        assert list(prefill) == PREFILL_KEYS + extra
        decode, _ = adapter.normalize_decode([1, 2], [0, 1], TABLE, enable_trace=True, compatibility_kwargs=state)
        assert list(decode) == [*DECODE_KEYS, "reset_batch", *extra]
        explicit, _ = adapter.normalize_decode(
            [1, 2], [0, 1], TABLE, enable_trace=True, reload_inputs=True, compatibility_kwargs=state
        )
        assert list(explicit) == [*DECODE_KEYS, *COMMANDS, *extra]


@pytest.mark.covers("VLA-11")
def test_prefill_from_nested_lists(make_adapter: Any) -> None:
    adapter = make_adapter(request_state_fields=REQUEST_STATE_FIELDS)
    sampling = object()
    compatibility = {**STATE, "page_tables_per_layer": [1], "rope_deltas_all_users": 2}
    fields, traced = adapter.normalize_prefill(
        TOKENS,
        TABLE,
        enable_trace=True,
        prompt_lens=[4, 3],
        start_pos=[0, 1],
        sampling_params=sampling,
        compatibility_kwargs=compatibility,
    )
    assert traced is True
    for name, values in (("tokens", TOKENS), ("prompt_lens", [4, 3]), ("start_pos", [0, 1])):
        assert fields[name].dtype == np.int64 and fields[name].tolist() == values
    assert fields["page_table"].dtype == np.int32 and fields["page_table"].tolist() == TABLE
    assert fields["empty_slots"] is None and fields["kv_cache"] is None and fields["sampling_params"] is sampling
    assert all(fields[name] is STATE[name] for name in REQUEST_STATE_FIELDS)
    assert len(compatibility) == 5 and "page_tables_per_layer" not in fields


@pytest.mark.covers("VLA-12")
def test_decode_flattens_a_column_of_tokens(make_adapter: Any) -> None:
    adapter = make_adapter(request_state_fields=("slot_remap",))
    fields, _ = adapter.normalize_decode(
        np.array([[1], [2]], np.int32),
        np.array([5, 6], np.int32),
        np.array(TABLE, np.int64),
        enable_trace=False,
        compatibility_kwargs={"slot_remap": [0, 1], "prompt_tokens": None},
    )
    assert fields["tokens"].shape == (2,) and fields["tokens"].dtype == np.int64
    assert fields["start_pos"].dtype == np.int64 and fields["page_table"].dtype == np.int32
    assert fields["reset_batch"] is False and fields["slot_remap"] == [0, 1]
    assert "prompt_tokens" not in fields and "output_tokens" not in fields


@pytest.mark.parametrize(("tokens", "shape"), [([[7]], (1,)), ([7], (1,)), ([[1, 2], [3, 4]], (2, 2))])
def test_only_a_last_dimension_of_one_is_flattened(make_adapter: Any, tokens: Any, shape: tuple[int, ...]) -> None:
    fields, _ = make_adapter().normalize_decode(tokens, [0], [[0]], enable_trace=False)
    assert fields["tokens"].shape == shape


def test_arrays_of_the_wanted_width_are_not_copied(make_adapter: Any) -> None:
    tokens, table = np.zeros((1, 4), np.int64), np.zeros((1, 2), np.int32)
    fields, _ = make_adapter().normalize_prefill(tokens, table, enable_trace=False)
    assert fields["tokens"] is tokens and fields["page_table"] is table


@pytest.mark.torch
def test_torch_stays_torch() -> None:
    torch = pytest.importorskip("torch")
    from llm_runtime.vllm_adapter.arrays import integers

    tokens = torch.tensor([[1, 2]], dtype=torch.int32)
    wide = integers(tokens, np.int64, name="tokens")
    assert isinstance(wide, torch.Tensor) and wide.dtype is torch.int64 and wide.tolist() == [[1, 2]]
    assert integers(wide, np.int64, name="tokens") is wide
    with pytest.raises(TypeError, match=r"tokens must hold integers, got torch.float32"):
        integers(torch.zeros(1), np.int64, name="tokens")
    with pytest.raises(ValueError, match="page_table holds 4294967296, outside int32"):
        integers(torch.tensor([1 << 32]), np.int32, name="page_table")


@pytest.mark.parametrize(
    ("tokens", "error", "match"),
    [
        ([[1.5]], TypeError, "tokens must hold integers, got float64"),
        (np.array([[True]]), TypeError, "tokens must hold integers, got bool"),
        ([[1, 2], [3]], ValueError, "tokens has rows of different lengths"),
        ({1: 2}, TypeError, "tokens must be a host array"),
    ],
)
def test_values_that_are_no_integers(make_adapter: Any, tokens: Any, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        make_adapter().normalize_prefill(tokens, [[0]], enable_trace=False)


def test_a_block_id_beyond_int32_is_refused_not_wrapped(make_adapter: Any) -> None:
    with pytest.raises(ValueError, match="page_table holds 4294967301, outside int32"):
        make_adapter().normalize_prefill([[1]], [[(1 << 32) + 5]], enable_trace=False)


@pytest.mark.covers("VLA-13", "VLA-14", "VLA-15")
def test_the_static_policy_is_a_ceiling_per_operation(make_adapter: Any) -> None:
    allowed = {"none": (False, False), "decode_only": (False, True), "all": (True, True)}
    for mode, wish in itertools.product(allowed, (False, True)):
        adapter = make_adapter(trace=TraceConfig(mode))
        for operation, may in zip(("prefill", "decode"), allowed[mode], strict=True):
            call = {
                "prefill": lambda a=adapter, w=wish: a.normalize_prefill(TOKENS, TABLE, enable_trace=w),
                "decode": lambda a=adapter, w=wish: a.normalize_decode([1], [0], [[0]], enable_trace=w),
            }[operation]
            if wish and not may:
                with pytest.raises(ValueError, match=f"enable_trace is true for {operation}.*'{mode}'"):
                    call()
            else:
                assert call()[1] is wish


@pytest.mark.covers("VLA-16")
@pytest.mark.parametrize("choice", [{}, {"enable_trace": "true"}, {"enable_trace": 1}])
def test_the_trace_choice_is_a_bool_and_must_be_made(make_adapter: Any, choice: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match="enable_trace"):
        make_adapter().normalize_prefill(TOKENS, TABLE, **choice)
    with pytest.raises(TypeError, match="enable_trace"):
        make_adapter().normalize_decode([1], [0], [[0]], **choice)


@pytest.mark.covers("VLA-17")
def test_tokens_given_twice(make_adapter: Any) -> None:
    with pytest.raises(TypeError, match="tokens"):
        make_adapter().normalize_prefill(TOKENS, TABLE, tokens=TOKENS, enable_trace=False)


@pytest.mark.covers("VLA-18")
def test_unknown_keywords_are_named_before_anything_else_is_checked(make_adapter: Any) -> None:
    adapter = make_adapter(trace=TraceConfig("none"))
    unknown = {"unknown_plugin_field": 1, "zeta": 2, "page_tables_per_layer": 3}
    match = r"got an unexpected keyword argument 'unknown_plugin_field'"
    with pytest.raises(TypeError, match=r"prefill_forward\(\) " + match):
        adapter.normalize_prefill("bad", TABLE, enable_trace=True, compatibility_kwargs=unknown)
    with pytest.raises(TypeError, match=r"decode_forward\(\) " + match):
        adapter.normalize_decode("bad", [0], TABLE, enable_trace=True, compatibility_kwargs=unknown)
    with pytest.raises(TypeError, match="compatibility_kwargs must be a mapping, got list"):
        adapter.normalize_prefill("bad", TABLE, enable_trace=True, compatibility_kwargs=[1])


@pytest.mark.covers("VLA-24")
def test_unconfigured_request_state_is_dropped_but_a_remap_is_part_of_the_reload_contract(make_adapter: Any) -> None:
    adapter = make_adapter()
    prefill, _ = adapter.normalize_prefill(TOKENS, TABLE, enable_trace=False, compatibility_kwargs=STATE)
    decode, _ = adapter.normalize_decode([1], [0], [[0]], enable_trace=False, compatibility_kwargs=STATE)
    for fields in (prefill, decode):
        assert not set(REQUEST_STATE_FIELDS) & set(fields)
    explicit, _ = adapter.normalize_decode(
        [1], [0], [[0]], enable_trace=False, reload_inputs=True, compatibility_kwargs=STATE
    )
    assert explicit["slot_remap"] is STATE["slot_remap"] and "prompt_tokens" not in explicit


@pytest.mark.parametrize(
    ("commands", "traced", "match"),
    [
        ({"reload_inputs": True, "reload_page_table": True}, True, "reload_page_table must not be given with it"),
        ({"reload_inputs": False, "reset_sampling_state": True}, True, "reset_sampling_state needs reload_inputs"),
        ({"reload_inputs": False}, False, "only in a traced step"),
        ({"reload_page_table": True}, True, "reload_page_table needs reload_inputs to be given"),
        ({"reload_inputs": True, "reset_batch": True}, True, "reset_batch is no command"),
    ],
)
def test_command_combinations_that_mean_nothing(
    make_adapter: Any, commands: dict[str, Any], traced: bool, match: str
) -> None:
    with pytest.raises(ValueError, match=match):
        make_adapter().normalize_decode([1], [0], [[0]], enable_trace=traced, sampling_params=object(), **commands)


def test_resident_inputs_need_device_sampling_and_bools(make_adapter: Any) -> None:
    with pytest.raises(ValueError, match="only in a traced step"):
        make_adapter().normalize_decode([1], [0], [[0]], enable_trace=True, reload_inputs=False)
    for name in [*COMMANDS, "reset_batch"]:
        values = {"reload_inputs": True, name: 1}
        with pytest.raises(TypeError, match=f"{name} must be a bool, got 1"):
            make_adapter().normalize_decode([1], [0], [[0]], enable_trace=True, **values)


def test_commands_reach_the_executor_unchanged(make_adapter: Any) -> None:
    chosen = dict.fromkeys(COMMANDS, False) | {"reload_page_table": True, "reload_sampling_params": True}
    fields, _ = make_adapter().normalize_decode([1], [0], [[0]], enable_trace=True, sampling_params=object(), **chosen)
    assert {name: fields[name] for name in COMMANDS} == chosen


@pytest.mark.parametrize("remap", [[0, 1, 2], (0, 1, 2), np.arange(3, dtype=np.int32)])
def test_an_identity_remap_is_no_move_while_inputs_stay_resident(make_adapter: Any, remap: Any) -> None:
    def reached(reload_inputs: bool, sources: Any) -> Any:
        fields, _ = make_adapter().normalize_decode(
            [1],
            [0],
            [[0]],
            enable_trace=True,
            sampling_params=object(),
            reload_inputs=reload_inputs,
            compatibility_kwargs={"slot_remap": sources},
        )
        return fields.get("slot_remap")

    assert reached(False, remap) is None
    assert reached(True, remap) is remap
    moved = [1, 0, 2]
    assert reached(False, moved) is moved  # the runtime refuses this one
