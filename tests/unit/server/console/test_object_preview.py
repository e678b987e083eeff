"""First records of objects."""

from __future__ import annotations

import gzip
import io
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from snowmelt.server.console.object_preview import read_first_records


class Source:
    """Bytes as an object."""

    name = "object"

    def __init__(self, data: bytes) -> None:
        self._data = data
        self.size = len(data)

    def read_into(self, offset: int, view: memoryview) -> int:
        found = self._data[offset : offset + len(view)]
        view[: len(found)] = found
        return len(found)

    def close(self) -> None:
        """Do nothing."""


def write_parquet() -> bytes:
    file = io.BytesIO()
    pq.write_table(pa.table({"a": list(range(9)), "b": [None] * 9}), file)
    return file.getvalue()


LINES = b"".join(json.dumps({"a": number, "b": [number]}).encode() + b"\n" for number in range(9))


@pytest.mark.parametrize(
    ("data", "form", "header", "columns", "first", "count"),
    [
        (b'\xef\xbb\xbfa,b\n1,"x,y"\n', "csv", "use", ["a", "b"], ["1", "x,y"], 1),
        (b"a,b\n1,2\n", "csv", "none", ["_1", "_2"], ["a", "b"], 2),
        (b"a,b\n1,2\n", "csv", "ignore", ["_1", "_2"], ["1", "2"], 1),
        (b"a,b\n" + b"1,2\n" * 40_000, "csv", "use", ["a", "b"], ["1", "2"], 5),
        (b"", "csv", "use", [], None, 0),
        (LINES, "lines", "use", ["a", "b"], ["0", "[0]"], 5),
        (b"no json\n", "lines", "use", ["record"], ["no json"], 1),
        (b'[{"a": 1}, {"b": null}]', "json", "use", ["a", "b"], ["1", ""], 2),
        (b'{"a": ', "json", "use", ["text"], ['{"a": '], 1),
        (write_parquet(), "parquet", "use", ["a", "b"], ["0", "null"], 5),
    ],
)
def test_the_first_records_have_their_columns(
    data: bytes, form: str, header: str, columns: list[str], first: list[str] | None, count: int
) -> None:
    for compression in (None, "gzip"):
        if compression and form == "parquet":
            continue
        source = Source(gzip.compress(data) if compression else data)
        found = read_first_records(
            source, form, header=header, delimiter=",", compression=compression
        )
        assert found[0] == columns
        assert next(iter(found[1]), None) == first
        assert len(found[1]) == count
