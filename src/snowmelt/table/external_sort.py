"""External sort of the rows of a clustered table, in bounded memory."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from snowmelt.schema.iceberg_table_form import native_fields
from snowmelt.schema.types import TableSchema

# Memory for sorting: the rows, their order and a sorted copy.
_MEMORY_COPIES = 3
# Rows per batch: a merge keeps one batch of each run in memory.
_MERGE_BATCHES = 64


def make_sort_keys(schema: TableSchema, cluster_by: Sequence[str]) -> list[tuple[str, str]]:
    """Return the sort keys of rows in native form. Dropped columns are omitted."""
    by_name = {column.name: column for column in schema.columns}
    return [
        (own.name, "ascending")
        for name in cluster_by
        if name in by_name
        for own in native_fields(by_name[name])
    ]


class ExternalSorter:
    """Sorter of rows in bounded memory.

    Rows beyond `memory_bytes` are written to a temporary folder as sorted runs, which are then merged.
    """

    def __init__(
        self, schema: pa.Schema, keys: Sequence[tuple[str, str]], *, memory_bytes: int
    ) -> None:
        self._schema = schema
        self._keys = list(keys)
        self._run_bytes = memory_bytes // _MEMORY_COPIES
        self._batch_bytes = memory_bytes // _MERGE_BATCHES
        self._buffered: list[pa.Table] = []
        self._buffered_bytes = 0
        self._exit_stack = contextlib.ExitStack()
        self._folder: Path | None = None
        self._runs: list[Path] = []

    def add_rows(self, rows: pa.Table) -> None:
        """Add rows."""
        self._buffered.append(rows)
        self._buffered_bytes += rows.nbytes
        if self._buffered_bytes >= self._run_bytes:
            self._spill()

    def drain_sorted_rows(self) -> Iterator[pa.Table]:
        """Yield all rows in order, once. Deletes spilled runs at the end."""
        with self._exit_stack:
            if not self._runs:
                if self._buffered:
                    yield self._sort_buffered()
                return
            self._spill()
            runs = [_SortedRun(self._exit_stack, path) for path in self._runs]
            yield from _merge_sorted_runs(runs, self._keys)

    def close(self) -> None:
        """Delete spilled runs. Idempotent."""
        self._exit_stack.close()

    def _sort_buffered(self) -> pa.Table:
        table = pa.concat_tables(self._buffered)
        self._buffered, self._buffered_bytes = [], 0
        return table.take(pc.sort_indices(table, sort_keys=self._keys))

    def _spill(self) -> None:
        if not self._buffered:
            return
        if self._folder is None:
            folder = tempfile.TemporaryDirectory(prefix="snowmelt-sort-")
            self._folder = Path(self._exit_stack.enter_context(folder))
        table = self._sort_buffered()
        rows = max(1, table.num_rows * self._batch_bytes // max(table.nbytes, 1))
        path = self._folder / f"{len(self._runs)}.arrow"
        options = pa.ipc.IpcWriteOptions(compression="lz4")
        with (
            pa.OSFile(str(path), "wb") as sink,
            pa.ipc.new_stream(sink, self._schema, options=options) as writer,
        ):
            writer.write_table(table, max_chunksize=rows)
        self._runs.append(path)


class _SortedRun:
    """Sorted run on disk, with one batch in memory."""

    def __init__(self, exit_stack: contextlib.ExitStack, path: Path) -> None:
        source = exit_stack.enter_context(pa.OSFile(str(path), "rb"))
        self._batches = exit_stack.enter_context(pa.ipc.open_stream(source))
        self.buffered: pa.Table = self._batches.schema.empty_table()
        self.has_more = True

    def load_next_batch(self) -> None:
        """Load the next batch if the current one is exhausted."""
        while self.has_more and not self.buffered.num_rows:
            try:
                self.buffered = pa.Table.from_batches([self._batches.read_next_batch()])
            except StopIteration:
                self.has_more = False

    def pop_rows(self, count: int) -> pa.Table:
        """Remove and return the first rows of the current batch."""
        taken, self.buffered = self.buffered.slice(0, count), self.buffered.slice(count)
        return taken


@dataclass(frozen=True, slots=True)
class _RowOrder:
    keys: list[tuple[str, str]]

    def index_of_first(self, rows: list[pa.Table]) -> int:
        """Return the index of the table whose row is first. Each table has one row."""
        names = [name for name, _ in self.keys]
        table = pa.concat_tables(row.select(names) for row in rows)
        first: int = pc.sort_indices(table, sort_keys=self.keys)[0].as_py()
        return first

    def count_up_to(self, rows: pa.Table, last_row: pa.Table) -> int:
        """Return the number of rows of a sorted table that are not after `last_row`."""
        low, high = 0, rows.num_rows
        while low < high:
            middle = (low + high) // 2
            # The sort is stable, so this includes equal rows.
            if self.index_of_first([rows.slice(middle, 1), last_row]) == 0:
                low = middle + 1
            else:
                high = middle
        return low

    def sort(self, rows: pa.Table) -> pa.Table:
        """Return the rows in sorted order."""
        return rows.take(pc.sort_indices(rows, sort_keys=self.keys))


def _merge_sorted_runs(
    runs: Sequence[_SortedRun], keys: list[tuple[str, str]]
) -> Iterator[pa.Table]:
    """Merge runs: repeatedly yield the buffered rows up to the smallest last row of all batches."""
    order = _RowOrder(keys)
    while True:
        for run in runs:
            run.load_next_batch()
        live = [run for run in runs if run.buffered.num_rows]
        if not live:
            return
        ends = [run.buffered.slice(run.buffered.num_rows - 1) for run in live]
        last = ends[order.index_of_first(ends)]
        due = [run.pop_rows(order.count_up_to(run.buffered, last)) for run in live]
        yield order.sort(pa.concat_tables(due))
