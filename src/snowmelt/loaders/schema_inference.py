"""Infer the columns of a new table from files, with DuckDB and Arrow."""

from __future__ import annotations

import json
import math
import re
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.orc as po
import pyarrow.parquet as pq

from snowmelt.catalog.statements.statement_context import StatementResult
from snowmelt.errors import LoadFailed, LoadRefused, PhaseFailed
from snowmelt.load.copy_ast import CopyStatement
from snowmelt.load.copy_into_parser import parse_infer_schema
from snowmelt.load.copy_parser import parse_copy
from snowmelt.load.portion import InputFile, Portion
from snowmelt.load.sources.files import FileGlobSource, find_by_prefix, is_object_url, list_files
from snowmelt.schema.types import to_display_name, to_internal_name

_SQL_TYPES = {
    **dict.fromkeys(("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "HUGEINT"), "NUMBER(38,0)"),
    **dict.fromkeys(("UTINYINT", "USMALLINT", "UINTEGER", "UBIGINT"), "NUMBER(38,0)"),
    **dict.fromkeys(("FLOAT", "DOUBLE"), "FLOAT"),
    **dict.fromkeys(("VARCHAR", "UUID"), "VARCHAR"),
    "BOOLEAN": "BOOLEAN",
    "DATE": "DATE",
    "TIME": "TIME(6)",
    "TIME_NS": "TIME(9)",
    **dict.fromkeys(("TIMESTAMP", "TIMESTAMP_S", "TIMESTAMP_MS"), "TIMESTAMP_NTZ(6)"),
    "TIMESTAMP_NS": "TIMESTAMP_NTZ(9)",
    "TIMESTAMP WITH TIME ZONE": "TIMESTAMP_LTZ(6)",
    "TIMESTAMPTZ_NS": "TIMESTAMP_LTZ(9)",
    "BLOB": "BINARY",
    "JSON": "VARIANT",
}


# Form of dates that COPY and DuckDB read alike. Other forms can differ: COPY reads 01/02/2026 as a
# day in January, and DuckDB may read it as a day in February.
_SAME_DATE = r"^\s*\d{4}-\d{2}-\d{2}"
_NANOSECONDS = r"\.\d{6}\d*[1-9]"
# Numbers of at most this many digits are exact as a double.
_EXACT_DIGITS = 15
_FETCHED_ROWS = 10_000
# DuckDB's defaults add columns for folders like `day=5`, infer from the first 20,480 records, and
# infer one column of maps for objects with many or rare keys.
_READ_OPTIONS = {"hive_partitioning": "false"}
_SAMPLE_OPTIONS = {"sample_size": "-1"}
_JSON_OPTIONS = {
    "records": "'true'",
    "map_inference_threshold": "-1",
    "field_appearance_threshold": "0",
}

INFERRED_COLUMNS = ("column_name", "type", "nullable", "expression", "filenames", "order_id")
_NUMBERED = re.compile(r"_\d+$")
_NUMBER = re.compile(r"NUMBER\((\d+),(\d+)\)")
_MAX_DIGITS = 38


@dataclass(frozen=True, slots=True)
class InferredColumn:
    """Inferred column: name in SQL notation, and type in DDL."""

    name: str
    sql_type: str


def infer_copy_columns(text: str) -> tuple[InferredColumn, ...]:
    """Infer the columns of the first file that a COPY would load.

    Raises:
        StatementError: If the statement cannot be parsed.
        LoadRefused: If columns cannot be inferred from the inputs or for the parser.
        LoadFailed: If the file cannot be read.
    """
    statement = parse_copy(text)
    return _infer_columns(statement, _list_files(statement)[0])


def infer_schema(text: str) -> StatementResult:
    """Run `SELECT * FROM TABLE(INFER_SCHEMA(…))`: infer the columns of all files together.

    Columns of the same name are one column, with a type that can represent the values of all files.

    Raises:
        StatementError: If the statement cannot be parsed.
        LoadRefused: If columns cannot be inferred for the format.
        LoadFailed: If there is no file, or a file cannot be read.
    """
    statement, max_files = parse_infer_schema(text)
    types: dict[str, str] = {}
    files: dict[str, list[str]] = {}
    for file in _list_files(statement)[:max_files]:
        for column in _infer_columns(statement, file):
            known = types.get(column.name, column.sql_type)
            types[column.name] = _unify_types(known, column.sql_type)
            files.setdefault(column.name, []).append(file.path)
    by_position = _get_parser(statement) == "COPYINTOCSV" and not _has_header(statement)
    rows = []
    for number, (name, sql_type) in enumerate(types.items()):
        field = f"${number + 1}" if by_position else f"$1:{name}"
        rows.append(
            (
                to_internal_name(name),
                sql_type,
                True,
                f"{field}::{sql_type}",
                ", ".join(files[name]),
                number,
            )
        )
    return StatementResult(INFERRED_COLUMNS, tuple(rows))


def _unify_types(first: str, second: str) -> str:
    """Return a type that changes no value of both types; VARCHAR if there is no other."""
    if first == second:
        return first
    one, two = _NUMBER.fullmatch(first), _NUMBER.fullmatch(second)
    if one is not None and two is not None:
        scale = max(int(one[2]), int(two[2]))
        digits = max(int(each[1]) - int(each[2]) for each in (one, two)) + scale
        return f"NUMBER({digits},{scale})" if digits <= _MAX_DIGITS else "VARCHAR"
    kinds = {first.partition("(")[0], second.partition("(")[0]}
    number = one or two
    if kinds == {"NUMBER", "FLOAT"} and number is not None and int(number[1]) <= _EXACT_DIGITS:
        return "FLOAT"
    if kinds in ({"DATE", "TIMESTAMP_NTZ"}, {"TIMESTAMP_NTZ"}):
        return max((first, second), key=lambda each: (each.startswith("TIMESTAMP"), each))
    return "VARCHAR"


def _get_parser(statement: CopyStatement) -> str:
    return "DELIMITED" if statement.parser is None else statement.parser.name.upper()


def _has_header(statement: CopyStatement) -> bool:
    return statement.parser is not None and bool(statement.parser.parameters.get("header"))


def _infer_columns(statement: CopyStatement, file: InputFile) -> tuple[InferredColumn, ...]:
    parser = _get_parser(statement)
    with tempfile.TemporaryDirectory(prefix="snowmelt-infer-") as folder:
        path = _make_local(file, Path(folder))
        try:
            return _describe(path, parser, statement)
        except (duckdb.Error, pa.ArrowException, OSError) as error:
            reason = str(error).partition("\n")[0]
            raise LoadFailed(
                where=file.path, reason=f"its columns cannot be inferred: {reason}"
            ) from error


def build_create_table(statement_text: str, columns: tuple[InferredColumn, ...]) -> str:
    """Return the CREATE TABLE statement for the target table of a COPY."""
    parts = parse_copy(statement_text).table.parts
    name = ".".join(map(to_display_name, parts))
    listed = ", ".join(f"{column.name} {column.sql_type}" for column in columns)
    return f"CREATE TABLE {name} ({listed})"


def _list_files(statement: CopyStatement) -> Sequence[InputFile]:
    inputs = statement.inputs
    if not isinstance(inputs, tuple):
        raise LoadRefused(
            what="Inference of columns", reason="it needs FROM with paths: create the table first"
        )
    if statement.items is not None or statement.selection is not None or statement.filters:
        raise LoadRefused(
            what="Inference of columns",
            reason="column lists, SELECT and filters are not supported: create the table first",
        )
    files: list[InputFile] = []
    for each in inputs:
        try:
            files += (
                find_by_prefix(each.path, each.pattern) if each.is_prefix else list_files(each.path)
            )
        except PhaseFailed as error:
            raise LoadFailed(where=each.path, reason=str(error).rstrip(".")) from error
    if not files:
        raise LoadFailed(where=inputs[0].path, reason="there is no file")
    return files


def _make_local(file: InputFile, folder: Path) -> str:
    """Return the path of a local file, or of a local copy of an object."""
    if not is_object_url(file.path) and "://" not in file.path:
        return file.path
    path = folder / file.path.partition("?")[0].rpartition("/")[2]
    try:
        with path.open("wb") as target:
            for piece in FileGlobSource().read(Portion(file)):
                target.write(piece)
    except PhaseFailed as error:
        raise LoadFailed(where=file.path, reason=str(error).rstrip(".")) from error
    return str(path)


def _describe(path: str, parser: str, statement: CopyStatement) -> tuple[InferredColumn, ...]:
    if parser == "ORC":
        return _list_columns(po.ORCFile(path).schema.empty_table())
    function, options = _choose_reader(parser, statement)
    with duckdb.connect() as connection:
        source = _format_call(function, path, options)
        rows = connection.sql(f"DESCRIBE SELECT * FROM {source}").fetchall()
        if function == "read_parquet":
            return tuple(
                InferredColumn(_make_name(name), _fit_to_parquet(_to_sql_type(kind), field.type))
                for (name, kind, *_), field in zip(rows, pq.read_schema(path), strict=True)
            )
        if function == "read_json_auto":
            rows = _omit_numbered_names(rows, path, connection)
        return tuple(
            InferredColumn(
                _make_name(name),
                _fit_to_texts(
                    _to_sql_type(kind),
                    path,
                    name,
                    _format_text_call(function, path, options, name),
                    connection,
                ),
            )
            for name, kind, *_ in rows
        )


def _omit_numbered_names(
    rows: list[Any], path: str, connection: duckdb.DuckDBPyConnection
) -> list[Any]:
    """Return the columns without those that DuckDB adds for keys that differ only in case.

    COPY stores the values of such keys in one column.
    """
    names = {name.lower() for name, *_ in rows}
    if not any(_NUMBERED.sub("", name) in names - {name} for name in names):
        return rows
    objects = _format_call("read_json_objects", path, {})
    found = connection.execute(f"SELECT DISTINCT unnest(json_keys(json)) FROM {objects}")
    keys = {key for (key,) in found.fetchall()}
    return [row for row in rows if row[0] in keys]


def _format_call(function: str, path: str, options: dict[str, str]) -> str:
    given = "".join(f", {name} = {value}" for name, value in options.items())
    # DuckDB reads a path as a pattern.
    escaped = re.sub(r"[*?\[]", r"[\g<0>]", path)
    return f"{function}({_quote(escaped)}{given})"


def _format_text_call(function: str, path: str, options: dict[str, str], column: str) -> str:
    """Return the DuckDB call that reads a column of the file as text, without conversion."""
    if function == "read_csv":
        more = {"all_varchar": "true", "ignore_errors": "true"}
        return _format_call(function, path, options | more)
    return _format_call("read_json", path, {"columns": f"{{{_quote(column)}: 'JSON'}}"})


def _fit_to_parquet(sql_type: str, kind: pa.DataType) -> str:
    """Return `sql_type`, or the type for values that DuckDB would change and COPY does not."""
    if pa.types.is_decimal(kind) and kind.precision > _MAX_DIGITS:
        return "VARCHAR"
    if sql_type == "TIMESTAMP_NTZ(6)" and kind.unit == "ns":
        # INT96.
        return "TIMESTAMP_NTZ(9)"
    return sql_type


def _fit_to_texts(
    sql_type: str, path: str, name: str, source: str, connection: duckdb.DuckDBPyConnection
) -> str:
    """Return `sql_type` for a column, with nanoseconds if needed.

    Return VARCHAR if `sql_type` would change a value.
    """
    identifier = '"' + name.replace('"', '""') + '"'
    text = f"({identifier} ->> '$')" if source.startswith("read_json") else identifier
    if sql_type == "FLOAT":
        return sql_type if _are_exact_doubles(path, name, source, connection) else "VARCHAR"
    kind = sql_type.partition("(")[0]
    if kind not in {"DATE", "TIME", "TIMESTAMP_NTZ", "TIMESTAMP_LTZ"}:
        return sql_type
    differs = "false" if kind == "TIME" else f"NOT regexp_matches({text}, '{_SAME_DATE}')"
    [(is_other, has_nanoseconds)] = connection.sql(
        f"SELECT bool_or({differs}), bool_or(regexp_matches({text}, '{_NANOSECONDS}')) FROM {source}"
    ).fetchall()
    if is_other:
        return "VARCHAR"
    return f"{kind}(9)" if has_nanoseconds else sql_type


def _are_exact_doubles(
    path: str, name: str, source: str, connection: duckdb.DuckDBPyConnection
) -> bool:
    """Return True if doubles keep the digits of all numbers in a column."""
    column = '"' + name.replace('"', '""') + '"'
    is_json = source.startswith("read_json")
    if is_json:
        # DuckDB rounds numbers in JSON values. `read_json_objects` returns the original text.
        source, column = _format_call("read_json_objects", path, {}), "json"
    # Only these numbers may differ from their doubles.
    pattern = f"[0-9][0-9.]{{{_EXACT_DIGITS}}}|[eE][+-]?[0-9]{{3}}"
    condition = f"regexp_matches({column}, '{pattern}')"
    found = connection.execute(f"SELECT {column} FROM {source} WHERE {condition}")
    while rows := found.fetchmany(_FETCHED_ROWS):
        texts: Iterable[object] = (row[0] for row in rows)
        if is_json:
            texts = (json.loads(text, parse_float=str, parse_int=str).get(name) for (text,) in rows)
        if not all(_is_exact_double(text) for text in texts if isinstance(text, str)):
            return False
    return True


def _is_exact_double(text: str) -> bool:
    """Return True if the double of a number, or the double's shortest text, equals the number.

    Also return True for text that is not a number, and if the double is infinite or NaN.
    """
    try:
        number, double = Decimal(text.strip()), float(text)
    except (ArithmeticError, ValueError):
        return True
    return not math.isfinite(double) or number in (Decimal(repr(double)), Decimal(double))


def _list_columns(table: pa.Table) -> tuple[InferredColumn, ...]:
    with duckdb.connect() as connection:
        connection.register("given", table)
        rows = connection.sql("DESCRIBE SELECT * FROM given").fetchall()
    return tuple(InferredColumn(_make_name(row[0]), _to_sql_type(row[1])) for row in rows)


def _choose_reader(parser: str, statement: CopyStatement) -> tuple[str, dict[str, str]]:
    """Return the DuckDB function and options that correspond to a parser."""
    if parser == "PARQUET":
        return "read_parquet", _READ_OPTIONS
    if parser in {"JSON", "FJSONPARSER"}:
        return "read_json_auto", _READ_OPTIONS | _SAMPLE_OPTIONS | _JSON_OPTIONS
    if parser not in {"DELIMITED", "CSV", "FCSVPARSER", "COPYINTOCSV"}:
        raise LoadRefused(
            what=f"Inference of columns for parser {parser}",
            reason="it is only supported for DELIMITED, CSV, JSON, PARQUET and ORC. Create the table first",
        )
    parameters: dict[str, Any] = dict(statement.parser.parameters) if statement.parser else {}
    parameters |= statement.parsing
    if parameters.get("record_terminator", "") not in {"", "\n", "\r\n"}:
        raise LoadRefused(
            what="Inference of columns",
            reason="a record delimiter other than a line end is not supported. Create the table first",
        )
    by_name = parser in {"CSV", "FCSVPARSER"} or bool(parameters.get("header"))
    skip = int(parameters.get("skip", 0))
    # The skipped lines include the header.
    has_names = by_name or skip > 0
    default = "|" if parser == "DELIMITED" else ","
    options = {
        **_READ_OPTIONS,
        **_SAMPLE_OPTIONS,
        "delim": _quote(str(parameters.get("delimiter", default))),
        "header": str(has_names).lower(),
        "skip": str(max(skip - (0 if by_name else 1), 0)),
    }
    if parameters.get("enclosed_by"):
        options["quote"] = _quote(str(parameters["enclosed_by"]))
    return "read_csv", options


def _quote(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _make_name(name: str) -> str:
    """Convert a name to SQL notation, with the case rules of COPY."""
    return to_display_name(name.upper())


def _to_sql_type(kind: str) -> str:
    if kind.endswith("]"):
        return "ARRAY"
    if kind == f"DECIMAL({_MAX_DIGITS},{_MAX_DIGITS})":
        return "VARCHAR"
    if kind.startswith("DECIMAL("):
        return f"NUMBER{kind.removeprefix('DECIMAL')}"
    if kind.startswith(("STRUCT", "MAP")):
        return "OBJECT"
    return _SQL_TYPES.get(kind, "VARCHAR")
