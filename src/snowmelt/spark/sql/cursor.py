"""Tokens of statements for Spark: names, brackets, lists, and a cursor for DML."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from snowmelt.catalog.sql.cursor import TokenCursor, is_at_end
from snowmelt.catalog.sql.lexer import SqlRules, SqlToken, TokenKind, tokenize
from snowmelt.errors import StatementError
from snowmelt.schema.types import TableName
from snowmelt.spark.tables.spark_column_mapping import quote_identifier

FULL_NAME_PARTS = 3
_CLOSING_BRACKETS = {"(": ")", "[": "]", "{": "}"}
NAME_KINDS = frozenset({TokenKind.WORD, TokenKind.QUOTED})


def read_dotted_name(tokens: Sequence[SqlToken], index: int) -> list[SqlToken]:
    """Return the tokens of the parts of a dotted name that starts at `index`, or an empty list."""
    parts: list[SqlToken] = []
    while tokens[index].kind in NAME_KINDS:
        parts.append(tokens[index])
        if tokens[index + 1].unquoted != ".":
            break
        index += 2
    return parts


def parse_dotted_name(text: str) -> tuple[str, ...]:
    """Parse a dotted name into internal names. Return an empty tuple if the text is not one.

    Parts may be quoted with backticks (as in Spark) or with double quotes (as in Snowflake).
    """
    try:
        tokens = tokenize(text, SqlRules.SPARK)[:-1]
    except StatementError:
        return ()
    parts, dots = tokens[::2], tokens[1::2]
    if len(parts) != len(dots) + 1 or any(dot.unquoted != "." for dot in dots):
        return ()
    if not all(part.kind in NAME_KINDS or part.source_text.startswith('"') for part in parts):
        return ()
    return tuple(part.text for part in parts)


def match_brackets(tokens: Sequence[SqlToken]) -> dict[int, int]:
    """Return the index of the closing bracket of each opening bracket that has one."""
    closings: dict[int, int] = {}
    opened: list[int] = []
    for index, token in enumerate(tokens):
        if token.unquoted in _CLOSING_BRACKETS:
            opened.append(index)
        elif opened and token.unquoted == _CLOSING_BRACKETS[tokens[opened[-1]].unquoted]:
            closings[opened.pop()] = index
    return closings


def split_at_commas(
    tokens: Sequence[SqlToken], closings: Mapping[int, int], start: int, end: int
) -> Iterator[tuple[int, int]]:
    """Yield the token ranges between commas outside brackets, or nothing for an empty range."""
    index = first = start
    while index < end:
        if tokens[index].unquoted == ",":
            yield first, index
            first = index + 1
        index = closings.get(index, index) + 1
    if start < end:
        yield first, end


class SparkCursor(TokenCursor):
    """Cursor over a statement for Spark. Skips words inside brackets and CASE … END."""

    def __init__(self, text: str) -> None:
        """Tokenize a statement by the rules of Spark."""
        super().__init__(text, SqlRules.SPARK)
        self._closings = match_brackets(self._tokens)

    def read_name(self) -> list[SqlToken]:
        """Read a dotted name. Return an empty list if there is none."""
        parts = read_dotted_name(self._tokens, self._index)
        self._index += max(2 * len(parts) - 1, 0)
        return parts

    def parse_table(self, namespace: tuple[str, ...]) -> tuple[TableName, str]:
        """Parse a table name. Return it completed with the `namespace`, and its last part in quotes.

        Raises:
            StatementError: If it is not a full name, and the namespace does not complete it.
        """
        first, parts = self.current, self.read_name()
        missing = FULL_NAME_PARTS - len(parts)
        if not parts or not 0 <= missing <= len(namespace):
            raise self.make_error(
                "Write the full name of the table, database.schema.table, with backticks around names "
                "that need quotes",
                first,
            )
        name = TableName(*namespace[:missing], *(part.text for part in parts))
        return name, quote_name_token(parts[-1])

    def read_alias(self, stops: Sequence[str]) -> str | None:
        """Read an alias, with or without AS. A word in `stops` is not an alias."""
        if not self.accept("AS") and (is_at_end(self) or self.current.unquoted in stops):
            return None
        parts = self.read_name()
        if len(parts) != 1:
            raise self.make_error("An alias must be a single name")
        return quote_name_token(parts[0])

    def skip_until(self, *words: str) -> None:
        """Skip the tokens up to the next of these words, a closing bracket or the end."""
        cases = 0
        while not is_at_end(self):
            word = self.current.unquoted
            if not cases and word in words:
                return
            if word in _CLOSING_BRACKETS.values():
                return
            cases += (word == "CASE") - (word == "END")
            self._index = self._closings.get(self._index, self._index) + 1

    def read_until(self, *words: str) -> str:
        """Return the text up to the next of these words, a closing bracket or the end."""
        first = self.current
        self.skip_until(*words)
        if self.current is first:
            where = " or ".join(words) or "the end"
            raise self.make_error(f"An expression is missing before {where}")
        return self.source_between(first, self.previous)

    def read_rest(self) -> str:
        """Return the rest of the statement, without a semicolon at its end."""
        first = self.current
        self._index = len(self._tokens) - 1
        if self.previous.unquoted == ";" and self.previous is not first:
            return self.source_between(first, self._tokens[-3])
        return self.source_between(first, self.previous)

    def read_list(self) -> list[str]:
        """Return the text of each item of a list in parentheses."""
        self.expect("(")
        texts = [self.read_until(",")]
        while self.accept(","):
            texts.append(self.read_until(","))
        self.expect(")")
        return texts


def quote_name_token(token: SqlToken) -> str:
    """Return a name as written, in backticks."""
    return quote_identifier(token.text if token.kind is TokenKind.QUOTED else token.source_text)
