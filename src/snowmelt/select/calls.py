"""How functions are called: aggregates, CAST, and those whose arguments stand between keywords."""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING, TypeAlias

from snowmelt.select.functions import ARITIES, DATE_FUNCTIONS
from snowmelt.select.lexer import Kind
from snowmelt.select.syntax import Aggregate, Call, Cast, Literal
from snowmelt.select.timestamps import PARTS, parse_seed

if TYPE_CHECKING:
    from collections.abc import Callable

    from snowmelt.select.lexer import Token
    from snowmelt.select.syntax import Expression
    from snowmelt.select.words import Words

    Parse: TypeAlias = Callable[[], Expression]

AGGREGATES = frozenset({"count", "sum", "min", "max", "avg"})

TYPES = {
    "BOOL": "BOOL",
    "BOOLEAN": "BOOL",
    "INT": "INT",
    "INTEGER": "INT",
    "BIGINT": "INT",
    "FLOAT": "FLOAT",
    "DOUBLE": "FLOAT",
    "DECIMAL": "DECIMAL",
    "NUMERIC": "DECIMAL",
    "STRING": "STRING",
    "TEXT": "STRING",
    "VARCHAR": "STRING",
    "TIMESTAMP": "TIMESTAMP",
}
CONVERSIONS = {
    "int": "INT",
    "float": "FLOAT",
    "string": "STRING",
    "to_bool": "BOOL",
    "to_timestamp": "TIMESTAMP",
}
ADDED_PARTS = frozenset({"year", "month", "week", "day", "hour", "minute", "second"})
_CLOSING = "ParseExpectedRightParenBuiltinFunctionCall"
_TYPE_PARAMETERS = 2


def parse_call(words: Words, parse: Parse) -> Expression:
    """Read a call from the function's name on.

    Raises:
        SelectError: UnsupportedFunction for one that does not exist, and the parser's codes.
    """
    name = words.take()
    function = name.text.lower()
    words.expect("(", "ParseExpectedLeftParenBuiltinFunctionCall", "'('")
    if function in AGGREGATES:
        return _aggregate(words, parse, function, name)
    if function in CONVERSIONS:
        value = _timestamp_text(words) or parse()
        _close(words, function)
        return Cast(value, CONVERSIONS[function], at=name.start)
    if function not in ARITIES:
        raise words.error("UnsupportedFunction", _unknown(name.text), name)
    arguments = _SPECIAL.get(function, _arguments)(words, parse)
    _close(words, function)
    least, most = ARITIES[function]
    if not least <= len(arguments) <= most:
        wanted = str(least) if least == most else f"{least} to {most}"
        message = f"{function} takes {wanted} arguments, not {len(arguments)}"
        raise words.error("EvaluatorInvalidArguments", message, name)
    return Call(function, tuple(arguments), name.start)


def parse_cast(words: Words, parse: Parse) -> Cast:
    """Read `CAST(value AS type)` from the word CAST on.

    Raises:
        SelectError: The parser's codes.
    """
    start = words.take().start
    words.expect("(", "ParseExpectedLeftParenAfterCast", "after CAST '('")
    value = parse()
    words.expect("AS", "ParseExpectedKeyword", "AS and a type")
    token = words.take()
    name = TYPES.get(token.upper)
    if name is None:
        shown = ", ".join(sorted(set(TYPES.values())))
        message = f"{token} is no type to cast to; there are {shown}"
        raise words.error("ParseExpectedTypeName", message, token)
    if token.upper == "DOUBLE":
        words.accept("PRECISION")
    if name != "DECIMAL" and words.sees("("):
        message = f"{token.upper} takes no length or precision here; SUBSTRING cuts a text"
        raise words.error("ParseInvalidTypeParam", message)
    parameters = _type_parameters(words) if words.accept("(") else []
    words.expect(")", "ParseExpectedRightParenBuiltinFunctionCall", "')' after the type")
    if name != "DECIMAL":
        return Cast(value, name, at=start)
    precision, scale = (*parameters, None, None)[:2]
    return Cast(value, name, precision, scale, start)


def _type_parameters(words: Words) -> list[int]:
    parameters: list[int] = []
    while True:
        token = words.take()
        if token.kind is not Kind.NUMBER or not token.text.isdecimal() or len(token.text) > 9:
            message = f"a type's length or precision is a whole number, not {token}"
            raise words.error("ParseInvalidTypeParam", message, token)
        parameters.append(int(token.text))
        if not words.accept(","):
            break
    if len(parameters) > _TYPE_PARAMETERS:
        raise words.error("ParseCastArity", "a type takes at most two numbers")
    words.expect(")", "ParseExpectedRightParenBuiltinFunctionCall", "')' after the type's numbers")
    return parameters


def _aggregate(words: Words, parse: Parse, function: str, name: Token) -> Aggregate:
    distinct = words.accept("DISTINCT")
    if not distinct:
        words.accept("ALL")
    argument: Expression | None = None
    if function == "count" and not distinct and (words.accept("*") or words.sees(")")):
        argument = None
    elif words.sees("*"):
        shown = f"{function}(DISTINCT …)" if distinct else function
        raise words.error("ParseUnsupportedCallWithStar", f"only count takes *, not {shown}")
    elif not words.sees(")"):
        argument = parse()
    if words.sees(",") or (argument is None and (distinct or function != "count")):
        message = f"{function} takes one argument"
        raise words.error("ParseNonUnaryAgregateFunctionCall", message)
    _close(words, function)
    return Aggregate(function, argument, name.start, distinct)


def _arguments(words: Words, parse: Parse) -> list[Expression]:
    if words.sees(")"):
        return []
    arguments = [_timestamp_text(words) or _argument(words, parse)]
    while words.accept(","):
        arguments.append(_argument(words, parse))
    return arguments


def _argument(words: Words, parse: Parse) -> Expression:
    if words.sees("*"):
        raise words.error("ParseUnsupportedCallWithStar", "only count takes *")
    return parse()


def _timestamp_text(words: Words) -> Literal | None:
    """Take a timestamp in double quotes: no column is called so, in no dialect."""
    token = words.token
    is_whole = words.following.text in {")", ","}
    if token.kind is not Kind.QUOTED or not is_whole or not token.text[:1].isdecimal():
        return None
    if parse_seed(token.text) is None:
        return None
    words.take()
    return Literal(token.text, token.start)


def _extract(words: Words, parse: Parse) -> list[Expression]:
    part = _date_part(words, PARTS)
    if not words.accept(","):
        words.expect("FROM", "ParseExpectedKeyword", "FROM or a comma")
    return [part, parse()]


def _date_arguments(words: Words, parse: Parse) -> list[Expression]:
    part = _date_part(words, ADDED_PARTS)
    words.expect(",", "ParseExpectedArgumentDelimiter", "after the date part a comma")
    return [part, *_arguments(words, parse)]


def _date_part(words: Words, known: frozenset[str]) -> Literal:
    token = words.take()
    lower = token.text.lower()
    part = lower if lower in known else lower.removesuffix("s")
    if token.kind not in {Kind.WORD, Kind.QUOTED, Kind.STRING} or part not in known:
        message = f"{token} is no date part here; there are {', '.join(sorted(known))}"
        raise words.error("ParseExpectedDatePart", message, token)
    return Literal(part, token.start)


def _substring(words: Words, parse: Parse) -> list[Expression]:
    text = parse()
    if not words.accept("FROM"):
        words.expect(",", "ParseExpectedArgumentDelimiter", "FROM or a comma")
        return [text, *_arguments(words, parse)]
    arguments = [text, parse()]
    if words.accept("FOR"):
        arguments.append(parse())
    return arguments


def _trim(words: Words, parse: Parse) -> list[Expression]:
    start = words.token.start
    mode = "both"
    if words.sees("BOTH", "LEADING", "TRAILING") and words.following.text not in {")", "."}:
        mode = words.take().text.lower()
    if words.accept("FROM"):
        return [Literal(mode, start), Literal(" ", start), parse()]
    first = parse()
    if words.accept("FROM"):
        return [Literal(mode, start), first, parse()]
    return [Literal(mode, start), Literal(" ", start), first]


_SPECIAL: dict[str, Callable[[Words, Parse], list[Expression]]] = {
    "extract": _extract,
    "substring": _substring,
    "trim": _trim,
    **dict.fromkeys(DATE_FUNCTIONS, _date_arguments),
}


def _close(words: Words, function: str) -> None:
    starts_value = {Kind.NUMBER, Kind.STRING, Kind.QUOTED}
    if words.token.kind in starts_value or words.sees_name():
        message = f"a comma or ')' must stand here in {function}, not {words.token}"
        raise words.error("ParseExpectedArgumentDelimiter", message)
    words.expect(")", _CLOSING, f"')' of {function}")


def _unknown(name: str) -> str:
    known = [*ARITIES, *CONVERSIONS, *AGGREGATES, "cast"]
    close = get_close_matches(name.lower(), known, n=1)
    hint = f"; did you mean {close[0]}?" if close else f"; there are {', '.join(sorted(known))}"
    return f"there is no function {name}{hint}"
