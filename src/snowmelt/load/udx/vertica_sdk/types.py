"""Types of columns and parameters, as user code declares and reads them."""

# ruff: noqa: N802 - the SDK's names

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass
from typing import TYPE_CHECKING

from snowmelt.schema.types import LogicalType

if TYPE_CHECKING:
    from snowmelt.schema.types import TableSchema

_PYTHON_TYPES: dict[str, type] = {
    "Int": int,
    "Float": float,
    "Bool": bool,
    "Interval": dt.timedelta,
    "IntervalYM": int,
}
_STRING_TYPES = frozenset(
    {"Char", "Varchar", "LongVarchar", "Binary", "Varbinary", "LongVarbinary"}
)
_TYPE_NAMES = {
    LogicalType.REAL: "Float",
    LogicalType.BOOLEAN: "Bool",
    LogicalType.TEXT: "Varchar",
    LogicalType.BINARY: "Varbinary",
    LogicalType.DATE: "Date",
    LogicalType.TIME: "Time",
    LogicalType.TIMESTAMP_NTZ: "Timestamp",
    LogicalType.TIMESTAMP_LTZ: "TimestampTz",
    LogicalType.TIMESTAMP_TZ: "TimestampTz",
}


@dataclass(frozen=True, slots=True)
class VerticaType:
    """One type: its SDK name, with a length, or with precision and scale."""

    name: str
    length: int | None = None
    precision: int | None = None
    scale: int | None = None

    def getTypeStr(self) -> str:
        """Return it as SQL writes it."""
        inner = [str(part) for part in (self.length, self.precision, self.scale) if part]
        return f"{self.name}({','.join(inner)})" if inner else self.name

    def getStringLength(self) -> int:
        """Return the length of a text or binary type, 0 where there is none."""
        return self.length or 0

    def getNumericPrecision(self) -> int:
        """Return how many digits there are, 0 where that does not apply."""
        return self.precision or 0

    def getNumericScale(self) -> int:
        """Return how many digits are behind the point, 0 where that does not apply."""
        return self.scale or 0

    def isInt(self) -> bool:
        """Tell whether it is a whole number."""
        return self.name == "Int"

    def isFloat(self) -> bool:
        """Tell whether it is a binary number."""
        return self.name == "Float"

    def isNumeric(self) -> bool:
        """Tell whether it is an exact number."""
        return self.name == "Numeric"

    def isBool(self) -> bool:
        """Tell whether it is a truth value."""
        return self.name == "Bool"

    def isDate(self) -> bool:
        """Tell whether it is a date."""
        return self.name == "Date"

    def isTime(self) -> bool:
        """Tell whether it is a time of day."""
        return self.name == "Time"

    def isTimeTz(self) -> bool:
        """Tell whether it is a time of day with an offset."""
        return self.name == "TimeTz"

    def isTimestamp(self) -> bool:
        """Tell whether it is a date with a time of day."""
        return self.name == "Timestamp"

    def isTimestampTz(self) -> bool:
        """Tell whether it is an instant."""
        return self.name == "TimestampTz"

    def isInterval(self) -> bool:
        """Tell whether it is a duration."""
        return self.name == "Interval"

    def isIntervalYM(self) -> bool:
        """Tell whether it is a number of months."""
        return self.name == "IntervalYM"

    def isChar(self) -> bool:
        """Tell whether it is a text of fixed length."""
        return self.name == "Char"

    def isVarchar(self) -> bool:
        """Tell whether it is a text."""
        return self.name == "Varchar"

    def isLongVarchar(self) -> bool:
        """Tell whether it is a long text."""
        return self.name == "LongVarchar"

    def isBinary(self) -> bool:
        """Tell whether it is bytes of fixed length."""
        return self.name == "Binary"

    def isVarbinary(self) -> bool:
        """Tell whether it is bytes."""
        return self.name == "Varbinary"

    def isLongVarbinary(self) -> bool:
        """Tell whether it is many bytes."""
        return self.name == "LongVarbinary"

    def isStringType(self) -> bool:
        """Tell whether it is text or binary."""
        return self.name in _STRING_TYPES

    @property
    def python_type(self) -> type:
        """The type of a parameter's value, for the host; texts hold what has none of its own."""
        return _PYTHON_TYPES.get(self.name, str)


class SizedColumnTypes:
    """Types with names, in order."""

    def __init__(self) -> None:
        self._columns: list[tuple[str, VerticaType]] = []

    def addColumn(self, type: VerticaType | str, name: str = "") -> None:  # noqa: A002 - the SDK's
        """Add a column of a type."""
        self._columns.append((name, VerticaType(type) if isinstance(type, str) else type))

    def addAny(self, name: str = "") -> None:
        """Add a column of any type."""
        self.addColumn("Any", name)

    def addBool(self, name: str = "") -> None:
        """Add a truth value."""
        self.addColumn("Bool", name)

    def addDate(self, name: str = "") -> None:
        """Add a date."""
        self.addColumn("Date", name)

    def addFloat(self, name: str = "") -> None:
        """Add a binary number."""
        self.addColumn("Float", name)

    def addInt(self, name: str = "") -> None:
        """Add a whole number."""
        self.addColumn("Int", name)

    def addTime(self, name: int | str = "", *more: int | str) -> None:
        """Add a time of day; a number is its precision."""
        self._add_type("Time", (name, *more))

    def addTimeTz(self, name: int | str = "", *more: int | str) -> None:
        """Add a time of day with an offset."""
        self._add_type("TimeTz", (name, *more))

    def addTimestamp(self, name: int | str = "", *more: int | str) -> None:
        """Add a date with a time of day."""
        self._add_type("Timestamp", (name, *more))

    def addTimestampTz(self, name: int | str = "", *more: int | str) -> None:
        """Add an instant."""
        self._add_type("TimestampTz", (name, *more))

    def addInterval(self, *arguments: int | str) -> None:
        """Add a duration."""
        self._add_type("Interval", arguments)

    def addIntervalYM(self, *arguments: int | str) -> None:
        """Add a number of months."""
        self._add_type("IntervalYM", arguments)

    def addNumeric(self, precision: int, scale: int, name: str = "") -> None:
        """Add an exact number."""
        self.addColumn(VerticaType("Numeric", precision=precision, scale=scale), name)

    def addChar(self, length: int | str, name: int | str = "") -> None:
        """Add a text of fixed length; length and name in either order, as all that have one."""
        self._add_type("Char", (length, name))

    def addVarchar(self, length: int | str, name: int | str = "") -> None:
        """Add a text."""
        self._add_type("Varchar", (length, name))

    def addLongVarchar(self, length: int | str, name: int | str = "") -> None:
        """Add a long text."""
        self._add_type("LongVarchar", (length, name))

    def addBinary(self, length: int | str, name: int | str = "") -> None:
        """Add bytes of fixed length."""
        self._add_type("Binary", (length, name))

    def addVarbinary(self, length: int | str, name: int | str = "") -> None:
        """Add bytes."""
        self._add_type("Varbinary", (length, name))

    def addLongVarbinary(self, length: int | str, name: int | str = "") -> None:
        """Add many bytes."""
        self._add_type("LongVarbinary", (length, name))

    def addOrderColumn(self, type: VerticaType | str, name: str = "") -> None:  # noqa: A002 - SDK
        """Add a column that the rows are ordered by."""
        self.addColumn(type, name)

    def addPartitionColumn(self, type: VerticaType | str, name: str = "") -> None:  # noqa: A002
        """Add a column that the rows are divided by."""
        self.addColumn(type, name)

    def getColumnCount(self) -> int:
        """Return how many there are."""
        return len(self._columns)

    def getColumnName(self, idx: int) -> str:
        """Return the name of one, counted from 0."""
        return self._columns[idx][0]

    def getColumnType(self, idx: int) -> VerticaType:
        """Return the type of one, counted from 0."""
        return self._columns[idx][1]

    def list_columns(self) -> list[tuple[str, VerticaType]]:
        """Return names and types in order, for the host."""
        return list(self._columns)

    def _add_type(self, kind: str, arguments: tuple[int | str, ...]) -> None:
        # Documentation and the SDK for C++ disagree on the order of length and name.
        length = next((part for part in arguments if isinstance(part, int)), None)
        name = next((part for part in arguments if isinstance(part, str)), "")
        self.addColumn(VerticaType(kind, length=length), name)

    @classmethod
    def from_schema(cls, schema: TableSchema) -> SizedColumnTypes:
        """Return the columns of a table, for the host."""
        types = cls()
        for column in schema.columns:
            if column.kind is LogicalType.FIXED and column.scale:
                types.addNumeric(column.precision or 38, column.scale, column.name)
            elif column.kind is LogicalType.FIXED:
                types.addInt(column.name)
            else:
                kind = _TYPE_NAMES.get(column.kind, "LongVarchar")
                length = column.byte_length or column.length
                types.addColumn(VerticaType(kind, length=length), column.name)
        return types


class ColumnTypes(SizedColumnTypes):
    """Types without sizes: what a prototype declares."""
