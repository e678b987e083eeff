"""Publishing rejects: into their table, and into files of raw records and of reasons."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from snowmelt.bulk.spool import reject_files
from snowmelt.schema.native import native_schema
from snowmelt.storage.opening import open_store
from snowmelt.table.file_io import file_io
from snowmelt.table.rejects import REJECT_SCHEMA, numbered
from snowmelt.table.warehouse import open_warehouse

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from snowmelt.bulk.work import Portioned
    from snowmelt.storage.store import Writer
    from snowmelt.table.native import WrittenFile

_BATCH_ROWS = 8192


def numbered_files(
    portions: Iterable[Portioned],
    first_records: Mapping[int, int],
    *,
    warehouse_url: str,
    folder: str,
) -> list[WrittenFile]:
    """Return files of rejects whose row numbers count in their files, not in their portions.

    Those of a file's first portion are right already; the others are written anew.

    Raises:
        StageUnavailable: The warehouse cannot be read or written.
    """
    files: list[WrittenFile] = []
    for portion in portions:
        first = first_records.get(portion.number)
        if first == 1:
            files += portion.reject_files
        elif portion.reject_files:
            spool = reject_files(warehouse_url, folder, f"{portion.number:05d}-numbered")
            with contextlib.ExitStack() as opened:
                opened.callback(spool.abort)
                for rows in reject_rows(warehouse_url, portion.reject_files):
                    spool.write(numbered(rows, None if first is None else first - 1))
                files += spool.finish()
    return files


def write_reject_files(
    files: Sequence[WrittenFile],
    *,
    warehouse_url: str,
    data_path: str | None,
    exceptions_path: str | None,
) -> None:
    """Write rejected records as they came to one file, and the reasons to another.

    Raises:
        StageUnavailable: A file cannot be written.
    """
    with contextlib.ExitStack() as opened:
        data = None if data_path is None else opened.enter_context(_written(data_path))
        reasons = (
            None if exceptions_path is None else opened.enter_context(_written(exceptions_path))
        )
        for rows in reject_rows(warehouse_url, files):
            if data is not None:
                data.write(b"".join(_raw(rows)))
            if reasons is not None:
                reasons.write("".join(_reasons(rows)).encode())


def _raw(rows: pa.Table) -> Iterator[bytes]:
    texts, exact = rows["REJECTED_DATA"].to_pylist(), rows["REJECTED_BYTES"].to_pylist()
    for text, data in zip(texts, exact, strict=True):
        record: bytes = text.encode() if data is None else data
        yield record if record.endswith(b"\n") else record + b"\n"


def _reasons(rows: pa.Table) -> Iterator[str]:
    names, numbers = rows["FILE_NAME"].to_pylist(), rows["ROW_NUMBER"].to_pylist()
    for name, number, reason in zip(
        names, numbers, rows["REJECTED_REASON"].to_pylist(), strict=True
    ):
        record = "A record" if number is None else f"Record {number}"
        yield f"COPY: {record} of {name} was rejected: {reason}\n"


def reject_rows(warehouse_url: str, files: Iterable[WrittenFile]) -> Iterator[pa.Table]:
    """Read files of rejects, so many rows at a time.

    Raises:
        StageUnavailable: The warehouse cannot be read.
    """
    warehouse, schema = open_warehouse(warehouse_url), native_schema(REJECT_SCHEMA)
    for file in files:
        address = warehouse.address(file.path)
        with file_io(address).new_input(address).open() as stream:
            for batch in pq.ParquetFile(stream).iter_batches(batch_size=_BATCH_ROWS):
                yield pa.Table.from_batches([batch]).cast(schema)


@contextlib.contextmanager
def _written(path: str) -> Iterator[Writer]:
    folder, _, name = path.rpartition("/")
    writer = open_store(folder or ("/" if path.startswith("/") else ".")).writer(name)
    try:
        yield writer
        writer.finish()
    finally:
        writer.abort()
