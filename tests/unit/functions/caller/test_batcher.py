"""Batches depend on the rows alone, and each is within its limits."""

from __future__ import annotations

import itertools

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from snowmelt.functions.caller.batcher import CallBatcher

ROWS = st.lists(st.tuples(st.none() | st.text(max_size=12), st.none() | st.integers(0, 9)))


def arrays(rows):
    texts, integers = zip(*rows, strict=True) if rows else ((), ())
    return [pa.array(texts, pa.string()), pa.array(integers, pa.int64())]


def slices(rows, cuts):
    edges = [0, *sorted(cut for cut in cuts if cut <= len(rows)), len(rows)]
    columns = arrays(rows)
    for start, end in itertools.pairwise(edges):
        yield [column.slice(start, end - start) for column in columns]


def cut(stream, max_rows=1000, max_bytes=10**9, *, strict=False):
    return list(CallBatcher(max_rows, max_bytes, skip_null_rows=strict).split_batches(stream))


def shown(batches):
    return [
        (
            batch.ordinal,
            batch.rows,
            [column.to_pylist() for column in batch.columns],
            None if batch.sent_positions is None else batch.sent_positions.tolist(),
        )
        for batch in batches
    ]


@given(ROWS, st.lists(st.integers(0, 60)), st.integers(1, 7), st.integers(1, 200), st.booleans())
def test_however_a_stream_is_sliced_the_batches_are_the_same(rows, cuts, most, size, strict):
    whole = shown(cut([arrays(rows)], most, size, strict=strict))
    assert shown(cut(slices(rows, cuts), most, size, strict=strict)) == whole
    sent = [row for row in rows if not strict or None not in row]
    assert [row for _, _, columns, _ in whole for row in zip(*columns, strict=True)] == sent
    assert sum(batch[1] for batch in whole) == len(rows)
    assert all(len(batch[2][0]) <= most for batch in whole)


@given(ROWS, st.integers(1, 5))
def test_rows_with_null_are_where_they_were(rows, most):
    found = []
    for batch in cut([arrays(rows)], most, strict=True):
        answers = [None] * batch.rows
        places = range(batch.rows) if batch.sent_positions is None else batch.sent_positions
        for place, *row in zip(places, *(c.to_pylist() for c in batch.columns), strict=True):
            answers[place] = tuple(row)
        found += answers
    assert found == [None if None in row else row for row in rows]


def test_batches_are_full_over_the_borders_of_what_arrives():
    chunk = [pa.array(range(4096))]
    assert [batch.rows for batch in cut([chunk] * 3)] == [1000] * 12 + [288]


def test_a_large_row_goes_alone():
    texts = pa.array(["a", "b", "x" * 500, "c", "d"])
    batches = cut([[texts]], max_bytes=100)
    assert [batch.columns[0].to_pylist() for batch in batches] == [
        ["a", "b"],
        ["x" * 500],
        ["c", "d"],
    ]


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.binary()])
def test_bytes_count_whatever_holds_them(kind):
    column = pa.array(["x" * 50] * 40).cast(kind).slice(3)
    assert all(batch.rows <= 10 for batch in cut([[column]], max_bytes=640))


def test_many_rows_without_a_call_do_not_wait_for_ever():
    nothing = [pa.nulls(50_000, pa.int64())]
    assert [batch.rows for batch in cut([nothing] * 3, strict=True)] == [65_536, 65_536, 18_928]


def test_a_batch_is_there_with_its_last_row():
    def stream():
        yield [pa.array(range(10))]
        raise AssertionError("asked for more than it needed")

    assert next(CallBatcher(10, 10**6).split_batches(stream())).rows == 10
