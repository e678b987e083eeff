"""Portions cover every byte of every file once, and are of like size."""

from __future__ import annotations

from typing import Any, cast

from hypothesis import given
from hypothesis import strategies as st

from snowmelt.load.portion import InputFile, Portion, split_into_portions

MIB = 2**20


@given(
    sizes=st.lists(st.integers(0, 5_000) | st.none(), max_size=6),
    tasks=st.integers(0, 9),
    smallest=st.integers(1, 900),
)
def test_every_byte_is_in_one_portion(sizes: list[Any], tasks: int, smallest: int) -> None:
    files = [InputFile(f"f{number}", size) for number, size in enumerate(sizes)]
    portions = split_into_portions(
        files, parallelism=tasks, is_splittable=lambda file: True, min_portion_bytes=smallest
    )
    for file in files:
        own = sorted((p for p in portions if p.file == file), key=lambda p: p.offset)
        if len(own) == 1:
            assert own[0].is_whole
            continue
        assert own[0].offset == 0
        sizes_of_own = [cast("int", p.size) for p in own]
        ends = [p.offset + size for p, size in zip(own, sizes_of_own, strict=True)]
        assert ends == [p.offset for p in own[1:]] + [file.size]
        assert min(sizes_of_own) >= smallest
    lengths = [p.file.size if p.size is None else p.size for p in portions]
    known = [length for length in lengths if length is not None]
    assert lengths == [None] * (len(lengths) - len(known)) + sorted(known, reverse=True)


def test_large_files_are_shared_by_the_tasks_and_small_ones_are_whole() -> None:
    big, small = InputFile("big", 1000 * MIB), InputFile("small", 10 * MIB)
    portions = split_into_portions([small, big], parallelism=2, is_splittable=lambda file: True)
    assert [(p.file.path, p.offset // MIB) for p in portions] == [
        ("big", 0),
        ("big", 500),
        ("small", 0),
    ]
    assert len(split_into_portions([big], parallelism=100, is_splittable=lambda file: True)) == 15


def test_what_cannot_be_split_is_whole() -> None:
    big = InputFile("big.gz", 1000 * MIB)
    assert split_into_portions([big], parallelism=8, is_splittable=lambda file: False) == (
        Portion(big),
    )
