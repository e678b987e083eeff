"""Pipes compute the stored values, and report values that they cannot compute."""

from __future__ import annotations

import contextlib
import datetime as dt
import ssl
from collections.abc import Callable
from decimal import Decimal
from typing import cast

import httpx
import pytest

from fixtures.rows import RowService
from snowmelt.catalog.statements.statement_context import StatementResult
from snowmelt.errors import PipeNotFound, PrivilegeMissing, StatementError
from snowmelt.schema.types import to_display_name

STREAM = "TABLE(DATA_SOURCE(TYPE => 'STREAMING'))"


@pytest.fixture(scope="module")
def sql(row_service: RowService) -> Callable[..., StatementResult]:
    run = row_service.service.sql
    run(
        "CREATE TABLE demo.public.sales (id NUMBER NOT NULL, name VARCHAR, total NUMBER(12,2),"
        " day DATE, doc VARIANT)",
        "GRANT INSERT ON TABLE demo.public.sales TO ROLE loading",
    )
    return run


def test_a_pipe_casts_computes_and_refuses_single_rows(
    row_service: RowService, sql: Callable[..., StatementResult]
) -> None:
    sql(
        "CREATE PIPE demo.public.sold AS COPY INTO sales FROM (SELECT $1:id::number AS id,"
        " UPPER(TRIM($1:who.name)) || '!' AS name, $1:price::number(10,2) * $1:count AS total,"
        f" $1:at::date day, $1['who'] AS doc FROM {STREAM})"
        " MATCH_BY_COLUMN_NAME = CASE_INSENSITIVE"
    )
    writer = row_service.writer("sold")
    writer.tell("open", "c")
    good = {"id": "7", "who": {"name": " ada "}, "price": "1.256", "count": 3, "at": "2026-11-21"}
    writer.tell("append", "c", [good, {**good, "price": "much"}, {**good, "id": None}], "0", "2")
    writer.tell("commit", "c", "2")
    status = writer.tell("status", "c", 3)
    assert (status["inserted"], status["errors"]) == (1, 2)
    assert row_service.rows("SALES", ["ID", "NAME", "TOTAL", "DAY", "DOC"]) == [
        (7, "ADA!", Decimal("3.78"), dt.date(2026, 11, 21), '{"name":" ada "}')
    ]
    shown = sql("SHOW PIPES IN SCHEMA demo.public").rows
    assert [row[1:4] for row in shown] == [("SOLD", "DEMO", "PUBLIC")]
    assert sql("DESCRIBE PIPE demo.public.sold").rows == shown
    listed = sql("SHOW CHANNELS IN TABLE demo.public.sales").rows
    assert [row[1] for row in listed] == ["C"]
    sql("DROP PIPE demo.public.sold")
    with pytest.raises(PipeNotFound):
        sql("DROP PIPE demo.public.sold")


def test_expressions_go_to_columns_by_position(
    row_service: RowService, sql: Callable[..., StatementResult]
) -> None:
    sql(
        "CREATE TABLE demo.public.narrow (a NUMBER, b VARCHAR)",
        "GRANT INSERT ON TABLE demo.public.narrow TO ROLE loading",
        "CREATE PIPE demo.public.short AS COPY INTO narrow (b, a) FROM"
        f" (SELECT COALESCE($1:x, 'none'), ROUND($1:n / 3, 1) FROM {STREAM})",
    )
    writer = row_service.writer("short")
    writer.tell("open", "p")
    writer.tell("append", "p", [{"n": 10}, {"n": 0.5, "x": "y"}], "0", "1")
    writer.tell("commit", "p", "1")
    assert row_service.rows("NARROW", ["A", "B"]) == [(0, "y"), (3, "none")]


def test_a_dropped_column_moves_no_value_to_another_one(
    row_service: RowService, sql: Callable[..., StatementResult]
) -> None:
    sql(
        'CREATE TABLE demo.public.shrinking (a VARCHAR, "b c" VARCHAR, d VARCHAR)',
        "GRANT INSERT ON TABLE demo.public.shrinking TO ROLE loading",
        f"CREATE PIPE demo.public.placed AS COPY INTO shrinking FROM (SELECT $1:x, $1:y FROM {STREAM})",
    )
    [shown] = sql("DESCRIBE PIPE demo.public.placed").rows
    assert str(shown[4]).startswith('COPY INTO shrinking (A, "b c") FROM (SELECT $1:x, $1:y FROM')
    writer = row_service.writer("placed")
    writer.tell("open", "s")
    writer.tell("append", "s", [{"x": "one", "y": "two"}], "0", "1")
    writer.tell("commit", "s", "1")
    sql("ALTER TABLE demo.public.shrinking DROP COLUMN a")
    writer = row_service.writer("placed")
    writer.tell("open", "s")
    writer.tell("append", "s", [{"x": "three", "y": "four"}], "1", "2")
    status = writer.tell("status", "s", 2)
    assert (status["inserted"], status["errors"]) == (1, 1)
    assert row_service.rows("SHRINKING", ["b c", "D"]) == [("two", None)]


def test_names_count_letter_by_letter_where_a_pipe_says_so(
    row_service: RowService, sql: Callable[..., StatementResult]
) -> None:
    sql(
        'CREATE TABLE demo.public.lettered (id NUMBER, "id" NUMBER)',
        "GRANT INSERT ON TABLE demo.public.lettered TO ROLE loading",
        f"CREATE PIPE demo.public.exactly AS COPY INTO lettered FROM {STREAM}"
        " MATCH_BY_COLUMN_NAME = CASE_SENSITIVE",
    )
    for pipe in ("exactly", "lettered-STREAMING"):
        writer = row_service.writer(pipe)
        writer.tell("open", pipe)
        writer.tell("append", pipe, [{"ID": 2, "id": 1}], "0", "0")
        writer.tell("commit", pipe, "0")
    assert row_service.rows("LETTERED", ["ID", "id"]) == [(1, None), (2, 1)]


@pytest.mark.parametrize(
    ("text", "column", "reason"),
    [
        (f"(SELECT SOUNDEX($1:a) AS id FROM {STREAM})", 61, "SOUNDEX is not supported"),
        (f"(SELECT $1:a AS nope FROM {STREAM})", 61, "no column NOPE"),
        (f"(SELECT $2:a AS id FROM {STREAM})", 62, "one value"),
        (f"(SELECT $1:a + FROM {STREAM})", 68, "Expected a part of the row"),
        ("@stage", 53, "it is the only supported source"),
        (f"(SELECT 1{' - 1' * 100} AS id FROM {STREAM})", 61, "more than 100 nested operations"),
        (f"(SELECT {'- ' * 1_000}1 AS id FROM {STREAM})", 163, "nested more than 50 levels"),
    ],
)
def test_what_a_pipe_cannot_do_is_refused_with_its_place(
    sql: Callable[..., StatementResult], text: str, column: int, reason: str
) -> None:
    with pytest.raises(StatementError, match=reason) as refused:
        sql(
            f"CREATE PIPE demo.public.bad AS COPY INTO sales FROM {text}"
            " MATCH_BY_COLUMN_NAME = CASE_INSENSITIVE"
        )
    assert refused.value.fields["line"] == 1
    assert refused.value.fields["column"] == column


def test_expressions_are_as_many_as_the_columns_that_are_listed(
    sql: Callable[..., StatementResult],
) -> None:
    for listed, refused in (("id", True), ("id, name", False), ("id, name, day", True)):
        text = f"CREATE PIPE demo.public.many AS COPY INTO sales ({listed}) FROM (SELECT 1, 'x'"
        with pytest.raises(StatementError) if refused else contextlib.nullcontext() as error:
            sql(f"{text} FROM {STREAM})")
        if refused:
            assert error is not None
            assert error.value.fields["column"] == text.index("'x'") + 1


def test_a_table_keeps_its_own_pipe(sql: Callable[..., StatementResult]) -> None:
    for name in ("SALES-STREAMING", "sales-streaming"):
        with pytest.raises(StatementError, match="reserved for the default pipes"):
            sql(
                f'CREATE PIPE demo.public."{name}" AS COPY INTO sales (id) FROM (SELECT 1 FROM {STREAM})'
            )


def test_a_pipe_needs_its_privilege(
    row_service: RowService, sql: Callable[..., StatementResult]
) -> None:
    copy = f"COPY INTO sales FROM {STREAM} MATCH_BY_COLUMN_NAME = CASE_INSENSITIVE"
    statement = f"CREATE PIPE demo.public.mine AS {copy}"
    with pytest.raises(PrivilegeMissing, match="CREATE PIPE"):
        row_service.sql_as("LOADER", statement)
    sql("GRANT CREATE PIPE ON SCHEMA demo.public TO ROLE loading")
    row_service.sql_as("LOADER", statement)
    assert to_display_name(str(sql("SHOW PIPES LIKE 'mine'").rows[0][5])) == "LOADING"


def test_pipes_go_with_their_schema_and_come_back_with_it(
    row_service: RowService, sql: Callable[..., StatementResult]
) -> None:
    sql(
        "CREATE SCHEMA demo.side",
        "CREATE TABLE demo.side.t (id NUMBER)",
        "GRANT USAGE ON SCHEMA demo.side TO ROLE loading",
        "GRANT INSERT ON TABLE demo.side.t TO ROLE loading",
        f"CREATE PIPE demo.side.p AS COPY INTO t (id) FROM (SELECT $1:n + 1 FROM {STREAM})",
    )
    channel = "databases/demo/schemas/side/pipes/p/channels/c"
    trust = ssl.create_default_context(cafile=row_service.service.ca_file)
    with httpx.Client(
        base_url=row_service.service.url,
        verify=trust,
        timeout=60,
        headers=row_service.authorization(),
    ) as http:

        def send(continuation: str) -> httpx.Response:
            asked = {"continuationToken": continuation, "requestId": f"after {continuation}"}
            path = f"/v2/streaming/data/{channel}/rows"
            return http.post(path, params=asked, content=b'{"n":1}')

        def opened() -> str:
            answer = http.put(f"/v2/streaming/{channel}", content=b"{}")
            return cast("str", answer.json()["next_continuation_token"])

        token = send(opened()).json()["next_continuation_token"]
        sql("DROP SCHEMA demo.side")
        assert "P" not in [row[1] for row in sql("SHOW PIPES IN DATABASE demo").rows]
        gone = send(token)
        assert (gone.status_code, gone.json()["code"]) == (
            404,
            "ERR_PIPE_DOES_NOT_EXIST_OR_NOT_AUTHORIZED",
        )
        sql("UNDROP SCHEMA demo.side")
        # The owners of channels of its tables are fenced.
        assert send(token).json()["code"] == "STALE_CONTINUATION_TOKEN_SEQUENCER"
        answer = send(opened())
        assert answer.status_code == 200, answer.text
    assert [row[1:4] for row in sql("SHOW PIPES LIKE 'p'").rows] == [("P", "DEMO", "SIDE")]
    (status,) = sql("SHOW CHANNELS IN TABLE demo.side.t").rows
    assert status[9] == 2
