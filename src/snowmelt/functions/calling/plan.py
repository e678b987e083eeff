"""Former place of `CallerOptions`; it is in `snowmelt.functions` now."""

from __future__ import annotations

import warnings

from snowmelt.functions.caller.plan import CallerOptions

__all__ = ["CallerOptions"]

warnings.warn(
    "snowmelt.functions.calling.plan goes away with the next release: import CallerOptions from "
    "snowmelt.functions",
    DeprecationWarning,
    stacklevel=2,
)
