"""First records of objects."""

from __future__ import annotations

import gzip
import io
import json
from decimal import Decimal

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
    times = pa.array([1] * 9, pa.timestamp("ns"))
    columns = [list(range(9)), [None] * 9, [Decimal("1.50")] * 9, times, [b"\xff"] * 9, [[1]] * 9]
    # Two columns of one name have their own values.
    pq.write_table(pa.table(columns, ["a", "b", "a", "t", "x", "l"]), file)
    return file.getvalue()


PARQUET_VALUES = ["0", "null", "1.50", "1970-01-01 00:00:00.000000001", "ff", "[1]"]
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
        (
            b'{"n": 12345678901234567890.10, "d": [1.0]}',
            *("json", "use", ["n", "d"], ["12345678901234567890.10", "[1.0]"], 1),
        ),
        (b'{"s": "a\\u00e9"}\n', "lines", "use", ["s"], ["a\u00e9"], 1),
        (b'{"a": ', "json", "use", ["text"], ['{"a": '], 1),
        (write_parquet(), "parquet", "use", ["a", "b", "a", "t", "x", "l"], PARQUET_VALUES, 5),
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
