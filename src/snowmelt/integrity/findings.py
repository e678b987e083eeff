"""Kinds of findings of an integrity check, with their meaning and remedy."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum


class Severity(StrEnum):
    """Severity of a finding.

    ERROR: a guarantee is violated. WARNING: all rows are correct, but something else is not.
    UNDECIDED: the check could not read the data it needs.
    """

    ERROR = "error"
    WARNING = "warning"
    UNDECIDED = "undecided"


@dataclass(frozen=True, slots=True)
class FindingKind:
    """A kind of finding. `remedy` is a sentence for the operator."""

    name: str
    meaning: str
    remedy: str
    severity: Severity = Severity.ERROR


_RESTORE_BLOB = (
    "Restore the blob from a backup of the stage. If there is none, `snowmelt chunks give-up` discards"
    " the chunk, and its source must send the rows again."
)
_RESTORE_FILE = "Restore the file from a backup of the warehouse."
_RESTORE_CATALOG = "Restore the catalog from a backup, or find out who edited it. Do not write to the table until then."
_REPORT = "Do not change the data folder, and report the finding: no known event causes it."

_KINDS = (
    FindingKind(
        "sequence-invalid",
        "The commit sequence of the table is below its watermark or its chunks.",
        _RESTORE_CATALOG,
    ),
    FindingKind(
        "chunk-missing",
        "The catalog has no row for a chunk that was committed and is not in native files.",
        _RESTORE_CATALOG,
    ),
    FindingKind(
        "ledger-missing",
        "The ledger has no row for a chunk that was migrated.",
        _RESTORE_CATALOG,
    ),
    FindingKind(
        "ledger-beyond-watermark",
        "The ledger has a chunk that is not in native files yet.",
        _RESTORE_CATALOG,
    ),
    FindingKind(
        "ledger-differs",
        "The ledger and the chunk row of a chunk differ.",
        _RESTORE_CATALOG,
    ),
    FindingKind(
        "channel-gap",
        "Row sequencers of a channel skip a commit: rows that it sent are missing.",
        _RESTORE_CATALOG,
    ),
    FindingKind(
        "channel-repeated",
        "A channel committed the same row sequencer twice: rows may be duplicated.",
        _REPORT,
    ),
    FindingKind(
        "channel-order",
        "Commits of a channel are not in the order of its sequencers.",
        _REPORT,
    ),
    FindingKind(
        "channel-position",
        "The row sequencer of a channel differs from the row sequencer of its last commit.",
        _RESTORE_CATALOG,
    ),
    FindingKind(
        "channel-token",
        "The committed offset token of a channel differs from the token of its last commit or opening.",
        "Compare with the source. `snowmelt channels` shows the token; open the channel with an offset token"
        " to set it.",
    ),
    FindingKind(
        "channel-fence",
        "The client sequencer of a channel is below one that it has committed with.",
        _RESTORE_CATALOG,
    ),
    FindingKind(
        "channel-last-chunk",
        "The last commit in a channel's record is not its last chunk.",
        _RESTORE_CATALOG,
    ),
    FindingKind(
        "channel-rows",
        "The parsed rows of a channel are not the sum of its inserted and rejected rows.",
        _RESTORE_CATALOG,
    ),
    FindingKind(
        "native-table-invalid",
        "The metadata file, manifest list or a manifest of the table is missing, damaged, or differs from the"
        " record in the catalog.",
        "Restore the metadata folder of the table from a backup of the warehouse.",
    ),
    FindingKind(
        "file-unknown",
        "The native table has a file that no commit of Snowmelt added.",
        "Find out which program wrote it. Restore the pointer of the table from a backup.",
    ),
    FindingKind(
        "file-dropped",
        "A file that a commit added is not in the native table, and no commit removed it.",
        "Find out which program changed the metadata. Restore the pointer of the table from a backup.",
    ),
    FindingKind(
        "file-doubled",
        "The native table contains a file twice: its rows are duplicated.",
        "Find out which program changed the metadata. Restore the pointer of the table from a backup.",
    ),
    FindingKind(
        "file-entry-differs",
        "Rows or bytes of a file differ between manifest and catalog.",
        _RESTORE_CATALOG,
    ),
    FindingKind(
        "total-rows-differ",
        "The number of rows that the last commit states is not the sum of its files.",
        _REPORT,
    ),
    FindingKind(
        "chunk-in-no-file",
        "A migrated chunk is in no native file, and no row change removed it: its rows are lost.",
        _RESTORE_CATALOG,
    ),
    FindingKind(
        "chunk-in-two-files",
        "A migrated chunk is in two native files: its rows are duplicated.",
        _RESTORE_CATALOG,
    ),
    FindingKind(
        "file-rows-differ",
        "A native file does not have as many rows as the chunks and loads in it.",
        _REPORT,
    ),
    FindingKind(
        "compaction-differs",
        "A compaction wrote other rows than those of its input files.",
        _REPORT,
    ),
    FindingKind(
        "migration-gap",
        "Migrations do not follow each other without a gap.",
        _RESTORE_CATALOG,
    ),
    FindingKind(
        "run-rows-differ",
        "The row count of a migration or load in the history differs from the rows of its files.",
        _RESTORE_CATALOG,
    ),
    FindingKind(
        "load-differs", "Totals of a load are not the sums over its files.", _RESTORE_CATALOG
    ),
    FindingKind("file-missing", "A native file is not in the warehouse.", _RESTORE_FILE),
    FindingKind(
        "file-size-differs",
        "The size of a native file differs from the written size.",
        _RESTORE_FILE,
    ),
    FindingKind(
        "file-changed", "The bytes of a native file differ from the written bytes.", _RESTORE_FILE
    ),
    FindingKind("file-unreadable", "A native file cannot be read as Parquet.", _RESTORE_FILE),
    FindingKind(
        "file-values-differ",
        "The rows of a native file differ from the written rows, or from the rows of its chunks.",
        _RESTORE_FILE,
    ),
    FindingKind(
        "bounds-differ",
        "Bounds or counts of a file in the manifest contradict its rows: filters may skip rows.",
        "Run `snowmelt maintain --table NAME --full` to write the file again, and report the finding.",
    ),
    FindingKind("blob-missing", "The blob of a chunk is not on the stage.", _RESTORE_BLOB),
    FindingKind("blob-short", "The blob of a chunk is shorter than registered.", _RESTORE_BLOB),
    FindingKind(
        "chunk-corrupt",
        "A chunk does not have the registered MD5, cannot be decrypted, or cannot be decoded.",
        _RESTORE_BLOB,
    ),
    FindingKind(
        "statistics-differ",
        "Statistics of a chunk in the catalog contradict its rows: filters may skip rows.",
        _RESTORE_CATALOG,
    ),
    FindingKind(
        "key-unreadable",
        "The master key does not decrypt a data key of the table.",
        "Start with the master key of this catalog (`keys_dir`), or restore it.",
    ),
    FindingKind(
        "reference-broken",
        "A row of the catalog refers to an object that does not exist.",
        _RESTORE_CATALOG,
    ),
    FindingKind(
        "tombstone-low",
        "The tombstone of a dropped channel is below a client sequencer that committed.",
        _RESTORE_CATALOG,
    ),
    FindingKind(
        "chunk-quarantined",
        "A chunk is quarantined: queries of the table fail until its blob is restored.",
        _RESTORE_BLOB,
    ),
    FindingKind(
        "orphan-file",
        "A file in the table's folder belongs to no snapshot, and garbage collection should have deleted it.",
        "Run `snowmelt maintain`. If it stays, delete it.",
        Severity.WARNING,
    ),
    FindingKind(
        "orphan-blob",
        "A blob on the stage belongs to no chunk, and garbage collection should have deleted it.",
        "Run `snowmelt maintain`. If it stays, delete it.",
        Severity.WARNING,
    ),
    FindingKind(
        "not-readable",
        "The check could not read an object: the store did not respond.",
        "Repeat the check when stage and warehouse respond.",
        Severity.UNDECIDED,
    ),
)
KINDS = {kind.name: kind for kind in _KINDS}


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding. `subject` identifies the chunk, channel, file, run or load by key."""

    kind: FindingKind
    table: str
    detail: str
    subject: dict[str, object] = field(default_factory=dict)

    @property
    def severity(self) -> Severity:
        """The severity of the finding's kind."""
        return self.kind.severity

    def to_dict(self) -> dict[str, object]:
        """Return the finding as a JSON object."""
        return {
            "finding": self.kind.name,
            "severity": str(self.severity),
            "table": self.table,
            **self.subject,
            "detail": self.detail,
            "meaning": self.kind.meaning,
            "remedy": self.kind.remedy,
        }


def make_finding(kind: str, table: object, detail: str, **subject: object) -> Finding:
    """Return a finding of a kind. `detail` is a sentence with the expected and actual values."""
    return Finding(KINDS[kind], str(table), detail, subject)
