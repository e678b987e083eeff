"""Comparison of values: three-valued, with each dialect's rule for types that differ."""

from __future__ import annotations

import operator
from decimal import Decimal
from typing import TYPE_CHECKING, Any, TypeAlias

from snowmelt.select.dialect import Dialect
from snowmelt.select.refusals import SelectError, row_error
from snowmelt.select.timestamps import Timestamp, parse_iso
from snowmelt.select.values import infer_bool, infer_number, is_absent, kind_of

if TYPE_CHECKING:
    from collections.abc import Callable

Pair: TypeAlias = tuple[Any, Any]

_RELATIONS: dict[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def relate(relation: str, left: object, right: object, dialect: Dialect) -> bool | None:
    """Return whether `left relation right` holds, None where that is not known.

    NULL and MISSING make it unknown. Numbers compare by value (a decimal with a float as
    floats), texts by their UTF-8 bytes, timestamps by instant. In `aws` a text next to a number,
    a timestamp or a boolean is read as one; where it cannot be, and where types differ
    otherwise, the answer is unknown.

    Raises:
        SelectError: In the Ceph dialects, where types differ; in `ceph-2020` it costs the row.
    """
    pair = _pair(relation, left, right, dialect)
    if pair is None:
        return None
    first, second = pair
    if isinstance(first, list | dict) and relation not in {"=", "<>"}:
        return None
    return _RELATIONS[relation](first, second)


def same(left: object, right: object) -> bool:
    """Return whether two values of one kind are equal, nothing inferred; NULLIF's rule."""
    if kind_of(left) != kind_of(right) or is_absent(left):
        return False
    pair = _alike(left, right)
    return pair is not None and bool(pair[0] == pair[1])


def precedes(left: object, right: object, dialect: Dialect) -> bool:
    """Return whether `left` is the smaller for MIN and MAX; NaN is greater than any number.

    Raises:
        SelectError: InvalidDataType, where the two cannot be compared.
    """
    if _is_nan(left) or _is_nan(right):
        return not _is_nan(left)
    answer = relate("<", left, right, dialect)
    if answer is None:
        kinds = f"{kind_of(left)} and {kind_of(right)}"
        raise SelectError("InvalidDataType", f"MIN and MAX cannot compare {kinds}")
    return answer


def _pair(relation: str, left: object, right: object, dialect: Dialect) -> Pair | None:
    """Bring two values to one type, or return None where they stay unknown to each other."""
    if is_absent(left) or is_absent(right):
        return None
    if dialect.is_ceph:
        return _ceph_pair(relation, left, right, dialect)
    pair = _alike(left, right)
    if pair is not None:
        return pair
    if isinstance(right, str):
        inferred = _inferred(right, left)
        return None if inferred is None else _alike(left, inferred)
    if isinstance(left, str):
        inferred = _inferred(left, right)
        return None if inferred is None else _alike(inferred, right)
    return None


def _alike(left: object, right: object) -> Pair | None:
    """Return two values of one kind so that Python compares them as SQL does, else None."""
    prepare = _PAIRS.get((type(left), type(right)))
    return None if prepare is None else prepare(left, right)


def _as_they_are(left: Any, right: Any) -> Pair:
    return left, right


def _bytewise(left: str, right: str) -> Pair:
    # Code points order as UTF-8 does, but for the stand-ins of bytes that are no UTF-8.
    if left.isascii() or right.isascii():
        return left, right
    return left.encode("utf-8", "surrogateescape"), right.encode("utf-8", "surrogateescape")


def _as_floats(left: float | Decimal, right: float | Decimal) -> Pair:
    return float(left), float(right)


def _instants(left: Timestamp, right: Timestamp) -> Pair:
    return left.instant, right.instant


_PAIRS: dict[tuple[type, type], Callable[[Any, Any], Pair]] = {
    (str, str): _bytewise,
    (Timestamp, Timestamp): _instants,
    (float, Decimal): _as_floats,
    (Decimal, float): _as_floats,
    **dict.fromkeys(
        [(kind, kind) for kind in (bool, int, float, Decimal, list, dict)], _as_they_are
    ),
    **dict.fromkeys([(int, float), (float, int), (int, Decimal), (Decimal, int)], _as_they_are),
}


def _inferred(text: str, other: object) -> object:
    if isinstance(other, bool):
        return infer_bool(text)
    if isinstance(other, int | float | Decimal):
        return infer_number(text)
    if isinstance(other, Timestamp):
        return parse_iso(text)
    return None


def _ceph_pair(relation: str, left: object, right: object, dialect: Dialect) -> Pair:
    """Bring two values to one type: truths are numbers, which `ceph` only asks for equality."""
    ordered = relation not in {"=", "<>"}
    odd = dialect is Dialect.CEPH and ordered and bool in {type(left), type(right)}
    pair = None if odd else _alike(_counted(left), _counted(right))
    if pair is None:
        kinds = f"{kind_of(left)} , {kind_of(right)}"
        message = f"operands not of the same type({kinds}), while comparision"  # codespell:ignore
        raise row_error("InvalidDataType", message, dialect)
    return pair


def _counted(value: object) -> object:
    return int(value) if isinstance(value, bool) else value


def _is_nan(value: object) -> bool:
    return isinstance(value, float) and value != value
