"""Statement objects of pipes: target table, columns, and the expression tree of each column."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from decimal import Decimal

    from snowmelt.catalog.sql.column_types import ColumnType
    from snowmelt.catalog.sql.lexer import SourcePosition
    from snowmelt.catalog.sql.object_name_types import CreateMode, ObjectName


@dataclass(frozen=True, slots=True)
class PipeLiteral:
    """A constant."""

    value: str | int | Decimal | bool | None


@dataclass(frozen=True, slots=True)
class PipeField:
    """A part of the row: `$1:a.b[0]`; without steps the whole row. Names count as written."""

    steps: tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class PipeCast:
    """`operand::TYPE`."""

    operand: PipeExpression
    type: ColumnType


@dataclass(frozen=True, slots=True)
class PipeCall:
    """A function of the listed ones; operators are `+ - * / ||`."""

    name: str
    arguments: tuple[PipeExpression, ...]


PipeExpression: TypeAlias = PipeLiteral | PipeField | PipeCast | PipeCall


@dataclass(frozen=True, slots=True)
class PipeItem:
    """One expression of the SELECT, with the column that it goes to where that is named."""

    expression: PipeExpression
    alias: str | None
    position: SourcePosition


@dataclass(frozen=True, slots=True)
class PipeCopy:
    """The COPY of a pipe.

    `items` None takes the row's own fields. With `by_name` an item's alias is its column, else
    its position among `columns`, or among the table's. With `case_sensitive` the row's own fields
    name columns letter by letter.
    """

    table: ObjectName
    columns: tuple[str, ...] | None
    items: tuple[PipeItem, ...] | None
    by_name: bool
    case_sensitive: bool = False


@dataclass(frozen=True, slots=True)
class CreatePipe:
    """CREATE PIPE; `definition` is the text after AS."""

    name: ObjectName
    create_mode: CreateMode
    definition: str
    copy: PipeCopy
    comment: str | None


@dataclass(frozen=True, slots=True)
class DropPipe:
    """DROP PIPE."""

    name: ObjectName
    if_exists: bool


@dataclass(frozen=True, slots=True)
class DescribePipe:
    """DESCRIBE PIPE."""

    name: ObjectName
