"""The options of COPY, of the statement and of single columns, in any order."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

from snowmelt.catalog.lexing import TokenKind
from snowmelt.load.copy_calls import read_call, read_call_of, read_calls
from snowmelt.load.copying import Call, Rejects
from snowmelt.load.parsed import ColumnOptions

if TYPE_CHECKING:
    from collections.abc import Callable

    from snowmelt.catalog.cursor import Cursor
    from snowmelt.catalog.lexing import Token
    from snowmelt.load.copying import Value

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

    def __init__(self, cursor: Cursor) -> None:
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
                raise self._cursor.error(
                    f"{_written(field.name)} of this column is given in the column list, too"
                )
        return replace(before, **self._found)

    def _one(self) -> bool:
        cursor = self._cursor
        token = cursor.token
        if cursor.accept("ENFORCELENGTH"):
            self._put("enforce_length", True, token)
        elif cursor.accept("NO", "ESCAPE"):
            self._put("escape", "", token)
        elif cursor.accept("DELIMITER"):
            cursor.accept("AS")
            self._put("delimiter", cursor.string("the delimiter"), token)
        elif cursor.accept("ENCLOSED"):
            cursor.accept("BY")
            self._put("enclosed_by", cursor.string("the quote"), token)
        elif cursor.accept("ESCAPE"):
            cursor.accept("AS")
            self._put("escape", cursor.string("the escape"), token)
        elif cursor.accept("NULL"):
            cursor.accept("AS")
            self._put("null", cursor.string("what means NULL"), token)
        elif cursor.accept("FORMAT"):
            self._put("format", cursor.string("the format"), token)
        elif cursor.accept("TRIM"):
            self._put("trim", cursor.string("the character to trim"), token)
        else:
            return False
        return True

    def _put(self, name: str, value: object, token: Token) -> None:
        if name in self._found:
            raise self._cursor.error(f"{_written(name)} of this column is given twice", token)
        self._found[name] = value


class OptionReader:
    """Reads the options of the statement, filters and parser among them."""

    def __init__(self, cursor: Cursor) -> None:
        self._cursor = cursor
        self._filters: list[Call] = []
        self._parsing: dict[str, Value] = {}
        self._options: dict[str, Any] = {}
        self._data: str | None = None
        self._exceptions: str | None = None
        self._table: Any = None
        self._overwritten: set[str] = set()
        self._readers: dict[str, Callable[[Token], None]] = {
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
        while cursor.token.kind is not TokenKind.END and cursor.token.text != ";":
            token = cursor.token
            if cursor.accept_one_of("WITH") and cursor.token.text not in {"FILTER", "PARSER"}:
                raise cursor.error("WITH is followed by FILTER or PARSER here")
            word = cursor.token.text if cursor.token.kind is TokenKind.WORD else ""
            if word in _REFUSED:
                raise cursor.error(f"{word} is not supported: {_REFUSED[word]}")
            if cursor.accept_one_of(*_NO_MEANING):
                continue
            if word not in self._readers:
                raise cursor.error(
                    f"{token.written} is no option of COPY; there are "
                    f"{', '.join(sorted(self._readers))}"
                )
            self._readers[word](cursor.take())

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

    def _filter(self, _token: Token) -> None:
        self._filters.extend(read_calls(self._cursor, "a filter", self._known))

    def _parser(self, token: Token) -> None:
        self._put("parser", read_call(self._cursor, "a parser"), token)

    def _format(self, token: Token) -> None:
        """PARQUET and FIXEDWIDTH are parsers that are called by a word."""
        self._put("parser", read_call_of(self._cursor, token), token)

    def _sizes(self, token: Token) -> None:
        cursor = self._cursor
        cursor.expect("(")
        sizes = []
        while True:
            sizes.append(str(cursor.integer("the width of a column", 1, 65_000)))
            if cursor.accept(")"):
                break
            cursor.expect(",")
        self._parse("colsizes", ",".join(sizes), token)
        if "parser" not in self._options:
            self._options["parser"] = Call("FixedWidth", {}, token.place)

    def _skip(self, token: Token) -> None:
        unit = "skip_bytes" if self._cursor.accept("BYTES") else "skip"
        what = "the number of bytes" if unit == "skip_bytes" else "the number of records"
        self._parse(unit, self._cursor.integer(what, 0, _MOST), token)

    def _no(self, token: Token) -> None:
        if self._cursor.accept_one_of("ESCAPE"):
            self._parse("no_escape", True, token)
        else:
            self._cursor.expect("COMMIT")
            self._put("no_commit", True, token)

    def _trailing(self, token: Token) -> None:
        self._cursor.expect("NULLCOLS")
        self._parse("trailing_nullcols", True, token)

    def _record(self, token: Token) -> None:
        self._cursor.expect("TERMINATOR")
        text = self._cursor.string("the record terminator, such as E'\\n',")
        if not text:
            raise self._cursor.error("The record terminator is not empty", token)
        self._parse("record_terminator", text, token)

    def _reject_max(self, token: Token) -> None:
        self._put("reject_max", self._cursor.integer("the limit of rejects", 0, _MOST), token)

    def _stream(self, token: Token) -> None:
        self._cursor.expect("NAME")
        self._put("stream_name", self._cursor.string("the name of the stream"), token)

    def _rejected(self, token: Token) -> None:
        cursor = self._cursor
        cursor.expect("DATA")
        if self._data is not None or self._table is not None:
            raise cursor.error("REJECTED DATA is given twice", token)
        if cursor.accept("AS", "TABLE"):
            self._table = cursor.name("a table", 3)
        else:
            self._data = self._place_of_file("data", "the path of a file, or AS TABLE with a name,")
        self._check_rejects(token)

    def _exceptions_to(self, token: Token) -> None:
        if self._exceptions is not None:
            raise self._cursor.error("EXCEPTIONS is given twice", token)
        self._exceptions = self._place_of_file("exceptions", "the path of a file")
        self._check_rejects(token)

    def _check_rejects(self, token: Token) -> None:
        if self._table is not None and self._exceptions is not None:
            raise self._cursor.error(
                "REJECTED DATA AS TABLE holds the reasons, too: leave EXCEPTIONS out", token
            )

    def _place_of_file(self, which: str, what: str) -> str:
        path = self._cursor.string(what)
        if not path:
            raise self._cursor.error("A path is not empty")
        if self._cursor.ahead("ON"):
            raise self._cursor.error(
                "There is one file for the whole load, wherever its tasks run: leave ON out"
            )
        if self._cursor.accept("OVERWRITE"):
            self._overwritten.add(which)
        return path

    def _text(self, name: str, what: str, *words: str) -> Callable[[Token], None]:
        def read(token: Token) -> None:
            for word in words:
                self._cursor.accept(word)
            self._parse(name, self._cursor.string(what), token)

        return read

    def _flag(self, name: str, *rest: str) -> Callable[[Token], None]:
        def read(token: Token) -> None:
            if rest:
                self._cursor.expect(*rest)
            self._put(name, True, token)

        return read

    def _parse(self, name: str, value: Value, token: Token) -> None:
        if name in self._parsing:
            raise self._cursor.error(f"{_written(name)} is given twice", token)
        self._parsing[name] = value

    def _put(self, name: str, value: object, token: Token) -> None:
        if name in self._options:
            raise self._cursor.error(f"{_written(name)} is given twice", token)
        self._options[name] = value


_WRITTEN = {"enforce_length": "ENFORCELENGTH", "reject_max": "REJECTMAX"}


def _written(name: str) -> str:
    """Return an option as a statement writes it."""
    if name.startswith("collection_"):
        return name.replace("_", "").upper()
    return _WRITTEN.get(name, name.replace("_", " ").upper())
