"""Row groups that no record of can pass, by their statistics.

Only comparisons of a column with a literal of its own kind count: they cannot fail, so that
leaving a row group out hides no error. They count from the left of WHERE up to the first
condition of another sort.
"""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Any, TypeAlias

import pyarrow.types as pt

from snowmelt.select.syntax import Between, Binary, Column, Literal

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

    from snowmelt.select.syntax import Expression

_MIRRORED = {"=": "=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}

# Column, relation, literal.
Bound: TypeAlias = tuple[int, str, object]


def bounds_of(where: Expression | None, schema: pa.Schema) -> tuple[list[Bound], bool]:
    """Return the conditions that count, and whether they are all there are."""
    found: list[Bound] = []
    for condition in _conjuncts(where):
        bounds = _bounds(condition, schema)
        if bounds is None:
            return found, False
        found += bounds
    return found, True


def can_pass(
    group: pq.RowGroupMetaData, bounds: list[Bound], places: dict[int, int], *, all_known: bool
) -> bool:
    """Tell whether a record of a row group may fulfil all conditions.

    `places` tells where a top-level column lies among the leaves. Where other conditions follow
    (not `all_known`), a NULL lets them be evaluated, and they may fail: nothing is left out.
    """
    for column, relation, literal in bounds:
        place = places.get(column)
        statistics = None if place is None else group.column(place).statistics
        if statistics is None or not statistics.has_min_max:
            continue
        if not all_known and statistics.null_count != 0:
            continue
        if not _may_hold(relation, literal, statistics.min, statistics.max):
            return False
    return True


def _may_hold(relation: str, literal: Any, least: Any, most: Any) -> bool:
    if isinstance(literal, str) != isinstance(least, str):
        return True
    if isinstance(literal, str):
        # Statistics order texts by their bytes.
        low, high, wanted = (str(each).encode() for each in (least, most, literal))
        return _overlaps(relation, low < wanted, low == wanted, high > wanted, high == wanted)
    if not all(isinstance(each, int | float | Decimal) for each in (literal, least, most)):
        return True
    return _overlaps(
        relation,
        least < literal,
        least == literal,
        most > literal,
        most == literal,
    )


def _overlaps(relation: str, below: bool, starts: bool, above: bool, ends: bool) -> bool:
    return {
        "=": (below or starts) and (above or ends),
        "<": below,
        "<=": below or starts,
        ">": above,
        ">=": above or ends,
    }[relation]


def _conjuncts(where: Expression | None) -> list[Expression]:
    if where is None:
        return []
    if isinstance(where, Binary) and where.operator == "AND":
        return [*_conjuncts(where.left), *_conjuncts(where.right)]
    return [where]


def _bounds(condition: Expression, schema: pa.Schema) -> list[Bound] | None:
    if isinstance(condition, Between) and not condition.negated:
        low = _bound(condition.value, ">=", condition.low, schema)
        high = _bound(condition.value, "<=", condition.high, schema)
        return None if low is None or high is None else [low, high]
    if not isinstance(condition, Binary) or condition.operator not in _MIRRORED:
        return None
    bound = _bound(condition.left, condition.operator, condition.right, schema)
    if bound is None:
        mirrored = _MIRRORED[condition.operator]
        bound = _bound(condition.right, mirrored, condition.left, schema)
    return None if bound is None else [bound]


def _bound(
    column: Expression, relation: str, literal: Expression, schema: pa.Schema
) -> Bound | None:
    if not isinstance(column, Column) or column.steps or column.index is None:
        return None
    if not isinstance(literal, Literal) or isinstance(literal.value, bool):
        return None
    kind = schema.field(column.index).type
    numeric = pt.is_integer(kind) or pt.is_float32(kind) or pt.is_float64(kind)
    if numeric and isinstance(literal.value, int | float | Decimal):
        return column.index, relation, literal.value
    textual = pt.is_string(kind) or pt.is_large_string(kind)
    if textual and isinstance(literal.value, str):
        return column.index, relation, literal.value
    return None
