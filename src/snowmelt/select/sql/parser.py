"""Statement parser: SELECT, FROM and the following clauses."""

from __future__ import annotations

from snowmelt.select.dialect import Dialect
from snowmelt.select.errors import SelectError
from snowmelt.select.sql.ast import (
    Expression,
    FromClause,
    NameRef,
    OrderKey,
    Projection,
    SelectStatement,
    StarExpr,
    WildcardStep,
)
from snowmelt.select.sql.ast import KeyStep as NameWord
from snowmelt.select.sql.expression_parser import ExpressionParser, parse_path_steps
from snowmelt.select.sql.lexer import (
    RESERVED_WORDS,
    ColumnNamePredicate,
    SelectTokenKind,
    TokenStream,
)
from snowmelt.select.values import INT_MAX

_MAX_PROJECTIONS = 10_000
_JOIN_KEYWORDS = ("JOIN", "INNER", "LEFT", "RIGHT", "FULL", "CROSS", "NATURAL", "OUTER")
_WRITE_KEYWORDS = (
    "INSERT",
    "UPDATE",
    "DELETE",
    "CREATE",
    "DROP",
    "ALTER",
    "MERGE",
    "REPLACE",
    "EXEC",
)
_MISPLACED_TOKEN_ERRORS = {
    **dict.fromkeys(
        _JOIN_KEYWORDS,
        ("ParseMalformedJoin", "joins are not supported; a statement reads one object"),
    ),
    ",": ("ParseMalformedJoin", "joins are not supported; a statement reads one object"),
    **dict.fromkeys(
        ["UNION", "INTERSECT", "EXCEPT"],
        ("UnsupportedSyntax", "a statement can have only one SELECT"),
    ),
    "AT": ("ParseUnsupportedSyntax", "AT is not supported"),
    ")": ("ParseUnexpectedToken", "unmatched ')'; remove it"),
    "=": ("ParseUnexpectedOperator", "unexpected operator"),
}


def parse_statement(
    text: str, dialect: Dialect, *, is_name: ColumnNamePredicate | None = None
) -> SelectStatement:
    """Parse one statement, with an optional trailing semicolon.

    The dialect decides the precedence of AND and OR, the meaning of `"text"`, and the type of
    literals with a decimal point.

    Args:
        text: Statement text.
        dialect: Dialect of the statement.
        is_name: True for a hyphenated word that is a column name. None: the columns are unknown.

    Raises:
        SelectError: If the statement is invalid. The code is one of the lexer's or the parser's
            codes. The message has the position and the expected syntax.
    """
    return _StatementParser(TokenStream(text, dialect, is_name)).parse(text)


class _StatementParser:
    def __init__(self, tokens: TokenStream) -> None:
        self._tokens = tokens
        self._expressions = ExpressionParser(tokens)

    def parse(self, text: str) -> SelectStatement:
        words = self._tokens
        self._parse_select_keyword()
        distinct = words.accept("DISTINCT")
        if not distinct:
            words.accept("ALL")
        projections = self._parse_projections()
        source = self._parse_from()
        where = self._expressions.parse() if words.accept("WHERE") else None
        group_by = self._parse_group_by()
        having = self._expressions.parse() if words.accept("HAVING") else None
        order_by = self._parse_order_by()
        limit, offset = self._parse_limit_and_offset()
        words.accept(";")
        if words.current.kind is not SelectTokenKind.END:
            raise self._misplaced_token_error()
        return SelectStatement(
            projections, source, text, where, group_by, having, order_by, limit, offset, distinct
        )

    def _parse_select_keyword(self) -> None:
        words = self._tokens
        if words.is_at(*_WRITE_KEYWORDS):
            message = f"{words.current.upper} is not supported; only SELECT is"
            raise words.make_error("UnsupportedSqlOperation", message)
        words.expect("SELECT", "ParseExpectedKeyword", "SELECT")
        if words.is_at("FROM"):
            raise words.make_error("ParseEmptySelect", "SELECT names nothing; write columns or *")

    def _parse_projections(self) -> tuple[Projection, ...]:
        projections = [self._parse_projection()]
        while self._tokens.accept(","):
            projections.append(self._parse_projection())
            if len(projections) > _MAX_PROJECTIONS:
                message = f"the SELECT list has more than {_MAX_PROJECTIONS} values"
                raise self._tokens.make_error("UnsupportedSqlStructure", message)
        stars = [item for item in projections if isinstance(item.expression, StarExpr)]
        if stars and len(projections) > 1 and self._tokens.dialect is Dialect.AWS:
            message = "* must be the only item of the SELECT list"
            raise self._tokens.make_error("ParseAsteriskIsNotAloneInSelectList", message)
        return tuple(projections)

    def _parse_projection(self) -> Projection:
        words = self._tokens
        start = words.current
        if words.accept("*"):
            return Projection(StarExpr(at=start.start), at=start.start)
        expression = self._expressions.parse()
        star = _to_star_expression(expression)
        if star is not None:
            return Projection(star, at=start.start)
        return Projection(expression, self._parse_alias(), start.start)

    def _parse_alias(self) -> str | None:
        words = self._tokens
        token = words.current
        named = token.kind in {SelectTokenKind.QUOTED, SelectTokenKind.STRING} or (
            token.kind is SelectTokenKind.WORD and token.upper not in RESERVED_WORDS
        )
        if words.accept("AS"):
            token = words.current
            if (
                token.kind
                not in {SelectTokenKind.WORD, SelectTokenKind.QUOTED, SelectTokenKind.STRING}
                or token.upper in RESERVED_WORDS
            ):
                message = (
                    f'expected a name after AS, got {token}; write a keyword as "{token.text}"'
                )
                raise words.make_error("ParseExpectedIdentForAlias", message)
        elif not named or token.kind is SelectTokenKind.STRING:
            return None
        return words.advance().text

    def _parse_from(self) -> FromClause:
        words = self._tokens
        if not words.is_at("FROM"):
            message = f"expected a comma or FROM, got {words.current}"
            code = (
                "ParseSelectMissingFrom" if self._is_at_missing_from() else "ParseUnexpectedToken"
            )
            raise words.make_error(code, message)
        words.advance()
        token = words.advance()
        if token.kind is SelectTokenKind.PATH and not words.dialect.is_ceph:
            message = "the request specifies the object; write FROM S3Object"
            raise words.make_error("DataSourcePathUnsupported", message, token)
        is_table = token.kind is SelectTokenKind.WORD and token.text.lower() in {
            "s3object",
            "stdin",
        }
        if not is_table and token.kind is not SelectTokenKind.PATH:
            raise words.make_error(
                "BadTableName", f"write FROM S3Object or stdin, not {token}", token
            )
        steps = parse_path_steps(words)
        return FromClause(token.text, steps, self._parse_from_alias(), token.start)

    def _parse_from_alias(self) -> str | None:
        words = self._tokens
        explicit = words.accept("AS")
        if words.current.kind is SelectTokenKind.QUOTED or (
            words.is_at_name() and not words.is_at(*_MISPLACED_TOKEN_ERRORS)
        ):
            return words.advance().text
        if explicit:
            message = f"expected a name after AS, got {words.current}"
            raise words.make_error("ParseExpectedIdentForAlias", message)
        return None

    def _parse_group_by(self) -> tuple[Expression, ...]:
        if not self._tokens.accept("GROUP"):
            return ()
        self._tokens.expect("BY", "ParseExpectedKeyword", "BY")
        keys = [self._expressions.parse()]
        while self._tokens.accept(","):
            keys.append(self._expressions.parse())
        return tuple(keys)

    def _parse_order_by(self) -> tuple[OrderKey, ...]:
        if not self._tokens.accept("ORDER"):
            return ()
        self._tokens.expect("BY", "ParseExpectedKeyword", "BY")
        keys = [self._parse_order_key()]
        while self._tokens.accept(","):
            keys.append(self._parse_order_key())
        return tuple(keys)

    def _parse_order_key(self) -> OrderKey:
        expression = self._expressions.parse()
        descending = self._tokens.accept("DESC")
        if not descending:
            self._tokens.accept("ASC")
        nulls_first = False
        if self._tokens.accept("NULLS"):
            nulls_first = self._tokens.accept("FIRST")
            if not nulls_first:
                self._tokens.expect("LAST", "ParseExpectedKeyword", "FIRST or LAST")
        return OrderKey(expression, descending, nulls_first)

    def _parse_limit_and_offset(self) -> tuple[int | None, int]:
        words = self._tokens
        limit: int | None = None
        offset: int | None = None
        while words.is_at("LIMIT", "OFFSET"):
            clause = words.advance()
            if (limit if clause.upper == "LIMIT" else offset) is not None:
                raise words.make_error("ParseUnexpectedToken", f"duplicate {clause} clause", clause)
            number = self._parse_record_count(clause.upper)
            if clause.upper == "LIMIT":
                limit = number
            else:
                offset = number
                words.accept("ROW", "ROWS")
        return limit, offset or 0

    def _parse_record_count(self, clause: str) -> int:
        token = self._tokens.current
        if (
            token.kind is not SelectTokenKind.NUMBER
            or not token.text.isdecimal()
            or len(token.text) > 19
        ):
            message = f"{clause} expects a whole number of records, got {token}"
            raise self._tokens.make_error("ParseExpectedNumber", message)
        return min(int(self._tokens.advance().text), INT_MAX)

    def _is_at_missing_from(self) -> bool:
        return self._tokens.current.kind is SelectTokenKind.END or self._tokens.is_at(
            ";", "WHERE", "LIMIT"
        )

    def _misplaced_token_error(self) -> SelectError:
        token = self._tokens.current
        usual = f"unexpected {token}; expected a later clause or the end of the statement"
        code, message = _MISPLACED_TOKEN_ERRORS.get(token.upper, ("ParseUnexpectedToken", usual))
        if token.kind in {
            SelectTokenKind.NUMBER,
            SelectTokenKind.STRING,
            SelectTokenKind.TIMESTAMP,
        }:
            code = "ParseUnexpectedTerm"
        return self._tokens.make_error(code, message)


def _to_star_expression(expression: Expression) -> StarExpr | None:
    """Return the `StarExpr` for `s.*`, or None for other expressions."""
    match expression:
        case NameRef((NameWord(text), WildcardStep.FIELD), at):
            return StarExpr(text, at)
    return None
