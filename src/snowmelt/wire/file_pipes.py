"""Messages of Snowpipe's REST API: requests to load files, and reports of loads.

`SimpleIngestManager` of the package `snowflake-ingest` sends and reads them.
"""

from __future__ import annotations

import msgspec


class NamedFile(msgspec.Struct):
    """A file to load. `path` is relative to the location of the pipe. `size` is not used."""

    path: str
    size: int | None = None


class InsertFilesRequest(msgspec.Struct):
    """Body of `insertFiles`."""

    files: list[NamedFile]


class InsertFilesResponse(msgspec.Struct, rename="camel", omit_defaults=True):
    """Response after recording the files. `unmatched_pattern_files` are not in the pipe's location."""

    response_code: str
    request_id: str | None = None
    unmatched_pattern_files: list[str] | None = None
    skipped_files: list[str] | None = None


class FileReport(msgspec.Struct, rename="camel", kw_only=True):
    """Outcome of a file. Times are ISO 8601 in UTC."""

    path: str
    stage_location: str
    file_size: int | None
    time_received: str
    last_insert_time: str
    rows_inserted: int
    rows_parsed: int
    errors_seen: int
    error_limit: int | None
    first_error: str | None
    system_error: str | None
    complete: bool
    status: str


class InsertReportResponse(msgspec.Struct, rename="camel"):
    """Response of `insertReport`."""

    pipe: str
    complete_result: bool
    next_begin_mark: str | None
    files: list[FileReport]


class LoadHistoryResponse(msgspec.Struct, rename="camel"):
    """Response of `loadHistoryScan`. The time range is that of the returned files."""

    pipe: str
    complete_result: bool
    start_time_inclusive: str
    end_time_exclusive: str
    range_start_time: str | None
    range_end_time: str | None
    files: list[FileReport]


class FilePipeError(msgspec.Struct):
    """Body of an error. The official client reads these four fields."""

    code: str
    message: str
    success: bool = False
    data: None = None
