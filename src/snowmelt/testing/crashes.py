"""Former place of the crash harness; it is in `snowmelt.testing.crash_harness` now."""

from __future__ import annotations

import warnings

from snowmelt.testing.crash_harness import CrashHarness as CrashSite
from snowmelt.testing.crash_harness import CrashResult as Outcome

__all__ = ["CrashSite", "Outcome"]

warnings.warn(
    "snowmelt.testing.crashes goes away with the next release: import CrashHarness and CrashResult "
    "from snowmelt.testing.crash_harness",
    DeprecationWarning,
    stacklevel=2,
)
