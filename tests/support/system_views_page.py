"""Generates docs/reference/sql/system-views.md's list of views with their columns."""

from __future__ import annotations

from collections.abc import Iterator

from snowmelt.spark.functions import call_log
from snowmelt.spark.sql import system_views

# Meaning of a row of each view.
PURPOSES = {
    "SNOWPIPE_STREAMING_FILE_MIGRATION_HISTORY": "One row for each migration of streamed rows into native files.",
    "SNOWPIPE_STREAMING_CHANNEL_HISTORY": "One row for each event of a channel. EVENT_TYPE is "
    "`opened`, `dropped`, `expired`, `table dropped`, `table undropped` or `table truncated`.",
    "LOAD_HISTORY": "One row for each COPY, INSERT, DELETE, UPDATE or MERGE, each write of a DataFrame, and each "
    "commit of another engine.",
    "COPY_HISTORY": "One row for each file of a COPY.",
    "MAINTENANCE_HISTORY": "One row for each compaction or expiry of snapshots.",
    "EXTERNAL_FUNCTION_CALLS": "One row for each batch that an external function sent. OUTCOME is `ok` if the "
    "response was valid; ROW_ERRORS counts the rows that failed.",
    "DATABASES": "The database, if the role can see it.",
    "SCHEMATA": "One row for each schema.",
    "TABLES": "One row for each table. ROW_COUNT and BYTES include streamed rows that are not migrated.",
    "COLUMNS": "One row for each column.",
    "KAFKA_PARTITIONS": "One row for each partition that `snowmelt kafka run` streams. LAG counts messages that are not committed.",
}  # fmt: skip
_TYPES = {"long": "BIGINT", "double": "DOUBLE", "int32": "INT", "int64": "BIGINT"}


def table() -> str:
    """Return the generated part of the page."""
    parts: list[str] = []
    for name, columns in list_views():
        parts += [f"## {name}", "", PURPOSES[name], "", "| Column | Type |", "| --- | --- |"]
        parts += [f"| {column} | {_TYPES.get(kind, kind.upper())} |" for column, kind in columns]
        parts.append("")
    return "\n".join(parts)


def list_views() -> Iterator[tuple[str, list[tuple[str, str]]]]:
    """Return the views, each with the names and types of its columns."""
    for views in (system_views._HISTORY_VIEWS, system_views._INFORMATION_SCHEMA_VIEWS):
        for name, (columns, _) in views.items():
            lines = [line.split() for line in columns.splitlines() if line]
            yield name, [(column, kind) for column, kind, _ in lines]
        if views is system_views._HISTORY_VIEWS:
            types = [(field.name, str(field.type)) for field in call_log._COLUMNS]
            times = [(name, "timestamp" if name == "START_TIME" else kind) for name, kind in types]
            yield (
                system_views.CALL_LOG_VIEW,
                sorted(times, key=lambda each: each[0] != "START_TIME"),
            )
