"""Load new files in folders and stores, each once, in batches by age and size.

A round lists the files, and adds files with events and files named in requests. It skips files that
the table already has, and loads a batch when it is due. The commit of a load records its files
together with the rows, so after a crash the watch resumes with the remaining files. A file that
cannot be loaded is reported, and retried after 10 s, 60 s and 600 s. It does not stop other files.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import logging
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from snowmelt import failpoints
from snowmelt.catalog.jobs.load_history import find_files_of_pipe, find_loaded_files
from snowmelt.catalog.objects.file_pipes import FileNotice, PipeFileRecord, PipeFileState
from snowmelt.catalog.objects.tables import find_table
from snowmelt.config import Settings
from snowmelt.errors import LoadFailed, LoadOvertaken, PhaseFailed
from snowmelt.failpoints import Failpoint
from snowmelt.load.copy_ast import InputPath
from snowmelt.load.portion import InputFile
from snowmelt.load.sources.files import (
    find_by_prefix,
    find_file,
    find_name_problem,
    find_new_files,
    is_object_url,
    show_path,
)
from snowmelt.loaders.copy_job import (
    ArrivedFiles,
    CopyContext,
    CopyResult,
    TaskRunner,
    run_copy,
)
from snowmelt.loaders.file_pipe_check import parse_watched_copy
from snowmelt.loaders.folder_events import open_folder_events
from snowmelt.schema.types import TableName

_log = logging.getLogger("snowmelt.load")

# Interval of complete listings of a store. Listings between them begin after the last loaded file,
# so files with lower names are only found by a complete listing.
_FULL_LISTING_INTERVAL_S = 60.0
_RETRY_DELAYS_S = (10.0, 60.0, 600.0)
_LOOKUP_CHUNK = 1000
# Each load that did not end, because the process died, shifts the maximum number of files in a
# batch by `_SHRINK_BITS`. After `_MAX_DEATHS` such loads, the only file of the last one is skipped.
_SHRINK_BITS = 3
_MAX_DEATHS = 10
# Maximum share of the time that listings take. The next listing is delayed accordingly.
_LISTING_SHARE = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLimits:
    """Limits at which a batch is due: age of its oldest file, number of files, or their bytes.

    A local file is loaded only after it has not changed for `stable_s` seconds, or immediately if
    an event reports that it was moved in. If all files that may be loaded have events, a batch is
    due if no load ended within the last `age_s` seconds.
    """

    age_s: float = 2.0
    files: int = 1000
    bytes: int = 256 * 1024 * 1024
    stable_s: float = 1.0

    @classmethod
    def from_settings(cls, settings: Settings) -> BatchLimits:
        """Return the limits from the settings of a deployment."""
        return cls(
            age_s=settings.file_batch_age_s,
            files=settings.file_batch_files,
            bytes=settings.file_batch_bytes,
        )


@dataclass(frozen=True, slots=True)
class WatchStatus:
    """Result of a round: number of waiting files, and the time when the oldest of them was first seen."""

    waiting_files: int
    oldest_waiting_at: dt.datetime | None


class WatchJournal(Protocol):
    """Persistent state of a watch that is not in the history of loads.

    `load_name` is the name of the pipe in the history of loads, and `created_at` its creation.
    """

    load_name: str | None
    created_at: dt.datetime | None

    def read_attempts(self) -> tuple[int, str | None]:
        """Return the number of loads that began and did not end, and the only file of the last one."""

    def list_failed_files(self) -> Iterable[PipeFileRecord]:
        """Return the files that could not be loaded."""

    def begin_attempt(self, attempts: int, file: str | None) -> None:
        """Record that a load begins. `file` is its file if it has only one."""

    def end_attempt(
        self,
        attempts: int,
        failed: Sequence[PipeFileRecord],
        loaded: Sequence[str],
    ) -> None:
        """Record the end of a load with its failed and its loaded files."""

    def list_notices(self) -> Sequence[FileNotice]:
        """Return the waiting files that are named in requests."""

    def end_notices(self, paths: Sequence[str]) -> None:
        """Record that named files are loaded or abandoned."""


class MemoryJournal:
    """Journal in memory, for a command. Reports failed files with `on_failure`."""

    load_name: str | None = None
    created_at: dt.datetime | None = None

    def __init__(self, on_failure: Callable[[PipeFileRecord], None] | None = None) -> None:
        self._on_failure = on_failure
        self.failed: dict[str, PipeFileRecord] = {}

    def read_attempts(self) -> tuple[int, str | None]:
        """Return no attempts."""
        return 0, None

    def list_failed_files(self) -> Iterable[PipeFileRecord]:
        """Return no files."""
        return ()

    def begin_attempt(self, attempts: int, file: str | None) -> None:
        """Do nothing."""

    def end_attempt(
        self, attempts: int, failed: Sequence[PipeFileRecord], loaded: Sequence[str]
    ) -> None:
        """Report the failed files."""
        del attempts
        for path in loaded:
            self.failed.pop(path, None)
        for each in failed:
            known = self.failed.get(each.path)
            self.failed[each.path] = each
            is_new = known is None or (known.tag, known.error) != (each.tag, each.error)
            if is_new and self._on_failure is not None:
                self._on_failure(each)

    def list_notices(self) -> Sequence[FileNotice]:
        """Return no files."""
        return ()

    def end_notices(self, paths: Sequence[str]) -> None:
        """Do nothing."""


@dataclass(slots=True)
class _WaitingFile:
    file: InputFile
    seen_at: dt.datetime
    stable_since: float
    has_event: bool = False


@dataclass(slots=True)
class _Failure:
    version: tuple[int | None, str | None]
    attempts: int
    # None: only a refresh retries the file.
    retry_at: float | None
    at: dt.datetime

    def is_left_out(self, version: tuple[int | None, str | None], now: float) -> bool:
        """Return True if this version of the file must not be retried yet."""
        return version == self.version and (self.retry_at is None or self.retry_at > now)


@dataclass(slots=True)
class _Listing:
    """State of the files of one path in the statement."""

    path: InputPath
    cursor: str = ""
    next_full_at: float = 0.0


@dataclass(slots=True)
class _State:
    done: dict[str, tuple[int | None, str | None]] = field(default_factory=dict)
    waiting: dict[str, _WaitingFile] = field(default_factory=dict)
    failures: dict[str, _Failure] = field(default_factory=dict)


class FileWatch:
    """Loader of the files of one COPY statement as they appear. Not thread-safe."""

    def __init__(
        self,
        context: CopyContext,
        statement_text: str,
        runner: TaskRunner,
        *,
        limits: BatchLimits | None = None,
        journal: WatchJournal | None = None,
        named_only: bool = False,
    ) -> None:
        """Create a watch. With `named_only`, it lists files only after `refresh`.

        Raises:
            StatementError: If the statement cannot be parsed, or cannot be watched.
        """
        statement = parse_watched_copy(statement_text)
        assert isinstance(statement.inputs, tuple)  # noqa: S101 - checked above
        self._context = context
        self._text = statement_text
        self._table = statement.table.parts
        self._runner = runner
        self._limits = limits or BatchLimits()
        self._journal = journal or MemoryJournal()
        self._listings = [_Listing(each) for each in statement.inputs]
        self._events = None if named_only else open_folder_events(statement.inputs)
        self._last_load_at = -math.inf
        self._state = _State()
        self._next_listing_at = math.inf if named_only else 0.0
        self._named_only = named_only
        self._named: set[str] = set()
        # File versions whose rejects have already been reported.
        self._failed_versions: dict[str, tuple[int | None, str | None]] = {}
        self._attempts, crashed = self._journal.read_attempts()
        for each in self._journal.list_failed_files():
            is_final = each.state is not PipeFileState.FAILED
            self._failed_versions[each.path] = (each.size, each.tag)
            # Each new process retries failed files once.
            self._state.failures[each.path] = _Failure(
                (each.size, each.tag), len(_RETRY_DELAYS_S), None if is_final else 0.0, each.at
            )
        if crashed is not None and self._attempts >= _MAX_DEATHS:
            self._give_up(crashed)

    @property
    def status(self) -> WatchStatus:
        """Status after the last round."""
        waiting = self._state.waiting.values()
        return WatchStatus(len(waiting), min((each.seen_at for each in waiting), default=None))

    def wait_for_files(self, timeout_s: float) -> bool:
        """Wait up to `timeout_s` for a new local file.

        Returns:
            False immediately if there are no folder events, otherwise True after the wait.
        """
        if self._events is None:
            return False
        self._events.watch_new_folders()
        self._events.wait(timeout_s)
        return True

    def refresh(self) -> None:
        """Make the next round list all files and retry failed files."""
        self._state = _State(done=self._state.done, waiting=self._state.waiting)
        for each in self._listings:
            each.next_full_at = 0.0
        self._next_listing_at = 0.0

    def run_round(self, *, until_empty: bool = False) -> list[CopyResult]:
        """List the files, and load the batches that are due.

        Args:
            until_empty: Load all stable files, even if no batch is due.

        Raises:
            LoadRefused: If the statement does not fit its table, or the files cannot be listed.
            TableNotFound: If the table does not exist or the role lacks INSERT on it.
            RemoteError: If the catalog or a store does not respond.
            UnknownOutcome: If a load may have been committed. The next round determines the
                outcome.
        """
        self._find_named_files()
        self._find_files_with_events()
        now = self._context.clock.monotonic()
        if now >= self._next_listing_at:
            self._list_files()
            took = self._context.clock.monotonic() - now
            self._next_listing_at = math.inf if self._named_only else now + took / _LISTING_SHARE
        failpoints.hit_failpoint(Failpoint.WATCH_LISTED)
        results: list[CopyResult] = []
        while batch := self._take_batch(until_empty=until_empty):
            results += self._load(batch)
        return results

    def _find_files_with_events(self) -> None:
        """Add files with events to the waiting files.

        A file that was moved in is complete. A writer that closed a file may open it again.
        """
        if self._events is None:
            return
        now = self._context.clock.monotonic()
        for path, is_moved in self._events.take_files().items():
            # The listing reports files that cannot be read.
            with contextlib.suppress(PhaseFailed):
                file = find_file(path)
                if file is not None:
                    self._sort_in([file], now)
            waiting = self._state.waiting.get(path)
            if waiting is not None:
                waiting.has_event = True
                if is_moved:
                    waiting.stable_since = -math.inf

    # Files named in requests.

    def _find_named_files(self) -> None:
        """Add files named in requests to the waiting files."""
        notices = self._journal.list_notices()
        self._named = {each.path for each in notices}
        found: list[InputFile] = []
        ended: list[str] = []
        for path in self._select_named(notices, ended)[: self._limits.files]:
            try:
                file = find_file(path)
                reason = f"{path} does not exist"
            except PhaseFailed as error:
                file, reason = None, str(error)
            if file is None:
                self._record_outcomes([InputFile(path)], {path: reason})
            else:
                found.append(file)
        # No wait for stable files: clients name a file after it is complete.
        self._sort_in(found, -math.inf)
        ended += [each.path for each in found if each.path in self._state.done]
        if ended:
            self._journal.end_notices(ended)
            self._named.difference_update(ended)
        if self._named_only:
            for path in ended:
                self._state.done.pop(path, None)

    def _select_named(self, notices: Sequence[FileNotice], ended: list[str]) -> list[str]:
        """Return the paths to check. Append the paths that have a final outcome to `ended`."""
        state, now = self._state, self._context.clock.monotonic()
        selected: list[str] = []
        for each in notices:
            failure = state.failures.get(each.path)
            if failure is not None and failure.at < each.received_at:
                # Retry, because the request is later than the failure.
                del state.failures[each.path]
                failure = None
            is_final = failure is not None and failure.retry_at is None
            if is_final or each.path in state.done:
                ended.append(each.path)
            elif each.path not in state.waiting and (
                failure is None or (failure.retry_at is not None and failure.retry_at <= now)
            ):
                selected.append(each.path)
        return selected

    # Listing.

    def _list_files(self) -> None:
        monotonic = self._context.clock.monotonic()
        paths: set[str] | None = set()
        for listing in self._listings:
            is_full = monotonic >= listing.next_full_at or not is_object_url(listing.path.path)
            try:
                found = _find_files(listing.path, "" if is_full else listing.cursor)
            except PhaseFailed as error:
                raise LoadFailed(where=listing.path.path, reason=str(error).rstrip(".")) from error
            if is_full:
                listing.next_full_at = monotonic + _FULL_LISTING_INTERVAL_S
            if not is_full:
                paths = None
            elif paths is not None:
                paths.update(show_path(each.path) for each in found)
            self._sort_in(found, monotonic)
            listing.cursor = self._find_cursor(listing.cursor, found)
        if paths is not None:
            self._forget_missing(paths | self._named)

    def _forget_missing(self, paths: set[str]) -> None:
        state = self._state
        gone = [path for path in state.failures if path not in paths]
        if gone:
            self._journal.end_attempt(self._attempts, (), gone)
        state.done = {path: each for path, each in state.done.items() if path in paths}
        state.waiting = {path: each for path, each in state.waiting.items() if path in paths}
        state.failures = {path: each for path, each in state.failures.items() if path in paths}

    def _sort_in(self, found: Sequence[InputFile], stable_since: float) -> None:
        """Add files that the table does not have to the waiting files."""
        state, now = self._state, self._context.clock.now()
        monotonic = self._context.clock.monotonic()
        fresh: list[InputFile] = []
        for file in found:
            version = (file.size, file.tag)
            if state.done.get(file.path) == version:
                continue
            failure = state.failures.get(show_path(file.path))
            if failure is not None and failure.is_left_out(version, monotonic):
                continue
            if (problem := find_name_problem(file)) is not None:
                self._reject_name(file, problem)
                continue
            waiting = state.waiting.get(file.path)
            if waiting is None:
                fresh.append(file)
            elif (waiting.file.size, waiting.file.tag) != version:
                waiting.file, waiting.stable_since = file, stable_since
                waiting.has_event = False
        for file in self._leave_out_loaded(fresh):
            state.waiting[file.path] = _WaitingFile(file, now, stable_since)

    def _reject_name(self, file: InputFile, problem: str) -> None:
        """Record a file whose path the catalog cannot store. No load may contain it."""
        path, at = show_path(file.path), self._context.clock.now()
        record = PipeFileRecord(
            path, file.size, file.tag, PipeFileState.FAILED, f"{path}: {problem}.", at
        )
        self._state.failures[path] = _Failure((file.size, file.tag), 0, None, at)
        self._journal.end_attempt(self._attempts, [record], ())

    def _leave_out_loaded(self, files: Sequence[InputFile]) -> list[InputFile]:
        """Return the files whose paths neither the table has nor the pipe has loaded before.

        Reports loaded files that have changed.
        """
        name, created_at = self._journal.load_name, self._journal.created_at
        left: list[InputFile] = []
        changed: list[PipeFileRecord] = []
        for start in range(0, len(files), _LOOKUP_CHUNK):
            chunk = files[start : start + _LOOKUP_CHUNK]
            paths = [each.path for each in chunk]
            with self._context.database.reading() as connection:
                table = find_table(connection, self._find_table_name())
                known = find_loaded_files(connection, table.table_id, paths, with_rejected=True)
                if name is not None and created_at is not None:
                    known |= find_files_of_pipe(connection, name, created_at, paths)
            loads = {key.path: load for key, load in known.items()}
            versions = {(key.path, key.size, key.tag) for key in known}
            for file in chunk:
                if file.path not in loads:
                    left.append(file)
                    continue
                if (file.path, file.size, file.tag) not in versions:
                    changed.append(self._make_changed_record(file, loads[file.path]))
                self._state.done[file.path] = (file.size, file.tag)
        if changed:
            for each in changed:
                _log.warning("%s", each.error)
            self._journal.end_attempt(self._attempts, changed, ())
        return left

    def _make_changed_record(self, file: InputFile, load_id: str) -> PipeFileRecord:
        return PipeFileRecord(
            file.path,
            file.size,
            file.tag,
            PipeFileState.CHANGED,
            f"{file.path} has changed since load {load_id} loaded it, and is not loaded again. To load it, "
            "run the COPY with FORCE, or give the new content a new name",
            self._context.clock.now(),
        )

    def _find_table_name(self) -> TableName:
        context = self._context
        names = (context.default_database or "", context.default_schema or "PUBLIC")
        return TableName(*names[: 3 - len(self._table)], *self._table)

    def _find_cursor(self, cursor: str, found: Sequence[InputFile]) -> str:
        """Return the last path before the first waiting file."""
        for file in found:
            if file.path in self._state.waiting:
                break
            cursor = max(cursor, file.path)
        return cursor

    # Batches.

    def _take_batch(self, *, until_empty: bool) -> list[InputFile]:
        limits, now = self._limits, self._context.clock.monotonic()
        stable = [
            each
            for each in self._state.waiting.values()
            if is_object_url(each.file.path) or now - each.stable_since >= limits.stable_s
        ]
        stable.sort(key=lambda each: (each.seen_at, each.file.path))
        most = max(limits.files >> (_SHRINK_BITS * self._attempts), 1)
        batch: list[InputFile] = []
        size = 0
        for each in stable[:most]:
            size += each.file.size or 0
            if batch and size > limits.bytes:
                break
            batch.append(each.file)
        is_full = len(batch) < len(stable) or len(batch) == limits.files or size >= limits.bytes
        if not batch or is_full or until_empty:
            return batch
        if all(each.has_event for each in stable) and now - self._last_load_at >= limits.age_s:
            return batch
        age = self._context.clock.now() - stable[0].seen_at
        return batch if age.total_seconds() >= limits.age_s else []

    def _load(self, batch: Sequence[InputFile]) -> list[CopyResult]:
        self._attempts += 1
        only = batch[0].path if len(batch) == 1 else None
        self._journal.begin_attempt(self._attempts, only)
        try:
            result = self._run_copy(batch)
        except LoadOvertaken as error:
            # Another load has loaded some of the files. The next listing determines which.
            _log.info("%s", error)
            self._end_attempt(())
            for file in batch:
                self._state.waiting.pop(file.path, None)
            if not self._named_only:
                self._next_listing_at = 0.0
            return []
        except LoadFailed as error:
            if len(batch) > 1:
                self._end_attempt(())
                half = len(batch) // 2
                return [*self._load(batch[:half]), *self._load(batch[half:])]
            self._record_outcomes(batch, {batch[0].path: str(error)})
            return []
        except BaseException:
            # The process survived the load, so no file has killed it.
            self._end_attempt(())
            raise
        failpoints.hit_failpoint(Failpoint.WATCH_LOADED)
        self._last_load_at = self._context.clock.monotonic()
        self._record_outcomes(batch, dict(result.failed_files))
        return [result]

    def _run_copy(self, batch: Sequence[InputFile]) -> CopyResult:
        repeated = {
            file.path
            for file in batch
            if self._failed_versions.get(file.path) == (file.size, file.tag)
        }
        arrived = ArrivedFiles(batch, self._journal.load_name, frozenset(repeated))
        return run_copy(self._context, self._text, self._runner, arrived=arrived)

    def _record_outcomes(self, batch: Sequence[InputFile], errors: dict[str, str]) -> None:
        """Record the outcome of each file of a batch."""
        state, now = self._state, self._context.clock.monotonic()
        failed: list[PipeFileRecord] = []
        at = self._context.clock.now()
        for file in batch:
            state.waiting.pop(file.path, None)
            version = (file.size, file.tag)
            if file.path not in errors:
                state.done[file.path] = version
                state.failures.pop(file.path, None)
                self._failed_versions.pop(file.path, None)
                continue
            self._failed_versions[file.path] = version
            known = state.failures.get(file.path)
            attempts = known.attempts if known is not None and known.version == version else 0
            delay = _RETRY_DELAYS_S[attempts] if attempts < len(_RETRY_DELAYS_S) else None
            state.failures[file.path] = _Failure(
                version, attempts + 1, None if delay is None else now + delay, at
            )
            failed.append(
                PipeFileRecord(
                    file.path,
                    file.size,
                    file.tag,
                    PipeFileState.FAILED,
                    errors[file.path],
                    at,
                )
            )
        loaded = [file.path for file in batch if file.path not in errors]
        self._end_attempt(failed, loaded)

    def _end_attempt(self, failed: Sequence[PipeFileRecord], loaded: Sequence[str] = ()) -> None:
        # Decrease the count by 2 only, because the next batch may contain the file that killed the
        # process.
        self._attempts = max(self._attempts - 2, 0)
        self._journal.end_attempt(self._attempts, failed, loaded)

    def _give_up(self, path: str) -> None:
        """Skip the only file of a load that killed the process (see `_MAX_DEATHS`)."""
        found = next((each for each in find_new_files(path) if each.path == path), InputFile(path))
        record = PipeFileRecord(
            path,
            found.size,
            found.tag,
            PipeFileState.KILLED,
            f"{path}: the process that loads has died {_MAX_DEATHS} times with this file. The log of the "
            "service may say why. ALTER PIPE … REFRESH tries again",
            self._context.clock.now(),
        )
        self._state.failures[path] = _Failure((found.size, found.tag), 0, None, record.at)
        self._attempts = 0
        self._journal.end_attempt(0, [record], ())


def _find_files(path: InputPath, after: str) -> Sequence[InputFile]:
    if path.is_prefix:
        return find_by_prefix(path.path, path.pattern, after)
    return find_new_files(path.path, after)
