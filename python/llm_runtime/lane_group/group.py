# SPDX-License-Identifier: Apache-2.0
"""Several lanes as one execution target. Follows chapter 30, section 7."""

from __future__ import annotations

from llm_runtime.lane_group.decode import LaneGroupDecode
from llm_runtime.lane_group.prefill import LaneGroupPrefill
from llm_runtime.lane_group.warmup import LaneGroupWarmup


class LaneGroupExecutor(LaneGroupPrefill, LaneGroupDecode, LaneGroupWarmup):
    """Data-parallel fanout over executors of one lane each, with the call shapes of a single model executor.

    Owns the lanes and cleans them; meshes and models stay borrowed. Slot `s` of the group is slot `s % capacity` of
    lane `s // capacity`; block ids belong to a lane. Everything that is refused before a lane touches its device
    leaves the group usable (decision D10): bad arguments with their own type, a missing trace as `TraceCoverageError`
    with its `lane`. Any later failure ends the group: the error names its lane, every lane is cleaned, and what fails
    there is in its `cleanup_failures`. There is no retry, no re-routing and no partial result.

    `execution` of a call is one of the tuples `eager_execution`, `traced_prefill_execution` and
    `traced_decode_execution` (the last two are `None` unless every lane has that target), or `None` for each lane's
    own policy.
    """

    requires_prefill_trace_warmup = True
