"""Style sheet and script of the console. Their URLs contain a digest of the content."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache
from importlib import resources

_TYPES = {"css": "text/css; charset=utf-8", "js": "text/javascript; charset=utf-8"}
_NAMES = ("console.css", "console.js")


@dataclass(frozen=True, slots=True)
class Asset:
    """A file, its content type, and its path below the mount path."""

    content: bytes
    content_type: str
    path: str


@cache
def load_asset(name: str) -> Asset:
    """Return the asset with this file name."""
    content = resources.files("snowmelt.server.console").joinpath("static", name).read_bytes()
    stem, _, ending = name.rpartition(".")
    digest = hashlib.sha256(content).hexdigest()[:12]
    return Asset(content, _TYPES[ending], f"/static/{stem}-{digest}.{ending}")


def asset_url(name: str) -> str:
    """Return the URL path of an asset."""
    return f"/console{load_asset(name).path}"


def find_asset(path: str) -> Asset | None:
    """Return the asset at a path, or None if there is none."""
    return next((each for each in map(load_asset, _NAMES) if each.path == path), None)
