"""Records of text by a regular expression, or of pairs of a key and a value."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pyarrow as pa

from snowmelt.errors import LoadRefused, PhaseFailed
from snowmelt.schema.types import internal_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from snowmelt.load.conversion import Conversion
    from snowmelt.load.parsers.lines import Columns

_NAMED = re.compile(r"\(\?<(?![=!])")
_SHOWN = 20


class Pattern:
    """Columns by the named groups of a pattern that matches the whole of a record, or its start.

    A group that takes no part is NULL. `line_column` names a column for the record itself.
    """

    trim: str | None = None

    def __init__(self, pattern: str, line_column: str) -> None:
        """Compile a pattern, whose groups may be written `(?<name>…)` or `(?P<name>…)`.

        Raises:
            LoadRefused: It is no regular expression, or names no group.
        """
        try:
            self._pattern = re.compile(_NAMED.sub("(?P<", pattern))
        except re.error as error:
            reason = f"the pattern is no regular expression: {error}"
            raise LoadRefused(what="FREGEXPARSER", reason=reason) from None
        if not self._pattern.groupindex:
            raise LoadRefused(what="FREGEXPARSER", reason="the pattern names no group (?<column>…)")
        self._groups = {
            internal_name(name): place for name, place in self._pattern.groupindex.items()
        }
        self._line = internal_name(line_column) if line_column else None

    def split(self, records: pa.BinaryArray, conversion: Conversion) -> Columns:
        """Match each record."""
        names = [column.column.name for column in conversion.columns]
        groups = [0 if name == self._line else self._group(name, names) for name in names]
        if all(group is None for group in groups):
            known = ", ".join(self._groups)
            raise PhaseFailed(reason=f"no group of the pattern is a column; it has {known}")
        columns: list[list[str | None]] = [[] for _ in groups]
        problems: dict[int, str] = {}
        for place, record in enumerate(records.to_pylist()):
            match, line = None, ""
            try:
                line = record.decode()
                match = self._pattern.match(line)
                if match is None:
                    problems[place] = "the record does not match the pattern"
            except UnicodeDecodeError as error:
                problems[place] = f"illegal UTF-8 at byte {error.start} of the record"
            for values, group, name in zip(columns, groups, names, strict=True):
                if match is None or group is None:
                    values.append(None)
                else:
                    values.append(line if name == self._line else match[group])
        return [pa.array(values, pa.string()) for values in columns], problems

    def _group(self, name: str, names: Sequence[str]) -> int | None:
        """Return the group of a column; a name in quotes has no case unless another column has it."""
        if name in self._groups or name.upper() in names:
            return self._groups.get(name)
        return self._groups.get(name.upper())


class Pairs:
    """Columns by keys: `key=value`, pairs apart by a delimiter; quotes hold delimiters.

    Where a delimiter is followed by what is no pair, it belongs to the value before it.
    """

    def __init__(self, delimiter: str, assignment: str, *, trims: bool) -> None:
        self.trim: str | None = " \t" if trims else None
        quoted = r'"((?:[^"]|"")*)"'
        mark, equals = re.escape(delimiter), re.escape(assignment)
        key = rf"([^{mark}{equals}\"]+)"
        plain = rf"((?:(?!{mark}+[^{mark}{equals}\"]+{equals}).)*)"
        self._pair = re.compile(
            rf"{mark}*{key}{equals}(?:{quoted}(?={mark}|\Z)|{plain})", re.DOTALL
        )
        self._blank = re.compile(rf"(?:{mark}|\s)*\Z")

    def split(self, records: pa.BinaryArray, conversion: Conversion) -> Columns:
        """Find the pairs of each record."""
        names = [column.column.name for column in conversion.columns]
        # The very name of a column comes before one of another case.
        places = {name.upper(): place for place, name in enumerate(names)}
        places |= {name: place for place, name in enumerate(names)}
        columns: list[list[str | None]] = [[] for _ in conversion.columns]
        problems: dict[int, str] = {}
        for number, record in enumerate(records.to_pylist()):
            row: list[str | None] = [None] * len(columns)
            try:
                problem = self._fill(record.decode(), places, row)
            except UnicodeDecodeError as error:
                problem = f"illegal UTF-8 at byte {error.start} of the record"
            if problem:
                problems[number] = problem
            for values, value in zip(columns, row, strict=True):
                values.append(value)
        return [pa.array(values, pa.string()) for values in columns], problems

    def _fill(self, record: str, places: dict[str, int], row: list[str | None]) -> str | None:
        at = 0
        while not self._blank.match(record, at):
            match = self._pair.match(record, at)
            if match is None:
                return f"no pair of a key and a value: {record[at : at + _SHOWN]!r}"
            at = match.end()
            place = places.get(internal_name(match[1].strip()))
            if place is not None:
                value = match[3] if match[2] is None else match[2].replace('""', '"')
                row[place] = value or (None if match[2] is None else "")
        return None
