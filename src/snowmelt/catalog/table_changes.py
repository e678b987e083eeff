"""What ALTER TABLE says, as data: names are internal names, and each knows where it stands."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping

    from snowmelt.catalog.lexing import Place
    from snowmelt.schema.types import Column


@dataclass(frozen=True, slots=True)
class ColumnName:
    """A column's name where a statement writes it."""

    name: str
    place: Place


@dataclass(frozen=True, slots=True)
class AddColumns:
    """ADD COLUMN; the columns have no ordinals yet (0). `keeping` are those IF NOT EXISTS."""

    columns: tuple[Column, ...]
    places: tuple[Place, ...]
    keeping: frozenset[str]


@dataclass(frozen=True, slots=True)
class DropColumns:
    """DROP COLUMN."""

    columns: tuple[ColumnName, ...]
    if_exists: bool


@dataclass(frozen=True, slots=True)
class RenameColumn:
    """RENAME COLUMN … TO …."""

    column: ColumnName
    new: ColumnName


@dataclass(frozen=True, slots=True)
class ColumnChange:
    """What becomes of one column: its new type (name and ordinal mean nothing), or no NOT NULL."""

    column: ColumnName
    new_type: Column | None


@dataclass(frozen=True, slots=True)
class AlterColumns:
    """ALTER COLUMN, one or several."""

    changes: tuple[ColumnChange, ...]


@dataclass(frozen=True, slots=True)
class RenameTable:
    """RENAME TO, with the parts that were written: one or two leave the table where it is."""

    parts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ClusterBy:
    """CLUSTER BY; DROP CLUSTERING KEY has no columns."""

    columns: tuple[ColumnName, ...]


@dataclass(frozen=True, slots=True)
class SetProperties:
    """SET or UNSET: fields of `object_grammar` and their new values."""

    values: Mapping[str, object]


TableChange: TypeAlias = (
    AddColumns | DropColumns | RenameColumn | AlterColumns | RenameTable | ClusterBy | SetProperties
)
