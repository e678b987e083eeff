"""Parsed request: statement, input and output format, compression, scan range, dialect."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import PurePosixPath
from typing import TypeAlias

from snowmelt.select.dialect import Dialect


class HeaderMode(StrEnum):
    """Meaning of the first record of a CSV object: data, column names, or ignored."""

    NONE = "NONE"
    USE = "USE"
    IGNORE = "IGNORE"


class ObjectCompression(StrEnum):
    """Compression of the whole object."""

    NONE = "NONE"
    GZIP = "GZIP"
    BZIP2 = "BZIP2"
    ZSTD = "ZSTD"


@dataclass(frozen=True, slots=True)
class CsvInput:
    """CSV input format.

    Delimiters may have several bytes or be control characters. An empty quote or comment disables it.
    """

    header: HeaderMode = HeaderMode.NONE
    record_delimiter: bytes = b"\n"
    field_delimiter: bytes = b","
    quote: bytes = b'"'
    escape: bytes = b'"'
    comment: bytes = b"#"
    quoted_record_delimiter: bool = False


@dataclass(frozen=True, slots=True)
class JsonInput:
    """JSON input format: one value per line (`lines`), or a sequence of values in any layout."""

    lines: bool


@dataclass(frozen=True, slots=True)
class ParquetInput:
    """Parquet input format, which has no options."""


@dataclass(frozen=True, slots=True)
class CsvOutput:
    """CSV output format. `quote_always` also quotes fields that do not need quotes."""

    quote_always: bool = False
    quote: bytes = b'"'
    escape: bytes = b'"'
    field_delimiter: bytes = b","
    record_delimiter: bytes = b"\n"


@dataclass(frozen=True, slots=True)
class JsonOutput:
    """JSON output format: one object per record."""

    record_delimiter: bytes = b"\n"


@dataclass(frozen=True, slots=True)
class ScanRange:
    """Range of records whose first byte is in [start, end].

    `end` alone selects the last `end` bytes.
    """

    start: int | None = None
    end: int | None = None


InputFormat: TypeAlias = CsvInput | JsonInput | ParquetInput
OutputFormat: TypeAlias = CsvOutput | JsonOutput


@dataclass(frozen=True, slots=True)
class SelectRequest:
    """SelectObjectContent request, independent of its transport."""

    expression: str
    input: InputFormat = field(default_factory=CsvInput)
    output: OutputFormat = field(default_factory=CsvOutput)
    compression: ObjectCompression = ObjectCompression.NONE
    scan_range: ScanRange | None = None
    progress: bool = False
    dialect: Dialect = Dialect.AWS


@dataclass(frozen=True, slots=True)
class GuessedForm:
    """Format and compression of an object, guessed from its name.

    `input` is `csv`, `lines`, `json` or `parquet`. `delimiter` is the field delimiter that the name
    implies, if any.
    """

    input: str
    compression: ObjectCompression
    delimiter: str | None


def guess_form(name: str) -> GuessedForm:
    """Guess the form from the suffixes of a name, such as `.jsonl.gz`. Default: uncompressed CSV."""
    suffixes = [each.lower() for each in PurePosixPath(name).suffixes[-2:]]
    packed = _COMPRESSIONS_BY_SUFFIX.get(suffixes[-1]) if suffixes else None
    if packed is not None:
        suffixes.pop()
    suffix = suffixes[-1] if suffixes else ""
    return GuessedForm(
        _INPUTS_BY_SUFFIX.get(suffix, "csv"),
        packed or ObjectCompression.NONE,
        r"\t" if suffix == ".tsv" else None,
    )


_INPUTS_BY_SUFFIX = {
    ".json": "json",
    ".jsonl": "lines",
    ".ndjson": "lines",
    ".parquet": "parquet",
    ".pq": "parquet",
}
_COMPRESSIONS_BY_SUFFIX = {
    ".gz": ObjectCompression.GZIP,
    ".bz2": ObjectCompression.BZIP2,
    ".zst": ObjectCompression.ZSTD,
}
