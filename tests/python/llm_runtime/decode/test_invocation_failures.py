# SPDX-License-Identifier: Apache-2.0
"""Failed eager steps: what is released, what is retained, and what ends the runtime."""

from __future__ import annotations

import gc

import pytest


def run(runtime, call, **options):
    return runtime.consume(runtime.invoke(runtime.prepare(**call), **options))


def live(mesh):
    # An exception that a test looked at holds the frames, and so the tensors, of the model body.
    mesh.faults.clear()
    gc.collect()
    return sorted(tensor.name for tensor in mesh.live_tensors())


@pytest.mark.covers("DEC-53")
def test_a_failed_release_blocks_until_it_is_retried(mesh, runtime, request_for):
    result = runtime.invoke(runtime.prepare(**request_for()), count_tokens=False)
    mesh.faults.fail("deallocate", at=2)
    failures = runtime._health.release(result.owned)
    assert [str(failure) for failure in failures] == ["injected fault: deallocate"]
    assert runtime.transient_orphan_count == 1
    with pytest.raises(RuntimeError, match="unreleased transients"):
        runtime.prepare(**request_for())
    freed = mesh.counters.deallocations
    runtime.cleanup_transients()
    assert mesh.counters.deallocations == freed + 1
    assert runtime.transient_orphan_count == 0
    runtime.prepare(**request_for())
    runtime.cleanup_transients()


def test_a_cleanup_that_fails_again_can_be_repeated(mesh, runtime, request_for):
    result = runtime.invoke(runtime.prepare(**request_for()), count_tokens=False)
    mesh.faults.fail("deallocate", times=2)
    runtime._health.release(result.owned)
    mesh.faults.clear()
    mesh.faults.fail("deallocate")
    with pytest.raises(RuntimeError, match="injected fault"):
        runtime.cleanup_transients()
    assert runtime.transient_orphan_count == 1
    runtime.cleanup_transients()
    assert runtime.transient_orphan_count == 0


@pytest.mark.parametrize("at", [1, 3, 5, 7])
def test_a_staging_failure_releases_what_was_staged(mesh, runtime, request_for, topk, at):
    before = live(mesh)
    prepared = runtime.prepare(**request_for(sampling_params=topk()))
    mesh.faults.fail("to_device", at=at)
    with pytest.raises(RuntimeError, match="injected fault: to_device"):
        runtime.invoke(prepared, count_tokens=False)
    assert live(mesh) == before
    tokens, _ = run(runtime, request_for(sampling_params=topk(), reset_batch=True))
    assert tokens.tolist() == [1, 2]


def test_a_staging_failure_whose_release_fails_is_retained(mesh, runtime, request_for):
    prepared = runtime.prepare(**request_for())
    mesh.faults.fail("to_device", at=3)
    mesh.faults.fail("deallocate", at=1)
    with pytest.raises(RuntimeError, match="injected fault: to_device") as error:
        runtime.invoke(prepared, count_tokens=False)
    assert [str(failure) for failure in error.value.cleanup_failures] == ["injected fault: deallocate"]
    assert runtime.transient_orphan_count == 1
    with pytest.raises(RuntimeError, match="unreleased transients"):
        runtime.invoke(prepared)
    runtime.cleanup_transients()
    run(runtime, request_for())


@pytest.mark.parametrize("op", ["embedding", "paged_update_cache", "argmax", "copy_host_to_device_tensor"])
def test_a_counted_failure_releases_everything_and_ends_the_runtime(mesh, runtime, request_for, greedy, topk, op):
    params = topk() if op.startswith("copy") else greedy()
    before = live(mesh)
    mesh.faults.fail(op)
    with pytest.raises(RuntimeError, match=f"injected fault: {op}"):
        runtime.invoke(runtime.prepare(**request_for(sampling_params=params, reset_batch=True)))
    assert live(mesh) == before
    runtime.cleanup_transients()
    runtime.drain_external_outputs()
    for refused in (
        lambda: runtime.prepare(**request_for()),
        lambda: runtime.invoke(object()),
        lambda: runtime.validate_submission(object()),
        runtime.ensure_trace_safe,
    ):
        with pytest.raises(RuntimeError, match="rebuild the executor"):
            refused()


def test_a_compile_failure_leaves_the_runtime_usable(mesh, runtime, request_for, greedy):
    mesh.faults.fail("argmax")
    with pytest.raises(RuntimeError, match="argmax"):
        runtime.invoke(runtime.prepare(**request_for(sampling_params=greedy())), count_tokens=False)
    tokens, _ = run(runtime, request_for(sampling_params=greedy(), reset_batch=True))
    assert tokens.tolist() == [1, 2]


def test_a_failing_state_reset_after_a_compile_is_reported_and_nothing_leaks(mesh, runtime, request_for, topk):
    before = live(mesh)
    prepared = runtime.prepare(**request_for(sampling_params=topk()))
    mesh.faults.fail("copy_host_to_device_tensor", at=2)
    with pytest.raises(RuntimeError, match="copy_host_to_device_tensor"):
        runtime.invoke(prepared, count_tokens=False)
    assert live(mesh) == before


def test_a_failing_read_releases_and_keeps_its_error(mesh, runtime, request_for):
    before = live(mesh)
    result = runtime.invoke(runtime.prepare(**request_for()))
    mesh.faults.fail("cpu")
    mesh.faults.fail("deallocate", at=1)
    with pytest.raises(RuntimeError, match="injected fault: cpu") as error:
        runtime.consume(result)
    assert [str(failure) for failure in error.value.cleanup_failures] == ["injected fault: deallocate"]
    del result, error
    with pytest.raises(RuntimeError, match="rebuild"):
        runtime.prepare(**request_for())
    runtime.cleanup_transients()
    assert live(mesh) == before


def test_a_failing_release_after_a_good_read_is_raised(mesh, runtime, request_for):
    result = runtime.invoke(runtime.prepare(**request_for()))
    mesh.faults.fail("deallocate", at=2)
    with pytest.raises(RuntimeError, match="injected fault: deallocate"):
        runtime.consume(result)
    with pytest.raises(RuntimeError, match="rebuild"):
        runtime.ensure_trace_safe()
    runtime.cleanup_transients()
    assert runtime.transient_orphan_count == 0
