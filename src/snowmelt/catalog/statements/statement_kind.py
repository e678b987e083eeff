"""What a kind of object adds to the statements: parsers by verb, and its listing for SHOW."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from itertools import islice
from typing import TYPE_CHECKING, TypeAlias

from snowmelt.catalog.sql.object_name_types import CreateMode, NameLevel, ObjectName
from snowmelt.catalog.statements.statement_context import (
    Statement,
    StatementResult,
    StatementSession,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from snowmelt.catalog.sql.cursor import TokenCursor


@dataclass(frozen=True, slots=True)
class StatementKind:
    """A kind of object by its words in statements, with what reads the rest of each verb.

    CREATE's parser gets what becomes of an object that exists, those of ALTER and DROP whether
    IF EXISTS was written.
    """

    words: str
    create: Callable[[TokenCursor, CreateMode], Statement] | None = None
    alter: Callable[[TokenCursor, bool], Statement] | None = None
    drop: Callable[[TokenCursor, bool], Statement] | None = None
    describe: Callable[[TokenCursor], Statement] | None = None
    is_replaceable: bool = True


# SHOW: which objects there are, for those who may know of them.

ShowRow: TypeAlias = tuple[object, ...]

_TERSE_COLUMNS = ("created_on", "name", "kind", "database_name", "schema_name")
# As in Snowflake, where schemas have no kind. Others are of the kind that was asked for.
_TERSE_KINDS = {"DATABASES": "STANDARD", "SCHEMAS": None, "LIBRARIES": "LIBRARY"}


@dataclass(frozen=True, slots=True)
class Listing:
    """SHOW of one kind: its words, the deepest level that IN narrows it to, columns and rows.

    `columns` are names with blanks between; each row has a value for each. With `has_history`
    SHOW … HISTORY adds what is dropped and still retained.
    """

    words: str
    max_level: NameLevel
    columns: str = field(repr=False)
    list_rows: Callable[[ShowObjects, StatementSession], Iterable[ShowRow]] = field(repr=False)
    has_history: bool = False


@dataclass(frozen=True, slots=True)
class ShowObjects(Statement):
    """SHOW of a kind, narrowed by pattern and scope.

    `like_pattern` is an SQL pattern without regard to case, `starts_with` a prefix with it.
    `level` is None where a bare name follows IN: its parts say what it is. `with_history` adds
    what is dropped and still kept; `terse` tells less about each.
    """

    reads_only = True

    listing: Listing
    like_pattern: str | None = None
    level: NameLevel | None = None
    scope: ObjectName | None = None
    starts_with: str | None = None
    limit: int | None = None
    with_history: bool = False
    terse: bool = False

    def execute(self, session: StatementSession) -> StatementResult:
        columns = tuple(self.listing.columns.split())
        if self.with_history:
            columns = (*columns, "dropped_on")
        rows = self._filter_rows(self.listing.list_rows(self, session), columns.index("name"))
        if self.terse:
            columns, rows = self._to_terse_rows(columns, rows)
        return StatementResult(columns, tuple(rows))

    def resolve_scope(
        self, session: StatementSession, bare_level: NameLevel | None = None
    ) -> tuple[str | None, str | None, str | None]:
        """Return database, schema and table to look in, as far as given; they exist.

        A name without a word before it is of `bare_level`, or of the level that its parts say.
        """
        name = self.scope
        if name is None:
            return None, None, None
        level = self.level or bare_level or list(NameLevel)[len(name.parts)]
        if level is NameLevel.DATABASE:
            return session.find_database(session.resolve_database_name(name)).name, None, None
        if level is NameLevel.SCHEMA:
            schema = session.find_schema(*session.resolve_schema_name(name))
            return schema.database, schema.name, None
        table = session.find_table(session.resolve_table_name(name)).name
        return table.database, table.schema, table.table

    def _filter_rows(self, rows: Iterable[ShowRow], name_index: int) -> Iterator[ShowRow]:
        pattern = _compile_like_pattern("%" if self.like_pattern is None else self.like_pattern)
        found = (
            row
            for row in rows
            if pattern.fullmatch(name := str(row[name_index]))
            and name.startswith(self.starts_with or "")
        )
        return islice(found, self.limit)

    def _to_terse_rows(
        self, columns: tuple[str, ...], rows: Iterable[ShowRow]
    ) -> tuple[tuple[str, ...], Iterator[ShowRow]]:
        """Return the columns of SHOW TERSE, and the rows with these; what a kind lacks is NULL."""
        words = self.listing.words
        kind = {"kind": _TERSE_KINDS.get(words, words.removesuffix("S"))}
        wanted = (*_TERSE_COLUMNS, "dropped_on") if self.with_history else _TERSE_COLUMNS
        shown = (dict(zip(columns, row, strict=True)) | kind for row in rows)
        return wanted, (tuple(map(row.get, wanted)) for row in shown)


def _compile_like_pattern(like_pattern: str) -> re.Pattern[str]:
    r"""Translate `%`, `_` and `\` of LIKE; SHOW compares without regard to case."""
    parts: list[str] = []
    letters = iter(like_pattern)
    for letter in letters:
        if letter == "\\":
            parts.append(re.escape(next(letters, letter)))
        else:
            parts.append({"%": ".*", "_": "."}.get(letter) or re.escape(letter))
    return re.compile("".join(parts), re.IGNORECASE | re.DOTALL)


def parse_show_objects(cursor: TokenCursor, listing: Listing, *, terse: bool) -> ShowObjects:
    """Go past what follows the words of a listing."""
    with_history = listing.has_history and cursor.accept("HISTORY")
    like = cursor.parse_string("a pattern") if cursor.accept("LIKE") else None
    level, scope = (
        _parse_scope(cursor, listing.max_level)
        if cursor.accept("IN")
        else (NameLevel.ACCOUNT, None)
    )
    prefix = cursor.parse_string("a prefix") if cursor.accept("STARTS", "WITH") else None
    limit = cursor.parse_integer("the limit", 1, 10_000) if cursor.accept("LIMIT") else None
    cursor.expect_end(f"SHOW {listing.words}")
    return ShowObjects(listing, like, level, scope, prefix, limit, with_history, terse)


def _parse_scope(
    cursor: TokenCursor, max_level: NameLevel
) -> tuple[NameLevel | None, ObjectName | None]:
    levels = [level for level in NameLevel if level.part_count <= max_level.part_count]
    word = cursor.accept_one_of(*levels)
    if word is None:
        if max_level is NameLevel.ACCOUNT:
            cursor.expect("ACCOUNT")
        return None, cursor.parse_name("a place to look in", max_level.part_count)
    level = NameLevel(word.text)
    if level is NameLevel.ACCOUNT:
        return level, None
    return level, cursor.parse_name(f"a {level.lower()}", level.part_count)
