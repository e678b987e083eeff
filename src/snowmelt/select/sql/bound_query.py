"""Bound query, the output of the binder, and the field descriptions of CSV, JSON and Parquet objects."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from snowmelt.select.dialect import Dialect
from snowmelt.select.sql.ast import AggregateExpr, Expression, FromClause, OrderKey

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class CsvFields:
    """Header names of a CSV object in order, or None if the object has no header or ignores it."""

    names: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class JsonFields:
    """Fields of a JSON object. Records have no schema, so each name is a path into the record."""


@dataclass(frozen=True, slots=True)
class ParquetFields:
    """Top-level columns of a Parquet file in order."""

    names: tuple[str, ...]
    schema: pa.Schema | None = None


ObjectFields: TypeAlias = CsvFields | JsonFields | ParquetFields


@dataclass(frozen=True, slots=True)
class OutputColumn:
    """A value of each output record. `expression` may be a `StarExpr` in the Ceph dialects."""

    name: str
    expression: Expression


@dataclass(frozen=True, slots=True)
class BoundQuery:
    """A statement with resolved names, as the evaluators and executors run it.

    Attributes:
        dialect: Dialect of the statement.
        source: FROM clause.
        outputs: Output columns. Empty with `star`.
        star: True if the SELECT list is `*` alone, so that each record is the output.
        where: Condition on records, or None.
        aggregates: Distinct aggregates. Equal nodes occur in `outputs`, `having` and `order_by`.
        grouped: True if the query aggregates rows, with or without keys.
        last_row: True if outputs of the aggregation also read fields of the last row of the input
            (`sum(int(_1)), _2`, `ceph-2020` only).
        group_by: Grouping keys. Equal nodes occur in `outputs`, `having` and `order_by`.
        having: Condition on groups, or None.
        order_by: Sort keys.
        limit: Maximum number of output records, or None.
        offset: Number of output records to skip.
        distinct: True if the query drops duplicate output records.
        columns: Zero-based indexes of the fields that the query reads, ascending.
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
