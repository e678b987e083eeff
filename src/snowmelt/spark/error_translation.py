"""Spark's refusals of a statement, in our sentences."""

from __future__ import annotations

import contextlib
import difflib
import re
from typing import TYPE_CHECKING

from pyspark.errors import AnalysisException, ParseException

from snowmelt.errors import ColumnNotFound, NotFound, StatementError, TableNotFound
from snowmelt.spark.functions.call_rewriter import CallMalformed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

_PLACE = re.compile(r"\(line (\d+), pos (\d+)\)")
_REASON = re.compile(r"(?:\[[A-Z_.]+\] )?(.*?)(?: SQLSTATE: \w+)?(?: ?\(line|\n|\Z)", re.DOTALL)
_SHOWN_COLUMNS = 8
_NO_DOCUMENT = "DATATYPE_MISMATCH.INVALID_JSON_SCHEMA"
_OF_CALLS = (
    (_NO_DOCUMENT, "an OBJECT or ARRAY is given as struct, map, array or VARIANT"),
    (
        "AGGREGATE_FUNCTION_WITH_NONDETERMINISTIC_EXPRESSION",
        "an aggregate takes values of VOLATILE functions from a subquery, or is given IMMUTABLE ones",
    ),
    (
        "INVALID_NON_DETERMINISTIC_EXPRESSIONS",
        "values of VOLATILE functions come from a subquery there, or from IMMUTABLE ones",
    ),
    (
        "UNSUPPORTED_FEATURE.LAMBDA_FUNCTION_WITH_PYTHON_UDF",
        "a lambda function cannot call another system",
    ),
)


@contextlib.contextmanager
def understood(
    parse_original: Callable[[], object],
    columns: Callable[[], Sequence[str]],
    shown: Callable[[str], str] = str,
) -> Iterator[None]:
    """Turn what Spark raises of a statement into our errors.

    `parse_original` has Spark parse the text as the user wrote it, whose places the user knows;
    `columns` gives the names that were there to choose from, `shown` a message of Spark's in
    which external functions have the names that users know.
    """
    try:
        yield
    except ParseException as error:
        raise _unparsable(_original(parse_original) or error) from error
    except AnalysisException as error:
        refusal = _refusal(error, columns) or _call_refusal(error, shown)
        if refusal is None:
            raise
        raise refusal from error


def _original(parse_original: Callable[[], object]) -> ParseException | None:
    try:
        parse_original()
    except ParseException as error:
        return error
    except AnalysisException:
        pass
    return None


def _unparsable(error: ParseException) -> StatementError:
    text = str(error).strip()
    place = _PLACE.search(text)
    line, position = (int(number) for number in place.groups()) if place else (1, 0)
    reason = _REASON.match(text)
    said = reason.group(1).strip().rstrip(".") if reason else text
    if "near '\"" in said:
        said += "; in a query double quotes make a text, and names that need quotes have backticks"
    return StatementError(reason=said, line=line, column=position + 1)


def _refusal(
    error: AnalysisException, columns: Callable[[], Sequence[str]]
) -> ColumnNotFound | TableNotFound | None:
    condition = error.getCondition() or ""
    parameters = error.getMessageParameters() or {}
    if condition.startswith("UNRESOLVED_COLUMN"):
        column = parameters.get("objectName", "").replace("`", "")
        return ColumnNotFound(column=column, columns=_closest(column, list(columns())))
    if condition.startswith("TABLE_OR_VIEW_NOT_FOUND"):
        table = parameters.get("relationName", "").replace("`", "")
        return TableNotFound(
            f"Table {table} does not exist; tables of the lake are named in full: "
            "database.schema.table.",
            table=table,
        )
    return None


def _call_refusal(
    error: AnalysisException, shown: Callable[[str], str]
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
    # The plan that follows the message names what nobody wrote.
    text = str(error).partition("\n")[0]
    readable = shown(text)
    reason = next((said for named, said in _OF_CALLS if condition.startswith(named)), None)
    if readable == text and not (condition == _NO_DOCUMENT and shown(str(error)) != str(error)):
        return None
    return CallMalformed(
        f"An external function cannot be called like that: {reason}."
        if reason is not None
        else f"An external function cannot be called like that: {readable}"
    )


def _closest(column: str, names: list[str]) -> str:
    """Return the names that are there, the likeliest first."""
    wanted = column.rpartition(".")[2].upper()
    likely = difflib.get_close_matches(wanted, names, n=_SHOWN_COLUMNS, cutoff=0.0)
    rest = len(names) - len(likely)
    shown = ", ".join(likely) or "none"
    return f"{shown} and {rest} more" if rest > 0 else shown
