"""Call context: information about the current call for the author's function."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from snowmelt.functions.wire import headers as names

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class Context:
    """One call. A function that has an argument annotated `Context` is given it.

    `headers` has all headers by lower-case name; the properties prefer the base64 twins, which
    are exact.
    """

    function: str
    rows: int
    headers: Mapping[str, str]

    @property
    def query_id(self) -> str | None:
        """The query, the same for all its batches."""
        return self.headers.get(names.QUERY_ID)

    @property
    def batch_id(self) -> str | None:
        """The batch, the same for each attempt at it."""
        return self.headers.get(names.BATCH_ID)

    @property
    def signature(self) -> str | None:
        """The arguments as the caller declared them, such as `(N NUMBER)`."""
        return names.decode_header(self.headers, names.SIGNATURE)

    @property
    def return_type(self) -> str | None:
        """The result as the caller declared it."""
        return names.decode_header(self.headers, names.RETURN_TYPE)

    @property
    def custom(self) -> dict[str, str]:
        """What the HEADERS clause sends, by name without prefix: `custom["volume-measure"]`."""
        return self._collect_headers(names.CUSTOM_PREFIX)

    @property
    def session(self) -> dict[str, str]:
        """What the CONTEXT_HEADERS clause sends, by function: `session["current-user"]`."""
        return self._collect_headers(names.CONTEXT_PREFIX)

    def _collect_headers(self, prefix: str) -> dict[str, str]:
        found = {}
        for name in self.headers:
            if name.startswith(prefix):
                plain = name.removesuffix(names.BASE64_SUFFIX)
                found[plain.removeprefix(prefix)] = names.decode_header(self.headers, plain) or ""
        return found
