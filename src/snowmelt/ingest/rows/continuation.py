"""Continuation tokens: `<client sequencer>_<row sequencer>` of the request that may come next."""

from __future__ import annotations

import re
from typing import NamedTuple

_TOKEN = re.compile(r"([0-9]{1,18})_([0-9]{1,18})")


class Continuation(NamedTuple):
    """Which owner's which request this is."""

    client_sequencer: int
    row_sequencer: int

    @property
    def following(self) -> Continuation:
        """What the same owner sends next."""
        return Continuation(self.client_sequencer, self.row_sequencer + 1)

    def __str__(self) -> str:
        return f"{self.client_sequencer}_{self.row_sequencer}"


def parse_continuation(text: str) -> Continuation | None:
    """Return what a token says, None when it was never given."""
    match = _TOKEN.fullmatch(text)
    return None if match is None else Continuation(int(match[1]), int(match[2]))
