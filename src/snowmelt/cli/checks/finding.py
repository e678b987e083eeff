"""How a check ended, in a sentence that says what to do."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Finding(StrEnum):
    """How a check ended; a note is only about a part of Snowmelt, or about later."""

    FINE = "ok"
    NOTE = "note"
    WRONG = "wrong"


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the report."""

    finding: Finding
    what: str
    detail: str


def fine(what: str, detail: str) -> Check:
    """Return that all is well."""
    return Check(Finding.FINE, what, detail)


def note(what: str, detail: str) -> Check:
    """Return what somebody may want to know."""
    return Check(Finding.NOTE, what, detail)


def wrong(what: str, detail: str) -> Check:
    """Return what must be put right."""
    return Check(Finding.WRONG, what, detail)


# Of two clocks. Tokens and signatures bear minutes, leases and ages of chunks less.
_MUCH_SKEW_S = 5.0


def clock_check(what: str, ahead_s: float, whose: str) -> Check:
    """Return what to say of a clock that is so many seconds ahead of this machine's."""
    if abs(ahead_s) <= _MUCH_SKEW_S:
        return fine(what, f"the clock of {whose} and this machine's are {abs(ahead_s):.1f} s apart")
    word = "ahead of" if ahead_s > 0 else "behind"
    return wrong(
        what,
        f"the clock of {whose} is {abs(ahead_s):,.0f} s {word} this machine's; let both be set by NTP, "
        "or leases and the age of blobs are judged wrongly",
    )
