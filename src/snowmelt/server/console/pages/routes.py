"""Routes of the console's pages."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import unquote

from snowmelt.server.console.layout import ConsolePage
from snowmelt.server.console.pages import (
    channels,
    checks,
    kafka,
    loads,
    overview,
    pipes,
    sites,
    tables,
)
from snowmelt.server.console.request import PageRequest

_SEGMENT = "([^/]+)"


@dataclass(frozen=True, slots=True)
class PageRoute:
    """Route of a page, which sends its changed regions."""

    pattern: re.Pattern[str]
    show: Callable[[PageRequest], ConsolePage]


def _route(path: str, show: Callable[[PageRequest], ConsolePage]) -> PageRoute:
    return PageRoute(re.compile(path.replace("*", _SEGMENT)), show)


ROUTES = (
    _route("/", overview.show_overview),
    _route("/channels", channels.show_channels),
    _route("/channels/*/*/*/*", channels.show_channel),
    _route("/tables", tables.show_tables),
    _route("/tables/*/*/*", tables.show_table),
    _route("/loads", loads.show_loads),
    _route("/loads/*", loads.show_load),
    _route("/pipes", pipes.show_pipes),
    _route("/pipes/*/*/*", pipes.show_pipe),
    _route("/kafka", kafka.show_kafka),
    _route("/migrations", loads.show_migrations),
    _route("/checks", checks.show_checks),
    _route("/sites", sites.show_sites),
)


def find_route(path: str) -> tuple[PageRoute, tuple[str, ...]] | None:
    """Return the route at a path and the names in the path, or None if there is none."""
    for route in ROUTES:
        if found := route.pattern.fullmatch(path):
            return route, tuple(map(unquote, found.groups()))
    return None
