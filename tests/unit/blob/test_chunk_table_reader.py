"""Chunks of any client are read; broken or lying ones are refused, whatever the bytes."""

from __future__ import annotations

import io
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from snowmelt.blob.chunk_table_reader import read_chunk, read_chunk_footer
from snowmelt.blob.writer import ChunkInput, encode_chunk_as_parquet
from snowmelt.errors import BlobInvalid
from snowmelt.schema.chunk_types import chunk_arrow_schema
from snowmelt.schema.types import Column, LogicalType, TableSchema
from support.chunk_data import (
    DATA_KEY,
    PATH,
    as_java,
    chunk_column,
    chunks,
    every_type,
    relaxed,
    texts_of,
    with_precision,
)

CODECS = ["gzip", "zstd", "snappy", "none"]


def table_of(schema: TableSchema, *columns: list[Any]) -> pa.Table:
    arrays = [
        chunk_column(column, values) for column, values in zip(schema.columns, columns, strict=True)
    ]
    return pa.Table.from_arrays(arrays, schema=chunk_arrow_schema(schema))


def schema_of(*columns: Column) -> TableSchema:
    return TableSchema(1, columns)


def text(ordinal: int = 1, *, name: str = "T", nullable: bool = True) -> Column:
    return Column(name, LogicalType.TEXT, ordinal, nullable, length=100, byte_length=400)


def written(table: pa.Table, **options: Any) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table, sink, **options)
    return sink.getvalue()


def field(name: str, arrow_type: pa.DataType, ordinal: int | None, *, nullable: bool = True) -> Any:
    metadata = None if ordinal is None else {"PARQUET:field_id": str(ordinal)}
    return pa.field(name, arrow_type, nullable=nullable, metadata=metadata)


@given(part=chunks(), codec=st.sampled_from(CODECS))
@relaxed
def test_chunks_of_the_java_client_are_read(part: tuple[TableSchema, pa.Table], codec: str) -> None:
    schema, table = part
    found = read_chunk(as_java(table, schema, codec=codec), schema)
    assert found.schema.equals(chunk_arrow_schema(schema), check_metadata=True)
    assert texts_of(found) == texts_of(table)


@given(part=chunks(), version=st.sampled_from(["1.0", "2.0"]), dictionary=st.booleans())
@relaxed
def test_chunks_of_other_writers_are_read(
    part: tuple[TableSchema, pa.Table], version: str, dictionary: bool
) -> None:
    schema, table = part
    other = as_java(
        table,
        schema,
        data_page_version=version,
        use_dictionary=dictionary,
        store_schema=True,
        version="2.6",
    )
    assert texts_of(read_chunk(other, schema)) == texts_of(table)


def test_a_decimal_of_few_digits_in_sixteen_bytes_is_read() -> None:
    schema = schema_of(Column("D", LogicalType.FIXED, 1, precision=12, scale=2))
    table = table_of(schema, [-(10**12) + 1, None, 0, 10**12 - 1])
    java = with_precision(as_java(table, schema), 12)
    [found] = read_chunk_footer(java).fields
    assert (found.physical_type, found.type_length) == ("FIXED_LEN_BYTE_ARRAY", 16)
    assert (found.precision, found.scale) == (12, 2)
    assert read_chunk(java, schema).equals(table)


def test_bytes_under_a_text_annotation_are_bytes() -> None:
    schema = schema_of(Column("B", LogicalType.BINARY, 1, byte_length=100))
    table = table_of(schema, [b"\xff\xfe\x00", b"", None, bytes(range(256))])
    java = as_java(table, schema)
    assert read_chunk_footer(java).fields[0].logical_type == "STRING"
    assert read_chunk(java, schema).column("B").to_pylist() == table.column("B").to_pylist()


@pytest.mark.parametrize("kind", [LogicalType.TEXT, LogicalType.VARIANT])
def test_text_that_is_not_utf8_is_refused(kind: LogicalType) -> None:
    binary = schema_of(Column("B", LogicalType.BINARY, 1, byte_length=100))
    java = as_java(table_of(binary, [b"ok", b"\xff\xfe"]), binary)
    with pytest.raises(BlobInvalid, match="UTF8"):
        read_chunk(java, schema_of(Column("B", kind, 1, length=10)))


@pytest.mark.parametrize(
    ("column", "arrow_type", "value"),
    [
        (Column("C", LogicalType.FIXED, 1, precision=9, scale=0), pa.int32(), 10**9),
        (Column("C", LogicalType.FIXED, 1, precision=2, scale=0), pa.int64(), -100),
        (Column("C", LogicalType.FIXED, 1, precision=4, scale=2), pa.decimal128(38, 2), 100),
        (Column("C", LogicalType.TIMESTAMP_NTZ, 1, scale=6), pa.int64(), 10**18),
    ],
)
def test_numbers_outside_of_their_type_are_refused(
    column: Column, arrow_type: Any, value: int
) -> None:
    table = pa.table([pa.array([value]).cast(arrow_type)], pa.schema([field("C", arrow_type, 1)]))
    with pytest.raises(BlobInvalid):
        read_chunk(written(table), schema_of(column))


@pytest.mark.parametrize("arrow_type", [pa.int32(), pa.int64(), pa.decimal128(20, 0)])
@pytest.mark.parametrize("precision", [2, 9, 10, 18, 30])
def test_any_width_of_number_is_taken(arrow_type: Any, precision: int) -> None:
    schema = schema_of(Column("C", LogicalType.FIXED, 1, precision=precision, scale=0))
    table = pa.table(
        [pa.array([-99, 0, None, 99]).cast(arrow_type)], pa.schema([field("C", arrow_type, 1)])
    )
    assert read_chunk(written(table), schema).equals(table_of(schema, [-99, 0, None, 99]))


def test_bare_integers_are_times_but_not_fractions() -> None:
    ints = pa.table([pa.array([1, None, 2])], pa.schema([field("C", pa.int64(), 1)]))
    times = schema_of(Column("C", LogicalType.TIME, 1, scale=9))
    assert read_chunk(written(ints), times).equals(table_of(times, [1, None, 2]))
    fractions = schema_of(Column("C", LogicalType.FIXED, 1, precision=18, scale=2))
    with pytest.raises(BlobInvalid, match="scale"):
        read_chunk(written(ints), fractions)


@pytest.mark.parametrize(
    "arrow_type",
    [
        pa.timestamp("us"), pa.time64("us"), pa.uint64(), pa.float32(), pa.decimal128(10, 3),
        pa.list_(pa.int64()), pa.struct([("x", pa.int64())]), pa.decimal256(60, 0), pa.string(),
        pa.binary(16), pa.bool_(),
    ],
)  # fmt: skip
def test_other_types_do_not_fit_a_number(arrow_type: Any) -> None:
    table = pa.table([pa.nulls(2, arrow_type)], pa.schema([field("C", arrow_type, 1)]))
    with pytest.raises(BlobInvalid):
        read_chunk(
            written(table), schema_of(Column("C", LogicalType.FIXED, 1, precision=18, scale=0))
        )


def test_an_older_chunk_is_null_in_newer_columns() -> None:
    old = schema_of(text(1))
    parquet = as_java(table_of(old, ["a", None]), old)
    new = schema_of(text(1), Column("N", LogicalType.FIXED, 2, precision=12, scale=2))
    assert read_chunk(parquet, new).to_pydict() == {"T": ["a", None], "N": [None, None]}
    with pytest.raises(BlobInvalid, match="not nullable"):
        read_chunk(parquet, schema_of(text(1), text(2, name="X", nullable=False)))


def test_only_the_named_columns_are_read_in_their_order() -> None:
    schema = schema_of(text(1, name="a"), text(2, name="a.b"), text(3, name="c"))
    parquet = as_java(table_of(schema, ["1"], ["2"], ["3"]), schema)
    assert read_chunk(parquet, schema, columns=["c", "a"]).to_pydict() == {"c": ["3"], "a": ["1"]}
    assert read_chunk(parquet, schema, columns=["a"]).column_names == ["a"]
    nothing = read_chunk(parquet, schema, columns=[])
    assert (nothing.num_rows, nothing.num_columns) == (1, 0)
    with pytest.raises(KeyError):
        read_chunk(parquet, schema, columns=["no"])


def test_columns_are_found_by_field_id_whatever_their_names() -> None:
    schema = schema_of(text(1, name="A"), text(2, name="B"))
    swapped = pa.schema([field("A", pa.string(), 2), field("B", pa.string(), 1)])
    parquet = written(pa.table([["is two"], ["is one"]], schema=swapped))
    assert read_chunk(parquet, schema).to_pydict() == {"A": ["is one"], "B": ["is two"]}


def test_without_field_ids_columns_are_found_by_name() -> None:
    parquet = written(pa.table({"B": ["b"], "A": ["a"]}))
    schema = schema_of(text(1, name="A"), text(2, name="B"))
    assert [found.ordinal for found in read_chunk_footer(parquet).fields] == [None, None]
    assert read_chunk(parquet, schema).to_pydict() == {"A": ["a"], "B": ["b"]}


def test_nulls_do_not_pass_into_a_required_column() -> None:
    parquet = as_java(table_of(schema_of(text()), ["a", None]), schema_of(text()))
    with pytest.raises(BlobInvalid, match="nullable"):
        read_chunk(parquet, schema_of(text(nullable=False)))


def test_a_long_run_of_nulls_is_refused_before_it_is_decoded() -> None:
    schema = schema_of(Column("D", LogicalType.FIXED, 1, precision=38, scale=0))
    parquet = as_java(table_of(schema, [None] * 100_000), schema)
    assert len(parquet) < 2_000
    with pytest.raises(BlobInvalid, match="rows"):
        read_chunk(parquet, schema, max_bytes=1_000_000)


@pytest.mark.slow
def test_a_dictionary_of_one_long_value_is_no_bomb() -> None:
    schema = schema_of(text())
    table = pa.table([["x" * 100_000] * 1_000], chunk_arrow_schema(schema))
    parquet = written(table, use_dictionary=True, compression="zstd")
    assert len(parquet) < 10_000
    with pytest.raises(BlobInvalid, match="bytes of text, expected at most 10,000,000"):
        read_chunk(parquet, schema, max_bytes=10_000_000)
    assert read_chunk(parquet, schema).num_rows == 1_000


def test_a_page_of_repeated_bytes_is_no_bomb() -> None:
    schema = schema_of(text())
    parquet = as_java(table_of(schema, ["x" * 20_000_000]), schema, codec="zstd")
    assert len(parquet) < 10_000
    with pytest.raises(BlobInvalid, match="before compression"):
        read_chunk(parquet, schema, max_bytes=10_000_000)
    assert read_chunk(parquet, schema).num_rows == 1


def test_shared_prefixes_are_no_bomb() -> None:
    schema = schema_of(text())
    table = pa.table([["x" * 1000] * 1000], chunk_arrow_schema(schema))
    encoding = {"T": "DELTA_BYTE_ARRAY"}
    parquet = written(table, use_dictionary=False, column_encoding=encoding)
    with pytest.raises(BlobInvalid, match="encoding 7"):
        read_chunk(parquet, schema)


def test_several_row_groups_are_read() -> None:
    schema = schema_of(text())
    table = table_of(schema, [str(number) for number in range(100)])
    assert read_chunk(written(table, row_group_size=7), schema).equals(table)


@pytest.mark.parametrize(
    "data",
    [b"", b"PAR1", b"PAR1PAR1", b"PAR1\0\0\0\0PAR1", b"x" * 100, b"PAR1\xff\xff\xff\xffPAR1"],
)
def test_bytes_that_are_no_parquet_are_refused(data: bytes) -> None:
    with pytest.raises(BlobInvalid, match="some/path"):
        read_chunk_footer(data, path="some/path")
    with pytest.raises(BlobInvalid, match="some/path"):
        read_chunk(data, schema_of(text()), path="some/path")


def test_an_encrypted_chunk_with_the_wrong_key_is_refused() -> None:
    from snowmelt.blob.encryption import apply_aes_ctr

    schema = schema_of(text())
    cipher = apply_aes_ctr(as_java(table_of(schema, ["a"]), schema), key=b"1" * 32, offset=0)
    with pytest.raises(BlobInvalid):
        read_chunk_footer(apply_aes_ctr(cipher, key=b"2" * 32, offset=0))


BYTES = st.binary(max_size=300)


@given(BYTES)
@relaxed
def test_any_bytes_decode_or_raise_the_one_error(data: bytes) -> None:
    framed = b"PAR1" + data + len(data).to_bytes(4, "little") + b"PAR1"
    for parquet in (data, framed):
        for operation in (read_chunk_footer, lambda parquet: read_chunk(parquet, every_type())):
            try:
                operation(parquet)
            except BlobInvalid:
                continue


@pytest.mark.slow
@given(
    part=chunks(),
    java=st.booleans(),
    edits=st.lists(
        st.tuples(st.integers(0, 2**16), st.binary(max_size=3), st.integers(0, 3)),
        min_size=1,
        max_size=4,
    ),
)
@settings(relaxed, max_examples=3 * settings().max_examples)
def test_a_damaged_chunk_decodes_or_raises_the_one_error(
    part: tuple[TableSchema, Any], java: bool, edits: list[Any]
) -> None:
    schema, table = part
    source = ChunkInput(table, schema, DATA_KEY)
    parquet = as_java(table, schema) if java else bytes(encode_chunk_as_parquet(source, PATH, 0))
    for place, inserted, removed in edits:
        at = place % len(parquet)
        parquet = parquet[:at] + inserted + parquet[at + removed :]
    try:
        found = read_chunk(parquet, schema)
    except BlobInvalid:
        return
    found.validate(full=True)
    assert found.schema.equals(chunk_arrow_schema(schema), check_metadata=True)
