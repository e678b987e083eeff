"""Conversion of records of typed formats to columns, by field name in any case."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from snowmelt.load.column_converter import TableConverter
from snowmelt.load.parsers.json_document_mapping import FlexJsonOptions, JsonColumnFinder
from snowmelt.load.phase_protocols import ParsedBatch, ParseReject, ParseTarget
from snowmelt.schema.conversion.json_text import format_json


@dataclass(frozen=True, slots=True)
class RecordEntry:
    """One record: its offset, its original bytes if any, and its value or a problem."""

    offset: int
    data: bytes | None
    value: dict[str, Any] | None
    problem: str | None = None


class RecordRowBuilder:
    """Builder of rows from records. Counts the records."""

    def __init__(
        self,
        target: ParseTarget,
        *,
        strict: bool,
        flatten_maps: bool,
        flatten_arrays: bool,
        key_separator: str,
    ) -> None:
        self.converter = TableConverter(target)
        self._strict = strict
        options = FlexJsonOptions(
            flatten_maps=flatten_maps, flatten_arrays=flatten_arrays, key_separator=key_separator
        )
        self._column_paths = JsonColumnFinder(
            [column.name for column in target.schema.columns], options
        )
        self._record_count = 0

    def build_rows(self, entries: Sequence[RecordEntry]) -> ParsedBatch:
        """Convert records into rows and rejects."""
        columns: list[list[object]] = [[] for _ in self.converter.columns]
        good: list[int] = []
        reasons: dict[int, tuple[str | None, str]] = {}
        for place, entry in enumerate(entries):
            if entry.value is None:
                reasons[place] = (None, entry.problem or "no record")
                continue
            row = self.converter.make_empty_row()
            self._column_paths.fill_row(entry.value, row)
            for values, value in zip(columns, row, strict=True):
                values.append(value)
            good.append(place)
        arrays: list[pa.Array] = []
        refused: dict[int, tuple[str, str]] = {}
        for column, given in zip(self.converter.columns, columns, strict=True):
            parts, found = column.convert_record_values(given)
            arrays.extend(parts)
            if self._strict or not column.column.nullable:
                name = column.column.display_name
                refused |= {row: (name, reason) for row, reason in found.items()}
        reasons |= {good[row]: reason for row, reason in refused.items()}
        table = self.converter.drop_rejected_rows(self.converter.make_table(arrays), refused)
        return self.make_batch(
            table,
            reasons,
            len(entries),
            lambda place: (entries[place].offset, _get_entry_bytes(entries[place])),
        )

    def make_batch(
        self,
        table: pa.Table,
        reasons: dict[int, tuple[str | None, str]],
        count: int,
        get_reject_origin: Callable[[int], tuple[int, bytes]],
    ) -> ParsedBatch:
        """Build a batch from the accepted rows and the rejects of `count` records.

        Args:
            table: Accepted rows.
            reasons: Column name and reason of each reject, by index in the batch.
            count: Number of records.
            get_reject_origin: Returns the offset and the bytes of a record.
        """
        rejects = []
        for place in sorted(reasons):
            offset, data = get_reject_origin(place)
            column, reason = reasons[place]
            rejects.append(
                ParseReject(self._record_count + place + 1, offset, data, reason, column)
            )
        self._record_count += count
        return ParsedBatch(table, tuple(rejects), count, self.converter.pop_truncated_count())


def display_record(value: object) -> bytes:
    """Format a record that has no original bytes, as JSON if possible."""
    try:
        return format_json(value).encode()
    except (TypeError, ValueError):
        return repr(value).encode()


def _get_entry_bytes(entry: RecordEntry) -> bytes:
    return display_record(entry.value) if entry.data is None else entry.data
