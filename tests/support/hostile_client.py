"""Hostile client with valid credentials: its blobs have false bytes, footers or statistics."""

from __future__ import annotations

import hashlib
import io
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from snowmelt.blob import encryption
from snowmelt.schema import statistics
from snowmelt.schema.chunk_types import chunk_arrow_schema
from snowmelt.wire import column_statistics

if TYPE_CHECKING:
    from snowmelt.schema.types import TableSchema
    from support.streaming_wire import Conversation, Opened

# Type of a row count in Thrift's compact form: an i64 with the next field ID.
_I64 = b"\x16"


@dataclass
class Lie:
    """Parquet file, and the statistics that the client claims for it."""

    parquet: bytes
    claimed: dict[str, Any]
    said: str = ""


def encoded(table: pa.Table, **options: object) -> bytes:
    """Return a table as a Parquet file."""
    sink = io.BytesIO()
    given = {"compression": "none", "use_dictionary": False} | options
    pq.write_table(
        table, sink, version="1.0", data_page_version="1.0", store_schema=False,
        store_decimal_as_integer=True, **given,
    )  # fmt: skip
    return sink.getvalue()


def claims(table: pa.Table, schema: TableSchema) -> dict[str, Any]:
    """Return the statistics of rows in chunk form, as a client sends them."""
    found: dict[str, Any] = msgspec.to_builtins(
        column_statistics.statistics_to_message(
            schema, statistics.collect_statistics(table, schema)
        )
    )
    return found


def with_column(table: pa.Table, schema: TableSchema, name: str, values: pa.Array) -> pa.Table:
    """Replace a column by values of any type with the same field ID."""
    arrays = dict(zip(table.column_names, table.columns, strict=True)) | {name: values}
    fields = [
        each.with_type(values.type).with_nullable(bool(values.null_count) or each.nullable)
        if each.name == name
        else each
        for each in chunk_arrow_schema(schema)
    ]
    return pa.Table.from_arrays([arrays[each.name] for each in fields], schema=pa.schema(fields))


def counting(parquet: bytes, rows: int, said: int) -> bytes:
    """Replace the number of rows everywhere in the footer. Keeps the pages."""
    size = int.from_bytes(parquet[-8:-4], "little")
    footer = parquet[-8 - size : -8]
    changed = footer.replace(_I64 + bytes([rows * 2]), _I64 + bytes([said * 2]))
    assert changed != footer
    return parquet[: -8 - size] + changed + parquet[-8:]


def page_of(parquet: bytes, column: int) -> tuple[int, int]:
    """Return start and end of a column's pages in a file with one row group."""
    place = pq.read_metadata(io.BytesIO(parquet)).row_group(0).column(column)
    start = place.dictionary_page_offset or place.data_page_offset
    return start, start + place.total_compressed_size


def describe(client: Conversation, opened: Opened, sequence: int, lie: Lie) -> dict[str, Any]:
    """Stage a blob with false contents and valid checksums.

    Return the message that registers it.
    """
    path = client.path()
    padded = lie.parquet + bytes(encryption.padded_length(len(lie.parquet)) - len(lie.parquet))
    data = encryption.apply_aes_ctr(
        padded, key=encryption.derive_blob_key(opened.data_key, path), offset=0
    )
    client.put(path, data)
    channel = {
        "channel_name": opened.answer["channel"],
        "client_sequencer": opened.answer["client_sequencer"],
        "row_sequencer": sequence,
        "offset_token": str(sequence),
        "end_offset_token": str(sequence),
    }
    chunk = {
        **{name: opened.answer[name] for name in ("database", "schema", "table")},
        "chunk_start_offset": 0,
        "chunk_length": len(lie.parquet),
        "channels": [channel],
        "chunk_md5": hashlib.md5(data[: len(lie.parquet)]).hexdigest(),
        "eps": lie.claimed,
        "encryption_key_id": opened.answer["encryption_key_id"],
    }
    return {
        "path": path,
        "md5": hashlib.md5(data).hexdigest(),
        "bdec_version": 3,
        "chunks": [chunk],
    }
