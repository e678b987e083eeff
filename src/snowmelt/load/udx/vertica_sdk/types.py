"""Types of columns and parameters that user code declares and reads."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass

from snowmelt.schema.types import LogicalType, TableSchema

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
    """One type: its SDK name, with its length or its precision and scale.

    `isInt()`, `isVarchar()` and so on compare the name.
    """

    name: str
    length: int | None = None
    precision: int | None = None
    scale: int | None = None

    def isStringType(self) -> bool:
        return self.name in _STRING_TYPES

    def getTypeStr(self) -> str:
        inner = [str(part) for part in (self.length, self.precision, self.scale) if part]
        return f"{self.name}({','.join(inner)})" if inner else self.name

    def getStringLength(self) -> int:
        return self.length or 0

    def getNumericPrecision(self) -> int:
        return self.precision or 0

    def getNumericScale(self) -> int:
        return self.scale or 0

    @property
    def python_type(self) -> type:
        """Python type of a parameter of this type, by default str. For the host only."""
        return _PYTHON_TYPES.get(self.name, str)


class SizedColumnTypes:
    """Ordered types with names, counted from 0.

    `addInt()`, `addVarchar()` and so on append one.
    """

    def __init__(self) -> None:
        self._columns: list[tuple[str, VerticaType]] = []

    def addColumn(self, type: VerticaType | str, name: str = "") -> None:
        self._columns.append((name, VerticaType(type) if isinstance(type, str) else type))

    addOrderColumn = addPartitionColumn = addColumn

    def addNumeric(self, precision: int, scale: int, name: str = "") -> None:
        self.addColumn(VerticaType("Numeric", precision=precision, scale=scale), name)

    def getColumnCount(self) -> int:
        return len(self._columns)

    def getColumnName(self, idx: int) -> str:
        return self._columns[idx][0]

    def getColumnType(self, idx: int) -> VerticaType:
        return self._columns[idx][1]

    def list_columns(self) -> list[tuple[str, VerticaType]]:
        """Return names and types in order. For the host."""
        return list(self._columns)

    @classmethod
    def from_schema(cls, schema: TableSchema) -> SizedColumnTypes:
        """Return the columns of a table. For the host."""
        types = cls()
        for column in schema.columns:
            if column.kind is LogicalType.FIXED and column.scale:
                types.addNumeric(column.precision or 38, column.scale, column.name)
            elif column.kind is LogicalType.FIXED:
                types.addColumn("Int", column.name)
            else:
                kind = _TYPE_NAMES.get(column.kind, "LongVarchar")
                length = column.byte_length or column.length
                types.addColumn(VerticaType(kind, length=length), column.name)
        return types


def _define_type(kind: str) -> None:
    """Define the methods `is…` and `add…` of a type."""

    def add(
        self: SizedColumnTypes, *arguments: int | str, name: str = "", length: int | None = None
    ) -> None:
        # Accept size and name in any order: documentation and the C++ SDK disagree on it.
        given = (*arguments, length, name)
        size = next((part for part in given if isinstance(part, int)), None)
        found = next((part for part in given if isinstance(part, str)), "")
        self.addColumn(VerticaType(kind, length=size), found)

    setattr(VerticaType, f"is{kind}", lambda self: self.name == kind)
    if kind != "Numeric":
        setattr(SizedColumnTypes, f"add{kind}", add)


for _kind in (
    *("Any", "Int", "Float", "Numeric", "Bool", "Date", "Time", "TimeTz", "Timestamp"),
    *("TimestampTz", "Interval", "IntervalYM", *_STRING_TYPES),
):
    _define_type(_kind)


class ColumnTypes(SizedColumnTypes):
    """Types without sizes, for prototypes."""
