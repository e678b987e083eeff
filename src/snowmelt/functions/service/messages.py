"""A request and its response, whoever brought it: a web server, a gateway's event, a cloud."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class Request:
    """What came; header names are in lower case."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes = b""
    query: str = ""


@dataclass(frozen=True, slots=True)
class Response:
    """What goes back."""

    status: int
    body: bytes
    headers: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Answer:
    """What a batch came to: an HTTP status and JSON, not yet compressed or signed."""

    status: int
    body: bytes
    retry_after_s: float | None = None
