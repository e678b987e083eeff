"""Check tables while the system runs: without locks, in one read transaction for each table."""

from __future__ import annotations

import datetime as dt
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from snowmelt.catalog.db.database import Database
from snowmelt.catalog.objects.tables import find_table, list_tables
from snowmelt.catalog.security.encryption_keys import KeyRing
from snowmelt.clock import Clock
from snowmelt.errors import SnowmeltError, TableNotFound
from snowmelt.integrity.catalog_checks import check_catalog
from snowmelt.integrity.chunk_checks import check_blobs, check_chunk_contents, check_keys
from snowmelt.integrity.file_checks import check_file_content, check_files
from snowmelt.integrity.findings import Finding, Severity, make_finding
from snowmelt.integrity.orphan_checks import check_orphan_blobs, check_orphan_files
from snowmelt.integrity.table_state import LedgerTotals, TableState, read_table_state
from snowmelt.schema.types import TableName
from snowmelt.storage.store import Store
from snowmelt.table.native_file import NativeFile
from snowmelt.table.warehouse_paths import Warehouse


@dataclass(frozen=True, slots=True)
class CheckSettings:
    """Scope of a check.

    With `deep`, the check reads data: the fraction `sample` (0 to 1) of the files and chunks added
    since `since`. The same `seed` selects the same sample.
    """

    deep: bool = False
    sample: float = 1.0
    since: dt.datetime | None = None
    seed: int | None = None


@dataclass(slots=True)
class TableReport:
    """Result of the checks of one table, with the number of checked objects of each kind.

    `unprovable` describes the data that cannot be verified because it is older than the lineage.
    """

    table: TableName
    findings: list[Finding] = field(default_factory=list)
    chunks: int = 0
    channels: int = 0
    files: int = 0
    rows: int = 0
    read_files: int = 0
    read_chunks: int = 0
    unprovable: list[str] = field(default_factory=list)


class IntegrityChecker:
    """Integrity checker of one installation. Read-only.

    Each step calls `on_progress` with a sentence when it begins.
    """

    def __init__(
        self,
        database: Database,
        keyring: KeyRing,
        stage: Store,
        warehouse: Warehouse,
        clock: Clock,
        *,
        settings: CheckSettings,
        on_progress: Callable[[str], None] = lambda _: None,
    ) -> None:
        self._database = database
        self._keyring = keyring
        self._stage = stage
        self._warehouse = warehouse
        self._clock = clock
        self._settings = settings
        self._on_progress = on_progress
        self._random = random.Random(settings.seed)  # noqa: S311 - a sample, no secret

    def check_all(self, names: Sequence[TableName] = ()) -> Iterator[TableReport]:
        """Check the named tables, or all tables if there are no names. Yield a report for each.

        Raises:
            TableNotFound: If a named table does not exist.
        """
        with self._database.reading() as connection:
            known = (
                [find_table(connection, name).name for name in names]
                if names
                else [table.name for table in list_tables(connection)]
            )
        for name in known:
            try:
                report = self.check_table(name)
            except TableNotFound:
                if names:
                    raise
                continue
            yield report

    def check_stage(self) -> list[Finding]:
        """Return a finding for each blob on the stage that no chunk refers to."""
        self._on_progress("stage: blobs without chunks")
        return list(check_orphan_blobs(self._database, self._stage, self._clock.now()))

    def check_table(self, name: TableName) -> TableReport:
        """Check one table.

        Reports a finding only if a second check confirms it, because files may be replaced and
        deleted while the first check reads them.

        Raises:
            TableNotFound: If it does not exist.
        """
        report = self._look(name, only=None)
        suspicious = [each for each in report.findings if each.severity is Severity.ERROR]
        if suspicious:
            paths = {str(each.subject["path"]) for each in suspicious if "path" in each.subject}
            seqs = {each.subject["seq"] for each in suspicious if "seq" in each.subject}
            again = {_identify(each) for each in self._look(name, only=(paths, seqs)).findings}
            report.findings = [
                each
                for each in report.findings
                if each.severity is not Severity.ERROR or _identify(each) in again
            ]
        return report

    def _look(self, name: TableName, *, only: tuple[set[str], set[object]] | None) -> TableReport:
        self._on_progress(f"{name}: catalog")
        with self._database.reading() as connection:
            table = find_table(connection, name)
            state = read_table_state(connection, table)
            findings, totals = check_catalog(connection, state)
        report = TableReport(table.name, findings, channels=len(state.channels))
        report.chunks = table.last_seq - (state.lineage_from or 0)
        report.unprovable = list(_list_unprovable(state))
        try:
            self._check_objects(report, state, totals, only)
        except SnowmeltError as error:
            if not error.retryable:
                raise
            report.findings.append(make_finding("not-readable", table.name, str(error)))
        return report

    def _check_objects(
        self,
        report: TableReport,
        state: TableState,
        totals: LedgerTotals,
        only: tuple[set[str], set[object]] | None,
    ) -> None:
        self._on_progress(f"{report.table}: objects")
        listed = list(self._warehouse.store.list(self._warehouse.table_folder(state.table)))
        sizes = {each.path: each.size for each in listed}
        found, files = check_files(state, totals, self._warehouse, sizes)
        report.findings += found
        report.files, report.rows = len(files), sum(file.rows for file in files.values())
        needed = {chunk.stage_path for chunk in state.waiting_chunks}
        needed |= {chunk.stage_path for chunk in state.chunks if chunk.quarantine_reason}
        report.findings += check_blobs(state, dict(self._measure_blobs(needed)))
        report.findings += check_keys(self._database, self._keyring, state)
        report.rows += sum(chunk.record.rows for chunk in state.waiting_chunks)
        report.findings += check_orphan_files(
            self._database, state, self._warehouse, listed, self._clock.now()
        )
        if self._settings.deep:
            self._read_files(report, state, totals, files, None if only is None else only[0])
            self._read_chunks(report, state, totals, None if only is None else only[1])

    def _measure_blobs(self, paths: Iterable[str]) -> Iterator[tuple[str, int]]:
        for path in sorted(paths):
            info = self._stage.head(path)
            if info is not None:
                yield path, info.size

    def _read_files(
        self,
        report: TableReport,
        state: TableState,
        totals: LedgerTotals,
        files: dict[str, NativeFile],
        only: set[str] | None,
    ) -> None:
        records = {file.path: file for file in state.current_files}
        for number, (path, file) in enumerate(files.items(), start=1):
            record = records.get(path)
            if only is not None:
                if path not in only:
                    continue
            elif not self._is_chosen(None if record is None else record.added_at):
                continue
            self._on_progress(f"{report.table}: file {number:,} of {len(files):,}")
            report.read_files += 1
            report.findings += check_file_content(
                state, totals, self._warehouse, path, file, record
            )

    def _read_chunks(
        self, report: TableReport, state: TableState, totals: LedgerTotals, only: set[object] | None
    ) -> None:
        chunks = [
            chunk
            for chunk in state.chunks
            if not chunk.is_retired
            and not chunk.quarantine_reason
            and (
                self._is_chosen(chunk.record.registered_at)
                if only is None
                else chunk.record.seq in only
            )
        ]
        self._on_progress(f"{report.table}: {len(chunks):,} chunks")
        report.read_chunks += len(chunks)
        report.findings += check_chunk_contents(
            self._database, self._keyring, self._stage, state, totals, chunks
        )

    def _is_chosen(self, at: dt.datetime | None) -> bool:
        since = self._settings.since
        if since is not None and at is not None and at < since:
            return False
        return self._random.random() < self._settings.sample


def _identify(finding: Finding) -> tuple[str, str, str]:
    subject = {key: value for key, value in finding.subject.items() if key != "token"}
    return finding.kind.name, finding.table, repr(sorted(subject.items()))


def _list_unprovable(state: TableState) -> Iterator[str]:
    start = state.lineage_from
    if start is None and state.table.migrated_seq:
        yield (
            f"chunks 1 to {state.table.migrated_seq}: migrated before there was a lineage; it begins"
            " with the next commit"
        )
    elif start:
        yield f"chunks 1 to {start}: migrated before there was a lineage"
    unknown = sum(
        1 for file in state.current_files if file.fingerprint is None and file.sha256 is None
    )
    if unknown:
        yield f"{unknown} native files: written before there was a lineage, without checksum"
