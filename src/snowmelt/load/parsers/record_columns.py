"""Conversion of records of typed formats to columns, by field name in any case."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from snowmelt.load.column_converter import TableConverter
from snowmelt.load.parsers.json_document_mapping import FlexJsonOptions, JsonColumnFinder
from snowmelt.load.parsers.portion_stream import ParsedBatchBuilder
from snowmelt.load.phase_protocols import ParsedBatch, ParseTarget
from snowmelt.schema.conversion.json_text import format_json


@dataclass(frozen=True, slots=True)
class RecordEntry:
    """One record: its offset, its original bytes if any, and its value or a problem."""

    offset: int
    data: bytes | None
    value: dict[str, Any] | None
    problem: str | None = None


class RecordRowBuilder:
    """Builder of rows from records."""

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
        self.batches = ParsedBatchBuilder(self.converter)

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
        arrays, refused = self.converter.convert_record_columns(columns, strict=self._strict)
        reasons |= {good[row]: reason for row, reason in refused.items()}
        table = self.converter.drop_rejected_rows(self.converter.make_table(arrays), refused)
        return self.batches.build(
            table,
            reasons,
            len(entries),
            lambda place: (entries[place].offset, _get_entry_bytes(entries[place])),
        )


def display_record(value: object) -> bytes:
    """Format a record that has no original bytes: as JSON, or by `repr` if it has no JSON form."""
    try:
        return format_json(value).encode()
    except (TypeError, ValueError):
        return repr(value).encode()


def _get_entry_bytes(entry: RecordEntry) -> bytes:
    return display_record(entry.value) if entry.data is None else entry.data
