"""How statements call things: names as they were written, and what they can lead to."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from snowmelt.schema.types import display_name

if TYPE_CHECKING:
    from snowmelt.catalog.model.privileges import Kind
    from snowmelt.catalog.sql.lexer import Place


class Level(StrEnum):
    """What a name leads to, outermost first."""

    ACCOUNT = "ACCOUNT"
    DATABASE = "DATABASE"
    SCHEMA = "SCHEMA"
    TABLE = "TABLE"

    @property
    def parts(self) -> int:
        """How many parts its full name has."""
        return list(Level).index(self)

    @property
    def kind(self) -> Kind:
        """The kind of object that privileges are granted on; the account is none."""
        return _KINDS[self]


_KINDS: dict[Level, Kind] = {
    Level.DATABASE: "DATABASE",
    Level.SCHEMA: "SCHEMA",
    Level.TABLE: "TABLE",
}


class Existing(StrEnum):
    """What CREATE does with something of that name that is there already."""

    REFUSE = "refuse"
    KEEP = "if not exists"
    REPLACE = "or replace"
    ALTER = "or alter"


@dataclass(frozen=True, slots=True)
class Name:
    """A name as far as it was written: one to three parts, the innermost last."""

    parts: tuple[str, ...]
    place: Place


def schema_shown(database: str, schema: str) -> str:
    """Return a schema's name as SQL writes it."""
    return f"{display_name(database)}.{display_name(schema)}"
