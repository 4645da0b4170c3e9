# SPDX-License-Identifier: Apache-2.0
"""One size has one source: rows of a lane, columns of its tables, on every path of a real executor."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from support.one_layer_lane import OneLayerLane, sampling_params


@pytest.fixture
def open_lane() -> Iterator[Callable[..., OneLayerLane]]:
    """Opens lanes and closes them after the test."""
    lanes: list[OneLayerLane] = []

    def open_one(**options: Any) -> OneLayerLane:
        lanes.append(OneLayerLane(**options))
        return lanes[-1]

    yield open_one
    for lane in lanes:
        lane.close()


@pytest.mark.covers("P12")
def test_a_narrow_table_is_the_same_error_in_compiling_and_in_serving(open_lane: Callable[..., OneLayerLane]) -> None:
    lane = open_lane(length=1024, trace_mode="none")
    call = lane.prefill_call(1000)
    call["page_table"] = call["page_table"][:, :20]
    calls = dict(lane.mesh.counters.calls)
    texts = set()
    for run in (lane.executor.compile_prefill, lane.executor.prefill_forward):
        with pytest.raises(ValueError, match="needs 32 blocks but page_table has 20 columns") as caught:
            run(**call)
        texts.add(str(caught.value))
    assert len(texts) == 1
    assert dict(lane.mesh.counters.calls) == calls
    fitting = lane.prefill_call(640)  # 20 columns hold exactly that
    lane.executor.prefill_forward(**{**fitting, "page_table": call["page_table"]})


@pytest.mark.covers("P19")
@pytest.mark.parametrize("path", ["logits", "argmax", "topk"])
@pytest.mark.parametrize("mode", ["none", "all"])
def test_a_decode_table_of_fewer_rows_is_refused_at_one_place(
    open_lane: Callable[..., OneLayerLane], path: str, mode: str
) -> None:
    lane = open_lane(rows=4, trace_mode=mode, sampling=path != "logits")
    if mode == "all":
        lane.llama.warm_up()
    call = lane.decode_call(path=path, reset_batch=True)
    calls = dict(lane.mesh.counters.calls)
    with pytest.raises(ValueError, match="batches must match: start_pos has 4 rows, page_table 3"):
        lane.executor.decode_forward(**{**call, "page_table": call["page_table"][:3]})
    short = {name: call[name][:3] for name in ("tokens", "start_pos", "page_table")}
    with pytest.raises(ValueError, match="tokens has 3 rows and must equal lane capacity 4"):
        lane.executor.decode_forward(**{**call, **short, "sampling_params": sampling_params(path, 3)})
    assert dict(lane.mesh.counters.calls) == calls


@pytest.mark.covers("P19", "P35")
def test_three_rows_padded_to_the_lane_leave_the_fourth_inert(open_lane: Callable[..., OneLayerLane]) -> None:
    lane = open_lane(rows=4, trace_mode="none")
    lane.mesh.ledger.clear()
    lane.executor.prefill_forward(**lane.prefill_call(rows=3))
    call = lane.decode_call(reset_batch=True)
    call["start_pos"][3] = -1
    lane.executor.decode_forward(**call)
    width = lane.width
    blocks = {write.block for write in lane.mesh.ledger.writes}
    assert blocks == {row * width + block for row in range(3) for block in (0, 1)}


@pytest.mark.covers("P36")
@pytest.mark.parametrize("sampling", [False, True])
def test_every_program_and_buffer_uses_the_lanes_own_row_count(
    open_lane: Callable[..., OneLayerLane], sampling: bool
) -> None:
    lane = open_lane(rows=12, sampling=sampling, used=False)
    lane.llama.warm_up()
    signatures = [program.signature for program in lane.programs.compiled_programs]
    decode = [signature for signature in signatures if hasattr(signature, "batch_size")]
    waves = {signature.padded_batch_size for signature in signatures if not hasattr(signature, "batch_size")}
    assert decode and {signature.batch_size for signature in decode} == {12}
    assert waves == {1, 2, 4, 8}  # 16 rows do not fit into 12 slots
    with pytest.raises(ValueError, match="slot 12 is outside the lane's slots 0 to 11"):
        lane.executor.prefill_forward(**lane.prefill_call(), empty_slots=[12])
