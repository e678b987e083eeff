"""Generates the table of `docs/reference/findings.md` from the kinds of findings."""

from __future__ import annotations

from snowmelt.integrity.findings import KINDS


def table() -> str:
    """Return the table."""
    lines = ["| finding | severity | meaning | remedy |", "| --- | --- | --- | --- |"]
    lines += [
        f"| `{kind.name}` | {kind.severity} | {kind.meaning} | {kind.remedy} |"
        for kind in KINDS.values()
    ]
    return "\n".join(lines) + "\n"
