"""Parser of Snowflake's COPY INTO, for the same load stack as COPY.

Every option is either translated exactly or rejected with an error that names it. Strings follow
the rules of the other statements: a backslash starts an escape sequence.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import PurePath
from typing import Any, get_args

import msgspec

from snowmelt.catalog.sql.cursor import ObjectName, TokenCursor, format_suggestion, parse_boolean
from snowmelt.catalog.sql.lexer import SourcePosition, SqlToken, TokenKind
from snowmelt.load.copy_ast import (
    ComputedColumn,
    CopySelection,
    CopyStatement,
    InputCompression,
    InputPath,
    ParameterValue,
    ParsedColumn,
    PhaseCall,
    ValidationMode,
)
from snowmelt.load.file_metadata import FILE_COLUMN_NAMES
from snowmelt.load.phase_protocols import ColumnOptions
from snowmelt.schema.types import to_display_name

_COMPRESSIONS = {
    "AUTO": None,
    "GZIP": InputCompression.GZIP,
    "BZ2": InputCompression.BZIP,
    "ZSTD": InputCompression.ZSTD,
    "NONE": InputCompression.UNCOMPRESSED,
}
_SCHEMES = {"s3", "gcs", "gs", "az", "file"}
# Joins the steps of a path to a column name. A dot would confuse the path a.b with a key "a.b".
_STEP_SEPARATOR = "\x1f"
_PARSERS = {"JSON": "JSON", "AVRO": "AVRO", "PARQUET": "PARQUET", "ORC": "ORC"}
# Maximum n of RETURN_n_ROWS, because these rows are held in memory.
_MAX_VALIDATED_ROWS = 10_000
_RETURN_ROWS = re.compile(r"RETURN_(\d+)_ROWS")
_HEX_CHARACTERS = re.compile(r"(?:0x[0-7][0-9a-f])+", re.IGNORECASE)
_SKIP_FILE = re.compile(r"SKIP_FILE_(\d+)(%?)", re.IGNORECASE)

# Options whose only supported value is Snowflake's default, each with the alternative to suggest.
_FIXED_COPY_OPTIONS = {
    "RETURN_FAILED_ONLY": ("FALSE", "query COPY_HISTORY for files that failed"),
    "LOAD_UNCERTAIN_FILES": ("FALSE", "the history of loads does not expire"),
    "LOAD_MODE": ("FULL_INGEST", "all loads write native files"),
}
_UNSUPPORTED_COPY_OPTIONS = {
    "SIZE_LIMIT": "name fewer files",
    "CLUSTER_AT_INGEST_TIME": "set the clustering of the table",
    "FILE_PROCESSOR": "load text, Avro or Parquet",
    "CREDENTIALS": "the environment of the process has the credentials of stores",
    "STORAGE_INTEGRATION": "the environment of the process has the credentials of stores",
    "ENCRYPTION": "stores decrypt what they have encrypted",
}
_INFER_SCHEMA_ARGUMENTS = ("LOCATION", "FILE_FORMAT", "FILES", "IGNORE_CASE", "MAX_FILE_COUNT")
_FIXED_CSV_OPTIONS = {
    "MULTI_LINE": ("TRUE", "quoted fields may contain line ends"),
    "SKIP_BLANK_LINES": ("FALSE", "use COPY with PARSER CSV()"),
    "DATE_FORMAT": ("AUTO", "use COPY with FORMAT for the column"),
    "TIME_FORMAT": ("AUTO", "use COPY with FORMAT for the column"),
    "TIMESTAMP_FORMAT": ("AUTO", "use COPY with FORMAT for the column"),
    "BINARY_FORMAT": ("HEX", "use COPY with an expression"),
    "TRIM_SPACE": ("FALSE", "use COPY with TRIM"),
    "ERROR_ON_COLUMN_COUNT_MISMATCH": ("TRUE", "use COPY with TRAILING NULLCOLS or FILLER"),
    "REPLACE_INVALID_CHARACTERS": ("FALSE", "use COPY with FILTER Iconverter(…)"),
    "SKIP_BYTE_ORDER_MARK": ("TRUE", "a byte order mark is skipped"),
    "ENCODING": ("UTF8", "use COPY with FILTER Iconverter(…)"),
    "VALIDATE_UTF8": ("TRUE", "text is UTF-8"),
}
_FIXED_JSON_OPTIONS = {
    "DATE_FORMAT": ("AUTO", "use COPY with FORMAT for the column"),
    "TIME_FORMAT": ("AUTO", "use COPY with FORMAT for the column"),
    "TIMESTAMP_FORMAT": ("AUTO", "use COPY with FORMAT for the column"),
    "BINARY_FORMAT": ("HEX", "use COPY with an expression"),
    "TRIM_SPACE": ("FALSE", "use COPY with an expression"),
    "MULTI_LINE": ("TRUE", "objects may contain line ends"),
    "ENABLE_OCTAL": ("FALSE", "octal numbers are not JSON"),
    "STRIP_NULL_VALUES": ("FALSE", "use COPY with PARSER JSON()"),
    "REPLACE_INVALID_CHARACTERS": ("FALSE", "use COPY with FILTER Iconverter(…)"),
    "IGNORE_UTF8_ERRORS": ("FALSE", "use COPY with FILTER Iconverter(…)"),
    "SKIP_BYTE_ORDER_MARK": ("TRUE", "a byte order mark is skipped"),
}
_FIXED_BINARY_OPTIONS = {
    "TRIM_SPACE": ("FALSE", "use COPY with an expression"),
    "REPLACE_INVALID_CHARACTERS": ("FALSE", "text is UTF-8"),
    "SNAPPY_COMPRESSION": ("TRUE", "a file names its compression"),
    "BINARY_AS_TEXT": ("TRUE", "columns have the types of the table"),
    "USE_LOGICAL_TYPE": ("TRUE", "logical types are used"),
    "USE_VECTORIZED_SCANNER": ("FALSE", "it has no effect here"),
}


def parse_copy_into(sql: str) -> CopyStatement:
    """Parse a COPY INTO a table, with or without a final semicolon.

    Raises:
        StatementError: If it is invalid, or has an option that is not supported.
    """
    cursor = TokenCursor(sql)
    cursor.expect("COPY", "INTO")
    if cursor.current.kind is TokenKind.STRING or cursor.current.text == "@":
        raise cursor.make_error(
            "COPY INTO a location is not supported: write the rows with Spark, or read the table from "
            "another engine"
        )
    table = cursor.parse_name("a table", 3)
    items = _parse_columns(cursor) if cursor.accept("(") else None
    options = _CopyIntoOptions(cursor)
    options.parse_source()
    options.parse_options()
    cursor.expect_end("COPY INTO")
    return CopyStatement(
        table=table,
        items=items,
        text=sql.strip().rstrip(";").rstrip(),
        **options.to_statement_fields(has_columns=items is not None),
    )


def parse_infer_schema(sql: str) -> tuple[CopyStatement, int | None]:
    """Parse `SELECT * FROM TABLE(INFER_SCHEMA(…))`.

    Return a COPY INTO of the files, whose table is a placeholder, and the maximum number of files.

    Raises:
        StatementError: If it is invalid, or has an argument that is not supported.
    """
    cursor = TokenCursor(sql)
    if not cursor.accept("SELECT", "*", "FROM", "TABLE", "(", "INFER_SCHEMA", "("):
        raise cursor.make_error(
            "INFER_SCHEMA is only supported as SELECT * FROM TABLE(INFER_SCHEMA(…)), without other clauses"
        )
    options = _CopyIntoOptions(cursor)
    max_files = options.parse_infer_schema_arguments()
    cursor.expect(")")
    cursor.expect_end("INFER_SCHEMA(…))")
    statement = CopyStatement(
        table=ObjectName(("T",), cursor.current.position),
        items=None,
        text=sql,
        **options.to_statement_fields(has_columns=False),
    )
    return statement, max_files


def _parse_columns(cursor: TokenCursor) -> tuple[ParsedColumn, ...]:
    found: list[ParsedColumn] = []
    while True:
        token = cursor.current
        name = cursor.parse_identifier("a column")
        if any(each.name == name for each in found):
            raise cursor.make_error(f"Column {to_display_name(name)} is given twice", token)
        found.append(ParsedColumn(name, ColumnOptions(), token.position))
        if cursor.accept(")"):
            return tuple(found)
        cursor.expect(",")


class _SelectionParser:
    """Parser of SELECT with its expressions, up to FROM.

    `$n` becomes the VARCHAR column of field n, and `$1:a.b` that of the path `a.b`.
    """

    def __init__(self, cursor: TokenCursor) -> None:
        self._cursor = cursor
        self._expressions: list[tuple[str, SourcePosition]] = []
        self._paths: dict[str, None] = {}
        self._highest_field = 0

    def parse(self) -> CopySelection:
        """Parse the SELECT list.

        Raises:
            StatementError: If it has a part that is not supported.
        """
        cursor = self._cursor
        first = cursor.current
        cursor.expect("SELECT")
        if cursor.is_next("DISTINCT"):
            raise cursor.make_error("SELECT DISTINCT is not supported. Remove DISTINCT")
        if cursor.is_next("*"):
            raise cursor.make_error(
                "SELECT * is not supported. List the expressions to load, for example $1, $2"
            )
        while True:
            at = cursor.current.position
            self._expressions.append((self._parse_expression(), at))
            if not cursor.accept(","):
                break
        if self._paths and self._highest_field > 0:
            raise cursor.make_error(
                "Fields by number and by name cannot be combined. Use one form for all fields",
                first,
            )
        fields = tuple(self._paths) or tuple(
            f"${number}" for number in range(1, self._highest_field + 1)
        )
        if not fields:
            raise cursor.make_error("Expected a field such as $1 in the SELECT", first)
        return CopySelection(fields, tuple(self._expressions))

    def _parse_expression(self) -> str:
        cursor = self._cursor
        parts: list[str] = []
        depth = 0
        while cursor.current.kind is not TokenKind.END:
            token = cursor.current
            if depth == 0 and (token.text == "," or cursor.is_next("FROM")):
                break
            if depth == 0 and cursor.accept("AS"):
                cursor.parse_identifier("a column")
                break
            is_symbol = token.kind is TokenKind.SYMBOL
            depth += is_symbol and token.text == "("
            depth -= is_symbol and token.text == ")"
            if is_symbol and token.text == "$":
                parts.append(self._parse_field())
                cast = [cursor.current.text, cursor.peek().text]
                if len(parts) == 1 and cast == ["::", "VARIANT"]:
                    # A field is a VARIANT already. It may be stored in any column.
                    cursor.advance()
                    cursor.advance()
            elif token.kind is TokenKind.WORD and cursor.peek().text == ".":
                # Skip the alias of the location and the dot.
                cursor.advance()
                cursor.advance()
            elif token.kind is TokenKind.STRING:
                parts.append("'" + cursor.advance().text.replace("'", "''") + "'")
            else:
                self._check_metadata(token)
                parts.append(cursor.advance().source_text)
        if not parts:
            raise cursor.make_error("Expected an expression here")
        return " ".join(parts)

    def _check_metadata(self, token: SqlToken) -> None:
        if token.text.startswith("METADATA$") and token.text not in FILE_COLUMN_NAMES:
            raise self._cursor.make_error(
                f"{token.source_text} is not supported. Supported: {', '.join(FILE_COLUMN_NAMES)}",
                token,
            )

    def _parse_field(self) -> str:
        cursor = self._cursor
        cursor.advance()
        number = cursor.parse_integer("the number of a field", 1, 16_384)
        if cursor.current.text != ":":
            self._highest_field = max(self._highest_field, number)
            return f'"${number}"'
        steps: list[str] = []
        while cursor.current.text in {":", "."} and cursor.current.kind is TokenKind.SYMBOL:
            cursor.advance()
            token = cursor.current
            if token.kind not in {TokenKind.WORD, TokenKind.QUOTED}:
                raise cursor.make_error("Expected the name of a field here")
            cursor.advance()
            steps.append(token.source_text if token.kind is TokenKind.WORD else token.text)
        if cursor.current.text == "[":
            raise cursor.make_error(
                "Elements of arrays are not supported. Load the array into an ARRAY column"
            )
        path = _STEP_SEPARATOR.join(steps)
        self._paths[path] = None
        return '"' + path.replace('"', '""') + '"'


class _CopyIntoOptions:
    """Parser of the source and options of one statement."""

    def __init__(self, cursor: TokenCursor) -> None:
        self._cursor = cursor
        self._path = ""
        self._source = cursor.current
        self._files: list[tuple[str, SqlToken]] | None = None
        self._pattern: str | None = None
        self._compression: InputCompression | None = None
        self._matching = "NONE"
        self._matching_token = cursor.current
        self._parser: PhaseCall | None = None
        self._has_header = False
        self._selection: CopySelection | None = None
        self._metadata: tuple[ComputedColumn, ...] = ()
        self._fields: dict[str, Any] = {"abort_on_error": True, "enforce_length": True}
        self._parsers: dict[str, Callable[[], None]] = {
            "FILES": self._parse_files,
            "PATTERN": self._parse_pattern,
            "FILE_FORMAT": self._parse_file_format,
            "ON_ERROR": self._parse_on_error,
            "PURGE": self._make_flag_parser("purge"),
            "FORCE": self._make_flag_parser("force"),
            "ENFORCE_LENGTH": self._make_flag_parser("enforce_length"),
            "TRUNCATECOLUMNS": self._parse_truncate_columns,
            "MATCH_BY_COLUMN_NAME": self._parse_matching,
            "INCLUDE_METADATA": self._parse_metadata,
            "VALIDATION_MODE": self._parse_validation_mode,
        }

    def parse_source(self) -> None:
        """Parse FROM with its location."""
        cursor = self._cursor
        cursor.expect("FROM")
        if cursor.accept("("):
            self._selection = _SelectionParser(cursor).parse()
            cursor.expect("FROM")
            self._parse_location()
            cursor.accept("AS")
            if cursor.current.kind in {TokenKind.WORD, TokenKind.QUOTED}:
                cursor.parse_identifier("a location")
            cursor.expect(")")
        else:
            self._parse_location()

    def _parse_location(self) -> None:
        cursor = self._cursor
        self._source = cursor.current
        if cursor.current.text == "@":
            raise cursor.make_error(
                "Stages are not supported: write the location in single quotes, such as 's3://bucket/path/'"
            )
        path = cursor.parse_string("a location, such as 's3://bucket/path/',")
        scheme = path.partition("://")[0].lower() if "://" in path else ""
        if scheme == "gcs":
            path = f"gs://{path.partition('://')[2]}"
        elif scheme and scheme not in _SCHEMES:
            raise cursor.make_error(
                f"{scheme}:// is not supported: write s3://, gs://, az:// or a local path",
                self._source,
            )
        if not path or (not scheme and not PurePath(path).is_absolute()):
            raise cursor.make_error(
                "Invalid location: expected an absolute path or a URL", self._source
            )
        self._path = path

    def parse_options(self) -> None:
        """Parse the remaining options, in any order."""
        cursor = self._cursor
        given: set[str] = set()
        while cursor.current.kind is TokenKind.WORD:
            token = cursor.current
            word = token.text
            if word in given:
                raise cursor.make_error(f"{word} is given twice")
            given.add(word)
            if word in _UNSUPPORTED_COPY_OPTIONS:
                raise cursor.make_error(
                    f"{word} is not supported: {_UNSUPPORTED_COPY_OPTIONS[word]}"
                )
            if word in _FIXED_COPY_OPTIONS:
                _parse_fixed_option(cursor, _FIXED_COPY_OPTIONS)
                continue
            if word not in self._parsers:
                known = (*self._parsers, *_FIXED_COPY_OPTIONS)
                raise cursor.make_error(
                    f"Unknown option {token.source_text} of COPY INTO."
                    f"{format_suggestion(word, known)} Valid options: {', '.join(sorted(known))}"
                )
            cursor.advance()
            cursor.expect("=")
            self._parsers[word]()

    def parse_infer_schema_arguments(self) -> int | None:
        """Parse the arguments of INFER_SCHEMA and `)`. Return the value of MAX_FILE_COUNT, or None."""
        cursor = self._cursor
        max_files = None
        given: set[str] = set()
        while True:
            token = cursor.current
            name = cursor.expect_one_of(*_INFER_SCHEMA_ARGUMENTS)
            if name in given:
                raise cursor.make_error(f"{name} is given twice", token)
            given.add(name)
            cursor.expect("=>")
            if name == "LOCATION":
                self._parse_location()
            elif name == "FILE_FORMAT":
                self._parse_file_format()
            elif name == "FILES":
                self._parse_files()
            elif name == "MAX_FILE_COUNT":
                max_files = cursor.parse_integer("the number of files", 1, 1_000_000)
            elif not parse_boolean(cursor):
                raise cursor.make_error(
                    "IGNORE_CASE => FALSE is not supported: COPY matches names regardless of case"
                )
            if cursor.accept(")"):
                break
            cursor.expect(",")
        for name in ("LOCATION", "FILE_FORMAT"):
            if name not in given:
                raise cursor.make_error(f"INFER_SCHEMA needs {name} => …")
        is_csv = self._parser is not None and self._parser.name == "COPYINTOCSV"
        if self._has_header or not is_csv:
            self._matching = "CASE_INSENSITIVE"
        return max_files

    def to_statement_fields(self, *, has_columns: bool) -> dict[str, Any]:
        """Return inputs, parser and options as arguments for CopyStatement.

        Raises:
            StatementError: If options exclude each other, or one is missing.
        """
        cursor = self._cursor
        parser = self._parser or _make_csv_parser({}, self._source)
        by_name = self._matching != "NONE"
        if self._metadata and not by_name:
            raise cursor.make_error(
                "INCLUDE_METADATA requires MATCH_BY_COLUMN_NAME = CASE_INSENSITIVE", self._source
            )
        if self._selection is not None:
            if by_name or self._has_header:
                option = "MATCH_BY_COLUMN_NAME" if by_name else "PARSE_HEADER"
                raise cursor.make_error(
                    f"SELECT and {option} exclude each other. Remove {option}", self._source
                )
            return self._make_selection_fields(self._selection, parser)
        if parser.name in _PARSERS.values() and not by_name:
            raise cursor.make_error(
                f"TYPE = {parser.name} needs MATCH_BY_COLUMN_NAME = CASE_INSENSITIVE: a column for whole "
                "objects is not supported",
                self._source,
            )
        if by_name and has_columns:
            raise cursor.make_error(
                "A list of columns and MATCH_BY_COLUMN_NAME exclude each other. Remove one of them",
                self._matching_token,
            )
        if parser.name == "COPYINTOCSV" and by_name != self._has_header:
            raise cursor.make_error(
                "For CSV, MATCH_BY_COLUMN_NAME requires PARSE_HEADER = TRUE"
                if by_name
                else "PARSE_HEADER = TRUE requires MATCH_BY_COLUMN_NAME = CASE_INSENSITIVE",
                self._source,
            )
        return {
            "inputs": self._make_inputs(),
            "parser": parser,
            "metadata": self._metadata,
            "binary_format": "HEX" if parser.name == "COPYINTOCSV" else None,
            **self._fields,
        }

    def _make_selection_fields(self, selection: CopySelection, parser: PhaseCall) -> dict[str, Any]:
        by_number = selection.fields[0] == "$1"
        if by_number != (parser.name == "COPYINTOCSV"):
            wanted = "by name, such as $1:id" if by_number else "by number, such as $2"
            raise self._cursor.make_error(
                f"Fields of this TYPE are selected {wanted}", self._source
            )
        if parser.name in {"JSON", "AVRO"}:
            parser = PhaseCall(
                parser.name,
                {**parser.parameters, "flatten_maps": True, "key_separator": _STEP_SEPARATOR},
                parser.position,
            )
        elif nested := next((each for each in selection.fields if _STEP_SEPARATOR in each), None):
            path = nested.replace(_STEP_SEPARATOR, ".")
            raise self._cursor.make_error(
                f"$1:{path} is not supported: fields within columns of {parser.name} cannot be selected",
                self._source,
            )
        return {
            "inputs": self._make_inputs(),
            "parser": parser,
            "selection": selection,
            **self._fields,
        }

    def _parse_metadata(self) -> None:
        cursor = self._cursor
        cursor.expect("(")
        found: list[ComputedColumn] = []
        while True:
            token = cursor.current
            name = cursor.parse_identifier("a column")
            cursor.expect("=")
            value = cursor.expect_one_of(*FILE_COLUMN_NAMES)
            if any(each.name == name for each in found):
                raise cursor.make_error(f"Column {to_display_name(name)} is given twice", token)
            found.append(ComputedColumn(name, value, token.position))
            if cursor.accept(")"):
                break
            cursor.expect(",")
        self._metadata = tuple(found)

    def _make_inputs(self) -> tuple[InputPath, ...]:
        place = self._source.position
        if self._files is None:
            return (
                InputPath(
                    self._path, self._compression, place, is_prefix=True, pattern=self._pattern
                ),
            )
        base = self._path if self._path.endswith("/") else f"{self._path}/"
        pattern = None if self._pattern is None else re.compile(self._pattern)
        return tuple(
            InputPath(base + name, self._compression, token.position)
            for name, token in self._files
            if pattern is None or pattern.fullmatch(base + name)
        )

    def _make_flag_parser(self, field: str) -> Callable[[], None]:
        def parse() -> None:
            self._fields[field] = parse_boolean(self._cursor)

        return parse

    def _parse_truncate_columns(self) -> None:
        self._fields["enforce_length"] = not parse_boolean(self._cursor)

    def _parse_files(self) -> None:
        self._cursor.expect("(")
        self._files = []
        while True:
            token = self._cursor.current
            self._files.append((self._cursor.parse_string("the name of a file"), token))
            if self._cursor.accept(")"):
                return
            self._cursor.expect(",")

    def _parse_pattern(self) -> None:
        token = self._cursor.current
        self._pattern = self._cursor.parse_string("a regular expression")
        try:
            re.compile(self._pattern)
        except re.error as error:
            raise self._cursor.make_error(
                f"PATTERN is not a regular expression: {error}", token
            ) from None

    def _parse_on_error(self) -> None:
        cursor = self._cursor
        token = cursor.current
        text = token.text.upper()
        percent = _SKIP_FILE.fullmatch(text)
        if token.kind is TokenKind.WORD and cursor.peek().text == "%":
            percent = _SKIP_FILE.fullmatch(f"{text}%")
        if percent is not None and percent[2]:
            raise cursor.make_error(
                f"ON_ERROR = {text.rstrip('%')}% is not supported: write a number of records, such as "
                "SKIP_FILE_10"
            )
        cursor.advance()
        self._fields["abort_on_error"] = text == "ABORT_STATEMENT"
        if text == "ABORT_STATEMENT":
            return
        self._fields["error_tolerance"] = True
        if text == "SKIP_FILE":
            self._fields["file_reject_max"] = 1
        elif percent is not None and int(percent[1]) > 0:
            self._fields["file_reject_max"] = int(percent[1])
        elif text != "CONTINUE":
            raise cursor.make_error(
                f"Invalid ON_ERROR {token.source_text}. Expected CONTINUE, SKIP_FILE, "
                "SKIP_FILE_<number> or ABORT_STATEMENT",
                token,
            )

    def _parse_validation_mode(self) -> None:
        token = self._cursor.current
        text = self._cursor.advance().text.upper()
        rows = _RETURN_ROWS.fullmatch(text)
        if rows is not None and 1 <= int(rows[1]) <= _MAX_VALIDATED_ROWS:
            self._fields["validation"] = int(rows[1])
        elif text in get_args(ValidationMode):
            self._fields["validation"] = text
        else:
            raise self._cursor.make_error(
                f"Invalid VALIDATION_MODE {token.source_text}. Expected RETURN_<n>_ROWS "
                "(1 to 10,000 rows), RETURN_ERRORS or RETURN_ALL_ERRORS",
                token,
            )

    def _parse_matching(self) -> None:
        self._matching_token = self._cursor.current
        if self._cursor.is_next("CASE_SENSITIVE"):
            raise self._cursor.make_error(
                "MATCH_BY_COLUMN_NAME = CASE_SENSITIVE is not supported: parsers match names regardless of "
                "case. Write CASE_INSENSITIVE"
            )
        self._matching = self._cursor.expect_one_of("CASE_INSENSITIVE", "NONE")

    def _parse_file_format(self) -> None:
        cursor = self._cursor
        if not cursor.is_next("("):
            raise cursor.make_error(
                "Named file formats are not supported: write FILE_FORMAT = (TYPE = CSV …)"
            )
        cursor.expect("(")
        if cursor.is_next("FORMAT_NAME"):
            raise cursor.make_error(
                "Named file formats are not supported: write TYPE = CSV and its options"
            )
        kind, token = "CSV", cursor.current
        if cursor.accept("TYPE"):
            cursor.expect("=")
            token = cursor.current
            kind = cursor.advance().text.upper()
            cursor.accept(",")
        if kind not in {"CSV", *_PARSERS}:
            raise cursor.make_error(
                f"TYPE = {kind} is not supported. Valid types: CSV, JSON, AVRO, ORC, PARQUET", token
            )
        values = self._parse_format_options(kind)
        if kind == "CSV":
            self._has_header = bool(values.get("PARSE_HEADER"))
            self._parser = _make_csv_parser(values, token, self._cursor)
        else:
            parameters: dict[str, ParameterValue] = (
                {"flatten_maps": False} if kind in {"JSON", "AVRO"} else {}
            )
            if values.get("ALLOW_DUPLICATE") is False:
                parameters["reject_on_duplicate"] = True
            self._parser = PhaseCall(_PARSERS[kind], parameters, token.position)

    def _parse_format_options(self, kind: str) -> dict[str, Any]:
        cursor = self._cursor
        fixed = {"CSV": _FIXED_CSV_OPTIONS, "JSON": _FIXED_JSON_OPTIONS}.get(
            kind, _FIXED_BINARY_OPTIONS
        )
        readers = _CSV_OPTIONS if kind == "CSV" else _JSON_OPTIONS if kind == "JSON" else {}
        values: dict[str, Any] = {}
        while not cursor.accept(")"):
            token = cursor.current
            word = token.text
            if word in values:
                raise cursor.make_error(f"{word} is given twice")
            if word == "COMPRESSION":
                cursor.advance()
                cursor.expect("=")
                values[word] = self._compression = self._parse_compression(kind)
            elif word in fixed:
                values[word] = _parse_fixed_option(cursor, fixed)
            elif word in readers:
                cursor.advance()
                cursor.expect("=")
                values[word] = readers[word](cursor)
            else:
                known = sorted({"COMPRESSION", *fixed, *readers})
                raise cursor.make_error(
                    f"Unknown option {token.source_text} of TYPE = {kind}."
                    f"{format_suggestion(word, known)} Valid options: {', '.join(known)}"
                )
            cursor.accept(",")
        return values

    def _parse_compression(self, kind: str) -> InputCompression | None:
        cursor = self._cursor
        token = cursor.current
        text = cursor.advance().text.upper()
        allowed = _COMPRESSIONS if kind in {"CSV", "JSON"} else {"AUTO": None, "NONE": None}
        if kind == "PARQUET":
            allowed |= {"SNAPPY": None}
        if text not in allowed:
            raise cursor.make_error(
                f"COMPRESSION = {text} is not supported for {kind}. "
                f"Valid values: {', '.join(allowed)}",
                token,
            )
        return allowed[text]


def _parse_fixed_option(cursor: TokenCursor, options: Mapping[str, tuple[str, str]]) -> str:
    """Parse an option that has one supported value.

    Raises:
        StatementError: If it has another value.
    """
    word = cursor.advance().text
    cursor.expect("=")
    token = cursor.advance()
    value, instead = options[word]
    if token.text.upper().replace("-", "") != value:
        raise cursor.make_error(
            f"{word} = {token.source_text} is not supported. The only valid value is {value}: "
            f"{instead}",
            token,
        )
    return value


def _parse_characters(cursor: TokenCursor, expected: str) -> str:
    """Parse a string, which may give each character in hexadecimal, such as '0x7c'."""
    text = cursor.parse_string(expected, allow_nul=True)
    if _HEX_CHARACTERS.fullmatch(text):
        return "".join(chr(int(digits, 16)) for digits in text.lower().split("0x")[1:])
    return text


def _parse_character(cursor: TokenCursor) -> str:
    """Parse an ASCII character, or NONE, which is the empty string.

    Raises:
        StatementError: If the string has another length.
    """
    if cursor.accept("NONE"):
        return ""
    token = cursor.current
    text = _parse_characters(cursor, "a character, or NONE,")
    if len(text) > 1 or not text.isascii():
        raise cursor.make_error(
            f"Invalid character {token.source_text}. Give one ASCII character, such as ';' or '0x3b'",
            token,
        )
    return text


def _parse_field_delimiter(cursor: TokenCursor) -> str:
    token = cursor.current
    delimiter = _parse_character(cursor)
    if not delimiter:
        raise cursor.make_error(
            "FIELD_DELIMITER = NONE is not supported. Use COPY with PARSER to read whole lines",
            token,
        )
    return delimiter


def _parse_texts(cursor: TokenCursor) -> list[str]:
    """Parse a list of strings in parentheses, or one string."""
    if not cursor.accept("("):
        return [cursor.parse_string("a string, or a list in parentheses,", allow_nul=True)]
    found: list[str] = []
    while not cursor.accept(")"):
        found.append(cursor.parse_string("a string", allow_nul=True))
        cursor.accept(",")
    return found


def _parse_strip_outer_array(cursor: TokenCursor) -> bool:
    token = cursor.current
    if not parse_boolean(cursor):
        raise cursor.make_error(
            "STRIP_OUTER_ARRAY = FALSE is not supported: the objects of an array are records", token
        )
    return True


_CSV_OPTIONS: dict[str, Callable[[TokenCursor], Any]] = {
    "FIELD_DELIMITER": _parse_field_delimiter,
    "RECORD_DELIMITER": lambda cursor: _parse_characters(cursor, "the record delimiter"),
    "FIELD_OPTIONALLY_ENCLOSED_BY": _parse_character,
    "ESCAPE": _parse_character,
    "ESCAPE_UNENCLOSED_FIELD": _parse_character,
    "NULL_IF": _parse_texts,
    "EMPTY_FIELD_AS_NULL": parse_boolean,
    "SKIP_HEADER": lambda cursor: cursor.parse_integer("the number of lines", 0, 2**31),
    "PARSE_HEADER": parse_boolean,
}
_JSON_OPTIONS: dict[str, Callable[[TokenCursor], Any]] = {
    "ALLOW_DUPLICATE": parse_boolean,
    "STRIP_OUTER_ARRAY": _parse_strip_outer_array,
}


def _make_csv_parser(
    values: Mapping[str, Any], token: SqlToken, cursor: TokenCursor | None = None
) -> PhaseCall:
    """Return the CSV parser with these options. Other options have Snowflake's defaults."""
    quote = values.get("FIELD_OPTIONALLY_ENCLOSED_BY", "")
    escape = values.get("ESCAPE", "")
    unenclosed = escape or values.get("ESCAPE_UNENCLOSED_FIELD", "\\")
    reason = None
    if quote and escape != unenclosed:
        reason = (
            "With FIELD_OPTIONALLY_ENCLOSED_BY, one escape applies to all fields. Set "
            "ESCAPE_UNENCLOSED_FIELD = NONE, or set ESCAPE to the same character. The default of "
            "ESCAPE_UNENCLOSED_FIELD is a backslash"
        )
    if values.get("PARSE_HEADER") and values.get("SKIP_HEADER"):
        reason = "PARSE_HEADER and SKIP_HEADER exclude each other. Remove one of them"
    if reason is not None and cursor is not None:
        raise cursor.make_error(reason, token)
    record = values.get("RECORD_DELIMITER", "\n")
    parameters: dict[str, ParameterValue] = {
        "delimiter": values.get("FIELD_DELIMITER", ","),
        "enclosed_by": quote,
        "escape": unenclosed,
        "null_if": msgspec.json.encode(values.get("NULL_IF", ["\\N"])).decode(),
        "empty_is_null": values.get("EMPTY_FIELD_AS_NULL", True),
        "header": bool(values.get("PARSE_HEADER")),
        "record_terminator": "" if record in {"\n", "\r\n"} else record,
        "skip": values.get("SKIP_HEADER", 0),
    }
    return PhaseCall("COPYINTOCSV", parameters, token.position)
