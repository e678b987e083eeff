"""Bound query, the binder's result, and the field descriptions of CSV, JSON and Parquet objects."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from snowmelt.select.dialect import Dialect
from snowmelt.select.sql.ast import AggregateExpr, Expression, FromClause, OrderKey

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class CsvFields:
    """The header's names in order; None where the object has no header that counts."""

    names: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class JsonFields:
    """Records without a schema: each name is a path into the record."""


@dataclass(frozen=True, slots=True)
class ParquetFields:
    """The file's top-level columns in order."""

    names: tuple[str, ...]
    schema: pa.Schema | None = None


ObjectFields: TypeAlias = CsvFields | JsonFields | ParquetFields


@dataclass(frozen=True, slots=True)
class OutputColumn:
    """One value of each output record; `expression` may be a `StarExpr` in the Ceph dialects."""

    name: str
    expression: Expression


@dataclass(frozen=True, slots=True)
class BoundQuery:
    """A statement whose names are resolved; what evaluator and plan run.

    `star` means SELECT * alone: the record as it is, `outputs` is empty. `aggregates` are the
    distinct ones; in `outputs`, `having` and `order_by` they stand as equal nodes, and so do the
    expressions of `group_by`. `grouped` is true where rows are folded, with or without keys.
    `last_row` is true where the fold's outputs also read fields of the last row folded
    (`sum(int(_1)), _2`, ceph-2020 only). `columns` are the places of needed fields, ascending,
    from zero.
    """

    dialect: Dialect
    source: FromClause
    outputs: tuple[OutputColumn, ...]
    star: bool = False
    where: Expression | None = None
    aggregates: tuple[AggregateExpr, ...] = ()
    grouped: bool = False
    last_row: bool = False
    group_by: tuple[Expression, ...] = ()
    having: Expression | None = None
    order_by: tuple[OrderKey, ...] = ()
    limit: int | None = None
    offset: int = 0
    distinct: bool = False
    columns: tuple[int, ...] = ()
