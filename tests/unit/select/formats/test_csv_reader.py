"""CSV objects: the rules of each dialect, and answers that do not depend on how they are read."""

from __future__ import annotations

import gzip
import itertools
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from snowmelt.select.dialect import Dialect
from snowmelt.select.errors import SelectError
from snowmelt.select.formats.blocks import BlockLimits
from snowmelt.select.formats.csv_reader import CsvReader
from snowmelt.select.request import CsvInput, HeaderMode, ScanRange
from snowmelt.select.sql.ast import ColumnRef
from snowmelt.select.values import MISSING, Missing
from support.memory_objects import MemoryObject, SharedObject

AWS, CEPH, CEPH_2020 = Dialect.AWS, Dialect.CEPH, Dialect.CEPH_2020


def options_of(dialect: Any, **options: Any) -> CsvInput:
    if dialect is not AWS:
        options = {"escape": b"\\", "comment": b"", **options}
    return CsvInput(**options)


def read(
    text: Any,
    dialect: Any = AWS,
    *,
    limits: BlockLimits | None = None,
    scan_range: ScanRange | None = None,
    compression: str = "NONE",
    **options: Any,
) -> tuple[tuple[str, ...] | None, list[list[Missing | bytes | None]], SelectError | None]:
    """Return the header's names, the records as lists of fields, and the error at their end."""
    source = options.pop("source", MemoryObject)(text)
    reader = CsvReader(
        source,
        options_of(dialect, **options),
        dialect,
        compression=compression,
        scan_range=scan_range,
        limits=limits,
    )
    tokenizer, looking = reader.make_tokenizer(None), reader.make_tokenizer(())
    records, failure = [], None
    try:
        for block in reader.read_blocks():
            block.load_bytes()
            batch, looked = tokenizer(block), looking(block)
            for row in range(batch.row_count):
                fields = batch.read_record_fields(row)
                assert looked.read_record_fields(row) == fields
                assert batch.read_field(row, len(fields)) is MISSING
                # A column of its own may be NULL where `*` shows an empty field.
                values = [batch.read_field(row, field) for field in range(len(fields))]
                assert [value or b"" for value in values] == fields
                records.append(values)
            failure = batch.failure
            if failure is not None:
                break
            count = tokenizer.count_records(block)
            assert count is None or count == batch.row_count
            block.release()
        else:
            assert scan_range or compression != "NONE" or reader.scanned_bytes == len(text)
    except SelectError as error:
        failure = error
    finally:
        reader.close()
    return reader.header_names, records, failure


def rows(text: bytes, dialect: Dialect = AWS, **options: Any) -> list[list[Missing | bytes | None]]:
    _, records, failure = read(text, dialect, **options)
    assert failure is None
    return records


SEED_TABLE = [
    # The examples of the seed's page, with what each dialect makes of them.
    (
        b",,1,,2,",
        {
            CEPH_2020: [b"", b"", b"1", b"", b"2", b""],
            CEPH: [None, None, b"1", None, b"2", None],
            AWS: [b"", b"", b"1", b"", b"2", b""],
        },
    ),
    (
        b'11,22,"a,b,c,d",last',
        {
            CEPH_2020: [b"11", b"22", b'"a,b,c,d"', b"last"],
            CEPH: [b"11", b"22", b"a,b,c,d", b"last"],
            AWS: [b"11", b"22", b"a,b,c,d", b"last"],
        },
    ),
    (
        rb"11,22,str=\"abcd\"\,str2=\"123\",last",
        {
            CEPH_2020: [b"11", b"22", b'str="abcd",str2="123"', b"last"],
            CEPH: [b"11", b"22", b'str="abcd",str2="123"', b"last"],
            AWS: [b"11", b"22", rb"str=\"abcd\"" + b"\\", rb"str2=\"123\"", b"last"],
        },
    ),
    (
        b'11,22,a="str,44,55,66',
        {
            CEPH_2020: [b"11", b"22", b'a="str,44,55,66'],
            CEPH: "CSVUnescapedQuote",
            AWS: [b"11", b"22", b'a="str', b"44", b"55", b"66"],
        },
    ),
]


@pytest.mark.parametrize("dialect", Dialect)
@pytest.mark.parametrize(("line", "expected"), SEED_TABLE)
def test_the_seeds_examples(line: bytes, expected: Any, dialect: Any) -> None:
    _, records, failure = read(line + b"\nnext,row\n", dialect)
    if isinstance(expected[dialect], str):
        assert failure is not None
        assert (records, failure.s3_code) == ([], expected[dialect])
    else:
        assert records == [expected[dialect], [b"next", b"row"]]


@pytest.mark.parametrize(
    ("text", "dialect", "expected"),
    [
        (b'a,"say ""yes"""\n', AWS, [[b"a", b'say "yes"']]),
        (b'a,"say ""yes"""\n', CEPH, [[b"a", b"say yes"]]),
        (b'a,"say ""yes"""\n', CEPH_2020, [[b"a", b'"say ""yes"""']]),
        (b'x="a,b",c\n', AWS, [[b'x="a', b'b"', b"c"]]),
        (b'x="a,b",c\n', CEPH, [[b"x=a,b", b"c"]]),
        (b'x="a,b",c\n', CEPH_2020, [[b'x="a,b"', b"c"]]),
        (b'"a"b,c\n', AWS, [[b"ab", b"c"]]),
        (b'"a"b"c,d"\n', AWS, [[b'ab"c', b'd"']]),
        (b'"",x\n', CEPH, [[None, b"x"]]),
        (b'"",x\n', AWS, [[b"", b"x"]]),
        (b'"",x\n', CEPH_2020, [[b'""', b"x"]]),
        (rb"a\\b,\c" + b"\n", CEPH, [[b"a\\b", b"c"]]),
        (rb"a\\b,\c" + b"\n", AWS, [[b"a\\\\b", b"\\c"]]),
        (b"a,b\\\nc\n", CEPH, [[b"a", b"b"], [b"c"]]),
        (b"a,b\\\nc\n", CEPH_2020, [[b"a", b"b"], [b"c"]]),
        (b"a\r\nb\r\n", AWS, [[b"a"], [b"b"]]),
        (b"a\r\nb\r\n", CEPH, [[b"a"], [b"b"]]),
        (b"a\r\nb\r\n", CEPH_2020, [[b"a\r"], [b"b\r"]]),
        (b"a\n\n\r\nb", AWS, [[b"a"], [b"b"]]),
        (b"a\n\nb", CEPH, [[b"a"], [None], [b"b"]]),
        (b"a\n\nb", CEPH_2020, [[b"a"], [b""], [b"b"]]),
        (b"#a\nb#\n#", AWS, [[b"b#"]]),
        (b"#a\nb#\n", CEPH, [[b"#a"], [b"b#"]]),
        (b"\xef\xbb\xbfa\n", AWS, [[b"a"]]),
        (b"\xef\xbb\xbfa\n", CEPH, [[b"a"]]),
        (b"\xef\xbb\xbfa\n", CEPH_2020, [[b"\xef\xbb\xbfa"]]),
        (b"a\x00b,\x00\n", AWS, [[b"a\x00b", b"\x00"]]),
        (b"a\xff,b\n", CEPH, [[b"a\xff", b"b"]]),
        (b"a\xff,b\n", CEPH_2020, [[b"a\xff", b"b"]]),
        (b'a,"b\nc"\nd\n', CEPH, [[b"a", b"b\nc"], [b"d"]]),
        (b'a,"b\nc"\nd\n', CEPH_2020, [[b"a", b'"b'], [b'c"'], [b"d"]]),
        (b"1,2\n3\n4,5,6\n", AWS, [[b"1", b"2"], [b"3"], [b"4", b"5", b"6"]]),
        (b"last", AWS, [[b"last"]]),
        (b"", AWS, []),
    ],
)
def test_what_each_dialect_makes_of_a_line(
    text: bytes,
    dialect: Dialect,
    expected: list[Any] | list[list[bytes | None]] | list[list[bytes]],
) -> None:
    assert rows(text, dialect) == expected


@pytest.mark.parametrize(
    ("text", "options", "expected"),
    [
        (b"a||b|c\n", {"field_delimiter": b"||"}, [[b"a", b"b|c"]]),
        (b"a\x01b\x1ec\x01\x1e", {"field_delimiter": b"\x01", "record_delimiter": b"\x1e"}, [[b"a", b"b"], [b"c", b""]]),
        (b"a\nb\r\nc", {"record_delimiter": b"\r\n"}, [[b"a\nb"], [b"c"]]),
        (b"a\rb\r", {"record_delimiter": b"\r"}, [[b"a"], [b"b"]]),
        ("a¦b¶c".encode(), {"field_delimiter": "¦".encode(), "record_delimiter": "¶".encode()}, [[b"a", b"b"], [b"c"]]),
        (b"'a,b',c\n", {"quote": b"'"}, [[b"a,b", b"c"]]),
        (b'"a,b",c\n', {"quote": b""}, [[b'"a', b'b"', b"c"]]),
        (rb'"a\"b\\c\d",e' + b"\n", {"escape": b"\\"}, [[b'a"b\\c\\d', b"e"]]),
        (b'"a\nb",c\nd\n', {"quoted_record_delimiter": True}, [[b"a\nb", b"c"], [b"d"]]),
        (b'#"\na\n', {"quoted_record_delimiter": True}, [[b"a"]]),
        (b"#a\n;b\n", {"comment": b";"}, [[b"#a"]]),
    ],
)  # fmt: skip
def test_options_of_the_request(
    text: bytes, options: dict[str, bool] | dict[str, bytes], expected: list[list[bytes]]
) -> None:
    assert rows(text, **options) == expected


@pytest.mark.parametrize(
    "options",
    [
        {"record_delimiter": b""},
        {"field_delimiter": b""},
        {"field_delimiter": b"\n"},
        {"quote": b","},
        {"quote": b"\n"},
        {"record_delimiter": b"x" * 17},
        {"record_delimiter": b"\r\n", "field_delimiter": b"a\r"},
    ],
)
def test_delimiters_that_cannot_be_told_apart_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(SelectError) as refused:
        read(b"", **options)
    assert refused.value.s3_code == "InvalidRequestParameter"


@pytest.mark.parametrize(
    ("text", "code", "message"),
    [
        (b'a\n1,"b\nc"\n', "CSVEscapingRecordDelimiter", "byte 2"),
        (b'a\n1,"b', "CSVUnescapedQuote", "byte 2"),
        (b"a\n1,b\xff\n", "InvalidTextEncoding", "byte 5"),
        (b"a\n1,b\xe2\x82", "InvalidTextEncoding", "byte 5"),
        (b"a\n" + b"x" * 101 + b"\nb\n", "OverMaxRecordSize", "byte 2"),
    ],
)
@pytest.mark.parametrize("block_bytes", [1, 4, 50, 1 << 20])
def test_an_error_names_its_place_and_comes_behind_the_records_before(
    text: bytes, code: str, message: str, block_bytes: int
) -> None:
    _, records, failure = read(text, limits=BlockLimits(block_bytes, 100))
    assert records == [[b"a"]]
    assert failure is not None
    assert failure.s3_code == code
    assert message in str(failure)


@pytest.mark.slow
def test_characters_at_the_edges_of_blocks_are_no_errors() -> None:
    text = "€ä𝄞,ü\n".encode() * 200
    for block_bytes in (1, 2, 3, 5, 64, 100):
        assert len(rows(text, limits=BlockLimits(block_bytes))) == 200


@pytest.mark.parametrize("dialect", Dialect)
@pytest.mark.parametrize("block_bytes", [1, 7, 1 << 20])
def test_header(dialect: Any, block_bytes: int) -> None:
    limits = BlockLimits(block_bytes, 1 << 20)
    text = b'id,"the name"\n1,a\n2,b\n'
    name = '"the name"' if dialect is CEPH_2020 else "the name"
    names, records, _ = read(text, dialect, header="USE", limits=limits)
    assert names == ("id", name)
    assert records == [[b"1", b"a"], [b"2", b"b"]]
    names, records, _ = read(text, dialect, header="IGNORE", limits=limits)
    assert (names, len(records)) == (None, 2)
    names, records, _ = read(text, dialect, limits=limits)
    assert (names, len(records)) == (None, 3)
    assert read(b"", dialect, header="USE")[:2] == ((), [])
    assert read(b"id", dialect, header="USE")[:2] == (("id",), [])


@pytest.mark.parametrize("block_bytes", [1, 7, 1 << 20])
def test_a_header_stands_behind_mark_comments_and_blank_lines(block_bytes: int) -> None:
    text = b"\xef\xbb\xbf# made by hand\n\n# again\nid,name\r\n#\n1,a\n"
    limits = BlockLimits(block_bytes, 1 << 20)
    assert read(text, header="USE", limits=limits) == (("id", "name"), [[b"1", b"a"]], None)


def test_a_pipe_with_a_header_is_read_in_order() -> None:
    source = MemoryObject(b"id\n1\n2\n", size=-1, piece=2)
    reader = CsvReader(source, CsvInput(header=HeaderMode.USE), AWS)
    assert reader.header_names == ("id",)
    tokenizer = reader.make_tokenizer((0,))
    assert sum(tokenizer(block).row_count for block in reader.read_blocks()) == 2
    assert (reader.scanned_bytes, reader.processed_bytes) == (7, 7)


@pytest.mark.slow
def test_compressed_objects() -> None:
    text = b"id,name\n" + b"1,a\n" * 20_000
    names, records, _ = read(gzip.compress(text), header="USE", compression="GZIP")
    assert (names, len(records)) == (("id", "name"), 20_000)


def test_a_mangled_header_is_refused_at_once() -> None:
    for text, code in [
        (b"a,\xff\n", "InvalidTextEncoding"),
        (b'"a\nb\n', "CSVEscapingRecordDelimiter"),
    ]:
        with pytest.raises(SelectError) as refused:
            read(text, header="USE")
        assert refused.value.s3_code == code


PIECES = st.sampled_from([b",", b'"', b"\\", b"\n", b"\r\n", b"a", b"12", b"#", b"", "ü".encode()])
TEXTS = st.lists(PIECES, max_size=40).map(b"".join)


@pytest.mark.slow
@settings(max_examples=settings().max_examples * 2, deadline=None)
@given(
    TEXTS,
    st.sampled_from(Dialect),
    st.sampled_from(["NONE", "USE"]),
    st.booleans(),
    st.integers(1, 30),
    st.sampled_from([MemoryObject, SharedObject]),
)
def test_answers_do_not_depend_on_blocks(
    text: bytes, dialect: Any, header: Any, quoted: bool, block_bytes: int, source: Any
) -> None:
    def answer(limits: BlockLimits | None, source: Any = MemoryObject) -> Any:
        options = {"header": header, "quoted_record_delimiter": quoted, "limits": limits}
        options["source"] = source
        try:
            names, records, failure = read(text, dialect, **options)
        except SelectError as error:
            return str(error)
        return names, records, failure and (failure.s3_code, str(failure))

    assert answer(BlockLimits(block_bytes), source) == answer(None)


@pytest.mark.slow
@settings(max_examples=settings().max_examples * 2, deadline=None)
@given(
    st.lists(st.sampled_from([b",", b"\n", b"\r\n", b"a", b"#", b"1\n"]), max_size=40).map(
        b"".join
    ),
    st.sampled_from(Dialect),
    st.sampled_from(["NONE", "USE", "IGNORE"]),
    st.lists(st.integers(0, 50), max_size=4),
    st.integers(1, 30),
)
def test_ranges_together_give_every_record_once(
    text: Any, dialect: Any, header: Any, cuts: list[Any], block_bytes: int
) -> None:
    if not text:
        return
    edges = sorted({0, *(cut for cut in cuts if cut < len(text)), len(text)})
    found = []
    names, whole, _ = read(text, dialect, header=header)
    for first, stop in itertools.pairwise(edges):
        part_names, records, _ = read(
            text,
            dialect,
            header=header,
            scan_range=ScanRange(first, stop - 1),
            limits=BlockLimits(block_bytes),
        )
        assert part_names == names
        found += records
    assert found == whole


def test_a_range_and_quoted_record_delimiters_exclude_each_other() -> None:
    with pytest.raises(SelectError) as refused:
        read(b"a\n", scan_range=ScanRange(0, 1), quoted_record_delimiter=True)
    assert refused.value.s3_code == "UnsupportedScanRangeInput"


@pytest.mark.slow
def test_a_hundred_thousand_columns() -> None:
    wide = b",".join(b"%d" % i for i in range(100_000)) + b"\n"
    names, records, _ = read(wide * 3, header="USE")
    assert names is not None
    assert (len(names), names[-1]) == (100_000, "99999")
    assert [len(record) for record in records] == [100_000] * 2
    reader = CsvReader(MemoryObject(wide), CsvInput(), AWS)
    (block,) = reader.read_blocks()
    assert (
        reader.make_tokenizer((99_999, 100_000))(block).read_field_slices(99_999).read_bytes(0)
        == b"99999"
    )


def test_the_evaluators_row() -> None:
    reader = CsvReader(MemoryObject(b'a,"b""c"\n\xc3\xa4\n'), CsvInput(), AWS)
    (block,) = reader.read_blocks()
    batch = reader.make_tokenizer((0, 1))(block)
    first, second = batch.read_row(0), batch.read_row(1)
    assert [first.field(ColumnRef(place, "")) for place in (0, 1, 2)] == ["a", 'b"c', MISSING]
    assert [second.field(ColumnRef(place, "")) for place in (0, 1)] == ["ä", MISSING]
    assert first.fields() == ["a", 'b"c']
    assert batch.read_raw_record(0) == b'a,"b""c"'
    vector = batch.read_column(ColumnRef(1, ""))
    assert vector is not None
    assert vector.deferred.tolist() == [True, False]
    assert vector.null.tolist() == [False, True]
