"""How much a query may spend: rows and calls, per task and over the processes of a machine.

A call is one request: a retry and a poll are calls, too.
"""

from __future__ import annotations

import struct
import threading
from typing import TYPE_CHECKING

from snowmelt.functions.calling.host import HostFile, file_name, private_folder, remove_old
from snowmelt.functions.refusals import BudgetExceeded

if TYPE_CHECKING:
    from pathlib import Path

    from snowmelt.clock import Clock
    from snowmelt.functions.calling.plan import CallPlan, Place

_SPENT = struct.Struct("=QQ")
# A query's file is of no use once the query is over, and none lasts for so long.
_KEPT_S = 7 * 24 * 3600.0


class Budget:
    """What one task may still spend; for any number of threads, to be closed at the end.

    What was spent is not given back: a retry is another call, and so is a task's next attempt.
    """

    def __init__(
        self, plan: CallPlan, place: Place, clock: Clock, *, folder: Path | None = None
    ) -> None:
        """Prepare; without a budget of the query, no file is touched.

        Args:
            plan: Its options hold the limits; those of a query are divided among executors.
            place: Which query.
            clock: Tells which old files may go.
            folder: Where files are shared; this user's private one if None.
        """
        options = plan.options
        self._function = plan.function.signature.name
        self._task = (options.max_rows_per_task, options.max_calls_per_task)
        self._said = (options.max_rows_per_query, options.max_calls_per_query)
        self._machines = options.executors
        # Shares that together are never more than the whole; less than one each is none.
        self._query = tuple(
            None if limit is None else limit // self._machines for limit in self._said
        )
        self._limited = self._task != (None, None)
        self._spent = (0, 0)
        self._lock = threading.Lock()
        self._file: HostFile | None = None
        if self._query != (None, None):
            folder = folder or private_folder()
            path = folder / file_name("budget", place.query_id)
            if not path.exists():
                remove_old(folder, "budget", clock, _KEPT_S)
            self._file = HostFile(path)

    def spend(self, *, rows: int = 0, calls: int = 1) -> None:
        """Spend before a request is sent; nothing is spent where it is refused.

        Args:
            rows: In the request; 0 for one that is sent again.
            calls: Requests.

        Raises:
            BudgetExceeded: It would be more than a setting allows.
        """
        if self._limited:
            with self._lock:
                self._spent = self._added(self._spent, (rows, calls), self._task, "task")
        if self._file is not None:
            with self._file.locked():
                spent = self._file.read(_SPENT)
                spent = self._added((spent[0], spent[1]), (rows, calls), self._query, "query")
                self._file.write(_SPENT, *spent)

    def close(self) -> None:
        """Close the query's file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _added(
        self,
        spent: tuple[int, int],
        more: tuple[int, int],
        limits: tuple[int | None, ...],
        whose: str,
    ) -> tuple[int, int]:
        total = (spent[0] + more[0], spent[1] + more[1])
        for at, what in enumerate(("rows", "calls")):
            limit = limits[at]
            if limit is not None and total[at] > limit:
                shared = whose == "query" and self._machines > 1
                raise BudgetExceeded(
                    function=self._function,
                    what=what,
                    limit=self._said[at] if shared else limit,
                    setting=f"max_{what}_per_{whose}",
                    share=f" (the share of each of {self._machines} machines is {limit})"
                    if shared
                    else "",
                )
        return total
