"""First records of an object, read without the engine of SELECT, which takes seconds to start."""

from __future__ import annotations

import csv
import io
import itertools
import json
from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pyarrow.parquet as pq

if TYPE_CHECKING:
    from snowmelt.select.formats.byte_streams import ObjectSource

_ROWS = 5
_MAX_BYTES = 64 * 1024
_MAX_CHARACTERS = 1_000


class _SourceFile(io.RawIOBase):
    """An object as a file."""

    def __init__(self, source: ObjectSource) -> None:
        self._source = source
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._source.size}
        self._position = base[whence] + offset
        return self._position

    def tell(self) -> int:
        return self._position

    def readinto(self, buffer: Any) -> int:
        count = self._source.read_into(self._position, memoryview(buffer).cast("B"))
        self._position += count
        return count


def read_first_records(
    source: ObjectSource, form: str, *, header: str, delimiter: str, compression: str | None
) -> tuple[list[str], list[list[str]]]:
    """Return columns and first records. `header` is `use`, `ignore` or `none`, for CSV."""
    file = _SourceFile(source)
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
        lines = itertools.islice((each for each in text.splitlines() if each.strip()), _ROWS)
        return _to_table(_parse_json(each) for each in lines)
    records = list(itertools.islice(csv.reader(io.StringIO(text), delimiter=delimiter), _ROWS + 1))
    first, rest = (records[0], records[1:]) if records else ([], [])
    if header == "none":
        rest = records[:_ROWS]
    if header != "use":
        first = [f"_{number + 1}" for number in range(max(map(len, rest), default=0))]
    return first, [[each[:_MAX_CHARACTERS] for each in record] for record in rest]


def _read_parquet(file: _SourceFile) -> tuple[list[str], list[list[str]]]:
    with pq.ParquetFile(cast("Any", file)) as opened:
        names = list(opened.schema_arrow.names)
        batch = next(opened.iter_batches(batch_size=_ROWS), None)
        records = [] if batch is None else batch.to_pylist()
    return names, [[_to_text(record[name]) for name in names] for record in records]


def _read_json(text: str) -> tuple[list[str], list[list[str]]]:
    try:
        found = json.loads(text)
    except ValueError:
        # It is longer than what was read.
        return ["text"], [[text[:_MAX_CHARACTERS]]]
    return _to_table(found[:_ROWS] if isinstance(found, list) else [found])


def _parse_json(line: str) -> object:
    with suppress(ValueError):
        return json.loads(line)
    return line


def _to_table(records: Iterable[object]) -> tuple[list[str], list[list[str]]]:
    found = [each if isinstance(each, dict) else {"record": each} for each in records]
    columns = list(dict.fromkeys(str(name) for record in found for name in record))
    rows = [
        [_to_text(record[name]) if name in record else "" for name in columns] for record in found
    ]
    return columns, rows


def _to_text(value: object) -> str:
    if value is None:
        return "null"
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return text[:_MAX_CHARACTERS]
