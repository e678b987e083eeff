"""Records that formats with types hold, as rows: columns by the names of fields, in any case."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from snowmelt.load.column_converter import Conversion
from snowmelt.load.parsers.json_documents import FlexJsonOptions, Paths
from snowmelt.load.phases import Parsed, Rejected
from snowmelt.schema.conversion.json_text import write_json

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import pyarrow as pa

    from snowmelt.load.phases import Target


@dataclass(frozen=True, slots=True)
class Entry:
    """One record: where it is, its bytes if it has any of its own, and its value or a problem."""

    offset: int
    data: bytes | None
    value: dict[str, Any] | None
    problem: str | None = None


class Objects:
    """Makes rows of records; counts them."""

    def __init__(
        self, target: Target, *, strict: bool, maps: bool, arrays: bool, separator: str
    ) -> None:
        self.conversion = Conversion(target)
        self._strict = strict
        options = FlexJsonOptions(flatten_maps=maps, flatten_arrays=arrays, key_separator=separator)
        self._paths = Paths([column.name for column in target.schema.columns], options)
        self._records = 0

    def parsed(self, entries: Sequence[Entry]) -> Parsed:
        """Return what became of records."""
        columns: list[list[object]] = [[] for _ in self.conversion.columns]
        good: list[int] = []
        reasons: dict[int, tuple[str | None, str]] = {}
        for place, entry in enumerate(entries):
            if entry.value is None:
                reasons[place] = (None, entry.problem or "no record")
                continue
            row: list[object] = [None] * len(columns)
            self._paths.fill(entry.value, row)
            for values, value in zip(columns, row, strict=True):
                values.append(value)
            good.append(place)
        arrays: list[pa.Array] = []
        refused: dict[int, tuple[str, str]] = {}
        for column, given in zip(self.conversion.columns, columns, strict=True):
            parts, found = column.convert_objects(given)
            arrays.extend(parts)
            if self._strict or not column.column.nullable:
                name = column.column.display_name
                refused |= {row: (name, reason) for row, reason in found.items()}
        reasons |= {good[row]: reason for row, reason in refused.items()}
        table = self.conversion.good(self.conversion.table(arrays), refused)
        return self.finished(
            table,
            reasons,
            len(entries),
            lambda place: (entries[place].offset, _bytes(entries[place])),
        )

    def finished(
        self,
        table: pa.Table,
        reasons: dict[int, tuple[str | None, str]],
        count: int,
        origin: Callable[[int], tuple[int, bytes]],
    ) -> Parsed:
        """Return good rows and rejects of so many records; `origin` tells offset and bytes."""
        rejects = []
        for place in sorted(reasons):
            offset, data = origin(place)
            column, reason = reasons[place]
            rejects.append(Rejected(self._records + place + 1, offset, data, reason, column))
        self._records += count
        return Parsed(table, tuple(rejects), count)


def shown(value: object) -> bytes:
    """Return a record that has no text of its own as one."""
    try:
        return write_json(value).encode()
    except (TypeError, ValueError):
        return repr(value).encode()


def _bytes(entry: Entry) -> bytes:
    return shown(entry.value) if entry.data is None else entry.data
