"""Paths of pages that use child processes or change data."""

from __future__ import annotations

import re
from urllib.parse import unquote

from snowmelt.server.console.pages import checks, functions, query, select, trace
from snowmelt.server.console.pages.action import Action

_TABLE = "/tables/([^/]+)/([^/]+)/([^/]+)"

ACTIONS: tuple[Action, ...] = (
    Action(re.compile("/checks"), checks.start_checks),
    Action(re.compile("/functions"), functions.show_functions),
    Action(re.compile("/query"), query.show_query),
    Action(re.compile("/select"), select.show_select),
    Action(re.compile("/loads/([^/]+)/rejects"), query.show_rejects),
    Action(re.compile(f"{_TABLE}/rows"), query.show_rows),
    Action(re.compile(f"{_TABLE}/trace"), trace.show_trace),
    Action(re.compile(f"{_TABLE}/rejected"), query.show_rejected, changes=True),
)


def find_action(path: str) -> tuple[Action, tuple[str, ...]] | None:
    """Return the action at a path and the names in the path, or None if there is none."""
    for action in ACTIONS:
        if found := action.pattern.fullmatch(path):
            return action, tuple(map(unquote, found.groups()))
    return None
