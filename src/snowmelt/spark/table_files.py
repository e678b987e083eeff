"""Which files and chunks a query would open."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from snowmelt.spark.planning import Planned
    from snowmelt.table.scan import Predicate


@dataclass(frozen=True, slots=True)
class TableFiles:
    """What a query would open for one mention of a table: so many of so many."""

    table: str
    native_files: int
    native_files_total: int
    chunks: int
    chunks_total: int
    columns: tuple[str, ...]
    predicates: tuple[Predicate, ...]

    def __str__(self) -> str:
        return (
            f"{self.table}: {self.native_files} of {self.native_files_total} native files, "
            f"{self.chunks} of {self.chunks_total} chunks, {len(self.columns)} columns"
        )


def files_of(planned: Planned) -> TableFiles:
    """Return what is opened for one mention of a table."""
    read = planned.read
    return TableFiles(
        table=read.table,
        native_files=len(read.files),
        native_files_total=planned.files_total,
        chunks=len(read.tasks),
        chunks_total=planned.chunks_total,
        columns=tuple(column.name for column in read.columns),
        predicates=planned.predicates,
    )


def rows_of(planned: Planned) -> int:
    """Return how many rows the files and chunks have that are opened."""
    files, tasks = planned.read.files, planned.read.tasks
    return sum(each.rows for each in files) + sum(each.rows for each in tasks)
