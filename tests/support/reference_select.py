"""Reference execution of S3 Select: row by row, with only the binder and the scalar evaluator."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, cast

from snowmelt.select.dialect import Dialect
from snowmelt.select.errors import SelectError
from snowmelt.select.scalar.aggregates import make_accumulator
from snowmelt.select.scalar.evaluator import EvaluationContext, evaluate, is_true
from snowmelt.select.scalar.paths import follow_path
from snowmelt.select.sql.binder import bind_statement
from snowmelt.select.sql.bound_query import BoundQuery, CsvFields, JsonFields
from snowmelt.select.sql.parser import parse_statement
from snowmelt.select.timestamps import parse_iso_timestamp
from snowmelt.select.values import MISSING, format_value

if TYPE_CHECKING:
    from snowmelt.select.sql.ast import AggregateExpr
    from snowmelt.select.timestamps import Timestamp


AWS, CEPH, CEPH_2020 = Dialect.AWS, Dialect.CEPH, Dialect.CEPH_2020
ALL = (AWS, CEPH, CEPH_2020)
CEPHS = (CEPH, CEPH_2020)
NOW = cast("Timestamp", parse_iso_timestamp("2024-02-29T12:34:56Z"))


class Fields:
    """A record of CSV."""

    def __init__(self, fields: dict[str, str] | list[str] | tuple[Any, ...], dialect: Any) -> None:
        self._fields = fields
        self._dialect = dialect

    def field(self, column: Any) -> Any:
        if column.index >= len(self._fields):
            return MISSING
        text = self._fields[column.index]
        return None if self._dialect is CEPH and text == "" else text


class Document:
    """A record of JSON."""

    def __init__(
        self, document: dict[str, str] | list[str] | tuple[Any, ...], dialect: Any
    ) -> None:
        self._document = document
        self._dialect = dialect

    def field(self, column: Any) -> object:
        return follow_path(self._document, column.steps, is_ceph=self._dialect.is_ceph)


def query_of(
    statement: Any, dialect: Any = AWS, *, header: Any = None, json: bool = False
) -> BoundQuery:
    """Parse and bind a statement."""
    fields = JsonFields() if json else CsvFields(header)
    return bind_statement(parse_statement(statement, dialect), dialect=dialect, fields=fields)


def values(
    statement: Any,
    records: Sequence[Any] = ((),),
    dialect: Any = AWS,
    *,
    header: Any = None,
    json: bool = False,
) -> list[list[Any]]:
    """Return the values of each output record: WHERE, aggregates, GROUP BY, HAVING."""
    query = query_of(statement, dialect, header=header, json=json)
    scope = EvaluationContext(query, NOW)
    passing = []
    for record in records:
        row = Document(record, dialect) if json else Fields(record, dialect)
        scope.begin_row()
        if query.where is None or is_true(query.where, row, scope):
            passing.append(row)
    if query.grouped:
        return list(_folded(query, passing, scope))
    found = []
    for row in passing:
        scope.begin_row()
        found.append([evaluate(output.expression, row, scope) for output in query.outputs])
    return found


def _folded(
    query: BoundQuery, rows: list[Document | Fields], scope: EvaluationContext
) -> Iterator[list[Any]]:
    groups: dict[tuple[object, ...], list[Any]] = {} if query.group_by else {(): []}
    for row in rows:
        scope.begin_row()
        keys = tuple(evaluate(key, row, scope) for key in query.group_by)
        groups.setdefault(keys, []).append(row)
    for keys, members in groups.items():
        results: dict[Any, object] = dict(zip(query.group_by, keys, strict=True))
        for aggregate in query.aggregates:
            results[aggregate] = _fold(aggregate, members, scope)
        scope.begin_group(results)
        last = members[-1] if members else None
        if query.having is None or is_true(query.having, last, scope):
            yield [evaluate(output.expression, last, scope) for output in query.outputs]
        scope.begin_group({})


def _fold(aggregate: AggregateExpr, rows: list[Any], scope: EvaluationContext) -> object:
    accumulator = make_accumulator(aggregate, scope.dialect)
    for row in rows:
        scope.begin_row()
        if aggregate.argument is None:
            accumulator.add_rows(1)
        else:
            accumulator.add_value(evaluate(aggregate.argument, row, scope))
    return accumulator.compute_result()


def answer(
    statement: str, records: Sequence[Any] = ((),), dialect: Dialect = AWS, **options: Any
) -> list[Any]:
    """Return the result of `values` as CSV output."""
    found = values(statement, records, dialect, **options)
    return [[format_value(value, dialect) for value in record] for record in found]


def value(expression: str | None, dialect: Any = AWS, record: tuple[str, ...] = ()) -> Any:
    """Return the value of one expression in one record of CSV."""
    return values(f"select {expression} from stdin", [record], dialect)[0][0]


def printed(expression: str | None, dialect: Dialect = AWS, record: tuple[str, ...] = ()) -> str:
    """Return the output of one expression for one CSV record."""
    return format_value(value(expression, dialect, record), dialect)


def refusal(
    statement: Any, dialect: Any = AWS, records: Sequence[Any] = ((),), **options: Any
) -> str | None:
    """Return the error code of a statement, or None if it succeeds."""
    try:
        values(statement, records, dialect, **options)
    except SelectError as error:
        return error.s3_code
    return None
