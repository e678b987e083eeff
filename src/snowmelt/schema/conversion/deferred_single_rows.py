"""Single rows that are checked immediately and converted later in a batch, which costs less.

A row is certainly valid if each value has the most common type for its column and is within the
limits. Such a row is retained unchanged until a flush converts all such rows column by column. This
is safe because the values are immutable; documents are written as JSON immediately. Any other row
takes the exact path.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime, time, timezone
from decimal import Decimal
from functools import partial
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow as pa

from snowmelt.errors import InternalError, InvalidRow
from snowmelt.schema.chunk_types import chunk_arrow_schema
from snowmelt.schema.conversion.column_converter import is_plain_timestamp, make_column_converters
from snowmelt.schema.conversion.value_rules import make_value_rule
from snowmelt.schema.types import (
    MAX_BINARY_BYTES,
    MAX_TEXT_BYTES,
    SEMI_STRUCTURED_TYPES,
    TIMESTAMP_TYPES,
    Column,
    Compatibility,
    LogicalType,
    TableSchema,
)

# The values of a row in ordinal order, followed by their estimated size in bytes.
Values = tuple[Any, ...]
# Check function. Returns None if the row needs the exact path.
Check = Callable[[Mapping[str, object]], Values | None]

# Approximate size of a Python value and its list slot, without the length of strings.
_VALUE_BYTES = 48
_MAX_CACHED_KEY_SETS = 1_000
_EDGE_YEARS = frozenset({"0000", "0001", "9999"})
_MAX_INT = 2**64
# Types with a length limit.
_VARIABLE_LENGTH_TYPES = SEMI_STRUCTURED_TYPES | {LogicalType.TEXT, LogicalType.BINARY}


class FastRowChecker:
    """Checker and later converter of rows with common values, for one table version. Thread-safe.

    `resolve_keys` returns the column positions of a row's keys, or None if the keys are invalid.
    """

    def __init__(
        self,
        schema: TableSchema,
        zone: ZoneInfo,
        compatibility: Compatibility,
        resolve_keys: Callable[[tuple[str, ...]], Sequence[int] | None],
        max_row_bytes: int,
    ) -> None:
        self.schema = schema
        self._zone = zone
        self._compatibility = compatibility
        self._resolve_keys = resolve_keys
        # A character has at most four bytes in UTF-8.
        self._max_row_characters = max_row_bytes // 4
        self._checks: dict[tuple[str, ...], Check] = {}
        self._last_check: Check = _no_cached_check

    @property
    def items_per_row(self) -> int:
        """Number of items per row: its values, and their total size."""
        return len(self.schema.columns) + 1

    def try_check(self, row: Mapping[str, object]) -> Values | None:
        """Return a row's values in ordinal order and their size, or None for the exact path."""
        try:
            # Try the previous row's check first, because most rows have the same keys.
            values = self._last_check(row)
        except KeyError:
            values = None
        except InvalidRow:
            return None
        if values is not None or type(row) is not dict:
            return values
        keys = tuple(row)
        check = self._checks.get(keys) or self._cache_check(keys)
        if check is None or check is self._last_check:
            return None
        self._last_check = check
        try:
            return check(row)
        except InvalidRow:
            return None

    def try_check_all(self, rows: Sequence[Mapping[str, object]]) -> FastRows | None:
        """Return the rows of a call if all are certainly valid, else None."""
        checked = FastRows(self)
        for row in rows:
            values = self.try_check(row)
            if values is None:
                return None
            checked.items += values
        return checked

    def is_compatible_with(self, other: FastRowChecker) -> bool:
        """Return True if this object can convert rows that `other` checked."""
        return self is other or (
            self._zone == other._zone
            and self._compatibility is other._compatibility
            and self.schema == other.schema
        )

    def build_table(self, items: list[Any]) -> pa.Table:
        """Return the table, in chunk form, of the concatenated results of `try_check`."""
        arrays = []
        # New converters for each call, because two threads may convert concurrently.
        converters = make_column_converters(self.schema, self._zone, self._compatibility)
        for place, converter in enumerate(converters):
            values = items[place :: self.items_per_row]
            if converter.column.kind in SEMI_STRUCTURED_TYPES:
                arrays.append(converter.stored_to_array(values))
                continue
            array, refused = converter.convert(values)
            if refused:
                name = converter.column.display_name
                raise InternalError(f"Column {name} rejects a row that passed its check.")
            arrays.append(array)
        return pa.Table.from_arrays(arrays, schema=chunk_arrow_schema(self.schema))

    def _cache_check(self, keys: tuple[str, ...]) -> Check | None:
        places = self._resolve_keys(keys)
        if places is None:
            return None
        if len(self._checks) >= _MAX_CACHED_KEY_SETS:
            self._checks.clear()
        check = self._checks[keys] = self._compile_check(keys, places)
        return check

    def _compile_check(self, keys: tuple[str, ...], positions: Sequence[int]) -> Check:
        """Compile the check for one set of keys. Takes as long as two calls, for ten columns.

        The generated code contains only column numbers and limits, never a name or a value.
        """
        scope: dict[str, Any] = {
            "_EDGES": _EDGE_YEARS,
            "Decimal": Decimal,
            "ZoneInfo": ZoneInfo,
            "bool": bool,
            "date": date,
            "datetime": datetime,
            "dict": dict,
            "float": float,
            "int": int,
            "is_plain_moment": partial(is_plain_timestamp, java=self._compatibility.is_java),
            "is_sound": _is_valid_utf8,
            "len": len,
            "str": str,
            "time": time,
            "timezone": timezone,
            "type": type,
        }
        columns = [self.schema.columns[place] for place in positions]
        lines = [f"    if type(row) is not dict or len(row) != {len(keys)}: return None"]
        sizes = [str(_VALUE_BYTES * self.items_per_row)]
        for number, column in enumerate(columns):
            name, length = f"v{number}", f"n{number}"
            scope[f"k{number}"] = keys[number]
            lines.append(f"    {name} = row[k{number}]")
            if column.kind in SEMI_STRUCTURED_TYPES:
                scope[f"write{number}"] = make_value_rule(column, self._zone, self._compatibility)
                lines.append(f"    {name} = write{number}({name}, 0)")
                lines.append(f"    {length} = 0 if {name} is None else len({name})")
            else:
                # Test the common type first, because few values are None.
                null = f" or {name} is None" if column.nullable else ""
                if null and column.kind in _VARIABLE_LENGTH_TYPES:
                    null += f" and not ({length} := 0)"
                lines.append(
                    f"    if not ({_make_check_expression(column, name, length)}{null}): return None"
                )
            if column.kind in _VARIABLE_LENGTH_TYPES:
                sizes.append(length)
        given = {place: f"v{number}" for number, place in enumerate(positions)}
        ordered = [given.get(place, "None") for place in range(len(self.schema.columns))]
        lines += [
            f"    size = {' + '.join(sizes)}",
            f"    return None if size > {self._max_row_characters} else ({', '.join(ordered)}, size)",
        ]
        # Pass globals as argument defaults, whose lookup is faster.
        head = f"def check(row, {', '.join(f'{name}={name}' for name in scope)}):"
        exec("\n".join([head, *lines]), scope)  # noqa: S102 - contains only column numbers and limits
        written: Check = scope["check"]
        return written


class FastRows:
    """Checked rows before conversion.

    `items` has the values and size of each row in one flat list, because storing a tuple per row
    takes longer than the check. `tokens` has the offset tokens of the rows.
    """

    __slots__ = ("form", "items", "tokens")

    def __init__(self, form: FastRowChecker) -> None:
        self.form = form
        self.items: list[Any] = []
        self.tokens: list[str] = []

    @property
    def row_count(self) -> int:
        """Number of rows."""
        return len(self.items) // self.form.items_per_row

    @property
    def size_bytes(self) -> int:
        """Estimated size in bytes."""
        return self.estimated_bytes_from(0)

    def estimated_bytes_from(self, first_row: int) -> int:
        """Return the estimated size of the rows from `first_row` on."""
        width = self.form.items_per_row
        return sum(self.items[first_row * width + width - 1 :: width])

    def try_extend(self, other: object) -> bool:
        """Append the rows of a later call. Return False if they have another form."""
        if not (isinstance(other, FastRows) and other.form is self.form):
            return False
        self.items += other.items
        return True

    def to_table(self) -> pa.Table:
        """Return the rows in chunk form."""
        return self.form.build_table(self.items)


def _make_check_expression(column: Column, name: str, length: str) -> str:
    """Return the source of an expression that is true for values that are certainly valid.

    The expression assigns the variable named `length` for types with a length.
    """
    kind = column.kind
    if kind is LogicalType.FIXED:
        digits = (column.precision or 38) - (column.scale or 0)
        bound = 10**digits - 1
        within = f"-{bound} <= {name} <= {bound}"
        # Test `adjusted` first: it suffices for most decimals, in a tenth of the time of a
        # comparison.
        short = f"({name}.adjusted() < {digits - 1} or {within})"
        number = f"type({name}) is Decimal and {name}.is_finite() and {short}"
        # Leave a margin: the decimal text of a float may be slightly larger than the float.
        most = bound - 10 ** max(digits - 15, 0) + 1
        real = f"type({name}) is float and -{most} <= {name} <= {most}"
        return f"type({name}) is int and {within} or {real} or {number}"
    if kind is LogicalType.TEXT:
        limit = MAX_TEXT_BYTES if column.length is None else min(column.length, MAX_TEXT_BYTES)
        sound = f"({name}.isascii() or is_sound({name}))"
        return f"type({name}) is str and ({length} := len({name})) <= {limit} and {sound}"
    if kind is LogicalType.BINARY:
        limit = MAX_BINARY_BYTES if column.byte_length is None else column.byte_length
        return f"type({name}) is bytes and ({length} := len({name})) <= {limit}"
    if kind in TIMESTAMP_TYPES:
        zone = "(z := {0}.tzinfo) is None or type(z) is timezone or type(z) is ZoneInfo"
        # Exclude the first and last year, in which an offset may move a timestamp out of range.
        text = f"type({name}) is str and {name}[:4] not in _EDGES and is_plain_moment({name})"
        return f"type({name}) is datetime and 1 < {name}.year < 9999 and ({zone.format(name)}) or {text}"
    if kind is LogicalType.REAL:
        # A larger integer may be out of range for a double.
        return (
            f"type({name}) is float or type({name}) is int and -{_MAX_INT} <= {name} <= {_MAX_INT}"
        )
    python = {LogicalType.BOOLEAN: "bool", LogicalType.DATE: "date", LogicalType.TIME: "time"}[kind]
    return f"type({name}) is {python}"


def _no_cached_check(_: Mapping[str, object]) -> None:
    return None


def _is_valid_utf8(text: str) -> bool:
    try:
        return len(text.encode()) <= MAX_TEXT_BYTES
    except UnicodeEncodeError:
        return False
