"""What is left of the rows of a SHOW: by pattern, prefix and limit, and with TERSE."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from snowmelt.catalog.statements import Show

Row: TypeAlias = tuple[object, ...]

_TERSE = ("created_on", "name", "kind", "database_name", "schema_name")
# As in Snowflake, where schemas have no kind. Others are of the kind that was asked for.
_KINDS = {"DATABASES": "STANDARD", "SCHEMAS": None, "LIBRARIES": "LIBRARY"}


def narrowed(rows: Iterable[Row], at: int, statement: Show) -> Iterator[Row]:
    """Yield the rows that the statement wants, by the name in their column `at`."""
    pattern = None if statement.like is None else _pattern(statement.like)
    left = statement.limit
    for row in rows:
        name = str(row[at])
        if pattern is not None and not pattern.fullmatch(name):
            continue
        if statement.starts_with is not None and not name.startswith(statement.starts_with):
            continue
        if left is not None:
            if not left:
                return
            left -= 1
        yield row


def terse(
    statement: Show, columns: Sequence[str], rows: Iterable[Row]
) -> tuple[tuple[str, ...], Iterator[Row]]:
    """Return the columns of SHOW TERSE, and the rows with these; what a kind lacks is NULL."""
    kind = _KINDS.get(statement.kind, statement.kind.removesuffix("S"))
    wanted = (*_TERSE, "dropped_on") if statement.with_history else _TERSE

    def cut(row: Row) -> Row:
        told: dict[str, object] = dict(zip(columns, row, strict=True)) | {"kind": kind}
        return tuple(told.get(column) for column in wanted)

    return wanted, map(cut, rows)


def _pattern(like: str) -> re.Pattern[str]:
    r"""Translate `%`, `_` and `\` of LIKE; SHOW compares without regard to case."""
    parts: list[str] = []
    letters = iter(like)
    for letter in letters:
        if letter == "\\":
            parts.append(re.escape(next(letters, letter)))
        else:
            parts.append({"%": ".*", "_": "."}.get(letter) or re.escape(letter))
    return re.compile("".join(parts), re.IGNORECASE | re.DOTALL)
