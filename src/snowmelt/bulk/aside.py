"""Rejects of a COPY as refused rows of the error table of its table."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from snowmelt.bulk.publishing import reject_rows
from snowmelt.bulk.spool import FileSpool
from snowmelt.schema.native import native_schema, to_native
from snowmelt.schema.refused import Origin, Refusal, converted, rows_of

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Iterator, Sequence

    import pyarrow as pa

    from snowmelt.table.loading import OpenLoad
    from snowmelt.table.native import WrittenFile

_CODE = "rejected"


def error_files(
    load: OpenLoad, files: Sequence[WrittenFile], at: dt.datetime
) -> tuple[WrittenFile, ...]:
    """Write rejects, given as files of rejects, as files of the load's error table.

    Raises:
        StageUnavailable: The warehouse cannot be read or written.
    """
    if load.errors is None or load.error_folder is None or not files:
        return ()
    schema = load.errors.schema
    spool = FileSpool(load.warehouse_url, load.error_folder, "errors", native_schema(schema))
    with contextlib.ExitStack() as opened:
        opened.callback(spool.abort)
        for rejects in reject_rows(load.warehouse_url, files):
            rows = converted(schema, _rows(load, rejects, at)).table
            spool.write(to_native(rows, schema))
        return spool.finish()


def _rows(load: OpenLoad, rejects: pa.Table, at: dt.datetime) -> Iterator[dict[str, object]]:
    for each in rejects.to_pylist():
        origin = Origin(
            str(load.table.name), "copy", load.load_id, at, offset_token=each["FILE_NAME"]
        )
        number = each["ROW_NUMBER"]
        refusal = Refusal(
            None if number is None else int(number),
            each["REJECTED_REASON"],
            each["REJECTED_DATA"],
            _CODE,
            each["COLUMN_NAME"],
        )
        yield from rows_of(origin, [refusal])
