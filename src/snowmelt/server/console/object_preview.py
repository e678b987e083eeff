"""Read the first records of an object without the S3 Select engine, which starts slowly."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, Any, cast

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from snowmelt.schema.conversion.arrow_to_python import to_python_values
from snowmelt.storage.object_file import ObjectFile

if TYPE_CHECKING:
    from snowmelt.select.formats.byte_streams import ObjectSource

_ROWS = 5
_MAX_BYTES = 64 * 1024
_MAX_CHARACTERS = 1_000
# Keep values as written, so that numbers keep their digits.
_read_object = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_read_items = msgspec.json.Decoder(list[msgspec.Raw]).decode
_read_value = msgspec.json.Decoder(msgspec.Raw).decode
_read_string = msgspec.json.Decoder(str).decode


def read_first_records(
    source: ObjectSource, form: str, *, header: str, delimiter: str, compression: str | None
) -> tuple[list[str], list[list[str]]]:
    """Return the columns and the first records of an object.

    `header` is the header mode of a CSV object: `use`, `ignore` or `none`.
    """
    file = ObjectFile(source)
    if form == "parquet":
        return _read_parquet(file)
    stream: Any = file if compression is None else pa.CompressedInputStream(file, compression)
    data = stream.read(_MAX_BYTES)
    is_cut = len(data) == _MAX_BYTES
    text = bytes(data).decode("utf-8-sig", "replace")
    if form == "json":
        return _read_json(text)
    if is_cut:
        text = text[: text.rfind("\n") + 1] or text
    if form == "lines":
        return _to_table(islice((each for each in text.splitlines() if each.strip()), _ROWS))
    records = list(islice(csv.reader(io.StringIO(text), delimiter=delimiter), _ROWS + 1))
    first, rest = (records[0], records[1:]) if records else ([], [])
    if header == "none":
        rest = records[:_ROWS]
    if header != "use":
        first = [f"_{number + 1}" for number in range(max(map(len, rest), default=0))]
    return first, [[each[:_MAX_CHARACTERS] for each in record] for record in rest]


def _read_parquet(file: ObjectFile) -> tuple[list[str], list[list[str]]]:
    with pq.ParquetFile(cast("Any", file)) as opened:
        names = list(opened.schema_arrow.names)
        batch = next(opened.iter_batches(batch_size=_ROWS), None)
        columns = [] if batch is None else [_to_texts(each) for each in batch.columns]
    return names, [list(record) for record in zip(*columns, strict=True)]


def _to_texts(array: pa.Array) -> list[str]:
    """Return a Parquet column as text: bytes in hexadecimal, nested values as JSON."""
    try:
        # Convert in Arrow, because Python's timestamps have no nanoseconds.
        values = array.cast(pa.string()).to_pylist()
    except pa.ArrowException:
        values = [_to_text(value) for value in to_python_values(array)]
    return ["null" if each is None else each[:_MAX_CHARACTERS] for each in values]


def _read_json(text: str) -> tuple[list[str], list[list[str]]]:
    try:
        return _to_table(islice(_read_items(text), _ROWS))
    except msgspec.DecodeError:
        with suppress(msgspec.DecodeError):
            return _to_table([bytes(_read_value(text))])
    # The first value is longer than the bytes that were read.
    return ["text"], [[text[:_MAX_CHARACTERS]]]


def _to_table(records: Iterable[str | bytes]) -> tuple[list[str], list[list[str]]]:
    """Return the columns of JSON records, and their values as written."""
    found = [_split_fields(each) for each in records]
    columns = list(dict.fromkeys(name for record in found for name in record))
    return columns, [[record.get(name, "") for name in columns] for record in found]


def _split_fields(record: str | bytes) -> dict[str, str]:
    try:
        return {name: _show_json(value) for name, value in _read_object(record).items()}
    except msgspec.DecodeError:
        text = record if isinstance(record, str) else record.decode()
        return {"record": text[:_MAX_CHARACTERS]}


def _show_json(value: msgspec.Raw) -> str:
    written = bytes(value)
    text = _read_string(written) if written.startswith(b'"') else written.decode()
    return text[:_MAX_CHARACTERS]


def _to_text(value: object) -> str | None:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, bytes):
        return value.hex()
    return json.dumps(value, ensure_ascii=False, default=str)
