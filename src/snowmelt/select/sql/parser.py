"""The grammar of a statement: SELECT … FROM … and the clauses after it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from snowmelt.select.dialect import Dialect
from snowmelt.select.sql.ast import Any, Name, Order, Projection, Source, Star, Statement
from snowmelt.select.sql.ast import Word as NameWord
from snowmelt.select.sql.expression_parser import ExpressionParser, parse_steps
from snowmelt.select.sql.lexer import RESERVED, IsName, Kind, Words
from snowmelt.select.values import INT_MAX

if TYPE_CHECKING:
    from snowmelt.select.errors import SelectError
    from snowmelt.select.sql.ast import Expression

_MOST_PROJECTIONS = 10_000
_JOINS = ("JOIN", "INNER", "LEFT", "RIGHT", "FULL", "CROSS", "NATURAL", "OUTER")
_WRITING = ("INSERT", "UPDATE", "DELETE", "CREATE", "DROP", "ALTER", "MERGE", "REPLACE", "EXEC")
_MISPLACED = {
    **dict.fromkeys(
        _JOINS, ("ParseMalformedJoin", "a statement reads one object; joins are not supported")
    ),
    ",": ("ParseMalformedJoin", "a statement reads one object; joins are not supported"),
    **dict.fromkeys(
        ["UNION", "INTERSECT", "EXCEPT"],
        ("UnsupportedSyntax", "there is one SELECT in a statement"),
    ),
    "AT": ("ParseUnsupportedSyntax", "AT is not supported"),
    ")": ("ParseUnexpectedToken", "this ')' closes no '('; leave it out"),
    "=": ("ParseUnexpectedOperator", "an operator cannot stand here"),
}


def parse(text: str, dialect: Dialect, *, is_name: IsName | None = None) -> Statement:
    """Read one statement.

    Args:
        text: The statement; a semicolon may end it.
        dialect: Decides what collides: AND beside OR, `"text"`, literals with a point.
        is_name: Tells which words with hyphens are columns, where that is known already.

    Raises:
        SelectError: A code of the lexer or parser; the message says where, and what would be
            right.
    """
    return _StatementParser(Words(text, dialect, is_name)).parse(text)


class _StatementParser:
    def __init__(self, words: Words) -> None:
        self._words = words
        self._expressions = ExpressionParser(words)

    def parse(self, text: str) -> Statement:
        words = self._words
        self._select()
        distinct = words.accept("DISTINCT")
        if not distinct:
            words.accept("ALL")
        projections = self._projections()
        source = self._source()
        where = self._expressions.parse() if words.accept("WHERE") else None
        group_by = self._group_by()
        having = self._expressions.parse() if words.accept("HAVING") else None
        order_by = self._order_by()
        limit, offset = self._window()
        words.accept(";")
        if words.token.kind is not Kind.END:
            raise self._misplaced()
        return Statement(
            projections, source, text, where, group_by, having, order_by, limit, offset, distinct
        )

    def _select(self) -> None:
        words = self._words
        if words.sees(*_WRITING):
            message = f"{words.token.upper} is not supported; objects are only read, with SELECT"
            raise words.error("UnsupportedSqlOperation", message)
        words.expect("SELECT", "ParseExpectedKeyword", "SELECT")
        if words.sees("FROM"):
            raise words.error("ParseEmptySelect", "SELECT names nothing; write columns or *")

    def _projections(self) -> tuple[Projection, ...]:
        projections = [self._projection()]
        while self._words.accept(","):
            projections.append(self._projection())
            if len(projections) > _MOST_PROJECTIONS:
                message = f"SELECT names more than {_MOST_PROJECTIONS} values"
                raise self._words.error("UnsupportedSqlStructure", message)
        stars = [item for item in projections if isinstance(item.expression, Star)]
        if stars and len(projections) > 1 and self._words.dialect is Dialect.AWS:
            message = "* must stand alone in the SELECT list"
            raise self._words.error("ParseAsteriskIsNotAloneInSelectList", message)
        return tuple(projections)

    def _projection(self) -> Projection:
        words = self._words
        start = words.token
        if words.accept("*"):
            return Projection(Star(at=start.start), at=start.start)
        expression = self._expressions.parse()
        star = _as_star(expression)
        if star is not None:
            return Projection(star, at=start.start)
        return Projection(expression, self._alias(), start.start)

    def _alias(self) -> str | None:
        words = self._words
        token = words.token
        named = token.kind in {Kind.QUOTED, Kind.STRING} or (
            token.kind is Kind.WORD and token.upper not in RESERVED
        )
        if words.accept("AS"):
            token = words.token
            if token.kind not in {Kind.WORD, Kind.QUOTED, Kind.STRING} or token.upper in RESERVED:
                message = (
                    f'a name must stand after AS, not {token}; keywords stand as "{token.text}"'
                )
                raise words.error("ParseExpectedIdentForAlias", message)
        elif not named or token.kind is Kind.STRING:
            return None
        return words.take().text

    def _source(self) -> Source:
        words = self._words
        if not words.sees("FROM"):
            message = f"a comma or FROM must stand here, not {words.token}"
            code = "ParseSelectMissingFrom" if self._at_end() else "ParseUnexpectedToken"
            raise words.error(code, message)
        words.take()
        token = words.take()
        if token.kind is Kind.PATH and not words.dialect.is_ceph:
            message = "the object is named by the request; write FROM S3Object"
            raise words.error("DataSourcePathUnsupported", message, token)
        is_table = token.kind is Kind.WORD and token.text.lower() in {"s3object", "stdin"}
        if not is_table and token.kind is not Kind.PATH:
            raise words.error("BadTableName", f"write FROM S3Object or stdin, not {token}", token)
        steps = parse_steps(words)
        return Source(token.text, steps, self._source_alias(), token.start)

    def _source_alias(self) -> str | None:
        words = self._words
        explicit = words.accept("AS")
        if words.token.kind is Kind.QUOTED or (words.sees_name() and not words.sees(*_MISPLACED)):
            return words.take().text
        if explicit:
            message = f"a name must stand after AS, not {words.token}"
            raise words.error("ParseExpectedIdentForAlias", message)
        return None

    def _group_by(self) -> tuple[Expression, ...]:
        if not self._words.accept("GROUP"):
            return ()
        self._words.expect("BY", "ParseExpectedKeyword", "BY")
        keys = [self._expressions.parse()]
        while self._words.accept(","):
            keys.append(self._expressions.parse())
        return tuple(keys)

    def _order_by(self) -> tuple[Order, ...]:
        if not self._words.accept("ORDER"):
            return ()
        self._words.expect("BY", "ParseExpectedKeyword", "BY")
        keys = [self._order()]
        while self._words.accept(","):
            keys.append(self._order())
        return tuple(keys)

    def _order(self) -> Order:
        expression = self._expressions.parse()
        descending = self._words.accept("DESC")
        if not descending:
            self._words.accept("ASC")
        nulls_first = False
        if self._words.accept("NULLS"):
            nulls_first = self._words.accept("FIRST")
            if not nulls_first:
                self._words.expect("LAST", "ParseExpectedKeyword", "FIRST or LAST")
        return Order(expression, descending, nulls_first)

    def _window(self) -> tuple[int | None, int]:
        words = self._words
        limit: int | None = None
        offset: int | None = None
        while words.sees("LIMIT", "OFFSET"):
            clause = words.take()
            if (limit if clause.upper == "LIMIT" else offset) is not None:
                raise words.error("ParseUnexpectedToken", f"{clause} stands here twice", clause)
            number = self._whole_number(clause.upper)
            if clause.upper == "LIMIT":
                limit = number
            else:
                offset = number
                words.accept("ROW", "ROWS")
        return limit, offset or 0

    def _whole_number(self, clause: str) -> int:
        token = self._words.token
        if token.kind is not Kind.NUMBER or not token.text.isdecimal() or len(token.text) > 19:
            message = f"{clause} takes a whole number of records, not {token}"
            raise self._words.error("ParseExpectedNumber", message)
        return min(int(self._words.take().text), INT_MAX)

    def _at_end(self) -> bool:
        return self._words.token.kind is Kind.END or self._words.sees(";", "WHERE", "LIMIT")

    def _misplaced(self) -> SelectError:
        token = self._words.token
        usual = f"{token} cannot stand here; the statement could end, or go on with a later clause"
        code, message = _MISPLACED.get(token.upper, ("ParseUnexpectedToken", usual))
        if token.kind in {Kind.NUMBER, Kind.STRING, Kind.TIMESTAMP}:
            code = "ParseUnexpectedTerm"
        return self._words.error(code, message)


def _as_star(expression: Expression) -> Star | None:
    """Return `s.*` as the star it is."""
    match expression:
        case Name((NameWord(text), Any.FIELD), at):
            return Star(text, at)
    return None
