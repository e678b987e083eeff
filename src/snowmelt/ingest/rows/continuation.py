"""Continuation tokens: `<client sequencer>_<row sequencer>_<table>` of the request that may come next.

With the table's number nobody gets into a channel of the same name and counts in a table that has
the name now. Services before this gave tokens without it.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_TOKEN = re.compile(r"([0-9]{1,18})_([0-9]{1,18})(?:_([0-9]{1,18}))?")


class Continuation(NamedTuple):
    """Which owner's which request this is, in which table's channel; None is not known."""

    client_sequencer: int
    row_sequencer: int
    table_id: int | None = None

    @property
    def following(self) -> Continuation:
        """What the same owner sends next."""
        return self._replace(row_sequencer=self.row_sequencer + 1)

    def is_of(self, table_id: int) -> bool:
        """Tell whether it may be of this table."""
        return self.table_id in {None, table_id}

    def __str__(self) -> str:
        return "_".join(str(part) for part in self if part is not None)


def parse_continuation(text: str) -> Continuation | None:
    """Return what a token says, None when it was never given."""
    match = _TOKEN.fullmatch(text)
    if match is None:
        return None
    table = match[3]
    return Continuation(int(match[1]), int(match[2]), None if table is None else int(table))
