"""Loads user code as a library, and runs its phases on some input."""

from __future__ import annotations

from textwrap import dedent
from typing import TYPE_CHECKING, Any

from snowmelt.load.library import load_library
from snowmelt.load.phase_protocols import (
    ByteReader,
    ParseTarget,
)
from snowmelt.load.portion import InputFile, Portion
from snowmelt.schema.types import Column, LogicalType, TableSchema

if TYPE_CHECKING:
    from collections.abc import Iterable

    from snowmelt.load.library import Library

HEAD = """
import vertica_sdk
from vertica_sdk import InputState, StreamState
"""
NUMBER = Column("A", LogicalType.FIXED, 1, precision=38, scale=0)
TEXT = Column("B", LogicalType.TEXT, 2, length=5, byte_length=20)


def library(code: str, name: str = "lib") -> Library:
    """Load a file of user code, with the usual imports added."""
    return load_library(name, {"code.py": (HEAD + dedent(code)).encode()})


def filtered(phase: Any, *pieces: bytes) -> bytes:
    """Return the output of a filter for a stream of slices."""
    return b"".join(phase.run(ByteReader(pieces)))


def target(*columns: Column, **options: Any) -> ParseTarget:
    """Return a target. The default columns are a number A and a text B."""
    return ParseTarget(TableSchema(1, columns or (NUMBER, TEXT)), **options)


def parsed(
    phase: Any,
    pieces: Iterable[bytes],
    into: ParseTarget | None = None,
    portion: Portion | None = None,
) -> tuple[list[Any], list[Any]]:
    """Return rows and rejects of a stream."""
    whole = portion or Portion(InputFile("file"))
    blocks = list(phase.parse(ByteReader(pieces), into or target(), whole))
    rows = [row for block in blocks for row in block.rows.to_pylist()]
    rejects = [reject for block in blocks for reject in block.rejects]
    assert sum(block.records for block in blocks) == len(rows) + len(rejects)
    return rows, rejects
