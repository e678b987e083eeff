"""Fingerprints depend on the rows alone: not on their order, parts or buffers."""

from __future__ import annotations

import random
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from snowmelt.schema.chunk_types import FIELD_ID
from snowmelt.schema.row_fingerprint import Fingerprint, fingerprint_table, sum_fingerprints

TYPES = {
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.int32(): st.integers(-(2**31), 2**31 - 1),
    pa.float64(): st.floats(),
    pa.bool_(): st.booleans(),
    pa.string(): st.text(max_size=300),
    pa.binary(): st.binary(max_size=300),
    pa.decimal128(38, 0): st.integers(-(10**38) + 1, 10**38 - 1).map(Decimal),
    pa.timestamp("us"): st.integers(-(2**60), 2**60),
}
SCHEMA = pa.schema(
    [
        pa.field(f"c{number}", kind, metadata={FIELD_ID: str(number).encode()})
        for number, kind in enumerate(TYPES, start=1)
    ]
)
ROWS = st.lists(st.tuples(*(st.none() | values for values in TYPES.values())), max_size=12)


def table_of(rows: list[tuple[Any, ...]], schema: pa.Schema = SCHEMA) -> pa.Table:
    columns = list(zip(*rows, strict=True)) or [()] * len(schema)
    arrays = [pa.array(list(c), field.type) for c, field in zip(columns, schema, strict=True)]
    return pa.Table.from_arrays(arrays, schema=schema)


@given(ROWS, st.randoms(use_true_random=False))
def test_order_and_parts_do_not_matter(rows: list[Any], chooser: random.Random) -> None:
    whole = fingerprint_table(table_of(rows))
    shuffled = rows.copy()
    chooser.shuffle(shuffled)
    assert fingerprint_table(table_of(shuffled)) == whole
    cut = chooser.randrange(len(rows) + 1)
    table = table_of(rows)
    parts = [table.slice(0, cut), table.slice(cut)]
    assert fingerprint_table(pa.concat_tables(parts)) == whole
    assert sum_fingerprints(map(fingerprint_table, parts)) == whole


@given(ROWS, st.data())
def test_another_value_is_another_fingerprint(rows: list[Any], data: st.DataObject) -> None:
    if not rows:
        return
    row = data.draw(st.integers(0, len(rows) - 1))
    column = data.draw(st.integers(0, len(SCHEMA) - 1))
    value = data.draw(st.none() | list(TYPES.values())[column])
    changed = [list(each) for each in rows]
    changed[row][column] = value
    before, after = table_of(rows), table_of([tuple(each) for each in changed])
    same = before.column(column).chunks == after.column(column).chunks
    is_nan = isinstance(value, float) and value != value
    if not is_nan:
        assert (fingerprint_table(before) == fingerprint_table(after)) == same


def test_values_that_are_exchanged_between_rows_are_noticed() -> None:
    one = pa.Table.from_arrays([[1, 2], [3, 4]], schema=_two_columns())
    other = pa.Table.from_arrays([[2, 1], [3, 4]], schema=_two_columns())
    assert fingerprint_table(one) != fingerprint_table(other)


def test_values_that_are_exchanged_between_columns_are_noticed() -> None:
    one = pa.Table.from_arrays([[1], [2]], schema=_two_columns())
    other = pa.Table.from_arrays([[2], [1]], schema=_two_columns())
    assert fingerprint_table(one) != fingerprint_table(other)


def _two_columns() -> pa.Schema:
    fields = [
        pa.field(name, pa.int64(), metadata={FIELD_ID: str(number).encode()})
        for number, name in enumerate("ab", start=1)
    ]
    return pa.schema(fields)


def test_a_column_of_nulls_adds_nothing() -> None:
    schema = _two_columns()
    one = pa.Table.from_arrays([[1, 2]], schema=pa.schema([schema.field(0)]))
    both = pa.Table.from_arrays(
        [pa.array([1, 2]), pa.array([None, None], pa.int64())], schema=schema
    )
    assert fingerprint_table(one) == fingerprint_table(both)


@pytest.mark.parametrize("value", [0.0, "", b"", 0, False])
def test_null_is_no_empty_value(value: Any) -> None:
    array = pa.array([value])
    schema = pa.schema([pa.field("a", array.type, metadata={FIELD_ID: b"1"})])
    filled = pa.Table.from_arrays([array], schema=schema)
    empty = pa.Table.from_arrays([pa.nulls(1, array.type)], schema=schema)
    assert fingerprint_table(filled) != fingerprint_table(empty)


def test_nan_is_one_value_and_zero_has_a_sign() -> None:
    schema = pa.schema([pa.field("a", pa.float64(), metadata={FIELD_ID: b"1"})])

    def of(value: float) -> Fingerprint:
        return fingerprint_table(pa.Table.from_arrays([pa.array([value])], schema=schema))

    assert of(float("nan")) == of(-float("nan"))
    assert of(0.0) != of(-0.0)


def test_the_stored_form_is_read_back_and_does_not_change() -> None:
    rows = [(1, -2, 0.5, True, "text", b"\x00\xff", Decimal(10**30), 5), (None,) * 8]
    found = fingerprint_table(table_of(rows))
    assert Fingerprint.from_bytes(found.to_bytes()) == found
    assert found.to_bytes().hex() == FROZEN
    assert Fingerprint.from_bytes(b"\x02" + found.to_bytes()[1:]) is None
    assert Fingerprint.from_bytes(None) is None


# Fingerprints are stored: another value here would make those of all tables unknown.
FROZEN = "010200000000000000113bccc1193be8e420f3221b12a4d016"
