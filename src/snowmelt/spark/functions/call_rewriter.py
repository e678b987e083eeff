"""Finds and replaces calls of external functions and of COPY_HISTORY in the text of a query.

Calls are found in the tokens, so quoted names, comments and strings are handled correctly. The text
around the calls stays unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError

from snowmelt.catalog.objects.external_functions import FunctionName
from snowmelt.catalog.sql.lexer import SqlRules, SqlToken, TokenKind, tokenize
from snowmelt.errors import UserError
from snowmelt.functions.signature import FunctionSignature
from snowmelt.spark.sql.cursor import (
    FULL_NAME_PARTS,
    match_brackets,
    read_dotted_name,
    split_at_commas,
)
from snowmelt.spark.sql.table_references import DIALECT

if TYPE_CHECKING:
    from snowmelt.catalog.objects.external_functions import CallableFunction

    Render: TypeAlias = Callable[["FunctionCall", Sequence["CallArgument"]], str]

# After any other word, a name with parentheses is a table, or an alias with column names.
_WORDS_BEFORE_CALLS = frozenset({
    "AGGREGATE", "ALL", "AND", "ANY", "BETWEEN", "BOTH", "BY", "CASE", "DISTINCT", "DIV", "ELSE",
    "ESCAPE", "EXTEND", "FOR", "FROM", "HAVING", "ILIKE", "IN", "INTERVAL", "JOIN", "LATERAL",
    "LEADING", "LIKE", "LIMIT", "NOT", "OFFSET", "ON", "OR", "OUTER", "PLACING", "QUALIFY",
    "REGEXP", "RLIKE", "SELECT", "SET", "SOME", "THEN", "TRAILING", "USING", "VALUES", "WHEN",
    "WHERE", "ZONE",
})  # fmt: skip
_HISTORY_FUNCTIONS = (("COPY_HISTORY",), ("INFORMATION_SCHEMA", "COPY_HISTORY"))
_TRY_PREFIX = "TRY_"
_AFTER_SELECT_LIST = frozenset({
    "FROM", "WHERE", "GROUP", "HAVING", "ORDER", "SORT", "CLUSTER", "DISTRIBUTE", "LIMIT", "OFFSET",
    "WINDOW", "QUALIFY", "UNION", "EXCEPT", "INTERSECT", "MINUS", "LATERAL", "INTO",
    ")", "]", "}", ";", "|>",
})  # fmt: skip


class CallMalformed(UserError):
    """The call of {function} is invalid: {reason}."""

    code = "call_malformed"


@dataclass(frozen=True, slots=True)
class CallArgument:
    """Argument of a call: its expression, and its name if passed by name."""

    text: str
    name: str | None = None


@dataclass(frozen=True, slots=True)
class FunctionCall:
    """Name followed by parentheses. Positions are token indexes. `end` is after the call."""

    parts: tuple[str, ...]
    source_name: str
    start: int
    opening: int
    closing: int
    end: int


@dataclass(frozen=True, slots=True)
class StatementCalls:
    """Tokens of a statement and its calls.

    `calls` may be calls of external functions. `history_calls` are `TABLE(COPY_HISTORY(…))`.
    """

    text: str
    tokens: tuple[SqlToken, ...]
    closings: Mapping[int, int]
    calls: tuple[FunctionCall, ...]
    history_calls: tuple[FunctionCall, ...]


def find_calls(text: str) -> StatementCalls:
    """Find everything in a statement that has the form of a function call.

    Raises:
        StatementError: If a string, quoted name or comment is not closed.
    """
    tokens = tokenize(text, SqlRules.SPARK)
    closings = match_brackets(tokens)
    found = {call.start: call for call in _scan_calls(tokens, closings)}
    histories = []
    for start, table in list(found.items()):
        call = found.get(table.opening + 1)
        if (
            tokens[start].unquoted == "TABLE"
            and call is not None
            and call.parts[-2:] in _HISTORY_FUNCTIONS
            and call.end == table.closing
        ):
            histories.append(replace(call, start=start, end=table.end))
            del found[start], found[call.start]
    return StatementCalls(text, tokens, closings, tuple(found.values()), tuple(histories))


def _scan_calls(tokens: Sequence[SqlToken], closings: Mapping[int, int]) -> Iterator[FunctionCall]:
    index = 0
    while index < len(tokens):
        run = read_dotted_name(tokens, index)
        opening = index + 2 * len(run) - 1
        closing = closings.get(opening) if tokens[opening].unquoted == "(" else None
        if (
            0 < len(run) <= FULL_NAME_PARTS
            and closing is not None
            and not _is_alias(tokens, index, closing)
        ):
            parts = tuple(token.text for token in run)
            written = ".".join(token.source_text.strip("`") for token in run)
            yield FunctionCall(parts, written, index, opening, closing, closing + 1)
        index = max(opening, index + 1)


def _is_alias(tokens: Sequence[SqlToken], start: int, closing: int) -> bool:
    """Return True if a name with parentheses is a table, or an alias with column names."""
    if not start:
        return False
    before, after = tokens[start - 1], tokens[closing + 1]
    if before.kind is TokenKind.WORD and before.text not in _WORDS_BEFORE_CALLS:
        return True
    if before.unquoted == "," and after.unquoted == "AS" and tokens[closing + 2].text == "(":
        return True  # WITH a AS (…), b(x) AS (…)
    return before.kind is TokenKind.QUOTED or before.unquoted in {".", ")", "::"}


def list_candidate_names(
    parts: tuple[str, ...], namespace: tuple[str, ...]
) -> Iterable[tuple[FunctionName, bool]]:
    """Yield the functions that a name may refer to, with True for a `try_` call."""
    missing = FULL_NAME_PARTS - len(parts)
    if missing > len(namespace):
        return
    name = FunctionName(*namespace[:missing], *parts)
    yield name, False
    if name.function.upper().startswith(_TRY_PREFIX):
        yield replace(name, function=name.function[len(_TRY_PREFIX) :]), True


def rewrite_calls(calls: StatementCalls, chosen: Mapping[int, FunctionCall], render: Render) -> str:
    """Return the statement with some calls, including nested calls, replaced.

    A column of a SELECT without an alias gets its original text as alias.

    Raises:
        CallMalformed: If an argument is not an expression.
    """
    if not chosen:
        return calls.text
    end = len(calls.tokens) - 1
    middle = _CallRewriter(calls, chosen, render).rewrite_tokens(0, end)
    return calls.text[: calls.tokens[0].start_offset] + middle


class _CallRewriter:
    def __init__(
        self, calls: StatementCalls, chosen: Mapping[int, FunctionCall], render: Render
    ) -> None:
        self._calls = calls
        self._tokens = calls.tokens
        self._chosen = chosen
        self._render = render
        self._column_aliases = dict(_list_missing_aliases(calls, chosen))

    def rewrite_tokens(self, start: int, end: int) -> str:
        """Return the rewritten text of a range of tokens, including the text between them."""
        pieces = []
        index, position = start, self._tokens[start].start_offset
        while index < end:
            call = self._chosen.get(index)
            if call is not None:
                pieces.append(self._calls.text[position : self._tokens[index].start_offset])
                pieces.append(self._render(call, self._parse_arguments(call)))
                index = call.end
            else:
                pieces.append(self._calls.text[position : self._tokens[index].end_offset])
                index += 1
            position = self._tokens[index - 1].end_offset
            pieces.append(self._column_aliases.get(index, ""))
        return "".join(pieces)

    def _parse_arguments(self, call: FunctionCall) -> list[CallArgument]:
        given = []
        closings = self._calls.closings
        for start, end in split_at_commas(self._tokens, closings, call.opening + 1, call.closing):
            if start == end or self._tokens[start].unquoted == "*":
                raise CallMalformed(function=call.source_name, reason="an argument is missing")
            if self._tokens[start].unquoted == "DISTINCT":
                raise CallMalformed(function=call.source_name, reason="it is no aggregate")
            by_name = start + 1 < end and self._tokens[start + 1].unquoted == "=>"
            if by_name and start + 2 == end:
                raise CallMalformed(function=call.source_name, reason="an argument is missing")
            name = self._tokens[start].text if by_name else None
            given.append(
                CallArgument(self.rewrite_tokens(start + 2 if by_name else start, end), name)
            )
        return given


def _list_missing_aliases(
    calls: StatementCalls, chosen: Mapping[int, FunctionCall]
) -> Iterator[tuple[int, str]]:
    """Yield an alias for each column that contains a call and has no name, with its token index."""
    tokens = calls.tokens
    functions = [at for at, call in chosen.items() if call not in calls.history_calls]
    for index, token in enumerate(tokens):
        in_pipe = token.unquoted == "EXTEND" and tokens[index - 1].unquoted == "|>"
        if token.unquoted != "SELECT" and not in_pipe:
            continue
        begin, after = _find_select_list(calls, index + 1)
        for start, end in split_at_commas(tokens, calls.closings, begin, after):
            if not any(start <= at < end for at in functions):
                continue
            text = calls.text[tokens[start].start_offset : tokens[end - 1].end_offset]
            if not _has_column_name(text):
                yield end, " AS `" + " ".join(text.split()).replace("`", "``") + "`"


def _find_select_list(calls: StatementCalls, start: int) -> tuple[int, int]:
    """Return the token range of a SELECT's columns."""
    tokens = calls.tokens
    while tokens[start].unquoted in {"DISTINCT", "ALL"} or tokens[start].unquoted.startswith("/*+"):
        start += 1
    end = start
    while tokens[end].kind is not TokenKind.END and not _ends_select_list(tokens, end):
        end = calls.closings.get(end, end) + 1
    return start, end


def _ends_select_list(tokens: Sequence[SqlToken], index: int) -> bool:
    word, before = tokens[index].unquoted, tokens[index - 1].unquoted
    if word == "FROM" and before == "DISTINCT":  # a IS [NOT] DISTINCT FROM b
        return tokens[index - 2].unquoted not in {"IS", "NOT"}
    if word == "EXCEPT" and before == "*":  # * EXCEPT (a), b
        return False
    return word in _AFTER_SELECT_LIST


def _has_column_name(text: str) -> bool:
    """Return True if a column has an alias, or a name that does not come from a call."""
    try:
        select = sqlglot.parse_one(f"SELECT {text}", dialect=DIALECT)
    except (SqlglotError, RecursionError):
        return True
    if not isinstance(select, exp.Select) or len(select.expressions) != 1:
        return True
    # Spark names the column after a JSON path, but not after a field of a call's result.
    return isinstance(select.expressions[0], exp.Alias | exp.Aliases | exp.JSONExtract)


def select_overload(
    overloads: Sequence[CallableFunction], call_arguments: Sequence[CallArgument]
) -> CallableFunction:
    """Return the overload that accepts this number of arguments.

    Raises:
        CallMalformed: If there is none.
    """
    for each in overloads:
        signature = each.function.signature
        if signature.min_arguments <= len(call_arguments) <= len(signature.arguments):
            return each

    def describe_arity(signature: FunctionSignature) -> str:
        least, most = signature.min_arguments, len(signature.arguments)
        count = f"{least}" if least == most else f"{least} to {most}"
        listed = f" ({signature.format_arguments_ddl()})" if most else ""
        return f"{count} argument{'' if most == 1 else 's'}{listed}"

    takes = " or ".join(describe_arity(each.function.signature) for each in overloads)
    raise CallMalformed(
        function=str(overloads[0].name), reason=f"it takes {takes}, not {len(call_arguments)}"
    )


def bind_arguments(
    definition: CallableFunction, call_arguments: Sequence[CallArgument]
) -> list[CallArgument | None]:
    """Return the argument of each parameter, or None where the default of the parameter applies.

    Raises:
        CallMalformed: If a name is unknown or duplicate, an argument is missing, or a positional
            argument follows a named one.
    """

    def malformed(reason: str) -> CallMalformed:
        return CallMalformed(function=str(definition.name), reason=reason)

    arguments = definition.function.signature.arguments
    places = {argument.name.upper(): at for at, argument in enumerate(arguments)}
    found: dict[int, CallArgument] = {}
    named = False
    for at, each in enumerate(call_arguments):
        if each.name is None and named:
            raise malformed("positional arguments must precede named arguments")
        named = named or each.name is not None
        place = at if each.name is None else places.get(each.name.upper())
        if place is None:
            raise malformed(f"it has no argument {each.name}")
        if place in found:
            raise malformed(f"{arguments[place].name.upper()} is given twice")
        found[place] = each
    for at, argument in enumerate(arguments):
        if at not in found and argument.default is None:
            raise malformed(f"{argument.name.upper()} is missing")
    return [found.get(at) for at in range(len(arguments))]
