"""One request of the row API, taken apart."""

from __future__ import annotations

from typing import TYPE_CHECKING

from snowmelt.ingest.rows.places import SdkClient
from snowmelt.server.rows.addresses import parse_query

if TYPE_CHECKING:
    from collections.abc import Mapping

    from snowmelt.server.rows.tokens import Claims

_SDK = b"SnowpipeStreamingSDK/"
# What an answer to rows says in it, the SDK says in the next request of the channel.
STICKY = b"x-snowflake-session"


class Call:
    """One request: `path` without parameters, as it came; `user` is for the log.

    `claims` are what its token says, where it is one that was given here.
    """

    __slots__ = ("body", "claims", "headers", "method", "path", "query", "user")

    def __init__(
        self, method: str, path: str, query: bytes, headers: Mapping[bytes, bytes]
    ) -> None:
        self.method = method
        self.path = path
        self.query: Mapping[str, str] = parse_query(query)
        self.headers = headers
        self.body = b""
        self.user: str | None = None
        self.claims: Claims | None = None

    def header(self, name: bytes) -> str:
        """Return a header, empty when it was not sent."""
        return self.headers.get(name, b"").decode("latin-1")

    @property
    def client(self) -> SdkClient | None:
        """The client of the official SDK that sends it, None for everybody else."""
        if not self.headers.get(b"user-agent", b"").startswith(_SDK):
            return None
        if self.claims is None:
            return SdkClient()
        issued = self.claims.issued_ms
        born = self.header(STICKY)
        is_told = born.isascii() and born.isdigit() and len(born) < 16
        return SdkClient(self.claims.jti, issued, min(int(born), issued) if is_told else issued)

    def optional(self, name: str) -> str | None:
        """Return a parameter; one that is empty is as good as absent."""
        return self.query.get(name) or None

    @property
    def start_token(self) -> str | None:
        """The offset token of the first row."""
        return self.optional("startOffsetToken")

    @property
    def end_token(self) -> str | None:
        """The offset token of the last row; clients before 1.0 send the one token."""
        return self.optional("endOffsetToken") or self.optional("offsetToken")

    @property
    def retries(self) -> int:
        """How often the client has sent it before."""
        return number_of(self.query.get("retryCount", "0"))


def number_of(text: str) -> int:
    """Return a number that a client tells, 0 for what is none."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0
