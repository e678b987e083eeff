"""Random rows of a table, as each interface takes them, with what the table must then contain."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from enum import Enum
from typing import Any

import pyarrow as pa

from support.system_model.model import Column, StoredRow, Table, quote
from support.system_model.values import (
    ColumnType,
    random_value,
    to_json,
    to_python,
    to_text,
)

_INVALID_SHARE, _ABSENT_SHARE, _NULL_SHARE = 0.06, 0.25, 0.13
_INVALID_TEXT = "not a value"
_CONVERTED = frozenset(
    {"NUMBER", "FLOAT", "BOOLEAN", "DATE", "TIME"}
    | {f"TIMESTAMP_{zone}" for zone in ("NTZ", "LTZ", "TZ")}
)
_keys = itertools.count(1)


class Validity(Enum):
    """Whether a row fits its table. A concurrent change of a column makes it uncertain."""

    VALID = "valid"
    UNCERTAIN = "uncertain"
    INVALID = "invalid"


@dataclass(frozen=True)
class SentValue:
    """Value of a field of a row. `type` is None for a text that no column of its kind accepts."""

    type: ColumnType | None
    value: Any


@dataclass
class Row:
    """Row as it is sent, and as it is stored. A field that is None is sent as null."""

    sent: dict[str, SentValue | None]
    stored: StoredRow
    validity: Validity = Validity.VALID

    @property
    def key(self) -> int:
        return int(next(iter(self.stored.values())))

    @property
    def is_valid(self) -> bool:
        return self.validity is Validity.VALID

    def lower_validity(self, validity: Validity) -> None:
        if validity is Validity.INVALID or self.is_valid:
            self.validity = validity

    def violates_required(self, table: Table) -> bool:
        """True if a column that is NOT NULL has no value."""
        return any(
            column.is_required
            and (
                self.sent[column.name] is None
                if column.name in self.sent
                else not column.has_default
            )
            for column in table.columns
        )

    @property
    def has_invalid_value(self) -> bool:
        return any(each is not None and each.type is None for each in self.sent.values())


def new_key() -> int:
    """Return a key that no other row of the run has."""
    return next(_keys)


def make_row(table: Table, source: random.Random, opened_at: int | None = None) -> Row:
    """Return a random row.

    `opened_at` is the tick when a channel of the SDK was opened: changes of columns since then may
    reach its client before or after the row. None: each request sees all earlier changes.
    """
    since = float("inf") if opened_at is None else opened_at
    row = Row({}, {})
    key = Decimal(new_key())
    row.sent[table.key.name] = SentValue(table.key.type, key)
    row.stored[table.key.ordinal] = key
    candidates = [each for each in table.columns[1:] if each.type.kind in _CONVERTED]
    invalid = None
    if candidates and source.random() < _INVALID_SHARE:
        invalid = source.choice(candidates)
    for column in table.columns[1:]:
        share = source.random()
        if column is invalid:
            row.sent[column.name] = SentValue(None, _INVALID_TEXT)
            row.lower_validity(Validity.INVALID)
        elif share < _ABSENT_SHARE:
            _leave_out(row, column, since)
        elif share < _ABSENT_SHARE + _NULL_SHARE:
            row.sent[column.name] = None
            row.stored[column.ordinal] = None
            _require(row, column, since)
        else:
            has_changed = column.type_at >= since and column.former_type is not None
            value_type = column.former_type if has_changed else column.type
            assert value_type is not None
            value = random_value(value_type, source)
            row.sent[column.name] = SentValue(column.type, value)
            row.stored[column.ordinal] = value
    return row


def _leave_out(row: Row, column: Column, since: float) -> None:
    has_changed = column.default_at >= since
    if has_changed:
        row.stored[column.ordinal] = column.possible_defaults
    elif column.has_default:
        row.stored[column.ordinal] = column.default
    if has_changed and column.is_required:
        # The client may still know the former default, or none yet.
        row.lower_validity(Validity.UNCERTAIN)
    elif not column.has_default:
        _require(row, column, since)


def _require(row: Row, column: Column, since: float) -> None:
    if column.is_required:
        row.lower_validity(Validity.INVALID)
    elif column.required_at >= since:
        row.lower_validity(Validity.UNCERTAIN)


def make_arrow_columns(
    table: Table, rows: Sequence[Row], opened_at: int | None = None
) -> list[str] | None:
    """Limit rows to the columns that all of them have, and return these.

    Returns None if the table requires another column, or the change of one is concurrent.
    """
    since = float("inf") if opened_at is None else opened_at
    names = [each.name for each in table.columns if all(each.name in row.sent for row in rows)]
    missing = [each for each in table.columns if each.name not in names]
    if any(
        each.type_at >= since or (each.is_required and not each.has_default) for each in missing
    ):
        return None
    for row in rows:
        for column in missing:
            row.sent.pop(column.name, None)
            default = column.default if column.has_default else None
            has_changed = column.default_at >= since
            row.stored[column.ordinal] = column.possible_defaults if has_changed else default
    return names


def to_sdk_row(row: Row, source: random.Random) -> dict[str, Any]:
    """Return a row as the SDK takes it, with its fields in any order."""
    fields = []
    for name, sent in row.sent.items():
        quoted = quote(name)
        written = name.lower() if quoted == name and source.random() < 0.2 else quoted
        if sent is None or sent.type is None:
            fields.append((written, None if sent is None else sent.value))
        else:
            fields.append((written, to_python(sent.type, sent.value, source)))
    source.shuffle(fields)
    return dict(fields)


def to_json_row(row: Row, source: random.Random, *, quoted: bool) -> str:
    """Return a row as JSON. The row API takes quoted names, COPY takes them as they are."""
    fields = []
    for name, sent in row.sent.items():
        if sent is None:
            text = "null"
        else:
            text = json.dumps(sent.value) if sent.type is None else to_json(sent.type, sent.value)
        fields.append(f"{json.dumps(quote(name) if quoted else name)}:{text}")
    source.shuffle(fields)
    return "{" + ",".join(fields) + "}"


_ARROW_TYPES = {
    "FLOAT": pa.float64(),
    "BOOLEAN": pa.bool_(),
    "VARCHAR": pa.string(),
    "BINARY": pa.binary(),
    "DATE": pa.date32(),
}


def to_arrow(
    rows: Sequence[Row], names: Sequence[str], source: random.Random, *, quoted: bool
) -> pa.Table:
    """Return columns of valid rows, each with one of the Arrow types that its column accepts."""
    columns = {}
    for name in names:
        sent = [row.sent[name] for row in rows]
        types = [each.type for each in sent if each is not None and each.type is not None]
        values = [None if each is None else each.value for each in sent]
        written = quote(name) if quoted else name
        columns[written] = (
            _to_arrow_column(types[0], values, source) if types else pa.nulls(len(rows))
        )
    return pa.table(columns)


def _to_arrow_column(column_type: ColumnType, values: list[Any], source: random.Random) -> pa.Array:
    kind = column_type.kind
    if kind == "NUMBER":
        return pa.array(values, pa.decimal128(38, column_type.scale))
    if kind in _ARROW_TYPES:
        return pa.array(values, _ARROW_TYPES[kind])
    if kind == "TIME" and source.random() < 0.7:
        return pa.array(values, pa.int64()).cast(pa.time64("ns"))
    if kind in {"TIMESTAMP_NTZ", "TIMESTAMP_LTZ"} and not any(
        each and each % 1000 for each in values
    ):
        microseconds = [None if each is None else each // 1000 for each in values]
        zone = None if kind == "TIMESTAMP_NTZ" else "UTC"
        return pa.array(microseconds, pa.int64()).cast(pa.timestamp("us", zone))
    texts = [None if each is None else to_text(column_type, each) for each in values]
    return pa.array(texts, pa.string())
