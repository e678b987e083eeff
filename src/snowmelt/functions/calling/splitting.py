"""Which sizes are too large for a function's service, learnt from what it could not take."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from snowmelt.functions.calling.sending import Request
    from snowmelt.functions.definition import ExternalFunction
    from snowmelt.functions.refusals import TooLarge


@dataclass(slots=True)
class Sizes:
    """The smallest sizes of requests that had to be sent in halves; for any number of threads."""

    rows: int | None = None
    body_bytes: int | None = None

    def forbid(self, request: Request) -> bool:
        """Tell whether a request is as large as one that was too large."""
        return request.rows > 1 and (
            (self.rows is not None and request.rows >= self.rows)
            or (self.body_bytes is not None and len(request.body) >= self.body_bytes)
        )


@dataclass(slots=True)
class Split:
    """A request that was too large; its size counts once both halves were answered as they were.

    A single huge row says nothing about a size: the half that holds it is too large again, until
    the row is alone, and all that time the other half was not.
    """

    sizes: Sizes
    rows: int | None
    body_bytes: int | None
    answered: int = 0

    @classmethod
    def of(cls, request: Request, error: TooLarge, sizes: Sizes) -> Split:
        """Note what was too large: the reply, which has to do with rows, or the request."""
        if error.fields.get("status") == 200:
            return cls(sizes, request.rows, None)
        return cls(sizes, None, len(request.body))

    def half_answered(self) -> None:
        """Count a half; with the second one, no request of this size is sent again."""
        self.answered += 1
        if self.answered == 2:
            self.sizes.rows = _least(self.sizes.rows, self.rows)
            self.sizes.body_bytes = _least(self.sizes.body_bytes, self.body_bytes)


def _least(known: int | None, found: int | None) -> int | None:
    if known is None or found is None:
        return known if found is None else found
    return min(known, found)


_sizes: dict[tuple[int, str, str], Sizes] = {}


def sizes_of(function: ExternalFunction) -> Sizes:
    """Return what this process knows about a function."""
    return _sizes.setdefault((os.getpid(), function.url, function.signature.name), Sizes())
