"""From a statement to a query: names become columns, and what cannot be answered is refused."""

from __future__ import annotations

from dataclasses import replace as changed
from typing import TYPE_CHECKING

from snowmelt.select.aliases import AliasOutOfHand, check_aliases
from snowmelt.select.dialect import Dialect
from snowmelt.select.folds import aggregates_of, loose_field, misplaced_aggregate, places_of
from snowmelt.select.names import Names
from snowmelt.select.parser import parse
from snowmelt.select.query import JsonFields, Output, Query
from snowmelt.select.rewriting import replace
from snowmelt.select.syntax import (
    Aggregate,
    AliasUse,
    Any,
    Column,
    Literal,
    Name,
    Order,
    Star,
    walk,
)

if TYPE_CHECKING:
    from snowmelt.select.query import Fields
    from snowmelt.select.syntax import Expression, Projection, Statement


def bind(statement: Statement, *, dialect: Dialect, fields: Fields) -> Query:
    """Resolve the names of a statement.

    Raises:
        SelectError: For names that mean nothing or several things, aliases that need themselves,
            aggregates in the wrong place, and clauses this kind of object cannot have.
    """
    statement = _with_hyphens(statement, dialect, fields)
    return _Binder(statement, dialect, fields).bind()


def _with_hyphens(statement: Statement, dialect: Dialect, fields: Fields) -> Statement:
    """Read the statement again where words such as `customer-id` are names of columns."""
    names = () if isinstance(fields, JsonFields) else fields.names or ()
    hyphenated = {name if dialect.is_ceph else name.lower() for name in names if "-" in name}
    if not hyphenated or "-" not in statement.text:
        return statement

    def is_name(word: str) -> bool:
        return (word if dialect.is_ceph else word.lower()) in hyphenated

    return parse(statement.text, dialect, is_name=is_name)


class _Binder:
    def __init__(self, statement: Statement, dialect: Dialect, fields: Fields) -> None:
        self._statement = statement
        self._dialect = dialect
        self._names = Names(statement, dialect, fields)
        source = statement.source
        if source.steps not in {(), (Any.ITEM,)} and not isinstance(fields, JsonFields):
            message = "only JSON objects have paths after FROM"
            raise self._names.error("InvalidKeyPath", message, source.at)

    def bind(self) -> Query:
        statement = self._statement
        outputs = tuple(self._output(*item) for item in enumerate(statement.projections))
        expressions = [output.expression for output in outputs]
        self._check_aliases(expressions)
        query = Query(
            dialect=self._dialect,
            source=statement.source,
            outputs=outputs,
            where=self._optional(statement.where),
            group_by=tuple(self._key(key, expressions) for key in statement.group_by),
            having=self._optional(statement.having),
            order_by=tuple(self._order(key, expressions) for key in statement.order_by),
            limit=statement.limit,
            offset=statement.offset,
            distinct=statement.distinct,
        )
        query = self._folded(changed(query, aggregates=aggregates_of(query)))
        if len(outputs) == 1 and isinstance(expressions[0], Star):
            query = changed(query, outputs=(), star=True)
        return changed(query, columns=places_of(query))

    # --- names

    def _resolved(self, expression: Expression, *, aliases_first: bool = False) -> Expression:
        def instead(part: Expression) -> Expression | None:
            if isinstance(part, Name):
                return self._names.resolve(part, aliases_first=aliases_first)
            return self._aggregate(part) if isinstance(part, Aggregate) else None

        return replace(expression, instead)

    def _optional(self, expression: Expression | None) -> Expression | None:
        return None if expression is None else self._resolved(expression)

    def _output(self, place: int, projection: Projection) -> Output:
        expression = projection.expression
        if isinstance(expression, Star):
            if expression.qualifier and not self._names.is_qualifier(expression.qualifier):
                message = f"{expression.qualifier} is not the object's name in this statement"
                raise self._names.error("EvaluatorBindingDoesNotExist", message, expression.at)
            return Output("*", Star(at=expression.at))
        resolved = self._resolved(expression)
        name = projection.alias or (resolved.name if isinstance(resolved, Column) else "")
        return Output(name or f"_{place + 1}", resolved)

    def _key(
        self, key: Expression, outputs: list[Expression], *, aliases_first: bool = False
    ) -> Expression:
        """Resolve a key of GROUP BY or ORDER BY: an expression, an alias, or an output's number."""
        if isinstance(key, Literal):
            if type(key.value) is not int or not 1 <= key.value <= len(outputs):
                message = f"a number here names an output, 1 to {len(outputs)}"
                raise self._names.error("ParseUnsupportedLiteralsGroupBy", message, key.at)
            found = outputs[key.value - 1]
        else:
            found = self._resolved(key, aliases_first=aliases_first)
        while isinstance(found, AliasUse):
            found = outputs[found.projection]
        if isinstance(found, Star):
            message = "* is no key to sort or group by"
            raise self._names.error("UnsupportedSyntax", message, key.at)
        return found

    def _order(self, key: Order, outputs: list[Expression]) -> Order:
        expression = self._key(key.expression, outputs, aliases_first=True)
        return changed(key, expression=expression)

    def _check_aliases(self, outputs: list[Expression]) -> None:
        try:
            check_aliases(outputs)
        except AliasOutOfHand as problem:
            at = self._statement.projections[problem.projection].at
            raise self._names.error("InvalidQuery", str(problem), at) from None

    # --- aggregates

    def _aggregate(self, node: Aggregate) -> Aggregate:
        if node.argument is None:
            return node
        argument = self._resolved(node.argument)
        if any(isinstance(part, Aggregate) for part in walk(argument)):
            call = f"{node.function}(...{node.function} ...)"
            message = f"nested aggregation function is illegal i.e. {call}"
            raise self._names.error("UnsupportedSqlStructure", message, node.at)
        if node.function == "count" and not node.distinct and self._counts_all(argument):
            return Aggregate("count", None, node.at)
        return Aggregate(node.function, argument, node.at, node.distinct)

    def _counts_all(self, argument: Expression) -> bool:
        """The first engine counts rows whatever the argument; elsewhere a literal is never NULL."""
        if self._dialect is Dialect.CEPH_2020:
            return True
        return isinstance(argument, Literal) and argument.value is not None

    def _folded(self, query: Query) -> Query:
        """Check that rows are folded before their aggregates are used, and nothing is left over."""
        misplaced = misplaced_aggregate(query)
        if misplaced is not None:
            message = f"{misplaced.function} cannot stand in WHERE, GROUP BY or another aggregate"
            raise self._names.error("UnsupportedSqlStructure", message, misplaced.at)
        if not (query.aggregates or query.group_by or query.having is not None):
            return query
        if self._dialect is Dialect.CEPH and query.limit is not None and not query.group_by:
            message = (
                "Ceph ends an aggregate after LIMIT records were read, SQL limits the records "
                "that it returns, of which an aggregate has one; leave LIMIT out"
            )
            at = query.aggregates[0].at if query.aggregates else 0
            raise self._names.error("UnsupportedSyntax", message, at)
        field = loose_field(query)
        if field is not None and (self._dialect is not Dialect.CEPH_2020 or query.group_by):
            message = (
                f"{'*' if isinstance(field, Star) else field.name} differs from row to row, but "
                "rows are folded here; group by it, or put it into an aggregate"
            )
            raise self._names.error("UnsupportedSqlStructure", message, field.at)
        return changed(query, grouped=True, last_row=field is not None)
