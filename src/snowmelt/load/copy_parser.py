"""COPY's text into data: table, columns, inputs; the options are in `copy_options`.

The grammar is Vertica's, with the forms seen in statements as people write them.
"""

from __future__ import annotations

import datetime as dt
import re
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

from snowmelt.catalog.sql.column_types import parse_column_type
from snowmelt.catalog.sql.cursor import TokenCursor
from snowmelt.catalog.sql.lexer import TokenKind, tokenize_copy
from snowmelt.load.copy_ast import (
    Call,
    Compression,
    CopyStatement,
    Expression,
    Filler,
    InputPath,
    ParsedColumn,
    Rejects,
    StandardInput,
)
from snowmelt.load.phases import ColumnOptions
from snowmelt.schema.types import Column, LogicalType, display_name

if TYPE_CHECKING:
    from collections.abc import Callable

    from snowmelt.catalog.sql.lexer import SqlToken
    from snowmelt.load.copy_ast import Inputs, Item, Value

_OPENING = frozenset({"(", "[", "{"})
_CLOSING = frozenset({")", "]", "}"})


def parse_copy(text: str) -> CopyStatement:
    """Return what a COPY says; a semicolon at its end is allowed.

    Raises:
        StatementError: If it cannot be understood or is not supported; says where and what
            would be right.
    """
    cursor = TokenCursor(text, tokenize_copy)
    cursor.expect("COPY")
    table = cursor.parse_name("a table", 3)
    items = _items(cursor) if cursor.accept("(") else None
    listed = {item.name: item.options for item in items or () if not isinstance(item, Expression)}
    options = OptionReader(cursor)
    column_options = _column_options(cursor, listed)
    inputs, local = _inputs(cursor)
    options.read()
    cursor.expect_end("COPY")
    return CopyStatement(
        table=table,
        items=items,
        inputs=inputs,
        text=text.strip().rstrip(";").rstrip(),
        column_options=column_options,
        local=local,
        **options.found(),
    )


def _items(cursor: TokenCursor) -> tuple[Item, ...]:
    items: list[Item] = []
    names: set[str] = set()
    while True:
        token = cursor.current
        item = _item(cursor)
        if item.name in names:
            raise cursor.make_error(f"Column {display_name(item.name)} is given twice", token)
        names.add(item.name)
        items.append(item)
        if cursor.accept(")"):
            break
        if not cursor.accept(","):
            raise cursor.make_error(
                "Expected a comma, or ) after the last column, here; a column may have AS with an "
                "expression, FILLER with a type, DELIMITER, ENCLOSED BY, ENFORCELENGTH, ESCAPE, "
                "NO ESCAPE, FORMAT, NULL or TRIM"
            )
    if all(isinstance(item, Expression) for item in items):
        raise cursor.make_error("At least one column must be parsed: all of them are expressions")
    return tuple(items)


def _item(cursor: TokenCursor) -> Item:
    place = cursor.current.position
    name = cursor.parse_identifier("a column")
    if cursor.accept("AS"):
        return Expression(name, _expression(cursor), place)
    if cursor.accept("FILLER"):
        column = _filler(cursor, name)
        return Filler(column, ColumnOptionReader(cursor).read(), place)
    return ParsedColumn(name, ColumnOptionReader(cursor).read(), place)


def _filler(cursor: TokenCursor, name: str) -> Column:
    # Vertica's words for the longest texts and bytes; ours are as long by themselves.
    if cursor.is_next("LONG", "VARCHAR") or cursor.is_next("LONG", "VARBINARY"):
        cursor.advance()
    found = parse_column_type(cursor)
    return Column(
        name=name,
        kind=LogicalType(found.kind),
        ordinal=0,
        precision=found.precision,
        scale=found.scale,
        length=found.length,
        byte_length=found.byte_length,
    )


def _expression(cursor: TokenCursor) -> str:
    """Go past an expression, up to the comma or parenthesis after it, and return its text."""
    first = cursor.current
    depth = 0
    last = None
    while cursor.current.kind is not TokenKind.END:
        sign = cursor.current.text if cursor.current.kind is TokenKind.SYMBOL else None
        if depth == 0 and sign in {",", ")"}:
            break
        depth += (sign in _OPENING) - (sign in _CLOSING)
        last = cursor.advance()
    if last is None:
        raise cursor.make_error("Expected an expression here")
    if cursor.current.kind is TokenKind.END:
        raise cursor.make_error("This expression has no end: a parenthesis is missing", first)
    return cursor.source_between(first, last)


def _column_options(
    cursor: TokenCursor, listed: dict[str, ColumnOptions]
) -> dict[str, ColumnOptions]:
    if not cursor.accept("COLUMN", "OPTION"):
        return listed
    cursor.expect("(")
    given: set[str] = set()
    while True:
        token = cursor.current
        name = cursor.parse_identifier("a column")
        if name in given:
            raise cursor.make_error(f"Column {display_name(name)} is given twice", token)
        given.add(name)
        listed[name] = ColumnOptionReader(cursor).read(listed.get(name))
        if cursor.accept(")"):
            return listed
        cursor.expect(",")


def _inputs(cursor: TokenCursor) -> tuple[Inputs, bool]:
    if cursor.accept("FROM"):
        local = cursor.accept("LOCAL")
        if cursor.is_next("VERTICA"):
            raise cursor.make_error(
                "FROM VERTICA is not supported: there is no other cluster to read from; export "
                "the table to files, and load those"
            )
        place = cursor.current.position
        if cursor.accept("STDIN"):
            return StandardInput(_compression(cursor), place), local
        if cursor.current.kind is not TokenKind.STRING:
            raise cursor.make_error(
                "Expected STDIN, or paths in single quotes, here: FROM 'folder/*.csv.gz' GZIP"
            )
        return _paths(cursor), local
    cursor.accept("WITH")
    if cursor.accept("SOURCE"):
        return read_call(cursor, "a source"), False
    raise cursor.make_error(
        "Expected FROM with paths or STDIN, or SOURCE with the name of a source, here"
    )


def _paths(cursor: TokenCursor) -> tuple[InputPath, ...]:
    paths: list[InputPath] = []
    while True:
        place = cursor.current.position
        path = cursor.parse_string("a path")
        if not path:
            raise cursor.make_error("A path is not empty")
        _nodes(cursor)
        compression = _compression(cursor)
        _nodes(cursor)
        paths.append(InputPath(path, compression, place))
        if not cursor.accept(","):
            return tuple(paths)


def _nodes(cursor: TokenCursor) -> None:
    """Go past ON with nodes: every task can read every path, so any node will do."""
    if not cursor.is_next("ON"):
        return
    at = cursor.advance()
    if cursor.accept("ANY", "NODE") or cursor.accept("EACH", "NODE"):
        return
    raise cursor.make_error(
        "Nodes are not chosen by name: the path is read wherever its task runs; leave ON out, or "
        "write ON ANY NODE",
        at,
    )


def _compression(cursor: TokenCursor) -> Compression | None:
    if cursor.is_next("LZO"):
        raise cursor.make_error(
            "LZO is not supported: there is no maintained library for it; use ZSTD or LZ4, or "
            "FILTER ExternalCommand(cmd = 'lzop -dc')"
        )
    word = cursor.accept_one_of(*Compression)
    return None if word is None else Compression(word.text)


# --- The options of COPY, of the statement and of single columns, in any order.

_MOST = 2**63 - 1
_NO_MEANING = ("AUTO", "DIRECT", "TRICKLE")
_REFUSED = {
    "NATIVE": "the NATIVE format is Vertica's own; load Parquet, Avro or text",
    "ORC": "ORC files are not read; write them as Parquet",
    "PARTITION": "columns are not taken from paths; load each folder with an expression, such as "
    "(…, day AS '2024-01-05'::date)",
    "RETURNREJECTED": "rejected rows are published by REJECTED DATA AS TABLE, and counted in the "
    "answer",
    "STORAGE": "a load goes to the one warehouse",
}


class ColumnOptionReader:
    """Reads the options of one column."""

    def __init__(self, cursor: TokenCursor) -> None:
        self._cursor = cursor
        self._found: dict[str, Any] = {}

    def read(self, before: ColumnOptions | None = None) -> ColumnOptions:
        """Go past all options that come next; they are added to those given `before`.

        Raises:
            StatementError: One is given twice, or is not as it must be.
        """
        while self._one():
            pass
        before = before or ColumnOptions()
        for field in fields(before):
            if field.name in self._found and getattr(before, field.name) is not None:
                raise self._cursor.make_error(
                    f"{_written(field.name)} of this column is given in the column list, too"
                )
        return replace(before, **self._found)

    def _one(self) -> bool:
        cursor = self._cursor
        token = cursor.current
        if cursor.accept("ENFORCELENGTH"):
            self._put("enforce_length", True, token)
        elif cursor.accept("NO", "ESCAPE"):
            self._put("escape", "", token)
        elif cursor.accept("DELIMITER"):
            cursor.accept("AS")
            self._put("delimiter", cursor.parse_string("the delimiter"), token)
        elif cursor.accept("ENCLOSED"):
            cursor.accept("BY")
            self._put("enclosed_by", cursor.parse_string("the quote"), token)
        elif cursor.accept("ESCAPE"):
            cursor.accept("AS")
            self._put("escape", cursor.parse_string("the escape"), token)
        elif cursor.accept("NULL"):
            cursor.accept("AS")
            self._put("null", cursor.parse_string("what means NULL"), token)
        elif cursor.accept("FORMAT"):
            self._put("format", cursor.parse_string("the format"), token)
        elif cursor.accept("TRIM"):
            self._put("trim", cursor.parse_string("the character to trim"), token)
        else:
            return False
        return True

    def _put(self, name: str, value: object, token: SqlToken) -> None:
        if name in self._found:
            raise self._cursor.make_error(f"{_written(name)} of this column is given twice", token)
        self._found[name] = value


class OptionReader:
    """Reads the options of the statement, filters and parser among them."""

    def __init__(self, cursor: TokenCursor) -> None:
        self._cursor = cursor
        self._filters: list[Call] = []
        self._parsing: dict[str, Value] = {}
        self._options: dict[str, Any] = {}
        self._data: str | None = None
        self._exceptions: str | None = None
        self._table: Any = None
        self._overwritten: set[str] = set()
        self._readers: dict[str, Callable[[SqlToken], None]] = {
            "FILTER": self._filter,
            "PARSER": self._parser,
            "PARQUET": self._format,
            "FIXEDWIDTH": self._format,
            "COLSIZES": self._sizes,
            "SKIP": self._skip,
            "NO": self._no,
            "TRAILING": self._trailing,
            "RECORD": self._record,
            "REJECTMAX": self._reject_max,
            "REJECTED": self._rejected,
            "EXCEPTIONS": self._exceptions_to,
            "ABORT": self._flag("abort_on_error", "ON", "ERROR"),
            "ERROR": self._flag("error_tolerance", "TOLERANCE"),
            "ENFORCELENGTH": self._flag("enforce_length"),
            "FORCE": self._flag("force"),
            "STREAM": self._stream,
            "DELIMITER": self._text("delimiter", "the delimiter", "AS"),
            "ENCLOSED": self._text("enclosed_by", "the quote", "BY"),
            "ESCAPE": self._text("escape", "the escape", "AS"),
            "NULL": self._text("null", "what means NULL", "AS"),
            "TRIM": self._text("trim", "the character to trim"),
            "COLLECTIONDELIMITER": self._text("collection_delimiter", "the delimiter", "AS"),
            "COLLECTIONOPEN": self._text("collection_open", "the opening sign", "AS"),
            "COLLECTIONCLOSE": self._text("collection_close", "the closing sign", "AS"),
            "COLLECTIONENCLOSE": self._text("collection_enclose", "the quote", "BY"),
            "COLLECTIONNULLELEMENT": self._text("collection_null_element", "what means NULL", "AS"),
        }
        self._known = frozenset({*self._readers, *_NO_MEANING, *_REFUSED, "WITH"})

    def read(self) -> None:
        """Go past all options that come next.

        Raises:
            StatementError: One is unknown, given twice, excludes another, or is not as it must be.
        """
        cursor = self._cursor
        while cursor.current.kind is not TokenKind.END and cursor.current.text != ";":
            token = cursor.current
            if cursor.accept_one_of("WITH") and cursor.current.text not in {"FILTER", "PARSER"}:
                raise cursor.make_error("WITH is followed by FILTER or PARSER here")
            word = cursor.current.text if cursor.current.kind is TokenKind.WORD else ""
            if word in _REFUSED:
                raise cursor.make_error(f"{word} is not supported: {_REFUSED[word]}")
            if cursor.accept_one_of(*_NO_MEANING):
                continue
            if word not in self._readers:
                raise cursor.make_error(
                    f"{token.source_text} is no option of COPY; there are "
                    f"{', '.join(sorted(self._readers))}"
                )
            self._readers[word](cursor.advance())

    def found(self) -> dict[str, Any]:
        """Return the options as arguments of CopyStatement."""
        return {
            **self._options,
            "filters": tuple(self._filters),
            "parsing": self._parsing,
            "rejects": Rejects(
                self._data,
                self._exceptions,
                self._table,
                data_overwrite="data" in self._overwritten,
                exceptions_overwrite="exceptions" in self._overwritten,
            ),
        }

    def _filter(self, _token: SqlToken) -> None:
        self._filters.extend(read_calls(self._cursor, "a filter", self._known))

    def _parser(self, token: SqlToken) -> None:
        self._put("parser", read_call(self._cursor, "a parser"), token)

    def _format(self, token: SqlToken) -> None:
        """PARQUET and FIXEDWIDTH are parsers that are called by a word."""
        self._put("parser", read_call_of(self._cursor, token), token)

    def _sizes(self, token: SqlToken) -> None:
        cursor = self._cursor
        cursor.expect("(")
        sizes = []
        while True:
            sizes.append(str(cursor.parse_integer("the width of a column", 1, 65_000)))
            if cursor.accept(")"):
                break
            cursor.expect(",")
        self._parse("colsizes", ",".join(sizes), token)
        if "parser" not in self._options:
            self._options["parser"] = Call("FixedWidth", {}, token.position)

    def _skip(self, token: SqlToken) -> None:
        unit = "skip_bytes" if self._cursor.accept("BYTES") else "skip"
        what = "the number of bytes" if unit == "skip_bytes" else "the number of records"
        self._parse(unit, self._cursor.parse_integer(what, 0, _MOST), token)

    def _no(self, token: SqlToken) -> None:
        if self._cursor.accept_one_of("ESCAPE"):
            self._parse("no_escape", True, token)
        else:
            self._cursor.expect("COMMIT")
            self._put("no_commit", True, token)

    def _trailing(self, token: SqlToken) -> None:
        self._cursor.expect("NULLCOLS")
        self._parse("trailing_nullcols", True, token)

    def _record(self, token: SqlToken) -> None:
        self._cursor.expect("TERMINATOR")
        text = self._cursor.parse_string("the record terminator, such as E'\\n',")
        if not text:
            raise self._cursor.make_error("The record terminator is not empty", token)
        self._parse("record_terminator", text, token)

    def _reject_max(self, token: SqlToken) -> None:
        self._put("reject_max", self._cursor.parse_integer("the limit of rejects", 0, _MOST), token)

    def _stream(self, token: SqlToken) -> None:
        self._cursor.expect("NAME")
        self._put("stream_name", self._cursor.parse_string("the name of the stream"), token)

    def _rejected(self, token: SqlToken) -> None:
        cursor = self._cursor
        cursor.expect("DATA")
        if self._data is not None or self._table is not None:
            raise cursor.make_error("REJECTED DATA is given twice", token)
        if cursor.accept("AS", "TABLE"):
            self._table = cursor.parse_name("a table", 3)
        else:
            self._data = self._place_of_file("data", "the path of a file, or AS TABLE with a name,")
        self._check_rejects(token)

    def _exceptions_to(self, token: SqlToken) -> None:
        if self._exceptions is not None:
            raise self._cursor.make_error("EXCEPTIONS is given twice", token)
        self._exceptions = self._place_of_file("exceptions", "the path of a file")
        self._check_rejects(token)

    def _check_rejects(self, token: SqlToken) -> None:
        if self._table is not None and self._exceptions is not None:
            raise self._cursor.make_error(
                "REJECTED DATA AS TABLE holds the reasons, too: leave EXCEPTIONS out", token
            )

    def _place_of_file(self, which: str, what: str) -> str:
        path = self._cursor.parse_string(what)
        if not path:
            raise self._cursor.make_error("A path is not empty")
        if self._cursor.is_next("ON"):
            raise self._cursor.make_error(
                "There is one file for the whole load, wherever its tasks run: leave ON out"
            )
        if self._cursor.accept("OVERWRITE"):
            self._overwritten.add(which)
        return path

    def _text(self, name: str, what: str, *words: str) -> Callable[[SqlToken], None]:
        def read(token: SqlToken) -> None:
            for word in words:
                self._cursor.accept(word)
            self._parse(name, self._cursor.parse_string(what), token)

        return read

    def _flag(self, name: str, *rest: str) -> Callable[[SqlToken], None]:
        def read(token: SqlToken) -> None:
            if rest:
                self._cursor.expect(*rest)
            self._put(name, True, token)

        return read

    def _parse(self, name: str, value: Value, token: SqlToken) -> None:
        if name in self._parsing:
            raise self._cursor.make_error(f"{_written(name)} is given twice", token)
        self._parsing[name] = value

    def _put(self, name: str, value: object, token: SqlToken) -> None:
        if name in self._options:
            raise self._cursor.make_error(f"{_written(name)} is given twice", token)
        self._options[name] = value


_WRITTEN = {"enforce_length": "ENFORCELENGTH", "reject_max": "REJECTMAX"}


def _written(name: str) -> str:
    """Return an option as a statement writes it."""
    if name.startswith("collection_"):
        return name.replace("_", "").upper()
    return _WRITTEN.get(name, name.replace("_", " ").upper())


# --- Calls of sources, filters and parsers in a COPY: `name(parameter = value, …)`.

_CONSTANTS: dict[str, Value] = {"TRUE": True, "FALSE": False, "NULL": None}
_UNITS = ("DAY", "HOUR", "MINUTE", "SECOND", "DAYS", "HOURS", "MINUTES", "SECONDS")
_EXPECTED = "Expected a value here: a string in single quotes, a number, TRUE, FALSE, NULL, or "
_EXPECTED += "INTERVAL with a string"


def read_call(cursor: TokenCursor, what: str) -> Call:
    """Go past one call; the parentheses may be missing.

    Raises:
        StatementError: It is no call.
    """
    token = cursor.current
    if token.kind not in {TokenKind.WORD, TokenKind.QUOTED}:
        raise cursor.make_error(f"Expected the name of {what} here")
    cursor.advance()
    if token.text.upper() == "PUBLIC" and cursor.accept("."):
        # Vertica's own functions, and most of users, are in this schema.
        return read_call(cursor, what)
    return read_call_of(cursor, token)


def read_call_of(cursor: TokenCursor, name: SqlToken) -> Call:
    """Go past the parameters of a call whose name was read.

    Raises:
        StatementError: They are no parameters.
    """
    written = name.text if name.kind is TokenKind.QUOTED else name.source_text
    return Call(written, _parameters(cursor), name.position)


def read_calls(cursor: TokenCursor, what: str, known: frozenset[str]) -> tuple[Call, ...]:
    """Go past calls with commas or blanks between them; `known` words begin something else.

    Raises:
        StatementError: There is no call.
    """
    calls = [read_call(cursor, what)]
    while cursor.accept(",") or _is_call(cursor, known):
        calls.append(read_call(cursor, what))
    return tuple(calls)


def _is_call(cursor: TokenCursor, known: frozenset[str]) -> bool:
    token = cursor.current
    named = token.kind is TokenKind.QUOTED or (
        token.kind is TokenKind.WORD and token.text not in known
    )
    return named and cursor.peek().text in {"(", "."} and cursor.peek().kind is TokenKind.SYMBOL


def _parameters(cursor: TokenCursor) -> dict[str, Value]:
    found: dict[str, Value] = {}
    if not cursor.accept("(") or cursor.accept(")"):
        return found
    while True:
        token = cursor.current
        if token.kind not in {TokenKind.WORD, TokenKind.QUOTED}:
            raise cursor.make_error("Expected the name of a parameter here, as in f(name = value)")
        cursor.advance()
        name = token.text if token.kind is TokenKind.QUOTED else token.source_text
        if name.lower() in {each.lower() for each in found}:
            raise cursor.make_error(f"Parameter {name} is given twice", token)
        cursor.expect("=")
        found[name] = _value(cursor)
        if cursor.accept(")"):
            return found
        cursor.expect(",")


def _value(cursor: TokenCursor) -> Value:
    token = cursor.current
    if token.kind is TokenKind.STRING:
        return cursor.advance().text
    if token.kind is TokenKind.NUMBER or token.text in {"-", "+"}:
        return _number(cursor)
    if token.kind is TokenKind.WORD and token.text == "INTERVAL":
        cursor.advance()
        return _interval(cursor)
    if token.kind is TokenKind.WORD and token.text in _CONSTANTS:
        cursor.advance()
        return _CONSTANTS[token.text]
    raise cursor.make_error(_EXPECTED)


def _number(cursor: TokenCursor) -> int | float:
    sign = cursor.accept_one_of("-", "+")
    if cursor.current.kind is not TokenKind.NUMBER:
        raise cursor.make_error("Expected a number here")
    text = cursor.advance().text
    value = int(text) if text.isdecimal() else float(text)
    return -value if sign is not None and sign.text == "-" else value


def _interval(cursor: TokenCursor) -> dt.timedelta:
    token = cursor.current
    text = cursor.parse_string("an interval, such as '10 seconds'")
    unit = cursor.accept_one_of(*_UNITS)
    value = interval_of(text, None if unit is None else unit.text)
    if value is None:
        raise cursor.make_error(
            f"{text!r} is no interval; write it as '10 seconds', '00:10:00' or '1 day 2 hours'",
            token,
        )
    return value


# --- Intervals as statements write them: `10 seconds`, `00:10:00`, `1 day 02:00`.

_UNITS_INTERVALS = {
    "microsecond": dt.timedelta(microseconds=1),
    "millisecond": dt.timedelta(milliseconds=1),
    "second": dt.timedelta(seconds=1),
    "minute": dt.timedelta(minutes=1),
    "hour": dt.timedelta(hours=1),
    "day": dt.timedelta(days=1),
    "week": dt.timedelta(weeks=1),
}
_SHORT = {"us": "microsecond", "ms": "millisecond", "s": "second", "sec": "second"}
_SHORT |= {"m": "minute", "min": "minute", "h": "hour", "hr": "hour", "d": "day", "w": "week"}
_PART = re.compile(
    r"\s*(?:(?P<sign>-?)(?P<hours>\d+):(?P<minutes>[0-5]?\d)(?::(?P<seconds>[0-5]?\d(?:\.\d+)?))?"
    r"|(?P<number>-?\d+(?:\.\d+)?)\s*(?P<unit>[a-z]*))\s*",
    re.IGNORECASE,
)


def interval_of(text: str, unit: str | None = None) -> dt.timedelta | None:
    """Return an interval, None for what is none; numbers without a unit are of `unit`.

    Months and years have no fixed length and are none.
    """
    total, at = dt.timedelta(0), 0
    while at < len(text):
        found = _PART.match(text, at)
        if found is None:
            return None
        part = _clock(found) if found["hours"] else _counted(found, unit)
        if part is None:
            return None
        total += part
        at = found.end()
    return total if text.strip() else None


def _clock(found: re.Match[str]) -> dt.timedelta:
    part = dt.timedelta(
        hours=int(found["hours"]),
        minutes=int(found["minutes"]),
        seconds=float(found["seconds"] or 0),
    )
    return -part if found["sign"] else part


def _counted(found: re.Match[str], unit: str | None) -> dt.timedelta | None:
    word = (found["unit"] or unit or "").lower()
    length = _UNITS_INTERVALS.get(_SHORT.get(word, word.removesuffix("s")))
    return None if length is None else float(found["number"]) * length
