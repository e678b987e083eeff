"""Parameters of a phase, as user code reads and declares them."""

# ruff: noqa: N802, N815 - the SDK's names

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

_TRUE = frozenset({"true", "t", "yes", "y", "on", "1"})


class ParamReader:
    """Values by name, in any case. A getter raises KeyError where there is no such parameter."""

    def __init__(self, values: Mapping[str, object] | None = None) -> None:
        self._values: dict[str, object] = dict(values or {})
        self._spelt = {name.lower(): name for name in self._values}

    def containsParameter(self, name: str) -> bool:
        """Tell whether the parameter was given."""
        return name.lower() in self._spelt

    def getParamNames(self) -> list[str]:
        """Return the names of the parameters that were given."""
        return list(self._values)

    def getBool(self, name: str) -> bool:
        """Return a truth value."""
        value = self._value(name)
        return value.lower() in _TRUE if isinstance(value, str) else bool(value)

    def getInt(self, name: str) -> int:
        """Return a whole number."""
        return int(self._value(name))

    def getFloat(self, name: str) -> float:
        """Return a number."""
        return float(self._value(name))

    def getNumeric(self, name: str) -> Decimal:
        """Return an exact number."""
        value = self._value(name)
        return Decimal(repr(value) if isinstance(value, float) else value)

    def getString(self, name: str) -> str:
        """Return a text."""
        value = self._value(name)
        return value.decode() if isinstance(value, bytes) else str(value)

    def getDate(self, name: str) -> dt.date:
        """Return a date."""
        value = self._value(name)
        return dt.date.fromisoformat(value) if isinstance(value, str) else value

    def getTime(self, name: str) -> dt.time:
        """Return a time of day."""
        value = self._value(name)
        return dt.time.fromisoformat(value) if isinstance(value, str) else value

    def getTimestamp(self, name: str) -> dt.datetime:
        """Return a date with a time of day."""
        value = self._value(name)
        return dt.datetime.fromisoformat(value) if isinstance(value, str) else value

    def getInterval(self, name: str) -> dt.timedelta:
        """Return a duration."""
        value = self._value(name)
        return value if isinstance(value, dt.timedelta) else dt.timedelta(seconds=float(value))

    def getIntervalYM(self, name: str) -> int:
        """Return a number of months."""
        return int(self._value(name))

    getTimeTz = getTime
    getTimestampTz = getTimestamp

    def _value(self, name: str) -> Any:
        spelt = self._spelt.get(name.lower())
        if spelt is None:
            raise KeyError(f"there is no parameter {name}")
        return self._values[spelt]


class ParamWriter(ParamReader):
    """Values that `plan` hands on to wherever the load runs."""

    def setBool(self, name: str, value: object) -> None:
        """Keep a value under a name; so do all setters, which do not change it."""
        self._spelt.setdefault(name.lower(), name)
        self._values[self._spelt[name.lower()]] = value

    setDate = setFloat = setInt = setInterval = setIntervalYM = setNumeric = setBool
    setString = setTime = setTimeTz = setTimestamp = setTimestampTz = setBool

    def values(self) -> dict[str, object]:
        """Return all of them, for the host."""
        return dict(self._values)


class PerColumnParamReader:
    """Parameters that are given for one column each."""

    def __init__(self, columns: Mapping[str, Mapping[str, object]] | None = None) -> None:
        self._columns = {name: ParamReader(values) for name, values in (columns or {}).items()}
        self._spelt = {name.lower(): name for name in self._columns}

    def containsColumns(self, columnName: str) -> bool:  # noqa: N803 - the SDK's
        """Tell whether something was given for the column."""
        return columnName.lower() in self._spelt

    # Both spellings are found in documentation.
    containsColumn = containsColumns

    def getColumnNames(self) -> list[str]:
        """Return the columns for which something was given."""
        return list(self._columns)

    def getColumnParamReader(self, columnName: str) -> ParamReader:  # noqa: N803 - the SDK's
        """Return what was given for the column, nothing where that is so."""
        spelt = self._spelt.get(columnName.lower())
        return ParamReader() if spelt is None else self._columns[spelt]


class SessionParamWriterMap:
    """Session parameters by library; they live as long as the phase."""

    def __init__(self) -> None:
        self._writers: dict[str, ParamWriter] = {}

    def getUDSessionParamWriter(self, library: str = "") -> ParamWriter:
        """Return the session parameters of a library, by default one's own."""
        return self._writers.setdefault(library, ParamWriter())
