"""Table function COPY_HISTORY: a call becomes a query of the view COPY_HISTORY."""

from __future__ import annotations

from collections.abc import Sequence

from snowmelt.catalog.sql.cursor import TokenCursor
from snowmelt.catalog.sql.lexer import SqlRules, SqlToken, TokenKind, tokenize
from snowmelt.errors import StatementError
from snowmelt.schema.types import TableName, quote_literal
from snowmelt.spark.functions.call_rewriter import CallArgument, FunctionCall
from snowmelt.spark.sql.cursor import FULL_NAME_PARTS

_ARGUMENTS = ("TABLE_NAME", "START_TIME", "END_TIME")
# Units of DATEADD. Snowflake accepts them in the plural and in quotes, but Spark does not.
_UNITS = frozenset({"YEAR", "MONTH", "WEEK", "DAY", "HOUR", "MINUTE", "SECOND"})
_QUERY = """(SELECT file_name AS FILE_NAME, end_time AS LAST_LOAD_TIME,
  CASE status WHEN 'LOADED' THEN 'Loaded' WHEN 'PARTIALLY_LOADED' THEN 'Partially loaded'
    ELSE 'Load failed' END AS STATUS,
  row_count AS ROW_COUNT, row_count + rejected_count AS ROW_PARSED, file_size AS FILE_SIZE,
  first_error AS FIRST_ERROR_MESSAGE, rejected_count AS ERROR_COUNT,
  table_database AS TABLE_CATALOG_NAME, table_schema AS TABLE_SCHEMA_NAME,
  table_name AS TABLE_NAME, stream_name AS PIPE_NAME, load_id AS LOAD_ID
  FROM copy_history WHERE table_database = {database} AND table_schema = {schema}
  AND table_name = {table} AND end_time >= ({start}){end})"""


class HistoryCall:
    """Call of COPY_HISTORY: its table, and the query that replaces it."""

    def __init__(
        self,
        call: FunctionCall,
        given: Sequence[CallArgument],
        position: SqlToken,
        namespace: Sequence[str],
    ) -> None:
        """Check the arguments.

        Args:
            call: The call.
            given: Its arguments.
            position: First token of the call, for errors.
            namespace: Database and schema of names without them.

        Raises:
            StatementError: If an argument is missing, unknown or given twice.
        """
        self._position = position
        self._arguments: dict[str, str] = {}
        for each in given:
            if each.name not in _ARGUMENTS:
                raise self._make_error(
                    "COPY_HISTORY has the arguments TABLE_NAME => '<table>', START_TIME => <time> and "
                    "END_TIME => <time>"
                )
            if each.name in self._arguments:
                raise self._make_error(f"{each.name} is given twice")
            self._arguments[each.name] = each.text
        missing = [each for each in _ARGUMENTS[:2] if each not in self._arguments]
        if missing:
            raise self._make_error(f"COPY_HISTORY needs {' and '.join(missing)}")
        database = call.parts[0] if len(call.parts) == FULL_NAME_PARTS else None
        self.table = self._resolve_table(database, namespace)

    def _resolve_table(self, database: str | None, namespace: Sequence[str]) -> TableName:
        written, *others = tokenize(self._arguments["TABLE_NAME"], SqlRules.SPARK)[:-1]
        if others or not written.source_text.startswith("'") or "\\" in written.text:
            raise self._make_error("TABLE_NAME is a name in single quotes, without backslashes")
        name = TokenCursor(written.text).parse_last_name("a table", FULL_NAME_PARTS, "TABLE_NAME")
        if database is not None:
            namespace = (database, *(namespace[1:] or ("PUBLIC",)))
        parts = (*namespace[: FULL_NAME_PARTS - len(name.parts)], *name.parts)
        if len(parts) != FULL_NAME_PARTS:
            raise self._make_error("Write TABLE_NAME with database and schema")
        return TableName(*parts)

    def build_query(self) -> str:
        """Build the query in parentheses."""
        start, end = (self._arguments.get(each) for each in _ARGUMENTS[1:])
        assert start is not None  # noqa: S101  checked above
        return _QUERY.format(
            database=quote_literal(self.table.database),
            schema=quote_literal(self.table.schema),
            table=quote_literal(self.table.table),
            start=_convert_units(start),
            end="" if end is None else f" AND end_time <= ({_convert_units(end)})",
        )

    def _make_error(self, reason: str) -> StatementError:
        place = self._position.position
        return StatementError(reason=reason, line=place.line, column=place.column)


def _convert_units(text: str) -> str:
    tokens = tokenize(text, SqlRules.SPARK)
    pieces, done = [], 0
    for name, opening, unit, comma in zip(tokens, tokens[1:], tokens[2:], tokens[3:], strict=False):
        if (name.unquoted, opening.unquoted, comma.unquoted) == ("DATEADD", "(", ","):
            written = unit.text.upper().removesuffix("S")
            if unit.kind in {TokenKind.WORD, TokenKind.STRING} and written in _UNITS:
                pieces += [text[done : unit.start_offset], written]
                done = unit.end_offset
    return "".join((*pieces, text[done:]))
