"""What is shipped for tests of yours and ours: a service in the process, faults, a clock, and kills.

`snowmelt.testing.plugin` has fixtures for pytest.
"""

from __future__ import annotations

from snowmelt.clock import ManualClock
from snowmelt.failpoints import Failpoint, arm, disarm
from snowmelt.testing.service import LocalService

Point = Failpoint
"""The former name of `Failpoint`."""

__all__ = ["Failpoint", "LocalService", "ManualClock", "Point", "arm", "disarm"]
