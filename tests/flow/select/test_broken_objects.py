"""SELECT of objects that are invalid, or that change while they are read."""

from __future__ import annotations

import bz2
import gzip
import http.client
import io
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fixtures.s3 import S3Process
from support.select_wire import ask, begin, request_body, understood

MIB = 1024 * 1024
LINES = "<JSON><Type>LINES</Type></JSON>"
ROWS = b"".join(b"%d,%d\n" % (n, n * 7) for n in range(200_000))
# More than fits in the buffers between a service and a client that does not read.
LARGE = ROWS * 10


@pytest.fixture
def put(s3: S3Process, bucket: str) -> Callable[..., None]:
    client = s3.client()

    def put_object(content: bytes, key: str = "object") -> None:
        client.put_object(Bucket=bucket, Key=key, Body=content)

    return put_object


@pytest.mark.parametrize(
    ("content", "output"),
    [
        (b'a,"b\nc,d\n', "CSVEscapingRecordDelimiter"),
        (b'a,b"c\nd,e\n', b'a,"b""c"\nd,e\n'),
        (b"a\n\n\nb", b"a\nb\n"),
        (b"a,b,c\nd\n,,\n", b"a,b,c\nd\n,,\n"),
        (b"a\0b,c\n", b"a\0b,c\n"),
        (b"\xef\xbb\xbfa,b\n", b"a,b\n"),
        (b"", b""),
        (b"\n\n", b""),
    ],
)
def test_odd_csv_goes_through_or_is_refused(
    s3: S3Process, bucket: str, put: Callable[..., None], content: bytes, output: bytes | str
) -> None:
    put(content)
    found = ask(s3, bucket, "object", request_body("select * from s3object"))
    assert output == (found.output if found.whole else found.code)


def test_text_that_is_no_utf8_is_refused_with_its_place(
    s3: S3Process, bucket: str, put: Callable[..., None]
) -> None:
    put(b"a,b\n" * 10 + b"c,\xff\xfe\n")
    for sql in ("select * from s3object", "select _1 from s3object where _2 > 'a'"):
        found = ask(s3, bucket, "object", request_body(sql))
        assert found.code == "InvalidTextEncoding"
        assert "42" in found.message
    passed = ask(
        s3, bucket, "object", request_body("select * from stdin;"), x_snowmelt_select_dialect="ceph"
    )
    assert passed.output.endswith(b"c,\xff\xfe\n")


def test_a_character_at_the_edge_of_a_block_is_no_error(
    s3: S3Process, bucket: str, put: Callable[..., None]
) -> None:
    row = "é" * 99 + "\n"
    put(row.encode() * 12_000)
    found = ask(s3, bucket, "object", request_body("select * from s3object where _1 like '%é'"))
    assert found.output == row.encode() * 12_000


@pytest.mark.parametrize("source", ["<CSV/>", LINES], ids=["csv", "lines"])
def test_a_record_of_ten_mebibytes_is_read(
    s3: S3Process, bucket: str, put: Callable[..., None], source: str
) -> None:
    long = b"x" * (10 * MIB)
    content = b"a\n%s\nb\n" if source == "<CSV/>" else b'{"v":"a"}\n{"v":"%s"}\n{"v":"b"}\n'
    put(content % long)
    name = "_1" if source == "<CSV/>" else "v"
    for sql, output in (
        (f"select s.{name} from s3object s", b"a\n" + long + b"\nb\n"),
        (f"select char_length(s.{name}) from s3object s", b"1\n%d\n1\n" % len(long)),
    ):
        found = ask(s3, bucket, "object", request_body(sql, source))
        assert found.whole, found.message
        assert found.output == output


@pytest.mark.parametrize("source", ["<CSV/>", LINES], ids=["csv", "lines"])
def test_a_record_beyond_the_limit_is_refused_behind_those_before(
    s3: S3Process, bucket: str, put: Callable[..., None], source: str
) -> None:
    long = b"x" * (20 * MIB)
    content = b"1\n2\n%s\n3\n" if source == "<CSV/>" else b'{"_1":1}\n{"_1":2}\n{"_1":"%s"}\n'
    put(content % long)
    found = ask(s3, bucket, "object", request_body("select s._1 from s3object s", source))
    assert found.code == "OverMaxRecordSize"
    assert "select_record_bytes" in found.message
    assert found.output in {b"", b"1\n2\n"}


@pytest.mark.parametrize(
    ("name", "pack"), [("GZIP", gzip.compress), ("BZIP2", bz2.compress), ("ZSTD", None)]
)
def test_compressed_objects_that_break_off_say_so_behind_what_was_whole(
    s3: S3Process,
    bucket: str,
    put: Callable[..., None],
    name: str,
    pack: Callable[..., bytes] | None,
) -> None:
    packed = pack(ROWS) if pack else pa.compress(ROWS, codec="zstd", asbytes=True)
    form = f"<CompressionType>{name}</CompressionType><CSV/>"
    body = request_body("select * from s3object", form)
    for content in (packed[: len(packed) // 2], packed[:-3], packed[:5]):
        put(content)
        found = ask(s3, bucket, "object", body)
        assert found.code == "TruncatedInput"
        assert ROWS.startswith(found.output)
    put(packed + b"and something else")
    found = ask(s3, bucket, "object", body)
    assert found.code == "TruncatedInput"
    put(ROWS)
    assert ask(s3, bucket, "object", body).code == "InvalidCompressionFormat"
    put(packed + packed)
    assert ask(s3, bucket, "object", body).output == ROWS * 2


def test_json_and_parquet_that_are_none_say_where(
    s3: S3Process, bucket: str, put: Callable[..., None]
) -> None:
    put(b'{"a":1}\n{"a":\n{"a":3}\n')
    found = ask(s3, bucket, "object", request_body("select s.a from s3object s", LINES))
    assert found.code == "JSONParsingError"
    assert "byte 8" in found.message
    buffer = io.BytesIO()
    pq.write_table(pa.table({"a": list(range(1000))}), buffer)
    whole = buffer.getvalue()
    for content in (whole[:-4], whole[: len(whole) // 2], whole[:4] + b"\xff" * 900 + whole[904:]):
        put(content)
        found = ask(s3, bucket, "object", request_body("select a from s3object", "<Parquet/>"))
        assert found.code == "ParquetParsingError", found


def test_an_object_replaced_while_it_is_read_is_read_to_the_end_as_it_was(
    s3: S3Process, bucket: str, put: Callable[..., None]
) -> None:
    put(LARGE)
    connection, answer = begin(s3, bucket, "object", request_body("select * from s3object"))
    first = answer.read(1000)
    put(b"other\n")
    found = understood(answer.status, first + answer.read())
    connection.close()
    assert found.whole
    assert found.output == LARGE
    again = ask(s3, bucket, "object", request_body("select * from s3object"))
    assert again.output == b"other\n"


def test_an_object_deleted_while_it_is_read_is_read_to_the_end(
    s3: S3Process, bucket: str, put: Callable[..., None]
) -> None:
    put(LARGE)
    connection, answer = begin(s3, bucket, "object", request_body("select * from s3object"))
    first = answer.read(1000)
    s3.client().delete_object(Bucket=bucket, Key="object")
    found = understood(answer.status, first + answer.read())
    connection.close()
    assert found.output == LARGE
    assert ask(s3, bucket, "object", request_body("select * from s3object")).code == "NoSuchKey"


@pytest.fixture
def mounted(own_s3: S3Process, tmp_path: Path) -> tuple[S3Process, Path]:
    """An endpoint in front of a folder, and the folder."""
    folder = tmp_path / "folder"
    folder.mkdir()
    own_s3.start(s3_backend=f"front={folder}")
    own_s3.add_user("admin", "accountadmin")
    return own_s3, folder


def test_a_file_behind_a_bucket_that_changes_under_a_query_ends_it(
    mounted: tuple[S3Process, Path],
) -> None:
    s3, folder = mounted
    path = folder / "object"
    body = request_body("select * from s3object")

    def begun() -> tuple[http.client.HTTPConnection, http.client.HTTPResponse]:
        path.write_bytes(LARGE)
        return begin(s3, "front", "object", body)

    def replaced() -> None:
        (folder / "new").write_bytes(b"other\n")
        (folder / "new").replace(path)

    def cut() -> None:
        os.truncate(path, 100_000)

    def appended() -> None:
        with path.open("ab") as file:
            file.write(b"more\n")

    def overwritten() -> None:
        with path.open("r+b") as file:
            file.seek(-10, os.SEEK_END)
            file.write(b"other\n")

    harmless, harmful = (replaced, path.unlink, appended), (cut, overwritten)
    changes = [(each, True) for each in harmless] + [(each, False) for each in harmful]
    for change, ends_well in changes:
        connection, answer = begun()
        first = answer.read(1000)
        change()
        found = understood(answer.status, first + answer.read())
        connection.close()
        assert found.whole is ends_well, change
        assert LARGE.startswith(found.output)
        if ends_well:
            assert found.output == LARGE
        else:
            assert found.code == "InvalidDataSource"


def test_many_threads_that_ask_for_broken_objects_leave_nothing_behind(
    s3: S3Process, bucket: str, put: Callable[..., None]
) -> None:
    put(gzip.compress(ROWS)[:-3])
    form = "<CompressionType>GZIP</CompressionType><CSV/>"
    body = request_body("select count(*) from s3object", form)
    found = []
    threads = [
        threading.Thread(target=lambda: found.append(ask(s3, bucket, "object", body)))
        for _ in range(20)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [each.code for each in found] == ["TruncatedInput"] * 20
