"""What a pipe says: where rows go, and what is computed from each. Data only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from decimal import Decimal

    from snowmelt.catalog.sql.column_types import ColumnType
    from snowmelt.catalog.sql.identifiers import Existing, Name
    from snowmelt.catalog.sql.lexer import Place


@dataclass(frozen=True, slots=True)
class Literal:
    """A constant."""

    value: str | int | Decimal | bool | None


@dataclass(frozen=True, slots=True)
class Path:
    """A part of the row: `$1:a.b[0]`; without steps the whole row. Names count as written."""

    steps: tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Cast:
    """`operand::TYPE`."""

    operand: Expression
    type: ColumnType


@dataclass(frozen=True, slots=True)
class Call:
    """A function of the listed ones; operators are `+ - * / ||`."""

    name: str
    arguments: tuple[Expression, ...]


Expression: TypeAlias = Literal | Path | Cast | Call


@dataclass(frozen=True, slots=True)
class Item:
    """One expression of the SELECT, with the column that it goes to where that is named."""

    expression: Expression
    alias: str | None
    place: Place


@dataclass(frozen=True, slots=True)
class PipeCopy:
    """The COPY of a pipe.

    `items` None takes the row's own fields. With `by_name` an item's alias is its column, else
    its position among `columns`, or among the table's. With `case_sensitive` the row's own fields
    name columns letter by letter.
    """

    table: Name
    columns: tuple[str, ...] | None
    items: tuple[Item, ...] | None
    by_name: bool
    case_sensitive: bool = False


@dataclass(frozen=True, slots=True)
class CreatePipe:
    """CREATE PIPE; `definition` is the text after AS."""

    name: Name
    existing: Existing
    definition: str
    copy: PipeCopy
    comment: str | None


@dataclass(frozen=True, slots=True)
class DropPipe:
    """DROP PIPE."""

    name: Name
    if_exists: bool


@dataclass(frozen=True, slots=True)
class DescribePipe:
    """DESCRIBE PIPE."""

    name: Name
