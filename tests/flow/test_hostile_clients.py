"""False claims of clients do not change query results: they are rejected with the reason."""

from __future__ import annotations

import contextlib
import copy
import datetime as dt
import itertools
from collections.abc import Callable, Iterator
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from snowmelt.schema.chunk_types import chunk_arrow_schema
from snowmelt.spark import Snowmelt
from support.hostile_client import Lie, claims, counting, describe, encoded, page_of, with_column
from support.streaming_wire import Conversation, verdicts

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from fixtures.service import KeyPair, ServiceProcess
    from snowmelt.schema.types import TableSchema

pytestmark = [pytest.mark.spark, pytest.mark.slow]

COLUMNS = """
    c1 NUMBER(5,0) NOT NULL, name VARCHAR(10), day DATE, at TIMESTAMP_NTZ(9), code BINARY(4),
    amount NUMBER(6,2), doc VARIANT
"""
VALUES = [1, 3, 5]
_channels = itertools.count(1)


def honest_rows(schema: TableSchema) -> pa.Table:
    count = len(VALUES)
    instant = Decimal("1700000000.000000000")
    return pa.table(
        {
            "C1": [Decimal(value) for value in VALUES],
            "NAME": ["one", None, "five"],
            "DAY": [dt.date(2026, 1, 1)] * count,
            "AT": [instant] * count,
            "CODE": [b"ab"] * count,
            "AMOUNT": [Decimal("1.50")] * count,
            "DOC": ['{"a":1}'] * count,
        },
        schema=chunk_arrow_schema(schema),
    )


def _changed(claimed: dict[str, Any], column: str, **changes: object) -> dict[str, Any]:
    copied = copy.deepcopy(claimed)
    copied["columns"][column].update(changes)
    return copied


def _typed(table: pa.Table, schema: TableSchema, name: str, values: pa.Array, said: str) -> Lie:
    changed = with_column(table, schema, name, values)
    return Lie(encoded(changed), claims(table, schema), said)


def false_maximum(table: pa.Table, schema: TableSchema) -> Lie:
    claimed = _changed(claims(table, schema), "C1", maxIntValue=2)
    return Lie(encoded(table), claimed, "column C1 has values outside of its statistics")


def false_text_bounds(table: pa.Table, schema: TableSchema) -> Lie:
    claimed = _changed(claims(table, schema), "NAME", minStrValue="70", maxStrValue="71")
    return Lie(encoded(table), claimed, "column NAME has values outside of its statistics")


def false_null_count(table: pa.Table, schema: TableSchema) -> Lie:
    claimed = _changed(claims(table, schema), "NAME", nullCount=3)
    return Lie(encoded(table), claimed, "column NAME has 1 nulls, but its statistics state 3")


def false_row_count(table: pa.Table, schema: TableSchema) -> Lie:
    claimed = claims(table, schema) | {"rows": 4}
    return Lie(encoded(table), claimed, "has 3 rows, but its statistics state 4")


def false_row_count_in_the_footer(table: pa.Table, schema: TableSchema) -> Lie:
    claimed = claims(table, schema) | {"rows": 4}
    return Lie(counting(encoded(table), 3, 4), claimed, "the pages have 3 values")


def garbled_pages(table: pa.Table, schema: TableSchema) -> Lie:
    parquet = bytearray(encoded(table, compression="zstd"))
    _, end = page_of(bytes(parquet), 1)
    for at in range(end - 12, end):
        parquet[at] ^= 0x55
    return Lie(bytes(parquet), claims(table, schema), "not a readable chunk")


def truncated_page(table: pa.Table, schema: TableSchema) -> Lie:
    parquet = encoded(table)
    _, end = page_of(parquet, len(schema.columns) - 1)
    # The pages of the last column end too early, followed by the footer.
    return Lie(parquet[: end - 20] + parquet[end:], claims(table, schema), "not a readable chunk")


def bomb_of_a_dictionary(table: pa.Table, schema: TableSchema) -> Lie:
    rows = 2_000
    many = pa.concat_tables([table.slice(0, 1)] * rows).combine_chunks()
    large = pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int32()), ["x" * 2**20])
    parquet = encoded(
        with_column(many, schema, "NAME", large), compression="zstd", use_dictionary=["NAME"]
    )
    assert len(parquet) < 200_000
    return Lie(parquet, claims(many, schema), "bytes of text, expected at most")


def bomb_of_a_page(table: pa.Table, schema: TableSchema) -> Lie:
    """A page header with a size of a gigabyte."""
    parquet = encoded(table, compression="zstd")
    start, end = page_of(parquet, 1)
    # Page header: type (15 00), uncompressed size (15 and a varint), compressed size (likewise).
    assert parquet[start : start + 3] == b"\x15\x00\x15"
    assert parquet[start + 4] == 0x15
    gigabyte = b"\x80\x80\x80\x80\x08"
    longer = len(gigabyte) - 1
    # Shorten the body by the growth of the header, so that all other positions stay the same.
    size = bytes([parquet[start + 5] - 2 * longer])
    page = (
        parquet[start : start + 3] + gigabyte + b"\x15" + size + parquet[start + 6 : end - longer]
    )
    parquet = parquet[:start] + page + parquet[end:]
    return Lie(parquet, claims(table, schema), "bytes before compression, expected at most")


def wrong_physical_type(table: pa.Table, schema: TableSchema) -> Lie:
    said = "column C1 is DOUBLE NONE in the chunk, which does not hold NUMBER(5,0)"
    return _typed(table, schema, "C1", pa.array([1.0, 3.0, 5.0]), said)


def not_null_violated(table: pa.Table, schema: TableSchema) -> Lie:
    said = "column C1 is nullable in the chunk, but not in the table"
    return _typed(table, schema, "C1", pa.array([1, None, 5], pa.decimal128(5, 0)), said)


def beyond_the_precision(table: pa.Table, schema: TableSchema) -> Lie:
    lie = _typed(table, schema, "C1", pa.array([1, 3, 100_000], pa.int32()), "not a readable chunk")
    lie.claimed = _changed(lie.claimed, "C1", maxIntValue=100_000)
    return lie


def beyond_the_scale(table: pa.Table, schema: TableSchema) -> Lie:
    values = pa.array([Decimal("1.500")] * 3, pa.decimal128(6, 3))
    return _typed(table, schema, "AMOUNT", values, "column AMOUNT has scale 3 in the chunk, not 2")


def beyond_the_length(table: pa.Table, schema: TableSchema) -> Lie:
    lie = _typed(table, schema, "NAME", pa.array(["one", None, "é" * 11]), "11 characters")
    lie.claimed = _changed(lie.claimed, "NAME", minStrValue="", maxStrValue="Z")
    return lie


def beyond_the_bytes(table: pa.Table, schema: TableSchema) -> Lie:
    lie = _typed(table, schema, "CODE", pa.array([b"ab", b"ab", b"abcde"]), "a value has 5 bytes")
    lie.claimed = _changed(lie.claimed, "CODE", maxStrValue="Z")
    return lie


def no_text(table: pa.Table, schema: TableSchema) -> Lie:
    raw = pa.array([b"one", None, b"\xff\xfe"])
    text = pa.Array.from_buffers(pa.string(), 3, raw.buffers())
    lie = _typed(table, schema, "NAME", text, "UTF8")
    lie.claimed = _changed(lie.claimed, "NAME", minStrValue="", maxStrValue="Z")
    return lie


def no_date(table: pa.Table, schema: TableSchema) -> Lie:
    days = pa.array([20_000, 20_000, 2_932_897], pa.int32()).cast(pa.date32())
    lie = _typed(table, schema, "DAY", days, "a value is outside 0001-01-01 to 9999-12-31")
    lie.claimed = _changed(lie.claimed, "DAY", minIntValue=20_000, maxIntValue=2_932_897)
    return lie


def no_instant(table: pa.Table, schema: TableSchema) -> Lie:
    beyond = Decimal(10) ** 13
    values = pa.array([beyond] * 3, pa.decimal128(38, 9))
    lie = _typed(table, schema, "AT", values, "outside the years 1 to 9999")
    largest = int(beyond.scaleb(9))
    lie.claimed = _changed(lie.claimed, "AT", minIntValue=largest, maxIntValue=largest)
    return lie


def no_instant_of_readers(table: pa.Table, schema: TableSchema) -> Lie:
    """The year 10000, within a day of the wire format's limit."""
    beyond = Decimal(253_402_300_800)
    values = pa.array([beyond] * 3, pa.decimal128(38, 9))
    lie = _typed(table, schema, "AT", values, "a value is outside 0001-01-01 00:00:00 to 9999")
    largest = int(beyond.scaleb(9))
    lie.claimed = _changed(lie.claimed, "AT", minIntValue=largest, maxIntValue=largest)
    return lie


def too_deep_a_document(table: pa.Table, schema: TableSchema) -> Lie:
    deep = "[" * 300 + "]" * 300
    return _typed(table, schema, "DOC", pa.array(["{}", deep, "1"]), "at most 200 levels")


def too_large_a_number(table: pa.Table, schema: TableSchema) -> Lie:
    values = pa.array(["{}", '{"a":1e400}', "1"])
    return _typed(table, schema, "DOC", values, "numbers in the range of a double")


LIES = [
    false_maximum, false_text_bounds, false_null_count, false_row_count,
    false_row_count_in_the_footer, garbled_pages, truncated_page, bomb_of_a_dictionary,
    bomb_of_a_page, wrong_physical_type, not_null_violated, beyond_the_precision,
    beyond_the_scale, beyond_the_length, beyond_the_bytes, no_text, no_date, no_instant,
    no_instant_of_readers, too_deep_a_document, too_large_a_number,
]  # fmt: skip


@pytest.fixture(scope="module")
def world(
    spark: SparkSession, shared_service: ServiceProcess, key_pair: KeyPair
) -> Iterator[World]:
    """A table with valid rows, an honest and a hostile client, and the query results."""
    service, key = shared_service, key_pair.public_base64
    service.sql(
        "CREATE DATABASE hostile",
        "CREATE SCHEMA IF NOT EXISTS hostile.public",
        f"CREATE TABLE hostile.public.t ({COLUMNS})",
        "CREATE ROLE IF NOT EXISTS inserting",
        "GRANT USAGE ON DATABASE hostile TO ROLE inserting",
        "GRANT USAGE ON SCHEMA hostile.public TO ROLE inserting",
        "GRANT INSERT ON TABLE hostile.public.t TO ROLE inserting",
        *(
            text
            for user in ("honest", "hostile_user")
            for text in (
                f"CREATE USER {user} RSA_PUBLIC_KEY = '{key}' DEFAULT_ROLE = inserting",
                f"GRANT ROLE inserting TO USER {user}",
            )
        ),
    )
    settings = service.settings
    lake = Snowmelt(
        spark,
        catalog=settings.catalog_url,
        stage=settings.stage_url,
        warehouse=settings.warehouse_url,
        keys=settings.keys_dir,
    )
    with contextlib.ExitStack() as stack:
        stack.callback(lake.close)
        clients = []
        for user in ("HONEST", "HOSTILE_USER"):
            client = Conversation(service.url, key_pair.private_pem, user, database="hostile")
            stack.callback(client.http.close)
            clients.append(client.configure())
        yield World(lake, *clients)


class World:
    def __init__(self, lake: Snowmelt, honest: Conversation, hostile: Conversation) -> None:
        self.lake, self.honest, self.hostile = lake, honest, hostile
        # The client name in the header must have no effect.
        hostile.http.headers["X-Snowmelt-Client"] = "anything"
        self.committed = 0
        opened = honest.open("honest")
        self.schema = opened.schema
        self.table = honest_rows(self.schema)
        truth = Lie(encoded(self.table), claims(self.table, self.schema))
        assert honest.codes(describe(honest, opened, 1, truth)) == [0]
        self.committed = 1

    def answers(self) -> list[int]:
        """Return results of queries that must be equal with and without pruning."""
        table = "hostile.public.t"
        conditions = ("c1 = 3", "c1 + 0 = 3", "name IS NULL", "concat(name, '') IS NULL")
        counts = [f"SELECT count(*) FROM {table} WHERE {each}" for each in conditions]
        whole = [f"SELECT count(*) FROM {table}", f"SELECT count(c1) FROM {table}"]
        return [self.lake.sql(text).collect()[0][0] for text in (*counts, *whole)]

    def check_answers(self) -> None:
        one, rows = self.committed, self.committed * len(VALUES)
        assert self.answers() == [one, one, one, one, rows, rows]


def test_a_true_chunk_of_the_same_client_is_taken(world: World) -> None:
    opened = world.hostile.open("truth")
    truth = Lie(encoded(world.table), claims(world.table, world.schema))
    assert world.hostile.codes(describe(world.hostile, opened, 1, truth)) == [0]
    world.committed += 1
    world.check_answers()


@pytest.mark.parametrize("lie", LIES, ids=lambda lie: lie.__name__)
def test_a_lie_is_refused_with_its_reason_and_harms_no_query(
    world: World, lie: Callable[[Any, TableSchema], Lie]
) -> None:
    opened = world.hostile.open(f"lies{next(_channels)}")
    told = lie(world.table, world.schema)
    [verdict] = verdicts(world.hostile.register(describe(world.hostile, opened, 1, told)))
    assert verdict["status_code"] != 0
    assert told.said in verdict["message"]
    assert world.hostile.status(opened)["channels"][0]["persisted_offset_token"] is None


def test_after_all_lies_queries_see_what_honest_clients_wrote(world: World) -> None:
    world.check_answers()
