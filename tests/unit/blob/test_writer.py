"""A blob's offsets, padding, hashes and keys are the specification's, computed here again."""

from __future__ import annotations

import hashlib

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from hypothesis import given
from hypothesis import strategies as st

from snowmelt.blob.chunk_table_reader import read_chunk
from snowmelt.blob.encryption import apply_aes_ctr, derive_blob_key
from snowmelt.blob.writer import ChunkInput, build_blob, encode_chunk_as_parquet
from snowmelt.schema.types import Column, LogicalType, TableSchema
from support.chunk_data import DATA_KEY, PATH, chunks, every_type, relaxed, texts_of

TEXT = TableSchema(1, (Column("T", LogicalType.TEXT, 3, length=100, byte_length=400),))


def source(rows: list[str | None], data_key: bytes = DATA_KEY) -> ChunkInput:
    return ChunkInput(pa.table({"T": pa.array(rows, pa.string())}), TEXT, data_key)


def test_layout_keys_counters_and_hashes_follow_the_specification() -> None:
    keys = [DATA_KEY, b"other" * 6 + b"ab", DATA_KEY]
    sources = [
        source([f"{number}-{size}" for number in range(size)], key)
        for size, key in zip((1, 50, 3000), keys, strict=True)
    ]
    blob = build_blob(PATH, sources)
    data = bytes(blob.data)

    assert blob.md5 == hashlib.md5(data).hexdigest()
    expected_offset = 0
    for chunk, given_source, key in zip(blob.chunks, sources, keys, strict=True):
        assert chunk.offset == expected_offset
        assert chunk.offset % 16 == 0
        cipher = data[chunk.offset : chunk.offset + chunk.length]
        assert chunk.md5 == hashlib.md5(cipher).hexdigest()
        assert chunk.rows == given_source.rows.num_rows

        pad = 16 - chunk.length % 16
        blob_key = hashlib.sha256(key + PATH.encode()).digest()
        counter = (chunk.offset // 16).to_bytes(16, "big")
        stream = Cipher(algorithms.AES(blob_key), modes.CTR(counter)).decryptor()
        plain = stream.update(data[chunk.offset : chunk.offset + chunk.length + pad])
        assert plain[chunk.length :] == b"\0" * pad
        assert plain[:4] == plain[chunk.length - 4 : chunk.length] == b"PAR1"
        assert pq.read_table(pa.BufferReader(plain[: chunk.length])).num_rows == chunk.rows
        expected_offset += chunk.length + pad
    assert len(data) == expected_offset


@pytest.mark.slow
@given(parts=st.lists(chunks(), min_size=1, max_size=3))
@relaxed
def test_what_was_written_is_read_back(parts: list[tuple[TableSchema, pa.Table]]) -> None:
    blob = build_blob(PATH, [ChunkInput(table, schema, DATA_KEY) for schema, table in parts])
    key = derive_blob_key(DATA_KEY, PATH)
    for (schema, table), chunk in zip(parts, blob.chunks, strict=True):
        cipher = blob.data[chunk.offset : chunk.offset + chunk.length]
        found = read_chunk(apply_aes_ctr(cipher, key=key, offset=chunk.offset), schema)
        assert found.schema.equals(table.schema, check_metadata=True)
        assert texts_of(found) == texts_of(table)


@pytest.mark.parametrize("rows", [1, 300, 3_000, 20_000])
def test_every_size_takes_its_own_codec_and_is_read_back(rows: int) -> None:
    table = pa.table({"T": [f"value {number % 50} of some length" for number in range(rows)]})
    parquet = encode_chunk_as_parquet(ChunkInput(table, TEXT, DATA_KEY), PATH, 0)
    column = pq.ParquetFile(pa.BufferReader(parquet)).metadata.row_group(0).column(0)
    expected = {1: "UNCOMPRESSED", 300: "SNAPPY", 3_000: "SNAPPY", 20_000: "ZSTD"}
    assert column.compression == expected[rows]
    assert column.has_dictionary_page == (rows == 20_000)
    assert read_chunk(parquet, TEXT).column("T").to_pylist() == table.column("T").to_pylist()


def test_a_column_of_different_values_gets_no_dictionary() -> None:
    table = pa.table({"T": [f"value {number}" for number in range(20_000)]})
    parquet = encode_chunk_as_parquet(ChunkInput(table, TEXT, DATA_KEY), PATH, 0)
    column = pq.ParquetFile(pa.BufferReader(parquet)).metadata.row_group(0).column(0)
    assert not column.has_dictionary_page


def test_numbers_are_written_by_their_differences_or_byte_by_byte() -> None:
    rows = 20_000
    columns = [("SHORT", 9), ("LONG", 18), ("BYTES", 38), ("FEW", 18)]
    schema = TableSchema(
        1,
        tuple(
            Column(name, LogicalType.FIXED, number, precision=precision, scale=0)
            for number, (name, precision) in enumerate(columns, 1)
        ),
    )
    numbers = [number * 7919 % 99_991 for number in range(rows)]
    values = [numbers, numbers, numbers, [number % 5 for number in numbers]]
    arrays = [
        pa.chunked_array([given[:12_000], given[12_000:]])
        .cast(pa.decimal128(38, 0))
        .cast(pa.decimal128(precision, 0))
        for given, (_, precision) in zip(values, columns, strict=True)
    ]
    table = pa.table(arrays, names=[name for name, _ in columns])
    parquet = encode_chunk_as_parquet(ChunkInput(table, schema, DATA_KEY), PATH, 0)
    group = pq.ParquetFile(pa.BufferReader(parquet)).metadata.row_group(0)
    encodings = [set(group.column(place).encodings) - {"RLE"} for place in range(4)]
    assert encodings == [
        {"DELTA_BINARY_PACKED"},
        {"DELTA_BINARY_PACKED"},
        {"BYTE_STREAM_SPLIT"},
        {"PLAIN_DICTIONARY"},
    ]
    found = read_chunk(parquet, schema)
    assert [column.to_pylist() for column in found.columns] == values


def test_the_file_says_what_the_official_client_says() -> None:
    schema = TableSchema(
        1,
        (
            Column("N", LogicalType.FIXED, 1, precision=38, scale=0, nullable=False),
            Column("a.b", LogicalType.VARIANT, 5),
            Column("B", LogicalType.BINARY, 7, byte_length=10),
        ),
    )
    table = pa.table(
        [pa.array([1], pa.decimal128(38, 0)), pa.array(["{}"]), pa.array([b"\xff"])],
        names=["N", "a.b", "B"],
    )
    parquet = encode_chunk_as_parquet(ChunkInput(table, schema, DATA_KEY), PATH, 4096)
    file = pq.ParquetFile(pa.BufferReader(parquet))
    assert file.metadata.metadata == {
        b"sfVer": b"1,1",
        b"sdkVersion": b"snowmelt-1",
        b"primaryFileId": b"totwo8_abc_4711_18_0_4096.bdec",
        b"1": b"2,5",
        b"5": b"11,8",
        b"5:obj_enc": b"1",
        b"7": b"10,8",
    }
    assert file.metadata.num_row_groups == 1
    assert file.metadata.format_version == "1.0"
    assert [column.name for column in file.schema] == ["N", "a.b", "B"]
    assert [column.max_definition_level for column in file.schema] == [0, 1, 1]
    ids = [field.metadata[b"PARQUET:field_id"] for field in file.schema_arrow]
    assert ids == [b"1", b"5", b"7"]
    first = encode_chunk_as_parquet(ChunkInput(table, schema, DATA_KEY), PATH, 0)
    primary = pq.ParquetFile(pa.BufferReader(first)).metadata.metadata[b"primaryFileId"]
    assert primary == b"totwo8_abc_4711_18_0.bdec"


def test_many_rows_stay_in_one_row_group() -> None:
    rows = 1_100_000
    table = pa.table({"T": pa.nulls(rows, pa.string())})
    parquet = encode_chunk_as_parquet(ChunkInput(table, TEXT, DATA_KEY), PATH, 0)
    assert pq.ParquetFile(pa.BufferReader(parquet)).metadata.num_row_groups == 1


def test_rows_out_of_form_are_refused() -> None:
    with pytest.raises(ValueError, match="at least one chunk"):
        build_blob(PATH, [])
    with pytest.raises(ValueError, match="chunk form"):
        build_blob(PATH, [ChunkInput(pa.table({"T": [1]}), TEXT, DATA_KEY)])
    required = TableSchema(1, (Column("T", LogicalType.TEXT, 3, nullable=False, length=1),))
    with pytest.raises(ValueError, match="null"):
        build_blob(PATH, [ChunkInput(source([None]).rows, required, DATA_KEY)])


def test_a_table_of_all_types_fits_the_list_in_the_specification() -> None:
    kinds = {column.kind for column in every_type().columns}
    assert kinds == set(LogicalType)
