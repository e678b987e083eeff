"""Pages with a form, and their input."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Protocol, TypeVar

from snowmelt.server.console.layout import ConsolePage
from snowmelt.server.console.request import ConsoleParts, PageRequest
from snowmelt.server.console.sessions import Session

_Result = TypeVar("_Result")


class ReadCatalog(Protocol):
    """Runs a function inside a read transaction, in a thread of the console."""

    def __call__(self, show: Callable[[PageRequest], _Result], /) -> Awaitable[_Result]:
        """Return the result of the function."""


@dataclass(frozen=True, slots=True)
class ActionRequest:
    """A request for an action.

    `fields` has the fields of the sent form, or is empty without one.
    """

    parts: ConsoleParts
    session: Session
    fields: Mapping[str, str]
    query: Mapping[str, str]
    read: ReadCatalog


@dataclass(frozen=True, slots=True)
class Action:
    """A page with a form.

    If `changes` is True, the form requires SNOWMELT_CONSOLE=write, and each use is written to the
    audit log.
    """

    pattern: re.Pattern[str]
    run: Callable[[ActionRequest], Awaitable[ConsolePage]]
    changes: bool = False
