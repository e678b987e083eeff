"""What the portions of a load come to: may it commit, and what is told of each file."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from itertools import groupby
from typing import TYPE_CHECKING

from snowmelt.catalog.jobs.loads import LoadFileRecord, LoadFileState, LoadTotals
from snowmelt.errors import InternalError
from snowmelt.load.task import PortionCounts

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from snowmelt.load.task import LoadTask
    from snowmelt.loaders.task_runner import Portioned
    from snowmelt.table.native_writer import WrittenFile

_MOST_REASONS = 5


@dataclass(frozen=True, slots=True)
class Settled:
    """A load before its commit. `failure` is why it must not commit, None when it may.

    `files` are the native files to commit, `first_records` the number in its file of the first
    record of each portion, as far as it is known.
    """

    files: tuple[WrittenFile, ...]
    inputs: tuple[LoadFileRecord, ...]
    totals: LoadTotals
    reasons: tuple[tuple[str, int], ...]
    first_records: Mapping[int, int]
    failure: str | None


def settle(
    tasks: Sequence[LoadTask],
    outcomes: Iterable[Portioned],
    *,
    reject_limit: int | None,
    tolerant: bool,
    unlisted: Sequence[tuple[str, str]] = (),
    shown: str | None = None,
) -> Settled:
    """Add up what became of all portions of a load.

    Args:
        tasks: All portions.
        outcomes: What became of each, in any order.
        reject_limit: How many rejects make the load fail, None for no limit.
        tolerant: Whether a file that fails leaves the others as they are.
        unlisted: Inputs that were not even found, each with the reason.
        shown: How the input is called where its path says nothing; it is never skipped later.

    Raises:
        InternalError: It does not add up: a portion is missing, came twice or was never asked.
    """
    by_number: dict[int, Portioned] = {}
    for each in outcomes:
        if each.number in by_number:
            raise InternalError(f"The load does not add up: portion {each.number} came twice")
        by_number[each.number] = each
    if set(by_number) != {task.number for task in tasks}:
        raise InternalError(
            f"The load does not add up: {len(by_number)} portions of {len(tasks)} came back"
        )
    failed = _failed_files(tasks, by_number)
    whole = [task for task in tasks if task.portion.file.path not in failed]
    counts = {number: each.counts for number, each in by_number.items()}
    check_sums(whole, {task.number: counts[task.number] for task in whole})
    loaded = [by_number[task.number] for task in whole]
    complete = {n: c for n, c in counts.items() if _is_complete(by_number[n])}
    inputs = _inputs(tasks, by_number, failed)
    if shown is not None:
        inputs = tuple(replace(each, path=shown, size=None, tag=None) for each in inputs)
    inputs += tuple(
        LoadFileRecord(len(inputs) + at, path, None, None, LoadFileState.FAILED, 0, 0, 0, reason)
        for at, (path, reason) in enumerate(unlisted)
    )
    totals = LoadTotals(
        files=len(inputs) - len(failed) - len(unlisted),
        rows=sum(each.counts.rows for each in loaded),
        rejects=sum(each.counts.rejects for each in by_number.values()),
        bytes=sum(each.counts.bytes_in for each in loaded),
        first_error=next((each.first_error for each in inputs if each.first_error), None),
    )
    return Settled(
        files=tuple(file for each in loaded for file in each.files),
        inputs=inputs,
        totals=totals,
        reasons=_reasons(by_number.values()),
        first_records=first_records(tasks, complete),
        failure=_failure(totals, failed, reject_limit, tolerant=tolerant),
    )


def failed_inputs(inputs: Iterable[LoadFileRecord], reason: str) -> tuple[LoadFileRecord, ...]:
    """Return what is told of the files of a load that is given up: none of them was loaded."""
    return tuple(
        replace(each, state=LoadFileState.FAILED, rows=0, first_error=each.first_error or reason)
        for each in inputs
    )


def _is_complete(portion: Portioned) -> bool:
    return portion.error is None and not portion.stopped and not portion.counts.reject_limit_reached


def _failed_files(
    tasks: Sequence[LoadTask], by_number: Mapping[int, Portioned]
) -> dict[str, str | None]:
    """Return why files failed, by path; None for those that were left when others had failed."""
    failed: dict[str, str | None] = {}
    for task in tasks:
        portion = by_number[task.number]
        path = task.portion.file.path
        if portion.error is not None:
            failed[path] = failed.get(path) or portion.error
        elif portion.stopped:
            failed.setdefault(path, None)
    return failed


def _failure(
    totals: LoadTotals,
    failed: Mapping[str, str | None],
    reject_limit: int | None,
    *,
    tolerant: bool,
) -> str | None:
    errors = [error for error in failed.values() if error is not None]
    if errors and not tolerant:
        return errors[0]
    if reject_limit is not None and totals.rejects >= reject_limit:
        count = "a record was" if totals.rejects == 1 else f"{totals.rejects:,} records were"
        limit = (
            "ABORT ON ERROR lets none pass, as REJECTMAX 1 does"
            if reject_limit == 1
            else f"REJECTMAX is {reject_limit:,}"
        )
        return f"{count} rejected, and {limit}; the first: {totals.first_error}"
    if None in failed.values():
        return "It was stopped"
    if errors and totals.files == 0:
        return errors[0]
    return None


def _inputs(
    tasks: Sequence[LoadTask],
    by_number: Mapping[int, Portioned],
    failed: Mapping[str, str | None],
) -> tuple[LoadFileRecord, ...]:
    portions: dict[str, list[LoadTask]] = {}
    for task in sorted(tasks, key=lambda task: (task.portion.file.path, task.portion.offset)):
        portions.setdefault(task.portion.file.path, []).append(task)
    return tuple(
        _input(number, [(task, by_number[task.number]) for task in parts], failed)
        for number, parts in enumerate(portions.values())
    )


def _input(
    number: int, parts: Sequence[tuple[LoadTask, Portioned]], failed: Mapping[str, str | None]
) -> LoadFileRecord:
    file = parts[0][0].portion.file
    rejects = sum(portion.counts.rejects for _, portion in parts)
    first = next(
        (
            f"{file.path}, {_placed(task, portion)}"
            for task, portion in parts
            if portion.first_reject is not None
        ),
        None,
    )
    is_failed = file.path in failed
    state = LoadFileState.PARTIALLY_LOADED if rejects else LoadFileState.LOADED
    return LoadFileRecord(
        number=number,
        path=file.path,
        size=file.size,
        tag=file.tag,
        state=LoadFileState.FAILED if is_failed else state,
        rows=0 if is_failed else sum(portion.counts.rows for _, portion in parts),
        rejects=rejects,
        bytes=sum(portion.counts.bytes_in for _, portion in parts),
        first_error=failed.get(file.path) or first,
    )


def _placed(task: LoadTask, portion: Portioned) -> str:
    reject = portion.first_reject
    if reject is None:
        return ""
    where = f"record {reject.record:,}"
    if task.portion.offset:
        where += f" of the portion from byte {task.portion.offset:,} on"
    return f"{where}: {reject.reason}"


def _reasons(portions: Iterable[Portioned]) -> tuple[tuple[str, int], ...]:
    counter: Counter[str] = Counter()
    for portion in portions:
        counter.update(dict(portion.reasons))
    return tuple(counter.most_common(_MOST_REASONS))


# --- What the portions of a load come to: nothing missing, nothing twice, and which record is which.


def first_records(tasks: Sequence[LoadTask], counts: Mapping[int, PortionCounts]) -> dict[int, int]:
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


def check_sums(tasks: Sequence[LoadTask], counts: Mapping[int, PortionCounts]) -> PortionCounts:
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
    total = PortionCounts()
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
        total.reject_limit_reached |= part.reject_limit_reached
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
