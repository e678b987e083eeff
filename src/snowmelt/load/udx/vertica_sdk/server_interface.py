"""Server interface of user code: parameters, environment names, log and plan context."""

from __future__ import annotations

import datetime as dt
import logging
import platform
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

_log = logging.getLogger("snowmelt.load")
_TRUE_WORDS = frozenset({"true", "t", "yes", "y", "on", "1"})


class ParamReader:
    """Reader of parameters by case-insensitive name. Getters raise KeyError for an unknown name."""

    def __init__(self, values: Mapping[str, object] | None = None) -> None:
        self._values: dict[str, object] = dict(values or {})
        self._spelt = {name.lower(): name for name in self._values}

    def containsParameter(self, name: str) -> bool:
        return name.lower() in self._spelt

    def getParamNames(self) -> list[str]:
        return list(self._values)

    def getBool(self, name: str) -> bool:
        value = self._get_value(name)
        return value.lower() in _TRUE_WORDS if isinstance(value, str) else bool(value)

    def getInt(self, name: str) -> int:
        return int(self._get_value(name))

    getIntervalYM = getInt

    def getFloat(self, name: str) -> float:
        return float(self._get_value(name))

    def getNumeric(self, name: str) -> Decimal:
        value = self._get_value(name)
        return Decimal(repr(value) if isinstance(value, float) else value)

    def getString(self, name: str) -> str:
        value = self._get_value(name)
        return value.decode() if isinstance(value, bytes) else str(value)

    def getDate(self, name: str) -> dt.date:
        value = self._get_value(name)
        return dt.date.fromisoformat(value) if isinstance(value, str) else value

    def getTime(self, name: str) -> dt.time:
        value = self._get_value(name)
        return dt.time.fromisoformat(value) if isinstance(value, str) else value

    def getTimestamp(self, name: str) -> dt.datetime:
        value = self._get_value(name)
        return dt.datetime.fromisoformat(value) if isinstance(value, str) else value

    getTimeTz = getTime
    getTimestampTz = getTimestamp

    def getInterval(self, name: str) -> dt.timedelta:
        value = self._get_value(name)
        return value if isinstance(value, dt.timedelta) else dt.timedelta(seconds=float(value))

    def _get_value(self, name: str) -> Any:
        spelt = self._spelt.get(name.lower())
        if spelt is None:
            raise KeyError(f"unknown parameter {name}")
        return self._values[spelt]


class ParamWriter(ParamReader):
    """Values that `plan` passes to the tasks of the load."""

    def setBool(self, name: str, value: object) -> None:
        """Store a value. All setters store it unchanged."""
        self._spelt.setdefault(name.lower(), name)
        self._values[self._spelt[name.lower()]] = value

    setDate = setFloat = setInt = setInterval = setIntervalYM = setNumeric = setBool
    setString = setTime = setTimeTz = setTimestamp = setTimestampTz = setBool

    def values(self) -> dict[str, object]:
        """Return all values. For the host."""
        return dict(self._values)


class PerColumnParamReader:
    """Parameters of single columns."""

    def __init__(self, columns: Mapping[str, Mapping[str, object]] | None = None) -> None:
        self._columns = {name: ParamReader(values) for name, values in (columns or {}).items()}
        self._spelt = {name.lower(): name for name in self._columns}

    def containsColumns(self, columnName: str) -> bool:
        return columnName.lower() in self._spelt

    # Documentation uses both spellings.
    containsColumn = containsColumns

    def getColumnNames(self) -> list[str]:
        """Return the columns with parameters."""
        return list(self._columns)

    def getColumnParamReader(self, columnName: str) -> ParamReader:
        """Return the parameters of a column, which may be none."""
        spelt = self._spelt.get(columnName.lower())
        return ParamReader() if spelt is None else self._columns[spelt]


class SessionParamWriterMap:
    """Session parameters by library. They last as long as the phase."""

    def __init__(self) -> None:
        self._writers: dict[str, ParamWriter] = {}

    def getUDSessionParamWriter(self, library: str = "") -> ParamWriter:
        """Return the session parameters of a library. Default: this library."""
        return self._writers.setdefault(library, ParamWriter())


class ServerInterface:
    """Access to parameters, environment names and the log."""

    def __init__(self, parameters: Mapping[str, object] | None = None, name: str = "") -> None:
        self._reader = ParamReader(parameters)
        self._name = name
        self.session_params = SessionParamWriterMap()

    def log(self, message: object, *args: object) -> None:
        """Write to the log. With arguments, the message is a printf format."""
        text = str(message) % args if args else str(message)
        _log.info("%s: %s", self._name, text, extra={"action": "user_code_said"})

    def getParamReader(self) -> ParamReader:
        return self._reader

    def getUDSessionParamReader(self, nsp: str = "") -> ParamReader:
        """Return the session parameters that this phase wrote."""
        return self.session_params.getUDSessionParamWriter(nsp)

    def getNodeName(self) -> str:
        return platform.node() or "localhost"

    getCurrentNodeName = getNodeName

    def getDatabaseName(self) -> str:
        return "SNOWMELT"

    def getUserName(self) -> str:
        return "snowmelt"

    def getLocale(self) -> str:
        return "en_US@collation=binary (LEN_KBINARY)"


class PlanContext:
    """Plan context: values that `plan` writes and later methods read."""

    def __init__(self, values: Mapping[str, object] | None = None) -> None:
        self._writer = ParamWriter(values)
        self._targets = self.getClusterNodes()

    def getReader(self) -> ParamReader:
        return self._writer

    def getWriter(self) -> ParamWriter:
        return self._writer

    def getClusterNodes(self) -> list[str]:
        """Return the name of this machine."""
        return [platform.node() or "localhost"]

    def getTargetNodes(self) -> list[str]:
        return list(self._targets)

    def setTargetNodes(self, nodes: list[str]) -> None:
        """Store the requested machines. The scheduler ignores them."""
        self._targets = list(nodes)

    def canApportionSource(self) -> bool:
        return False

    def getMaxAllowedThreads(self) -> int:
        return 1

    def getLoadConcurrency(self) -> int:
        return 1


class NodeSpecifyingPlanContext(PlanContext):
    """Plan context of a source's `plan`."""


class ExecutorPlanContext(PlanContext):
    """Plan context of a source's `prepare`."""
