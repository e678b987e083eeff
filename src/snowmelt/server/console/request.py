"""Input of a page: session, visible objects of its role, catalog and parameters."""

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
    """A problem of the installation: a sentence, its time, and a remedy.

    `severity` is `wrong` or `note`. `path` is the path of the page with the details. `has_duration`
    is True if the sentence states the duration, which the page then does not add.
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
    """A request for a page, with the connection of one read transaction."""

    parts: ConsoleParts
    session: Session
    visibility: Visibility
    connection: sa.Connection
    names: tuple[str, ...]
    query: Mapping[str, str]
    now: dt.datetime

    def get(self, name: str, default: str = "") -> str:
        """Return a parameter of the URL."""
        return self.query.get(name, default)

    @property
    def cursor(self) -> str | None:
        """The cursor of a list, or None for its first page."""
        return self.query.get("after") or None

    def not_found(self, kind: str, name: object) -> PageNotFound:
        """Return the error for an object that does not exist or that the role may not see."""
        return PageNotFound(
            kind=kind, name=str(name)[:200], role=to_display_name(self.session.role)
        )

    @property
    def table_name(self) -> TableName:
        """Full name of the table in the path."""
        return TableName(*self.names[:3])


ProblemSource: TypeAlias = Callable[[PageRequest], Iterable[ConsoleProblem]]


class PageNotFound(NotFound, code="page_not_found", status=404):
    """There is no {kind} {name}, or role {role} may not see it. Check the name, or switch the role."""
