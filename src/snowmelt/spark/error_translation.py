"""Translation of Spark's analysis and parse errors into Snowmelt errors."""

from __future__ import annotations

import contextlib
import difflib
import re
from collections.abc import Callable, Iterator, Sequence

from pyspark.errors import AnalysisException, ParseException

from snowmelt.errors import ColumnNotFound, NotFound, StatementError, TableNotFound
from snowmelt.spark.functions.call_rewriter import CallMalformed

_ERROR_POSITION = re.compile(r"\(line (\d+), pos (\d+)\)")
_ERROR_REASON = re.compile(
    r"(?:\[[A-Z_.]+\] )?(.*?)(?: SQLSTATE: \w+)?(?: ?\(line|\n|\Z)", re.DOTALL
)
_MAX_SHOWN_COLUMNS = 8
_INVALID_JSON_SCHEMA = "DATATYPE_MISMATCH.INVALID_JSON_SCHEMA"
_CALL_ERROR_REASONS = (
    (_INVALID_JSON_SCHEMA, "pass an OBJECT or ARRAY as struct, map, array or VARIANT"),
    (
        "AGGREGATE_FUNCTION_WITH_NONDETERMINISTIC_EXPRESSION",
        "an aggregate cannot call VOLATILE functions; call them in a subquery, or make them IMMUTABLE",
    ),
    (
        "INVALID_NON_DETERMINISTIC_EXPRESSIONS",
        "this clause cannot call VOLATILE functions; call them in a subquery, or make them IMMUTABLE",
    ),
    (
        "UNSUPPORTED_FEATURE.LAMBDA_FUNCTION_WITH_PYTHON_UDF",
        "a lambda function cannot call another system",
    ),
)


@contextlib.contextmanager
def translating_errors(
    parse_original: Callable[[], object],
    list_columns: Callable[[], Sequence[str]],
    restore_names: Callable[[str], str] = str,
) -> Iterator[None]:
    """Raise Snowmelt errors in place of the errors that Spark raises for a statement.

    Args:
        parse_original: Parses the user's text with Spark. Positions in its errors refer to that text.
        list_columns: Returns the column names to suggest when a column is not found.
        restore_names: Replaces internal names of external functions in a message by the user's names.
    """
    try:
        yield
    except ParseException as error:
        raise _make_syntax_error(_find_parse_error(parse_original) or error) from error
    except AnalysisException as error:
        refusal = _translate_analysis_error(error, list_columns) or _translate_call_error(
            error, restore_names
        )
        if refusal is None:
            raise
        raise refusal from error


def _find_parse_error(parse_original: Callable[[], object]) -> ParseException | None:
    try:
        parse_original()
    except ParseException as error:
        return error
    except AnalysisException:
        pass
    return None


def _make_syntax_error(error: ParseException) -> StatementError:
    text = str(error).strip()
    place = _ERROR_POSITION.search(text)
    line, position = (int(number) for number in place.groups()) if place else (1, 0)
    reason = _ERROR_REASON.match(text)
    said = reason.group(1).strip().rstrip(".") if reason else text
    if "near '\"" in said:
        said += ". Spark reads double quotes as a string: write a quoted name in backticks"
    return StatementError(reason=said, line=line, column=position + 1)


def _translate_analysis_error(
    error: AnalysisException, list_columns: Callable[[], Sequence[str]]
) -> ColumnNotFound | TableNotFound | None:
    condition = error.getCondition() or ""
    parameters = error.getMessageParameters() or {}
    if condition.startswith("UNRESOLVED_COLUMN"):
        column = parameters.get("objectName", "").replace("`", "")
        return ColumnNotFound(
            column=column, columns=_format_closest_names(column, list(list_columns()))
        )
    if condition.startswith("TABLE_OR_VIEW_NOT_FOUND"):
        table = parameters.get("relationName", "").replace("`", "")
        return TableNotFound(
            f"Table {table} does not exist. Write the full name: database.schema.table.",
            table=table,
        )
    return None


def _translate_call_error(
    error: AnalysisException, restore_names: Callable[[str], str]
) -> CallMalformed | NotFound | None:
    condition = error.getCondition() or ""
    if condition.startswith("UNRESOLVED_ROUTINE"):
        name = (error.getMessageParameters() or {}).get("routineName", "").replace("`", "")
        return NotFound(
            f"Function {name} does not exist; external functions are named in full: "
            "database.schema.function, or in short where a database is given.",
            kind="Function",
            name=name,
        )
    # Drop the plan that follows the message: it contains internal names.
    text = str(error).partition("\n")[0]
    readable = restore_names(text)
    reason = next(
        (said for named, said in _CALL_ERROR_REASONS if condition.startswith(named)), None
    )
    if readable == text and not (
        condition == _INVALID_JSON_SCHEMA and restore_names(str(error)) != str(error)
    ):
        return None
    return CallMalformed(
        f"The call of an external function is invalid: {reason}."
        if reason is not None
        else f"The call of an external function is invalid: {readable}"
    )


def _format_closest_names(column: str, names: list[str]) -> str:
    """Return the existing names as text, most similar to `column` first, at most eight."""
    wanted = column.rpartition(".")[2].upper()
    likely = difflib.get_close_matches(wanted, names, n=_MAX_SHOWN_COLUMNS, cutoff=0.0)
    rest = len(names) - len(likely)
    shown = ", ".join(likely) or "none"
    return f"{shown} and {rest} more" if rest > 0 else shown
