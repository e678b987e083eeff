"""Paths into records: which value of a nested record the steps of a name lead to."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from snowmelt.select.errors import SelectError
from snowmelt.select.sql.ast import Any, Index, Word
from snowmelt.select.values import MISSING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from snowmelt.select.sql.ast import Step


def follow(value: object, steps: Sequence[Step], *, ceph: bool = False) -> object:
    """Return the value at the end of the steps, MISSING where they lead nowhere.

    A step that takes all (`[*]`, `.*`) gives the list of what the rest leads to in each.

    Args:
        value: A record: nested dicts and lists.
        steps: The path from there.
        ceph: Whether Ceph's rules for JSON hold: a field of a name's very spelling goes first,
            else names match in any case, quoted ones too; a name leads into no array.

    Raises:
        SelectError: AmbiguousFieldName, where a name fits several fields; InvalidKeyPath for a
            name behind an array (`ceph`).
    """
    for place, step in enumerate(steps):
        if isinstance(step, Any):
            rest = steps[place + 1 :]
            found = [follow(item, rest, ceph=ceph) for item in _items(value, step)]
            return [item for item in found if item is not MISSING]
        value = _ceph_stepped(value, step) if ceph else _stepped(value, step)
        if value is MISSING:
            break
    return value


def rows_of(value: object, steps: Sequence[Step]) -> Iterator[object]:
    """Yield the records that a path of FROM leads to in Ceph.

    Arrays on the way are passed through, and each element of one at the end is a record. A path
    that leads nowhere has none.

    Raises:
        SelectError: AmbiguousFieldName, where a name fits several fields.
    """
    if not steps:
        yield from value if isinstance(value, list) else (value,)
    elif isinstance(value, list) and isinstance(steps[0], Word):
        for item in value:
            yield from rows_of(item, steps)
    elif isinstance(steps[0], Any):
        for item in _items(value, steps[0]):
            yield from rows_of(item, steps[1:]) if steps[1:] else (item,)
    else:
        found = _ceph_stepped(value, steps[0])
        if found is not MISSING:
            yield from rows_of(found, steps[1:])


def _stepped(value: object, step: Word | Index) -> object:
    if isinstance(step, Index):
        if isinstance(value, list) and step.number < len(value):
            return value[step.number]
        return MISSING
    if not isinstance(value, dict):
        return MISSING
    if step.quoted:
        return value.get(step.text, MISSING)
    name = _spelling(tuple(value), step.text.lower())
    return MISSING if name is None else value[name]


def _ceph_stepped(value: object, step: Word | Index) -> object:
    if isinstance(step, Index):
        return _stepped(value, step)
    if isinstance(value, list):
        message = (
            f"{step.text} stands behind an array, where Ceph takes the last element's; "
            f"write an index, as in _1.items[0].{step.text}, or name the array in FROM"
        )
        raise SelectError("InvalidKeyPath", message)
    if isinstance(value, dict) and step.text in value:
        return value[step.text]
    return _stepped(value, Word(step.text))


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
