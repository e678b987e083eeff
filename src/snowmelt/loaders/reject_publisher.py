"""Write rejects to the reject table, to reject files, or to the error table.

Reject files contain raw records or reasons. If a COPY specifies no target for rejects, they become
rows of the table's error table.
"""

from __future__ import annotations

import contextlib
import datetime as dt
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from snowmelt.errors import AlreadyExists
from snowmelt.load.copy_ast import RejectOptions
from snowmelt.loaders.row_and_reject_files import FileSpool, open_reject_spool
from snowmelt.schema.error_table import (
    ErrorRow,
    ErrorRowOrigin,
    convert_error_table_rows,
    make_error_table_rows,
)
from snowmelt.schema.iceberg_table_form import native_schema, to_native_table
from snowmelt.storage.overwrite_protection import (
    CommandOutput,
    check_outputs,
    make_output_exists_error,
    to_local_path,
)
from snowmelt.storage.store import ObjectWriter, Store
from snowmelt.storage.store_factory import open_store
from snowmelt.table.file_io import make_file_io
from snowmelt.table.native_file_writer import WrittenFile
from snowmelt.table.rejects import REJECT_SCHEMA, offset_row_numbers
from snowmelt.table.warehouse_paths import open_warehouse

if TYPE_CHECKING:
    from snowmelt.load.planner import LoadPlan
    from snowmelt.loaders.load_task_execution import PortionResult
    from snowmelt.table.load_commit import OpenLoad

_BATCH_ROWS = 8192
_REJECTED_DATA_OPTION, _EXCEPTIONS_OPTION = "REJECTED DATA", "EXCEPTIONS"
_EXISTING_FILE_REMEDY = "Name a new one, or add OVERWRITE after the path to replace it"


def renumber_reject_files(
    results: Iterable[PortionResult],
    first_records: Mapping[int, int],
    *,
    warehouse_url: str,
    folder: str,
) -> list[WrittenFile]:
    """Convert record numbers in reject files to numbers from the start of each input file.

    The reject files of a portion that starts at record 1 are unchanged. The others are rewritten.
    If a portion's first record number is unknown, its numbers become NULL.

    Raises:
        StageUnavailable: If the warehouse cannot be read or written.
    """
    files: list[WrittenFile] = []
    for portion in results:
        first = first_records.get(portion.number)
        if first == 1:
            files += portion.reject_files
        elif portion.reject_files:
            spool = open_reject_spool(warehouse_url, folder, f"{portion.number:05d}-numbered")
            with contextlib.ExitStack() as opened:
                opened.callback(spool.abort_current_file)
                for rows in read_reject_rows(warehouse_url, portion.reject_files):
                    spool.write(offset_row_numbers(rows, None if first is None else first - 1))
                files += spool.finish()
    return files


def write_reject_files(
    files: Sequence[WrittenFile],
    *,
    warehouse_url: str,
    options: RejectOptions,
    terminator: bytes = b"\n",
) -> None:
    """Write the raw rejected records to one file, each with `terminator`, and the reasons to another.

    Raises:
        OutputRefused: If a file was created since the load began.
        StageUnavailable: If a file cannot be written.
    """
    with contextlib.ExitStack() as opened:
        writers = {
            each.option: opened.enter_context(_writing_output(each))
            for each in _list_outputs(options)
        }
        data, reasons = writers.get(_REJECTED_DATA_OPTION), writers.get(_EXCEPTIONS_OPTION)
        for rows in read_reject_rows(warehouse_url, files):
            if data is not None:
                data.write(b"".join(_iter_raw_records(rows, terminator)))
            if reasons is not None:
                reasons.write("".join(_iter_reason_lines(rows)).encode())


def _iter_raw_records(rows: pa.Table, terminator: bytes) -> Iterator[bytes]:
    texts, exact = rows["REJECTED_DATA"].to_pylist(), rows["REJECTED_BYTES"].to_pylist()
    for text, data in zip(texts, exact, strict=True):
        record: bytes = text.encode() if data is None else data
        yield record if record.endswith(terminator) else record + terminator


def _iter_reason_lines(rows: pa.Table) -> Iterator[str]:
    names, numbers = rows["FILE_NAME"].to_pylist(), rows["ROW_NUMBER"].to_pylist()
    for name, number, reason in zip(
        names, numbers, rows["REJECTED_REASON"].to_pylist(), strict=True
    ):
        record = "A record" if number is None else f"Record {number}"
        yield f"COPY: {record} of {name} was rejected: {reason}\n"


def read_reject_rows(warehouse_url: str, files: Iterable[WrittenFile]) -> Iterator[pa.Table]:
    """Yield the rows of reject files as tables of limited size.

    Raises:
        StageUnavailable: If the warehouse cannot be read.
    """
    warehouse, schema = open_warehouse(warehouse_url), native_schema(REJECT_SCHEMA)
    for file in files:
        address = warehouse.to_address(file.path)
        with make_file_io(address).new_input(address).open() as stream:
            for batch in pq.ParquetFile(stream).iter_batches(batch_size=_BATCH_ROWS):
                yield pa.Table.from_batches([batch]).cast(schema)


def check_reject_files(
    options: RejectOptions, plan: LoadPlan, *, reserved_paths: Sequence[str]
) -> None:
    """Verify before a load that its reject files replace no file in use.

    Raises:
        OutputRefused: If a reject file is an input, equals the other reject file, belongs to the
            deployment, or exists and OVERWRITE is not set.
        StageUnavailable: If the store of a file does not respond.
    """
    outputs = _list_outputs(options)
    inputs = {task.portion.file.path for task in plan.tasks}
    inputs |= {file.path for file in plan.skipped_files}
    check_outputs(outputs, inputs=inputs, reserved=reserved_paths)
    for each in outputs:
        if to_local_path(each.path) is None and not each.overwrite:
            store, name = _open_parent_store(each.path)
            if store.head(name) is not None:
                raise each.make_error(f"the object already exists. {_EXISTING_FILE_REMEDY}")


def truncate_reject_files(options: RejectOptions) -> None:
    """Truncate the reject files of a load without rejects, if OVERWRITE allows it.

    Raises:
        StageUnavailable: If a file cannot be written.
    """
    for each in _list_outputs(options):
        if each.overwrite:
            store, name = _open_parent_store(each.path)
            if store.head(name) is not None:
                store.put(name, b"")


def _list_outputs(options: RejectOptions) -> list[CommandOutput]:
    given = (
        (_REJECTED_DATA_OPTION, options.data_path, options.data_overwrite),
        (_EXCEPTIONS_OPTION, options.exceptions_path, options.exceptions_overwrite),
    )
    return [
        CommandOutput(option, path, overwrite=overwrite, remedy="add OVERWRITE after the path")
        for option, path, overwrite in given
        if path is not None
    ]


def _open_parent_store(path: str) -> tuple[Store, str]:
    folder, _, name = path.rpartition("/")
    return open_store(folder or ("/" if path.startswith("/") else ".")), name


@contextlib.contextmanager
def _writing_output(output: CommandOutput) -> Iterator[ObjectWriter]:
    store, name = _open_parent_store(output.path)
    writer = store.open_writer(name)
    try:
        yield writer
        try:
            writer.finish(create_only=not output.overwrite)
        except AlreadyExists:
            raise make_output_exists_error(output) from None
    finally:
        writer.abort()


# Conversion of rejects of a COPY to rows of the error table.

_REJECT_ERROR_CODE = "rejected"


def write_error_table_files(
    load: OpenLoad, files: Sequence[WrittenFile], rejected_at: dt.datetime
) -> tuple[WrittenFile, ...]:
    """Convert reject files to native files of the error table, as part of a load.

    Raises:
        StageUnavailable: If the warehouse cannot be read or written.
    """
    if load.errors is None or load.error_folder is None or not files:
        return ()
    schema = load.errors.schema
    spool = FileSpool(load.warehouse_url, load.error_folder, "errors", native_schema(schema))
    with contextlib.ExitStack() as opened:
        opened.callback(spool.abort_current_file)
        for rejects in read_reject_rows(load.warehouse_url, files):
            rows = convert_error_table_rows(
                schema, _make_error_rows(load, rejects, rejected_at)
            ).table
            spool.write(to_native_table(rows, schema))
        return spool.finish()


def _make_error_rows(
    load: OpenLoad, rejects: pa.Table, rejected_at: dt.datetime
) -> Iterator[dict[str, object]]:
    for each in rejects.to_pylist():
        origin = ErrorRowOrigin(
            str(load.table.name), "copy", load.load_id, rejected_at, offset_token=each["FILE_NAME"]
        )
        number = each["ROW_NUMBER"]
        refusal = ErrorRow(
            None if number is None else int(number),
            each["REJECTED_REASON"],
            each["REJECTED_DATA"],
            _REJECT_ERROR_CODE,
            each["COLUMN_NAME"],
        )
        yield from make_error_table_rows(origin, [refusal])
