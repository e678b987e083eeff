"""How far a stream has read a table, as an offset of Spark's.

A table grows in two ways: chunks, numbered without gaps, and loads, whose native files have the
number of their commit. A position has both numbers. Migration moves chunks into native files and
compaction files into other files, neither changes what lies before a position; so rows are found
once wherever they are. A stream that takes the whole table first begins with the native files of
one snapshot, of which `files` have been read.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

from snowmelt.errors import LoadRefused

if TYPE_CHECKING:
    from collections.abc import Mapping

EARLIEST, LATEST = "earliest", "latest"
_VERSION = 1


@dataclass(frozen=True, slots=True)
class Position:
    """Chunks up to `seq` and loads up to the native commit `native` have been read.

    `watermark` and `rows` are those of that native commit, to prove what lies between two
    positions. `base` is the metadata file of a snapshot whose first `files` files have been read,
    None when all have.
    """

    seq: int
    native: int
    watermark: int
    rows: int
    base: str | None = None
    files: int = 0


@dataclass(frozen=True, slots=True)
class Offset:
    """A position of a stream of one incarnation of a table, and where the stream began.

    `stream` is an id of the stream's own, under which it tells clean-up how far it has read.
    """

    stream: str
    incarnation: str
    begin: Position
    at: Position

    def moved(self, at: Position) -> Offset:
        """Return the offset of another position of the same stream."""
        return replace(self, at=at)

    def json(self) -> dict[str, Any]:
        """Return what Spark writes into its checkpoint."""
        return {
            "version": _VERSION,
            "stream": self.stream,
            "incarnation": self.incarnation,
            "begin": asdict(self.begin),
            "at": asdict(self.at),
        }


def initial(starting: str) -> dict[str, Any]:
    """Return the offset before the first; where that is will be in the offsets after it.

    Spark asks for it anew after each restart until a batch is done, so it must not depend on when
    it is asked.
    """
    return {"version": _VERSION, "starting": starting}


def starting_of(found: Mapping[str, Any]) -> str | None:
    """Return the option of an initial offset, None where it is another."""
    return found.get("starting")


def offset_of(found: Mapping[str, Any]) -> Offset:
    """Read an offset that Spark hands back.

    Raises:
        LoadRefused: Another version of this package, or another source, has written it.
    """
    try:
        if found["version"] == _VERSION:
            return Offset(
                str(found["stream"]),
                str(found["incarnation"]),
                Position(**found["begin"]),
                Position(**found["at"]),
            )
    except (KeyError, TypeError):
        pass
    raise LoadRefused(
        what="The checkpoint", reason=f"it holds an offset that is none of this source's: {found}"
    )
