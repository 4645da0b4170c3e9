# SPDX-License-Identifier: Apache-2.0
"""The one owner of trace artifacts: registration, the capture barrier, replay and release."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any

from llm_runtime._core import RefreshDecision, decide_refresh
from llm_runtime._validation import require_instance
from llm_runtime.device import namespace_of
from llm_runtime.digest import ProgramKey, TraceKey
from llm_runtime.program_compiler import ProgramCompiler
from llm_runtime.tensor_resources import attach_cleanup_failures, raise_counted_failures
from llm_runtime.trace_compiler.capture import CaptureSession
from llm_runtime.trace_compiler.plan import TraceArtifact, TraceCapturePlan
from llm_runtime.trace_compiler.queries import TraceQueries

RefreshInputs = Callable[[TraceArtifact, RefreshDecision], None]


class _State(Enum):
    REGISTERING = "open for registration"
    CAPTURING = "capturing"
    ACTIVE = "active"
    DIRTY = "left with unreleased resources"
    RELEASED = "released"


_ACTIVE = _State.ACTIVE


class TraceCompiler(TraceQueries):
    """Maps compiled programs to traces, captures them all at one barrier, and replays them.

    Composes the `ProgramCompiler` (borrowed) whose gate it closes; owns trace ids, persistent inputs, workspaces and
    outputs. After a failed release the compiler is *dirty*: the gate stays closed, `capture_all` and `replay`
    refuse, only `cleanup` is left. A replay that fails once its inputs may have moved poisons every later replay.
    Follows chapter 30, section 3.
    """

    def __init__(self, program_compiler: ProgramCompiler) -> None:
        require_instance(program_compiler, ProgramCompiler, name="program_compiler")
        super().__init__(program_compiler)
        self.mesh_device = program_compiler.mesh_device
        self._bound_context = program_compiler.bound_cache_context
        self._namespace: Any = None
        self._state = _State.REGISTERING
        # The text only: the error itself would keep its frames, and their tensors, alive.
        self._poisoned_by: str | None = None
        self._cleanup_failed = False
        self._program_cache: tuple[int, ...] | None = None
        # Program, trace and artifact of the last replay: mostly they are those of the next one.
        self._latest: tuple[int, int, TraceArtifact] | None = None

    @property
    def trace_active(self) -> bool:
        """Whether every registered trace is captured and replay is open."""
        return self._state is _State.ACTIVE

    @property
    def needs_cleanup(self) -> bool:
        """Whether a failed capture or release left device resources that only `cleanup` can free."""
        return self._state is _State.DIRTY

    def register_capture_plan(self, plan: TraceCapturePlan) -> TraceKey:
        """Associate a compiled program with a trace and keep the first plan of each trace for its capture.

        Registering the same program for the same trace again changes nothing. A refused registration changes
        nothing either: `RuntimeError` when released, capturing, active, dirty, for a program that is not compiled or
        a digest collision; `ValueError` when policy, schema, workspace or association contradict what is registered.
        """
        if self._state is not _State.REGISTERING:
            raise RuntimeError(f"cannot register a capture plan: the trace compiler is {self._state.value}")
        programs = self.program_compiler
        programs.require_compiled(plan.program_key)
        return self._book.register(plan, programs.id_of(plan.program_key))

    def capture_all(self) -> None:
        """Capture every registered trace, decode first, and activate; nothing registered means no activation.

        Returns at once when active. A failure is rolled back completely and the same error raised, cleanup failures
        attached; when all could be released, `capture_all` may be called again, otherwise only `cleanup` may.
        """
        if self._state is _State.ACTIVE:
            return
        if self._state is not _State.REGISTERING:
            raise RuntimeError(f"cannot capture: the trace compiler is {self._state.value}{_advice(self._state)}")
        programs = self.program_compiler
        if not self._book.plans:
            return
        if programs.compile_orphan_count:
            raise RuntimeError(f"cannot capture: {programs.compile_orphan_count} compile output(s) wait for release")
        self._namespace = namespace_of(self.mesh_device)
        session = CaptureSession(self._book, programs, self._namespace)
        self._state = _State.CAPTURING
        try:
            session.run()
            programs.set_trace_active(True)
        except BaseException as primary:
            attach_cleanup_failures(primary, session.roll_back())
            self._state = _State.DIRTY if self._book.holds_resources() else _State.REGISTERING
            programs.set_trace_capture_in_progress(False)
            programs.set_trace_active(self._state is _State.DIRTY)
            raise
        self._program_cache = session.program_cache
        self._state = _State.ACTIVE

    def replay(
        self,
        program_key: ProgramKey,
        refresh_inputs: RefreshInputs,
        *,
        reset_batch: bool = False,
        device_feedback_enabled: bool = False,
        feedback_compatible: bool = False,
        page_table_changed: bool = False,
        reload_inputs: bool | None = None,
        reload_page_table: bool = False,
        reload_sampling_params: bool = False,
    ) -> Any:
        """Refresh the program's trace and enqueue it on queue 0, non-blocking; returns its persistent outputs.

        `refresh_inputs(artifact, decision)` copies what the decision asks for. The outputs are the same object
        every time and the next replay overwrites them. Refused with `RuntimeError` when released, dirty, poisoned,
        not compiled, not associated, not captured, or captured over another KV cache than the bound one, and with the
        errors of the refresh decision (`ValueError`, `RuntimeError`); those leave everything as it was. An error from
        the refresh on poisons the compiler.
        """
        self._require_replayable()
        self.program_compiler.require_compiled(program_key)
        return self.replay_program(
            self.program_compiler.id_of(program_key),
            refresh_inputs,
            reset_batch=reset_batch,
            device_feedback_enabled=device_feedback_enabled,
            feedback_compatible=feedback_compatible,
            page_table_changed=page_table_changed,
            reload_inputs=reload_inputs,
            reload_page_table=reload_page_table,
            reload_sampling_params=reload_sampling_params,
        )

    def replay_program(
        self,
        program_id: int,
        refresh_inputs: RefreshInputs,
        *,
        reset_batch: bool = False,
        device_feedback_enabled: bool = False,
        feedback_compatible: bool = False,
        page_table_changed: bool = False,
        reload_inputs: bool | None = None,
        reload_page_table: bool = False,
        reload_sampling_params: bool = False,
    ) -> Any:
        """`replay` by program id. Once per decode step, so nothing here is looked up twice."""
        if self._state is not _ACTIVE or self._poisoned_by is not None:
            self._require_replayable()
        core, latest = self._core, self._latest
        if latest is not None and latest[0] == program_id:
            _, trace_id, artifact = latest
            switched = False
        else:
            trace_id, artifact = self._captured(program_id)
            switched = core.is_switch(trace_id)
        if artifact.context is not self._bound_context():
            raise self._foreign_context(artifact.context)
        decision = decide_refresh(
            artifact.refresh_policy,
            switched=switched,
            reset_batch=reset_batch,
            device_feedback_enabled=device_feedback_enabled,
            feedback_compatible=feedback_compatible,
            page_table_changed=page_table_changed,
            reload_inputs=reload_inputs,
            reload_page_table=reload_page_table,
            reload_sampling_params=reload_sampling_params,
        )
        programs, entries = self.program_compiler, self._program_cache
        if entries is not None and programs.device_program_cache_entries() != entries:
            programs.require_unchanged_device_program_cache(entries, phase="before replay")
        try:
            refresh_inputs(artifact, decision)
            if entries is not None and programs.device_program_cache_entries() != entries:
                programs.require_unchanged_device_program_cache(entries, phase="while refreshing")
            self._namespace.execute_trace(self.mesh_device, artifact.trace_id, cq_id=0, blocking=False)
        except BaseException as error:
            self._poisoned_by = repr(error)
            raise
        core.note_replay(trace_id)
        if latest is None or latest[0] != program_id:
            self._latest = (program_id, trace_id, artifact)
        return artifact.outputs

    def cleanup(self) -> None:
        """Release traces, workspaces and orphans, reopen the program gate and end; idempotent and terminal.

        Everything is attempted. Failures end in one `RuntimeError` with their count; progress is kept and the call
        can be repeated. Call it before the program compiler's cleanup: afterwards the gate cannot be told, which is
        reported with a `RuntimeError` although all resources are freed (unless it repeats a cleanup that failed).
        """
        if self._state is _State.RELEASED:
            return
        if self._state is _State.CAPTURING:
            raise RuntimeError("cannot clean up while a capture is running")
        self._latest = None
        failures: list[BaseException] = []
        if self._book.holds_resources():
            failures = self._book.release_all(self._namespace, self.mesh_device)
        programs, retried = self.program_compiler, self._cleanup_failed
        if failures:
            self._state, self._cleanup_failed = _State.DIRTY, True
            if not programs.released:
                programs.set_trace_active(True)
            raise_counted_failures("failed to release trace resources", failures)
        self._state = _State.RELEASED
        self._core.forget_last()
        if retried and programs.released:
            return  # an owner that tries every step of its teardown released the programs in between
        programs.set_trace_capture_in_progress(False)
        programs.set_trace_active(False)

    def _captured(self, program_id: int) -> tuple[int, TraceArtifact]:
        trace_id = self._core.trace_of_program(program_id)
        artifact = self._book.records[trace_id].artifact if trace_id >= 0 else None
        if artifact is None or artifact.trace_released:
            raise self._not_captured(program_id, trace_id)
        return trace_id, artifact

    def _not_captured(self, program_id: int, trace_id: int) -> RuntimeError:
        if trace_id < 0:
            name = self.program_compiler.program(program_id).key.digest
            return RuntimeError(f"program {name} has no trace association")
        return RuntimeError(f"trace {self._book.keys[trace_id].digest} has not been captured")

    def _foreign_context(self, captured: Any) -> RuntimeError:
        bound = self._bound_context()
        return RuntimeError(f"cannot replay: a trace over {_name_of(captured)}, while {_name_of(bound)} is bound")

    def _require_replayable(self) -> None:
        state = self._state
        if state is _State.ACTIVE and self._poisoned_by is None:
            return
        if state in (_State.RELEASED, _State.DIRTY, _State.CAPTURING):
            raise RuntimeError(f"cannot replay: the trace compiler is {state.value}{_advice(state)}")
        if self._poisoned_by is not None:
            raise RuntimeError(
                f"cannot replay: an earlier replay failed after its refresh began ({self._poisoned_by}); "
                "clean up and rebuild the executor"
            )


def _advice(state: _State) -> str:
    return "; call cleanup" if state is _State.DIRTY else ""


def _name_of(context: Any) -> str:
    return "no KV cache" if context is None else f"the KV cache {type(context).__name__} {id(context):#x}"
