"""Parsed Select request: statement, input and output format, compression, scan range, dialect."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeAlias

from snowmelt.select.dialect import Dialect


class HeaderMode(StrEnum):
    """What the first record of a CSV object is: data, the columns' names, or neither."""

    NONE = "NONE"
    USE = "USE"
    IGNORE = "IGNORE"


class ObjectCompression(StrEnum):
    """How the whole object is packed."""

    NONE = "NONE"
    GZIP = "GZIP"
    BZIP2 = "BZIP2"
    ZSTD = "ZSTD"


@dataclass(frozen=True, slots=True)
class CsvInput:
    """Delimiters may be several bytes or control characters; an empty quote or comment is none."""

    header: HeaderMode = HeaderMode.NONE
    record_delimiter: bytes = b"\n"
    field_delimiter: bytes = b","
    quote: bytes = b'"'
    escape: bytes = b'"'
    comment: bytes = b"#"
    quoted_record_delimiter: bool = False


@dataclass(frozen=True, slots=True)
class JsonInput:
    """One value a line, or a sequence of values however they are laid out."""

    lines: bool


@dataclass(frozen=True, slots=True)
class ParquetInput:
    """Parquet says everything about itself."""


@dataclass(frozen=True, slots=True)
class CsvOutput:
    """Records as delimited text; `quote_always` quotes what would not need it, too."""

    quote_always: bool = False
    quote: bytes = b'"'
    escape: bytes = b'"'
    field_delimiter: bytes = b","
    record_delimiter: bytes = b"\n"


@dataclass(frozen=True, slots=True)
class JsonOutput:
    """One JSON object a record."""

    record_delimiter: bytes = b"\n"


@dataclass(frozen=True, slots=True)
class ScanRange:
    """Records whose first byte lies in [start, end]; `end` alone means the last `end` bytes."""

    start: int | None = None
    end: int | None = None


InputFormat: TypeAlias = CsvInput | JsonInput | ParquetInput
OutputFormat: TypeAlias = CsvOutput | JsonOutput


@dataclass(frozen=True, slots=True)
class SelectRequest:
    """One SelectObjectContent, whichever way it came."""

    expression: str
    input: InputFormat = field(default_factory=CsvInput)
    output: OutputFormat = field(default_factory=CsvOutput)
    compression: ObjectCompression = ObjectCompression.NONE
    scan_range: ScanRange | None = None
    progress: bool = False
    dialect: Dialect = Dialect.AWS
