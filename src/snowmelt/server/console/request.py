"""Input of a page: session, visibility of its role, catalog and parameters."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

import sqlalchemy as sa

from snowmelt.catalog.db.database import Database
from snowmelt.catalog.security.encryption_keys import KeyRing
from snowmelt.catalog.views.activity import ActivityMonitor
from snowmelt.catalog.views.visibility import Visibility
from snowmelt.clock import Clock
from snowmelt.config import Settings
from snowmelt.errors import NotFound
from snowmelt.schema.types import TableName, to_display_name
from snowmelt.server.console.sessions import Session
from snowmelt.storage.store import Store

if TYPE_CHECKING:
    from snowmelt.server.auth import Authenticator
    from snowmelt.server.console.check_runner import CheckRunner
    from snowmelt.server.console.workers import ConsoleWorkers
    from snowmelt.server.query_process import QueryProcesses


@dataclass(frozen=True, slots=True)
class ConsoleProblem:
    """A problem: what happened to which object, since when, and what to do.

    `severity` is `wrong` or `note`; `path` is the address of the page with the details. `has_duration` is True if
    the sentence has the time since then, which is not repeated.
    """

    severity: str
    sentence: str
    remedy: str
    since: dt.datetime | None = None
    path: str | None = None
    has_duration: bool = False


@dataclass(frozen=True, slots=True)
class ConsoleParts:
    """Components of the service that the console uses. `finding_sources` add findings to the overview."""

    settings: Settings
    clock: Clock
    database: Database
    keyring: KeyRing
    stage: Store
    authenticator: Authenticator
    queries: QueryProcesses
    activity: ActivityMonitor
    workers: ConsoleWorkers
    checks: CheckRunner
    finding_sources: list[ProblemSource] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class PageRequest:
    """A request for a page, inside one read transaction."""

    parts: ConsoleParts
    session: Session
    visibility: Visibility
    connection: sa.Connection
    names: tuple[str, ...]
    query: Mapping[str, str]
    now: dt.datetime

    def get(self, name: str, default: str = "") -> str:
        """Return a parameter of the address."""
        return self.query.get(name, default)

    @property
    def cursor(self) -> str | None:
        """The cursor of a list; None for its first page."""
        return self.query.get("after") or None

    def not_found(self, kind: str, name: object) -> PageNotFound:
        """Return the error for an object that does not exist, or that the role may not see."""
        return PageNotFound(
            kind=kind, name=str(name)[:200], role=to_display_name(self.session.role)
        )

    @property
    def table_name(self) -> TableName:
        """The table that the path names."""
        return TableName(*self.names[:3])


ProblemSource: TypeAlias = Callable[[PageRequest], Iterable[ConsoleProblem]]


class PageNotFound(NotFound, code="page_not_found", status=404):
    """There is no {kind} {name}, or role {role} may not see it. Check the name, or switch the role."""
