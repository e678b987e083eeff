"""Columns of files, inferred by DuckDB and Arrow, for a table that does not exist yet."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.orc as po

from snowmelt.errors import LoadFailed, LoadRefused, PhaseFailed
from snowmelt.load.copy_ast import CopyStatement
from snowmelt.load.copy_parser import parse_copy
from snowmelt.load.portion import InputFile, Portion
from snowmelt.load.sources.files import FileGlobSource, find_by_prefix, is_object_url, list_files
from snowmelt.schema.types import to_display_name

_SQL_TYPES = {
    **dict.fromkeys(("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "HUGEINT"), "NUMBER(38,0)"),
    **dict.fromkeys(("UTINYINT", "USMALLINT", "UINTEGER", "UBIGINT"), "NUMBER(38,0)"),
    **dict.fromkeys(("FLOAT", "DOUBLE"), "FLOAT"),
    **dict.fromkeys(("VARCHAR", "UUID"), "VARCHAR"),
    "BOOLEAN": "BOOLEAN",
    "DATE": "DATE",
    "TIME": "TIME(6)",
    **dict.fromkeys(("TIMESTAMP", "TIMESTAMP_S", "TIMESTAMP_MS"), "TIMESTAMP_NTZ(6)"),
    "TIMESTAMP_NS": "TIMESTAMP_NTZ(9)",
    "TIMESTAMP WITH TIME ZONE": "TIMESTAMP_LTZ(6)",
    "BLOB": "BINARY",
    "JSON": "VARIANT",
}


@dataclass(frozen=True, slots=True)
class InferredColumn:
    """A column of a file: its name in SQL notation, and its type in DDL."""

    name: str
    sql_type: str


def infer_copy_columns(text: str) -> tuple[InferredColumn, ...]:
    """Return the columns of the first file that a COPY would load.

    Raises:
        StatementError: If the statement cannot be parsed.
        LoadRefused: If its inputs or its parser have no columns to infer.
        LoadFailed: If the file cannot be read.
    """
    statement = parse_copy(text)
    file = _find_first_file(statement)
    parser = "DELIMITED" if statement.parser is None else statement.parser.name.upper()
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
    """Return the CREATE TABLE for the table of a COPY."""
    parts = parse_copy(statement_text).table.parts
    name = ".".join(map(to_display_name, parts))
    listed = ", ".join(f"{column.name} {column.sql_type}" for column in columns)
    return f"CREATE TABLE {name} ({listed})"


def _find_first_file(statement: CopyStatement) -> InputFile:
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
    first = inputs[0]
    try:
        found = (
            find_by_prefix(first.path, first.pattern) if first.is_prefix else list_files(first.path)
        )
    except PhaseFailed as error:
        raise LoadFailed(where=first.path, reason=str(error).rstrip(".")) from error
    if not found:
        raise LoadFailed(where=first.path, reason="there is no file")
    return found[0]


def _make_local(file: InputFile, folder: Path) -> str:
    """Return the path of a file, or of a copy of an object."""
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
    quoted = path.replace("'", "''")
    given = "".join(f", {name} = {value}" for name, value in options.items())
    with duckdb.connect() as connection:
        rows = connection.sql(f"DESCRIBE SELECT * FROM {function}('{quoted}'{given})").fetchall()
    return tuple(InferredColumn(_make_name(row[0]), _to_sql_type(row[1])) for row in rows)


def _list_columns(table: pa.Table) -> tuple[InferredColumn, ...]:
    with duckdb.connect() as connection:
        connection.register("given", table)
        rows = connection.sql("DESCRIBE SELECT * FROM given").fetchall()
    return tuple(InferredColumn(_make_name(row[0]), _to_sql_type(row[1])) for row in rows)


def _choose_reader(parser: str, statement: CopyStatement) -> tuple[str, dict[str, str]]:
    """Return DuckDB's function for a parser, with its options."""
    if parser == "PARQUET":
        return "read_parquet", {}
    if parser in {"JSON", "FJSONPARSER"}:
        return "read_json_auto", {}
    if parser not in {"DELIMITED", "CSV", "FCSVPARSER", "COPYINTOCSV"}:
        raise LoadRefused(
            what=f"Inference of columns for parser {parser}",
            reason="only DELIMITED, CSV, JSON, PARQUET and ORC have it: create the table first",
        )
    parameters: dict[str, Any] = dict(statement.parser.parameters) if statement.parser else {}
    parameters |= statement.parsing
    by_name = parser in {"CSV", "FCSVPARSER"} or bool(parameters.get("header"))
    skip = int(parameters.get("skip", 0))
    # What is skipped ends with the line of names.
    has_names = by_name or skip > 0
    default = "|" if parser == "DELIMITED" else ","
    options = {
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
    """Return a name in SQL notation, folded as COPY matches it."""
    return to_display_name(name.upper())


def _to_sql_type(kind: str) -> str:
    if kind.startswith("DECIMAL("):
        return f"NUMBER{kind.removeprefix('DECIMAL')}"
    if kind.endswith("[]"):
        return "ARRAY"
    if kind.startswith(("STRUCT", "MAP")):
        return "OBJECT"
    return _SQL_TYPES.get(kind, "VARCHAR")
