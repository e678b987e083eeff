"""Names as statements write them, the level they denote, and the modes of CREATE."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from snowmelt.schema.types import to_display_name

if TYPE_CHECKING:
    from snowmelt.catalog.model.privilege_kinds import ObjectKind
    from snowmelt.catalog.sql.lexer import SourcePosition


class NameLevel(StrEnum):
    """What a name leads to, outermost first."""

    ACCOUNT = "ACCOUNT"
    DATABASE = "DATABASE"
    SCHEMA = "SCHEMA"
    TABLE = "TABLE"

    @property
    def part_count(self) -> int:
        """How many parts its full name has."""
        return list(NameLevel).index(self)

    @property
    def object_kind(self) -> ObjectKind:
        """The kind of object that privileges are granted on; the account is none."""
        return _OBJECT_KINDS[self]


_OBJECT_KINDS: dict[NameLevel, ObjectKind] = {
    NameLevel.DATABASE: "DATABASE",
    NameLevel.SCHEMA: "SCHEMA",
    NameLevel.TABLE: "TABLE",
}


class CreateMode(StrEnum):
    """What CREATE does with something of that name that is there already."""

    FAIL_IF_EXISTS = "refuse"
    IF_NOT_EXISTS = "if not exists"
    OR_REPLACE = "or replace"
    OR_ALTER = "or alter"


@dataclass(frozen=True, slots=True)
class ObjectName:
    """A name as far as it was written: one to three parts, the innermost last."""

    parts: tuple[str, ...]
    position: SourcePosition


def display_schema(database: str, schema: str) -> str:
    """Return a schema's name as SQL writes it."""
    return f"{to_display_name(database)}.{to_display_name(schema)}"
