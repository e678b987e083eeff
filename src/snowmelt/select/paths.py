"""Paths into records: which value of a nested record the steps of a name lead to."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from snowmelt.select.refusals import SelectError
from snowmelt.select.syntax import MISSING, Any, Index, Word

if TYPE_CHECKING:
    from collections.abc import Sequence

    from snowmelt.select.syntax import Step


def follow(value: object, steps: Sequence[Step], *, exact: bool = False) -> object:
    """Return the value at the end of the steps, MISSING where they lead nowhere.

    A step that takes all (`[*]`, `.*`) gives the list of what the rest leads to in each.

    Args:
        value: A record: nested dicts and lists.
        steps: The path from there.
        exact: Whether names without quotes match in their case only (the Ceph dialects).

    Raises:
        SelectError: AmbiguousFieldName, where a name fits several fields.
    """
    for place, step in enumerate(steps):
        if isinstance(step, Any):
            rest = steps[place + 1 :]
            found = [follow(item, rest, exact=exact) for item in _items(value, step)]
            return [item for item in found if item is not MISSING]
        value = _stepped(value, step, exact=exact)
        if value is MISSING:
            break
    return value


def _stepped(value: object, step: Word | Index, *, exact: bool) -> object:
    if isinstance(step, Index):
        if isinstance(value, list) and step.number < len(value):
            return value[step.number]
        return MISSING
    if not isinstance(value, dict):
        return MISSING
    if exact or step.quoted:
        return value.get(step.text, MISSING)
    name = _spelling(tuple(value), step.text.lower())
    return MISSING if name is None else value[name]


def _items(value: object, step: Any) -> Sequence[object]:
    if step is Any.ITEM and isinstance(value, list):
        return value
    if step is Any.FIELD and isinstance(value, dict):
        return list(value.values())
    return ()


@lru_cache(maxsize=1024)
def _spelling(names: tuple[str, ...], lower: str) -> str | None:
    found = [name for name in names if name.lower() == lower]
    if len(found) > 1:
        shown = ", ".join(f'"{name}"' for name in found)
        raise SelectError("AmbiguousFieldName", f"{lower} may be {shown}; quote the one you mean")
    return found[0] if found else None
