"""The tokens of a statement, read one after the other by the parser."""

from __future__ import annotations

from typing import TYPE_CHECKING

from snowmelt.select.lexer import IsName, Kind, Token, syntax_error, tokens_of

if TYPE_CHECKING:
    from snowmelt.select.dialect import Dialect
    from snowmelt.select.refusals import SelectError

RESERVED = frozenset(
    """
    ALL AND AS BETWEEN CASE CAST DISTINCT ELSE END ESCAPE EXCEPT FALSE FROM GROUP HAVING IN
    INTERSECT IS JOIN LIKE LIMIT MISSING NOT NULL OFFSET ON OR ORDER SELECT THEN TRUE UNION WHEN
    WHERE
    """.split()  # noqa: SIM905  one word per line would be a page
)
"""Words that are no names unless they are quoted."""


class Words:
    """A place in the statement that moves forward."""

    def __init__(self, text: str, dialect: Dialect, is_name: IsName | None) -> None:
        """Cut the text; `is_name` is the lexer's."""
        self.text = text
        self.dialect = dialect
        self._tokens = tokens_of(text, is_name)
        self._next = 0

    @property
    def token(self) -> Token:
        """The token that comes next."""
        return self._tokens[self._next]

    @property
    def following(self) -> Token:
        """The one after it; at the end the last one again."""
        return self._tokens[min(self._next + 1, len(self._tokens) - 1)]

    def take(self) -> Token:
        """Return the next token and move past it; the end stays."""
        token = self.token
        self._next = min(self._next + 1, len(self._tokens) - 1)
        return token

    def sees(self, *texts: str) -> bool:
        """Return whether the next token is one of these keywords or symbols."""
        return self.token.upper in texts

    def accept(self, *texts: str) -> bool:
        """Move past the next token if it is one of these keywords or symbols."""
        found = self.sees(*texts)
        if found:
            self.take()
        return found

    def expect(self, text: str, code: str, instead: str) -> Token:
        """Move past a keyword or symbol that must stand here.

        Raises:
            SelectError: With this code and what would be right, if it does not.
        """
        if not self.sees(text):
            raise self.error(code, f"{instead} must stand here, not {self.token}")
        return self.take()

    def sees_name(self) -> bool:
        """Return whether the next token is a name that needs no quotes.

        A reserved word next to a hyphen (`order-date`) may be part of a header's name, which
        only the binder knows.
        """
        token = self.token
        if token.kind is not Kind.WORD:
            return False
        return token.upper not in RESERVED or self._is_hyphenated(token)

    def _is_hyphenated(self, token: Token) -> bool:
        after = self.text[token.end : token.end + 2]
        before = self.text[max(token.start - 2, 0) : token.start]
        return (after[:1] == "-" and after[1:].isalpha()) or (
            before[1:] == "-" and before[:1].isalnum()
        )

    def error(self, code: str, message: str, token: Token | None = None) -> SelectError:
        """Return a refusal that names the place of a token, by default of the next."""
        return syntax_error(code, message, self.text, (token or self.token).start)
