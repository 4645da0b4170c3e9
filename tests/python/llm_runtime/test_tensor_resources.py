# SPDX-License-Identifier: Apache-2.0
"""Best-effort release of owned tensors, orphans, and how failures travel."""

from __future__ import annotations

import dataclasses

import pytest

from llm_runtime.tensor_resources import (
    TensorResourceOrphan,
    attach_cleanup_failures,
    best_effort_deallocate_owned_tensors,
    raise_cleanup_failures,
    raise_counted_failures,
    release_or_retain,
    release_orphans,
)


@dataclasses.dataclass
class PlainRecord:
    tensor: object


class Owner:
    def __init__(self, *values):
        self.values = values

    def owned_tensor_values(self):
        return self.values


@pytest.mark.covers("TNS-01")
def test_a_plain_record_owns_nothing(device_tensor):
    tensor = device_tensor()
    assert best_effort_deallocate_owned_tensors(PlainRecord(tensor)) == []
    assert tensor.is_allocated()


@pytest.mark.covers("TNS-04")
def test_a_tensor_reached_three_times_is_released_once(mesh, device_tensor):
    tensor = device_tensor()
    assert best_effort_deallocate_owned_tensors((tensor, [tensor], {"again": tensor})) == []
    assert not tensor.is_allocated()
    assert mesh.counters.calls["deallocate"] == 1


def test_every_owning_container_is_walked(device_tensor):
    tensors = [device_tensor() for _ in range(6)]
    tree = (
        tensors[0],
        [tensors[1]],
        {tensors[2]: {"value": tensors[3]}},
        {tensors[4]},
        Owner({"deep": Owner(tensors[5])}),
        None,
        7,
        "text",
    )
    assert best_effort_deallocate_owned_tensors(tree) == []
    freed = [not tensor.is_allocated() for tensor in tensors]
    assert freed == [True, True, False, True, True, True], "dict keys own nothing"


def test_containers_that_contain_themselves_end(device_tensor):
    tensor = device_tensor()
    items = [tensor]
    items.append(items)
    mapping = {"items": items}
    mapping["self"] = mapping
    owner = Owner()
    owner.values = (owner, mapping)
    assert best_effort_deallocate_owned_tensors(owner) == []
    assert not tensor.is_allocated()


def test_a_failing_owner_method_propagates():
    class Broken:
        def owned_tensor_values(self):
            raise LookupError("broken")

    with pytest.raises(LookupError, match="broken"):
        best_effort_deallocate_owned_tensors([Broken()])


@pytest.mark.covers("TNS-03")
def test_only_what_failed_is_retried(mesh, device_tensor):
    tensors = [device_tensor() for _ in range(3)]
    mesh.faults.fail(op="deallocate", at=2)
    orphans = []
    failures = release_or_retain(tuple(tensors), orphans)
    assert len(failures) == 1
    assert [tensor.is_allocated() for tensor in tensors] == [False, True, False]
    assert len(orphans) == 1
    assert orphans[0].deallocated_tensor_ids == {id(tensors[0]), id(tensors[2])}
    assert mesh.counters.calls["deallocate"] == 3
    assert release_orphans(orphans) == []
    assert orphans == []
    assert mesh.counters.calls["deallocate"] == 4
    assert not tensors[1].is_allocated()


@pytest.mark.covers("R06")
def test_a_retry_leaves_a_new_tensor_alone(mesh, device_tensor):
    first, second = device_tensor(), device_tensor()
    mesh.faults.fail(op="deallocate", at=2)
    orphans = []
    release_or_retain([first, second], orphans)
    neighbour = device_tensor()
    assert release_orphans(orphans) == []
    assert neighbour.is_allocated()
    assert release_orphans(orphans) == []
    assert neighbour.is_allocated()


def test_a_failed_tensor_is_tried_again_where_it_is_reached_again(mesh, device_tensor):
    tensor = device_tensor()
    mesh.faults.fail(op="deallocate", at=1)
    failures = best_effort_deallocate_owned_tensors([tensor, tensor])
    assert len(failures) == 1
    assert not tensor.is_allocated()


def test_keyboard_interrupt_is_collected(monkeypatch, device_tensor):
    import ttnn_twin

    tensors = [device_tensor(), device_tensor()]
    real = ttnn_twin.deallocate

    def interrupted(tensor):
        if tensor is tensors[0]:
            raise KeyboardInterrupt
        real(tensor)

    monkeypatch.setattr(ttnn_twin, "deallocate", interrupted)
    failures = best_effort_deallocate_owned_tensors(tensors)
    assert [type(failure) for failure in failures] == [KeyboardInterrupt]
    assert not tensors[1].is_allocated()


def test_release_orphans_keeps_list_and_order(mesh, device_tensor):
    orphans = [TensorResourceOrphan(device_tensor()) for _ in range(4)]
    first, second, third, fourth = orphans
    mesh.faults.fail(op="deallocate", at=2)
    mesh.faults.fail(op="deallocate", at=4)
    kept = orphans
    assert len(release_orphans(orphans)) == 2
    assert kept is orphans
    assert orphans == [second, fourth]
    assert not first.values.is_allocated() and not third.values.is_allocated()


@pytest.mark.covers("TNS-02")
def test_the_first_of_two_failures_is_raised_with_the_second_attached():
    first, second = ValueError("first"), KeyError("second")
    with pytest.raises(ValueError, match="first") as raised:
        raise_cleanup_failures([first, second])
    assert raised.value is first
    assert first.cleanup_failures == (second,)
    assert any("1 additional" in note for note in first.__notes__)


def test_a_single_failure_is_raised_bare():
    failure = ValueError("alone")
    with pytest.raises(ValueError) as raised:
        raise_cleanup_failures(iter([failure]))
    assert raised.value is failure
    assert not hasattr(failure, "cleanup_failures")


@pytest.mark.parametrize("empty", [[], (), iter([])])
def test_nothing_to_raise_is_a_value_error(empty):
    with pytest.raises(ValueError, match="at least one"):
        raise_cleanup_failures(empty)
    with pytest.raises(ValueError, match="at least one"):
        raise_counted_failures("what", [])


def test_attaching_accumulates_and_ignores_nothing():
    primary = RuntimeError("primary")
    attach_cleanup_failures(primary, [])
    assert not hasattr(primary, "cleanup_failures")
    first, second = OSError("a"), OSError("b")
    attach_cleanup_failures(primary, iter([first]))
    attach_cleanup_failures(primary, [second], note="{count} more")
    assert primary.cleanup_failures == (first, second)
    assert primary.__notes__[-1] == "1 more"


def test_counted_failures_chain_the_first():
    failures = [OSError("a"), OSError("b")]
    with pytest.raises(RuntimeError, match=r"failed to release x: 2 failure") as raised:
        raise_counted_failures("failed to release x", failures)
    assert raised.value.__cause__ is failures[0]
    assert raised.value.cleanup_failures == tuple(failures)
