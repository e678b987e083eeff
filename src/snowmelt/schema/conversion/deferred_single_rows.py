"""Single rows that are checked immediately and converted in a batch, at a fraction of the cost.

A row whose values have the plainest types of their columns, within their limits, is certainly
valid. It is retained unchanged (its values are immutable; documents are written immediately) until
a flush converts all such rows column by column. Any other row is left to the exact path.
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

# The values of a row in ordinal order, and behind them their estimated bytes.
Values = tuple[Any, ...]
# None when it is not sure.
Check = Callable[[Mapping[str, object]], Values | None]

# What a Python value and its place in a tuple take, about; texts have their length besides.
_VALUE_BYTES = 48
_MAX_CACHED_KEY_SETS = 1_000
_EDGE_YEARS = frozenset({"0000", "0001", "9999"})
_MAX_INT = 2**64
# Kinds whose values have a length.
_VARIABLE_LENGTH_TYPES = SEMI_STRUCTURED_TYPES | {LogicalType.TEXT, LogicalType.BINARY}


class FastRowChecker:
    """Checks and later converts the plain rows for one version of a table; thread-safe.

    `places` tells which columns the keys of a row mean, None when something is wrong with them.
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
        # No character takes more than four bytes.
        self._max_row_characters = max_row_bytes // 4
        self._checks: dict[tuple[str, ...], Check] = {}
        self._last_check: Check = _no_cached_check

    @property
    def items_per_row(self) -> int:
        """How many items a row takes: its values, and their bytes."""
        return len(self.schema.columns) + 1

    def try_check(self, row: Mapping[str, object]) -> Values | None:
        """Return a row's values in ordinal order, then their bytes; None for the exact path."""
        try:
            # Most rows have the keys of the one before: no need to look at more than their values.
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
        """Return the rows of a call, all of which are good; None for the other paths."""
        checked = FastRows(self)
        for row in rows:
            values = self.try_check(row)
            if values is None:
                return None
            checked.items += values
        return checked

    def is_compatible_with(self, other: FastRowChecker) -> bool:
        """Tell whether rows that `other` took may be converted here, among those of this one."""
        return self is other or (
            self._zone == other._zone
            and self._compatibility is other._compatibility
            and self.schema == other.schema
        )

    def build_table(self, items: list[Any]) -> pa.Table:
        """Return the table, in chunk form, of rows that `try_check` returned, one behind the other."""
        arrays = []
        # Converters of their own each time: two threads may be at work.
        converters = make_column_converters(self.schema, self._zone, self._compatibility)
        for place, converter in enumerate(converters):
            values = items[place :: self.items_per_row]
            if converter.column.kind in SEMI_STRUCTURED_TYPES:
                arrays.append(converter.stored_to_array(values))
                continue
            array, refused = converter.convert(values)
            if refused:
                name = converter.column.display_name
                raise InternalError(f"A row was taken that column {name} refuses.")
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
        """Write the check of one shape of rows as a function: ten columns in the time of two calls.

        Only numbers of columns and their limits get into its text, never a name or a value.
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
                # The plainest first: most values are of that type, and few are None.
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
        # As defaults of arguments they are found faster than as globals.
        head = f"def check(row, {', '.join(f'{name}={name}' for name in scope)}):"
        exec("\n".join([head, *lines]), scope)  # noqa: S102 - the text is made of numbers only
        written: Check = scope["check"]
        return written


class FastRows:
    """A run of rows that were only checked, until they are converted.

    `items` are their values and sizes, one row behind the other: as a tuple each they would take
    longer to keep than to check. `tokens` are the offset tokens that came with them.
    """

    __slots__ = ("form", "items", "tokens")

    def __init__(self, form: FastRowChecker) -> None:
        self.form = form
        self.items: list[Any] = []
        self.tokens: list[str] = []

    @property
    def row_count(self) -> int:
        """How many there are."""
        return len(self.items) // self.form.items_per_row

    @property
    def size_bytes(self) -> int:
        """Their estimated bytes."""
        return self.estimated_bytes_from(0)

    def estimated_bytes_from(self, first_row: int) -> int:
        """Return the bytes of the rows from that one on."""
        width = self.form.items_per_row
        return sum(self.items[first_row * width + width - 1 :: width])

    def try_extend(self, other: object) -> bool:
        """Append the rows of a later call if they are of the same form."""
        if not (isinstance(other, FastRows) and other.form is self.form):
            return False
        self.items += other.items
        return True

    def to_table(self) -> pa.Table:
        """Return them in chunk form."""
        return self.form.build_table(self.items)


def _make_check_expression(column: Column, name: str, length: str) -> str:
    """Return the text of an expression that is true for values that are surely good.

    It sets the variable `length` where values have one.
    """
    kind = column.kind
    if kind is LogicalType.FIXED:
        digits = (column.precision or 38) - (column.scale or 0)
        bound = 10**digits - 1
        within = f"-{bound} <= {name} <= {bound}"
        # Most Decimals have a digit to spare, which is found in a tenth of a comparison's time.
        short = f"({name}.adjusted() < {digits - 1} or {within})"
        number = f"type({name}) is Decimal and {name}.is_finite() and {short}"
        # What is written for a float may be a little larger than it.
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
        # In the first and the last year an offset may move an instant out of range.
        text = f"type({name}) is str and {name}[:4] not in _EDGES and is_plain_moment({name})"
        return f"type({name}) is datetime and 1 < {name}.year < 9999 and ({zone.format(name)}) or {text}"
    if kind is LogicalType.REAL:
        # A larger integer may be beyond the range of a double.
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
