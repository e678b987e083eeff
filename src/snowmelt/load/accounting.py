"""What the portions of a load come to: nothing missing, nothing twice, and which record is which."""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

from snowmelt.errors import InternalError
from snowmelt.load.steps import Counts

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from snowmelt.load.steps import LoadTask


def first_records(tasks: Sequence[LoadTask], counts: Mapping[int, Counts]) -> dict[int, int]:
    """Return the number, from 1 in its file, of the first record of each task, by task number.

    Records that SKIP leaves out are not counted. `counts` holds those of each task by number;
    a task that is not there, because it did not come to its end, leaves out what follows it.
    """
    numbers: dict[int, int] = {}
    for portions in _by_file(tasks):
        following = 1
        for task in portions:
            numbers[task.number] = following
            if task.number not in counts:
                break
            following += counts[task.number].records
    return numbers


def check_sums(tasks: Sequence[LoadTask], counts: Mapping[int, Counts]) -> Counts:
    """Return what all tasks come to together, once it adds up.

    Raises:
        InternalError: A portion is missing, was loaded twice or was never planned, the portions
            of a file leave bytes out or have some twice, or records are not rows and rejects.
    """
    missing = sorted({task.number for task in tasks} ^ set(counts))
    if missing:
        raise InternalError(f"The load does not add up: portion {missing[0]} is missing or unknown")
    for portions in _by_file(tasks):
        _check_cover(portions)
    total = Counts()
    for task in tasks:
        part = counts[task.number]
        if part.records != part.rows + part.rejects:
            raise InternalError(
                f"The load does not add up: portion {task.number} of {task.portion.file.path} has "
                f"{part.records} records, {part.rows} rows and {part.rejects} rejects"
            )
        total.bytes_in += part.bytes_in
        total.bytes_parsed += part.bytes_parsed
        total.records += part.records
        total.rows += part.rows
        total.rejects += part.rejects
        total.limited |= part.limited
    return total


def _check_cover(portions: Sequence[LoadTask]) -> None:
    position: int | None = 0
    for task in portions:
        portion = task.portion
        if portion.offset != position:
            raise InternalError(
                f"The load does not add up: {portion.file.path} is loaded up to byte {position}, "
                f"and then from byte {portion.offset} on"
            )
        position = None if portion.size is None else portion.offset + portion.size
    if position is not None and position != portions[0].portion.file.size:
        raise InternalError(
            f"The load does not add up: {portions[0].portion.file.path} has "
            f"{portions[0].portion.file.size} bytes, {position} of them were loaded"
        )


def _by_file(tasks: Sequence[LoadTask]) -> list[list[LoadTask]]:
    ordered = sorted(tasks, key=lambda task: (task.portion.file.path, task.portion.offset))
    return [list(group) for _, group in groupby(ordered, key=lambda task: task.portion.file.path)]
