"""The only room that imports PySpark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from snowmelt.spark.lake import Snowmelt as Snowmelt

__all__ = ["Snowmelt"]


def __getattr__(name: str) -> Any:
    """Import PySpark when it is first needed: that takes a second."""
    if name == "Snowmelt":
        from snowmelt.spark.lake import Snowmelt

        return Snowmelt
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
