"""Expressions walked and rebuilt: parts of a tree replaced by others."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, cast

from snowmelt.select.syntax import AliasUse

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from snowmelt.select.syntax import Expression


def parts(expression: Expression) -> Iterator[Expression]:
    """Yield an expression and everything inside it, the outer before the inner."""
    yield expression
    for field in dataclasses.fields(expression):
        yield from _parts(getattr(expression, field.name))


def _parts(value: object) -> Iterator[Expression]:
    if isinstance(value, tuple):
        for item in value:
            yield from _parts(item)
    elif _is_expression(value):
        yield from parts(cast("Expression", value))


def replace(
    expression: Expression, instead: Callable[[Expression], Expression | None]
) -> Expression:
    """Return the expression with each part for which `instead` has an answer replaced by it.

    A replaced part is not looked into again.
    """
    answer = instead(expression)
    if answer is not None:
        return answer
    changes: dict[str, Any] = {}
    for field in dataclasses.fields(expression):
        value = getattr(expression, field.name)
        changed = _replaced(value, instead)
        if changed is not value:
            changes[field.name] = changed
    return dataclasses.replace(expression, **changes) if changes else expression


def _replaced(value: Any, instead: Callable[[Expression], Expression | None]) -> Any:
    if isinstance(value, tuple):
        items = tuple(_replaced(item, instead) for item in value)
        return items if any(a is not b for a, b in zip(items, value, strict=True)) else value
    if _is_expression(value):
        return replace(value, instead)
    return value


def _is_expression(value: object) -> bool:
    return (
        dataclasses.is_dataclass(value)
        and not isinstance(value, type)
        and type(value).__module__ == AliasUse.__module__
        and hasattr(value, "at")
    )


def without_aliases(expression: Expression, projections: Sequence[Expression]) -> Expression:
    """Return the expression with each use of an alias replaced by what it stands for.

    The binder has refused cycles, so this ends.
    """

    def instead(part: Expression) -> Expression | None:
        if isinstance(part, AliasUse):
            return without_aliases(projections[part.projection], projections)
        return None

    return replace(expression, instead)
