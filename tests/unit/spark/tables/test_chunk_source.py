"""How chunks are shared out among Spark tasks; no Spark is started here."""

from __future__ import annotations

import datetime as dt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from snowmelt.schema.types import TableSchema
from snowmelt.spark.tables.chunk_source import ChunkReadRequest, split_into_partitions
from snowmelt.table.chunk_reader import ChunkReadTask

MIB = 1024 * 1024


def chunks(lengths):
    schema = TableSchema(1, ())
    tasks = tuple(
        ChunkReadTask(seq, "s", "p", "p", 0, length, "", b"", 1, schema)
        for seq, length in enumerate(lengths)
    )
    return ChunkReadRequest("T", tasks, (), (), dt.datetime(2020, 1, 1, tzinfo=dt.UTC))


@given(st.lists(st.integers(1, 50 * MIB), min_size=1, max_size=300), st.integers(1, 16))
def test_every_chunk_is_in_one_part_and_parts_keep_order(lengths, cores):
    parts = split_into_partitions(chunks(lengths), cores)
    numbers = [[task.seq for task in part.tasks] for part in parts]
    assert sorted(number for part in numbers for number in part) == list(range(len(lengths)))
    assert all(part == sorted(part) and part for part in numbers)


@pytest.mark.parametrize(
    ("lengths", "cores", "parts"),
    [
        ([20_000] * 5, 2, 1),
        ([20_000] * 200, 2, 2),
        ([20_000] * 1000, 2, 6),
        ([MIB] * 3, 8, 1),
        ([20 * MIB] * 3, 2, 3),
        ([20 * MIB], 2, 1),
    ],
)
def test_few_small_chunks_are_one_task(lengths, cores, parts):
    assert len(split_into_partitions(chunks(lengths), cores)) == parts


def test_parts_are_of_about_equal_work():
    parts = split_into_partitions(chunks([MIB, 27 * MIB, MIB, MIB, 27 * MIB, MIB, MIB, MIB]), 2)
    sizes = [sum(task.length for task in part.tasks) for part in parts]
    assert max(sizes) == 27 * MIB
