"""Child process of the console: runs SELECTs on objects, replays rejected rows, and traces rows."""

from __future__ import annotations

import contextlib
import os
from typing import IO, Any, TypeAlias

import msgspec

from snowmelt.buckets.bucket import Bucket
from snowmelt.buckets.bucket_registry import BucketRegistry, mount_backends
from snowmelt.catalog.db.database import Database, open_and_upgrade_database
from snowmelt.catalog.objects import s3_buckets
from snowmelt.catalog.security.encryption_keys import open_or_create_keyring
from snowmelt.catalog.sql.cursor import parse_table_name
from snowmelt.clock import SystemClock
from snowmelt.config import Settings, set_numba_cache_dir
from snowmelt.errors import PrivilegeMissing
from snowmelt.server.console.workers import (
    CallsResult,
    CallsTask,
    FailedCall,
    FunctionCalls,
    PreviewResult,
    PreviewTask,
    ReplayTask,
    SelectResult,
    SelectTask,
    TraceTask,
)
from snowmelt.server.request_process import (
    ProcessResponse,
    make_failure,
    run_request_child,
    serve_requests,
    write_response,
)
from snowmelt.storage.local_store import LocalStore
from snowmelt.storage.store_factory import open_store

_NICE = 5
_MAX_RESULT_BYTES = 4 * 1024 * 1024
_MAX_LINE_CHARACTERS = 10_000
# Maximum number of call logs to read. Each one is an object in the warehouse.
_MAX_CALL_LOGS = 1_000
_MAX_FAILED_CALLS = 50
_clock = SystemClock()
_Task: TypeAlias = SelectTask | PreviewTask | ReplayTask | TraceTask | CallsTask


def run_tasks(settings: Settings, requests: IO[bytes], responses: IO[bytes]) -> None:
    """Run the tasks in `requests` until it ends or no task arrives for five minutes."""
    os.nice(_NICE)
    # Use the kernels that the service has compiled.
    set_numba_cache_dir(settings.data_dir / "compiled")
    database = open_and_upgrade_database(settings.catalog_url)
    mounts = mount_backends(database, _clock, settings.s3_backend)
    registry = BucketRegistry(database, LocalStore(settings.objects_dir), _clock, mounts=mounts)
    for message in serve_requests(requests, responses):
        task: _Task = msgspec.json.decode(message, type=_Task)
        try:
            if isinstance(task, SelectTask):
                result: object = run_select(settings, registry, task)
            elif isinstance(task, PreviewTask):
                result = read_preview(registry, task)
            elif isinstance(task, TraceTask):
                result = run_trace(settings, database, task)
            elif isinstance(task, CallsTask):
                result = read_calls(settings, task)
            else:
                result = run_replay(settings, database, task)
            response = ProcessResponse(msgspec.json.encode(result, enc_hook=str))
        except Exception as error:  # noqa: BLE001 - the process goes on
            response = make_failure(error, type(task).__name__)
        write_response(responses, response)


def run_select(settings: Settings, registry: BucketRegistry, task: SelectTask) -> SelectResult:
    """Run a SELECT on an object."""
    return _run(settings, _open_bucket(registry, task), task, task.sql)


def read_preview(registry: BucketRegistry, task: PreviewTask) -> PreviewResult:
    """Return columns and first records of an object, from its first bytes or its Parquet footer."""
    from snowmelt.select.request import guess_form
    from snowmelt.server.console.object_preview import read_first_records
    from snowmelt.server.object_source import make_object_source

    guessed = guess_form(task.key)
    codecs = {"GZIP": "gzip", "BZIP2": "bz2", "ZSTD": "zstd"}
    source = make_object_source(task.key, _open_bucket(registry, task).open(task.key)[1])
    with contextlib.closing(source):
        columns, rows = read_first_records(
            source,
            task.form or guessed.input,
            header=task.header,
            delimiter="\t" if guessed.delimiter else ",",
            compression=codecs.get(guessed.compression),
        )
    return PreviewResult(columns, rows)


def _open_bucket(registry: BucketRegistry, task: SelectTask | PreviewTask) -> Bucket:
    with registry.database.reading() as connection:
        record = s3_buckets.find_bucket(connection, task.bucket)
        privileges = s3_buckets.bucket_privileges(connection, task.roles, record)
    if not privileges.allows("READ", task.key.encode()):
        raise PrivilegeMissing(
            role=task.roles[0], privilege="READ", object=f"{task.bucket}/{task.key}"
        )
    return registry.access_with_privileges("", task.bucket, privileges).bucket


def _run(settings: Settings, bucket: Bucket, task: SelectTask, sql: str) -> SelectResult:
    # Imported here, because other tasks do not need the S3 Select engine.
    from snowmelt.select.execution.engine import open_select
    from snowmelt.select.request import (
        CsvInput,
        HeaderMode,
        JsonInput,
        JsonOutput,
        ParquetInput,
        SelectRequest,
        guess_form,
    )
    from snowmelt.select.resource_limits import EngineSettings
    from snowmelt.server.object_source import make_object_source

    guessed = guess_form(task.key)
    form = task.form or guessed.input
    csv = CsvInput(header=HeaderMode(task.header.upper()))
    if guessed.delimiter:
        csv = CsvInput(header=HeaderMode(task.header.upper()), field_delimiter=b"\t")
    read: dict[str, JsonInput | ParquetInput] = {
        "parquet": ParquetInput(),
        "json": JsonInput(lines=False),
        "lines": JsonInput(lines=True),
    }
    request = SelectRequest(
        expression=sql,
        input=read.get(form, csv),
        output=JsonOutput(),
        compression=guessed.compression,
    )
    began = _clock.monotonic()
    source = make_object_source(task.key, bucket.open(task.key)[1])
    execution = open_select(request, source, settings=EngineSettings.from_settings(settings))
    rows: list[str] = []
    rest, size, complete = b"", 0, True
    with contextlib.closing(execution), contextlib.closing(execution.stream_payloads()) as payloads:
        for payload in payloads:
            size += len(payload)
            *lines, rest = (rest + bytes(payload)).split(b"\n")
            rows += [line.decode("utf-8", "replace")[:_MAX_LINE_CHARACTERS] for line in lines]
            if len(rows) > task.max_rows or size > _MAX_RESULT_BYTES:
                complete = False
                break
        scanned, returned = execution.scanned_bytes, execution.returned_bytes
    seconds = _clock.monotonic() - began
    return SelectResult(rows[: task.max_rows], complete, scanned, returned, seconds)


def run_replay(settings: Settings, database: Database, task: ReplayTask) -> str:
    """Replay the rejected rows of a table. Return the result as sentences."""
    from snowmelt.client.client import Client
    from snowmelt.loaders.error_replay import ErrorReplay, ErrorTableReadContext, ReplayOptions

    keyring = open_or_create_keyring(database, settings.keys_dir)
    context = ErrorTableReadContext(database, keyring, open_store(settings.stage_url), _clock)
    options = ReplayOptions(table=parse_table_name(task.table))
    replay = ErrorReplay(options, context)
    if task.token is None:
        result = replay.dry_run()
    else:
        with Client(task.url, oauth=task.token) as client:
            result = replay.run(client, None)
    what = "Rows to insert" if task.token is None else "Inserted rows"
    lines = [f"{what}: {result.inserted:,}. Rejected again: {result.rejected:,}."]
    if result.already_inserted:
        lines.append(f"Rows inserted by earlier replays: {result.already_inserted:,}.")
    lines += [f"{count:,} × {reason}" for reason, count in result.reject_reasons.most_common(20)]
    return "\n".join(lines)


def run_trace(settings: Settings, database: Database, task: TraceTask) -> list[dict[str, Any]]:
    """Return traces as JSON objects: chunks of a channel, or rows that satisfy a condition."""
    from snowmelt.integrity.trace import Tracer
    from snowmelt.table.warehouse_paths import open_warehouse

    tracer = Tracer(
        database,
        open_or_create_keyring(database, settings.keys_dir),
        open_store(settings.stage_url),
        open_warehouse(settings.warehouse_url),
        parse_table_name(task.table),
    )
    if task.condition:
        rows = tracer.trace_rows(task.condition, limit=task.limit)
        return [row.to_dict() for row in rows]
    chunks = tracer.trace_channel(task.channel, task.token or None, limit=task.limit)
    return [chunk.to_dict() for chunk in chunks]


def read_calls(settings: Settings, task: CallsTask) -> CallsResult:
    """Aggregate the newest records of the call log by function."""
    from snowmelt.spark.functions.call_log import list_call_logs, read_call_log
    from snowmelt.table.warehouse_paths import open_warehouse

    store = open_warehouse(settings.warehouse_url).store
    totals: dict[str, FunctionCalls] = {}
    durations: dict[str, list[float]] = {}
    failed: list[FailedCall] = []
    logs = sorted(list_call_logs(store, task.since), reverse=True)
    for record in (each for path in logs[:_MAX_CALL_LOGS] for each in read_call_log(store, path)):
        if task.functions is not None and record.function not in task.functions:
            continue
        found = totals.setdefault(record.function, FunctionCalls(record.function))
        found.batches += 1
        found.rows += record.rows
        found.retried += record.attempts > 1
        found.row_errors += record.row_errors
        found.bytes_sent += record.bytes_out
        found.bytes_received += record.bytes_in
        durations.setdefault(record.function, []).append(record.ms_calling)
        if record.error is not None:
            found.failed += 1
            failed.append(
                FailedCall(
                    record.function,
                    record.batch_id,
                    record.query_id,
                    record.started_at,
                    record.attempts,
                    record.status,
                    record.error,
                )
            )
    for name, found in totals.items():
        times = sorted(durations[name])
        found.p50_ms, found.p99_ms = times[len(times) // 2], times[len(times) * 99 // 100]
    failed.sort(key=lambda each: each.started_at, reverse=True)
    by_name = sorted(totals.values(), key=lambda each: each.function)
    return CallsResult(by_name, failed[:_MAX_FAILED_CALLS], len(logs) <= _MAX_CALL_LOGS)


if __name__ == "__main__":
    run_request_child(run_tasks)
