"""Finds and replaces calls of external functions in the text of a query.

Calls are found in the tokens, so quoted names, comments and strings are handled correctly. The text
around the calls stays unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

import sqlglot
from sqlglot import Token, TokenType, exp
from sqlglot.errors import SqlglotError

from snowmelt.catalog.objects.external_functions import FunctionName
from snowmelt.errors import UserError
from snowmelt.functions.signature import FunctionSignature
from snowmelt.spark.sql.table_references import (
    DIALECT,
    parse_statement,
    read_dotted_name,
    to_internal_parts,
    tokenize_without_explain,
)

if TYPE_CHECKING:
    from snowmelt.catalog.objects.external_functions import CallableFunction

    Render: TypeAlias = Callable[["FunctionCall", Sequence["CallArgument"]], str]

_DEPTH_CHANGES = {
    TokenType.L_PAREN: 1, TokenType.L_BRACKET: 1, TokenType.L_BRACE: 1,
    TokenType.R_PAREN: -1, TokenType.R_BRACKET: -1, TokenType.R_BRACE: -1,
}  # fmt: skip
# A name with parentheses after one of these tokens is not a call.
_NOT_BEFORE_CALLS = frozenset({TokenType.ALIAS, TokenType.DOT, TokenType.R_PAREN, TokenType.DCOLON})
_WORDS_BEFORE_TABLES = frozenset({"INTO", "OVERWRITE", "TABLE", "VIEW", "FUNCTION"})
_FULL_NAME_PARTS = 3
_TRY_PREFIX = "TRY_"
_WORDS_AFTER_SELECT_LIST = frozenset({
    "FROM", "WHERE", "GROUP", "HAVING", "ORDER", "SORT", "CLUSTER", "DISTRIBUTE", "LIMIT", "OFFSET",
    "WINDOW", "QUALIFY", "UNION", "EXCEPT", "INTERSECT", "MINUS", "LATERAL",
    "GROUP BY", "ORDER BY", "SORT BY", "CLUSTER BY", "DISTRIBUTE BY", "INTO",
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
    """Name followed by parentheses. Positions are token indexes. `end` is after the parentheses."""

    parts: tuple[str, ...]
    source_name: str
    start: int
    opening: int
    end: int


@dataclass(frozen=True, slots=True)
class StatementCalls:
    """Tokens of a statement and its candidate function calls."""

    text: str
    tokens: tuple[Token, ...]
    calls: tuple[FunctionCall, ...]


def find_candidate_calls(text: str) -> StatementCalls:
    """Find everything in a statement that has the form of a function call."""
    try:
        tokens = tokenize_without_explain(text)
    except SqlglotError:
        return StatementCalls(text, (), ())
    return StatementCalls(text, tuple(tokens), tuple(_scan_calls(tokens)))


def _scan_calls(tokens: Sequence[Token]) -> Iterator[FunctionCall]:
    index = 0
    while index < len(tokens):
        run = read_dotted_name(tokens, index)
        opening = index + 2 * len(run) - 1
        if (
            0 < len(run) <= _FULL_NAME_PARTS
            and opening < len(tokens)
            and tokens[opening].token_type == TokenType.L_PAREN
            and not (
                index
                and (
                    tokens[index - 1].token_type in _NOT_BEFORE_CALLS
                    or tokens[index - 1].text.upper() in _WORDS_BEFORE_TABLES
                )
            )
        ):
            depth = 0
            for at in range(opening, len(tokens)):
                depth += _DEPTH_CHANGES.get(tokens[at].token_type, 0)
                if depth == 0:
                    written = ".".join(token.text for token in run)
                    yield FunctionCall(to_internal_parts(run), written, index, opening, at + 1)
                    break
        index += max(1, 2 * len(run) - 1)


def list_candidate_names(
    parts: tuple[str, ...], namespace: tuple[str, ...]
) -> Iterable[tuple[FunctionName, bool]]:
    """Yield the functions that a name may refer to, with True for a `try_` call."""
    missing = _FULL_NAME_PARTS - len(parts)
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
    tree = parse_statement(calls.text, calls.tokens)
    # A table alias with column names is not a call.
    aliases = () if tree is None else (each.this for each in tree.find_all(exp.TableAlias))
    starts = {
        each.meta["start"]
        for each in aliases
        if isinstance(each, exp.Identifier) and "start" in each.meta
    }
    chosen = {at: call for at, call in chosen.items() if calls.tokens[at].start not in starts}
    first, last = calls.tokens[0], calls.tokens[-1]
    middle = _CallRewriter(calls, chosen, render).rewrite_tokens(0, len(calls.tokens))
    return calls.text[: first.start] + middle + calls.text[last.end + 1 :]


class _CallRewriter:
    def __init__(
        self, calls: StatementCalls, chosen: Mapping[int, FunctionCall], render: Render
    ) -> None:
        self._text = calls.text
        self._tokens = calls.tokens
        self._chosen = chosen
        self._render = render
        self._column_aliases = dict(_list_missing_aliases(calls, chosen))

    def rewrite_tokens(self, start: int, end: int) -> str:
        """Return the rewritten text of a range of tokens, including the text between them."""
        pieces = []
        index, position = start, self._tokens[start].start
        while index < end:
            call = self._chosen.get(index)
            if call is not None:
                pieces.append(self._text[position : self._tokens[index].start])
                pieces.append(self._render(call, self._parse_arguments(call)))
                index = call.end
            else:
                pieces.append(self._text[position : self._tokens[index].end + 1])
                index += 1
            position = self._tokens[index - 1].end + 1
            pieces.append(self._column_aliases.get(index, ""))
        return "".join(pieces)

    def _parse_arguments(self, call: FunctionCall) -> list[CallArgument]:
        given = []
        for start, end in _split_at_commas(self._tokens, call.opening + 1, call.end - 1):
            if start == end or self._tokens[start].token_type == TokenType.STAR:
                raise CallMalformed(function=call.source_name, reason="an argument is missing")
            if self._tokens[start].token_type == TokenType.DISTINCT:
                raise CallMalformed(function=call.source_name, reason="it is no aggregate")
            by_name = start + 1 < end and self._tokens[start + 1].token_type == TokenType.FARROW
            if by_name and start + 2 == end:
                raise CallMalformed(function=call.source_name, reason="an argument is missing")
            name = to_internal_parts(self._tokens[start : start + 1])[0] if by_name else None
            given.append(
                CallArgument(self.rewrite_tokens(start + 2 if by_name else start, end), name)
            )
        return given


def _split_at_commas(tokens: Sequence[Token], start: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield the token ranges between commas outside parentheses, or nothing for an empty range."""
    if start == end:
        return
    depth, first = 0, start
    for index in range(start, end):
        depth += _DEPTH_CHANGES.get(tokens[index].token_type, 0)
        if depth == 0 and tokens[index].token_type == TokenType.COMMA:
            yield first, index
            first = index + 1
    yield first, end


def _list_missing_aliases(
    calls: StatementCalls, chosen: Mapping[int, FunctionCall]
) -> Iterator[tuple[int, str]]:
    """Yield an alias for each column that contains a call and has no name, with its token index."""
    tokens = calls.tokens
    for index, token in enumerate(tokens):
        if token.token_type != TokenType.SELECT:
            continue
        for start, end in _split_at_commas(tokens, *_find_select_list(tokens, index + 1)):
            if not any(start <= at < end for at in chosen):
                continue
            text = calls.text[tokens[start].start : tokens[end - 1].end + 1]
            if not _has_column_name(text):
                yield end, " AS `" + " ".join(text.split()).replace("`", "``") + "`"


def _find_select_list(tokens: Sequence[Token], start: int) -> tuple[int, int]:
    """Return the token range of a SELECT's columns."""
    while start < len(tokens) and (
        tokens[start].text.upper() in {"DISTINCT", "ALL"}
        or tokens[start].token_type == TokenType.HINT
    ):
        start += 1
    depth = 0
    for index in range(start, len(tokens)):
        if depth == 0 and (
            tokens[index].text.upper() in _WORDS_AFTER_SELECT_LIST
            or tokens[index].token_type == TokenType.SEMICOLON
        ):
            return start, index
        depth += _DEPTH_CHANGES.get(tokens[index].token_type, 0)
        if depth < 0:
            return start, index
    return start, len(tokens)


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
    """Match arguments to the parameters of a function. None: the parameter's default applies.

    Raises:
        CallMalformed: If a name is unknown or duplicate, or an argument is missing.
    """

    def malformed(reason: str) -> CallMalformed:
        return CallMalformed(function=str(definition.name), reason=reason)

    arguments = definition.function.signature.arguments
    places = {argument.name.upper(): at for at, argument in enumerate(arguments)}
    found: dict[int, CallArgument] = {}
    named = False
    for at, each in enumerate(call_arguments):
        if each.name is None and named:
            raise malformed("arguments by position come before those by name")
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
