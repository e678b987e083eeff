"""Queries beside writers: does every one of them see whole commits, each row once, and no row go?"""

from __future__ import annotations

import threading
from collections import Counter
from typing import TYPE_CHECKING

from snowmelt.errors import PlanExpired
from snowmelt.storage.opening import open_store
from snowmelt.table.reading import read_table

if TYPE_CHECKING:
    from snowmelt.catalog.database import Database
    from snowmelt.catalog.keys import KeyRing
    from snowmelt.schema.types import TableName

_PAUSE_S = 0.2


class Looking(threading.Thread):
    """Reads a table of numbered rows again and again until `stop`; `wrong` says what was not right.

    Rows of `channel` have the numbers from 1 without a gap; of all others so many at a time come.
    """

    def __init__(
        self, database: Database, keyring: KeyRing, stage_url: str, table: TableName, at_once: int
    ) -> None:
        super().__init__(name="looking", daemon=True)
        self.queries = 0
        self.wrong: list[str] = []
        self._source = (database, keyring, open_store(stage_url), table)
        self._at_once = at_once
        self._seen = 0
        self._stopping = threading.Event()

    def run(self) -> None:
        """Query until stopped."""
        while not self._stopping.wait(_PAUSE_S):
            try:
                self._look()
            except PlanExpired:
                # The machine was too slow for this one, and it was told so.
                continue
            except Exception as error:  # noqa: BLE001 - a query must not fail beside writers
                self.wrong.append(f"{type(error).__name__}: {error}")

    def stop(self) -> None:
        """End after the query under way."""
        self._stopping.set()
        self.join()

    def _look(self) -> None:
        rows = read_table(*self._source, columns=["CHANNEL", "NUMBER"])
        pairs = zip(rows["CHANNEL"].to_pylist(), rows["NUMBER"].to_pylist(), strict=True)
        seen = Counter((channel, int(number)) for channel, number in pairs)
        streamed = {number for channel, number in seen if channel == "channel"}
        self.queries += 1
        if max(seen.values(), default=1) > 1:
            self.wrong.append("a row was there twice")
        if streamed != set(range(1, len(streamed) + 1)):
            self.wrong.append("a row was missing before others of its channel")
        if (len(seen) - len(streamed)) % self._at_once:
            self.wrong.append("a part of a load was there")
        if len(seen) < self._seen:
            self.wrong.append("rows were gone")
        self._seen = len(seen)
