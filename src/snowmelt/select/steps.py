"""The grammar of paths: what follows a name to lead into a record."""

from __future__ import annotations

from typing import TYPE_CHECKING

from snowmelt.select.lexer import Kind
from snowmelt.select.syntax import Any, Index, Word

if TYPE_CHECKING:
    from snowmelt.select.syntax import Step
    from snowmelt.select.words import Words

_LONGEST_INDEX = 9


def parse_steps(words: Words) -> tuple[Step, ...]:
    """Read `.name`, `."name"`, `['name']`, `[2]`, `[*]` and `.*`, as many as there are.

    Raises:
        SelectError: ParseInvalidPathComponent, ParseExpectedMember.
    """
    steps: list[Step] = []
    while words.sees(".", "["):
        steps.append(_field(words) if words.take().text == "." else _item(words))
    return tuple(steps)


def _field(words: Words) -> Step:
    if words.accept("*"):
        return Any.FIELD
    token = words.token
    if token.kind not in {Kind.WORD, Kind.QUOTED}:
        raise words.error("ParseExpectedMember", f"a field's name must stand here, not {token}")
    words.take()
    return Word(token.text, token.kind is Kind.QUOTED)


def _item(words: Words) -> Step:
    token = words.take()
    step: Step
    if token.text == "*" and token.kind is Kind.SYMBOL:
        step = Any.ITEM
    elif token.kind in {Kind.STRING, Kind.QUOTED}:
        step = Word(token.text, quoted=True)
    elif token.kind is Kind.NUMBER and token.text.isdecimal() and len(token.text) <= _LONGEST_INDEX:
        step = Index(int(token.text))
    else:
        message = f"a number, 'name' or * must stand between the brackets, not {token}"
        raise words.error("ParseInvalidPathComponent", message, token)
    words.expect("]", "ParseExpectedTokenType", "']'")
    return step
