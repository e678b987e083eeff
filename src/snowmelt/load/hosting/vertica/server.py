"""What user code knows of the system that it runs in."""

# ruff: noqa: N802, N815 - the SDK's names

from __future__ import annotations

import logging
import platform
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from snowmelt.load.hosting.vertica.parameters import (
    ParamReader,
    ParamWriter,
    SessionParamWriterMap,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

_log = logging.getLogger("snowmelt.load")


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Names that a load may know of itself, handed to user code."""

    database: str = "SNOWMELT"
    user: str = "snowmelt"
    locale: str = "en_US@collation=binary (LEN_KBINARY)"
    nodes: tuple[str, ...] = field(default_factory=lambda: (platform.node() or "localhost",))


class ServerInterface:
    """Parameters, names and the log."""

    def __init__(
        self,
        parameters: Mapping[str, object] | None = None,
        surroundings: Surroundings | None = None,
        name: str = "",
    ) -> None:
        self._reader = ParamReader(parameters)
        self._around = surroundings or Surroundings()
        self._sessions = SessionParamWriterMap()
        self._name = name

    def log(self, message: object, *args: object) -> None:
        """Write to the log; with arguments, the message is their printf format."""
        text = str(message) % args if args else str(message)
        _log.info("%s: %s", self._name, text, extra={"action": "user_code_said"})

    def getParamReader(self) -> ParamReader:
        """Return the parameters that the statement gives."""
        return self._reader

    def getUDSessionParamReader(self, nsp: str = "") -> ParamReader:
        """Return session parameters; there are those that this phase wrote."""
        return self._sessions.getUDSessionParamWriter(nsp)

    def getNodeName(self) -> str:
        """Return the name of the machine."""
        return platform.node() or self._around.nodes[0]

    getCurrentNodeName = getNodeName

    def getDatabaseName(self) -> str:
        """Return the database that is loaded into."""
        return self._around.database

    def getUserName(self) -> str:
        """Return who loads."""
        return self._around.user

    def getLocale(self) -> str:
        """Return the locale of the session."""
        return self._around.locale

    @property
    def sessions(self) -> SessionParamWriterMap:
        """The session parameters, for `destroy`."""
        return self._sessions


class PlanContext:
    """What `plan` writes, and all that come after it read."""

    def __init__(
        self, values: Mapping[str, object] | None = None, surroundings: Surroundings | None = None
    ) -> None:
        self._writer = ParamWriter(values)
        self._around = surroundings or Surroundings()
        self._targets = list(self._around.nodes)

    def getReader(self) -> ParamReader:
        """Return what was written so far."""
        return self._writer

    def getWriter(self) -> ParamWriter:
        """Return where to write."""
        return self._writer

    def getClusterNodes(self) -> list[str]:
        """Return the names of all machines that are known when the load is planned."""
        return list(self._around.nodes)

    def getTargetNodes(self) -> list[str]:
        """Return the machines that a source asked for."""
        return list(self._targets)

    def setTargetNodes(self, nodes: list[str]) -> None:
        """Ask for machines; which task runs where is the scheduler's, so this changes nothing."""
        self._targets = list(nodes)

    def canApportionSource(self) -> bool:
        """Tell whether a source may be cut into portions."""
        return False

    def getMaxAllowedThreads(self) -> int:
        """Return how many threads a source may ask for."""
        return 1

    def getLoadConcurrency(self) -> int:
        """Return how many threads load one source."""
        return 1


class NodeSpecifyingPlanContext(PlanContext):
    """What a source is planned with."""


class ExecutorPlanContext(PlanContext):
    """What a source is prepared with."""
