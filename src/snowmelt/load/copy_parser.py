"""Parser of COPY statements: columns, inputs, options, phase calls and intervals.

The grammar is Vertica's. Options of the statement and of single columns may have any order. A phase
call is `name(parameter = value, …)`.
"""

from __future__ import annotations

import datetime as dt
import re
from collections.abc import Callable
from dataclasses import fields, replace
from decimal import Decimal, InvalidOperation
from typing import Any

from snowmelt.catalog.sql.column_types import parse_column_type
from snowmelt.catalog.sql.cursor import TokenCursor, format_suggestion
from snowmelt.catalog.sql.lexer import SqlRules, SqlToken, TokenKind, is_copy_into
from snowmelt.load.copy_ast import (
    ColumnListItem,
    ComputedColumn,
    CopyInputs,
    CopyStatement,
    FillerColumn,
    InputCompression,
    InputPath,
    ParameterValue,
    ParsedColumn,
    PhaseCall,
    RejectOptions,
    StandardInput,
)
from snowmelt.load.copy_into_parser import parse_copy_into
from snowmelt.load.phase_protocols import ColumnOptions
from snowmelt.schema.types import to_display_name

_OPENING_BRACKETS = frozenset({"(", "[", "{"})
_CLOSING_BRACKETS = frozenset({")", "]", "}"})


def parse_copy(sql: str) -> CopyStatement:
    """Parse a COPY or COPY INTO statement, with or without a final semicolon.

    Raises:
        StatementError: If it is invalid or uses an unsupported option.
    """
    if is_copy_into(sql):
        return parse_copy_into(sql)
    cursor = TokenCursor(sql, SqlRules.COPY)
    cursor.expect("COPY")
    table = cursor.parse_name("a table", 3)
    items = _parse_column_list(cursor) if cursor.accept("(") else None
    listed = {
        item.name: item.options for item in items or () if not isinstance(item, ComputedColumn)
    }
    options = StatementOptionParser(cursor)
    column_options = _parse_column_options(cursor, listed)
    inputs, local = _parse_inputs(cursor)
    options.parse()
    cursor.expect_end("COPY")
    return CopyStatement(
        table=table,
        items=items,
        inputs=inputs,
        text=sql.strip().rstrip(";").rstrip(),
        column_options=column_options,
        local=local,
        **options.to_statement_fields(),
    )


def _parse_column_list(cursor: TokenCursor) -> tuple[ColumnListItem, ...]:
    items: list[ColumnListItem] = []
    names: set[str] = set()
    while True:
        token = cursor.current
        item = _parse_column_item(cursor)
        if item.name in names:
            raise cursor.make_error(f"Column {to_display_name(item.name)} is given twice", token)
        names.add(item.name)
        items.append(item)
        if cursor.accept(")"):
            break
        if not cursor.accept(","):
            raise cursor.make_error(
                "Expected a comma or ) here. A column may have AS with an expression, FILLER with "
                "a type, DELIMITER, ENCLOSED BY, ENFORCELENGTH, ESCAPE, NO ESCAPE, FORMAT, NULL or "
                "TRIM"
            )
    if all(isinstance(item, ComputedColumn) for item in items):
        raise cursor.make_error("At least one column must be parsed, but all are expressions")
    return tuple(items)


def _parse_column_item(cursor: TokenCursor) -> ColumnListItem:
    place = cursor.current.position
    name = cursor.parse_identifier("a column")
    if cursor.accept("AS"):
        return ComputedColumn(name, _scan_expression(cursor), place)
    if cursor.accept("FILLER"):
        # Skip Vertica's LONG: here, VARCHAR and VARBINARY always allow the maximum length.
        if cursor.is_next("LONG", "VARCHAR") or cursor.is_next("LONG", "VARBINARY"):
            cursor.advance()
        column = parse_column_type(cursor).to_column(name)
        return FillerColumn(column, _parse_options_of_column(cursor), place)
    return ParsedColumn(name, _parse_options_of_column(cursor), place)


def _scan_expression(cursor: TokenCursor) -> str:
    """Return the text of an expression up to the next comma or closing parenthesis."""
    first = cursor.current
    depth = 0
    last = None
    while cursor.current.kind is not TokenKind.END:
        sign = cursor.current.text if cursor.current.kind is TokenKind.SYMBOL else None
        if depth == 0 and sign in {",", ")"}:
            break
        depth += (sign in _OPENING_BRACKETS) - (sign in _CLOSING_BRACKETS)
        last = cursor.advance()
    if last is None:
        raise cursor.make_error("Expected an expression here")
    if cursor.current.kind is TokenKind.END:
        raise cursor.make_error("Unclosed expression: a parenthesis is missing", first)
    return cursor.source_between(first, last)


def _parse_column_options(
    cursor: TokenCursor, options_by_column: dict[str, ColumnOptions]
) -> dict[str, ColumnOptions]:
    if not cursor.accept("COLUMN", "OPTION"):
        return options_by_column
    cursor.expect("(")
    given: set[str] = set()
    while True:
        token = cursor.current
        name = cursor.parse_identifier("a column")
        if name in given:
            raise cursor.make_error(f"Column {to_display_name(name)} is given twice", token)
        given.add(name)
        options_by_column[name] = _parse_options_of_column(cursor, options_by_column.get(name))
        if cursor.accept(")"):
            return options_by_column
        cursor.expect(",")


def _parse_inputs(cursor: TokenCursor) -> tuple[CopyInputs, bool]:
    if cursor.accept("FROM"):
        local = cursor.accept("LOCAL")
        if cursor.is_next("VERTICA"):
            raise cursor.make_error(
                "FROM VERTICA is not supported. Export the table to files and load those"
            )
        place = cursor.current.position
        if cursor.accept("STDIN"):
            return StandardInput(_parse_compression(cursor), place), local
        if cursor.current.kind is not TokenKind.STRING:
            raise cursor.make_error(
                "Expected STDIN, or paths in single quotes, here: FROM 'folder/*.csv.gz' GZIP"
            )
        return _parse_paths(cursor), local
    cursor.accept("WITH")
    if cursor.accept("SOURCE"):
        return _parse_phase_call(cursor, "a source"), False
    raise cursor.make_error(
        "Expected FROM with paths or STDIN, or SOURCE with the name of a source, here"
    )


def _parse_paths(cursor: TokenCursor) -> tuple[InputPath, ...]:
    paths: list[InputPath] = []
    while True:
        place = cursor.current.position
        path = cursor.parse_string("a path")
        if not path:
            raise cursor.make_error("The path is empty")
        _skip_nodes(cursor)
        compression = _parse_compression(cursor)
        _skip_nodes(cursor)
        paths.append(InputPath(path, compression, place))
        if not cursor.accept(","):
            return tuple(paths)


def _skip_nodes(cursor: TokenCursor) -> None:
    """Skip ON ANY NODE and ON EACH NODE: every task can read every path."""
    if not cursor.is_next("ON"):
        return
    at = cursor.advance()
    if cursor.accept("ANY", "NODE") or cursor.accept("EACH", "NODE"):
        return
    raise cursor.make_error(
        "Cannot choose nodes by name: any task may read the path. Remove ON, or write ON ANY NODE",
        at,
    )


def _parse_compression(cursor: TokenCursor) -> InputCompression | None:
    if cursor.is_next("LZO"):
        raise cursor.make_error(
            "LZO is not supported: no maintained library exists. Use ZSTD or LZ4, or FILTER "
            "ExternalCommand(cmd = 'lzop -dc')"
        )
    word = cursor.accept_one_of(*InputCompression)
    return None if word is None else InputCompression(word.text)


# --- Options of the statement and of single columns.

_MAX_INTEGER = 2**63 - 1
_IGNORED_OPTIONS = ("AUTO", "DIRECT", "TRICKLE")
_UNSUPPORTED_OPTIONS = {
    "NATIVE": "Load Parquet, Avro or text",
    "RETURNREJECTED": "Use REJECTED DATA AS TABLE. The result counts the rejected rows",
    "STORAGE": "Remove it: all loads write to the one warehouse",
}

# Options with a string value: field, name of the string in errors, optional word before the string.
_TEXT_OPTIONS = {
    "DELIMITER": ("delimiter", "the delimiter", "AS"),
    "ENCLOSED": ("enclosed_by", "the quote", "BY"),
    "ESCAPE": ("escape", "the escape", "AS"),
    "NULL": ("null", "the NULL text", "AS"),
    "TRIM": ("trim", "the character to trim", ""),
}
_COLUMN_TEXT_OPTIONS = {**_TEXT_OPTIONS, "FORMAT": ("format", "the format", "")}
_STATEMENT_TEXT_OPTIONS = {
    **_TEXT_OPTIONS,
    "COLLECTIONDELIMITER": ("collection_delimiter", "the delimiter", "AS"),
    "COLLECTIONOPEN": ("collection_open", "the opening character", "AS"),
    "COLLECTIONCLOSE": ("collection_close", "the closing character", "AS"),
    "COLLECTIONENCLOSE": ("collection_enclose", "the quote", "BY"),
    "COLLECTIONNULLELEMENT": ("collection_null_element", "the NULL text", "AS"),
}


def _parse_text_option(cursor: TokenCursor, option: tuple[str, str, str]) -> tuple[str, str]:
    """Parse the rest of an option after its first word. Return its field and its string."""
    field, label, word = option
    if word:
        cursor.accept(word)
    return field, cursor.parse_string(label, allow_nul=True)


def _parse_options_of_column(
    cursor: TokenCursor, base_options: ColumnOptions | None = None
) -> ColumnOptions:
    """Parse the remaining options of a column and add them to `base_options`."""
    found: dict[str, Any] = {}
    while True:
        token = cursor.current
        value: str | bool = True
        if cursor.accept("ENFORCELENGTH"):
            name = "enforce_length"
        elif cursor.accept("NO", "ESCAPE"):
            name, value = "escape", ""
        elif cursor.accept_one_of(*_COLUMN_TEXT_OPTIONS) is not None:
            name, value = _parse_text_option(cursor, _COLUMN_TEXT_OPTIONS[token.text])
        else:
            break
        if name in found:
            raise cursor.make_error(
                f"{_format_option_name(name)} of this column is given twice", token
            )
        found[name] = value
    base_options = base_options or ColumnOptions()
    for field in fields(base_options):
        if field.name in found and getattr(base_options, field.name) is not None:
            raise cursor.make_error(
                f"{_format_option_name(field.name)} of this column is also given in the column list"
            )
    return replace(base_options, **found)


class StatementOptionParser:
    """Parser of the statement's options, including filters and parser."""

    def __init__(self, cursor: TokenCursor) -> None:
        self._cursor = cursor
        self._filters: list[PhaseCall] = []
        self._parsing: dict[str, ParameterValue] = {}
        self._options: dict[str, Any] = {}
        self._rejects: dict[str, Any] = {}
        self._option_parsers: dict[str, Callable[[SqlToken], None]] = {
            "FILTER": self._parse_filters,
            "PARSER": self._parse_parser,
            "PARQUET": self._parse_format_word,
            "ORC": self._parse_format_word,
            "FIXEDWIDTH": self._parse_format_word,
            "COLSIZES": self._parse_column_sizes,
            "SKIP": self._parse_skip,
            "NO": self._parse_no_option,
            "TRAILING": self._make_flag_option_parser(
                self._parsing, "trailing_nullcols", "NULLCOLS"
            ),
            "RECORD": self._parse_record_terminator,
            "REJECTMAX": self._parse_reject_max,
            "REJECTED": self._parse_rejected_data,
            "EXCEPTIONS": self._parse_exceptions,
            "ABORT": self._make_flag_option_parser(self._options, "abort_on_error", "ON", "ERROR"),
            "ERROR": self._make_flag_option_parser(self._options, "error_tolerance", "TOLERANCE"),
            "ENFORCELENGTH": self._make_flag_option_parser(self._options, "enforce_length"),
            "FORCE": self._make_flag_option_parser(self._options, "force"),
            "STREAM": self._parse_stream_name,
            "PARTITION": self._parse_partition_columns,
            **dict.fromkeys(_STATEMENT_TEXT_OPTIONS, self._parse_text_option),
        }
        self._known = frozenset(
            {*self._option_parsers, *_IGNORED_OPTIONS, *_UNSUPPORTED_OPTIONS, "WITH"}
        )

    def parse(self) -> None:
        """Parse all remaining options.

        Raises:
            StatementError: If an option is unknown, given twice, invalid, or excludes another.
        """
        cursor = self._cursor
        while cursor.current.kind is not TokenKind.END and cursor.current.text != ";":
            token = cursor.current
            if cursor.accept_one_of("WITH") and cursor.current.text not in {"FILTER", "PARSER"}:
                raise cursor.make_error("Expected FILTER or PARSER after WITH")
            word = cursor.current.text if cursor.current.kind is TokenKind.WORD else ""
            if word in _UNSUPPORTED_OPTIONS:
                raise cursor.make_error(f"{word} is not supported. {_UNSUPPORTED_OPTIONS[word]}")
            if cursor.accept_one_of(*_IGNORED_OPTIONS):
                continue
            if word not in self._option_parsers:
                raise cursor.make_error(
                    f"Unknown option {token.source_text} of COPY."
                    f"{format_suggestion(word, self._option_parsers)} Valid options: "
                    f"{', '.join(sorted(self._option_parsers))}"
                )
            self._option_parsers[word](cursor.advance())

    def to_statement_fields(self) -> dict[str, Any]:
        """Return the options as arguments for CopyStatement."""
        return {
            **self._options,
            "filters": tuple(self._filters),
            "parsing": self._parsing,
            "rejects": RejectOptions(**self._rejects),
        }

    def _parse_filters(self, _token: SqlToken) -> None:
        self._filters.append(_parse_phase_call(self._cursor, "a filter"))
        # More filters may follow, with or without a comma.
        while self._cursor.accept(",") or _is_at_call(self._cursor, self._known):
            self._filters.append(_parse_phase_call(self._cursor, "a filter"))

    def _parse_parser(self, token: SqlToken) -> None:
        parser = _parse_phase_call(self._cursor, "a parser")
        self._set_option(self._options, "parser", parser, token)

    def _parse_format_word(self, token: SqlToken) -> None:
        """Parse PARQUET, ORC or FIXEDWIDTH, which select a parser without the word PARSER."""
        parser = _parse_phase_call_after_name(self._cursor, token)
        self._set_option(self._options, "parser", parser, token)

    def _parse_column_sizes(self, token: SqlToken) -> None:
        cursor = self._cursor
        cursor.expect("(")
        sizes = []
        while True:
            sizes.append(str(cursor.parse_integer("the width of a column", 1, 65_000)))
            if cursor.accept(")"):
                break
            cursor.expect(",")
        self._set_option(self._parsing, "colsizes", ",".join(sizes), token)
        if "parser" not in self._options:
            self._options["parser"] = PhaseCall("FixedWidth", {}, token.position)

    def _parse_skip(self, token: SqlToken) -> None:
        unit = "skip_bytes" if self._cursor.accept("BYTES") else "skip"
        what = "the number of bytes" if unit == "skip_bytes" else "the number of records"
        self._set_option(
            self._parsing, unit, self._cursor.parse_integer(what, 0, _MAX_INTEGER), token
        )

    def _parse_no_option(self, token: SqlToken) -> None:
        if self._cursor.accept_one_of("ESCAPE"):
            self._set_option(self._parsing, "no_escape", True, token)
        else:
            self._cursor.expect("COMMIT")
            self._set_option(self._options, "no_commit", True, token)

    def _parse_record_terminator(self, token: SqlToken) -> None:
        self._cursor.expect("TERMINATOR")
        text = self._cursor.parse_string("the record terminator, such as E'\\n',", allow_nul=True)
        if not text:
            raise self._cursor.make_error("The record terminator is empty", token)
        self._set_option(self._parsing, "record_terminator", text, token)

    def _parse_reject_max(self, token: SqlToken) -> None:
        limit = self._cursor.parse_integer("the limit of rejects", 0, _MAX_INTEGER)
        self._set_option(self._options, "reject_max", limit, token)

    def _parse_partition_columns(self, token: SqlToken) -> None:
        cursor = self._cursor
        cursor.expect_one_of("COLUMNS", "COLUMN")
        has_parentheses = cursor.accept("(")
        names = [cursor.parse_identifier("a column")]
        while cursor.accept(","):
            names.append(cursor.parse_identifier("a column"))
        if has_parentheses:
            cursor.expect(")")
        self._set_option(self._options, "partition_columns", tuple(names), token)

    def _parse_stream_name(self, token: SqlToken) -> None:
        self._cursor.expect("NAME")
        name = self._cursor.parse_string("the name of the stream")
        self._set_option(self._options, "stream_name", name, token)

    def _parse_rejected_data(self, token: SqlToken) -> None:
        cursor = self._cursor
        cursor.expect("DATA")
        if self._rejects.keys() & {"data_path", "table"}:
            raise cursor.make_error("REJECTED DATA is given twice", token)
        if cursor.accept("AS", "TABLE"):
            self._rejects["table"] = cursor.parse_name("a table", 3)
        else:
            self._parse_file_path("data", "the path of a file, or AS TABLE with a name,")
        self._check_reject_targets(token)

    def _parse_exceptions(self, token: SqlToken) -> None:
        if "exceptions_path" in self._rejects:
            raise self._cursor.make_error("EXCEPTIONS is given twice", token)
        self._parse_file_path("exceptions", "the path of a file")
        self._check_reject_targets(token)

    def _check_reject_targets(self, token: SqlToken) -> None:
        if self._rejects.keys() >= {"table", "exceptions_path"}:
            raise self._cursor.make_error(
                "REJECTED DATA AS TABLE also stores the reasons. Remove EXCEPTIONS", token
            )

    def _parse_file_path(self, option: str, description: str) -> None:
        path = self._cursor.parse_string(description)
        if not path:
            raise self._cursor.make_error("The path is empty")
        if self._cursor.is_next("ON"):
            raise self._cursor.make_error("The whole load writes one file. Remove ON")
        self._rejects[f"{option}_path"] = path
        if self._cursor.accept("OVERWRITE"):
            self._rejects[f"{option}_overwrite"] = True

    def _parse_text_option(self, token: SqlToken) -> None:
        option = _STATEMENT_TEXT_OPTIONS[token.text]
        self._set_option(self._parsing, *_parse_text_option(self._cursor, option), token)

    def _make_flag_option_parser(
        self, options: dict[str, Any], name: str, *rest: str
    ) -> Callable[[SqlToken], None]:
        def read(token: SqlToken) -> None:
            if rest:
                self._cursor.expect(*rest)
            self._set_option(options, name, True, token)

        return read

    def _set_option(
        self, options: dict[str, Any], name: str, value: object, token: SqlToken
    ) -> None:
        if name in options:
            raise self._cursor.make_error(f"{_format_option_name(name)} is given twice", token)
        options[name] = value


_OPTION_SPELLINGS = {"enforce_length": "ENFORCELENGTH", "reject_max": "REJECTMAX"}


def _format_option_name(name: str) -> str:
    """Return an option's name as statements spell it."""
    if name.startswith("collection_"):
        return name.replace("_", "").upper()
    return _OPTION_SPELLINGS.get(name, name.replace("_", " ").upper())


# --- Calls of sources, filters and parsers: `name(parameter = value, …)`.

_LITERAL_WORDS: dict[str, ParameterValue] = {"TRUE": True, "FALSE": False, "NULL": None}
_INTERVAL_UNIT_WORDS = ("DAY", "HOUR", "MINUTE", "SECOND", "DAYS", "HOURS", "MINUTES", "SECONDS")


def _parse_phase_call(cursor: TokenCursor, description: str) -> PhaseCall:
    """Parse a call, with or without parentheses."""
    token = cursor.current
    if token.kind not in {TokenKind.WORD, TokenKind.QUOTED}:
        raise cursor.make_error(f"Expected the name of {description} here")
    cursor.advance()
    if token.text.upper() == "PUBLIC" and cursor.accept("."):
        # Ignore this schema: it has Vertica's built-in functions and most user-defined ones.
        return _parse_phase_call(cursor, description)
    return _parse_phase_call_after_name(cursor, token)


def _parse_phase_call_after_name(cursor: TokenCursor, name: SqlToken) -> PhaseCall:
    written = name.text if name.kind is TokenKind.QUOTED else name.source_text
    return PhaseCall(written, _parse_parameters(cursor), name.position)


def _is_at_call(cursor: TokenCursor, option_words: frozenset[str]) -> bool:
    token = cursor.current
    named = token.kind is TokenKind.QUOTED or (
        token.kind is TokenKind.WORD and token.text not in option_words
    )
    return named and cursor.peek().text in {"(", "."} and cursor.peek().kind is TokenKind.SYMBOL


def _parse_parameters(cursor: TokenCursor) -> dict[str, ParameterValue]:
    found: dict[str, ParameterValue] = {}
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
        found[name] = _parse_value(cursor)
        if cursor.accept(")"):
            return found
        cursor.expect(",")


def _parse_value(cursor: TokenCursor) -> ParameterValue:
    token = cursor.current
    if token.kind is TokenKind.STRING:
        return cursor.advance().text
    if token.kind is TokenKind.NUMBER or token.text in {"-", "+"}:
        return _parse_number(cursor)
    if token.kind is TokenKind.WORD and token.text == "INTERVAL":
        cursor.advance()
        return _parse_interval_literal(cursor)
    if token.kind is TokenKind.WORD and token.text in _LITERAL_WORDS:
        cursor.advance()
        return _LITERAL_WORDS[token.text]
    raise cursor.make_error(
        "Expected a value here: a string in single quotes, a number, TRUE, FALSE, NULL, or "
        "INTERVAL with a string"
    )


# Python converts integers of at most 4,300 digits to text.
_MAX_NUMBER_CHARS = 4000


def _parse_number(cursor: TokenCursor) -> int | Decimal:
    sign = cursor.accept_one_of("-", "+")
    if cursor.current.kind is not TokenKind.NUMBER:
        raise cursor.make_error("Expected a number here")
    token = cursor.advance()
    text = token.text
    # Numbers stay exact, because user code may declare a parameter as Numeric or Varchar.
    try:
        value = Decimal(text if len(text) <= _MAX_NUMBER_CHARS else "")
    except InvalidOperation:
        raise cursor.make_error(f"Number out of range: {text[:20]}…", token) from None
    signed = value.copy_negate() if sign is not None and sign.text == "-" else value
    return int(signed) if text.isdecimal() else signed


def _parse_interval_literal(cursor: TokenCursor) -> dt.timedelta:
    token = cursor.current
    text = cursor.parse_string("an interval, such as '10 seconds'")
    unit = cursor.accept_one_of(*_INTERVAL_UNIT_WORDS)
    value = parse_interval(text, None if unit is None else unit.text)
    if value is None:
        raise cursor.make_error(
            f"Invalid interval {text!r}. Write it as '10 seconds', '00:10:00' or '1 day 2 hours'",
            token,
        )
    return value


# --- Intervals: `10 seconds`, `00:10:00`, `1 day 02:00`.

_UNIT_DURATIONS = {
    "microsecond": dt.timedelta(microseconds=1),
    "millisecond": dt.timedelta(milliseconds=1),
    "second": dt.timedelta(seconds=1),
    "minute": dt.timedelta(minutes=1),
    "hour": dt.timedelta(hours=1),
    "day": dt.timedelta(days=1),
    "week": dt.timedelta(weeks=1),
}
_UNIT_ABBREVIATIONS = {"us": "microsecond", "ms": "millisecond", "s": "second", "sec": "second"}
_UNIT_ABBREVIATIONS |= {"m": "minute", "min": "minute", "h": "hour", "hr": "hour"}
_UNIT_ABBREVIATIONS |= {"d": "day", "w": "week"}
_INTERVAL_TERM = re.compile(
    r"\s*(?:(?P<sign>-?)(?P<hours>\d+):(?P<minutes>[0-5]?\d)(?::(?P<seconds>[0-5]?\d(?:\.\d+)?))?"
    r"|(?P<number>-?\d+(?:\.\d+)?)\s*(?P<unit>[a-z]*))\s*",
    re.IGNORECASE,
)


def parse_interval(text: str, default_unit: str | None = None) -> dt.timedelta | None:
    """Parse an interval; return None if it is invalid.

    Months and years are invalid, because they have no fixed length.

    Args:
        text: One or more terms, such as `1 day 02:00`.
        default_unit: Unit of numbers without a unit. None: such numbers are invalid.
    """
    total, at = dt.timedelta(0), 0
    while at < len(text):
        found = _INTERVAL_TERM.match(text, at)
        if found is None:
            return None
        if found["hours"]:
            minutes, seconds = int(found["minutes"]), float(found["seconds"] or 0)
            part = dt.timedelta(hours=int(found["hours"]), minutes=minutes, seconds=seconds)
            total += -part if found["sign"] else part
        else:
            word = (found["unit"] or default_unit or "").lower()
            unit = _UNIT_DURATIONS.get(_UNIT_ABBREVIATIONS.get(word, word.removesuffix("s")))
            if unit is None:
                return None
            total += float(found["number"]) * unit
        at = found.end()
    return total if text.strip() else None
