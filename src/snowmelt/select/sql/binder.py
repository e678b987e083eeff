"""Binder: resolves the names of a statement to columns and aliases, and validates the query.

Rejects unknown and ambiguous names, cyclic or oversized aliases, misplaced aggregates, and fields
that are neither grouped nor aggregated.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace as changed

from snowmelt.select.dialect import Dialect
from snowmelt.select.errors import SelectError
from snowmelt.select.sql.ast import (
    AggregateExpr,
    AliasRef,
    ColumnRef,
    Expression,
    IndexStep,
    KeyStep,
    LiteralExpr,
    NameRef,
    OrderKey,
    PathStep,
    Projection,
    SelectStatement,
    StarExpr,
    WildcardStep,
    list_children,
    replace_nodes,
    walk_in_source_order,
)
from snowmelt.select.sql.bound_query import (
    BoundQuery,
    CsvFields,
    JsonFields,
    ObjectFields,
    OutputColumn,
    ParquetFields,
)
from snowmelt.select.sql.expression_parser import MAX_TREE_HEIGHT
from snowmelt.select.sql.lexer import make_syntax_error
from snowmelt.select.sql.parser import parse_statement
from snowmelt.select.values import is_null_or_missing


def bind_statement(
    statement: SelectStatement, *, dialect: Dialect, fields: ObjectFields
) -> BoundQuery:
    """Resolve the names of a statement.

    Raises:
        SelectError: If a name is unknown or ambiguous, an alias is cyclic, an aggregate is
            misplaced, or the object's format does not support a clause.
    """
    statement = _reparse_with_hyphenated_names(statement, dialect, fields)
    return _StatementBinder(statement, dialect, fields).bind()


def _reparse_with_hyphenated_names(
    statement: SelectStatement, dialect: Dialect, fields: ObjectFields
) -> SelectStatement:
    """Parse the statement again if it may contain hyphenated column names such as `customer-id`."""
    names = () if isinstance(fields, JsonFields) else fields.names or ()
    hyphenated = {name if dialect.is_ceph else name.lower() for name in names if "-" in name}
    if not hyphenated or "-" not in statement.text:
        return statement

    def is_name(word: str) -> bool:
        return (word if dialect.is_ceph else word.lower()) in hyphenated

    return parse_statement(statement.text, dialect, is_name=is_name)


class _StatementBinder:
    def __init__(self, statement: SelectStatement, dialect: Dialect, fields: ObjectFields) -> None:
        self._statement = statement
        self._dialect = dialect
        self._names = NameResolver(statement, dialect, fields)
        source = statement.source
        if source.steps not in {(), (WildcardStep.ITEM,)} and not isinstance(fields, JsonFields):
            message = "only JSON objects have paths after FROM"
            raise self._names.make_error("InvalidKeyPath", message, source.at)

    def bind(self) -> BoundQuery:
        statement = self._statement
        outputs = tuple(self._bind_output(*item) for item in enumerate(statement.projections))
        expressions = [output.expression for output in outputs]
        self._check_aliases(expressions)
        query = BoundQuery(
            dialect=self._dialect,
            source=statement.source,
            outputs=outputs,
            where=self._resolve_optional(statement.where),
            group_by=tuple(self._resolve_key(key, expressions) for key in statement.group_by),
            having=self._resolve_optional(statement.having),
            order_by=tuple(self._bind_order_key(key, expressions) for key in statement.order_by),
            limit=statement.limit,
            offset=statement.offset,
            distinct=statement.distinct,
        )
        query = self._bind_aggregation(changed(query, aggregates=list_aggregates(query)))
        if len(outputs) == 1 and isinstance(expressions[0], StarExpr):
            query = changed(query, outputs=(), star=True)
        return changed(query, columns=list_field_indexes(query))

    def _resolve_names(self, expression: Expression, *, aliases_first: bool = False) -> Expression:
        def instead(part: Expression) -> Expression | None:
            if isinstance(part, NameRef):
                return self._names.resolve(part, aliases_first=aliases_first)
            return self._bind_aggregate(part) if isinstance(part, AggregateExpr) else None

        return replace_nodes(expression, instead)

    def _resolve_optional(self, expression: Expression | None) -> Expression | None:
        return None if expression is None else self._resolve_names(expression)

    def _bind_output(self, index: int, projection: Projection) -> OutputColumn:
        expression = projection.expression
        if isinstance(expression, StarExpr):
            if expression.qualifier and not self._names.is_qualifier(expression.qualifier):
                message = f"{expression.qualifier} is not the alias of the object in this statement"
                raise self._names.make_error("EvaluatorBindingDoesNotExist", message, expression.at)
            return OutputColumn("*", StarExpr(at=expression.at))
        resolved = self._resolve_names(expression)
        name = projection.alias or (resolved.name if isinstance(resolved, ColumnRef) else "")
        return OutputColumn(name or f"_{index + 1}", resolved)

    def _resolve_key(
        self, key: Expression, outputs: list[Expression], *, aliases_first: bool = False
    ) -> Expression:
        """Resolve a GROUP BY or ORDER BY key: an expression, an alias, or a 1-based output position."""
        if isinstance(key, LiteralExpr):
            if type(key.value) is not int or not 1 <= key.value <= len(outputs):
                message = f"invalid output position; expected 1 to {len(outputs)}"
                raise self._names.make_error("ParseUnsupportedLiteralsGroupBy", message, key.at)
            found = outputs[key.value - 1]
        else:
            found = self._resolve_names(key, aliases_first=aliases_first)
        while isinstance(found, AliasRef):
            found = outputs[found.projection]
        if isinstance(found, StarExpr):
            message = "* is not a valid GROUP BY or ORDER BY key"
            raise self._names.make_error("UnsupportedSyntax", message, key.at)
        return found

    def _bind_order_key(self, key: OrderKey, outputs: list[Expression]) -> OrderKey:
        expression = self._resolve_key(key.expression, outputs, aliases_first=True)
        return changed(key, expression=expression)

    def _check_aliases(self, outputs: list[Expression]) -> None:
        try:
            check_alias_expansion(outputs)
        except AliasExpansionError as problem:
            at = self._statement.projections[problem.projection].at
            raise self._names.make_error("InvalidQuery", str(problem), at) from None

    def _bind_aggregate(self, node: AggregateExpr) -> AggregateExpr:
        if node.argument is None:
            return node
        argument = self._resolve_names(node.argument)
        if any(isinstance(part, AggregateExpr) for part in walk_in_source_order(argument)):
            call = f"{node.function}(...{node.function} ...)"
            message = f"nested aggregation function is illegal i.e. {call}"
            raise self._names.make_error("UnsupportedSqlStructure", message, node.at)
        if node.function == "count" and not node.distinct and self._counts_every_row(argument):
            return AggregateExpr("count", None, node.at)
        return AggregateExpr(node.function, argument, node.at, node.distinct)

    def _counts_every_row(self, argument: Expression) -> bool:
        """Return True if `count(argument)` equals `count(*)`.

        `ceph-2020` counts rows regardless of the argument. In the other dialects a literal counts
        every row, except NULL and MISSING.
        """
        if self._dialect is Dialect.CEPH_2020:
            return True
        return isinstance(argument, LiteralExpr) and not is_null_or_missing(argument.value)

    def _bind_aggregation(self, query: BoundQuery) -> BoundQuery:
        """Reject misplaced aggregates and ungrouped fields, and mark the query as grouped if it is."""
        misplaced = find_misplaced_aggregate(query)
        if misplaced is not None:
            message = f"{misplaced.function} is not allowed in WHERE, GROUP BY or another aggregate"
            raise self._names.make_error("UnsupportedSqlStructure", message, misplaced.at)
        if not (query.aggregates or query.group_by or query.having is not None):
            return query
        if self._dialect is Dialect.CEPH and query.limit is not None and not query.group_by:
            message = (
                "LIMIT is not supported with an aggregate: Ceph limits the records read, and SQL "
                "limits the records returned; remove LIMIT"
            )
            at = query.aggregates[0].at if query.aggregates else 0
            raise self._names.make_error("UnsupportedSyntax", message, at)
        field = find_ungrouped_field(query)
        if field is not None and (self._dialect is not Dialect.CEPH_2020 or query.group_by):
            message = (
                f"{'*' if isinstance(field, StarExpr) else field.name} is neither grouped nor "
                "aggregated; add it to GROUP BY or use it in an aggregate"
            )
            raise self._names.make_error("UnsupportedSqlStructure", message, field.at)
        return changed(query, grouped=True, last_row=field is not None)


_POSITION_PATTERN = re.compile(r"_([0-9]+)", re.ASCII)
_MAX_COLUMN_POSITION = 1_000_000
_MAX_LISTED_NAMES = 20


class NameResolver:
    """Resolver of the names in one statement, for records with the given fields."""

    def __init__(self, statement: SelectStatement, dialect: Dialect, fields: ObjectFields) -> None:
        """Index the aliases of the SELECT list.

        Raises:
            SelectError: If an alias is duplicated (Ceph), or equals a column name (`ceph`).
        """
        self._text = statement.text
        self._dialect = dialect
        self._fields = fields
        source = statement.source
        # Without an alias, the last key of the FROM path names its records.
        last = source.steps[-1] if source.steps else None
        implied = last.text if isinstance(last, KeyStep) else None
        self._qualifier = source.alias or implied or source.table
        self._is_aliased = source.alias is not None or implied is not None
        self._table = source.table if source.alias is None else None
        self._aliases: dict[str, list[int]] = {}
        for place, projection in enumerate(statement.projections):
            if projection.alias is not None:
                self._add_alias(projection, projection.alias, place)
        if isinstance(fields, JsonFields):
            self._drop_self_referencing_aliases(statement)

    def resolve(self, name: NameRef, *, aliases_first: bool = False) -> Expression:
        """Return the column or alias of a name, or Ceph's double-quoted string as a literal.

        With `aliases_first`, an alias takes precedence over a column of the same name (ORDER BY).

        Raises:
            SelectError: If the name is unknown or ambiguous.
        """
        steps, is_qualified = self._strip_qualifier(name)
        text = None if is_qualified else self._resolve_ceph_string(name)
        alias = None if is_qualified or text is not None else self._resolve_alias(name, steps)
        prefers_alias = aliases_first or isinstance(self._fields, JsonFields)
        if alias is not None and prefers_alias:
            return alias
        is_path = text is not None and isinstance(self._fields, JsonFields)
        column = None if is_path else self._resolve_column(name, steps)
        found = column or alias or text
        if found is not None:
            return found
        raise self._unknown_name_error(name, steps)

    def is_qualifier(self, name: str) -> bool:
        """Return True if the name before a dot refers to the object itself."""
        if self._table is not None and name.lower() == self._table.lower():
            return True
        return self._matches_qualifier(name)

    def make_error(self, code: str, message: str, offset: int) -> SelectError:
        """Return an error with the position of an offset in the statement."""
        return make_syntax_error(code, message, self._text, offset)

    @property
    def _field_names(self) -> tuple[str, ...]:
        """Field names. Empty if the object has no schema."""
        return () if isinstance(self._fields, JsonFields) else self._fields.names or ()

    def _normalize_name(self, text: str) -> str:
        return text if self._dialect.is_ceph else text.lower()

    def _add_alias(self, projection: Projection, alias: str, index: int) -> None:
        places = self._aliases.setdefault(self._normalize_name(alias), [])
        if places and self._dialect.is_ceph:
            message = f"alias <{alias}> is already been used in query"
            raise self.make_error("InvalidQuery", message, projection.at)
        places.append(index)
        if self._dialect is Dialect.CEPH and alias in self._field_names:
            message = f"multiple definition of column {{{alias}}} as schema-column and alias"
            raise self.make_error("InvalidQuery", message, projection.at)

    def _drop_self_referencing_aliases(self, statement: SelectStatement) -> None:
        """Drop aliases whose own expression uses their name (`upper(s.name) AS name`).

        JSON has no schema, so the name in the expression is read as a field.
        """
        for key, places in list(self._aliases.items()):
            if any(
                self._references_name(statement.projections[place].expression, key)
                for place in places
            ):
                del self._aliases[key]

    def _references_name(self, expression: Expression, normalized_name: str) -> bool:
        firsts = (
            self._strip_qualifier(node)[0][0]
            for node in walk_in_source_order(expression)
            if isinstance(node, NameRef)
        )
        return any(
            isinstance(first, KeyStep) and self._normalize_name(first.text) == normalized_name
            for first in firsts
        )

    def _strip_qualifier(self, name: NameRef) -> tuple[tuple[PathStep, ...], bool]:
        first = name.steps[0]
        if len(name.steps) > 1 and isinstance(first, KeyStep) and self.is_qualifier(first.text):
            return name.steps[1:], True
        return name.steps, False

    def _resolve_ceph_string(self, name: NameRef) -> LiteralExpr | None:
        """Return a single double-quoted name as a string literal (Ceph), or None."""
        first = name.steps[0]
        is_text = isinstance(first, KeyStep) and first.quoted and len(name.steps) == 1
        if not (self._dialect.is_ceph and is_text and isinstance(first, KeyStep)):
            return None
        return LiteralExpr(first.text, name.at)

    def _resolve_alias(self, name: NameRef, steps: tuple[PathStep, ...]) -> AliasRef | None:
        first = steps[0]
        if len(steps) != 1 or not isinstance(first, KeyStep):
            return None
        places = self._aliases.get(self._normalize_name(first.text), [])
        if len(places) > 1:
            message = f"{first.text} is ambiguous: it is the alias of {len(places)} values of the SELECT list"
            raise self.make_error("AmbiguousFieldName", message, name.at)
        return AliasRef(places[0], name.at) if places else None

    def _resolve_column(self, name: NameRef, steps: tuple[PathStep, ...]) -> ColumnRef | None:
        if isinstance(self._fields, JsonFields):
            return self._resolve_json_path(name, steps)
        first, rest = steps[0], steps[1:]
        if not isinstance(first, KeyStep):
            return None
        index = self._find_column_index(first, name.at)
        if index is None:
            return None
        if rest and isinstance(self._fields, CsvFields):
            message = f"CSV fields have no nested values; {_format_path(steps)} does not exist"
            raise self.make_error("InvalidKeyPath", message, name.at)
        return ColumnRef(index, self._get_column_name(first, index, rest), rest, name.at)

    def _resolve_json_path(self, name: NameRef, steps: tuple[PathStep, ...]) -> ColumnRef:
        first = steps[0]
        is_root = len(name.steps) == 1 and isinstance(first, KeyStep) and self._is_root_name(first)
        if is_root or (self._dialect.is_ceph and first == KeyStep("_1")):
            return ColumnRef(None, _get_last_key(name.steps), steps[1:], name.at)
        return ColumnRef(None, _get_last_key(steps), steps, name.at)

    def _is_root_name(self, step: KeyStep) -> bool:
        return self._is_aliased and not step.quoted and self._matches_qualifier(step.text)

    def _matches_qualifier(self, name: str) -> bool:
        if self._dialect.is_ceph and self._is_aliased:
            return name == self._qualifier
        return name.lower() == self._qualifier.lower()

    def _find_column_index(self, step: KeyStep, offset: int) -> int | None:
        position = None if step.quoted else _POSITION_PATTERN.fullmatch(step.text)
        if position is not None:
            return self._parse_column_position(position[1], offset)
        names = self._field_names
        if step.quoted or self._dialect.is_ceph:
            found = [place for place, known in enumerate(names) if known == step.text]
        else:
            key = step.text.lower()
            found = [place for place, known in enumerate(names) if known.lower() == key]
        if len(found) > 1:
            shown = ", ".join(
                f'"{names[place]}" (_{place + 1})' for place in found[:_MAX_LISTED_NAMES]
            )
            message = (
                f"{step.text} is ambiguous: it matches {shown}; quote the name, or use its position"
            )
            raise self.make_error("AmbiguousFieldName", message, offset)
        if isinstance(self._fields, CsvFields) and self._fields.names == ():
            # An empty object has no header and no records, so accept any name.
            return 0
        return found[0] if found else None

    def _parse_column_position(self, digits: str, offset: int) -> int:
        number = (
            int(digits)
            if len(digits) <= len(str(_MAX_COLUMN_POSITION))
            else _MAX_COLUMN_POSITION + 1
        )
        is_past = isinstance(self._fields, ParquetFields) and number > len(self._fields.names)
        if not 1 <= number <= _MAX_COLUMN_POSITION or is_past:
            message = f"unknown column _{digits}; positions start at _1"
            raise self.make_error("InvalidColumnIndex", message, offset)
        return number - 1

    def _get_column_name(self, step: KeyStep, index: int, rest: tuple[PathStep, ...]) -> str:
        if rest:
            return _get_last_key((step, *rest))
        names = self._field_names
        is_position = not step.quoted and _POSITION_PATTERN.fullmatch(step.text)
        return step.text if is_position or index >= len(names) else names[index]

    def _unknown_name_error(self, name: NameRef, steps: tuple[PathStep, ...]) -> SelectError:
        shown = _format_path(steps)
        names = self._field_names
        if self._dialect.is_ceph:
            message = f"alias {{{shown}}} or column not exist in schema"
        elif len(name.steps) > 1 and len(steps) == len(name.steps):
            message = f"unknown name {shown}; write columns as {self._qualifier}.name"
            return self.make_error("EvaluatorBindingDoesNotExist", message, name.at)
        elif not names:
            message = f"unknown column {shown}: the object has no header; use _1, _2, …"
        else:
            listed = ", ".join(names[:_MAX_LISTED_NAMES]) + (
                ", …" if len(names) > _MAX_LISTED_NAMES else ""
            )
            message = f"unknown column {shown}; valid columns: {listed}"
        is_parquet = isinstance(self._fields, ParquetFields)
        code = "EvaluatorBindingDoesNotExist" if is_parquet else "MissingHeaders"
        return self.make_error(code, message, name.at)


def _get_last_key(steps: tuple[PathStep, ...]) -> str:
    return next((step.text for step in reversed(steps) if isinstance(step, KeyStep)), "")


def _format_path(steps: tuple[PathStep, ...]) -> str:
    shown = ""
    for step in steps:
        if isinstance(step, KeyStep):
            shown += ("." if shown else "") + step.text
        else:
            shown += f"[{step.number}]" if isinstance(step, IndexStep) else step.value
    return shown


MAX_EXPRESSION_NODES = 100_000
"""Maximum number of nodes in an expression after alias expansion."""

ALIAS_CYCLE_MESSAGE = "number of calls exceed maximum size, probably a cyclic reference to alias"


class AliasExpansionError(Exception):
    """Alias cycle, or an expansion that is too large. `projection` is the index of the alias."""

    def __init__(self, message: str, projection: int) -> None:
        super().__init__(message)
        self.projection = projection


def check_alias_expansion(outputs: Sequence[Expression]) -> None:
    """Check the resolved expressions of a SELECT list for alias cycles and oversized expansions.

    Raises:
        AliasExpansionError: If an alias is cyclic, or its expansion is too large or too deep.
    """
    uses = [_list_alias_uses(expression) for expression in outputs]
    users: dict[int, list[int]] = {}
    for place, used in enumerate(uses):
        for projection in set(used):
            users.setdefault(projection, []).append(place)
    open_uses = [len(set(used)) for used in uses]
    ready = [place for place, count in enumerate(open_uses) if count == 0]
    measures: dict[int, tuple[int, int]] = {}
    while ready:
        place = ready.pop()
        measures[place] = _measure_expanded_size(outputs[place], measures, place)
        for user in users.get(place, ()):
            open_uses[user] -= 1
            if open_uses[user] == 0:
                ready.append(user)
    if len(measures) < len(outputs):
        first = next(place for place in range(len(outputs)) if place not in measures)
        raise AliasExpansionError(ALIAS_CYCLE_MESSAGE, first)


def _list_alias_uses(expression: Expression) -> list[int]:
    return [
        node.projection for node in walk_in_source_order(expression) if isinstance(node, AliasRef)
    ]


def _measure_expanded_size(
    expression: Expression, measured: dict[int, tuple[int, int]], projection: int
) -> tuple[int, int]:
    """Return the node count and height of an expression after alias expansion."""
    size = tallest = 0
    waiting = [(expression, 1)]
    while waiting:
        node, level = waiting.pop()
        inside, above = measured[node.projection] if isinstance(node, AliasRef) else (1, 0)
        size += inside
        tallest = max(tallest, level + above)
        waiting.extend((child, level + 1) for child in list_children(node))
    if size > MAX_EXPRESSION_NODES or tallest > MAX_TREE_HEIGHT:
        message = (
            "the aliases used here make an expression of more than "
            f"{MAX_EXPRESSION_NODES} nodes or {MAX_TREE_HEIGHT} levels"
        )
        raise AliasExpansionError(message, projection)
    return size, tallest


def list_aggregates(query: BoundQuery) -> tuple[AggregateExpr, ...]:
    """Return the distinct aggregates in the expressions that are evaluated after aggregation."""
    found = (
        part
        for expression in list_post_aggregation_expressions(query)
        for part in walk_in_source_order(expression)
    )
    return tuple(dict.fromkeys(part for part in found if isinstance(part, AggregateExpr)))


def list_post_aggregation_expressions(query: BoundQuery) -> list[Expression]:
    """Return the expressions that a query evaluates after its aggregation."""
    expressions = [output.expression for output in query.outputs]
    expressions += [] if query.having is None else [query.having]
    return expressions + [order.expression for order in query.order_by]


def list_pre_aggregation_expressions(query: BoundQuery) -> list[Expression]:
    """Return the expressions that every query evaluates for single rows."""
    expressions = [] if query.where is None else [query.where]
    arguments = (node.argument for node in query.aggregates)
    expressions += [argument for argument in arguments if argument is not None]
    return expressions + list(query.group_by)


def find_misplaced_aggregate(query: BoundQuery) -> AggregateExpr | None:
    """Return an aggregate used before aggregation, directly or through an alias, or None."""
    for expression in list_pre_aggregation_expressions(query):
        for part in _walk_with_aliases(expression, query):
            if isinstance(part, AggregateExpr):
                return part
    return None


def find_ungrouped_field(query: BoundQuery) -> ColumnRef | StarExpr | None:
    """Return a field that is used outside an aggregate and is not a grouping key, or None."""
    keys = set(query.group_by)
    waiting = list_post_aggregation_expressions(query)
    while waiting:
        node = waiting.pop()
        if node in keys or isinstance(node, AggregateExpr):
            continue
        if isinstance(node, ColumnRef | StarExpr):
            return node
        if isinstance(node, AliasRef):
            waiting.append(query.outputs[node.projection].expression)
        waiting.extend(list_children(node))
    return None


def list_field_indexes(query: BoundQuery) -> tuple[int, ...]:
    """Return the indexes of all fields that a query reads, ascending."""
    found = {
        part.index
        for expression in (
            *list_post_aggregation_expressions(query),
            *list_pre_aggregation_expressions(query),
        )
        for part in walk_in_source_order(expression)
        if isinstance(part, ColumnRef) and part.index is not None
    }
    return tuple(sorted(found))


def _walk_with_aliases(expression: Expression, query: BoundQuery) -> Iterator[Expression]:
    waiting = [expression]
    while waiting:
        node = waiting.pop()
        yield node
        if isinstance(node, AliasRef):
            waiting.append(query.outputs[node.projection].expression)
        waiting.extend(list_children(node))
