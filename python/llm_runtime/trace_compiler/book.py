# SPDX-License-Identifier: Apache-2.0
"""The trace registry proper: plans, records and aliases by id, and the device resources they hold."""

from __future__ import annotations

from typing import Any

from llm_runtime._core import SignatureKey, TraceRegistry
from llm_runtime.digest import TraceKey, signature_key
from llm_runtime.tensor_resources import (
    TensorResourceOrphan,
    best_effort_deallocate_owned_tensors,
    release_orphans,
)
from llm_runtime.trace_compiler.plan import (
    PersistentInputs,
    TraceAliasRecord,
    TraceArtifact,
    TraceCapturePlan,
    TraceRecord,
)


class TraceBook:
    """Traces by id (registration order) and aliases by program id, over the C++ registry.

    Owns artifacts, workspaces and orphans. All releases of one round share one set of released ids, so that a tensor
    which several owners hold is freed once; the set is dropped as soon as nothing is held, because ids may then be
    reused by new tensors.
    """

    def __init__(self) -> None:
        self.core = TraceRegistry()
        self.records: list[TraceRecord] = []
        self.keys: list[TraceKey] = []
        self.plans: list[TraceCapturePlan] = []
        self.aliases: dict[int, TraceAliasRecord] = {}
        self.orphans: list[TensorResourceOrphan] = []
        self._id_by_digest: dict[str, int] = {}
        self._released_ids: set[int] = set()

    def register(self, plan: TraceCapturePlan, program_id: int) -> TraceKey:
        """Associate a compiled program with the plan's trace; every check precedes every change."""
        value = signature_key(plan.trace_signature)
        trace_id = self.core.find(value)
        self._check_alias(plan, program_id, trace_id)
        if trace_id >= 0:
            self._check_trace(plan, trace_id)
        else:
            trace_id = self._add(value, plan)
        self.core.associate(program_id=program_id, trace_id=trace_id)
        key = self.keys[trace_id]
        if program_id not in self.aliases:
            self.aliases[program_id] = TraceAliasRecord(
                trace_key=key,
                workspace_fingerprint=plan.workspace_fingerprint,
                prepare_workspace=plan.prepare_workspace,
                prime_workspace=plan.prime_workspace,
            )
        return key

    def id_of(self, key: TraceKey) -> int:
        """The id of a registered trace, or -1."""
        value = key.signature_key
        return self._id_by_digest.get(key.digest, -1) if value is None else self.core.find(value)

    def hold(
        self, trace_id: int, device_id: int, persistent: PersistentInputs, outputs: Any, context: Any
    ) -> TraceArtifact:
        """Make the record of `trace_id` the owner of a device trace and of the tensors it uses."""
        artifact = TraceArtifact(
            trace_id=device_id,
            persistent_inputs=persistent,
            outputs=outputs,
            refresh_policy=self.plans[trace_id].refresh_policy,
            context=context,
            deallocated_tensor_ids=self._released_ids,
        )
        self.records[trace_id].artifact = artifact
        return artifact

    def release_trace(self, trace_id: int, namespace: Any, mesh: Any) -> list[BaseException]:
        """Release one artifact: the trace first, and its tensors only when no trace can use them any more."""
        record = self.records[trace_id]
        artifact = record.artifact
        if artifact is None:
            return []
        if not artifact.trace_released:
            refused = _release_on_device(artifact, namespace, mesh)
            if refused:
                return refused
            artifact.trace_released = True
            self.core.set_captured(trace_id, False)
        failures = best_effort_deallocate_owned_tensors(
            (artifact.persistent_inputs, artifact.outputs), artifact.deallocated_tensor_ids
        )
        if not failures:
            record.artifact = None
        return failures

    def release_all(
        self, namespace: Any, mesh: Any, uncaptured: dict[int, PersistentInputs] | None = None
    ) -> list[BaseException]:
        """Release artifacts, workspaces, uncaptured inputs and orphans; all are attempted, failures stay held."""
        failures: list[BaseException] = []
        for trace_id in range(len(self.records)):
            failures += self.release_trace(trace_id, namespace, mesh)
        for alias in self.aliases.values():
            failures += self._release_workspace(alias)
        failures += release_orphans(self.orphans)
        for persistent in (uncaptured or {}).values():
            failed = best_effort_deallocate_owned_tensors(persistent, self._released_ids)
            if failed:
                self.orphans.append(TensorResourceOrphan(persistent, self._released_ids))
                failures += failed
        if not self.holds_resources():
            self._released_ids.clear()
        return failures

    def holds_resources(self) -> bool:
        """Whether any artifact, workspace or orphan is still held."""
        return (
            bool(self.orphans)
            or any(record.artifact is not None for record in self.records)
            or any(alias.workspace is not None for alias in self.aliases.values())
        )

    def _release_workspace(self, alias: TraceAliasRecord) -> list[BaseException]:
        if alias.workspace is None:
            return []
        alias.deallocated_tensor_ids = self._released_ids
        failures = best_effort_deallocate_owned_tensors(alias.workspace, self._released_ids)
        if not failures:
            alias.workspace = None
        return failures

    def _check_alias(self, plan: TraceCapturePlan, program_id: int, trace_id: int) -> None:
        associated = self.core.trace_of_program(program_id)
        if associated >= 0 and associated != trace_id:
            raise ValueError(
                f"program {plan.program_key.digest} already has trace {self.keys[associated].digest}, "
                f"it cannot take {plan.trace_signature!r} too"
            )
        alias = self.aliases.get(program_id)
        if alias is not None and alias.workspace_fingerprint != plan.workspace_fingerprint:
            raise ValueError(
                f"program {plan.program_key.digest} is registered with workspace fingerprint "
                f"{alias.workspace_fingerprint!r}, not {plan.workspace_fingerprint!r}"
            )

    def _check_trace(self, plan: TraceCapturePlan, trace_id: int) -> None:
        record, first = self.records[trace_id], self.plans[trace_id]
        digest = self.keys[trace_id].digest
        if record.signature != plan.trace_signature:
            raise RuntimeError(
                f"trace digest collision: {digest} belongs to {record.signature!r}, not {plan.trace_signature!r}"
            )
        if record.operation != plan.operation:
            raise RuntimeError(f"trace {digest} is a {record.operation} trace, not {plan.operation}")
        if first.refresh_policy != plan.refresh_policy:
            raise ValueError(f"trace {digest} is registered with another refresh policy: {first.refresh_policy}")
        if first.schema_fingerprint != plan.schema_fingerprint:
            raise ValueError(
                f"trace {digest} has a different schema fingerprint: {first.schema_fingerprint!r} is registered, "
                f"got {plan.schema_fingerprint!r}"
            )

    def _add(self, value: SignatureKey, plan: TraceCapturePlan) -> int:
        key = TraceKey.from_signature_key(value)
        other = self._id_by_digest.get(key.digest)
        if other is not None:
            raise RuntimeError(
                f"trace digest collision: {key.digest} belongs to {self.records[other].signature!r}, "
                f"not {plan.trace_signature!r}"
            )
        trace_id = self.core.add(value, operation=plan.operation)
        self.records.append(TraceRecord(signature=plan.trace_signature, operation=plan.operation))
        self.keys.append(key)
        self.plans.append(plan)
        self._id_by_digest[key.digest] = trace_id
        return trace_id


def _release_on_device(artifact: TraceArtifact, namespace: Any, mesh: Any) -> list[BaseException]:
    """Forget the device trace; returns what went wrong unless it is gone."""
    failures: list[BaseException] = []
    if artifact.recording:
        try:
            namespace.end_trace_capture(mesh, artifact.trace_id, cq_id=0)
            artifact.recording = False
        except BaseException as error:
            failures.append(error)
    try:
        namespace.release_trace(mesh, artifact.trace_id)
    except BaseException as error:
        return [*failures, error]
    return []
