"""Runs the portions of a load in this process, one after the other."""

from __future__ import annotations

from typing import TYPE_CHECKING

from snowmelt.bulk.work import run_work

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from snowmelt.bulk.work import Portioned, WorkPlan
    from snowmelt.load.steps import LoadTask


class LocalRunner:
    """Runs portions here, and hands on each as it is done."""

    parallelism = 1

    def __call__(self, plan: WorkPlan, tasks: Sequence[LoadTask]) -> Iterator[Portioned]:
        """Run portions.

        Raises:
            RemoteError: A store does not answer.
        """
        for task in tasks:
            yield run_work(plan, task)
