"""Public test support: local service, failpoints, manual clock, crash and soak harnesses.

`service`: `LocalService`, a real service in this process with a temporary folder.
`plugin`: pytest fixtures for `LocalService`.
`workload`: the loading process that the harnesses kill.
`crash_harness`: kills processes at failpoints, and counts lost and duplicate rows.
`soak`: COPY, migration, compaction, streaming and queries on one table under random kills.
"""

from __future__ import annotations

from snowmelt.clock import ManualClock
from snowmelt.failpoints import Failpoint, arm, disarm
from snowmelt.testing.service import LocalService

__all__ = ["Failpoint", "LocalService", "ManualClock", "arm", "disarm"]
