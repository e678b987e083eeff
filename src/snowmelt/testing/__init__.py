"""Public test support: local service, failpoints, manual clock, crash and soak harnesses.

`service`: `LocalService`, a service in this process with a temporary folder.
`plugin`: pytest fixtures for it.
`workload`: a loading process that the harnesses kill.
`crash_harness`: kills at failpoints, then a count of lost and duplicate rows.
`soak`: COPY, migration, compaction, streaming and queries on one table under random kills.
"""

from __future__ import annotations

from snowmelt.clock import ManualClock
from snowmelt.failpoints import Failpoint, arm, disarm
from snowmelt.testing.service import LocalService

__all__ = ["Failpoint", "LocalService", "ManualClock", "arm", "disarm"]
