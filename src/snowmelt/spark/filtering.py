"""The rows that conditions select, as Spark would select them."""

from __future__ import annotations

import operator
from decimal import Decimal
from functools import reduce
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from snowmelt.table.scan import AllOf, AnyOf, Comparison, In, IsNull, StartsWith

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from snowmelt.table.scan import Predicate, Value

_COMPARE: dict[str, Callable[..., Any]] = {
    "=": pc.equal,
    "<=>": pc.equal,
    "<>": pc.not_equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
}


def filtered(table: pa.Table, predicates: Sequence[Predicate]) -> pa.Table:
    """Return the rows, in native form, for which every predicate is true."""
    for predicate in predicates:
        table = table.filter(_mask(table, predicate))
    return table


def columns_of(predicate: Predicate) -> Iterator[str]:
    """Yield the columns that a predicate is about."""
    if isinstance(predicate, AnyOf | AllOf):
        for each in predicate.conditions:
            yield from columns_of(each)
    else:
        yield predicate.column


def _mask(table: pa.Table, predicate: Predicate) -> Any:
    match predicate:
        case Comparison(column, op, value):
            return _compared(table.column(column), op, value)
        case In(column, values):
            array = table.column(column)
            found = [_compared(array, "=", value) for value in values]
            return reduce(pc.or_kleene, found, pa.array([False] * len(array)))
        case StartsWith(column, prefix):
            return pc.starts_with(table.column(column), prefix)
        case IsNull(column, negated):
            array = table.column(column)
            return pc.is_valid(array) if negated else pc.is_null(array)
        case AllOf(conditions):
            return reduce(pc.and_kleene, (_mask(table, each) for each in conditions))
        case AnyOf(conditions):
            return reduce(pc.or_kleene, (_mask(table, each) for each in conditions))


def _compared(array: pa.ChunkedArray, op: str, value: Value) -> Any:
    compare = _COMPARE[op]
    if pa.types.is_decimal(array.type) and not isinstance(value, float):
        # As wide as both, so that no digit is lost to a common type.
        exact = Decimal(value)  # type: ignore[arg-type]
        try:
            return compare(array, pa.scalar(exact, pa.decimal256(76, array.type.scale)))
        except pa.ArrowInvalid:
            # More digits behind the point than the column has: doubles would not do.
            wider = array.cast(pa.decimal256(76, max(array.type.scale, _digits(exact))))
            return compare(wider, pa.scalar(exact, wider.type))
    if pa.types.is_decimal(array.type) or pa.types.is_floating(array.type):
        numbers = array.cast(pa.float64())
        mask = compare(numbers, pa.scalar(float(value), pa.float64()))  # type: ignore[arg-type]
        # NaN is above every number to Spark.
        return pc.or_kleene(mask, pc.is_nan(numbers)) if op in {">", ">="} else mask
    return compare(array, pa.scalar(value, array.type))


def _digits(number: Decimal) -> int:
    exponent = number.as_tuple().exponent
    return max(0, operator.neg(exponent)) if isinstance(exponent, int) else 0
