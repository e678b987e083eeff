"""Paths of the row API, taken apart as they came, before anything is decoded."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, unquote

from snowmelt.ingest.rows.places import PipePath

if TYPE_CHECKING:
    from collections.abc import Mapping

PREFIX = "/v2/streaming/"
_LEVELS = ("databases", "schemas", "pipes")


@dataclass(frozen=True, slots=True)
class Address:
    """What a path names: a pipe, perhaps a channel of it, and what is asked of it.

    `verb` is empty where the method alone says it; `is_data` tells paths beneath `data/`.
    """

    pipe: PipePath
    channel: str | None
    verb: str
    is_data: bool


@lru_cache(maxsize=20_000)
def parse_address(raw_path: str) -> Address | None:
    """Return what a path beneath `/v2/streaming/` names; None when it is none of the row API's."""
    parts = raw_path.removeprefix(PREFIX).split("/")
    is_data = parts[0] == "data"
    parts = parts[1:] if is_data else parts
    if len(parts) < 6 or tuple(parts[0:6:2]) != _LEVELS:
        return None
    # Names may hold an encoded colon or slash; only what is not encoded separates.
    pipe, colon, verb = parts[5].rpartition(":")
    if not colon:
        pipe, verb = parts[5], ""
    path = PipePath(unquote(parts[1]), unquote(parts[3]), unquote(pipe))
    rest = parts[6:]
    if not rest:
        return Address(path, None, verb, is_data) if verb else None
    if verb or rest[0] != "channels" or len(rest) not in {2, 3}:
        return None
    return Address(path, unquote(rest[1]), rest[2] if len(rest) == 3 else "", is_data)


def parse_query(query: bytes) -> Mapping[str, str]:
    """Return the parameters of a request; one that is given twice counts as last given."""
    return dict(parse_qsl(query.decode("latin-1"), keep_blank_values=True))
