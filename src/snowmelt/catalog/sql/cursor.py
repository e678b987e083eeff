"""Walks over the tokens of one statement; every complaint points at the token it is about."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

from snowmelt.catalog.sql.identifiers import Name
from snowmelt.catalog.sql.lexer import TokenKind, tokens_of
from snowmelt.errors import StatementError
from snowmelt.schema.types import RESERVED_WORDS, display_name

if TYPE_CHECKING:
    from collections.abc import Callable

    from snowmelt.catalog.sql.lexer import Token

MAX_NAME_LENGTH = 255  # as Snowflake's


class Cursor:
    """A position in the tokens of one statement."""

    def __init__(self, text: str, cut: Callable[[str], tuple[Token, ...]] = tokens_of) -> None:
        """`cut` is how the text becomes tokens."""
        self._text = text
        self._tokens = cut(text)
        self._at = 0

    @property
    def token(self) -> Token:
        """The next token; the one of kind END comes again and again."""
        return self._tokens[self._at]

    @property
    def taken(self) -> Token:
        """The token that was gone past last; the first one before any was."""
        return self._tokens[max(self._at - 1, 0)]

    def ahead(self, *words: str) -> bool:
        """Tell whether exactly these words come next."""
        upcoming = self._tokens[self._at : self._at + len(words)]
        return tuple(_plain(token) for token in upcoming) == words

    def after(self, count: int = 1) -> Token:
        """Return the token that many after the next one, or the last."""
        return self._tokens[min(self._at + count, len(self._tokens) - 1)]

    def fork(self) -> Cursor:
        """Return another cursor at the same place."""
        return copy.copy(self)

    def take(self) -> Token:
        """Return the next token and go past it; END stays."""
        token = self.token
        if token.kind is not TokenKind.END:
            self._at += 1
        return token

    def accept(self, *words: str) -> bool:
        """Go past these words if they come next."""
        found = self.ahead(*words)
        if found:
            self._at += len(words)
        return found

    def accept_one_of(self, *words: str) -> Token | None:
        """Go past the next word if it is one of these, and return it."""
        return self.take() if _plain(self.token) in words else None

    def expect(self, *words: str) -> None:
        """Go past these words.

        Raises:
            StatementError: If something else comes next.
        """
        if not self.accept(*words):
            raise self.error(f"Expected {' '.join(words)} here, not {self.seen}")

    def expect_one_of(self, *words: str) -> str:
        """Go past one of these words and return it.

        Raises:
            StatementError: If something else comes next.
        """
        token = self.accept_one_of(*words)
        if token is None:
            raise self.error(f"Expected {_alternatives(words)} here, not {self.seen}")
        return token.text

    def identifier(self, what: str) -> str:
        """Go past a name and return its internal form; `what` says what it names.

        Raises:
            StatementError: If no name comes next, or one that needs quotes or is too long.
        """
        token = self.token
        if token.kind not in {TokenKind.WORD, TokenKind.QUOTED}:
            raise self.error(f"Expected the name of {what} here, not {self.seen}")
        name = token.text
        if token.kind is TokenKind.WORD and (name in RESERVED_WORDS or display_name(name) != name):
            why = (
                "is a reserved word"
                if name in RESERVED_WORDS
                else "has signs a plain name cannot have"
            )
            raise self.error(
                f'{token.written} {why}; as a name it is written in quotes: "{token.written}"'
            )
        if token.written.startswith("`"):
            raise self.error(f'Names are quoted with double quotes here: "{name}"')
        if not name or "\0" in name or len(name) > MAX_NAME_LENGTH:
            raise self.error(
                f"The name of {what} has 1 to {MAX_NAME_LENGTH} signs, none of them NUL"
            )
        self.take()
        return name

    def name(self, what: str, most: int) -> Name:
        """Go past a name of one to `most` parts with dots between them.

        Raises:
            StatementError: If no name comes next, or it has too many parts.
        """
        place = self.token.place
        parts = [self.identifier(what)]
        while self.token.text == "." and self.token.kind is TokenKind.SYMBOL:
            if len(parts) == most:
                raise self.error(
                    f"The name of {what} has at most {most} part{'s' if most > 1 else ''}"
                )
            self.take()
            parts.append(self.identifier(what))
        return Name(tuple(parts), place)

    def string(self, what: str) -> str:
        """Go past a string in single quotes and return its contents.

        Raises:
            StatementError: If something else comes next.
        """
        if self.token.kind is not TokenKind.STRING:
            raise self.error(f"Expected {what} in single quotes here, not {self.seen}")
        return self.take().text

    def integer(self, what: str, least: int, most: int) -> int:
        """Go past a whole number within the bounds (both included) and return it.

        Raises:
            StatementError: If something else comes next, or the number is out of bounds.
        """
        token = self.token
        if token.kind is not TokenKind.NUMBER or not token.text.isdecimal():
            raise self.error(f"Expected {what} ({least} to {most}) here, not {self.seen}")
        if not least <= int(token.text) <= most:
            raise self.error(
                f"{what.capitalize()} lies between {least} and {most}, not at {token.text}"
            )
        self.take()
        return int(token.text)

    def end(self, after: str) -> None:
        """Check that the statement ends here; a semicolon may follow.

        Raises:
            StatementError: If anything else follows.
        """
        self.accept(";")
        if self.token.kind is not TokenKind.END:
            raise self.error(f"Nothing may follow {after}, but {self.seen} does")

    def error(self, reason: str, at: Token | None = None) -> StatementError:
        """Return the error that points at this token, or at the next one; the caller raises it."""
        place = (at or self.token).place
        return StatementError(reason=reason, line=place.line, column=place.column)

    def between(self, first: Token, last: Token) -> str:
        """Return the text from one token to another, both with it."""
        return self._text[first.start : last.start + len(last.written)]

    @property
    def seen(self) -> str:
        """How an error message calls the next token."""
        token = self.token
        return token.kind.value if token.kind is TokenKind.END else token.written.split("\n")[0]


def _plain(token: Token) -> str | None:
    return token.text if token.kind in {TokenKind.WORD, TokenKind.SYMBOL} else None


def _alternatives(words: tuple[str, ...]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"
