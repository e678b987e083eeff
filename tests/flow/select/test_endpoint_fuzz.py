"""Random bytes as request, statement or object give a valid response, and the connection survives."""

from __future__ import annotations

import gzip
import http.client
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from fixtures.s3 import S3Process
from snowmelt.select.errors import ALL_CODES
from support.select_wire import Outcome, ask_on, request_body

CSV = b'id,name,at\n1,"o,ne",2026-01-01T00:00:00Z\n2,two,\n\n#x\n3,\xc3\xa9"'
GOOD = request_body("select count(*) from s3object")
MANY = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@pytest.fixture(scope="module")
def asked(s3: S3Process) -> Iterator[Callable[..., Outcome]]:
    """Send a request, and then a simple one on the same connection, which must survive."""
    client = s3.client()
    client.create_bucket(Bucket="fuzzed")
    client.put_object(Bucket="fuzzed", Key="plain", Body=CSV)
    connection = http.client.HTTPConnection("127.0.0.1", s3.port, timeout=60)

    def ask_and_go_on(body: bytes, key: str = "plain", dialect: str = "aws") -> Outcome:
        told = {"x_snowmelt_select_dialect": dialect}
        found = ask_on(connection, s3, "fuzzed", key, body, **told)
        assert found.status in {200, 400}, (found.code, found.message)
        assert found.whole or found.code in ALL_CODES, found.code
        assert found.whole or found.message
        assert ask_on(connection, s3, "fuzzed", "plain", GOOD).output == b"4\n"
        return found

    cast("Any", ask_and_go_on).client = client
    yield ask_and_go_on
    connection.close()
    assert "Traceback" not in s3.service.log


@MANY
@given(st.binary(max_size=300))
@example(b"")
@example(b"\xff\xfe<\0a\0>\0")
@example(b'<!DOCTYPE a [<!ENTITY b "c">]><SelectObjectContentRequest>&b;')
@example(b"<" * 5000)
@example(b"<a>" * 5000)
def test_any_bytes_as_a_body_are_refused(asked: Any, body: Any) -> None:
    assert not asked(body).whole


@MANY
@given(st.data())
def test_a_request_with_bytes_changed_is_answered_or_refused(asked: Any, data: Any) -> None:
    source = (
        "<CompressionType>NONE</CompressionType><CSV><FileHeaderInfo>USE</FileHeaderInfo>"
        "<FieldDelimiter>,</FieldDelimiter><RecordDelimiter>\n</RecordDelimiter>"
        '<QuoteCharacter>"</QuoteCharacter><Comments>#</Comments></CSV>'
    )
    body = bytearray(
        request_body(
            "select s.id from s3object s where s.id > 1 limit 3",
            source,
            "<JSON><RecordDelimiter>\n</RecordDelimiter></JSON>",
            "<ScanRange><Start>0</Start><End>50</End></ScanRange>",
        )
    )
    for _ in range(data.draw(st.integers(1, 3))):
        start = data.draw(st.integers(0, len(body)))
        end = min(len(body), start + data.draw(st.integers(0, 12)))
        body[start:end] = data.draw(st.binary(max_size=8))
    asked(bytes(body))


TEXT = (
    "select from where s3object stdin s s. id name at _1 _2 _99 * ( ) , ; . [ ] 'a' \"id\" 1 2.5 -1"
    " 1e400 9223372036854775808 + - / % ^ = == <> != < <= and or not in like escape between is null"
    " missing case when then else end cast as int float decimal(3,1) timestamp bool string count("
    " sum( min( max( avg( coalesce( nullif( lower( substring( trim( both for to_timestamp("
    " to_string( extract( year from date_add( day utcnow() limit 0 1 offset group by having order"
    " desc distinct || 'é' '' ` `2026T` -- /* \\ ' \" \x00 \x1f 😀"
)
STATEMENTS = st.lists(st.sampled_from(TEXT.split(" ")), max_size=25).map(" ".join)
DIALECTS = st.sampled_from(("aws", "ceph", "ceph-2020"))


@MANY
@given(
    st.one_of(
        st.text(max_size=80),
        STATEMENTS,
        STATEMENTS.map("select {} from s3object s".format),
        STATEMENTS.map("select s.id, count(*) from s3object s where {}".format),
    ),
    DIALECTS,
)
@example("select " + "(" * 5000 + "1" + ")" * 5000 + " from s3object", "aws")
@example("select " + "not " * 5000 + "true from s3object", "aws")
@example("select " + " || ".join(["'a'"] * 5000) + " from s3object", "aws")
@example("select '" + "x" * 300_000 + "' from s3object", "aws")
def test_any_statement_is_answered_or_refused(asked: Any, statement: Any, dialect: Any) -> None:
    source = "<CSV><FileHeaderInfo>USE</FileHeaderInfo></CSV>"
    text = statement.replace("\ud800", "")
    asked(request_body(text, source), dialect=dialect)


FORMS = st.sampled_from(
    (
        "<CSV/>",
        "<CSV><FileHeaderInfo>USE</FileHeaderInfo></CSV>",
        "<CSV><AllowQuotedRecordDelimiter>TRUE</AllowQuotedRecordDelimiter></CSV>",
        "<CSV><RecordDelimiter>ab</RecordDelimiter><FieldDelimiter>\x01</FieldDelimiter></CSV>",
        "<JSON><Type>LINES</Type></JSON>",
        "<JSON><Type>DOCUMENT</Type></JSON>",
        "<Parquet/>",
        "<CompressionType>GZIP</CompressionType><CSV/>",
        "<CompressionType>BZIP2</CompressionType><CSV/>",
        "<CompressionType>ZSTD</CompressionType><JSON><Type>LINES</Type></JSON>",
    )
)
CONTENTS = st.one_of(
    st.binary(max_size=200),
    st.text('ab,"\\\n\r#é1{}[]:', max_size=100).map(str.encode),
    st.binary(max_size=60).map(lambda tail: b"PAR1" + tail + b"PAR1"),
    st.tuples(st.binary(max_size=100), st.integers(0, 60)).map(
        lambda both: gzip.compress(both[0], mtime=0)[: both[1]]
    ),
    st.binary(max_size=60).map(lambda tail: b"\x28\xb5\x2f\xfd" + tail),
)
PLAIN_STATEMENTS = st.sampled_from(
    (
        "select * from s3object",
        "select count(*) from s3object",
        "select _1, _2 from s3object where _1 > 1",
        "select s.a from s3object s order by s.a limit 3",
    )
)


@MANY
@given(CONTENTS, FORMS, PLAIN_STATEMENTS, st.sampled_from(("<CSV/>", "<JSON/>")), DIALECTS)
@example(b"", "<CSV/>", "select * from s3object", "<CSV/>", "aws")
@example(b"", "<Parquet/>", "select * from s3object", "<CSV/>", "aws")
@example(b"[" * 600 + b"]" * 600, "<JSON/>", "select * from s3object", "<JSON/>", "aws")
@example(b"[" * 2000, "<JSON/>", "select * from s3object", "<JSON/>", "aws")
def test_any_object_is_answered_or_refused(
    asked: Any, content: Any, form: Any, statement: Any, target: Any, dialect: Any
) -> None:
    cast("Any", asked).client.put_object(Bucket="fuzzed", Key="any", Body=content)
    asked(request_body(statement, form, target), key="any", dialect=dialect)
