"""Combine and verify the results of all portions of a load before its commit.

`reconcile_load` adds up the results, decides whether the load may commit, and creates one record
per input file. It verifies that no portion is missing or counted twice, and that the portions of a
file cover it exactly. The records of each portion must be its rows plus its rejects.
`compute_first_record_numbers` numbers the records of each file across its portions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import TYPE_CHECKING

from snowmelt.catalog.jobs.load_history import LoadFileRecord, LoadFileState, LoadTotals
from snowmelt.errors import InternalError
from snowmelt.load.task import LoadTask, PortionCounts

if TYPE_CHECKING:
    from snowmelt.load.phase_protocols import HeaderMismatch
    from snowmelt.loaders.load_task_execution import PortionResult
    from snowmelt.table.native_file_writer import WrittenFile

_MAX_REPORTED_REASONS = 5


@dataclass(frozen=True, slots=True)
class HeaderDifference:
    """A difference between header and columns, with the first file that has it and the number of files."""

    path: str
    files: int
    mismatch: HeaderMismatch

    def __str__(self) -> str:
        more = f", the first of {self.files:,} such files" if self.files > 1 else ""
        return f"header of {self.path}{more}: {self.mismatch}"


@dataclass(frozen=True, slots=True)
class CopyReconciliation:
    """Combined result of a load before its commit. `failure_reason` is None if it may commit.

    `files` are the native files to commit. `first_records` has the number of each portion's first
    record in its input file, if it is known. `uncounted_tasks` are portions of files that failed
    before: their rejects are not published again. `header_differences` has each difference between a
    header and the columns, with its first file and the number of files.
    """

    files: tuple[WrittenFile, ...]
    file_records: tuple[LoadFileRecord, ...]
    totals: LoadTotals
    reject_reasons: tuple[tuple[str, int], ...]
    first_records: Mapping[int, int]
    failure_reason: str | None
    uncounted_tasks: frozenset[int] = frozenset()
    truncated_values: int = 0
    header_differences: tuple[HeaderDifference, ...] = ()


def reconcile_load(
    tasks: Sequence[LoadTask],
    results: Iterable[PortionResult],
    *,
    reject_limit: int | None,
    error_tolerance: bool,
    missing_inputs: Sequence[tuple[str, str]] = (),
    display_path: str | None = None,
    file_reject_limit: int | None = None,
    repeated_paths: Collection[str] | None = None,
) -> CopyReconciliation:
    """Combine the results of all portions of a load.

    Args:
        tasks: All portions.
        results: The result of each portion, in any order.
        reject_limit: Number of rejects at which the load fails. None: no limit.
        error_tolerance: Load the other files if a file fails.
        missing_inputs: Inputs that were not found, with the reason.
        display_path: Name for an input without a path, such as standard input. Later loads never
            skip such an input as already loaded.
        file_reject_limit: Number of rejects at which a file fails. None: no limit.
        repeated_paths: Files that failed in an earlier load. If one fails again, its rejects are
            not counted again. The load may commit even if all files fail. None: it then fails.

    Raises:
        InternalError: If a portion is missing, occurs twice or was not planned.
    """
    by_number: dict[int, PortionResult] = {}
    for each in results:
        if each.number in by_number:
            raise InternalError(f"Inconsistent load: portion {each.number} has two results")
        by_number[each.number] = each
    if set(by_number) != {task.number for task in tasks}:
        raise InternalError(
            f"Inconsistent load: {len(by_number)} of {len(tasks)} portions have results"
        )
    failed = _collect_failed_files(tasks, by_number, file_reject_limit)
    repeated = frozenset(repeated_paths or ())
    uncounted = {
        task.number
        for task in tasks
        if (path := task.portion.file.path) in failed and path in repeated
    }
    counted = [each for number, each in by_number.items() if number not in uncounted]
    whole = [task for task in tasks if task.portion.file.path not in failed]
    verify_portion_counts(whole, {task.number: by_number[task.number].counts for task in whole})
    loaded = [by_number[task.number] for task in whole]
    complete = {
        number: each.counts
        for number, each in by_number.items()
        if each.error is None and not each.was_stopped and not each.counts.reject_limit_reached
    }
    inputs = tuple(
        _make_file_record(number, [(task, by_number[task.number]) for task in parts], failed)
        for number, parts in enumerate(_group_tasks_by_file(tasks))
    )
    inputs = tuple(
        replace(each, rejects=0) if each.path in failed and each.path in repeated else each
        for each in inputs
    )
    if display_path is not None:
        inputs = tuple(replace(each, path=display_path, size=None, tag=None) for each in inputs)
    inputs += tuple(
        LoadFileRecord(len(inputs) + at, path, None, None, LoadFileState.FAILED, 0, 0, 0, reason)
        for at, (path, reason) in enumerate(missing_inputs)
    )
    totals = LoadTotals(
        files=len(inputs) - len(failed) - len(missing_inputs),
        rows=sum(each.counts.rows for each in loaded),
        rejects=sum(each.counts.rejects for each in counted),
        bytes=sum(each.counts.bytes_in for each in loaded),
        first_error=next((each.first_error for each in inputs if each.first_error), None),
    )
    reasons: Counter[str] = Counter()
    for each in counted:
        reasons.update(dict(each.reject_reasons))
    return CopyReconciliation(
        files=tuple(file for each in loaded for file in each.files),
        file_records=inputs,
        totals=totals,
        reject_reasons=tuple(reasons.most_common(_MAX_REPORTED_REASONS)),
        first_records=compute_first_record_numbers(tasks, complete),
        failure_reason=_find_failure_reason(
            totals,
            failed,
            reject_limit,
            error_tolerance=error_tolerance,
            may_be_empty=repeated_paths is not None,
        ),
        uncounted_tasks=frozenset(uncounted),
        truncated_values=sum(each.counts.truncated_values for each in loaded),
        header_differences=_collect_header_differences(
            [(task, by_number[task.number]) for task in whole], display_path
        ),
    )


def to_failed_file_records(
    file_records: Iterable[LoadFileRecord], reason: str
) -> tuple[LoadFileRecord, ...]:
    """Return file records for a failed load, which loaded no file."""
    return tuple(
        replace(each, state=LoadFileState.FAILED, rows=0, first_error=each.first_error or reason)
        for each in file_records
    )


def _collect_failed_files(
    tasks: Sequence[LoadTask],
    results_by_number: Mapping[int, PortionResult],
    file_reject_limit: int | None,
) -> dict[str, str | None]:
    """Return the reason of each failed file by path, None if it was abandoned after another failed."""
    failed: dict[str, str | None] = {}
    rejects: Counter[str] = Counter()
    for task in tasks:
        portion = results_by_number[task.number]
        path = task.portion.file.path
        if portion.error is not None:
            failed[path] = failed.get(path) or portion.error
        elif portion.was_stopped:
            failed.setdefault(path, None)
        elif file_reject_limit is not None:
            rejects[path] += portion.counts.rejects
            first = portion.first_reject
            if path not in failed and rejects[path] >= file_reject_limit and first is not None:
                failed[path] = (
                    f"{path}: {_format_rejects(rejects[path])} rejected, and SKIP_FILE or REJECTMAX "
                    f"leaves out a file at {file_reject_limit:,}; the "
                    f"first: record {first.record:,}: {first.reason}"
                )
    return failed


def _collect_header_differences(
    task_results: Sequence[tuple[LoadTask, PortionResult]], display_path: str | None
) -> tuple[HeaderDifference, ...]:
    first_paths: dict[HeaderMismatch, str] = {}
    files: Counter[HeaderMismatch] = Counter()
    for task, portion in task_results:
        mismatch = portion.counts.header_mismatch
        if mismatch is not None:
            first_paths.setdefault(mismatch, display_path or task.portion.file.path)
            files[mismatch] += 1
    return tuple(
        HeaderDifference(path, files[mismatch], mismatch) for mismatch, path in first_paths.items()
    )


def describe_truncation(count: int) -> str:
    """Return a sentence about truncated values."""
    values = "1 value was" if count == 1 else f"{count:,} values were"
    return f"{values} truncated to the length of the column; ENFORCELENGTH rejects such records"


def _format_reject_limit(rejects: int, limit: int) -> str:
    limits = (
        "the load allows none (ABORT ON ERROR, ON_ERROR = ABORT_STATEMENT or REJECTMAX 1)"
        if limit == 1
        else f"REJECTMAX is {limit:,}"
    )
    return f"{_format_rejects(rejects)} rejected, and {limits}"


def _format_rejects(rejects: int) -> str:
    return "a record was" if rejects == 1 else f"{rejects:,} records were"


def _find_failure_reason(
    totals: LoadTotals,
    failed_files: Mapping[str, str | None],
    reject_limit: int | None,
    *,
    error_tolerance: bool,
    may_be_empty: bool,
) -> str | None:
    errors = [error for error in failed_files.values() if error is not None]
    if errors and not error_tolerance:
        return errors[0]
    if reject_limit is not None and totals.rejects >= reject_limit:
        return (
            f"{_format_reject_limit(totals.rejects, reject_limit)}; the first: {totals.first_error}"
        )
    if None in failed_files.values():
        return "It was stopped"
    if errors and totals.files == 0 and not may_be_empty:
        return errors[0]
    return None


def _make_file_record(
    number: int,
    task_results: Sequence[tuple[LoadTask, PortionResult]],
    failed_files: Mapping[str, str | None],
) -> LoadFileRecord:
    file = task_results[0][0].portion.file
    rejects = sum(portion.counts.rejects for _, portion in task_results)
    first = None
    for task, portion in task_results:
        if first is None and portion.first_reject is not None:
            start = task.portion.offset
            where = f" of the portion from byte {start:,} on" if start else ""
            reject = portion.first_reject
            first = f"{file.path}, record {reject.record:,}{where}: {reject.reason}"
    is_failed = file.path in failed_files
    state = LoadFileState.PARTIALLY_LOADED if rejects else LoadFileState.LOADED
    return LoadFileRecord(
        number=number,
        path=file.path,
        size=file.size,
        tag=file.tag,
        state=LoadFileState.FAILED if is_failed else state,
        rows=0 if is_failed else sum(portion.counts.rows for _, portion in task_results),
        rejects=rejects,
        bytes=sum(portion.counts.bytes_in for _, portion in task_results),
        first_error=failed_files.get(file.path) or first,
    )


def compute_first_record_numbers(
    tasks: Sequence[LoadTask], counts_by_task: Mapping[int, PortionCounts]
) -> dict[int, int]:
    """Return the number of each task's first record in its file, from 1, by task number.

    Records skipped by SKIP are not counted. `counts_by_task` has the counts of each task by number. Tasks
    after a task that did not finish are omitted.
    """
    numbers: dict[int, int] = {}
    for portions in _group_tasks_by_file(tasks):
        following = 1
        for task in portions:
            numbers[task.number] = following
            if task.number not in counts_by_task:
                break
            following += counts_by_task[task.number].records
    return numbers


def verify_portion_counts(
    tasks: Sequence[LoadTask], counts_by_task: Mapping[int, PortionCounts]
) -> None:
    """Verify that the counts of all tasks are consistent.

    Raises:
        InternalError: If a portion has no counts or was not planned, if the portions of a file do
            not cover it exactly once, or if records are not the sum of rows and rejects.
    """
    missing = sorted({task.number for task in tasks} ^ set(counts_by_task))
    if missing:
        raise InternalError(f"Inconsistent load: portion {missing[0]} is missing or unknown")
    for portions in _group_tasks_by_file(tasks):
        _verify_coverage(portions)
    for task in tasks:
        part = counts_by_task[task.number]
        if part.records != part.rows + part.rejects:
            raise InternalError(
                f"Inconsistent load: portion {task.number} of {task.portion.file.path} has "
                f"{part.records} records, {part.rows} rows and {part.rejects} rejects"
            )


def _verify_coverage(tasks: Sequence[LoadTask]) -> None:
    position: int | None = 0
    for task in tasks:
        portion = task.portion
        if portion.offset != position:
            raise InternalError(
                f"Inconsistent load: {portion.file.path} is loaded up to byte {position}, "
                f"and then from byte {portion.offset} on"
            )
        position = None if portion.size is None else portion.offset + portion.size
    if position is not None and position != tasks[0].portion.file.size:
        raise InternalError(
            f"Inconsistent load: {tasks[0].portion.file.path} has "
            f"{tasks[0].portion.file.size} bytes, {position} of them were loaded"
        )


def _group_tasks_by_file(tasks: Sequence[LoadTask]) -> list[list[LoadTask]]:
    ordered = sorted(tasks, key=lambda task: (task.portion.file.path, task.portion.offset))
    return [list(group) for _, group in groupby(ordered, key=lambda task: task.portion.file.path)]
