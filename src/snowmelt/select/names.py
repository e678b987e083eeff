"""Which field of the records, or which alias, a name means."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from snowmelt.select.dialect import Dialect
from snowmelt.select.lexer import syntax_error
from snowmelt.select.query import CsvFields, JsonFields, ParquetFields
from snowmelt.select.syntax import AliasUse, Column, Index, Literal, Name, Word, walk

if TYPE_CHECKING:
    from snowmelt.select.query import Fields
    from snowmelt.select.refusals import SelectError
    from snowmelt.select.syntax import Expression, Projection, Statement, Step

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
