"""From a statement to a query: names become columns, and what cannot be answered is refused."""

from __future__ import annotations

import re
from dataclasses import replace as changed
from typing import TYPE_CHECKING

from snowmelt.select.dialect import Dialect
from snowmelt.select.sql.ast import (
    Aggregate,
    AliasUse,
    Any,
    Column,
    Index,
    Literal,
    Name,
    Order,
    Star,
    Word,
    children,
    replace,
    walk,
)
from snowmelt.select.sql.bound_query import CsvFields, JsonFields, Output, ParquetFields, Query
from snowmelt.select.sql.expression_parser import MAX_HEIGHT
from snowmelt.select.sql.lexer import syntax_error
from snowmelt.select.sql.parser import parse

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from snowmelt.select.errors import SelectError
    from snowmelt.select.sql.ast import Expression, Projection, Statement, Step
    from snowmelt.select.sql.bound_query import Fields


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


# --- Which field of the records, or which alias, a name means.

_POSITION = re.compile(r"_([0-9]+)", re.ASCII)
_MOST_COLUMNS = 1_000_000
_SHOWN = 20


class Names:
    """The names of one statement over records with these fields."""

    def __init__(self, statement: Statement, dialect: Dialect, fields: Fields) -> None:
        """Look at the SELECT list's aliases; names are resolved one by one.

        Raises:
            SelectError: In Ceph, for an alias that stands twice, or is a column's name.
        """
        self._text = statement.text
        self._dialect = dialect
        self._fields = fields
        source = statement.source
        # What a path leads to is called by the name that the path ends with.
        last = source.steps[-1] if source.steps else None
        implied = last.text if isinstance(last, Word) else None
        self._qualifier = source.alias or implied or source.table
        self._is_aliased = source.alias is not None or implied is not None
        self._table = source.table if source.alias is None else None
        self._aliases: dict[str, list[int]] = {}
        for place, projection in enumerate(statement.projections):
            if projection.alias is not None:
                self._add_alias(projection, projection.alias, place)
        if isinstance(fields, JsonFields):
            self._drop_shadowed_aliases(statement)

    def resolve(self, name: Name, *, aliases_first: bool = False) -> Expression:
        """Return the column, alias or (Ceph: text in double quotes) literal that a name means.

        Args:
            name: The name as written.
            aliases_first: Whether an alias goes before a column of its name, as in ORDER BY.

        Raises:
            SelectError: Where it means nothing, or more than one thing.
        """
        steps, is_qualified = self._unqualified(name)
        text = None if is_qualified else self._text_of(name)
        alias = None if is_qualified or text is not None else self._alias(name, steps)
        prefers_alias = aliases_first or isinstance(self._fields, JsonFields)
        if alias is not None and prefers_alias:
            return alias
        is_path = text is not None and isinstance(self._fields, JsonFields)
        column = None if is_path else self._column(name, steps)
        found = column or alias or text
        if found is not None:
            return found
        raise self._unknown(name, steps)

    def is_qualifier(self, word: str) -> bool:
        """Return whether a word before a point means the object itself."""
        if self._table is not None and word.lower() == self._table.lower():
            return True
        return self._is_called(word)

    def error(self, code: str, message: str, at: int) -> SelectError:
        """Return a refusal that names a place of the statement."""
        return syntax_error(code, message, self._text, at)

    @property
    def _known(self) -> tuple[str, ...]:
        """The fields' names, none where there is no schema."""
        return () if isinstance(self._fields, JsonFields) else self._fields.names or ()

    def _key(self, text: str) -> str:
        return text if self._dialect.is_ceph else text.lower()

    def _add_alias(self, projection: Projection, alias: str, place: int) -> None:
        places = self._aliases.setdefault(self._key(alias), [])
        if places and self._dialect.is_ceph:
            message = f"alias <{alias}> is already been used in query"
            raise self.error("InvalidQuery", message, projection.at)
        places.append(place)
        if self._dialect is Dialect.CEPH and alias in self._known:
            message = f"multiple definition of column {{{alias}}} as schema-column and alias"
            raise self.error("InvalidQuery", message, projection.at)

    def _drop_shadowed_aliases(self, statement: Statement) -> None:
        """JSON has no schema: a name inside its own alias (`upper(s.name) AS name`) is a field."""
        for key, places in list(self._aliases.items()):
            if any(self._uses(statement.projections[place].expression, key) for place in places):
                del self._aliases[key]

    def _uses(self, expression: Expression, key: str) -> bool:
        firsts = (
            self._unqualified(node)[0][0] for node in walk(expression) if isinstance(node, Name)
        )
        return any(isinstance(first, Word) and self._key(first.text) == key for first in firsts)

    def _unqualified(self, name: Name) -> tuple[tuple[Step, ...], bool]:
        first = name.steps[0]
        if len(name.steps) > 1 and isinstance(first, Word) and self.is_qualifier(first.text):
            return name.steps[1:], True
        return name.steps, False

    def _text_of(self, name: Name) -> Literal | None:
        """Return what stands in double quotes as Ceph's string, unless it is a column's name."""
        first = name.steps[0]
        is_text = isinstance(first, Word) and first.quoted and len(name.steps) == 1
        if not (self._dialect.is_ceph and is_text and isinstance(first, Word)):
            return None
        return Literal(first.text, name.at)

    def _alias(self, name: Name, steps: tuple[Step, ...]) -> AliasUse | None:
        first = steps[0]
        if len(steps) != 1 or not isinstance(first, Word):
            return None
        places = self._aliases.get(self._key(first.text), [])
        if len(places) > 1:
            message = f"{first.text} names {len(places)} values of the SELECT list"
            raise self.error("AmbiguousFieldName", message, name.at)
        return AliasUse(places[0], name.at) if places else None

    def _column(self, name: Name, steps: tuple[Step, ...]) -> Column | None:
        if isinstance(self._fields, JsonFields):
            return self._path(name, steps)
        first, rest = steps[0], steps[1:]
        if not isinstance(first, Word):
            return None
        index = self._index(first, name.at)
        if index is None:
            return None
        if rest and isinstance(self._fields, CsvFields):
            message = f"the fields of CSV have no parts; {_print(steps)} leads nowhere"
            raise self.error("InvalidKeyPath", message, name.at)
        return Column(index, self._column_name(first, index, rest), rest, name.at)

    def _path(self, name: Name, steps: tuple[Step, ...]) -> Column:
        first = steps[0]
        is_root = len(name.steps) == 1 and isinstance(first, Word) and self._is_root(first)
        if is_root or (self._dialect.is_ceph and first == Word("_1")):
            return Column(None, _last_name(name.steps), steps[1:], name.at)
        return Column(None, _last_name(steps), steps, name.at)

    def _is_root(self, word: Word) -> bool:
        return self._is_aliased and not word.quoted and self._is_called(word.text)

    def _is_called(self, word: str) -> bool:
        if self._dialect.is_ceph and self._is_aliased:
            return word == self._qualifier
        return word.lower() == self._qualifier.lower()

    def _index(self, word: Word, at: int) -> int | None:
        position = None if word.quoted else _POSITION.fullmatch(word.text)
        if position is not None:
            return self._position(position[1], at)
        names = self._known
        if word.quoted or self._dialect.is_ceph:
            found = [place for place, known in enumerate(names) if known == word.text]
        else:
            key = word.text.lower()
            found = [place for place, known in enumerate(names) if known.lower() == key]
        if len(found) > 1:
            shown = ", ".join(f'"{names[place]}" (_{place + 1})' for place in found[:_SHOWN])
            message = f"{word.text} may be {shown}; quote the name, or write its position"
            raise self.error("AmbiguousFieldName", message, at)
        if isinstance(self._fields, CsvFields) and self._fields.names == ():
            # An empty object has not even its header; whatever is asked of it, there are no records.
            return 0
        return found[0] if found else None

    def _position(self, digits: str, at: int) -> int:
        number = int(digits) if len(digits) <= len(str(_MOST_COLUMNS)) else _MOST_COLUMNS + 1
        is_past = isinstance(self._fields, ParquetFields) and number > len(self._fields.names)
        if not 1 <= number <= _MOST_COLUMNS or is_past:
            message = f"there is no column _{digits}; positions count from _1"
            raise self.error("InvalidColumnIndex", message, at)
        return number - 1

    def _column_name(self, word: Word, index: int, rest: tuple[Step, ...]) -> str:
        if rest:
            return _last_name((word, *rest))
        names = self._known
        is_position = not word.quoted and _POSITION.fullmatch(word.text)
        return word.text if is_position or index >= len(names) else names[index]

    def _unknown(self, name: Name, steps: tuple[Step, ...]) -> SelectError:
        shown = _print(steps)
        names = self._known
        if self._dialect.is_ceph:
            message = f"alias {{{shown}}} or column not exist in schema"
        elif len(name.steps) > 1 and len(steps) == len(name.steps):
            message = f"{shown} leads nowhere; columns are written {self._qualifier}.name"
            return self.error("EvaluatorBindingDoesNotExist", message, name.at)
        elif not names:
            message = f"there is no column {shown}: the object has no header; write _1, _2, …"
        else:
            listed = ", ".join(names[:_SHOWN]) + (", …" if len(names) > _SHOWN else "")
            message = f"there is no column {shown}; there are {listed}"
        is_parquet = isinstance(self._fields, ParquetFields)
        code = "EvaluatorBindingDoesNotExist" if is_parquet else "MissingHeaders"
        return self.error(code, message, name.at)


def _last_name(steps: tuple[Step, ...]) -> str:
    return next((step.text for step in reversed(steps) if isinstance(step, Word)), "")


def _print(steps: tuple[Step, ...]) -> str:
    shown = ""
    for step in steps:
        if isinstance(step, Word):
            shown += ("." if shown else "") + step.text
        else:
            shown += f"[{step.number}]" if isinstance(step, Index) else step.value
    return shown


# --- Aliases that use aliases: none may need itself, nor grow beyond measure.

MAX_SIZE = 100_000
"""How many parts an expression may have once its aliases are replaced by what they stand for."""

CYCLE = "number of calls exceed maximum size, probably a cyclic reference to alias"


class AliasOutOfHand(Exception):
    """An alias cannot be used as it is; `projection` is its place."""

    def __init__(self, message: str, projection: int) -> None:
        super().__init__(message)
        self.projection = projection


def check_aliases(outputs: Sequence[Expression]) -> None:
    """Check the values of a SELECT list, aliases resolved.

    Raises:
        AliasOutOfHand: For an alias that needs itself, or becomes too large or too high.
    """
    uses = [_uses(expression) for expression in outputs]
    users: dict[int, list[int]] = {}
    for place, used in enumerate(uses):
        for projection in set(used):
            users.setdefault(projection, []).append(place)
    open_uses = [len(set(used)) for used in uses]
    ready = [place for place, count in enumerate(open_uses) if count == 0]
    measures: dict[int, tuple[int, int]] = {}
    while ready:
        place = ready.pop()
        measures[place] = _measure(outputs[place], measures, place)
        for user in users.get(place, ()):
            open_uses[user] -= 1
            if open_uses[user] == 0:
                ready.append(user)
    if len(measures) < len(outputs):
        first = next(place for place in range(len(outputs)) if place not in measures)
        raise AliasOutOfHand(CYCLE, first)


def _uses(expression: Expression) -> list[int]:
    return [node.projection for node in walk(expression) if isinstance(node, AliasUse)]


def _measure(
    expression: Expression, known: dict[int, tuple[int, int]], place: int
) -> tuple[int, int]:
    """Return size and height with aliases replaced."""
    size = tallest = 0
    waiting = [(expression, 1)]
    while waiting:
        node, level = waiting.pop()
        inside, above = known[node.projection] if isinstance(node, AliasUse) else (1, 0)
        size += inside
        tallest = max(tallest, level + above)
        waiting.extend((child, level + 1) for child in children(node))
    if size > MAX_SIZE or tallest > MAX_HEIGHT:
        message = (
            "the aliases used here make an expression of more than "
            f"{MAX_SIZE} parts or {MAX_HEIGHT} levels"
        )
        raise AliasOutOfHand(message, place)
    return size, tallest


# --- Where aggregates may stand, and what may stand beside them.


def aggregates_of(query: Query) -> tuple[Aggregate, ...]:
    """Return the distinct aggregates of everything that is evaluated after rows were folded."""
    found = (part for expression in after_folding(query) for part in walk(expression))
    return tuple(dict.fromkeys(part for part in found if isinstance(part, Aggregate)))


def after_folding(query: Query) -> list[Expression]:
    """Return the expressions of a query that see folded rows, where it folds."""
    expressions = [output.expression for output in query.outputs]
    expressions += [] if query.having is None else [query.having]
    return expressions + [order.expression for order in query.order_by]


def before_folding(query: Query) -> list[Expression]:
    """Return the expressions of a query that always see single rows."""
    expressions = [] if query.where is None else [query.where]
    arguments = (node.argument for node in query.aggregates)
    expressions += [argument for argument in arguments if argument is not None]
    return expressions + list(query.group_by)


def misplaced_aggregate(query: Query) -> Aggregate | None:
    """Return an aggregate that would need folded rows before they are folded, also by an alias."""
    for expression in before_folding(query):
        for part in _expanded(expression, query):
            if isinstance(part, Aggregate):
                return part
    return None


def loose_field(query: Query) -> Column | Star | None:
    """Return a field that differs from row to row where rows are folded, outside any aggregate."""
    keys = set(query.group_by)
    waiting = after_folding(query)
    while waiting:
        node = waiting.pop()
        if node in keys or isinstance(node, Aggregate):
            continue
        if isinstance(node, Column | Star):
            return node
        if isinstance(node, AliasUse):
            waiting.append(query.outputs[node.projection].expression)
        waiting.extend(children(node))
    return None


def places_of(query: Query) -> tuple[int, ...]:
    """Return the places of all fields that a query needs, ascending."""
    found = {
        part.index
        for expression in (*after_folding(query), *before_folding(query))
        for part in walk(expression)
        if isinstance(part, Column) and part.index is not None
    }
    return tuple(sorted(found))


def _expanded(expression: Expression, query: Query) -> Iterator[Expression]:
    waiting = [expression]
    while waiting:
        node = waiting.pop()
        yield node
        if isinstance(node, AliasUse):
            waiting.append(query.outputs[node.projection].expression)
        waiting.extend(children(node))
