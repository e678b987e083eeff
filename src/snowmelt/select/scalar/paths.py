"""Path evaluation: finds the values or FROM records that a path selects in a nested record."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache

from snowmelt.select.errors import SelectError
from snowmelt.select.sql.ast import IndexStep, KeyStep, PathStep, WildcardStep
from snowmelt.select.values import MISSING


def follow_path(value: object, steps: Sequence[PathStep], *, is_ceph: bool = False) -> object:
    """Return the value at the end of a path, or MISSING if the path does not exist.

    A wildcard step (`[*]`, `.*`) gives the list of the values that the remaining steps select.

    Args:
        value: Record of nested dicts and lists.
        steps: Path from the record.
        is_ceph: Apply Ceph's rules for JSON. An exact field name takes precedence, otherwise names
            match in any case, even quoted ones. A name cannot follow an array.

    Raises:
        SelectError: If a name matches several fields (AmbiguousFieldName), or follows an array with
            `is_ceph` (InvalidKeyPath).
    """
    for place, step in enumerate(steps):
        if isinstance(step, WildcardStep):
            rest = steps[place + 1 :]
            found = [
                follow_path(item, rest, is_ceph=is_ceph)
                for item in _list_wildcard_items(value, step)
            ]
            return [item for item in found if item is not MISSING]
        value = _follow_ceph_step(value, step) if is_ceph else _follow_step(value, step)
        if value is MISSING:
            break
    return value


def iterate_ceph_from_records(value: object, steps: Sequence[PathStep]) -> Iterator[object]:
    """Yield the records that a FROM path selects in Ceph.

    If the path reaches an array, the next name applies to each element; at the end of the path,
    each element is a record. A path that does not exist yields no records.

    Raises:
        SelectError: If a name matches several fields (AmbiguousFieldName).
    """
    if not steps:
        yield from value if isinstance(value, list) else (value,)
    elif isinstance(value, list) and isinstance(steps[0], KeyStep):
        for item in value:
            yield from iterate_ceph_from_records(item, steps)
    elif isinstance(steps[0], WildcardStep):
        for item in _list_wildcard_items(value, steps[0]):
            yield from iterate_ceph_from_records(item, steps[1:]) if steps[1:] else (item,)
    else:
        found = _follow_ceph_step(value, steps[0])
        if found is not MISSING:
            yield from iterate_ceph_from_records(found, steps[1:])


def _follow_step(value: object, step: KeyStep | IndexStep) -> object:
    if isinstance(step, IndexStep):
        if isinstance(value, list) and step.number < len(value):
            return value[step.number]
        return MISSING
    if not isinstance(value, dict):
        return MISSING
    if step.quoted:
        return value.get(step.text, MISSING)
    name = _find_field_name(tuple(value), step.text.lower())
    return MISSING if name is None else value[name]


def _follow_ceph_step(value: object, step: KeyStep | IndexStep) -> object:
    if isinstance(step, IndexStep):
        return _follow_step(value, step)
    if isinstance(value, list):
        message = (
            f"{step.text} follows an array, where Ceph reads the last element; "
            f"write an index, as in _1.items[0].{step.text}, or name the array in FROM"
        )
        raise SelectError("InvalidKeyPath", message)
    if isinstance(value, dict) and step.text in value:
        return value[step.text]
    return _follow_step(value, KeyStep(step.text))


def _list_wildcard_items(value: object, step: WildcardStep) -> Sequence[object]:
    if step is WildcardStep.ITEM and isinstance(value, list):
        return value
    if step is WildcardStep.FIELD and isinstance(value, dict):
        return list(value.values())
    return ()


@lru_cache(maxsize=1024)
def _find_field_name(field_names: tuple[str, ...], lowercase_name: str) -> str | None:
    found = [name for name in field_names if name.lower() == lowercase_name]
    if len(found) > 1:
        shown = ", ".join(f'"{name}"' for name in found)
        raise SelectError(
            "AmbiguousFieldName",
            f"{lowercase_name} is ambiguous: it matches {shown}; quote one of them",
        )
    return found[0] if found else None
