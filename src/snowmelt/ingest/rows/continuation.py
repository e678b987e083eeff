"""Continuation tokens: `<client sequencer>_<row sequencer>_<table>` of the request that may come next.

With the table's number nobody gets into a channel of the same name and counts in a table that has
the name now. Services before this gave tokens without it. `_b` at the end says that the channel's
client may write bytes as base64.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_TOKEN = re.compile(r"([0-9]{1,18})_([0-9]{1,18})(?:_([0-9]{1,18}))?(_b)?")


class Continuation(NamedTuple):
    """Which owner's which request this is, in which table's channel; None is not known.

    `base64` says that bytes may come so: the channel was opened by a client that was not told to
    write digits.
    """

    client_sequencer: int
    row_sequencer: int
    table_id: int | None = None
    base64: bool = False

    @property
    def following(self) -> Continuation:
        """What the same owner sends next."""
        return self._replace(row_sequencer=self.row_sequencer + 1)

    def is_of(self, table_id: int) -> bool:
        """Tell whether it may be of this table."""
        return self.table_id in {None, table_id}

    def __str__(self) -> str:
        numbers = "_".join(str(part) for part in self[:3] if part is not None)
        return f"{numbers}_b" if self.base64 else numbers


def parse_continuation(text: str) -> Continuation | None:
    """Return what a token says, None when it was never given."""
    match = _TOKEN.fullmatch(text)
    if match is None:
        return None
    table = match[3]
    table_id = None if table is None else int(table)
    return Continuation(int(match[1]), int(match[2]), table_id, base64=match[4] is not None)
