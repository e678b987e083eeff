"""Table function COPY_HISTORY: replaced in a query's text by a query of the view COPY_HISTORY."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from snowmelt.catalog.sql.cursor import ObjectName, TokenCursor
from snowmelt.catalog.sql.lexer import SqlToken, TokenKind, tokenize
from snowmelt.errors import StatementError
from snowmelt.schema.types import TableName

_CANDIDATE = re.compile(r"\bCOPY_HISTORY\s*\(", re.IGNORECASE)
_ARGUMENTS = ("TABLE_NAME", "START_TIME", "END_TIME")
_INFORMATION_SCHEMA = "INFORMATION_SCHEMA"
# Units of Snowflake's DATEADD that Spark's lacks.
_UNITS = re.compile(
    r"(\bDATEADD\s*\(\s*)'?(YEAR|MONTH|WEEK|DAY|HOUR|MINUTE|SECOND)S?'?(?=\s*,)", re.IGNORECASE
)
_QUERY = """(SELECT file_name AS FILE_NAME, end_time AS LAST_LOAD_TIME,
  CASE status WHEN 'LOADED' THEN 'Loaded' WHEN 'PARTIALLY_LOADED' THEN 'Partially loaded'
    ELSE 'Load failed' END AS STATUS,
  row_count AS ROW_COUNT, row_count + rejected_count AS ROW_PARSED, file_size AS FILE_SIZE,
  first_error AS FIRST_ERROR_MESSAGE, rejected_count AS ERROR_COUNT,
  table_database AS TABLE_CATALOG_NAME, table_schema AS TABLE_SCHEMA_NAME,
  table_name AS TABLE_NAME, stream_name AS PIPE_NAME, load_id AS LOAD_ID
  FROM copy_history WHERE table_database = {database} AND table_schema = {schema}
  AND table_name = {table} AND end_time >= ({start}){end})"""


def rewrite_table_functions(
    text: str, namespace: Sequence[str], check_table: Callable[[TableName], object]
) -> str:
    """Replace each `TABLE([<database>.]INFORMATION_SCHEMA.COPY_HISTORY(…))` of a query.

    Args:
        text: The query.
        namespace: Database and schema of names without them.
        check_table: Raises an error if the role may not read a table.

    Raises:
        StatementError: If an argument is missing or unknown.
        TableNotFound: If the table does not exist or the role may not read it.
    """
    if not _CANDIDATE.search(text):
        return text
    tokens = tokenize(text)
    parts: list[str] = []
    done = 0
    for number, token in enumerate(tokens):
        if token.start_offset < done or not _is_table_word(tokens, number):
            continue
        call = _parse_call(text, tokens, number)
        if call is None:
            continue
        database, arguments, end = call
        name = _resolve(arguments["TABLE_NAME"], database, namespace, token)
        check_table(name)
        parts += [text[done : token.start_offset], _make_query(name, arguments)]
        done = end
    return "".join((*parts, text[done:]))


def _is_table_word(tokens: Sequence[SqlToken], number: int) -> bool:
    token = tokens[number]
    return token.kind is TokenKind.WORD and token.text == "TABLE" and tokens[number + 1].text == "("


def _parse_call(
    text: str, tokens: Sequence[SqlToken], number: int
) -> tuple[str | None, dict[str, str], int] | None:
    """Parse the call at TABLE: database, argument texts and end. None for other functions."""
    at = number + 2
    names = [tokens[at]]
    while tokens[at + 1].text == "." and tokens[at + 1].kind is TokenKind.SYMBOL:
        at += 2
        names.append(tokens[at])
    words = [each.text for each in names]
    if words[-1] != "COPY_HISTORY" or tokens[at + 1].text != "(":
        return None
    if len(words) > 1 and words[-2] != _INFORMATION_SCHEMA:
        return None
    arguments, after = _parse_arguments(text, tokens, at + 2)
    if tokens[after].text != ")":
        raise _make_error("Expected ) after COPY_HISTORY(…)", tokens[after])
    database = words[-3] if len(words) > 2 else None
    return database, arguments, tokens[after].start_offset + 1


def _parse_arguments(text: str, tokens: Sequence[SqlToken], at: int) -> tuple[dict[str, str], int]:
    """Return the text of each argument, and the number of the token after the closing parenthesis."""
    found: dict[str, str] = {}
    while True:
        name = tokens[at]
        if name.text not in _ARGUMENTS or tokens[at + 1].text != "=>":
            raise _make_error(
                "COPY_HISTORY has the arguments TABLE_NAME => '<table>', START_TIME => <time> and "
                "END_TIME => <time>",
                name,
            )
        first, depth, at = at + 2, 0, at + 2
        while depth or tokens[at].text not in {",", ")"}:
            if tokens[at].kind is TokenKind.END:
                raise _make_error("This argument of COPY_HISTORY does not end", tokens[first])
            is_symbol = tokens[at].kind is TokenKind.SYMBOL
            depth += is_symbol * ((tokens[at].text == "(") - (tokens[at].text == ")"))
            at += 1
        value = text[tokens[first].start_offset : tokens[at].start_offset].strip()
        if name.text == "TABLE_NAME":
            if tokens[first].kind is not TokenKind.STRING or at != first + 1:
                raise _make_error("TABLE_NAME is a name in single quotes", tokens[first])
            value = tokens[first].text
        if not value or name.text in found:
            raise _make_error(f"{name.text} is empty or given twice", name)
        found[name.text] = value
        at += 1
        if tokens[at - 1].text == ")":
            break
    missing = [each for each in _ARGUMENTS[:2] if each not in found]
    if missing:
        raise _make_error(f"COPY_HISTORY needs {' and '.join(missing)}", tokens[at - 1])
    return found, at


def _resolve(
    written: str, database: str | None, namespace: Sequence[str], token: SqlToken
) -> TableName:
    name: ObjectName = TokenCursor(written).parse_last_name("a table", 3, "TABLE_NAME")
    place = (database or "", "PUBLIC") if database and not namespace else tuple(namespace)
    if database and namespace:
        place = (database, *namespace[1:])
    parts = (*place[: 3 - len(name.parts)], *name.parts)
    if len(parts) != 3:
        raise _make_error("Write TABLE_NAME with database and schema", token)
    return TableName(*parts)


def _make_query(name: TableName, arguments: dict[str, str]) -> str:
    start, end = (
        _UNITS.sub(r"\1\2", arguments[each]) if each in arguments else None
        for each in _ARGUMENTS[1:]
    )
    return _QUERY.format(
        database=_quote(name.database),
        schema=_quote(name.schema),
        table=_quote(name.table),
        start=start,
        end="" if end is None else f" AND end_time <= ({end})",
    )


def _quote(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def _make_error(reason: str, token: SqlToken) -> StatementError:
    place = token.position
    return StatementError(reason=reason, line=place.line, column=place.column)
