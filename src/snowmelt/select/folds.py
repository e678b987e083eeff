"""Where aggregates may stand, and what may stand beside them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from snowmelt.select.syntax import Aggregate, AliasUse, Column, Star, children, walk

if TYPE_CHECKING:
    from collections.abc import Iterator

    from snowmelt.select.query import Query
    from snowmelt.select.syntax import Expression


def aggregates_of(query: Query) -> tuple[Aggregate, ...]:
    """Return the distinct aggregates of everything that is evaluated after rows were folded."""
    found = (part for expression in after_folding(query) for part in walk(expression))
    return tuple(dict.fromkeys(part for part in found if isinstance(part, Aggregate)))


def after_folding(query: Query) -> list[Expression]:
    """Return the expressions of a query that see folded rows, where it folds."""
    expressions = [output.expression for output in query.outputs]
    expressions += [] if query.having is None else [query.having]
    return expressions + [order.expression for order in query.order_by]


def before_folding(query: Query) -> list[Expression]:
    """Return the expressions of a query that always see single rows."""
    expressions = [] if query.where is None else [query.where]
    arguments = (node.argument for node in query.aggregates)
    expressions += [argument for argument in arguments if argument is not None]
    return expressions + list(query.group_by)


def misplaced_aggregate(query: Query) -> Aggregate | None:
    """Return an aggregate that would need folded rows before they are folded, also by an alias."""
    for expression in before_folding(query):
        for part in _expanded(expression, query):
            if isinstance(part, Aggregate):
                return part
    return None


def loose_field(query: Query) -> Column | Star | None:
    """Return a field that differs from row to row where rows are folded, outside any aggregate."""
    keys = set(query.group_by)
    waiting = after_folding(query)
    while waiting:
        node = waiting.pop()
        if node in keys or isinstance(node, Aggregate):
            continue
        if isinstance(node, Column | Star):
            return node
        if isinstance(node, AliasUse):
            waiting.append(query.outputs[node.projection].expression)
        waiting.extend(children(node))
    return None


def places_of(query: Query) -> tuple[int, ...]:
    """Return the places of all fields that a query needs, ascending."""
    found = {
        part.index
        for expression in (*after_folding(query), *before_folding(query))
        for part in walk(expression)
        if isinstance(part, Column) and part.index is not None
    }
    return tuple(sorted(found))


def _expanded(expression: Expression, query: Query) -> Iterator[Expression]:
    waiting = [expression]
    while waiting:
        node = waiting.pop()
        yield node
        if isinstance(node, AliasUse):
            waiting.append(query.outputs[node.projection].expression)
        waiting.extend(children(node))
