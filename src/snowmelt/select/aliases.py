"""Aliases that use aliases: none may need itself, nor grow beyond measure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from snowmelt.select.expressions import MAX_HEIGHT
from snowmelt.select.syntax import AliasUse, children, walk

if TYPE_CHECKING:
    from collections.abc import Sequence

    from snowmelt.select.syntax import Expression

MAX_SIZE = 100_000
"""How many parts an expression may have once its aliases are replaced by what they stand for."""

CYCLE = "number of calls exceed maximum size, probably a cyclic reference to alias"


class AliasOutOfHand(Exception):
    """An alias cannot be used as it is; `projection` is its place."""

    def __init__(self, message: str, projection: int) -> None:
        super().__init__(message)
        self.projection = projection


def check_aliases(outputs: Sequence[Expression]) -> None:
    """Check the values of a SELECT list, aliases resolved.

    Raises:
        AliasOutOfHand: For an alias that needs itself, or becomes too large or too high.
    """
    uses = [_uses(expression) for expression in outputs]
    users: dict[int, list[int]] = {}
    for place, used in enumerate(uses):
        for projection in set(used):
            users.setdefault(projection, []).append(place)
    open_uses = [len(set(used)) for used in uses]
    ready = [place for place, count in enumerate(open_uses) if count == 0]
    measures: dict[int, tuple[int, int]] = {}
    while ready:
        place = ready.pop()
        measures[place] = _measure(outputs[place], measures, place)
        for user in users.get(place, ()):
            open_uses[user] -= 1
            if open_uses[user] == 0:
                ready.append(user)
    if len(measures) < len(outputs):
        first = next(place for place in range(len(outputs)) if place not in measures)
        raise AliasOutOfHand(CYCLE, first)


def _uses(expression: Expression) -> list[int]:
    return [node.projection for node in walk(expression) if isinstance(node, AliasUse)]


def _measure(
    expression: Expression, known: dict[int, tuple[int, int]], place: int
) -> tuple[int, int]:
    """Return size and height with aliases replaced."""
    size = tallest = 0
    waiting = [(expression, 1)]
    while waiting:
        node, level = waiting.pop()
        inside, above = known[node.projection] if isinstance(node, AliasUse) else (1, 0)
        size += inside
        tallest = max(tallest, level + above)
        waiting.extend((child, level + 1) for child in children(node))
    if size > MAX_SIZE or tallest > MAX_HEIGHT:
        message = (
            "the aliases used here make an expression of more than "
            f"{MAX_SIZE} parts or {MAX_HEIGHT} levels"
        )
        raise AliasOutOfHand(message, place)
    return size, tallest
